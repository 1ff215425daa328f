"""`skylark torture`: break a small cluster on purpose, and prove that nothing acknowledged was lost."""

from __future__ import annotations

import random
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.mistake import Mistake
from skylark.cli.output import Screen, print_json

if TYPE_CHECKING:
    from skylark.torture.run import Report, Wanted

SECONDS_PER_MINUTE = 60
SEEDS = 1 << 31


def torture(
    mode: Annotated[
        list[str] | None,
        typer.Option(
            "--mode", "-m", help="async, sync, orderly or delay; several are run in turn, none: all."
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="How long faults go on, all modes together.")
    ] = 3.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Repeat the faults of an earlier run; it says its seed.")
    ] = None,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=8)] = 2,
    members: Annotated[int, typer.Option("--members", min=1, max=64, help="Consumers of the group.")] = 3,
    senders: Annotated[int, typer.Option("--senders", min=1, max=1024)] = 8,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave stores, logs and receipts there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Kill, freeze, cut off and fill up brokers, name server and consumers under load; check every message.

    Exit code 1 if a promise was broken: an acknowledged message lost, an offset used twice, a gap, a message
    too early, or, in mode orderly, an order that was not kept.

    Example: skylark torture --minutes 10 --mode sync --seed 7
    """
    from skylark.torture.run import MODES, Wanted  # noqa: PLC0415 - no other command needs it

    names = mode or list(MODES)
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise Mistake(f"--mode {unknown[0]}: {', '.join(MODES)} are possible")
    if seed is None:
        seed = random.randrange(SEEDS)  # noqa: S311 - it only chooses faults
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise Mistake(f"--keep {keep} is not empty; choose a new directory")
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="skylark-torture-") as temporary:
        wanted = Wanted(
            directory=keep or Path(temporary),
            seconds=minutes * SECONDS_PER_MINUTE / len(names),
            seed=seed,
            brokers=brokers,
            members=members,
            senders=senders,
        )
        reports = [_run(wanted, name, screen, quiet=as_json) for name in names]
    if as_json:
        print_json([_as_json(report) for report in reports])
    else:
        _print(screen, reports)
    if not all(report.verdict.is_clean for report in reports):
        raise typer.Exit(1)


def _run(wanted: Wanted, mode: str, screen: Screen, *, quiet: bool) -> Report:
    import asyncio  # noqa: PLC0415 - `skylark --help` must not wait for it

    from skylark.torture.run import Torture  # noqa: PLC0415

    def say(words: str) -> None:
        if not quiet:
            screen.line(f"- {words}", "dim")

    wanted = replace(wanted, mode=mode, directory=wanted.directory / mode)
    return asyncio.run(Torture(wanted, say).run())


def _print(screen: Screen, reports: list[Report]) -> None:
    screen.line()
    columns = (
        "mode",
        "acknowledged",
        "unknown",
        "received",
        "more than once",
        "faults",
        "drained",
        "verdict",
    )
    rows = [
        (
            report.wanted.mode,
            report.verdict.acknowledged,
            report.verdict.unknown,
            report.verdict.received,
            report.verdict.duplicated,
            len(report.faults),
            f"{report.drained_s:.1f} s",
            "clean" if report.verdict.is_clean else "BROKEN",
        )
        for report in reports
    ]
    screen.table(columns, rows)
    for report in reports:
        for name, finding in report.verdict.faults.items():
            if finding.count:
                screen.section(f"{report.wanted.mode}: {name}, {finding.count}", finding.examples, "bold red")
    seed = reports[0].wanted.seed
    if all(report.verdict.is_clean for report in reports):
        screen.line(f"Nothing acknowledged was lost. Seed {seed}.", "bold green")
    else:
        screen.line(f"Promises were broken. Repeat with --seed {seed} --keep DIR.", "bold red")


def _as_json(report: Report) -> dict[str, Any]:
    wanted = {**asdict(report.wanted), "directory": str(report.wanted.directory)}
    return {
        "wanted": wanted,
        "verdict": asdict(report.verdict),
        "clean": report.verdict.is_clean,
        "faults": report.faults,
        "elapsed_s": report.elapsed_s,
        "drained_s": report.drained_s,
    }
