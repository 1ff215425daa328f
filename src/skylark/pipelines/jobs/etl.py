"""`etl`: decodes bodies, selects and filters rows; bodies that do not decode go to the rejects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from skylark.arrow.columns import REJECTS, VALUE
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.counts import (
    READ,
    REJECTED,
    WRITTEN,
    JobCounts,
    followed,
    observe_rows,
    observe_source,
    place,
)
from skylark.pipelines.jobs.endpoints import Input, Output, check_progress, from_table, job_name, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN = ("topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "bornTimestamp", "storeTimestamp")
"""Message columns kept beside the body's fields; a field of the same name replaces them."""


REJECTED_FROM = "REJECTED_FROM"
PASSED = "passed"
"""Name of the metric for rows that match `where`."""


def transform(df: DataFrame, *, select: Sequence[str] = (), where: str | None = None) -> DataFrame:
    """The fields of decoded bodies as columns, after the message columns. Pure."""
    decoded = df.where(f"{REJECTS} is null")
    fields = df.select(f"{VALUE}.*").columns if df.schema[VALUE].dataType.typeName() == "struct" else []
    values = [f"{VALUE}.`{name}`" for name in fields] or [VALUE]
    taken = {name.lower() for name in fields}  # Spark's column names ignore case
    origin = [name for name in ORIGIN if name in df.columns and name.lower() not in taken]
    flat = decoded.select(*origin, *values)
    filtered = flat.where(where) if where else flat
    return filtered.selectExpr(*select) if select else filtered


def rejected(df: DataFrame) -> DataFrame:
    """Messages whose bodies do not decode, with their origin as a property. Pure."""
    return df.where(f"{REJECTS} is not null").select(
        *ORIGIN,
        F.col(REJECTS).alias("body"),
        F.map_concat(
            # Drops the property of an earlier rejection.
            F.map_filter("properties", lambda name, _: name != REJECTED_FROM),
            F.create_map(F.lit(REJECTED_FROM), place()),
        ).alias("properties"),
    )


def etl(
    spark: SparkSession,
    source: Input,
    output: Output,
    *,
    state: Path,
    decode: str = "json",
    schema: str = "auto",
    select: Sequence[str] = (),
    where: str | None = None,
    rejects: Output | None = None,
    once: bool,
    trigger: str = "10s",
    watch: queries.Watch | None = None,
) -> queries.JobSummary:
    """Run until the end of data, or until interrupted. Raises SettingsError, RocketMQError."""
    job = job_name("etl", source, where)
    source = from_table(source, output, job)
    outputs = {"rows": (output, job)}
    if rejects is not None:
        outputs["rejects"] = (rejects, f"{job} rejects")
    held = {
        query: check_progress(source, where_to, queries.checkpoint_of(state, query), name)
        for query, (where_to, name) in outputs.items()
    }
    decoding = {"decode": decode, **({"decodeSchema": schema} if decode != "text" else {})}
    df = source.read_stream(spark, **decoding)
    passed = observe_rows(transform(observe_decoded(df), where=where), PASSED)
    selected = passed.selectExpr(*select) if select else passed
    rows = {"rows": observe_rows(selected, WRITTEN), "rejects": rejected(df)}
    writers = {
        query: write_stream(rows[query], where_to, source.namesrv, name)
        for query, (where_to, name) in outputs.items()
    }
    tally = queries.ProgressTally(held)
    summary = queries.run("etl", writers, state=state, once=once, trigger=trigger, watch=watch, tally=tally)
    summary.counts = counts_of(tally.observed.get("rows", {}))
    summary.details = {
        "to": str(output),
        "rejects": str(rejects) if rejects is not None else "dropped",
        **tally.examples.get("rows", {}),
    }
    return summary


def observe_decoded(df: DataFrame) -> DataFrame:
    """Count the messages, and those whose bodies do not decode."""
    return observe_source(df, F.col(REJECTS).isNotNull())


def counts_of(observed: Mapping[str, int]) -> JobCounts:
    """The counts of the query of rows."""
    read, held = observed.get(READ, 0), observed.get(queries.HELD, 0)
    decoded, written = read - observed.get(REJECTED, 0), observed.get(WRITTEN, 0)
    return followed(
        read,
        [
            ("rejected", decoded),
            ("filtered", observed.get(PASSED, 0)),
            ("filtered", written + held),
            ("duplicates", written),
        ],
    )
