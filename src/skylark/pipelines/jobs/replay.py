"""`replay`: sends the messages of a time range to a topic again, from brokers, store files or an archive."""

from __future__ import annotations

import dataclasses
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from skylark.errors import SettingsError
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.counts import choice_counts, observe_choice, observed
from skylark.pipelines.jobs.endpoints import Input, Output, write_batch
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.delta_log import has_delta, open_delta
from skylark.pipelines.lake.parquet_files import TableFile
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_reader import FileChoice
from skylark.pipelines.offsets import split_names
from skylark.pipelines.schema import COLUMNS
from skylark.quantities import parse_time_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT = ("body", "tags", "keys", "properties")


@dataclass(frozen=True, kw_only=True)
class ReplayRange:
    """A time range, end exclusive, with an optional condition on messages."""

    since_ms: int | None = None
    until_ms: int | None = None
    where: str | None = None

    @staticmethod
    def parse(since: str | None, until: str | None, where: str | None, now_ms: int) -> ReplayRange:
        """`earliest` and `latest` mean unbounded. Raises SettingsError."""
        since_ms = None if since in (None, "earliest") else _time_ms("from", since, now_ms)
        until_ms = None if until in (None, "latest") else _time_ms("to", until, now_ms)
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise SettingsError("from", f"{since} is not before {until}")
        return ReplayRange(since_ms=since_ms, until_ms=until_ms, where=where)


def _time_ms(name: str, text: str, now_ms: int) -> int:
    try:
        return parse_time_ms(text, now_ms)
    except ValueError as error:
        raise SettingsError(name, str(error)) from None


def transform(
    df: DataFrame, stretch: ReplayRange, *, keep_times: bool = False, observation: Observation | None = None
) -> DataFrame:
    """The rows to send: bodies, properties, and the columns that identify the message. Pure.

    `observation` counts the messages of the time range, and those that match the condition.
    """
    for limit_ms, is_after in ((stretch.since_ms, True), (stretch.until_ms, False)):
        if limit_ms is not None:
            moment = F.lit(datetime.fromtimestamp(limit_ms / 1000, UTC))
            stored = F.col("storeTimestamp")
            df = df.where(stored >= moment if is_after else stored < moment)
    if observation is not None:
        df = observe_choice(df, stretch.where, observation)
    elif stretch.where:
        df = df.where(stretch.where)
    times = ["bornTimestamp"] if keep_times else []
    return df.select(*SENT, "topic", "brokerName", "queueId", "queueOffset", *times)


def archived_files(archive: Output, topic: str | None, stretch: ReplayRange) -> list[TableFile]:
    """The files of an archive that may hold matching messages. Raises SettingsError."""
    if not archive.is_table:
        raise SettingsError("archive", f"invalid archive {archive}; use delta:DIR or parquet:DIR")
    if archive.kind == "delta" and not has_delta(archive.where):
        raise SettingsError("archive", f"no Delta table in {archive.where}")
    choice = _choice(topic, stretch)
    return [file for file in open_log(archive.kind, archive.where).files() if choice.accepts(file.partition)]


def _topic_pattern(topic: str) -> str:
    """Names and patterns as one regular expression for a full match. Raises SettingsError."""
    # Also literally: `|` may be part of a name.
    pattern = "|".join(f"(?:{item})|{re.escape(item)}" for item in split_names(topic))
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError("topic", f"invalid regular expression {topic!r}: {error}") from None
    return pattern


def _choice(topic: str | None, stretch: ReplayRange) -> FileChoice:
    """The files of these topics and days. Raises SettingsError."""
    first, last = (
        None if limit is None else datetime.fromtimestamp(limit / 1000, UTC).date().isoformat()
        for limit in (stretch.since_ms, stretch.until_ms)
    )
    return FileChoice(_topic_pattern(topic) if topic else None, first, last)


