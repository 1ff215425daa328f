"""Inputs and outputs of a job: `topic:orders`, `delta:/lake/orders`, `console`; and rows as plain values."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampType

from skylark.errors import SettingsError
from skylark.model.names import topic_name_error
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.progress import (
    CommitProgress,
    check_start,
    check_state,
    end_offsets,
    read_checkpoint,
)
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_log import PRIVATE, BatchName
from skylark.pipelines.offsets import to_nested
from skylark.pipelines.options import SourceOptions, absolute_path, load
from skylark.pipelines.planner import Planner
from skylark.pipelines.sink import ORIGIN, TYPES
from skylark.settings.object_store import check_uri, is_uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EXACT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
SECONDS = "yyyy-MM-dd HH:mm:ss"


def plain_rows(df: DataFrame, limit: int, times: str = EXACT) -> list[list[Any]]:
    """At most `limit` rows, with times as text in the session's zone.

    Collected times would be in the driver's zone, and fail if they lie outside Python's range of years.
    """
    names = [f"c{number}" for number in range(len(df.columns))]  # column names may repeat
    columns = [
        _plain(F.col(name), field.dataType, times) for name, field in zip(names, df.schema, strict=True)
    ]
    return [list(row) for row in df.toDF(*names).select(*columns).limit(limit).collect()]


def _plain(column: Column, kind: DataType, times: str) -> Column:
    if isinstance(kind, TimestampType):
        return F.date_format(column, times)
    plain = _without_times(kind)
    return column if plain == kind else column.cast(plain)


def _without_times(kind: DataType) -> DataType:
    """The type with text instead of times."""
    if isinstance(kind, TimestampType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _without_times(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_without_times(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_without_times(kind.keyType), _without_times(kind.valueType))
    return kind


TABLES = ("delta", "parquet", "iceberg")
KINDS = (*TABLES, "topic", "console")
FROM_TABLE = "table"
"""As a start: behind what the output's table holds."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """Input of a job: topics of a cluster or of a store directory."""

    namesrv: str | None = None
    store: Path | None = None
    topic: str
    start: str | None = None
    end: str | None = None
    group: str | None = None
    tags: str | None = None
    sql92: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options of the source."""

    def __post_init__(self) -> None:
        if (self.namesrv is None) == (self.store is None):
            raise SettingsError("namesrv", "use either --namesrv HOST:PORT or --store DIR")
        if self.store is not None and not self.store.is_dir():
            raise SettingsError("store", f"no such directory: {self.store}")

    def source_options(self, *, is_stream: bool) -> dict[str, str]:
        """Options for `format("rocketmq")`; starts at the earliest message by default."""
        values = {
            "namesrv": self.namesrv,
            "path": str(absolute_path(self.store)) if self.store is not None else None,
            "topic": self.topic,
            "groupId": self.group,
            "startingOffsets": self.start or "earliest",
            "endingOffsets": None if is_stream else self.end,
            "tags": self.tags,
            "sql92": self.sql92,
            **self.options,
        }
        return {name: value for name, value in values.items() if value is not None}

    def read(self, spark: SparkSession, **more: str) -> DataFrame:
        """All current messages. User options take precedence over `more`."""
        return spark.read.format("rocketmq").options(**more | self.source_options(is_stream=False)).load()

    def read_stream(self, spark: SparkSession, **more: str) -> DataFrame:
        """All current and future messages. User options take precedence over `more`."""
        options = more | self.source_options(is_stream=True)
        return spark.readStream.format("rocketmq").options(**options).load()


@dataclass(frozen=True, kw_only=True)
class Output:
    """Output of a job. `options` are those of the topic sink or of the table sink."""

    kind: str
    where: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_table(self) -> bool:
        return self.kind in TABLES

    @property
    def is_directory(self) -> bool:
        """Whether it is a table in a directory; others are in object stores or catalogs."""
        return self.kind in ("delta", "parquet") and not is_uri(self.where)

    def __str__(self) -> str:
        return f"{self.kind}:{self.where}" if self.where else self.kind


def parse_output(text: str, **options: str | None) -> Output:
    """Parse `kind:where`; a bare path is a Delta table. Raises SettingsError."""
    kind, colon, where = text.partition(":")
    if (not colon or where.startswith("//")) and text != "console":
        kind, where = "delta", text
    if kind == "table":
        kind = "delta"
    given = {name: value for name, value in options.items() if value is not None}
    if kind not in KINDS:
        raise SettingsError(
            "to",
            f"invalid output {text!r}; use delta:DIR, parquet:DIR, topic:NAME or console; DIR may also be "
            "s3://BUCKET/PATH; or iceberg:[CATALOG/]NAMESPACE.TABLE",
        )
    if kind != "console" and not where:
        raise SettingsError("to", f"invalid output {text!r}; add the directory or topic after the colon")
    if kind == "topic" and (fault := topic_name_error(where)):
        raise SettingsError("to", f"topic {where!r}: {fault}")
    if kind in ("delta", "parquet"):
        where = check_uri("to", where) if is_uri(where) else str(absolute_path(where))
    return Output(kind=kind, where=where, options=given)


def table_options(output: Output, **more: str) -> dict[str, str]:
    """Options for `format("skylark-table")`."""
    return {"table": output.where, "layout": output.kind, **output.options, **more}


def write_stream(df: DataFrame, output: Output, namesrv: str | None, job: str) -> DataStreamWriter:
    """A writer of the stream; creates or checks the table. Raises SettingsError."""
    if output.is_table:
        options = table_options(output, runId=uuid.uuid4().hex[:12], job=job)
        table_sink.prepare(table_sink.read_options(options), df.schema)
        return df.writeStream.format(table_sink.FORMAT).options(**options)
    if output.kind == "console":
        return df.writeStream.format("console").option("truncate", "false").options(**output.options)
    options = _topic_options(output, namesrv)
    return as_messages(df).writeStream.format("rocketmq").options(**options)


def write_batch(
    df: DataFrame,
    output: Output,
    namesrv: str | None,
    batch_name: str | None = None,
    progress: CommitProgress | None = None,
) -> None:
    """Write all rows, only once per `batch_name`. Raises SettingsError and Spark's errors.

    A table records `progress` with its commit.
    """
    if output.is_table:
        recorded = {"progress": msgspec.json.encode(progress).decode()} if progress is not None else {}
        named = {"batchName": batch_name} if batch_name is not None else {}
        options = table_options(output, **recorded, **named)
        table_sink.prepare(table_sink.read_options(options), df.schema)
        df.write.format(table_sink.FORMAT).mode("append").options(**options).save()
    elif output.kind == "console":
        df.show(1000, truncate=False)
    else:
        options = _topic_options(output, namesrv)
        if batch_name is not None and options.get("exactlyOnce"):
            options["exactlyOnceId"] = batch_name
        as_messages(df).write.format("rocketmq").mode("append").options(**options).save()


def _topic_options(output: Output, namesrv: str | None) -> dict[str, str]:
    given = output.options.get("namesrv") or namesrv
    if not given:
        raise SettingsError(
            "to",
            f"cannot send to {output}: no name server given; use --to-namesrv, or write to a table",
        )
    topic = {"topic": output.where} if output.where else {}  # else the column topic
    return {"exactlyOnce": "keys", **topic, **output.options, "namesrv": given}


def as_messages(df: DataFrame) -> DataFrame:
    """Rows for a topic: without a column body the whole row becomes JSON, beside the message columns."""
    if "body" in df.columns:
        return df
    kept = [*message_columns(df, ("tags", "keys", "shardingKey")), *origin_columns(df)]
    return df.select(whole_row(df).alias("body"), *kept)


def whole_row(df: DataFrame) -> Column:
    return F.to_json(F.struct(*[F.col(f"`{name}`") for name in df.columns]))


def message_columns(df: DataFrame, names: Iterable[str]) -> list[str]:
    """The columns among `names` with a type that the sink accepts: body fields may have the same names."""
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    return [name for name in names if types.get(name) in TYPES[name]]


def origin_columns(df: DataFrame) -> Sequence[str]:
    """The columns that identify a row's message, if present: they keep keys stable across retries."""
    return ORIGIN if all(name in df.columns for name in ORIGIN) else ()


