"""`archive`: topics to a Delta table or Parquet files, every message once, bypassing the JVM."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F

from skylark.errors import RocketMQError, SettingsError
from skylark.model.archived_topics import ArchivedTopics
from skylark.pipelines.cluster_client import shared_client
from skylark.pipelines.jobs import queries
from skylark.pipelines.jobs.counts import READ, JobCounts
from skylark.pipelines.jobs.endpoints import (
    Input,
    Output,
    check_progress,
    from_table,
    job_name,
    table_options,
)
from skylark.pipelines.lake import table_sink
from skylark.pipelines.lake.delta_log import has_delta
from skylark.pipelines.lake.parquet_files import DATE
from skylark.pipelines.lake.progress import read_checkpoint
from skylark.pipelines.lake.table_log import BatchName, TableLog
from skylark.pipelines.offsets import split_names
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.registered_rules import RegisteredRules
from skylark.pipelines.schema import COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_BYTES_PER_TRIGGER = "1GB"
"""Large, as batches are not held in memory and small batches make small files."""
PARTITION_BY = "dt,topic"


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """Maintenance of the archive: compaction and retention."""

    compact_every_s: float | None = None
    keep_days: int | None = None

    def __post_init__(self) -> None:
        if self.keep_days is not None and self.keep_days < 0:
            raise SettingsError("keep", f"invalid number of days {self.keep_days}; use 0 or more")


def options(source: Input, output: Output, upkeep: Upkeep) -> dict[str, str]:
    """The sink's options. Raises SettingsError for everything that can be checked before the start."""
    _check_table(output)
    columns = output.options.get("columns") or ",".join(COLUMNS)
    partition_by = output.options.get("partitionBy", PARTITION_BY)
    for name, chosen, known in (
        ("columns", columns, COLUMNS),
        ("partitionBy", partition_by, [DATE, *COLUMNS]),
    ):
        if unknown := [column for column in table_sink.NAMES.parse(chosen) if column not in known]:
            raise SettingsError(name, f"unknown column {', '.join(unknown)}; choose from {', '.join(known)}")
    if upkeep.compact_every_s is not None and output.kind != "delta":
        raise SettingsError(
            "compact", f"not supported for {output}; only Delta tables are compacted while they are read"
        )
    if upkeep.keep_days is not None and DATE not in table_sink.NAMES.parse(partition_by):
        raise SettingsError("keep", f"the archive is not partitioned by {DATE}; add it to --partition-by")
    sink = table_options(
        output,
        columns=columns,
        partitionBy=partition_by,
        runId=uuid.uuid4().hex[:12],
        source=msgspec.json.encode(source_options(source)).decode(),
    )
    table_sink.read_options(sink)
    return sink


def _check_table(output: Output) -> None:
    if not output.is_table:
        raise SettingsError("to", f"invalid output {output}; use delta:DIR or parquet:DIR")


def source_options(source: Input) -> dict[str, str]:
    """Source options of the stream of ranges and of the tasks that read them."""
    return {"maxBytesPerTrigger": MAX_BYTES_PER_TRIGGER, **source.source_options(is_stream=True)}


def tasks_at_once(spark: SparkSession) -> dict[str, str]:
    """The source's option `tasksAtOnce`; unknown to a Connect client."""
    context = getattr(spark, "sparkContext", None)
    return {"tasksAtOnce": str(context.defaultParallelism)} if context is not None else {}


def rules_keeper(source: Input) -> Callable[[], None]:
    """A function that registers the source's topics with brokers, if they get its progress: call it often.

    Raises SettingsError for patterns that brokers refuse.
    """
    options = load(SourceOptions, source_options(source))
    if options.namesrv is None or options.group_id is None or not options.commit_offsets:
        return lambda: None
    cluster = shared_client(
        options.namesrv, options.request_timeout_ms / 1000, 0.0, options.credentials, options.tls_settings
    )
    archived = ArchivedTopics(topics=tuple(split_names(source.topic)))
    rules = RegisteredRules(cluster, options.group_id, archived)

    def keep() -> None:
        with contextlib.suppress(RocketMQError):  # the query repeats its own requests, and fails if it must
            rules.keep()

    return keep


