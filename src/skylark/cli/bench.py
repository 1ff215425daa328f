"""`skylark bench`: measure throughput and latency of servers on this machine.

Annotations are evaluated here (no `from __future__ import annotations`): typer reads the joined signatures
that `shared` builds.
"""

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli.bench_output import Outputs, finish, interruptible, live, warn_if_busy
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped, pairs
from skylark.cli.output import Screen

if TYPE_CHECKING:
    from skylark.bench.load import Load
    from skylark.bench.results import Document
    from skylark.bench.servers import Progress, ServerChoice

TOPIC = "BenchmarkTest"
SYNC_IN_FLIGHT, ASYNC_IN_FLIGHT = 64, 1024
SIZE = 128
BACKLOG = 200_000
LATENCY_RATE = 1000.0
LEVELS_MAX = 18
PULLED = 32
TRUE, FALSE = "true", "false"

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure servers: started for the run, or running at --namesrv.",
)

# --- Options ---

Topic = Annotated[
    str, typer.Option("--topic", "-t", help="The topic; created, or changed to this number of queues.")
]
Queues = Annotated[int, typer.Option("--queues", min=1, max=1024, help="Queues of the topic.")]
Size = Annotated[int, typer.Option("--size", "-s", min=0, metavar="BYTES", help="Size of a message body.")]
Sizes = Annotated[
    list[int] | None,
    typer.Option(
        "--size", "-s", min=0, metavar="BYTES", help="Size of a message body; repeat for more cells."
    ),
]
InFlight = Annotated[
    int, typer.Option("--in-flight", "-w", min=1, help="Requests in flight; RocketMQ's number of threads.")
]
InFlights = Annotated[
    list[int] | None,
    typer.Option(
        "--in-flight",
        "-w",
        min=1,
        help="Requests in flight; RocketMQ's number of threads. Repeat for more cells.",
    ),
]
Rate = Annotated[
    float,
    typer.Option(
        "--rate", min=0, metavar="PER_S", help="Open loop: messages a second, timed from when each is due."
    ),
]
Level = Annotated[
    int, typer.Option("--level", "-e", min=1, max=LEVELS_MAX, help="1: 1 s, 2: 5 s, 3: 10 s, 4: 30 s, …")
]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """One load. A command with other defaults derives from it."""

    topic: Topic = TOPIC
    in_flight: InFlight = SYNC_IN_FLIGHT
    size: Size = SIZE
    rate: Rate = 0.0
    queues: Queues = 4

    def members(self) -> dict[str, Any]:
        """Fields of a Load."""
        return {
            "topic": self.topic, "in_flight": self.in_flight, "body_bytes": self.size, "rate": self.rate,
            "queues": self.queues,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SendOptions:
    """Options of `producer`."""

    topic: Topic = TOPIC
    in_flight: InFlights = None
    size: Sizes = None
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, max=4096, help="Messages in one send.")] = 1
    rate: Rate = 0.0
    quantity: Annotated[
        int,
        typer.Option("--quantity", "-q", min=0, help="Stop after this many messages; 0: after --seconds."),
    ] = 0
    keys: Annotated[str, typer.Option("--keys", "-k", metavar="true|false", help="Give messages a key.")] = (
        FALSE
    )
    tags: Annotated[int, typer.Option("--tags", "-l", min=0, help="1: give messages a tag; 0: none.")] = 0
    property_bytes: Annotated[
        int,
        typer.Option("--properties", "-p", min=0, max=30_000, metavar="BYTES", help="Size of a property."),
    ] = 0
    queues: Queues = 4
    processes: Annotated[int, typer.Option("--processes", min=1, max=64, help="Client processes.")] = 1

    def members(self) -> dict[str, Any]:
        """Fields of a Load except its sizes. Raises UsageError."""
        key = {"KEYS": "key-@NUMBER@"} if is_true(self.keys, "--keys") else {}
        tag = {"TAGS": "TagA"} if self.tags else {}
        own = {"property": "p" * self.property_bytes} if self.property_bytes else {}
        return {
            "topic": self.topic, "batch": self.batch, "rate": self.rate, "messages_max": self.quantity,
            "queues": self.queues, "processes": self.processes, "properties": {**key, **tag, **own},
        }  # fmt: skip

    def cell_name(self, in_flight: int, body_bytes: int) -> str:
        """Named by the rate in an open loop; by the requests in flight only where cells differ in them."""
        pace = f"{in_flight} in flight"
        if self.rate:
            rate = f"{self.rate:,.10g}/s"
            pace = f"{rate}, {pace}" if len(self.in_flight or ()) > 1 else rate
        return f"{pace}, {body_bytes} B" if self.batch == 1 else f"{pace}, {self.batch} x {body_bytes} B"


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """How a group consumes."""

    threads: Annotated[
        int, typer.Option("--threads", "-w", min=1, max=1000, help="Concurrent listener calls.")
    ] = 20
    batch: Annotated[
        int, typer.Option("--batch", "-b", min=1, max=1024, help="Messages per listener call.")
    ] = 1
    group: Annotated[
        str,
        typer.Option(
            "--group", "-g", metavar="PREFIX", help="Prefix of the group name; each run has a new group."
        ),
    ] = "benchmark_consumer"
    expression_type: Annotated[
        str, typer.Option("--filter-type", "-f", metavar="TAG|SQL92", help="Type of --expression.")
    ] = "TAG"
    expression: Annotated[
        str,
        typer.Option("--expression", "-e", help="Filter. Messages have TagA, number = 7, region = 'north'."),
    ] = "*"
    fail_rate: Annotated[
        float, typer.Option("--fail-rate", "-r", min=0, max=1, help="Share of listener calls that fail.")
    ] = 0.0

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.expression_type not in ("TAG", "SQL92"):
            raise UsageError(f"invalid --filter-type {self.expression_type!r}; choose TAG or SQL92")


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """Outcomes of local transactions; the rest is committed."""

    rollback: Annotated[
        float, typer.Option("--rollback-rate", "-sr", min=0, max=1, help="Share that is rolled back.")
    ] = 0.0
    unknown: Annotated[
        float, typer.Option("--unknown-rate", "-su", min=0, max=1, help="Share that the broker must check.")
    ] = 0.0
    check_rollback: Annotated[
        float,
        typer.Option(
            "--check-rollback-rate",
            "-cr",
            min=0,
            max=1,
            help="Share of checks that roll back.",
        ),
    ] = 0.0
    check_unknown: Annotated[
        float, typer.Option("--check-unknown-rate", "-cu", min=0, max=1, help="Of these: still unknown.")
    ] = 0.0

    def __post_init__(self) -> None:
        """Raises UsageError."""
        for one, other, word in (
            (self.rollback, self.unknown, ""),
            (self.check_rollback, self.check_unknown, "check-"),
        ):
            if one + other > 1:
                raise UsageError(
                    f"--{word}rollback-rate {one:g} and --{word}unknown-rate {other:g} exceed 1 together"
                )


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which servers are measured, and for how long."""

    namesrv: Annotated[
        str,
        typer.Option(
            "--namesrv", "-n", metavar="HOST:PORT", help="Running servers; without it, servers are started."
        ),
    ] = ""
    broker: Annotated[str, typer.Option(help="With --namesrv: the name of the broker.")] = ""
    flush: Annotated[str, typer.Option(help="Flush mode of the started broker: async or sync.")] = "async"
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Setting of the started broker.")
    ] = None
    pin: Annotated[
        bool, typer.Option("--pin/--no-pin", help="Give the started broker a processor of its own.")
    ] = True
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each cell.")] = 10.0
    warm_up: Annotated[float, typer.Option("--warm-up", min=0, help="Seconds before each cell.")] = 2.0

    def choice(self) -> "ServerChoice":
        """Raises UsageError, BadLoad."""
        from skylark.bench.servers import ServerChoice  # noqa: PLC0415 - keeps `skylark --help` fast

        settings: dict[str, str | int] = {**pairs(self.sets, "--set")}
        return ServerChoice(
            namesrv=self.namesrv, broker=self.broker, flush=self.flush, settings=settings, pin=self.pin
        )


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """Arguments common to all benchmarks."""

    servers: "ServerChoice"
    seconds: float
    warm_up_s: float
    progress: "Progress"

    def load(self, **members: Any) -> "Load":
        """A load of this duration. Raises BadLoad."""
        from skylark.bench.load import Load  # noqa: PLC0415

        return Load(address="", seconds=self.seconds, warm_up_s=self.warm_up_s, **members)


def shared(command: Callable[..., "Document"]) -> Callable[..., None]:
    """Make a typer command of a function (run: BenchRun, **own options) that returns a result document."""

    def measure(*, options: ServerOptions, outputs: Outputs, **own: Any) -> None:
        servers = options.choice()
        busy = warn_if_busy(Screen())
        with interruptible(), live(Screen()) as progress:
            run = BenchRun(
                servers=servers, seconds=options.seconds, warm_up_s=options.warm_up, progress=progress
            )
            document = command(run, **own)
        document.notes.extend(busy)
        finish(document, outputs)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "run"]
    common = [p for p in inspect.signature(measure).parameters.values() if p.name != "own"]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *common)]
    measure.__name__, measure.__doc__ = command.__name__, command.__doc__
    measure.__annotations__ = {p.name: p.annotation for p in parameters}
    vars(measure)["__signature__"] = inspect.Signature(parameters)
    return grouped(measure)


def is_true(text: str, option: str) -> bool:
    """RocketMQ's programs take `-k true`. Raises UsageError."""
    if text.lower() not in (TRUE, FALSE):
        raise UsageError(f"invalid {option} {text!r}; choose {TRUE} or {FALSE}")
    return text.lower() == TRUE


