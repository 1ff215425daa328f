"""The `skylark` command: the table of commands, common options, and exit codes for failures."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from skylark import __version__
from skylark.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_USAGE_ERROR, UsageError, hint
from skylark.errors import RocketMQError

RUN, TALK, LOOK, DATA = "Run", "Send and receive", "Administer", "Store, pipelines, proof"


class CommandEntry(NamedTuple):
    """A module that has a command: as `app`, with commands of its own, or as a function of its name.

    `line` is how the help of the command begins, short enough for a terminal of 80 columns.
    """

    module: str
    panel: str
    line: str


COMMANDS = {
    "serve": CommandEntry("servers", RUN, "Run a name server and a broker in one process until Ctrl-C."),
    "broker": CommandEntry("broker", RUN, "Run a broker until Ctrl-C, or ask and tell those that run."),
    "namesrv": CommandEntry(
        "namesrv", RUN, "Run a name server until Ctrl-C, or ask and tell those that run."
    ),
    "doctor": CommandEntry("view", RUN, "Check this machine and the servers; say for each fault what to do."),
    "send": CommandEntry("talk", TALK, "Send a message, or many."),
    "tail": CommandEntry("talk", TALK, "Follow a topic: its last messages, then each new one."),
    "top": CommandEntry("view", LOOK, "Watch the whole system: brokers, topics, groups, rates and lag."),
    "cluster": CommandEntry("cluster", LOOK, "Clusters of brokers: how they are, and what is on them."),
    "topic": CommandEntry("topic", LOOK, "Topics: make, change, delete, and see what is in them."),
    "group": CommandEntry("group", LOOK, "Consumer groups: make, change, delete, and see how far they are."),
    "consumer": CommandEntry(
        "consumer", LOOK, "Consumers that are connected, and what they say of themselves."
    ),
    "producer": CommandEntry("producer", LOOK, "Producers that are connected."),
    "offset": CommandEntry("offset", LOOK, "Offsets of groups: read, reset, skip, clone."),
    "message": CommandEntry("message", LOOK, "Stored messages: find them, and follow what became of them."),
    "dlq": CommandEntry("dlq", LOOK, "Dead letters: messages that a group has failed too often."),
    "store": CommandEntry("store", DATA, "Look into a store directory, ours or Apache's, or back it up."),
    "spark": CommandEntry("spark", DATA, "Spark pipelines: archive, transform, aggregate, replay, report."),
    "bench": CommandEntry("bench", DATA, "Measure servers: our own, started for it, or those at --namesrv."),
    "torture": CommandEntry("torture", DATA, "Break a small cluster under load, and check every message."),
    "plan": CommandEntry("plan", DATA, "Plan for a load: brokers, machines, disk, memory, network."),
    "demo": CommandEntry("demo", DATA, "See it work: orders are sent, billed, retried, archived by Spark."),
}


def command_stubs() -> dict[str, Any]:
    """Every command as a list of them shows it; none of them can be run."""
    return {
        name: TyperCommand(name, help=place.line, rich_help_panel=place.panel)
        for name, place in COMMANDS.items()
    }


def load_command(name: str) -> Any:
    """A command of `PLACES`, ready to run."""
    place = COMMANDS[name]
    module = import_module(f"skylark.cli.{place.module}")
    around = typer.Typer()
    if hasattr(module, "app"):
        around.add_typer(module.app, name=name)
    else:
        around.command(name)(getattr(module, name))
    return typer.main.get_group(around).commands[name]


_PLACE = re.compile(r"\('(.+?)', (\d+)")
"""How asyncio says where it cannot listen."""
_CANNOT_LISTEN = {
    errno.EADDRINUSE: "is in use already",
    errno.EADDRNOTAVAIL: "is no address of this machine",
    errno.EACCES: "may not be listened on by this user",
}


class CommandGroup(TyperGroup):
    """Failures become a sentence, a hint and an exit code: 2 for what cannot be done, 130 for Ctrl-C.

    A command does not wait for the modules of the others, and a list of commands for none.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": command_stubs()})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest

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
        except (RocketMQError, UsageError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            sys.stderr.write(f"skylark: {sentence(error)}\n")
            if advice := hint(error):
                sys.stderr.write(f"  hint: {advice}\n")
            _drop_output()
            raise typer.Exit(EXIT_USAGE_ERROR) from None


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
    raise typer.Exit(EXIT_USAGE_ERROR) from None


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
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Skylark, a message queue that keeps Apache RocketMQ's files and speaks its protocol.",
)
app.callback()(options)
