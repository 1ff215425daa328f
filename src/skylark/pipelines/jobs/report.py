"""`report`: lag, sizes, traffic, keys, duplicates and latency of topics, as tables and as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from skylark.errors import RocketMQError
from skylark.html_report import Chart, HtmlReport, Section
from skylark.pipelines.cluster_client import ClusterClient, shared_client
from skylark.pipelines.jobs.endpoints import SECONDS, Input, plain_rows
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner
from skylark.protocol.requests.topic import QueryTopicConsumeByWho

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP_KEYS = 20
ROWS_MAX = 1000
"""Rows per table of a report."""
LATENCY_QUANTILES = (0.5, 0.9, 0.99)


# --- Message statistics. Pure ---


def sizes(df: DataFrame) -> DataFrame:
    """Message counts, sizes and time span by queue."""
    return (
        df.groupBy("topic", "brokerName", "queueId")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("body")).alias("bodyBytes"),
            F.round(F.avg(F.length("body"))).cast("bigint").alias("meanBytes"),
            F.max(F.length("body")).alias("maxBytes"),
            F.min("storeTimestamp").alias("oldest"),
            F.max("storeTimestamp").alias("newest"),
        )
        .orderBy("topic", "brokerName", "queueId")
    )


def traffic(df: DataFrame, bucket: str = "1 minute") -> DataFrame:
    """Messages and bytes stored, by topic and time bucket."""
    return (
        df.groupBy("topic", F.window("storeTimestamp", bucket).alias("w"))
        .agg(F.count("*").alias("messages"), F.sum(F.length("body")).alias("bodyBytes"))
        .select("topic", F.col("w.start").alias("from"), "messages", "bodyBytes")
        .orderBy("topic", "from")
    )


def keys(df: DataFrame, top: int = TOP_KEYS) -> DataFrame:
    """The most frequent keys."""
    each = df.select("topic", F.explode(F.split("keys", " ")).alias("key")).where("key <> ''")
    counted = each.groupBy("topic", "key").agg(F.count("*").alias("messages"))
    return counted.orderBy(F.desc("messages"), "topic", "key").limit(top)


def duplicates(df: DataFrame) -> DataFrame:
    """Messages with a repeated unique key, by topic."""
    by_key = df.where("uniqKey is not null").groupBy("topic", "uniqKey").agg(F.count("*").alias("n"))
    return (
        by_key.groupBy("topic")
        .agg(
            F.sum("n").alias("messages"),
            F.count("*").alias("distinct"),
            F.sum(F.col("n") - 1).alias("duplicates"),
            F.max_by("uniqKey", F.struct("n", "uniqKey")).alias("mostRepeated"),
            F.max("n").alias("times"),
        )
        .orderBy("topic")
    )


def latency(df: DataFrame) -> DataFrame:
    """Milliseconds from born to store timestamp, by topic; uses the clocks of producer and broker."""
    took = (F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")).alias("ms")
    quantiles = [
        F.percentile_approx("ms", quantile).alias(f"p{quantile * 100:g}") for quantile in LATENCY_QUANTILES
    ]
    return (
        df.select("topic", took)
        .groupBy("topic")
        .agg(F.count("*").alias("messages"), F.min("ms").alias("min"), *quantiles, F.max("ms").alias("max"))
        .orderBy("topic")
    )


# --- Consumer lag ---

LAG_COLUMNS = ["group", "topic", "brokerName", "queueId", "committed", "end", "lag"]


def lag(brokers: ClusterClient, topics: Sequence[str], groups: Sequence[str]) -> list[list[Any]]:
    """Lag by group and queue. Groups without committed offsets are left out."""
    rows: list[list[Any]] = []
    for topic in topics:
        queues = brokers.queues(topic)
        ends = brokers.max_offsets(queues)
        for group in groups:
            for queue in queues:
                committed = brokers.group_offset(group, queue)
                if committed is not None:
                    behind = ends[queue] - committed
                    place = [queue.broker_name, queue.queue_id]
                    rows.append([group, topic, *place, committed, ends[queue], behind])
    return rows


def groups_of(brokers: ClusterClient, topics: Sequence[str]) -> list[str]:
    """The groups that consume these topics, according to the brokers."""
    found: set[str] = set()
    for topic in topics:
        one_per_broker = {queue.broker_name: queue for queue in brokers.queues(topic)}
        for queue in one_per_broker.values():
            found |= set(brokers.ask_broker(queue, QueryTopicConsumeByWho(topic)).group_list)
    return sorted(found)


# --- Report ---

KINDS: dict[str, tuple[str, Callable[[DataFrame], DataFrame], Chart | None, str]] = {
    "sizes": (
        "Sizes of queues",
        sizes,
        Chart(label="queueId", value="messages", series="topic", unit="messages"),
        "Bodies only: a record in the log is about 100 bytes and its properties larger.",
    ),
    "traffic": (
        "Traffic",
        traffic,
        Chart(label="from", value="messages", series="topic", unit="messages"),
        "By the time at which messages were stored, in UTC.",
    ),
    "keys": ("Most frequent keys", keys, Chart(label="key", value="messages", unit="messages"), ""),
    "duplicates": (
        "Messages sent twice",
        duplicates,
        Chart(label="topic", value="duplicates", unit="duplicates"),
        "Messages of one topic that share a unique key: what a producer sent again.",
    ),
    "latency": (
        "From producer to store",
        latency,
        Chart(label="topic", value="p99", unit="ms"),
        "Milliseconds by two clocks: negative where they disagree.",
    ),
}
NAMES = ("lag", *KINDS)


def report(
    spark: SparkSession, source: Input, *, kinds: Sequence[str] = NAMES, groups: Sequence[str] = ()
) -> HtmlReport:
    """Make a report; reads the messages once per table. Raises SettingsError, RocketMQError."""
    sections = []
    if "lag" in kinds and source.namesrv is not None:
        sections.append(_lag_section(source, groups))
    wanted = [kind for kind in kinds if kind in KINDS]
    if wanted:
        columns = "topic brokerName queueId body keys uniqKey bornTimestamp storeTimestamp".split()
        df = source.read(spark).select(*columns)
        sections += [_section(kind, df) for kind in wanted]
    made_at = datetime.now(UTC).isoformat(" ", "seconds")
    return HtmlReport(f"Topics {source.topic}", made_at, sections)


def _section(kind: str, df: DataFrame) -> Section:
    title, compute, chart, note = KINDS[kind]
    found = compute(df)
    rows = plain_rows(found, ROWS_MAX + 1, SECONDS)
    if len(rows) > ROWS_MAX:
        note = (
            f"{note} Only the first {ROWS_MAX:,} rows are shown; select others with --from and --to.".strip()
        )
    return Section(kind, title, found.columns, rows[:ROWS_MAX], chart, note)


def _lag_section(source: Input, groups: Sequence[str]) -> Section:
    assert source.namesrv is not None
    options = load(SourceOptions, source.source_options(is_stream=False))
    brokers = shared_client(source.namesrv, credentials=options.credentials)
    planner = Planner(options)
    topics = sorted({queue.topic for queue in planner.queues()})
    try:
        names = list(groups) or groups_of(brokers, topics)
        rows = lag(brokers, topics, names)
        note = "" if rows else "No group has committed offsets for these topics."
    except RocketMQError as error:
        rows, note = [], f"not available: {error}"
    chart = Chart(label="queueId", value="lag", series="group", unit="messages")
    return Section("lag", "Lag of consumer groups", LAG_COLUMNS, rows, chart, note)
