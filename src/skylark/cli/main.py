"""The `skylark` command: its groups of commands, and what happens when one fails or is interrupted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skylark import __version__
from skylark.cli import servers, spark, store, torture
from skylark.cli.mistake import Mistake
from skylark.errors import RocketMQError

EXIT_FOUND = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Commands(TyperGroup):
    """Failures become one sentence and an exit code: 2 for what cannot be done, 130 for Ctrl-C."""

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
            sys.stderr.write(f"skylark: {sentence(error)}\n")
            raise typer.Exit(EXIT_MISTAKE) from None


def sentence(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Skylark, a message queue that keeps Apache RocketMQ's files and speaks its protocol.",
)
app.add_typer(store.app, name="store")
app.add_typer(spark.app, name="spark")
app.command()(servers.namesrv)
app.add_typer(servers.broker_app, name="broker")
app.command()(servers.serve)
app.command()(torture.torture)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skylark {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands."""


@app.command()
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Write the store there and leave it.")
    ] = None,
) -> None:
    """See it work: a store is written, killed in the middle, recovered, verified and read back."""
    from skylark.cli import demo_screen  # noqa: PLC0415  no other command needs it

    if not demo_screen.show(keep):
        raise typer.Exit(EXIT_FOUND)


def run() -> None:
    """Entry point of the `skylark` command."""
    try:
        app()
    except KeyboardInterrupt:  # while modules were being imported
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    run()
