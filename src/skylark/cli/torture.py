"""`skylark torture`: inject faults into a small cluster under load and check every message."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.bench_output import check_directory, check_files, interruptible
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped
from skylark.cli.output import Screen, print_json

if TYPE_CHECKING:
    from skylark.torture.report import TortureOptions, TortureReport

SECONDS_PER_MINUTE = 60
MINUTES_MAX = 100_000
SEEDS = 1 << 31
LONGEST_MAX_S = 15.0
"""Shorter than a master waits for its slave."""


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """Processes and longest fault of a run; members of `TortureOptions`."""

    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, max=8, help="2 by default, 1 with slaves.")
    ] = None
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", min=2, max=5, help="In failover modes: 3 of one broker and 2 of the other."
        ),
    ] = None
    members: Annotated[int, typer.Option("--members", min=1, max=64, help="Consumers in the group.")] = 3
    senders: Annotated[int, typer.Option("--senders", min=1, max=64, help="Sender processes.")] = 2
    keys: Annotated[
        int, typer.Option("--keys", min=1, max=1024, help="Keys of each sender: messages in flight.")
    ] = 4
    fault_s_max: Annotated[
        float,
        typer.Option(
            "--longest", min=0.5, max=LONGEST_MAX_S, metavar="SECONDS", help="Longest fault; locks last 6 s."
        ),
    ] = 4.0


@grouped
def torture(
    *,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode",
            "-m",
            help="async, sync, sync-master, transactions, orderly, failover, failover-etcd, delay or pop; "
            "repeatable; default: all in turn but failover-etcd.",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="Duration of the faults, all modes together.")
    ] = 3.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Repeat the faults of an earlier run, which printed its seed."),
    ] = None,
    shape: ShapeOptions,
    secure: Annotated[bool, typer.Option("--secure", help="Servers with TLS and users only.")] = False,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep stores, logs and journals there.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report as an HTML page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Inject faults into a cluster under load and check every message.

    Kills, freezes, disconnects and slows down servers, clients, network and disks, and fills disks.
    Exit code 1 if a guarantee was broken: an acknowledged message lost, a rolled-back one visible, an offset
    used twice, a gap, a message delivered early or stored twice, a group set back too far, or, in mode
    orderly, messages out of order.

    Example: skylark torture --minutes 10 --mode sync --seed 7
    """
    from skylark.torture import report  # noqa: PLC0415 - no other command needs it

    names = _modes(mode)
    if not 0 < minutes < MINUTES_MAX:
        raise UsageError(f"invalid --minutes {minutes:g}; choose more than 0 and less than {MINUTES_MAX}")
    check_directory(keep)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"--keep {keep} is not empty: choose a new directory")
    check_files(html)
    screen = Screen()
    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-torture-") as temporary:
        wanted = report.TortureOptions(
            directory=keep or Path(temporary),
            seconds=minutes * SECONDS_PER_MINUTE / len(names),
            seed=random.randrange(SEEDS) if seed is None else seed,  # noqa: S311 - it only chooses faults
            secure=_secured((keep or Path(temporary)) / "secure") if secure else {},
            **asdict(shape),
        )
        reports = [_run(wanted, name, screen, quiet=as_json) for name in names]
    if as_json:
        print_json([report.as_json(each) for each in reports])
    else:
        _print(screen, reports)
    if html is not None:
        html.write_text(report.page(reports, datetime.now(UTC).isoformat(" ", "seconds")))
    if not all(each.verdict.is_clean for each in reports):
        raise typer.Exit(1)


def _secured(directory: Path) -> dict[str, str]:
    """Make certificates and an administrator; return settings of servers. The environment tells clients."""
    from skylark.cli.serve import SecureTrial  # noqa: PLC0415
    from skylark.torture.cluster import CLIENT_HOST  # noqa: PLC0415

    trial = SecureTrial.prepare(directory, [CLIENT_HOST])
    os.environ.update(trial.client_variables())
    return trial.sets()


def _modes(given: list[str] | None) -> list[str]:
    """The modes in the given order, without duplicates. Raises UsageError."""
    from skylark.controller.etcd_member import PROGRAM  # noqa: PLC0415
    from skylark.torture.plan import MODES  # noqa: PLC0415

    for name in given or ():
        if name not in MODES:
            raise UsageError(f"invalid --mode {name!r}; choose {', '.join(MODES)}")
        if MODES[name].needs_etcd and shutil.which(PROGRAM) is None:
            raise UsageError(f"--mode {name} needs etcd, which is not installed; apt-get install etcd-server")
    return list(dict.fromkeys(given or (name for name, mode in MODES.items() if not mode.needs_etcd)))


def _run(wanted: TortureOptions, mode: str, screen: Screen, *, quiet: bool) -> TortureReport:
    import asyncio  # noqa: PLC0415 - `skylark --help` must not wait for it

    from skylark.torture.run import Torture  # noqa: PLC0415

    def say(words: str) -> None:
        if not quiet:
            screen.line(f"- {words}", "dim")

    return asyncio.run(Torture(replace(wanted, mode=mode, directory=wanted.directory / mode), say).run())


def _print(screen: Screen, reports: list[TortureReport]) -> None:
    from skylark.torture.report import COLUMNS, row  # noqa: PLC0415

    screen.line()
    screen.table(COLUMNS, [row(report) for report in reports])
    for report in reports:
        for name, finding in report.verdict.faults.items():
            if finding.count:
                screen.section(f"{report.wanted.mode}: {name}, {finding.count}", finding.examples, "bold red")
    seed = reports[0].wanted.seed
    if all(report.verdict.is_clean for report in reports):
        screen.line(f"No acknowledged message was lost. Seed {seed}.", "bold green")
    else:
        screen.line(f"Guarantees were broken. Repeat with --seed {seed} --keep DIR.", "bold red")
