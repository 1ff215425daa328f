"""The `skylark` command with all its groups of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skylark.cli import (
    bench,
    broker,
    cluster,
    consumer,
    dlq,
    group,
    message,
    namesrv,
    offset,
    plan,
    producer,
    servers,
    spark,
    store,
    talk,
    topic,
    torture,
    view,
)
from skylark.cli.app import new_app

EXIT_FOUND = 1

app = new_app()
RUN, TALK, LOOK, DATA = "Run", "Send and receive", "Administer", "Store, pipelines, proof"
app.command(rich_help_panel=RUN)(servers.serve)
app.add_typer(broker.app, name="broker", rich_help_panel=RUN)
app.add_typer(namesrv.app, name="namesrv", rich_help_panel=RUN)
app.command(rich_help_panel=RUN)(view.doctor)
app.command(rich_help_panel=TALK)(talk.send)
app.command(rich_help_panel=TALK)(talk.tail)
app.command(rich_help_panel=LOOK)(view.top)
for _noun in (cluster, topic, group, consumer, producer, offset, message, dlq):
    app.add_typer(_noun.app, name=_noun.__name__.rpartition(".")[2], rich_help_panel=LOOK)
app.add_typer(store.app, name="store", rich_help_panel=DATA)
app.add_typer(spark.app, name="spark", rich_help_panel=DATA)
app.add_typer(bench.app, name="bench", rich_help_panel=DATA)
app.command(rich_help_panel=DATA)(torture.torture)
app.command(rich_help_panel=DATA)(plan.plan)


@app.command(rich_help_panel=DATA)
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave store, Delta table and report there.")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="1,000 orders instead of 10,000.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave out what needs Spark.")] = False,
) -> None:
    """See it work: orders are sent, billed, retried, archived by Spark, buried and dug out again.

    Example: skylark demo --keep ./demo
    """
    from skylark.cli import demo_screen  # noqa: PLC0415  no other command needs it

    if not demo_screen.show(keep, fast=fast, spark=not no_spark):
        raise typer.Exit(EXIT_FOUND)
