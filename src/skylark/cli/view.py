"""`skylark top` and `skylark doctor`: the options; the work is done in `top_screen` and `health`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skylark.cli.options import EVERY_S, NAMESRV, AsJson, Every, Namesrv

EXIT_FAULTS = 1
ROWS = 15


def top(
    once: Annotated[bool, typer.Option("--once", help="Look twice, print, end.")] = False,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Topics and groups to show.")] = ROWS,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Watch the whole system: brokers, topics, groups, rates and lag.

    The busiest topics come first, and the groups that are furthest behind.

    Examples: skylark top

    skylark top --once --json
    """
    from skylark.cli import top  # noqa: PLC0415

    top.show(namesrv, once=once, rows_max=rows, every_s=every, as_json=as_json)


def doctor(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where messages are, or will be, kept.")
    ] = Path("skylark-data"),
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Check this machine and the servers; say for each fault what to do.

    Python, Java, ports, disk, limits, clocks and routes are looked at. Exit code 1 if there are faults.

    Example: skylark doctor --namesrv 127.0.0.1:9876
    """
    from skylark.cli import doctor  # noqa: PLC0415

    if not doctor.show(data, namesrv, as_json=as_json):
        raise typer.Exit(EXIT_FAULTS)