def read_archive(spark: SparkSession, archive: Output, topic: str | None, stretch: ReplayRange) -> DataFrame:
    """Read an archive; files of other topics and days are skipped. Raises SettingsError."""
    choice = _choice(topic, stretch)
    if archive.is_table and not archive.is_directory:
        df = _read_objects(spark, archive, choice)
    elif archive.kind == "delta":
        df = read_delta(spark, Path(archive.where), choice)
    elif archive.kind == "parquet":
        df = _read_parquet(spark, archive.where)
    else:
        raise SettingsError("archive", f"invalid archive {archive}; use delta:DIR or parquet:DIR")
    return df.where(df["topic"].rlike(f"^(?:{_topic_pattern(topic)})$")) if topic else df


def _read_objects(spark: SparkSession, archive: Output, choice: FileChoice) -> DataFrame:
    """By tasks in Python: Spark itself would need a jar for every store."""
    chosen = {"topics": choice.topics, "firstDay": choice.first_day, "lastDay": choice.last_day}
    given = {name: value for name, value in chosen.items() if value is not None}
    options = {"table": archive.where, "layout": archive.kind, **given}
    return spark.read.format(table_sink.FORMAT).options(**options).load()


def _read_parquet(spark: SparkSession, path: str) -> DataFrame:
    """With our types for partition columns: Spark would infer a number from a topic named 007."""
    guessed = spark.read.parquet(path).schema
    schema = StructType([StructField(each.name, COLUMNS.get(each.name, each.dataType)) for each in guessed])
    return spark.read.schema(schema).parquet(path)


def read_delta(spark: SparkSession, path: Path, choice: FileChoice | None = None) -> DataFrame:
    """Read the newest version of a Delta table without a jar, by the file list of its log."""
    if not has_delta(path):
        raise SettingsError("archive", f"no Delta table in {path}")
    delta = open_delta(path)
    schema = StructType.fromJson(msgspec.json.decode(delta.schema().to_json()))
    names = delta.metadata().partition_columns
    files, values = [], []
    for action in pa.table(delta.get_add_actions()).to_pylist():
        partition = action.get("partition") or {}
        if choice is None or choice.accepts(partition):
            file = path / unquote(action["path"])
            files.append(str(file))
            texts = [None if partition[name] is None else str(partition[name]) for name in names]
            values.append((file.name, *texts))
    if not files:
        return spark.createDataFrame([], schema)
    stored = StructType([field for field in schema.fields if field.name not in names])
    rows = spark.read.schema(stored).parquet(*files).select("*", "_metadata.file_name")
    if not names:
        return rows.drop("file_name")
    texts_of = StructType().add("file_name", StringType())
    for name in names:
        texts_of = texts_of.add(name, StringType())
    partitions = spark.createDataFrame(values, texts_of)
    columns = [F.col(f"`{field.name}`").cast(field.dataType) for field in schema.fields]
    return rows.join(F.broadcast(partitions), "file_name").select(*columns)


def replay(
    spark: SparkSession,
    df: DataFrame,
    output: Output,
    stretch: ReplayRange,
    *,
    namesrv: str,
    state: Path | None = None,
    rate: str | None = None,
    keep_times: bool = False,
) -> queries.JobSummary:
    """Send the messages of a time range again. Raises SettingsError, RocketMQError.

    With a state directory, a repeated replay gives its messages the same unique keys.
    """
    started = time.monotonic()
    observation = Observation()
    rows = transform(df, stretch, keep_times=keep_times, observation=observation)
    options = {"keepTimes": str(keep_times).lower()}
    if rate is not None:
        rows = rows.coalesce(1)  # the rate limit is per task
        options["rowsPerSecond"] = rate
    target = dataclasses.replace(output, options={**output.options, **options})
    try:
        write_batch(rows, target, namesrv, batch_name=str(state) if state is not None else None)
    except Exception as error:
        raise queries.plain_error(error) from error
    return queries.JobSummary(
        pipeline="replay",
        seconds=round(time.monotonic() - started, 2),
        batches=1,
        counts=choice_counts(observed(observation)),
        state=str(state) if state is not None else None,
        details={"to": str(output)},
    )


def source_input(source: Input, stretch: ReplayRange) -> Input:
    """The input, limited to the time range."""
    start = source.start or (str(stretch.since_ms) if stretch.since_ms is not None else None)
    end = source.end or (str(stretch.until_ms) if stretch.until_ms is not None else None)
    return dataclasses.replace(source, start=start, end=end)
