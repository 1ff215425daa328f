"""The `skylark` command: its commands, common options, and how failures and interruptions end."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from skylark import __version__
from skylark.cli.commands import listed, load
from skylark.cli.hints import hint
from skylark.cli.mistake import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_MISTAKE, Mistake
from skylark.errors import RocketMQError

_PLACE = re.compile(r"\('(.+?)', (\d+)")
"""How asyncio says where it cannot listen."""
_CANNOT_LISTEN = {
    errno.EADDRINUSE: "is in use already",
    errno.EADDRNOTAVAIL: "is no address of this machine",
    errno.EACCES: "may not be listened on by this user",
}


class Commands(TyperGroup):
    """Failures become a sentence, a hint and an exit code: 2 for what cannot be done, 130 for Ctrl-C.

    A command does not wait for the modules of the others, and a list of commands for none.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": listed()})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load(name), rest

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        try:
            return super().make_context(*arguments, **more)
        except typer.TyperException as error:
            _refuse(error)

    def invoke(self, ctx: Any) -> None:
        try:
            super().invoke(ctx)
            sys.stdout.flush()  # here, where a full disk is a sentence
        except typer.TyperException as error:
            _refuse(error)
        except KeyboardInterrupt:
            sys.stderr.write("skylark: interrupted\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:  # whoever read our output has seen enough
            _drop_output()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except (RocketMQError, Mistake, OSError) as error:
            if ctx.params.get("debug"):
                raise
            sys.stderr.write(f"skylark: {sentence(error)}\n")
            if advice := hint(error):
                sys.stderr.write(f"  hint: {advice}\n")
            _drop_output()
            raise typer.Exit(EXIT_MISTAKE) from None


def _drop_output() -> None:
    """Write what is left, or throw it away: Python would complain of it once more at its exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(error: typer.TyperException) -> NoReturn:
    """End because of words that make no command. Who said none has been shown the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    said = error.format_message()
    sys.stderr.write(f"skylark: {said}\n")
    if (context := getattr(error, "ctx", None)) is not None:
        sys.stderr.write(
            f"  hint: `{context.command_path} --help` shows how it is used{_choices(context, said)}\n"
        )
    raise typer.Exit(EXIT_MISTAKE) from None


def _choices(context: Any, sentence: str) -> str:
    """The commands that there are, where one was named that is like none of them."""
    if not sentence.startswith("No such command") or "Did you mean" in sentence:
        return ""
    return f"; there are {', '.join(context.command.list_commands(context))}"


def sentence(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, OSError) and error.strerror:
        if error.errno in _CANNOT_LISTEN and (place := _PLACE.search(error.strerror)):
            return f"{place[1]}:{place[2]} {_CANNOT_LISTEN[error.errno]}"
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(str(error).split())  # what a broker remarks may have several lines


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skylark {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show traces, and all that is logged.")] = False,
) -> None:
    """Options of all commands."""
    # What clients log is for programs; a command says in its own words what went wrong.
    logging.getLogger("skylark").addHandler(logging.NullHandler())
    if debug:
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)s %(name)s %(message)s")


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Skylark, a message queue that keeps Apache RocketMQ's files and speaks its protocol.",
)
app.callback()(options)
