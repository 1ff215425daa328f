"""`skylark demo`: the options; the work is done in `demo_screen`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXIT_WRONG = 1


def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave store, Delta table and report there.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="1,000 orders instead of 10,000.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave out what needs Spark.")] = False,
) -> None:
    """See it work: orders are sent, billed, retried, archived by Spark, buried and dug out again.

    Exit code 1 if counts in and out do not agree.

    Example: skylark demo --keep ./demo
    """
    from skylark.cli import demo_screen  # noqa: PLC0415 - `skylark --help` must not wait for it

    if not demo_screen.show(keep, fast=fast, spark=not no_spark):
        raise typer.Exit(EXIT_WRONG)