def delay_ms_of(level: int) -> int:
    """The delay of a level in a broker's default settings."""
    from skylark.settings.store import DELAY_LEVELS, parse_delay_levels  # noqa: PLC0415

    return parse_delay_levels(DELAY_LEVELS)[level - 1]


# --- Commands ---


@app.command()
@shared
def producer(
    run: BenchRun,
    sends: SendOptions,
    is_async: Annotated[
        str,
        typer.Option(
            "--async", "-y", metavar="true|false", help=f"{ASYNC_IN_FLIGHT} in flight unless -w is given."
        ),
    ] = FALSE,
    oneway: Annotated[bool, typer.Option("--oneway", help="Send without replies; count the store.")] = False,
    is_delayed: Annotated[
        str, typer.Option("--delay", "-d", metavar="true|false", help="Give messages a delay level.")
    ] = FALSE,
    level: Level = 1,
) -> "Document":
    """Send messages: -w in flight, or at the fixed --rate; -b messages in one send.

    The load client only fills numbers into prepared frames, so the broker is measured and not the client.
    A cell is void (exit code 1) if the store does not hold what was acknowledged.

    Examples: skylark bench producer -w 1 -w 64 -w 1024 -s 128 -s 1024
              skylark bench producer -n 127.0.0.1:9876 -t BenchmarkTest -w 64 -s 128
              skylark bench producer -b 32 -s 128 -s 1024
              skylark bench producer --rate 5000 --seconds 30 --report producer.html
    """
    from skylark.bench.load import LoadKind  # noqa: PLC0415 - keeps `skylark --help` fast
    from skylark.bench.servers import measure_loads  # noqa: PLC0415

    usual = ASYNC_IN_FLIGHT if is_true(is_async, "--async") else SYNC_IN_FLIGHT
    members = {**sends.members(), "kind": LoadKind.ONEWAY if oneway else LoadKind.SEND}
    if is_true(is_delayed, "--delay"):
        properties = {**members["properties"], "DELAY": str(level)}
        members |= {"properties": properties, "late_s": delay_ms_of(level) / 1000}
    windows = [usual] if oneway or not sends.in_flight else sends.in_flight
    loads = {
        f"one-way, {body} B" if oneway else sends.cell_name(window, body): run.load(
            in_flight=window, body_bytes=body, **members
        )
        for window, body in product(windows, sends.size or [SIZE])
    }
    return measure_loads("producer", run.servers, loads, run.progress)


