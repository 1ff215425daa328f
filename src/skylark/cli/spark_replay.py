"""`skylark spark replay`: from which of three places, and what a dry run shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skylark.cli import spark_launch as run
from skylark.cli.mistake import Mistake
from skylark.cli.spark_options import OriginOptions, PlaceOptions, ShowOptions, StretchOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skylark.pipelines.jobs.replay import Stretch
    from skylark.pipelines.jobs.running import Summary


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command's options say."""

    topic: str
    stretch: StretchOptions
    archive: str | None
    where: str | None
    to_topic: str
    to_namesrv: str | None
    rate: str | None
    keep_times: bool
    state: Path | None
    show: ShowOptions
    now_ms: int


def replay(wanted: Wanted, place: PlaceOptions) -> None:
    """Raises Mistake, SettingsError, RocketMQError."""
    run.session_settings(place)
    from skylark.pipelines.jobs import replay as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    target = wanted.to_namesrv or wanted.stretch.namesrv
    if not target:
        raise Mistake("messages are sent to a cluster: give --namesrv or --to-namesrv")
    output = parse_output(f"topic:{wanted.to_topic}")
    stretch = job.Stretch.parse(wanted.stretch.start, wanted.stretch.end, wanted.where, wanted.now_ms)
    read = _reader(wanted, stretch)
    if read is None:
        return
    state = wanted.state.expanduser().absolute() if wanted.state is not None else None

    def work(spark: SparkSession) -> Summary:
        return job.replay(
            spark, read(spark), output, stretch,
            namesrv=target, state=state, rate=wanted.rate, keep_times=wanted.keep_times,
        )  # fmt: skip

    run.launch(place, work)


def _reader(wanted: Wanted, stretch: Stretch) -> Callable[[SparkSession], DataFrame] | None:
    """How the messages are read; None if a plan was shown instead."""
    from skylark.pipelines.jobs import replay as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    if wanted.archive is not None:
        archive = parse_output(wanted.archive)
        files = job.archived_files(archive, wanted.topic, stretch)
        if wanted.show.dry_run:
            run.show_files(files, as_json=wanted.show.as_json)
            return None
        return lambda spark: job.read_archive(spark, archive, wanted.topic, stretch)
    namesrv = None if wanted.stretch.store is not None else wanted.stretch.namesrv
    origin = OriginOptions(namesrv=namesrv, store=wanted.stretch.store)
    source = job.source_input(run.make_input(origin, wanted.topic), stretch)
    return source.read if run.is_to_run(source, wanted.show) else None
