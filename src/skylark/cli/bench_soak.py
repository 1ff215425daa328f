"""`skylark bench soak`: a mixed load for a long time; what must not grow is watched."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.bench_output import AsJson, Out, ReportFile, check_files, extra_needed
from skylark.cli.mistake import Mistake
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from skylark.bench.soak import Sample
    from skylark.bench.soak_run import SoakReport

EXIT_NOT_FLAT = 1
SECONDS_PER_MINUTE = 60
LINES_EVERY_S = 60.0
"""So often a line is printed where no terminal redraws it."""


def soak(
    minutes: Annotated[float, typer.Option("--minutes", help="How long.")] = 30.0,
    rate: Annotated[
        float, typer.Option("--rate", help="Messages a second; choose half of what the machine can.")
    ] = 2000.0,
    every: Annotated[float, typer.Option("--every", help="Seconds between two looks.")] = 5.0,
    keep: Annotated[float, typer.Option("--keep", help="Seconds that log files are kept.")] = 60.0,
    log_mib: Annotated[int, typer.Option("--log-mib", help="Size of a log file.")] = 16,
    out: Out = None,
    report: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Send and consume for a long time: memory, descriptors, threads and latency must stay flat.

    Sent are several sizes, batches, delays and transactions; consumed is by tag, by SQL92 and by pull. Log
    files are small and kept for a short time, so that they roll and go meanwhile. Every message is counted.
    Exit code 1 if something grows more than allowed, or a message is missing.

    Examples: skylark bench soak --minutes 30 --rate 5000 --out soak.json --report soak.html
    """
    with extra_needed():
        from skylark.bench.soak_run import Soak, Wanted, encode, page  # noqa: PLC0415 - nobody else's

    for name, value, low, high in (
        ("--minutes", minutes, 0.01, 1e5),
        ("--rate", rate, 1, 1e6),
        ("--every", every, 0.1, 3600),
        ("--keep", keep, 1, 3600),
        ("--log-mib", log_mib, 1, 1024),
    ):
        if not low <= value <= high:
            raise Mistake(f"{name} {value:g}: from {low:g} to {high:g} is possible")
    check_files(out, report)
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="skylark-soak-") as directory:
        wanted = Wanted(
            directory=Path(directory),
            seconds=minutes * SECONDS_PER_MINUTE,
            rate=rate,
            every_s=every,
            keep_s=keep,
            log_file_bytes=log_mib << 20,
        )
        found = Soak(wanted, _Teller(screen, quiet=as_json)).run()
    if out is not None:
        out.write_bytes(encode(found))
    if report is not None:
        report.write_text(page(found))
    if as_json:
        typer.echo(encode(found))
    else:
        _print(screen, found)
    if not found.is_clean:
        raise typer.Exit(EXIT_NOT_FLAT)


class _Teller:
    """A line a minute, on standard error."""

    def __init__(self, screen: Screen, *, quiet: bool) -> None:
        self._screen = screen
        self._quiet = quiet
        self._told_s = -LINES_EVERY_S

    def __call__(self, sample: Sample) -> None:
        if self._quiet or sample.second < self._told_s + LINES_EVERY_S:
            return
        self._told_s = sample.second
        self._screen.err.print(
            f"{sample.second:6.0f} s  sent {sample.sent:,}  received {sample.received:,}  "
            f"broker {sample.broker_mib:.1f} MiB, {sample.descriptors} descriptors, {sample.threads} threads "
            f"and {sample.broker_core_share:.0%} of a core  send p99 {sample.send_p99_ms or 0:.1f} ms  "
            f"log {sample.log_files} files from {sample.log_begin:,}",
            style="dim",
        )


def _print(screen: Screen, found: SoakReport) -> None:
    from skylark.bench.soak_run import FINDING_COLUMNS, SLOPE_COLUMNS, finding_rows, slope_rows  # noqa: PLC0415

    screen.table(SLOPE_COLUMNS, slope_rows(found))
    screen.line()
    screen.table(FINDING_COLUMNS, finding_rows(found))
    screen.line()
    judged = any(slope.is_flat is not None for slope in found.slopes)
    if not found.is_clean:
        screen.line("Something grows, or a message is missing.", "bold red")
    elif judged:
        screen.line("Flat: nothing grew, nothing is missing.", "bold green")
    else:
        screen.line("Nothing is missing; too short to say whether something grows.", "bold yellow")
