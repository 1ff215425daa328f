"""`python -m benchmarks COMMAND`: survey, comparison with peers, soak, growth, costs for `skylark plan`.

Result files have one format: a `ResultFile` of `skylark.bench.results` with the figures of the command.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from benchmarks import growth as growth_of_costs
from benchmarks.compare import tables
from benchmarks.compare.cells import CELLS, parse_peers
from benchmarks.compare.figures import BENCHMARK, Comparison
from benchmarks.compare.figures import merge as merge_comparisons
from benchmarks.compare.measures import Effort
from benchmarks.compare.run import compare as run_comparison
from benchmarks.plan_costs import measure_costs
from benchmarks.soak.run import (
    FINDING_COLUMNS,
    SLOPE_COLUMNS,
    Soak,
    SoakOptions,
    SoakReport,
    finding_rows,
    slope_rows,
    soak_page,
)
from benchmarks.soak.slopes import Sample
from benchmarks.survey import run as survey_run
from benchmarks.survey.run import Survey
from skylark.bench.plan import load_costs, save_costs
from skylark.bench.results import Cell
from skylark.cli.bench_output import (
    EXIT_VOID,
    Outputs,
    check_directory,
    check_files,
    finish,
    interruptible,
    live,
    show_conditions,
)
from skylark.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE_ERROR, UsageError
from skylark.cli.options import grouped
from skylark.cli.output import Screen
from skylark.errors import RocketMQError

GIB = 1 << 30
COST_CELL_S = 4.0
EXIT_NOT_FLAT = 1
LINES_EVERY_S = 60.0

Charts = Annotated[Path | None, typer.Option("--svg", metavar="DIR", help="Write the growth charts there.")]


class Commands(TyperGroup):
    """Errors become one line and exit code 2, Ctrl-C exit code 130."""

    def invoke(self, ctx: Any) -> None:
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("benchmarks: interrupted\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except (RocketMQError, UsageError, OSError) as error:
            sys.stderr.write(f"benchmarks: {' '.join(str(error).split())}\n")
            raise typer.Exit(EXIT_USAGE_ERROR) from None


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


# --- Survey ---


@app.command()
@grouped
def survey(
    *,
    step: Annotated[
        list[str] | None, typer.Option("--step", metavar="NAME", help="Only these steps; see --list.")
    ] = None,
    list_steps: Annotated[bool, typer.Option("--list", help="List the steps.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each cell.")] = 3.0,
    minutes: Annotated[float, typer.Option(min=0.01, help="Start no step after these.")] = 12.0,
    svg: Charts = None,
    outputs: Outputs,
) -> None:
    """Run every benchmark of Skylark alone in turn, each on servers of its own; prints one table.

    --out is written after each step, so an interrupted run keeps its figures.
    """
    steps = survey_run.steps(seconds)
    screen = Screen()
    if list_steps:
        screen.table(("step",), [(name,) for name in steps])
        return
    for name in step or ():
        if name not in steps:
            raise UsageError(f"invalid --step {name!r}; choose {', '.join(steps)}")
    check_directory(svg)
    chosen = {name: measure for name, measure in steps.items() if name in (step or steps)}
    with interruptible(), live(screen) as progress:
        found = survey_run.survey(chosen, minutes, progress, outputs.keep)
    if svg is not None and survey_run.GROWTH in found.documents:
        growth_of_costs.write_charts(found.documents[survey_run.GROWTH], svg)
    outputs.deliver(found, partial(survey_run.page, found), partial(_show_survey, found))
    if found.is_void:
        raise typer.Exit(EXIT_VOID)


def _show_survey(found: Survey, screen: Screen) -> None:
    screen.table(survey_run.COLUMNS, survey_run.rows(found))
    screen.section("Not measured", [f"{name}: {reason}" for name, reason in found.missing.items()])
    show_conditions(screen, found)
    screen.line(f"{sum(found.taken_s.values()):.0f} s in total", "dim")


# --- Comparison ---


@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """Duration and size of a comparison; None: the default of `Effort`."""

    rounds: Annotated[int | None, typer.Option(min=1, help="3; the systems take turns.")] = None
    seconds: Annotated[float | None, typer.Option(min=0.1, help="5; duration of a round of a cell.")] = None
    warm_up_s: Annotated[
        float | None, typer.Option("--warm-up", min=0, help="60; seconds for a JVM to compile its code.")
    ] = None
    backlog: Annotated[int | None, typer.Option(min=1, help="200,000; messages to consume.")] = None
    recover_bytes: Annotated[
        float | None, typer.Option("--recover-gib", min=0.01, metavar="GIB", help="4; log before a kill -9.")
    ] = None
    heap_mb: Annotated[int | None, typer.Option(min=256, help="2048; heap of a peer's JVM.")] = None

    def changed(self, usual: Effort) -> Effort:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if self.recover_bytes is not None:
            given["recover_bytes"] = round(self.recover_bytes * GIB)
        return replace(usual, **given)


@app.command()
@grouped
def compare(
    *,
    peer: Annotated[
        str, typer.Option("--peer", metavar="NAME,…", help="apache, kafka, nats: one or several.")
    ] = "apache",
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", metavar="PATTERN", help="Cells by name, * allowed; repeatable; default: all."),
    ] = None,
    list_cells: Annotated[bool, typer.Option("--list", help="List the cells.")] = False,
    effort: EffortOptions,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of a second, small logs, without the longest cells.")
    ] = False,
    outputs: Outputs,
) -> None:
    """Measure Skylark and Apache RocketMQ, Kafka or NATS: rates, latency, start, memory, recovery.

    Peers are fetched once (Maven, Go) into ~/.cache/skylark and started in a temporary directory with the
    same flush mode and file sizes. Cells that cannot run here are listed with the reason. --out is written
    after each round.
    """
    screen = Screen()
    if list_cells:
        rows = [(each.name, ", ".join(sorted(each.systems)), each.what) for each in CELLS]
        screen.table(("cell", "systems", "what"), rows)
        return
    with interruptible():
        comparison = run_comparison(
            parse_peers(peer),
            cell or [],
            effort.changed(Effort.quick() if quick else Effort()),
            quick=quick,
            say=lambda words: screen.err.print(words, style="dim", markup=False),
            keep=outputs.keep,
        )
    _deliver(comparison, outputs)


@app.command()
@grouped
def merge(
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files that `compare --out` wrote.")],
    outputs: Outputs,
) -> None:
    """Merge several results of `compare`; a cell measured twice counts as in the last file."""
    _deliver(merge_comparisons([_read(file) for file in files]), outputs)


def _read(file: Path) -> Comparison:
    """Raises UsageError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Comparison)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file} is not a result of `{BENCHMARK}`: {error}") from None


