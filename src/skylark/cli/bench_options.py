"""Options of benchmarks, and those that all of them share, which a decorator gives to each.

Annotations are values here, not texts: typer reads those that the decorator joins.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.bench_output import (
    AsJson,
    Out,
    ReportFile,
    check_files,
    extra_needed,
    finish,
    interruptible,
    live,
)
from skylark.cli.mistake import Mistake
from skylark.cli.options import pairs
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from skylark.bench.place import Place
    from skylark.bench.results import Document
    from skylark.bench.sending import Progress

TOPIC = "BenchmarkTest"
TRUE, FALSE = "true", "false"

Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic; it is made, or given these queues.")]
Queues = Annotated[int, typer.Option("--queues", min=1, max=1024, help="Of the topic.")]
Size = Annotated[int, typer.Option("--size", "-s", min=0, metavar="BYTES", help="Of a message's body.")]
Sizes = Annotated[
    list[int] | None,
    typer.Option("--size", "-s", min=0, metavar="BYTES", help="Of a message's body; several make cells."),
]
InFlight = Annotated[
    int, typer.Option("--in-flight", "-w", min=1, help="Without an answer at once; RocketMQ's threads.")
]
InFlights = Annotated[
    list[int] | None,
    typer.Option(
        "--in-flight", "-w", min=1, help="Without an answer at once; RocketMQ's threads. Several make cells."
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        "--rate", min=0, metavar="PER_S", help="Open loop: so many a second, timed from when each was due."
    ),
]
Quantity = Annotated[
    int, typer.Option("--quantity", "-q", min=0, help="Stop after so many messages; 0: after --seconds.")
]
Processes = Annotated[int, typer.Option("--processes", min=1, max=64, help="Client processes.")]
Keys = Annotated[str, typer.Option("--keys", "-k", metavar="true|false", help="Messages have a key.")]
Tags = Annotated[int, typer.Option("--tags", "-l", min=0, help="1: messages have a tag; 0: they have none.")]
PropertyBytes = Annotated[
    int, typer.Option("--properties", "-p", min=0, max=30_000, metavar="BYTES", help="Of user properties.")
]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all benchmarks are told."""

    place: "Place"
    seconds: float
    warm_up_s: float
    progress: "Progress"


def shared(command: Callable[..., "Document"]) -> Callable[..., None]:
    """A command with the options below, of a function that takes a Run first and returns what it found."""

    def with_options(
        *,
        own: dict[str, Any],
        namesrv: Annotated[
            str,
            typer.Option(
                "--namesrv",
                "-n",
                metavar="HOST:PORT",
                help="Servers that run; else our own are started.",
            ),
        ] = "",
        broker: Annotated[str, typer.Option("--broker", help="With --namesrv: this broker's name.")] = "",
        flush: Annotated[str, typer.Option("--flush", help="Of our own broker: async or sync.")] = "async",
        sets: Annotated[
            list[str] | None,
            typer.Option("--set", metavar="KEY=VALUE", help="Any setting of our own broker."),
        ] = None,
        pin: Annotated[
            bool, typer.Option("--pin/--no-pin", help="Our own broker has one processor, clients the others.")
        ] = True,
        seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long is measured.")] = 10.0,
        warm_up: Annotated[float, typer.Option("--warm-up", min=0, help="Seconds before that.")] = 2.0,
        as_json: AsJson = False,
        out: Out = None,
        report: ReportFile = None,
    ) -> None:
        check_files(out, report)
        place = _place(namesrv, broker, flush, dict(pairs(sets, "--set")), pin=pin)
        with interruptible(), live(Screen()) as progress:
            run = Run(place=place, seconds=seconds, warm_up_s=warm_up, progress=progress)
            document = command(run, **own)
        finish(document, as_json=as_json, out=out, report=report)

    return _joined(command, with_options)


def _joined(command: Callable[..., "Document"], with_options: Callable[..., None]) -> Callable[..., None]:
    """One function whose options are those of both."""
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "run"]
    common = [p for p in inspect.signature(with_options).parameters.values() if p.name != "own"]
    names = [p.name for p in own]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *common)]

    def joined(**given: Any) -> None:
        with_options(own={name: given.pop(name) for name in names}, **given)

    joined.__name__, joined.__doc__ = command.__name__, command.__doc__
    joined.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(joined)["__signature__"] = inspect.Signature(parameters)
    return joined


def _place(namesrv: str, broker: str, flush: str, settings: dict[str, str], *, pin: bool) -> "Place":
    """Raises Mistake without the extra, BadLoad."""
    with extra_needed():
        from skylark.bench.place import Place  # noqa: PLC0415 - `skylark --help` must not wait for it
    return Place(namesrv=namesrv, broker=broker, flush=flush, settings={**settings}, pin=pin)


def is_true(text: str, option: str) -> bool:
    """RocketMQ's programs take `-k true`. Raises Mistake."""
    if text.lower() not in (TRUE, FALSE):
        raise Mistake(f"{option} {text}: {TRUE} or {FALSE} is possible")
    return text.lower() == TRUE
