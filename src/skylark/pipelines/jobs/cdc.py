"""`cdc`: applies change events (Debezium or Canal JSON) to a Delta table that mirrors the source table.

Each batch is reduced to the last change of every key, then merged: rows are inserted, updated and deleted.
The merge records the batch number, so a repeated batch is skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, Schema
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from skylark.errors import SettingsError
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.endpoints import Input, Output, check_progress, from_table, job_name
from skylark.pipelines.lake.progress import CommitProgress, batch_progress
from skylark.pipelines.lake.table_log import append, commit_properties
from skylark.pipelines.schema import arrow_schema, table_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("debezium", "canal")
BEFORE, AFTER = "_before", "_after"
DELETED = "_deleted"
SEQUENCE = "_sequence"
MERGE_ROWS_MAX = 2_000_000
"""Changed keys per batch, which pass through the driver."""


@dataclass(frozen=True, kw_only=True)
class ChangeEvents:
    """Format of the change events."""

    format: str = "debezium"
    keys: Sequence[str]
    schema: str
    """DDL of the table's rows."""
    sequence: Sequence[str] = ()
    """Event fields that order changes of one key; ties are ordered by queue offset."""
    table: str | None = None
    """Only events of this table, `users` or `shop.users`, if the topic has several."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise SettingsError("format", f"invalid format {self.format!r}; choose {' or '.join(FORMATS)}")
        if not self.keys:
            raise SettingsError("keys", "no key given; name the columns that identify a row, as in --keys id")


def transform(df: DataFrame, changes: ChangeEvents) -> DataFrame:
    """One row per key: its last state, whether it is deleted, and its sequence. Pure.

    Messages of one key should be in one queue; otherwise `sequence` must order them.
    """
    row_type = row_schema(changes)
    for name in changes.keys:
        if name not in row_type.names:
            raise SettingsError("keys", f"unknown key column {name}; the schema is {changes.schema}")
    read = _debezium if changes.format == "debezium" else _canal
    rows = _states(read(df, changes, row_type), changes.keys)
    order = Window.partitionBy(*[f"`{name}`" for name in changes.keys]).orderBy(F.col(SEQUENCE).desc())
    # A row with a null key matches nothing and would be inserted again by every batch.
    known = rows.dropna(subset=list(changes.keys))
    last = known.withColumn("_rank", F.row_number().over(order)).where("_rank = 1")
    return last.drop("_rank")


def _states(events: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Row states from events. An update that changes the key also deletes the old row."""
    is_deleted = F.col(DELETED)
    moves = [F.col(f"{BEFORE}.`{name}`") != F.col(f"{AFTER}.`{name}`") for name in keys]
    has_left = is_deleted | F.coalesce(reduce(or_, moves), F.lit(False))
    states = F.array(
        F.when(has_left, _state(BEFORE, is_deleted=True, step=0)),
        F.when(~is_deleted, _state(AFTER, is_deleted=False, step=1)),
    )
    each = events.select(F.explode(states).alias("_state"), SEQUENCE).where("_state is not null")
    steps = F.concat(SEQUENCE, F.array(F.col("_state.step"))).alias(SEQUENCE)
    return each.select("_state.row.*", F.col("_state.isDeleted").alias(DELETED), steps)


def _state(row: str, *, is_deleted: bool, step: int) -> Column:
    return F.struct(
        F.col(row).alias("row"), F.lit(is_deleted).alias("isDeleted"), _number(F.lit(step)).alias("step")
    )


def _number(value: Column) -> Column:
    return value.cast("decimal(38,0)")


def _sequence(changes: ChangeEvents, event: Column, *, position: Column) -> Column:
    given = [F.get_json_object(event, f"$.{name}") for name in changes.sequence]
    parts = [_number(each) for each in [*given, F.col("queueOffset"), position]]
    return F.array(*[F.coalesce(each, _number(F.lit(-1))) for each in parts]).alias(SEQUENCE)


def _is_of(table: str | None, name: str, *owners: str) -> Column:
    """Condition that an event belongs to `table`; `name` and `owners` are the columns to compare."""
    owner, _, own_name = (table or "").rpartition(".")
    is_same = F.col(name) == own_name if table else F.lit(True)
    return is_same & reduce(or_, [F.col(each) == owner for each in owners]) if owner else is_same


def _debezium(df: DataFrame, changes: ChangeEvents, row_type: StructType) -> DataFrame:
    origin = StructType([StructField(name, StringType()) for name in ("db", "schema", "table")])
    event = StructType().add("op", StringType()).add("before", row_type).add("after", row_type)
    event = event.add("source", origin)
    text = F.col("body").cast("string")
    # With schemas enabled the event is nested in `payload`.
    inner = F.coalesce(F.get_json_object(text, "$.payload"), text)
    parsed = df.select("*", F.from_json(inner, event).alias("_event")).where("_event.op is not null")
    owners = ("_event.source.db", "_event.source.schema")
    kept = parsed.where(_is_of(changes.table, "_event.source.table", *owners))
    return kept.select(
        F.col("_event.before").alias(BEFORE),
        F.col("_event.after").alias(AFTER),
        (F.col("_event.op") == "d").alias(DELETED),
        _sequence(changes, inner, position=F.lit(0)),
    )


