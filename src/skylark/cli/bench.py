"""`skylark bench`: how fast servers are, on this machine, with these sizes.

Annotations are values here, not texts: see `bench_options.shared`.
"""

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import bench_all, bench_compare, bench_growth, bench_soak
from skylark.cli.bench_options import (
    ASYNC_IN_FLIGHT,
    SIZE,
    SYNC_IN_FLIGHT,
    TOPIC,
    BenchRun,
    ConsumeOptions,
    InFlight,
    LoadOptions,
    Processes,
    Queues,
    Rate,
    SendOptions,
    ShareOptions,
    Size,
    Sizes,
    ThinOptions,
    Topic,
    is_true,
    shared,
)
from skylark.cli.errors import UsageError

if TYPE_CHECKING:
    from skylark.bench.results import Document

BACKLOG = 200_000
LATENCY_RATE = 1000.0
LEVELS_MAX = 18
PULLED = 32
GIB = 1 << 30

Level = Annotated[
    int, typer.Option("--level", "-e", min=1, max=LEVELS_MAX, help="1: 1 s, 2: 5 s, 3: 10 s, 4: 30 s, …")
]
Backlog = Annotated[int, typer.Option("--backlog", "-q", min=1, help="Sent before.")]

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure servers: our own, started for it, or those at --namesrv.",
)


def delay_ms_of(level: int) -> int:
    """As brokers have it unless they are told otherwise."""
    from skylark.settings.store import DELAY_LEVELS, parse_delay_levels  # noqa: PLC0415

    return parse_delay_levels(DELAY_LEVELS)[level - 1]


@app.command()
@shared
def producer(
    run: BenchRun,
    sends: SendOptions,
    is_async: Annotated[
        str,
        typer.Option(
            "--async",
            "-y",
            metavar="true|false",
            help=f"{ASYNC_IN_FLIGHT} in flight, unless -w is given.",
        ),
    ] = "false",
    oneway: Annotated[bool, typer.Option("--oneway", help="Nobody answers; the store is counted.")] = False,
    is_delayed: Annotated[
        str, typer.Option("--delay", "-d", metavar="true|false", help="Messages have a delay level.")
    ] = "false",
    level: Level = 1,
) -> "Document":
    """Send messages: one after the other, so many at once, or as many a second as --rate says.

    A thin client, which only fills numbers into frames, does it, so that the broker is measured. What was
    acknowledged must be in the store afterwards, or the cell is void (exit code 1).

    Examples: skylark bench producer -w 1 -w 64 -w 1024 -s 128 -s 1024
              skylark bench producer -n 127.0.0.1:9876 -t BenchmarkTest -w 64 -s 128
              skylark bench producer --rate 5000 --seconds 30 --report producer.html
    """
    from skylark.bench.load import LoadKind  # noqa: PLC0415 - `skylark --help` must not wait for it
    from skylark.bench.producer import measure_loads  # noqa: PLC0415

    usual = ASYNC_IN_FLIGHT if is_true(is_async, "--async") else SYNC_IN_FLIGHT
    members = {**sends.members(), "kind": LoadKind.ONEWAY if oneway else LoadKind.SEND}
    if is_true(is_delayed, "--delay"):
        properties = {**members["properties"], "DELAY": str(level)}
        members |= {"properties": properties, "late_s": delay_ms_of(level) / 1000}
    loads = {
        f"{'one-way' if oneway else sends.pace(window)}, {body} B": run.load(
            in_flight=window, body_bytes=body, **members
        )
        for window, body in product(
            [usual] if oneway or not sends.in_flight else sends.in_flight, sends.size or [SIZE]
        )
    }
    return measure_loads("producer", run.place, loads, run.progress)


