"""`report`: what happened on topics, as tables and as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from skylark.errors import RocketMQError
from skylark.html_report import Chart, HtmlReport, Section
from skylark.pipelines.cluster_client import ClusterClient, shared_client
from skylark.pipelines.jobs.consumer_groups import (
    GROUP_COLUMNS,
    LAG_COLUMNS,
    GroupStanding,
    groups_of,
    lag,
    standings,
)
from skylark.pipelines.jobs.endpoints import SECONDS, Input, plain_rows
from skylark.pipelines.jobs.journey import JOURNEY_COLUMNS, Aftermath, aftermath, consumed, journey
from skylark.pipelines.jobs.report_overview import Figures, overview
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOP_KEYS = 20
ROWS_MAX = 1000
"""Rows per table of a report."""
QUANTILES = (0.5, 0.9, 0.99)
BUCKETS_MAX = 60
DAY_MS = 86_400_000
BUCKETS_MS = (
    *(50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000),
    *(60_000, 300_000, 600_000, 1_800_000, 3_600_000, 6 * 3_600_000, DAY_MS),
)
MILLISECONDS = "yyyy-MM-dd HH:mm:ss.SSS"
SERIES_MAX = 8
OTHERS = "others"
STORED, CONSUMED = "until stored", "until consumed"
NEEDED = (
    *("topic", "brokerName", "queueId", "queueOffset", "keys", "uniqKey"),
    *("bornTimestamp", "storeTimestamp", "bornHost"),
)


# --- Message statistics. Pure ---


def measured(df: DataFrame) -> DataFrame:
    """The columns that the statistics need, with the size of bodies instead of bodies."""
    return df.select(*NEEDED, F.length("body").alias("bodyBytes"))


def sizes(df: DataFrame) -> DataFrame:
    """Message counts, sizes and time span by queue."""
    return (
        df.groupBy("topic", "brokerName", "queueId")
        .agg(
            F.count("*").alias("messages"),
            F.sum("bodyBytes").alias("bodyBytes"),
            F.round(F.avg("bodyBytes")).cast("bigint").alias("meanBytes"),
            F.max("bodyBytes").alias("maxBytes"),
            F.min("storeTimestamp").alias("oldest"),
            F.max("storeTimestamp").alias("newest"),
        )
        .orderBy("topic", "brokerName", "queueId")
    )


def bucket_ms(span_ms: int) -> int:
    """The length of a time bucket, so that a span has at most 60 of them."""
    fitting = (each for each in BUCKETS_MS if span_ms / each < BUCKETS_MAX)
    return next(fitting, DAY_MS * (span_ms // DAY_MS // BUCKETS_MAX + 1))


def _bucket(length_ms: int) -> Column:
    return F.window("storeTimestamp", f"{length_ms} milliseconds")["start"].alias("from")


def traffic(df: DataFrame, length_ms: int = 60_000) -> DataFrame:
    """Messages and bytes stored, by time bucket and topic."""
    return (
        df.groupBy(_bucket(length_ms), "topic")
        .agg(F.count("*").alias("messages"), F.sum("bodyBytes").alias("bodyBytes"))
        .orderBy("from", "topic")
    )


def keys(df: DataFrame, top: int = TOP_KEYS) -> DataFrame:
    """The most frequent keys, of those that repeat."""
    each = df.select("topic", F.explode(F.split("keys", " ")).alias("key")).where("key <> ''")
    counted = each.groupBy("topic", "key").agg(F.count("*").alias("messages")).where("messages > 1")
    return counted.orderBy(F.desc("messages"), "topic", "key").limit(top)


def duplicates(df: DataFrame) -> DataFrame:
    """Messages with a repeated unique key, by topic; topics without any are left out."""
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
        .where("duplicates > 0")
        .orderBy("topic")
    )


def stored(df: DataFrame) -> DataFrame:
    """Milliseconds from birth to storing, by the clocks of producer and broker."""
    took = (F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp")).alias("ms")
    return df.select("topic", F.lit("").alias("group"), "storeTimestamp", took)


def latency(delays: DataFrame) -> DataFrame:
    """Quantiles of delays, by topic, stage and group."""
    quantiles = [F.percentile_approx("ms", share).alias(f"p{share * 100:g}") for share in QUANTILES]
    return (
        delays.groupBy("topic", "delay", "group")
        .agg(F.count("*").alias("messages"), F.min("ms").alias("min"), *quantiles, F.max("ms").alias("max"))
        .orderBy("topic", F.desc("delay"), "group")
    )


def delay(delays: DataFrame, length_ms: int = 60_000) -> DataFrame:
    """Median and p99 of delays, by time bucket and stage."""
    quantiles = [F.percentile_approx("ms", share).alias(f"p{share * 100:g}") for share in (0.5, 0.99)]
    return delays.groupBy(_bucket(length_ms), "delay").agg(*quantiles).orderBy("from", F.desc("delay"))


def retries(returned: DataFrame, length_ms: int = 60_000) -> DataFrame:
    """Retries and dead letters, by time bucket and kind."""
    counted = returned.groupBy(_bucket(length_ms), "what").agg(F.count("*").alias("messages"))
    return counted.orderBy("from", F.desc("what"))


# --- Sections ---


@dataclass(slots=True)
class _SectionMaker:
    """A report that is being made: what the sections are made from, and the figures that they find."""

    df: DataFrame
    found: Aftermath
    figures: Figures
    length_ms: int = 60_000
    """Length of a time bucket."""

    def by_time(self, found: DataFrame) -> list[list[Any]]:
        """Rows of a statistic by time bucket."""
        return plain_rows(found, ROWS_MAX + 1, SECONDS if self.length_ms % 1000 == 0 else MILLISECONDS)

    def sizes(self) -> Section:
        # Taken before: the time span decides the length of buckets.
        figures = self.figures
        rows = figures.queue_rows
        brokers = {row[1] for row in rows}
        mean = round(figures.body_bytes / figures.messages) if figures.messages else 0
        total = [
            "Total", f"{len(brokers)} broker{'s' if len(brokers) > 1 else ''}", None, figures.messages,
            figures.body_bytes, mean, figures.body_bytes_max, figures.oldest, figures.newest,
        ]  # fmt: skip
        label = ("brokerName", "queueId") if len(brokers) > 1 else "queueId"
        chart = Chart(label=label, value="messages", series="topic", unit="messages")
        note = "Bodies only: a record in the log is about 100 bytes and its properties larger."
        return Section(
            "sizes",
            "Queues",
            figures.queue_columns,
            rows[:ROWS_MAX],
            chart if len(rows) > 1 else None,
            _cut(note, rows),
            total if len(rows) > 1 else None,
        )

    def traffic(self) -> Section:
        found = traffic(self.df, self.length_ms)
        rows = self.by_time(found)
        by_time: dict[str, int] = {}
        for time, _, messages, _ in rows:
            second = time[: len("yyyy-MM-dd HH:mm:ss")]  # of a shorter bucket
            by_time[second] = by_time.get(second, 0) + messages
        self.figures.peak_per_s = max(by_time.values(), default=0) / max(self.length_ms / 1000, 1)
        return Section(
            "traffic",
            "Traffic",
            found.columns,
            _filled(_fewer_series(rows[:ROWS_MAX]), self.length_ms, [0, 0]),
            Chart(label="from", value="messages", series="topic", unit="messages"),
            _cut(f"Messages stored, by {_interval(self.length_ms)}.", rows),
            is_folded=True,
        )

    def delays(self) -> DataFrame:
        """Delays of all stages that are known."""
        first = stored(self.df).withColumn("delay", F.lit(STORED))
        if self.found.calls is None:
            return first
        return first.unionByName(consumed(self.df, self.found.calls).withColumn("delay", F.lit(CONSUMED)))

    def delay(self) -> Section:
        found = delay(self.delays(), self.length_ms)
        rows = self.by_time(found)
        note = "Milliseconds since the producer made the message; of 100 messages 99 were faster (p99)."
        if self.found.calls is None:
            note += " The time until consumed needs message traces (trace=True in the client's settings)."
        chart = Chart(label="from", value="p99", series="delay", unit="p99, ms", kind="lines")
        return Section(
            "delay",
            "End-to-end delay",
            found.columns,
            rows[:ROWS_MAX],
            chart,
            _cut(note, rows),
            is_folded=True,
        )

    def latency(self) -> Section:
        found = latency(self.delays())
        rows = plain_rows(found, ROWS_MAX + 1, SECONDS)
        stages = {row[1] for row in rows}
        last = CONSUMED if CONSUMED in stages else STORED
        self.figures.delay_stage = last
        self.figures.delay_p99_ms = max((row[7] for row in rows if row[1] == last), default=None)
        note = "In milliseconds. Delayed messages count with their delay; negative where clocks differ."
        if last == CONSUMED:
            note += " The time until consumed is that of messages with a trace."
        return Section("latency", "Delay by topic", found.columns, rows[:ROWS_MAX], None, _cut(note, rows))

    def retries(self) -> Section:
        rows: list[list[Any]] = []
        columns = ["from", "what", "messages"]
        if self.found.returned is not None:
            rows = self.by_time(retries(self.found.returned, self.length_ms))
        self.figures.retries = sum(row[2] for row in rows if row[1] == "retries")
        self.figures.dead_letters = sum(row[2] for row in rows if row[1] == "dead letters")
        note = f"By {_interval(self.length_ms)}." if rows else "No message of these topics was retried."
        chart = Chart(label="from", value="messages", series="what", unit="messages")
        shown = _filled(rows[:ROWS_MAX], self.length_ms, [0])
        return Section(
            "retries", "Retries and dead letters", columns, shown, chart, _cut(note, rows), is_folded=True
        )

    def journey(self) -> Section:
        key, rows = journey(self.df, self.found)
        note = f"The most eventful message, {key}." if rows else "No message has a unique key."
        return Section("journey", "Journey of a message", JOURNEY_COLUMNS, rows, None, note)

    def keys(self) -> Section:
        found = keys(self.df)
        rows = plain_rows(found, TOP_KEYS, SECONDS)
        note = "" if rows else "No key is used by more than one message."
        chart = Chart(label="key", value="messages", unit="messages") if len(rows) > 1 else None
        return Section("keys", "Most frequent keys", found.columns, rows, chart, note)

    def duplicates(self) -> Section:
        found = duplicates(self.df)
        rows = plain_rows(found, ROWS_MAX + 1, SECONDS)
        self.figures.duplicates = sum(row[3] for row in rows)
        note = "Messages of one topic that share a unique key: what a producer sent again."
        return Section(
            "duplicates",
            "Messages sent twice",
            found.columns,
            rows[:ROWS_MAX],
            None,
            _cut(note, rows) if rows else "No message was sent twice: all unique keys differ.",
        )


SECTIONS: dict[str, Callable[[_SectionMaker], Section]] = {
    "traffic": _SectionMaker.traffic,
    "delay": _SectionMaker.delay,
    "latency": _SectionMaker.latency,
    "retries": _SectionMaker.retries,
    "journey": _SectionMaker.journey,
    "sizes": _SectionMaker.sizes,
    "keys": _SectionMaker.keys,
    "duplicates": _SectionMaker.duplicates,
}
NAMES = ("traffic", "delay", "latency", "retries", "groups", "lag", "journey", "sizes", "keys", "duplicates")
"""In the order of the page."""


def report(
    spark: SparkSession, source: Input, *, kinds: Sequence[str] = NAMES, groups: Sequence[str] = ()
) -> HtmlReport:
    """Make a report; reads the messages once. Raises SettingsError, RocketMQError."""
    options = load(SourceOptions, source.source_options(is_stream=False))
    planner = Planner(options)
    topics = sorted({queue.topic for queue in planner.queues()})
    figures = Figures(topics=topics)
    sections: dict[str, Section] = {}
    if source.namesrv is not None and {"groups", "lag"} & set(kinds):
        brokers = shared_client(source.namesrv, credentials=options.credentials, tls=options.tls_settings)
        sections |= _group_sections(brokers, topics, groups, figures)
    wanted = [kind for kind in kinds if kind in SECTIONS]
    if wanted:
        df = measured(source.read(spark)).persist()
        try:
            _take_sizes(df, figures)
            found = aftermath(spark, source, planner.origin.topics(), topics)
            making = _SectionMaker(df, found, figures, bucket_ms(figures.span_ms))
            sections |= {kind: SECTIONS[kind](making) for kind in wanted}
        finally:
            df.unpersist()
    made_at = f"Made {datetime.now(UTC).strftime('%Y-%m-%d %H:%M:%S')}, all times in UTC"
    title = f"Topic {topics[0]}" if len(topics) == 1 else f"Topics {source.topic}"
    shown = [sections[kind] for kind in NAMES if kind in sections and kind in kinds]
    if set(kinds) < set(NAMES):
        return HtmlReport(title, made_at, shown)
    return msgspec.structs.replace(overview(figures), title=title, made_at=made_at, sections=shown)


def _take_sizes(df: DataFrame, figures: Figures) -> None:
    found = sizes(df)
    figures.queue_columns, figures.queue_rows = found.columns, plain_rows(found, ROWS_MAX + 1, SECONDS)
    stored_at = F.col("storeTimestamp")
    whole = df.agg(
        F.count("*"), F.coalesce(F.sum("bodyBytes"), F.lit(0)), F.coalesce(F.max("bodyBytes"), F.lit(0)),
        F.coalesce(F.unix_millis(F.max(stored_at)) - F.unix_millis(F.min(stored_at)), F.lit(0)),
        F.date_format(F.min(stored_at), SECONDS), F.date_format(F.max(stored_at), SECONDS),
    ).first()  # fmt: skip
    assert whole is not None
    figures.messages, figures.body_bytes, figures.body_bytes_max, figures.span_ms = whole[:4]
    figures.oldest, figures.newest = whole[4:]


def _group_sections(
    brokers: ClusterClient, topics: Sequence[str], groups: Sequence[str], figures: Figures
) -> dict[str, Section]:
    found: list[GroupStanding] = []
    rows: list[list[Any]] = []
    try:
        names = list(groups) or groups_of(brokers, topics)
        rows = lag(brokers, topics, names)
        found = standings(brokers, names, rows)
        note = "" if found else "No group consumes these topics."
    except RocketMQError as error:
        note = f"not available: {error}"
    figures.standings = found
    is_behind = any(row[-1] for row in rows)
    told = note or ("" if rows else "No group has committed offsets for these topics.")
    total = ["Total", *[sum(each.row()[place] for each in found) for place in range(1, len(GROUP_COLUMNS))]]
    chart = Chart(label=("brokerName", "queueId"), value="lag", series="group", unit="messages")
    return {
        "groups": Section(
            "groups",
            "Consumer groups",
            GROUP_COLUMNS,
            [each.row() for each in found],
            None,
            note
            or "Messages that a group has not consumed yet. Dead letters wait until they are sent again.",
            total if len(found) > 1 else None,
        ),
        "lag": Section(
            "lag",
            "Lag by queue",
            LAG_COLUMNS,
            rows,
            chart if is_behind else None,
            told or ("" if is_behind else "No lag: every queue is consumed to its end."),
            is_folded=not is_behind,
        ),
    }


# --- Rows ---


def _cut(note: str, rows: Sequence[Any]) -> str:
    if len(rows) <= ROWS_MAX:
        return note
    return f"{note} Only the first {ROWS_MAX:,} rows are shown; select others with --from and --to.".strip()


def _interval(length_ms: int) -> str:
    units = ((DAY_MS, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"), (1, "millisecond"))
    size, name = next((size, name) for size, name in units if length_ms % size == 0)
    count = length_ms // size
    return name if count == 1 else f"{count} {name}s"


def _fewer_series(rows: list[list[Any]]) -> list[list[Any]]:
    """Rows of (time, series, messages, bytes) with the smaller series added up, if there are many."""
    totals: dict[str, int] = {}
    for _, name, messages, _ in rows:
        totals[name] = totals.get(name, 0) + messages
    if len(totals) <= SERIES_MAX:
        return rows
    kept = set(sorted(totals, key=lambda name: -totals[name])[: SERIES_MAX - 1])
    found: dict[tuple[str, str], list[Any]] = {}
    for time, name, messages, size in rows:
        shown = name if name in kept else OTHERS
        row = found.setdefault((time, shown), [time, shown, 0, 0])
        row[2] += messages
        row[3] += size
    return list(found.values())


def _filled(rows: list[list[Any]], length_ms: int, nothing: list[Any]) -> list[list[Any]]:
    """Rows of (time, series, numbers …) with zeros for times without any, so that a chart shows the gaps."""
    if not rows:
        return []
    names = list(dict.fromkeys(row[1] for row in rows))
    first, last = (datetime.fromisoformat(rows[place][0]) for place in (0, -1))
    step = timedelta(milliseconds=length_ms)
    count = (last - first) // step + 1
    if count * len(names) > ROWS_MAX:
        return rows
    known = {(row[0], row[1]): row for row in rows}
    unit = "seconds" if length_ms % 1000 == 0 else "milliseconds"
    times = [(first + number * step).isoformat(" ", unit) for number in range(count)]
    return [known.get((time, name), [time, name, *nothing]) for time in times for name in names]
