"""`cdc`: applies change events (Debezium or Canal JSON) to a Delta table that mirrors the source table.

Each batch is reduced to the last change of every key, then merged: rows are inserted, updated and deleted.
The merge records the batch number, so a repeated batch is skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, Schema
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from skylark.errors import SettingsError
from skylark.pipelines.jobs import counts, queries
from skylark.pipelines.jobs.endpoints import Input, Output, check_progress, from_table, job_name
from skylark.pipelines.lake.delta_log import (
    append,
    commit_properties,
    has_delta,
    open_delta,
    storage_options,
)
from skylark.pipelines.lake.progress import CommitProgress, batch_progress
from skylark.pipelines.schema import arrow_schema, table_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("debezium", "canal")
BEFORE, AFTER = "_before", "_after"
DELETED = "_deleted"
SEQUENCE = "_sequence"
EVENT, OUTCOME = "_event", "_outcome"
APPLIED, FILTERED, REJECTED = "applied", "filtered", "rejected"
"""What becomes of a message."""
ROW_CHANGES = ("INSERT", "UPDATE", "DELETE")
"""Canal's types of events that change rows."""
NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "body")
"""Message columns that are read."""
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
    return last_states(classified(df, changes).where(F.col(OUTCOME) == APPLIED), changes)


def classified(df: DataFrame, changes: ChangeEvents) -> DataFrame:
    """Messages with their event and what becomes of it: applied, filtered, rejected. Pure.

    Rejected are bodies that are not JSON, and changes without a key; filtered are changes of other tables,
    and events that change no row.
    """
    row_type = row_schema(changes)
    for name in changes.keys:
        if name not in row_type.names:
            raise SettingsError("keys", f"unknown key column {name}; the schema is {changes.schema}")
    read = _read_debezium if changes.format == "debezium" else _read_canal
    return read(df.select(*[name for name in NEEDED if name in df.columns]), changes, row_type)


def last_states(events: DataFrame, changes: ChangeEvents) -> DataFrame:
    """One row per key from applied events: its last state, whether it is deleted, its sequence. Pure."""
    states = _debezium if changes.format == "debezium" else _canal
    rows = _states(states(events, changes, row_schema(changes)), changes.keys)
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


def _outcome(
    kind: Column, text: Column, *, is_wanted: Column, changes_rows: Column, has_key: Column
) -> Column:
    """`kind` is the event's type; null if the body has none, or is not JSON."""
    is_other = kind.isNull() | ~F.coalesce(is_wanted, F.lit(False)) | ~changes_rows
    return (
        F.when(kind.isNull() & F.get_json_object(text, "$").isNull(), REJECTED)
        .when(is_other, FILTERED)
        .when(F.coalesce(has_key, F.lit(False)), APPLIED)
        .otherwise(REJECTED)
        .alias(OUTCOME)
    )


def _debezium_text() -> Column:
    text = F.col("body").cast("string")
    # With schemas enabled the event is nested in `payload`.
    return F.coalesce(F.get_json_object(text, "$.payload"), text)


def _read_debezium(df: DataFrame, changes: ChangeEvents, row_type: StructType) -> DataFrame:
    origin = StructType([StructField(name, StringType()) for name in ("db", "schema", "table")])
    event = StructType().add("op", StringType()).add("before", row_type).add("after", row_type)
    event = event.add("source", origin)
    parsed = df.select("*", F.from_json(_debezium_text(), event).alias(EVENT))
    row = F.when(F.col(f"{EVENT}.op") == "d", F.col(f"{EVENT}.before")).otherwise(F.col(f"{EVENT}.after"))
    outcome = _outcome(
        F.col(f"{EVENT}.op"),
        F.col("body").cast("string"),
        is_wanted=_is_of(
            changes.table, f"{EVENT}.source.table", f"{EVENT}.source.db", f"{EVENT}.source.schema"
        ),
        changes_rows=F.lit(True),
        has_key=reduce(and_, [row[name].isNotNull() for name in changes.keys]),
    )
    return parsed.select("*", outcome)