@app.command()
@shared
def consumer(
    run: BenchRun,
    consuming: ConsumeOptions,
    topic: Topic = f"{TOPIC}Consumer",
    size: Size = SIZE,
    backlog: Annotated[
        int,
        typer.Option("--backlog", "-q", min=0, help="Messages sent first; 0: consume what the topic holds."),
    ] = BACKLOG,
    queues: Queues = 4,
) -> "Document":
    """Consume a backlog with the push consumer, in a new group, from the first message to the last.

    Every message of the topic must match the expression, or the cell is void.

    Examples: skylark bench consumer -q 100000 -w 20 -b 32
              skylark bench consumer -f SQL92 -e "number > 4 AND region = 'north'"
    """
    from skylark.bench.consumer import FILTERED, Consuming, measure_consumer  # noqa: PLC0415

    load = run.load(topic=topic, body_bytes=size, queues=queues, properties=FILTERED)
    return measure_consumer(run.servers, load, backlog, Consuming(**asdict(consuming)), run.progress)


@app.command()
@shared
def pull(
    run: BenchRun,
    topic: Topic = TOPIC,
    size: Sizes = None,
    batch_size: Annotated[
        int, typer.Option("--batch", "-b", min=1, max=1024, help="Messages per pull.")
    ] = PULLED,
    backlog: Annotated[int, typer.Option("--backlog", "-q", min=1, help="Messages sent first.")] = BACKLOG,
    readers: Annotated[
        list[int] | None,
        typer.Option("--readers", min=1, max=64, help="Readers of the whole backlog; repeat for more cells."),
    ] = None,
    queues: Queues = 4,
) -> "Document":
    """Pull a backlog repeatedly with the load client, one pull in flight per queue and reader.

    Examples: skylark bench pull -s 1024 --queues 4
              skylark bench pull --readers 1 --readers 4 --readers 16
    """
    from skylark.bench.load import LoadKind  # noqa: PLC0415
    from skylark.bench.servers import measure_loads  # noqa: PLC0415

    loads = {
        f"{count} readers, {queues} queues, {body} B": run.load(
            kind=LoadKind.PULL, topic=f"{topic}-{body}", body_bytes=body, batch=batch_size, queues=queues,
            processes=count,
        )
        for body, count in product(size or [SIZE], readers or [1])
    }  # fmt: skip
    return measure_loads("pull", run.servers, loads, run.progress, backlog=backlog)


