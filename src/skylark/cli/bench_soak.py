"""`skylark bench soak`: a mixed load for a long time; what must not grow is watched."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.bench_output import Outputs, extra_needed, interruptible, show_conditions
from skylark.cli.options import grouped
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from benchmarks.soak.run import SoakReport
    from benchmarks.soak.slopes import Sample

EXIT_NOT_FLAT = 1
SECONDS_PER_MINUTE = 60
LINES_EVERY_S = 60.0
"""So often a line is printed where no terminal redraws it."""


@grouped
def soak(
    *,
    minutes: Annotated[float, typer.Option(min=0.01, help="How long; at least 6 to be judged.")] = 30.0,
    rate: Annotated[
        float | None,
        typer.Option(min=1, help="Messages a second. Without: half of what this machine can, found first."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 5.0,
    keep: Annotated[float, typer.Option(min=1, max=3600, help="Seconds that log files are kept.")] = 60.0,
    log_mib: Annotated[int, typer.Option(min=1, max=1024, help="Size of a log file.")] = 16,
    outputs: Outputs,
) -> None:
    """Send and consume for a long time: memory, descriptors, threads and latency must stay flat.

    Sent are several sizes, batches, delays and transactions; consumed is by tag, by SQL92 and by pull. Log
    files are small and kept for a short time, so that they roll and go meanwhile. Every message is counted.
    Exit code 1 if something grows more than allowed, or a message is missing.

    Examples: skylark bench soak --minutes 30 --out soak.json --report soak.html
    skylark bench soak --minutes 10 --rate 1500
    """
    with extra_needed():
        from benchmarks.soak.run import Soak, SoakOptions, page  # noqa: PLC0415 - nobody else's

    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-soak-") as directory:
        wanted = SoakOptions(
            directory=Path(directory),
            seconds=minutes * SECONDS_PER_MINUTE,
            rate=rate,
            every_s=every,
            keep_s=keep,
            log_file_bytes=log_mib << 20,
        )
        found = Soak(wanted, _Teller(Screen(), quiet=outputs.as_json)).run()
    outputs.deliver(found, partial(page, found), partial(_show, found))
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


def _show(found: SoakReport, screen: Screen) -> None:
    from benchmarks.soak.run import FINDING_COLUMNS, SLOPE_COLUMNS, finding_rows, slope_rows  # noqa: PLC0415

    screen.table(SLOPE_COLUMNS, slope_rows(found))
    screen.line()
    screen.table(FINDING_COLUMNS, finding_rows(found))
    show_conditions(screen, found)
    unclear = [slope.name for slope in found.slopes if slope.is_flat is None]
    if not found.is_clean:
        screen.line("Something grows, or a message is missing.", "bold red")
    elif not unclear:
        screen.line("Flat: nothing grew, nothing is missing.", "bold green")
    elif len(unclear) == len(found.slopes):
        screen.line("Nothing is missing; whether something grows cannot be said.", "bold yellow")
    else:
        screen.line(f"Nothing is missing; it cannot be said of {', '.join(unclear)}.", "bold yellow")
