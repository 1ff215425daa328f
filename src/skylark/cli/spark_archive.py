"""`skylark spark archive`: checked, started, swept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skylark.cli import spark_jobs as run
from skylark.cli.errors import UsageError
from skylark.cli.output import print_json
from skylark.cli.spark_jobs import SparkSessionOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skylark.pipelines.jobs.archive import Upkeep
    from skylark.pipelines.jobs.endpoints import Output
    from skylark.pipelines.jobs.queries import JobSummary


def upkeep(compact_every: str | None, keep_days: int | None) -> Upkeep:
    """Raises Mistake."""
    from skylark.pipelines.jobs.archive import Upkeep  # noqa: PLC0415
    from skylark.pipelines.options import parse_duration_ms  # noqa: PLC0415

    try:
        every_s = parse_duration_ms(compact_every) / 1000 if compact_every else None
    except ValueError as error:
        raise UsageError(f"--compact-every: {error}") from None
    return Upkeep(compact_every_s=every_s, keep_days=keep_days)


def sweep(output: Output, older_than_hours: int, *, dry_run: bool) -> None:
    """Raises SettingsError."""
    from skylark.pipelines.jobs.archive import sweep  # noqa: PLC0415

    print_json(sweep(output, older_than_hours, dry_run=dry_run))


def launch(place: SparkSessionOptions, pipeline: run.Pipeline, wanted: Upkeep, *, trigger: str) -> None:
    """Raises SettingsError, RocketMQError."""
    from skylark.pipelines.jobs.archive import archive, options  # noqa: PLC0415

    options(pipeline.source, pipeline.output, wanted)

    def work(spark: SparkSession) -> JobSummary:
        return archive(
            spark, pipeline.source, pipeline.output,
            state=pipeline.state, once=pipeline.run.once, trigger=trigger, upkeep=wanted, watch=run.watcher(),
        )  # fmt: skip

    pipeline.launch(place, work)
