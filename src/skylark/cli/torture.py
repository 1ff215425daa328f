"""`skylark torture`: break a small cluster on purpose, and prove that nothing acknowledged was lost."""

from __future__ import annotations

import random
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
"""Less than a master waits for its slave."""


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """Who runs, and how long a fault may take; members as those of `Wanted`."""

    brokers: Annotated[
        int | None, typer.Option("--brokers", min=1, max=8, help="2 by default, 1 with slaves.")
    ] = None
    members: Annotated[int, typer.Option("--members", min=1, max=64, help="Consumers of the group.")] = 3
    senders: Annotated[int, typer.Option("--senders", min=1, max=64, help="Processes that send.")] = 2
    keys: Annotated[
        int, typer.Option("--keys", min=1, max=1024, help="Of each sender: messages under way at once.")
    ] = 4
    fault_s_max: Annotated[
        float,
        typer.Option(
            "--longest", min=0.5, max=LONGEST_MAX_S, metavar="SECONDS", help="Of a fault; locks live for 6."
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
            help="async, sync, sync-master, transactions, orderly or delay; "
            "several are run in turn, none: all.",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="How long faults go on, all modes together.")
    ] = 3.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="Repeat the faults of an earlier run; it says its seed."),
    ] = None,
    shape: ShapeOptions,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave stores, logs and journals there.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="The report as a page, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Break a small cluster under load, and check every message.

    Servers, clients, network and disks are killed, frozen, cut off, slowed down and filled up.
    Exit code 1 if a promise was broken: an acknowledged message lost, one seen that must not be, an offset
    used twice, a gap, a message too early or stored twice, a group set back too far, or, in mode orderly, an
    order that was not kept.

    Example: skylark torture --minutes 10 --mode sync --seed 7
    """
    from skylark.torture import report  # noqa: PLC0415 - no other command needs it

    names = _modes(mode)
    if not 0 < minutes < MINUTES_MAX:
        raise UsageError(f"--minutes {minutes:g}: more than 0 and less than {MINUTES_MAX} is needed")
    check_directory(keep)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"--keep {keep} is not empty; choose a new directory")
    check_files(html)
    screen = Screen()
    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-torture-") as temporary:
        wanted = report.TortureOptions(
            directory=keep or Path(temporary),
            seconds=minutes * SECONDS_PER_MINUTE / len(names),
            seed=random.randrange(SEEDS) if seed is None else seed,  # noqa: S311 - it only chooses faults
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


def _modes(given: list[str] | None) -> list[str]:
    """Each once, in the order given. Raises Mistake for one that there is not."""
    from skylark.torture.plan import MODES  # noqa: PLC0415

    for name in given or ():
        if name not in MODES:
            raise UsageError(f"--mode {name}: {', '.join(MODES)} are possible")
    return list(dict.fromkeys(given or MODES))


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
        screen.line(f"Nothing acknowledged was lost. Seed {seed}.", "bold green")
    else:
        screen.line(f"Promises were broken. Repeat with --seed {seed} --keep DIR.", "bold red")
