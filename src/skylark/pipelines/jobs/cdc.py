"""`cdc`: change events (Debezium's or Canal's JSON) to a Delta table that is always as the source table is.

Each batch is reduced to the last change of every key, then merged: rows are inserted, updated and deleted.
The merge carries the batch's number, so a batch that comes again is left out.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from skylark.errors import SettingsError
from skylark.pipelines.jobs import running
from skylark.pipelines.jobs.places import Input, Output
from skylark.pipelines.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("debezium", "canal")
DELETED = "_deleted"
SEQUENCE = "_sequence"
MERGE_ROWS_MAX = 2_000_000
"""Changed keys of one batch: they pass through the driver."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the events look like."""

    format: str = "debezium"
    keys: Sequence[str]
    schema: str
    """DDL of the table's rows."""
    sequence: Sequence[str] = ()
    """Fields of the event that order changes of one key, before the order in the queue."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SettingsError("format", f"{self.format!r} is none of {', '.join(FORMATS)}")
        if not self.keys:
            raise SettingsError("keys", "give the columns that identify a row, such as --keys id")


def transform(df: DataFrame, changes: Changes) -> DataFrame:
    """One row per key: its last state, whether it is deleted, and what it was ordered by. Pure.

    Messages of one key are expected in one queue; `sequence` orders them where that does not hold.
    """
    rows = _debezium(df, changes) if changes.format == "debezium" else _canal(df, changes)
    for name in changes.keys:
        if name not in rows.columns:
            raise SettingsError("keys", f"{name} is not in the schema: {changes.schema}")
    order = Window.partitionBy(*[f"`{name}`" for name in changes.keys]).orderBy(F.col(SEQUENCE).desc())
    # Without a key it is no row of the table: it would be added once more by every batch.
    known = rows.dropna(subset=list(changes.keys))
    last = known.withColumn("_rank", F.row_number().over(order)).where("_rank = 1")
    return last.drop("_rank")


def _sequence(changes: Changes, event: Column, *, position: Column) -> Column:
    given = [F.get_json_object(event, f"$.{name}").cast("decimal(38,0)") for name in changes.sequence]
    own = [F.col("queueOffset").cast("decimal(38,0)"), position.cast("decimal(38,0)")]
    return F.array(*[F.coalesce(each, F.lit(-1).cast("decimal(38,0)")) for each in [*given, *own]])


def _debezium(df: DataFrame, changes: Changes) -> DataFrame:
    row_type = row_schema(changes)
    event = StructType().add("op", StringType()).add("before", row_type).add("after", row_type)
    text = F.col("body").cast("string")
    # With schemas enabled the event stands below `payload`.
    inner = F.coalesce(F.get_json_object(text, "$.payload"), text)
    parsed = df.select("*", F.from_json(inner, event).alias("_event")).where("_event.op is not null")
    is_deleted = F.col("_event.op") == "d"
    row = F.when(is_deleted, F.col("_event.before")).otherwise(F.col("_event.after"))
    order = _sequence(changes, inner, position=F.lit(0))
    changed = parsed.select(row.alias("_row"), is_deleted.alias(DELETED), order.alias(SEQUENCE))
    return changed.select("_row.*", DELETED, SEQUENCE)


def _canal(df: DataFrame, changes: Changes) -> DataFrame:
    row_type = row_schema(changes)
    # Canal writes every value as text.
    as_text = StructType([StructField(name, StringType()) for name in row_type.names])
    event = StructType().add("type", StringType()).add("data", ArrayType(as_text))
    parsed = df.select("*", F.from_json(F.col("body").cast("string"), event).alias("_event"))
    kept = parsed.where("_event.type in ('INSERT', 'UPDATE', 'DELETE')")
    rows = kept.select("*", F.posexplode("_event.data").alias("_place", "_row"))
    columns = [F.col(f"_row.`{field.name}`").cast(field.dataType).alias(field.name) for field in row_type]
    is_deleted = F.col("_event.type") == "DELETE"
    position = _sequence(changes, F.col("body").cast("string"), position=F.col("_place"))
    return rows.select(*columns, is_deleted.alias(DELETED), position.alias(SEQUENCE))


def row_schema(changes: Changes) -> StructType:
    """The table's rows. Raises SettingsError for text that is no DDL."""
    try:
        schema = StructType.fromDDL(changes.schema)
    except PySparkException as error:
        raise SettingsError("schema", f"{changes.schema!r}: {str(error).splitlines()[0]}") from error
    assert isinstance(schema, StructType)
    return schema


def merge(table: DeltaTable, rows: pa.Table, keys: Sequence[str], *, application: str, number: int) -> bool:
    """Merge the last states of a batch's keys; say whether it was done: not if it was done before."""
    version = table.transaction_version(application)
    if version is not None and version >= number:
        return False
    same = " and ".join(f"t.`{name}` = s.`{name}`" for name in keys)
    columns = [name for name in rows.column_names if name != DELETED]
    (
        table.merge(
            rows,
            same,
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(application, number, time.time_ns() // 1_000_000)]
            ),
        )
        .when_matched_delete(f"s.`{DELETED}`")
        .when_matched_update({f"`{name}`": f"s.`{name}`" for name in columns}, f"not s.`{DELETED}`")
        .when_not_matched_insert({f"`{name}`": f"s.`{name}`" for name in columns}, f"not s.`{DELETED}`")
        .execute()
    )
    return True


def check_output(output: Output) -> None:
    """Raises SettingsError."""
    if output.kind != "delta":
        raise SettingsError("to", f"{output}: only a Delta table can be merged into")


def cdc(
    spark: SparkSession,
    source: Input,
    output: Output,
    *,
    state: Path,
    changes: Changes,
    once: bool,
    trigger: str = "10s",
    watch: running.Watch | None = None,
) -> running.Summary:
    """Run until the end of data, or until interrupted. Raises SettingsError, RocketMQError."""
    check_output(output)
    schema = row_schema(changes)
    path = output.where
    if not DeltaTable.is_deltatable(path):
        DeltaTable.create(path, arrow_schema(schema), mode="ignore")
    state.mkdir(parents=True, exist_ok=True)
    application = f"skylark-cdc-{_identity(state)}"

    def merge_batch(df: DataFrame, number: int) -> None:
        rows = transform(df, changes).drop(SEQUENCE).limit(MERGE_ROWS_MAX + 1).toArrow()
        if rows.num_rows > MERGE_ROWS_MAX:
            raise SettingsError("maxBytesPerTrigger", f"a batch changes more than {MERGE_ROWS_MAX} keys")
        if rows.num_rows:
            merge(DeltaTable(path), rows, changes.keys, application=application, number=number)

    writer = source.read_stream(spark).writeStream.foreachBatch(merge_batch)
    summary = running.run("cdc", {"cdc": writer}, state=state, once=once, trigger=trigger, watch=watch)
    summary.details = {"to": str(output), "version": DeltaTable(path).version()}
    return summary


def _identity(state: Path) -> str:
    """The name of this state for the table, made with the state: another state numbers its batches anew."""
    path = state / "identity"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text().strip()
