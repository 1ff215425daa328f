"""`skylark bench all`: what a page about performance needs, in one sitting."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.bench_output import (
    EXIT_VOID,
    Outputs,
    check_directory,
    extra_needed,
    interruptible,
    live,
    show_conditions,
)
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from benchmarks.survey.run import Survey


@grouped
def everything(
    *,
    step: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="NAME", help="Only these, several; none: all. `--list` names them."),
    ] = None,
    list_steps: Annotated[bool, typer.Option("--list", help="Say which steps there are, and end.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each cell is measured.")] = 3.0,
    minutes: Annotated[float, typer.Option(min=0.01, help="After these no further step begins.")] = 12.0,
    svg: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the charts of `growth` there.")
    ] = None,
    outputs: Outputs,
) -> None:
    """Measure sends, features, filters, fan-out, cold reads, latency, replication, routes, topics and growth.

    Each step has servers of its own. --out is written after each step: what was measured before an
    interruption is there. Let nothing else run meanwhile; compare, soak and spark are commands of their own.

    Examples: skylark bench all --out figures.json --report figures.html
              skylark bench all --step features --step latency --seconds 10
    """
    with extra_needed():
        from benchmarks.survey import run  # noqa: PLC0415 - `skylark --help` must not wait for it

    steps = run.steps(seconds)
    screen = Screen()
    if list_steps:
        screen.table(("step",), [(name,) for name in steps])
        return
    for name in step or ():
        if name not in steps:
            raise UsageError(f"--step {name}: {', '.join(steps)} are possible")
    check_directory(svg)
    chosen = {name: measure for name, measure in steps.items() if name in (step or steps)}
    with interruptible(), live(screen) as progress:
        found = run.survey(chosen, minutes, progress, outputs.keep)
    if svg is not None and run.GROWTH in found.documents:
        from benchmarks.growth import write_charts  # noqa: PLC0415

        write_charts(found.documents[run.GROWTH], svg)
    outputs.deliver(found, partial(run.page, found), partial(_show, found))
    if found.is_void:
        raise typer.Exit(EXIT_VOID)


def _show(found: Survey, screen: Screen) -> None:
    """For people."""
    from benchmarks.survey.run import COLUMNS, rows  # noqa: PLC0415

    screen.table(COLUMNS, rows(found))
    screen.section("Not measured", [f"{name}: {reason}" for name, reason in found.missing.items()])
    show_conditions(screen, found)
    screen.line(f"{sum(found.taken_s.values()):.0f} s in all", "dim")