def archive(
    spark: SparkSession,
    source: Input,
    output: Output,
    *,
    state: Path,
    once: bool,
    trigger: str = "30s",
    upkeep: Upkeep | None = None,
    sink: Mapping[str, str] | None = None,
    watch: queries.Watch | None = None,
) -> queries.JobSummary:
    """Archive until the end of data, or until interrupted. Raises SettingsError, RocketMQError.

    `sink` is what `options` returned, if it was called before Spark was started.
    """
    upkeep = upkeep or Upkeep()
    job = job_name("archive", source)
    source = from_table(source, output, job)
    sink = {**(sink or options(source, output, upkeep)), "job": job}
    settings = table_sink.read_options(sink)
    checkpoint = queries.checkpoint_of(state, "archive")
    held = check_progress(source, output, checkpoint, job)
    table_sink.prepare(settings, spark_schema(COLUMNS))
    keep_rules = rules_keeper(source)
    keep_rules()
    before = settings.log().facts()
    committed = read_checkpoint(checkpoint).committed
    planning = {**tasks_at_once(spark), **source_options(source), "mode": "ranges"}
    ranges = spark.readStream.format("rocketmq").options(**planning).load()
    # A range stands for several messages.
    counted = ranges.observe(READ, F.sum("messages").alias(READ))
    writer = counted.writeStream.format(table_sink.FORMAT).options(**sink)
    last_compaction = time.monotonic()

    def now_and_then() -> None:
        nonlocal last_compaction
        keep_rules()
        every_s = upkeep.compact_every_s
        if every_s is not None and time.monotonic() - last_compaction >= every_s:
            settings.log().compact()
            last_compaction = time.monotonic()

    summary = queries.run(
        "archive",
        {"archive": writer},
        state=state,
        once=once,
        trigger=trigger,
        watch=watch,
        now_and_then=now_and_then,
    )
    after = settings.log().facts()
    details: dict[str, Any] = {
        "to": str(output),
        "files": after.files - before.files,
        "bytes": after.bytes - before.bytes,
    }
    summary.counts = _counts(settings.log(), checkpoint, committed, held)
    if upkeep.compact_every_s is not None:
        details["compacted"] = settings.log().compact()
    if upkeep.keep_days is not None:
        details["files_expired"] = settings.log().keep_days(upkeep.keep_days, datetime.now(UTC))
    summary.details = details
    return summary


def _counts(log: TableLog, checkpoint: Path, committed: int | None, held: int | None) -> JobCounts:
    """What the table has recorded of the batches after `committed`."""
    query = read_checkpoint(checkpoint).query
    if query is None:
        return JobCounts()
    counts = JobCounts()
    for commit in log.commits(BatchName(query, 0).application):
        if committed is not None and commit.batch <= committed:
            continue
        written = 0 if commit.batch == held else commit.written
        counts.read += commit.read
        counts.written += written
        counts.duplicates += commit.read - written
    return counts


def sweep(output: Output, older_than_hours: int, *, dry_run: bool) -> queries.JobSummary:
    """Delete uncommitted files, left by failed, repeated and speculative tasks.

    Raises SettingsError.
    """
    _check_table(output)
    if output.kind == "delta" and not has_delta(output.where):
        raise SettingsError("to", f"no Delta table in {output.where}")
    started = time.monotonic()
    removed = table_sink.read_options(table_options(output)).log().sweep(older_than_hours, dry_run=dry_run)
    return queries.JobSummary(
        pipeline="archive",
        status="would sweep" if dry_run else "swept",
        seconds=round(time.monotonic() - started, 2),
        details={"to": str(output), "files": removed},
    )
