"""`skylark bench growth`: what a send costs a broker that already has much of something."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.bench_output import Outputs, check_directory, extra_needed, finish, interruptible
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from skylark.bench.results import Cell


@grouped
def growth(
    *,
    dimension: Annotated[
        list[str] | None,
        typer.Option("--dimension", "-d", help="messages, topics, queues, connections or log; none: all."),
    ] = None,
    messages: Annotated[int, typer.Option(min=100, help="For each round of a point.")] = 40_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="The least costly of them counts.")] = 3,
    scale: Annotated[
        float, typer.Option(min=0.0001, max=1.0, help="All points times this; 0.01: a quick look.")
    ] = 1.0,
    svg: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a chart for each dimension there.")
    ] = None,
    outputs: Outputs,
) -> None:
    """How the cost of a send grows: with messages, topics, queues, connections and the size of the log.

    What counts is processor time of the broker, which a busy machine changes less than rates.

    Examples: skylark bench growth --report growth.html --svg docs/charts
    skylark bench growth -d topics -d queues --scale 0.1
    """
    with extra_needed():
        from benchmarks.growth import POINTS, Growth, GrowthOptions, sections, write_charts  # noqa: PLC0415

    for name in dimension or ():
        if name not in POINTS:
            raise UsageError(f"--dimension {name}: {', '.join(POINTS)} are possible")
    check_directory(svg)
    screen = Screen()

    def say(cell: Cell) -> None:
        cost = "void" if cell.is_void else f"{cell.server_cpu_us} µs"
        screen.err.print(f"{cell.name}: {cost}, {cell.per_s:,.0f} messages/s", style="dim")

    with interruptible(), tempfile.TemporaryDirectory(prefix="skylark-growth-") as directory:
        wanted = GrowthOptions(
            directory=Path(directory),
            dimensions=dimension or tuple(POINTS),
            messages=messages,
            rounds=rounds,
            scale=scale,
        )
        document = Growth(wanted, say).run()
    if svg is not None:
        write_charts(document, svg)
    finish(document, outputs, sections(document))
