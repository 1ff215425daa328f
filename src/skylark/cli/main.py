"""The `skylark` command: the table of commands, common options, and exit codes for failures."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from skylark import __version__
from skylark.cli.errors import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_USAGE_ERROR, UsageError, hint
from skylark.errors import RocketMQError

RUN, MESSAGES, ADMIN, DATA = "Run", "Send and receive", "Administer", "Store, pipelines, measurements"


class CommandEntry(NamedTuple):
    """A command of the module of its name: `app` with subcommands, or a function.

    `line` is the first line of the command's help, short enough for a terminal of 80 columns.
    """

    panel: str
    line: str


COMMANDS = {
    "serve": CommandEntry(RUN, "Run a name server and a broker in one process until Ctrl-C."),
    "broker": CommandEntry(RUN, "Run a broker until Ctrl-C, or administer running ones."),
    "namesrv": CommandEntry(RUN, "Run a name server until Ctrl-C, or administer running ones."),
    "controller": CommandEntry(RUN, "Run a controller until Ctrl-C, or administer running ones."),
    "proxy": CommandEntry(RUN, "Serve RocketMQ 5 clients (gRPC) in front of a cluster."),
    "tls": CommandEntry(RUN, "Make certificates for TLS, for a trial."),
    "doctor": CommandEntry(RUN, "Check this machine and the servers, with advice for each fault."),
    "send": CommandEntry(MESSAGES, "Send a message, or many."),
    "tail": CommandEntry(MESSAGES, "Follow a topic: its last messages, then each new one."),
    "console": CommandEntry(ADMIN, "Serve the web console until Ctrl-C: topics, messages, groups."),
    "gateway": CommandEntry(ADMIN, "Serve the HTTP API: send, read, offsets, administration."),
    "top": CommandEntry(ADMIN, "Watch brokers, topics, groups and jobs, with rates and lag."),
    "cluster": CommandEntry(ADMIN, "Clusters: run one here, list brokers, copy metadata."),
    "topic": CommandEntry(ADMIN, "Topics: create, change, delete, and inspect."),
    "group": CommandEntry(ADMIN, "Consumer groups: create, change, delete, and inspect."),
    "consumer": CommandEntry(ADMIN, "Connected consumers and their state."),
    "producer": CommandEntry(ADMIN, "Connected producers."),
    "offset": CommandEntry(ADMIN, "Offsets of groups: list, reset, skip, clone."),
    "message": CommandEntry(ADMIN, "Stored messages: find, trace, consume again."),
    "dlq": CommandEntry(ADMIN, "Dead letters: messages that a group failed to consume too often."),
    "user": CommandEntry(ADMIN, "Users: create, change, delete, import and export."),
    "acl": CommandEntry(ADMIN, "Rights of users: create, delete, list, test."),
    "store": CommandEntry(DATA, "Inspect, verify, dump, export or back up a store directory."),
    "spark": CommandEntry(DATA, "Spark pipelines: archive, transform, aggregate, replay, report."),
    "lake": CommandEntry(DATA, "Keep topics archived in tables: Delta, Iceberg, Parquet."),
    "bench": CommandEntry(DATA, "Measure servers: started for the run, or running at --namesrv."),
    "torture": CommandEntry(DATA, "Inject faults into a cluster under load and check every message."),
    "plan": CommandEntry(DATA, "Plan for a load: brokers, machines, disk, memory, network."),
    "demo": CommandEntry(DATA, "See it work: orders are sent, billed, retried, kept by Spark."),
}


def command_stubs() -> dict[str, Any]:
    """The commands for `skylark --help`; they cannot be run."""
    return {
        name: TyperCommand(name, help=entry.line, rich_help_panel=entry.panel)
        for name, entry in COMMANDS.items()
    }


def load_command(name: str) -> Any:
    """Import a command's module and return the command."""
    module = import_module(f"skylark.cli.{name}")
    around = typer.Typer()
    if hasattr(module, "app"):
        around.add_typer(module.app, name=name)
    else:
        around.command(name)(getattr(module, name))
    command = typer.main.get_group(around).commands[name]
    _unfold_help(command)
    return command


def _unfold_help(command: Any) -> None:
    """Join the lines of paragraphs, which would be broken a second time on a narrow terminal."""
    command.help = _LINE_BREAK.sub(" ", inspect.cleandoc(command.help or ""))
    for each in getattr(command, "commands", {}).values():
        _unfold_help(each)


_LINE_BREAK = re.compile(r"(?<!\n)\n(?=\S)")
"""Inside a paragraph; lines that are indented stay."""