def state_directory(given: Path | None, pipeline: str, *identity: Any, table: Output | None = None) -> Path:
    """The directory with a pipeline's checkpoints: as given, or inside the table, so that both move together.

    Without a table in a directory it is in the user's state directory.
    """
    if given is not None:
        return absolute_path(given)
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    name = stable_name(pipeline, *identity)
    user_state = Path(base) / "skylark" / "spark" / name
    if table is None or not table.is_directory or user_state.exists():  # older versions kept it there
        return user_state
    return Path(table.where) / PRIVATE / "state" / name


def stable_name(pipeline: str, *identity: Any) -> str:
    """The same for every run of a pipeline with this input and output; it begins with the first of them."""
    text = msgspec.json.encode([pipeline, *[str(each) for each in identity]])
    words = re.sub(r"[^\w-]+", "-", str(identity[0]))[:40].strip("-")
    return f"{pipeline}-{words}-{hashlib.sha256(text).hexdigest()[:8]}"


# --- The table's progress ---


def job_name(kind: str, source: Input, where: str | None = None) -> str:
    """Identifies a job that writes the same rows of the same messages, for the table's commits."""
    chosen = {"tags": source.tags, "sql92": source.sql92, "where": where}
    return " ".join([kind, *[f"{name}={value}" for name, value in chosen.items() if value]])


def check_progress(
    source: Input, output: Output, checkpoint: Path, job: str, *, application: str | None = None
) -> int | None:
    """Refuse a state that does not match the output's table. Raises SettingsError, RocketMQError.

    Returns the batch that the table holds although the state has not recorded it: it is read again, and not
    written. `application` names the query in the table's commits; by default that of `skylark-table`.
    """
    if not output.is_table:
        return None
    log, state = open_log(output.kind, output.where), read_checkpoint(checkpoint)
    if state.query is None or state.planned is None:
        entries = [entry for entry in log.progress() if entry.job == job]
        if entries:
            planner = Planner(load(SourceOptions, source.source_options(is_stream=True)))
            check_start(str(output), entries, planner.starting("earliest"))
        return None
    name = application or BatchName(state.query, 0).application
    last = log.last_batch(name)
    is_recorded = last == state.committed or any(entry.application == name for entry in log.progress())
    check_state(str(output), checkpoint, state, last, is_recorded=is_recorded)
    committed = -1 if state.committed is None else state.committed
    return last if last is not None and last > committed else None


def from_table(source: Input, output: Output, job: str) -> Input:
    """Replace `--from table` by the offsets that the job has reached in the table. Raises SettingsError."""
    if source.start != FROM_TABLE:
        return source
    entries = open_log(output.kind, output.where).progress() if output.is_table else []
    ends = end_offsets(entry for entry in entries if entry.job == job)
    if not ends:
        raise SettingsError("from", f"{output} records no offsets of this job; use earliest or a time")
    return dataclasses.replace(source, start=msgspec.json.encode(to_nested(ends)).decode())