@app.command()
@shared
def batch(
    run: BenchRun,
    sends: SendOptions,
    batch_size: Annotated[int, typer.Option("--batch", "-b", min=2, max=4096, help="Messages in one.")] = 16,
) -> "Document":
    """Send batches: -b messages in every one of them, -w batches at once. Rates are of messages.

    Example: skylark bench batch -b 32 -s 128 -s 1024
    """
    from skylark.bench.producer import measure_loads  # noqa: PLC0415

    members = {**sends.members(), "batch": batch_size}
    loads = {
        f"{sends.pace(window)}, {batch_size} x {body} B": run.load(
            in_flight=window, body_bytes=body, **members
        )
        for window, body in product(sends.in_flight or [SYNC_IN_FLIGHT], sends.size or [SIZE])
    }
    return measure_loads("batch", run.place, loads, run.progress)


@app.command()
@shared
def consumer(
    run: BenchRun,
    wanted: ConsumeOptions,
    topic: Topic = f"{TOPIC}Consumer",
    size: Size = SIZE,
    backlog: Annotated[
        int, typer.Option("--backlog", "-q", min=0, help="Sent before; 0: what the topic holds.")
    ] = BACKLOG,
    queues: Queues = 4,
) -> "Document":
    """Consume a backlog with our own push consumer, in a new group, from its first message to its last.

    All that the topic holds must match the expression, or the cell is void.

    Examples: skylark bench consumer -q 100000 -w 20 -b 32
              skylark bench consumer -f SQL92 -e "number > 4 AND region = 'north'"
    """
    from skylark.bench.consumer import Consuming, measure_consumer  # noqa: PLC0415
    from skylark.bench.producer import FILTERED  # noqa: PLC0415

    load = run.load(topic=topic, body_bytes=size, queues=queues, properties=FILTERED)
    return measure_consumer(run.place, load, backlog, Consuming(**asdict(wanted)), run.progress)


@app.command()
@shared
def pull(
    run: BenchRun,
    topic: Topic = TOPIC,
    size: Sizes = None,
    batch_size: Annotated[
        int, typer.Option("--batch", "-b", min=1, max=1024, help="Of one answer.")
    ] = PULLED,
    backlog: Backlog = BACKLOG,
    readers: Annotated[
        list[int] | None, typer.Option("--readers", min=1, max=64, help="Each reads all; several make cells.")
    ] = None,
    queues: Queues = 4,
) -> "Document":
    """Pull a backlog again and again with the thin client, one pull in flight for each queue and reader.

    Examples: skylark bench pull -s 1024 --queues 4
              skylark bench pull --readers 1 --readers 4 --readers 16
    """
    from skylark.bench.load import LoadKind  # noqa: PLC0415
    from skylark.bench.producer import measure_loads  # noqa: PLC0415

    loads = {
        f"{count} readers, {queues} queues, {body} B": run.load(
            kind=LoadKind.PULL, topic=f"{topic}-{body}", body_bytes=body, batch=batch_size, queues=queues,
            processes=count,
        )
        for body, count in product(size or [SIZE], readers or [1])
    }  # fmt: skip
    return measure_loads("pull", run.place, loads, run.progress, backlog=backlog)


@app.command()
@shared
def filters(
    run: BenchRun,
    topic: Topic = f"{TOPIC}Filter",
    size: Size = 1024,
    backlog: Backlog = BACKLOG,
    queues: Queues = 4,
) -> "Document":
    """What filters cost: a backlog pulled whole, by tag and by SQL92; all of its messages match.

    Example: skylark bench filters -s 1024
    """
    from skylark.bench.producer import measure_filters  # noqa: PLC0415

    load = run.load(topic=topic, body_bytes=size, batch=PULLED, queues=queues)
    return measure_filters(run.place, load, backlog, run.progress)


@app.command()
@shared
def cold(
    run: BenchRun,
    gib: Annotated[float, typer.Option("--gib", min=0.01, help="Of log.")] = 4.0,
    size: Size = 1024,
    rate: Annotated[float, typer.Option("--rate", min=1, metavar="PER_S", help="Of the sends.")] = 2000.0,
    queues: Queues = 4,
) -> "Document":
    """Pull a backlog that is no longer in memory, once: alone, and while others send at a steady rate.

    A broker of our own writes it and is started anew after the kernel has forgotten its files.

    Example: skylark bench cold --gib 4 --rate 2000
    """
    from benchmarks.survey.cold import measure_cold  # noqa: PLC0415

    load = run.load(topic=f"{TOPIC}Cold", body_bytes=size, batch=PULLED, rate=rate, queues=queues)
    return measure_cold(run.place, load, round(gib * GIB), run.progress)