_ADDRESS = re.compile(r"\('(.+?)', (\d+)")
"""The address in asyncio's error about listening."""
_CANNOT_LISTEN = {
    errno.EADDRINUSE: "is in use already",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
    errno.EACCES: "needs more permissions than this user has",
}


class CommandGroup(TyperGroup):
    """Prints errors as one sentence and a hint; exit code 2 for errors, 130 for Ctrl-C.

    Imports only the module of the command that is run.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": command_stubs()})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if _may_be_mqadmin(args):
            args = _translate(args)
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
            sys.stdout.flush()  # here, where an error such as a full disk is handled
        except typer.TyperException as error:
            _refuse(error)
        except KeyboardInterrupt:
            sys.stderr.write("skylark: interrupted\n")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output is gone
            _drop_output()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        except (RocketMQError, UsageError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            sys.stderr.write(f"skylark: {error_text(error)}\n")
            if advice := hint(error):
                sys.stderr.write(f"  hint: {advice}\n")
            _drop_output()
            raise typer.Exit(EXIT_USAGE_ERROR) from None


def _may_be_mqadmin(words: list[str]) -> bool:
    """All commands of `mqadmin` have a capital letter, but `producer` and `consumer`; and only options."""
    return words[0] != words[0].lower() or (words[0] in COMMANDS and words[1:2] != [] and words[1][:1] == "-")


def _translate(words: list[str]) -> list[str]:
    """Replace a command of `mqadmin` by its equivalent, and say so. Raises UsageError without one."""
    from skylark.cli import mqadmin  # noqa: PLC0415 - only for its users

    if not mqadmin.is_mqadmin(words):
        return words
    translated = mqadmin.translate(words)
    sys.stderr.write(f"skylark: mqadmin's {words[0]} is `skylark {shlex.join(translated)}`\n")
    return translated


def _drop_output() -> None:
    """Flush, or discard what cannot be written: Python would report it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(error: typer.TyperException) -> NoReturn:
    """Exit because of an invalid command line. Without any argument, help has been printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        raise error
    sentence = error.format_message()
    sys.stderr.write(f"skylark: {sentence}\n")
    if (context := getattr(error, "ctx", None)) is not None:
        sys.stderr.write(
            f"  hint: `{context.command_path} --help` shows the usage{_choices(context, sentence)}\n"
        )
    raise typer.Exit(EXIT_USAGE_ERROR) from None


def _choices(context: Any, sentence: str) -> str:
    """The list of commands, for an unknown one without a similar name."""
    if not sentence.startswith("No such command") or "Did you mean" in sentence:
        return ""
    return f"; commands: {', '.join(context.command.list_commands(context))}"


def error_text(error: Exception) -> str:
    """One line that describes an error."""
    if isinstance(error, OSError) and error.strerror:
        if error.errno in _CANNOT_LISTEN and (place := _ADDRESS.search(error.strerror)):
            return f"{place[1]}:{place[2]} {_CANNOT_LISTEN[error.errno]}"
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(str(error).split())  # a broker's remark may have several lines


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skylark {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and all log messages.")] = False,
    credentials: Annotated[
        Path | None,
        typer.Option(
            "--credentials",
            metavar="FILE",
            help="File with accessKey and secretKey, mode 0600. Default: SKYLARK_CREDENTIALS_FILE.",
        ),
    ] = None,
    tls: Annotated[
        bool | None, typer.Option("--tls/--no-tls", help="Use TLS. Default: SKYLARK_TLS_ENABLED.")
    ] = None,
    tls_trusted: Annotated[
        Path | None,
        typer.Option(
            "--tls-trusted", metavar="FILE", help="CAs of servers, and --tls. Default: SKYLARK_TLS_TRUSTED."
        ),
    ] = None,
) -> None:
    """Options of all commands."""
    # Commands print errors themselves; logs of the clients are for programs.
    logging.getLogger("skylark").addHandler(logging.NullHandler())
    if credentials is not None:  # also for the processes that a command starts
        from skylark.settings.credentials import CREDENTIALS_FILE_VARIABLE  # noqa: PLC0415 - see CommandGroup

        os.environ[CREDENTIALS_FILE_VARIABLE] = str(credentials)
    if tls is None and tls_trusted is not None:
        tls = True
    if tls is not None:
        os.environ["SKYLARK_TLS_ENABLED"] = str(tls).lower()
    if tls_trusted is not None:
        os.environ["SKYLARK_TLS_TRUSTED"] = str(tls_trusted)
    if debug:
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)s %(name)s %(message)s")


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Skylark: a message queue compatible with Apache RocketMQ's protocol and files.",
)
app.callback()(options)
