"""Options of benchmarks, and those that all of them share, which a decorator gives to each.

Annotations are values here, not texts: typer reads those that the decorator joins.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.bench_output import Outputs, extra_needed, finish, interruptible, live
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped, pairs
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from skylark.bench.load import Load
    from skylark.bench.producer import Progress
    from skylark.bench.results import Document
    from skylark.bench.servers import ServerChoice

TOPIC = "BenchmarkTest"
SYNC_IN_FLIGHT, ASYNC_IN_FLIGHT = 64, 1024
SIZE = 128
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
class LoadOptions:
    """One load. Commands for which something else is usual derive from it."""

    topic: Topic = TOPIC
    in_flight: InFlight = SYNC_IN_FLIGHT
    size: Size = SIZE
    rate: Rate = 0.0
    queues: Queues = 4

    def members(self) -> dict[str, Any]:
        """Of a Load."""
        return {
            "topic": self.topic, "in_flight": self.in_flight, "body_bytes": self.size, "rate": self.rate,
            "queues": self.queues,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ThinOptions(LoadOptions):
    """One load of the thin client, which may be several processes."""

    processes: Processes = 1

    def members(self) -> dict[str, Any]:
        """Of a Load."""
        return {**super().members(), "processes": self.processes}


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """What producers are told, of single messages and of batches."""

    topic: Topic = TOPIC
    in_flight: InFlights = None
    size: Sizes = None
    rate: Rate = 0.0
    quantity: Quantity = 0
    keys: Keys = FALSE
    tags: Tags = 0
    property_bytes: PropertyBytes = 0
    queues: Queues = 4
    processes: Processes = 1

    def members(self) -> dict[str, Any]:
        """Of a Load, but for its sizes. Raises Mistake."""
        key = {"KEYS": "key-@NUMBER@"} if is_true(self.keys, "--keys") else {}
        tag = {"TAGS": "TagA"} if self.tags else {}
        own = {"property": "p" * self.property_bytes} if self.property_bytes else {}
        return {
            "topic": self.topic, "rate": self.rate, "messages_max": self.quantity, "queues": self.queues,
            "processes": self.processes, "properties": {**key, **tag, **own},
        }  # fmt: skip

    def pace(self, in_flight: int) -> str:
        """What a cell is called by: in an open loop its rate; what may wait only if cells differ in it."""
        waiting = f"{in_flight} in flight"
        if not self.rate:
            return waiting
        rate = f"{self.rate:,.10g}/s"
        return f"{rate}, {waiting}" if len(self.in_flight or ()) > 1 else rate


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """How a group consumes."""

    threads: Annotated[int, typer.Option("--threads", "-w", min=1, max=1000, help="Listeners at once.")] = 20
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, max=1024, help="For a listener.")] = 1
    group: Annotated[
        str,
        typer.Option("--group", "-g", metavar="PREFIX", help="Of the group's name; each run has a new one."),
    ] = "benchmark_consumer"
    expression_type: Annotated[
        str, typer.Option("--filter-type", "-f", metavar="TAG|SQL92", help="What --expression is.")
    ] = "TAG"
    expression: Annotated[
        str,
        typer.Option(
            "--expression", "-e", help="What is asked for. Messages have TagA, number = 7, region = 'north'."
        ),
    ] = "*"
    fail_rate: Annotated[
        float, typer.Option("--fail-rate", "-r", min=0, max=1, help="The share of calls that fail.")
    ] = 0.0

    def __post_init__(self) -> None:
        """Raises Mistake."""
        if self.expression_type not in ("TAG", "SQL92"):
            raise UsageError(f"--filter-type {self.expression_type}: TAG or SQL92 is possible")


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """What transactions come to; else they are committed."""

    rollback: Annotated[
        float, typer.Option("--rollback-rate", "-sr", min=0, max=1, help="The share that is undone.")
    ] = 0.0
    unknown: Annotated[
        float,
        typer.Option("--unknown-rate", "-su", min=0, max=1, help="The share that the broker must ask about."),
    ] = 0.0
    check_rollback: Annotated[
        float, typer.Option("--check-rollback-rate", "-cr", min=0, max=1, help="Of those, undone then.")
    ] = 0.0
    check_unknown: Annotated[
        float, typer.Option("--check-unknown-rate", "-cu", min=0, max=1, help="Of those, still not known.")
    ] = 0.0

    def __post_init__(self) -> None:
        """Raises Mistake."""
        for one, other, word in (
            (self.rollback, self.unknown, ""),
            (self.check_rollback, self.check_unknown, "check-"),
        ):
            if one + other > 1:
                raise UsageError(f"--{word}rollback-rate and --{word}unknown-rate are more than 1 together")


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where a benchmark runs, and how long."""

    namesrv: Annotated[
        str,
        typer.Option(
            "--namesrv", "-n", metavar="HOST:PORT", help="Servers that run; else our own are started."
        ),
    ] = ""
    broker: Annotated[str, typer.Option(help="With --namesrv: this broker's name.")] = ""
    flush: Annotated[str, typer.Option(help="Of our own broker: async or sync.")] = "async"
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of our own broker."),
    ] = None
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="Our own broker has one processor, clients the others.")
    ] = True
    seconds: Annotated[float, typer.Option(min=0.1, help="How long is measured.")] = 10.0
    warm_up: Annotated[float, typer.Option("--warm-up", min=0, help="Seconds before that.")] = 2.0

    def place(self) -> "ServerChoice":
        """Raises Mistake, also without the extra, and BadLoad."""
        with extra_needed():
            from skylark.bench.servers import ServerChoice  # noqa: PLC0415 - `skylark --help` must not wait for it
        settings: dict[str, str | int] = {**pairs(self.sets, "--set")}
        return ServerChoice(
            namesrv=self.namesrv, broker=self.broker, flush=self.flush, settings=settings, pin=self.pin
        )


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """What all benchmarks are given."""

    place: "ServerChoice"
    seconds: float
    warm_up_s: float
    progress: "Progress"

    def load(self, **members: Any) -> "Load":
        """A load of this length. Raises BadLoad."""
        from skylark.bench.load import Load  # noqa: PLC0415

        return Load(address="", seconds=self.seconds, warm_up_s=self.warm_up_s, **members)


def shared(command: Callable[..., "Document"]) -> Callable[..., None]:
    """A command of a function that takes a Run first, then its own options, and returns what it found."""

    def measure(*, options: ServerOptions, outputs: Outputs, **own: Any) -> None:
        place = options.place()
        with interruptible(), live(Screen()) as progress:
            run = BenchRun(place=place, seconds=options.seconds, warm_up_s=options.warm_up, progress=progress)
            document = command(run, **own)
        finish(document, outputs)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "run"]
    common = [p for p in inspect.signature(measure).parameters.values() if p.name != "own"]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *common)]
    measure.__name__, measure.__doc__ = command.__name__, command.__doc__
    measure.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(measure)["__signature__"] = inspect.Signature(parameters)
    return grouped(measure)


def is_true(text: str, option: str) -> bool:
    """RocketMQ's programs take `-k true`. Raises Mistake."""
    if text.lower() not in (TRUE, FALSE):
        raise UsageError(f"{option} {text}: {TRUE} or {FALSE} is possible")
    return text.lower() == TRUE