@app.command()
@shared
def latency(
    run: BenchRun,
    topic: Topic = f"{TOPIC}Latency",
    rates: Annotated[
        list[float] | None,
        typer.Option("--rate", min=1, metavar="PER_S", help=f"{LATENCY_RATE:,.0f}; several make cells."),
    ] = None,
    in_flight: InFlight = ASYNC_IN_FLIGHT,
    size: Size = 1024,
    threads: Annotated[int, typer.Option("--threads", min=1, max=1000, help="Listeners at once.")] = 20,
    slow_groups: Annotated[
        int, typer.Option("--slow-groups", min=0, max=64, help="Others, which take a second for a message.")
    ] = 0,
    queues: Queues = 4,
) -> "Document":
    """From end to end: the time from when a message is due to be sent until a listener has it.

    The thin client sends at a steady rate, our own push consumer receives. Of several rates each has a topic
    of its own.

    Examples: skylark bench latency --rate 5000 -s 1024 --report latency.html
              skylark bench latency --rate 1000 --rate 5000 --rate 20000 --slow-groups 1
    """
    from skylark.bench.consumer import Consuming, measure_latency  # noqa: PLC0415

    wanted = rates or [LATENCY_RATE]
    loads = [
        run.load(
            topic=topic if len(wanted) == 1 else f"{topic}-{rate:g}", body_bytes=size, rate=rate,
            in_flight=in_flight, queues=queues, is_stamped=True,
        )
        for rate in wanted
    ]  # fmt: skip
    how = Consuming(threads=threads, batch=PULLED, slow_groups=slow_groups)
    return measure_latency(run.place, loads, how, run.progress)


@dataclass(frozen=True, kw_only=True)
class TransactionOptions(LoadOptions):
    """As RocketMQ's own program has them."""

    topic: Topic = f"{TOPIC}Transaction"
    in_flight: InFlight = 32
    size: Size = 2048


@app.command()
@shared
def transaction(
    run: BenchRun,
    wanted: TransactionOptions,
    shares: ShareOptions,
) -> "Document":
    """Send in transactions with our own producer: half message, local transaction, commit.

    Example: skylark bench transaction -w 32 -s 2048 --rollback-rate 0.1
    """
    from skylark.bench.transaction import Shares, measure_transactions  # noqa: PLC0415

    load = run.load(**wanted.members())
    return measure_transactions(run.place, load, Shares(**asdict(shares)), run.progress)


@dataclass(frozen=True, kw_only=True)
class DelayOptions(LoadOptions):
    """At a steady rate."""

    topic: Topic = f"{TOPIC}Delay"
    in_flight: InFlight = ASYNC_IN_FLIGHT
    rate: Rate = LATENCY_RATE


@app.command()
@shared
def delay(
    run: BenchRun,
    wanted: DelayOptions,
    level: Level = 1,
    after_ms: Annotated[
        int, typer.Option("--after-ms", min=0, help="A timer instead of a level: any time.")
    ] = 0,
) -> "Document":
    """How late delayed messages come, of a delay level or of a timer.

    Example: skylark bench delay -e 2 --rate 2000
    """
    from skylark.bench.consumer import measure_delay  # noqa: PLC0415

    delay_ms = after_ms or delay_ms_of(level)
    properties = {"TIMER_DELAY_MS": str(after_ms)} if after_ms else {"DELAY": str(level)}
    load = run.load(**wanted.members(), properties=properties, is_stamped=True)
    return measure_delay(run.place, load, delay_ms, run.progress)


@dataclass(frozen=True, kw_only=True)
class TopicsOptions(ThinOptions):
    """With one queue each."""

    topic: Topic = f"{TOPIC}Many"
    queues: Queues = 1