def _canal(df: DataFrame, changes: ChangeEvents, row_type: StructType) -> DataFrame:
    # Canal encodes every value as text.
    rows_type = ArrayType(StructType([StructField(name, StringType()) for name in row_type.names]))
    event = StructType().add("type", StringType()).add("data", rows_type).add("old", rows_type)
    event = event.add("database", StringType()).add("table", StringType())
    text = F.col("body").cast("string")
    parsed = df.select("*", F.from_json(text, event).alias("_event"))
    kept = parsed.where("_event.type in ('INSERT', 'UPDATE', 'DELETE')")
    kept = kept.where(_is_of(changes.table, "_event.table", "_event.database"))
    rows = kept.select("*", F.posexplode("_event.data").alias("_place", "_row"))
    # `old` holds only the changed columns.
    rows = rows.withColumn("_old", F.get("_event.old", F.col("_place")))

    def typed(*sources: str) -> Column:
        columns = [
            F.coalesce(*[F.col(f"{source}.`{field.name}`") for source in sources])
            .try_cast(field.dataType)
            .alias(field.name)
            for field in row_type
        ]
        return F.struct(*columns)

    return rows.select(
        typed("_old", "_row").alias(BEFORE),
        typed("_row").alias(AFTER),
        (F.col("_event.type") == "DELETE").alias(DELETED),
        _sequence(changes, text, position=F.col("_place")),
    )


def row_schema(changes: ChangeEvents) -> StructType:
    """Parse the DDL of the table's rows. Raises SettingsError."""
    try:
        schema = StructType.fromDDL(changes.schema)
    except PySparkException as error:
        raise SettingsError("schema", f"{changes.schema!r}: {str(error).splitlines()[0]}") from error
    assert isinstance(schema, StructType)
    return schema


def merge(
    table: DeltaTable,
    rows: pa.Table,
    keys: Sequence[str],
    *,
    application: str,
    number: int,
    progress: CommitProgress | None = None,
) -> bool:
    """Merge the last states of a batch's keys; return False if the batch was merged before."""
    version = table.transaction_version(application)
    if version is not None and version >= number:
        return False
    properties = commit_properties(application, number, progress)
    if not rows.num_rows:
        append(table, [], properties)
        return True
    same = " and ".join(f"t.`{name}` = s.`{name}`" for name in keys)
    columns = [name for name in rows.column_names if name != DELETED]
    (
        table.merge(
            rows,
            same,
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        .when_matched_delete(f"s.`{DELETED}`")
        .when_matched_update({f"`{name}`": f"s.`{name}`" for name in columns}, f"not s.`{DELETED}`")
        .when_not_matched_insert({f"`{name}`": f"s.`{name}`" for name in columns}, f"not s.`{DELETED}`")
        .execute()
    )
    return True


def prepare(path: str, schema: StructType) -> None:
    """Create the table, or add missing columns. Raises SettingsError."""
    wanted = arrow_schema(schema)
    if not DeltaTable.is_deltatable(path):
        DeltaTable.create(path, wanted, mode="ignore")
        return
    table = DeltaTable(path)
    there = {field.name: field.type for field in table.schema().fields}
    fields = Schema.from_arrow(table_columns(wanted)).fields
    for field in fields:
        if there.get(field.name, field.type) != field.type:
            types = f"{_words(there[field.name])} in the table, {_words(field.type)} in the schema"
            raise SettingsError(
                "schema", f"column {field.name} is {types}; use the same type, or another table"
            )
    if new := [field for field in fields if field.name not in there]:
        table.alter.add_columns(new)


def _words(kind: Any) -> str:
    """The name of a Delta type."""
    return str(getattr(kind, "type", kind))


def check_output(output: Output) -> None:
    """Raises SettingsError."""
    if output.kind != "delta":
        raise SettingsError("to", f"invalid output {output}; use delta:DIR")


def cdc(
    spark: SparkSession,
    source: Input,
    output: Output,
    *,
    state: Path,
    changes: ChangeEvents,
    once: bool,
    trigger: str = "10s",
    watch: queries.Watch | None = None,
) -> queries.JobSummary:
    """Run until the end of data, or until interrupted. Raises SettingsError, RocketMQError."""
    check_output(output)
    schema = row_schema(changes)
    path = output.where
    job, checkpoint = job_name("cdc", source, changes.table), queries.checkpoint_of(state, "cdc")
    application = f"skylark-cdc-{_identity(state)}"
    source = from_table(source, output, job)
    check_progress(source, output, checkpoint, job, application=application)
    prepare(path, schema)

    def merge_batch(df: DataFrame, number: int) -> None:
        rows = transform(df, changes).drop(SEQUENCE).limit(MERGE_ROWS_MAX + 1).toArrow()
        if rows.num_rows > MERGE_ROWS_MAX:
            raise SettingsError(
                "maxBytesPerTrigger", f"a batch changes more than {MERGE_ROWS_MAX} keys; use a smaller value"
            )
        progress = batch_progress(checkpoint, application, number, job)
        merge(DeltaTable(path), rows, changes.keys, application=application, number=number, progress=progress)

    writer = source.read_stream(spark).writeStream.foreachBatch(merge_batch)
    summary = queries.run("cdc", {"cdc": writer}, state=state, once=once, trigger=trigger, watch=watch)
    summary.details = {"to": str(output), "version": DeltaTable(path).version()}
    return summary


def _identity(state: Path) -> str:
    """Unique id of a state directory: batch numbers of different states are unrelated."""
    path = state / "identity"
    if not path.exists():
        state.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex)
    return path.read_text().strip()
