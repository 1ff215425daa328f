"""The `skylark` command: its groups of commands, and what happens when one fails or is interrupted."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skylark import __version__
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
from skylark.cli.hints import hint
from skylark.cli.mistake import Mistake
from skylark.errors import RocketMQError

EXIT_FOUND = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Commands(TyperGroup):
    """Failures become a sentence, a hint and an exit code: 2 for what cannot be done, 130 for Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("skylark: interrupted\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has seen enough. Python would complain once more at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except (RocketMQError, Mistake, OSError) as error:
            if ctx.params.get("debug"):
                raise
            sys.stderr.write(f"skylark: {sentence(error)}\n")
            if advice := hint(error):
                sys.stderr.write(f"  hint: {advice}\n")
            raise typer.Exit(EXIT_MISTAKE) from None


def sentence(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())  # what a broker remarks may have several lines


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Skylark, a message queue that keeps Apache RocketMQ's files and speaks its protocol.",
)
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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skylark {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Options of all commands."""
    # What clients log is for programs; a command says in its own words what went wrong.
    logging.getLogger("skylark").addHandler(logging.NullHandler())
    if debug:
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)s %(name)s %(message)s")


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


def run() -> None:
    """Entry point of the `skylark` command."""
    try:
        app()
    except KeyboardInterrupt:  # while modules were being imported
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    run()