@app.command()
@shared
def topics(
    run: BenchRun,
    wanted: TopicsOptions,
    counts: Annotated[
        list[int] | None, typer.Option("--topics", min=1, max=10_000, help="Several: one cell each.")
    ] = None,
) -> "Document":
    """The same load spread over more and more topics: what a topic costs, new and later.

    Example: skylark bench topics --topics 1 --topics 1000 --topics 10000
    """
    from benchmarks.survey.topics import measure_topics  # noqa: PLC0415

    return measure_topics(run.place, run.load(**wanted.members()), counts or [1, 100, 1000], run.progress)


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(ThinOptions):
    """Topics begin with this one's name."""

    topic: Topic = f"{TOPIC}Feature"


@app.command()
@shared
def features(run: BenchRun, wanted: FeatureOptions) -> "Document":
    """What a message's features cost: a tag, a key, properties, a delay level, a timer, beside none of them.

    Example: skylark bench features -w 64 -s 128
    """
    from skylark.bench.producer import measure_features  # noqa: PLC0415

    return measure_features(run.place, run.load(**wanted.members()), run.progress)


@app.command()
@shared
def routes(
    run: BenchRun,
    topic: Topic = f"{TOPIC}Route",
    asked: Annotated[int, typer.Option("--topics", min=1, max=10_000, help="Asked about in turn.")] = 100,
    in_flight: InFlight = 16,
    rate: Rate = 0.0,
    queues: Queues = 4,
    processes: Processes = 1,
) -> "Document":
    """Ask a name server for routes.

    Example: skylark bench routes --topics 100 -w 16
    """
    from skylark.bench.producer import measure_routes  # noqa: PLC0415

    load = run.load(
        topic=topic, topics=asked, in_flight=in_flight, rate=rate, queues=queues, processes=processes
    )
    return measure_routes(run.place, load, run.progress)


@app.command()
@shared
def store(run: BenchRun, size: Size = SIZE) -> "Document":
    """The store alone, in this process: appends, reads, scans, group commit; --seconds for each.

    Example: skylark bench store -s 1024 --seconds 3
    """
    from skylark.bench.storing import measure_store  # noqa: PLC0415

    if not run.place.is_own:
        raise UsageError("the store is measured in this process: leave --namesrv out")
    return measure_store(size, run.seconds, run.progress)


@dataclass(frozen=True, kw_only=True)
class ReplicationOptions(LoadOptions):
    """Of larger messages: what is copied counts."""

    size: Size = 1024


@app.command()
@shared
def replication(run: BenchRun, wanted: ReplicationOptions) -> "Document":
    """What a slave costs: a master alone, with one that follows, with one that it waits for.

    Example: skylark bench replication -w 64 -s 1024
    """
    from benchmarks.survey.replication import measure_replication  # noqa: PLC0415

    return measure_replication(run.place, run.load(**wanted.members()), run.progress)


@app.command()
@shared
def spark(
    run: BenchRun,
    topic: Topic = f"{TOPIC}Spark",
    rows: Annotated[int, typer.Option("--rows", "-q", min=1, help="Sent before.")] = 500_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="The best of them counts.")] = 3,
    size: Size = 200,
    queues: Queues = 4,
) -> "Document":
    """Rows a second through Spark: out of the broker, out of its store's files, into a topic.

    Example: skylark bench spark --rows 1000000 -s 200
    """
    if find_spec("pyspark") is None:
        raise UsageError("pyspark is missing: pip install 'skylarkmq[spark]'")
    from benchmarks.survey.spark import measure_spark  # noqa: PLC0415

    load = run.load(topic=topic, body_bytes=size, queues=queues)
    return measure_spark(run.place, load, rows, rounds, run.progress)


# --- Commands of other modules ---

app.command("all")(bench_all.everything)
app.command()(bench_soak.soak)
app.command()(bench_growth.growth)
app.command()(bench_compare.compare)
app.command()(bench_compare.merge)
