"""`agg`: windowed aggregates of a stream, to a table or to a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from skylark.errors import SettingsError
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.endpoints import FROM_TABLE, Input, Output, check_progress, job_name, write_stream
from skylark.pipelines.jobs.etl import transform as decoded_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Window:
    """Length and slide of a window, its time column, and the watermark for late rows."""

    length: str = "1 minute"
    slide: str | None = None
    watermark: str = "2 minutes"
    time: str = "bornTimestamp"


def transform(df: DataFrame, *, window: Window, by: Sequence[str], metrics: Sequence[str]) -> DataFrame:
    """One row per window and group: `windowStart`, `windowEnd`, the groups, the metrics. Pure.

    Raises SettingsError for an unknown time column.
    """
    if window.time not in df.columns:
        raise SettingsError("time", f"unknown column {window.time}; choose from {', '.join(df.columns)}")
    if not metrics:
        raise SettingsError("metrics", "no metric given; try 'count(*) as messages'")
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
    check_progress(source, output, queries.checkpoint_of(state, "agg"), job)
    if decode is None:
        df = source.read_stream(spark)
    else:
        decoding = {"decode": decode, **({"decodeSchema": schema} if decode == "json" else {})}
        df = decoded_rows(source.read_stream(spark, **decoding))
    totals = transform(df, window=window, by=by, metrics=metrics)
    writer = write_stream(totals, output, source.namesrv, job).outputMode("append")
    summary = queries.run("agg", {"agg": writer}, state=state, once=once, trigger=trigger, watch=watch)
    summary.details = {"to": str(output)}
    return summary
