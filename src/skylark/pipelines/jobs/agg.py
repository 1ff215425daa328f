"""`agg`: windowed aggregates of a stream, to a table or to a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from skylark.errors import SettingsError
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.counts import (
    READ,
    REJECTED,
    WRITTEN,
    JobCounts,
    followed,
    observe_rows,
    observe_source,
)
from skylark.pipelines.jobs.endpoints import FROM_TABLE, Input, Output, check_progress, job_name, write_stream
from skylark.pipelines.jobs.etl import observe_decoded
from skylark.pipelines.jobs.etl import transform as decoded_rows
from skylark.pipelines.lake.progress import watermark_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WINDOWS_MAX = 2_000
"""Windows per batch up to which late messages are counted exactly."""
ROWS = "rows"
"""Name of the metric for written windows."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Length and slide of a window, its time column, and the watermark for late rows."""

    length: str = "1 minute"
    slide: str | None = None
    watermark: str = "2 minutes"
    time: str = "bornTimestamp"


def transform(
    df: DataFrame,
    *,
    window: Window,
    by: Sequence[str],
    metrics: Sequence[str],
    is_observed: bool = False,
) -> DataFrame:
    """One row per window and group: `windowStart`, `windowEnd`, the groups, the metrics. Pure.

    `is_observed` counts the rows. Raises SettingsError for an unknown time column.
    """
    if window.time not in df.columns:
        raise SettingsError("time", f"unknown column {window.time}; choose from {', '.join(df.columns)}")
    if not metrics:
        raise SettingsError("metrics", "no metric given; try 'count(*) as messages'")
    if is_observed:
        df = _observed(df, window)
    frame = F.window(window.time, window.length, window.slide or window.length)
    grouped = df.withWatermark(window.time, window.watermark).groupBy(frame, *[F.expr(each) for each in by])
    totals = grouped.agg(*[F.expr(each) for each in metrics])
    rest = [f"`{name}`" for name in totals.columns if name != "window"]
    return totals.select(
        F.col("window.start").alias("windowStart"), F.col("window.end").alias("windowEnd"), *rest
    )


def agg(
    spark: SparkSession,
    source: Input,
    output: Output,
    *,
    state: Path,
    window: Window,
    by: Sequence[str] = (),
    metrics: Sequence[str] = ("count(*) as messages",),
    decode: str | None = None,
    schema: str = "auto",
    once: bool,
    trigger: str = "10s",
    watch: queries.Watch | None = None,
) -> queries.JobSummary:
    """Run until the end of data, or until interrupted. Raises SettingsError, RocketMQError.

    A window is written once the watermark passes its end: with `once` the last windows stay open until the
    next run.
    """
    job = job_name("agg", source)
    if source.start == FROM_TABLE:
        raise SettingsError("from", "not supported: open windows are in the state; use it, or another table")
    checkpoint = queries.checkpoint_of(state, "agg")
    held = check_progress(source, output, checkpoint, job)
    if decode is None:
        df = observe_source(source.read_stream(spark))
    else:
        decoding = {"decode": decode, **({"decodeSchema": schema} if decode != "text" else {})}
        df = decoded_rows(observe_decoded(source.read_stream(spark, **decoding)))
    totals = transform(df, window=window, by=by, metrics=metrics, is_observed=True)
    writer = write_stream(observe_rows(totals, ROWS), output, source.namesrv, job).outputMode("append")

    def late(batch: int, ends: Any) -> int:
        # Spark drops a row when the batch before has passed the end of its window.
        limit_ms = watermark_ms(checkpoint, batch - 1)
        return sum(round(each["y"]) for each in ends or () if each["x"] <= limit_ms)

    tally = queries.ProgressTally({"agg": held}, {queries.LATE: late})
    summary = queries.run(
        "agg", {"agg": writer}, state=state, once=once, trigger=trigger, watch=watch, tally=tally
    )
    found = tally.observed.get("agg", {})
    summary.counts = _counts(found)
    summary.details = {"to": str(output), "rows": found.get(ROWS, 0), **tally.examples.get("agg", {})}
    return summary


def _observed(df: DataFrame, window: Window) -> DataFrame:
    """Count the rows that have a time, by the end of the last window that they belong to."""
    slide_ms, length_ms = (_milliseconds(text) for text in (window.slide or window.length, window.length))
    end_ms = F.floor(F.unix_millis(window.time) / slide_ms) * slide_ms + length_ms
    ends = F.histogram_numeric(end_ms, F.lit(WINDOWS_MAX)).alias(queries.LATE)
    return df.observe(WRITTEN, F.count(window.time).alias(WRITTEN), ends)


def _milliseconds(interval: str) -> Column:
    return F.unix_millis(F.timestamp_millis(F.lit(0)) + F.expr(f"interval {interval}"))


def _counts(observed: Mapping[str, int]) -> JobCounts:
    """Written are the messages that were counted in windows; late ones, and those without a time, are not."""
    read, held = observed.get(READ, 0), observed.get(queries.HELD, 0)
    decoded = read - observed.get(REJECTED, 0)
    in_time = observed.get(WRITTEN, 0) + held - observed.get(queries.LATE, 0)
    return followed(read, [("rejected", decoded), ("filtered", in_time), ("duplicates", in_time - held)])
