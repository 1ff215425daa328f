"""What every form of the `skylark` command has: common options, and how failures and interruptions end."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from skylark import __version__
from skylark.cli.hints import hint
from skylark.cli.mistake import Mistake
from skylark.errors import RocketMQError

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


def new_app() -> typer.Typer:
    """A command without sub-commands."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Skylark, a message queue that keeps Apache RocketMQ's files and speaks its protocol.",
    )
    app.callback()(options)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skylark {__version__}")
        raise typer.Exit


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
