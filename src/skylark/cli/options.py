"""Options and arguments that commands share, groups of options, and shell completion."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

import typer

from skylark.cli.errors import UsageError
from skylark.cli.output import WIDE

if TYPE_CHECKING:
    from skylark.admin.admin import Admin

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

NAMESRV = "127.0.0.1:9876"
"""Where `skylark serve` listens with its name server."""
COMPLETION_TIMEOUT_MS = 1000
EVERY_S = 2.0
EVERY_S_MIN = 0.1
THREADS_MAX = 16


@contextmanager
def connected(namesrv: str) -> Iterator[Admin]:
    """An `Admin` for these name servers. Raises SettingsError."""
    from skylark.admin.admin import Admin  # noqa: PLC0415 - `skylark --help` must not wait for it

    with Admin(namesrv=namesrv) as admin:
        yield admin


def in_parallel(ask: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`ask(item)` for each item, in order; up to THREADS_MAX run at a time."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="skylark-ask") as pool:
        return list(pool.map(ask, items))


# --- Completion ---


def _completing(list_names: Callable[[Admin], Iterable[str]]) -> Callable[..., list[str]]:
    """A completion function. It offers nothing if the servers do not answer within COMPLETION_TIMEOUT_MS."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from skylark.admin.admin import Admin  # noqa: PLC0415
        from skylark.errors import RocketMQError  # noqa: PLC0415

        namesrv = ctx.params.get("namesrv") or os.environ.get("NAMESRV_ADDR") or NAMESRV
        try:
            with Admin(namesrv=namesrv, timeout_ms=COMPLETION_TIMEOUT_MS) as admin:
                return [name for name in list_names(admin) if name.startswith(incomplete)]
        except RocketMQError:
            return []

    return complete


complete_topic = _completing(lambda admin: admin.topics.names())
complete_group = _completing(lambda admin: admin.groups.names())
complete_broker = _completing(lambda admin: sorted({node.name for node in admin.brokers.nodes()}))
complete_cluster = _completing(lambda admin: admin.brokers.clusters())


# --- Options and arguments ---


Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv", envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Name servers, separated by ;."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wide = Annotated[bool, typer.Option("--wide", help="Print tables in full width, with full dates.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until q or Ctrl-C, with live rates.")]
Every = Annotated[
    float, typer.Option("--every", min=EVERY_S_MIN, metavar="SECONDS", help="Refresh interval of --watch.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="Only in this cluster.", autocompletion=complete_cluster)
]
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", help="Only on this broker: a name or HOST:PORT.", autocompletion=complete_broker
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)]
Group = Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_group)]
BrokerName = Annotated[
    str, typer.Argument(metavar="BROKER", help="A name or HOST:PORT.", autocompletion=complete_broker)
]
Pairs = Annotated[list[str], typer.Argument(metavar="KEY=VALUE...")]


def pairs(texts: Iterable[str] | None, option: str) -> Mapping[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"invalid {option} {text!r}; write KEY=VALUE")
        found[name] = value
    return found


def parsed(
    parse: Callable[Concatenate[str, P], T], text: str, option: str, *args: P.args, **kwargs: P.kwargs
) -> T:
    """What a parser of `skylark.quantities` makes of an option's text. Raises UsageError."""
    try:
        return parse(text, *args, **kwargs)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def parse_queue(text: str) -> tuple[str, int]:
    """The broker's name and the queue's number of BROKER:ID. Raises UsageError."""
    broker, colon, number = text.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise UsageError(f"invalid queue {text!r}; write BROKER:ID, such as broker-a:0")
    return broker, int(number)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before an action that cannot be undone. Raises UsageError without a terminal, Abort on no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Not a terminal: pass --yes")
    typer.confirm(question, abort=True)


# --- Groups of options ---


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer in which a parameter that is a dataclass stands for one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _group_options(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def tabular(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer that prints tables: it gets the option `--wide`."""
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    ]
    parameters.append(
        inspect.Parameter("wide", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Wide)
    )

    @wraps(command)
    def run(*, wide: bool, **given: Any) -> None:
        before = WIDE.set(wide)
        try:
            command(**given)
        finally:
            WIDE.reset(before)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _group_options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
