"""Options and arguments that commands share, groups of options, and shell completion."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from skylark.cli.errors import UsageError

if TYPE_CHECKING:
    from skylark.admin.sync import Admin

T = TypeVar("T")
R = TypeVar("R")

NAMESRV = "127.0.0.1:9876"
"""Where `skylark serve` puts its name server."""
COMPLETION_TIMEOUT_MS = 1000
EVERY_S = 2.0
ASKED_AT_ONCE = 16
EVERY_S_MIN = 0.1


@contextmanager
def connected(namesrv: str) -> Iterator[Admin]:
    """The administration of the servers that name servers know. Raises SettingsError."""
    from skylark.admin.sync import Admin  # noqa: PLC0415 - `skylark --help` must not wait for it

    with Admin(namesrv=namesrv) as admin:
        yield admin


def asked_at_once(ask: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """What a question has for an answer, of each item in order; some are asked at the same time."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="skylark-ask") as pool:
        return list(pool.map(ask, items))


def _completing(list_names: Callable[[Admin], Iterable[str]]) -> Callable[..., list[str]]:
    """A function that offers names that the servers know; none if they cannot be asked at once."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from skylark.admin.sync import Admin  # noqa: PLC0415
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


Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv", envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Name servers, separated by ;."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for scripts.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Go on, with live rates, until Ctrl-C.")]
Every = Annotated[
    float, typer.Option("--every", min=EVERY_S_MIN, metavar="SECONDS", help="How often --watch looks.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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
    """`KEY=VALUE` texts as a mapping. Raises Mistake."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} {text}: KEY=VALUE is expected")
        found[name] = value
    return found


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what cannot be undone; without a terminal --yes is needed. Raises Mistake, Abort."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say --yes, as there is no terminal to ask on")
    typer.confirm(question, abort=True)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer: a parameter that is a dataclass stands for the options that its members are."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _options(groups[name])
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


def _options(group: type[Any]) -> list[inspect.Parameter]:
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