def _debezium(events: DataFrame, changes: ChangeEvents, row_type: StructType) -> DataFrame:
    return events.select(
        F.col(f"{EVENT}.before").alias(BEFORE),
        F.col(f"{EVENT}.after").alias(AFTER),
        (F.col(f"{EVENT}.op") == "d").alias(DELETED),
        _sequence(changes, _debezium_text(), position=F.lit(0)),
    )


def _read_canal(df: DataFrame, changes: ChangeEvents, row_type: StructType) -> DataFrame:
    # Canal encodes every value as text.
    rows_type = ArrayType(StructType([StructField(name, StringType()) for name in row_type.names]))
    event = StructType().add("type", StringType()).add("data", rows_type).add("old", rows_type)
    event = event.add("database", StringType()).add("table", StringType())
    text = F.col("body").cast("string")
    parsed = df.select("*", F.from_json(text, event).alias(EVENT))

    def has_key(row: Column) -> Column:
        return reduce(
            and_, [row[name].try_cast(row_type[name].dataType).isNotNull() for name in changes.keys]
        )

    kind = F.col(f"{EVENT}.type")
    outcome = _outcome(
        kind,
        text,
        is_wanted=_is_of(changes.table, f"{EVENT}.table", f"{EVENT}.database"),
        changes_rows=kind.isin(*ROW_CHANGES),
        has_key=F.exists(f"{EVENT}.data", has_key),
    )
    return parsed.select("*", outcome)


def _canal(events: DataFrame, changes: ChangeEvents, row_type: StructType) -> DataFrame:
    rows = events.select("*", F.posexplode(f"{EVENT}.data").alias("_place", "_row"))
    # `old` holds only the changed columns.
    rows = rows.withColumn("_old", F.get(f"{EVENT}.old", F.col("_place")))

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
        (F.col(f"{EVENT}.type") == "DELETE").alias(DELETED),
        _sequence(changes, F.col("body").cast("string"), position=F.col("_place")),
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
    if not has_delta(path):
        DeltaTable.create(path, wanted, mode="ignore", storage_options=storage_options(path))
        return
    table = open_delta(path)
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
    held = check_progress(source, output, checkpoint, job, application=application)
    prepare(path, schema)

    def merge_batch(df: DataFrame, number: int) -> None:
        rows = last_states(df, changes).drop(SEQUENCE).limit(MERGE_ROWS_MAX + 1).toArrow()
        if rows.num_rows > MERGE_ROWS_MAX:
            raise SettingsError(
                "maxBytesPerTrigger", f"a batch changes more than {MERGE_ROWS_MAX} keys; use a smaller value"
            )
        progress = batch_progress(checkpoint, application, number, job)
        merge(open_delta(path), rows, changes.keys, application=application, number=number, progress=progress)

    events = _observed(classified(source.read_stream(spark), changes))
    writer = events.where(F.col(OUTCOME) == APPLIED).writeStream.foreachBatch(merge_batch)
    tally = queries.ProgressTally({"cdc": held})
    summary = queries.run(
        "cdc", {"cdc": writer}, state=state, once=once, trigger=trigger, watch=watch, tally=tally
    )
    summary.counts = _counts(tally.observed.get("cdc", {}))
    summary.details = {
        "to": str(output),
        "version": open_delta(path).version(),
        **tally.examples.get("cdc", {}),
    }
    return summary


def _observed(events: DataFrame) -> DataFrame:
    outcome = F.col(OUTCOME)
    applied = F.count(F.when(outcome == APPLIED, 1)).alias(counts.WRITTEN)
    return counts.observe_source(events, outcome == REJECTED).observe(counts.WRITTEN, applied)


def _counts(observed: Mapping[str, int]) -> counts.JobCounts:
    read, written = observed.get(counts.READ, 0), observed.get(counts.WRITTEN, 0)
    known = read - observed.get(counts.REJECTED, 0)
    applied = written + observed.get(queries.HELD, 0)
    return counts.followed(read, [("rejected", known), ("filtered", applied), ("duplicates", written)])


def _identity(state: Path) -> str:
    """Unique id of a state directory: batch numbers of different states are unrelated."""
    path = state / "identity"
    if not path.exists():
        state.mkdir(parents=True, exist_ok=True)
        path.write_text(uuid.uuid4().hex)
    return path.read_text().strip()