@app.command()
@shared
def latency(
    run: BenchRun,
    topic: Topic = f"{TOPIC}Latency",
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", min=1, metavar="PER_S", help=f"{LATENCY_RATE:,.0f}; repeat for more cells."),
    ] = None,
    in_flight: InFlight = ASYNC_IN_FLIGHT,
    size: Size = 1024,
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=1000, help="Concurrent listener calls.")
    ] = 20,
    slow_groups: Annotated[
        int, typer.Option("--slow-groups", min=0, max=64, help="Other groups that take a second per message.")
    ] = 0,
    queues: Queues = 4,
) -> "Document":
    """Measure end-to-end latency: from when a message is due to be sent until a listener receives it.

    The load client sends at a fixed rate, the push consumer receives. Each rate has its own topic.

    Examples: skylark bench latency --rate 5000 -s 1024 --report latency.html
              skylark bench latency --rate 1000 --rate 5000 --rate 20000 --slow-groups 1
    """
    from skylark.bench.consumer import Consuming, measure_latency  # noqa: PLC0415

    chosen = rates or [LATENCY_RATE]
    loads = [
        run.load(
            topic=topic if len(chosen) == 1 else f"{topic}-{rate:g}", body_bytes=size, rate=rate,
            in_flight=in_flight, queues=queues, is_stamped=True,
        )
        for rate in chosen
    ]  # fmt: skip
    how = Consuming(threads=threads, batch=PULLED, slow_groups=slow_groups)
    return measure_latency(run.servers, loads, how, run.progress)


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(LoadOptions):
    """Defaults of RocketMQ's own program."""

    topic: Topic = f"{TOPIC}Transaction"
    in_flight: InFlight = 32
    size: Size = 2048


@app.command()
@shared
def transaction(run: BenchRun, sends: TransactionOptions, shares: ShareOptions) -> "Document":
    """Send in transactions with the transaction producer: half message, local transaction, commit.

    Example: skylark bench transaction -w 32 -s 2048 --rollback-rate 0.1
    """
    from skylark.bench.transaction import Shares, measure_transactions  # noqa: PLC0415

    load = run.load(**sends.members())
    return measure_transactions(run.servers, load, Shares(**asdict(shares)), run.progress)


@app.command()
@shared
def store(run: BenchRun, size: Size = SIZE) -> "Document":
    """Measure the store alone, in this process: appends, reads, scans, group commit; --seconds each.

    Example: skylark bench store -s 1024 --seconds 3
    """
    from skylark.bench.store import measure_store  # noqa: PLC0415

    if not run.servers.is_own:
        raise UsageError("`bench store` uses no servers: leave out --namesrv")
    return measure_store(size, run.seconds, run.progress)