def _deliver(comparison: Comparison, outputs: Outputs) -> None:
    outputs.deliver(comparison, partial(tables.page, comparison), partial(_show_comparison, comparison))


def _show_comparison(comparison: Comparison, screen: Screen) -> None:
    for peer in tables.peers_of(comparison):
        screen.line()
        screen.line(f"Skylark and {tables.title_of(comparison, peer)}" if peer else "Skylark alone", "bold")
        rows = [tables.cells_of(row) for row in tables.rows_for(comparison, peer)]
        screen.table(tables.COLUMNS, rows)
    screen.section("Behind, or below the bar", tables.loss_lines(comparison.rows), "bold yellow")
    screen.section("Not run, or void", tables.missing_lines(comparison))
    systems = [f"{each.title}: {each.settings}; {each.client}" for each in comparison.systems]
    screen.section("Systems", systems)
    screen.line()
    screen.line(tables.RATIO_NOTE, "dim")
    show_conditions(screen, comparison, "cells")


# --- Soak ---


@app.command()
@grouped
def soak(
    *,
    minutes: Annotated[float, typer.Option(min=0.01, help="Duration; at least 6 to be judged.")] = 30.0,
    rate: Annotated[
        float | None, typer.Option(min=1, help="Messages a second; default: half of the measured maximum.")
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two samples.")] = 5.0,
    keep: Annotated[float, typer.Option(min=1, max=3600, help="Retention of log files in seconds.")] = 60.0,
    log_mib: Annotated[int, typer.Option(min=1, max=1024, help="Size of a log file.")] = 16,
    outputs: Outputs,
) -> None:
    """Run a mixed load for a long time: memory, descriptors, threads and latency must stay flat.

    Sends several sizes, batches, delays and transactions; consumes by tag, by SQL92 and by pull. Log files
    are small and soon deleted. Every message is counted. Exit code 1 if something grows or a message is
    missing.
    """
    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-soak-") as directory:
        options = SoakOptions(
            directory=Path(directory),
            seconds=minutes * 60,
            rate=rate,
            every_s=every,
            keep_s=keep,
            log_file_bytes=log_mib << 20,
        )
        found = Soak(options, _SampleLog(Screen(), quiet=outputs.as_json)).run()
    outputs.deliver(found, partial(soak_page, found), partial(_show_soak, found))
    if not found.is_clean:
        raise typer.Exit(EXIT_NOT_FLAT)


class _SampleLog:
    """One line a minute on standard error."""

    def __init__(self, screen: Screen, *, quiet: bool) -> None:
        self._screen = screen
        self._quiet = quiet
        self._printed_s = -LINES_EVERY_S

    def __call__(self, sample: Sample) -> None:
        if self._quiet or sample.second < self._printed_s + LINES_EVERY_S:
            return
        self._printed_s = sample.second
        self._screen.err.print(
            f"{sample.second:6.0f} s  sent {sample.sent:,}  received {sample.received:,}  "
            f"broker {sample.broker_mib:.1f} MiB, {sample.descriptors} descriptors, {sample.threads} threads "
            f"and {sample.broker_core_share:.0%} of a core  send p99 {sample.send_p99_ms or 0:.1f} ms  "
            f"log {sample.log_files} files from {sample.log_begin:,}",
            style="dim",
        )


def _show_soak(found: SoakReport, screen: Screen) -> None:
    screen.table(SLOPE_COLUMNS, slope_rows(found))
    screen.line()
    screen.table(FINDING_COLUMNS, finding_rows(found))
    show_conditions(screen, found)
    unclear = [slope.name for slope in found.slopes if slope.is_flat is None]
    if not found.is_clean:
        screen.line("Something grows, or a message is missing.", "bold red")
    elif not unclear:
        screen.line("Flat: nothing grew, no message is missing.", "bold green")
    elif len(unclear) == len(found.slopes):
        screen.line("No message is missing; growth could not be judged.", "bold yellow")
    else:
        screen.line(f"No message is missing; growth not judged for {', '.join(unclear)}.", "bold yellow")


# --- Growth and costs ---


@app.command()
@grouped
def growth(
    *,
    dimension: Annotated[
        list[str] | None,
        typer.Option("--dimension", "-d", help="messages, topics, queues, connections or log; default: all."),
    ] = None,
    messages: Annotated[int, typer.Option(min=100, help="Messages per round of a point.")] = 40_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="The cheapest round counts.")] = 3,
    scale: Annotated[
        float, typer.Option(min=0.0001, max=1.0, help="Factor for all points; 0.01 for a quick look.")
    ] = 1.0,
    svg: Charts = None,
    outputs: Outputs,
) -> None:
    """Measure how the processor time of a send grows with messages, topics, queues, connections, log size."""
    for name in dimension or ():
        if name not in growth_of_costs.POINTS:
            raise UsageError(f"invalid --dimension {name!r}; choose {', '.join(growth_of_costs.POINTS)}")
    check_directory(svg)
    screen = Screen()

    def say(cell: Cell) -> None:
        cost = "void" if cell.is_void else f"{cell.server_cpu_us} µs"
        screen.err.print(f"{cell.name}: {cost}, {cell.per_s:,.0f} messages/s", style="dim")

    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-growth-") as directory:
        options = growth_of_costs.GrowthOptions(
            directory=Path(directory),
            dimensions=dimension or tuple(growth_of_costs.POINTS),
            messages=messages,
            rounds=rounds,
            scale=scale,
        )
        document = growth_of_costs.Growth(options, say).run()
    if svg is not None:
        growth_of_costs.write_charts(document, svg)
    finish(document, outputs, growth_of_costs.sections(document))


@app.command()
def costs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Write the costs there.")],
) -> None:
    """Measure the costs of a message on this machine, for `skylark plan --costs FILE`: two minutes."""
    check_files(file)
    screen = Screen()

    def say(name: str, used_us: float) -> None:
        screen.err.print(f"{name}: {used_us:.2f} µs a message", style="dim")

    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-costs-") as directory:
        found = measure_costs(Path(directory), COST_CELL_S, load_costs(), say)
    save_costs(found, file)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
