"""`skylark spark`: pipelines over topics. The commands' options; the work is done in `pipelines.jobs`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import spark_dlq
from skylark.cli.mistake import Mistake
from skylark.cli.option_groups import grouped
from skylark.cli.options import pairs
from skylark.cli.spark_options import (
    ColumnsOption,
    DecodeIfOption,
    DecodeOption,
    NamesrvOption,
    OutputOption,
    PlaceOptions,
    RateOption,
    RejectsOption,
    RunOptions,
    SchemaOption,
    ShowOptions,
    StateOption,
    StreamOptions,
    StretchOptions,
    TopicOption,
    TriggerOption,
    WhereOption,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skylark.pipelines.jobs.running import Summary

app = typer.Typer(
    no_args_is_help=True,
    help="Spark pipelines: archive, transform, aggregate, replay, report. Each runs with --once to the end of"
    " what is there, or until Ctrl-C, and goes on where it stopped.",
)
app.add_typer(spark_dlq.app, name="dlq")


@app.command()
@grouped
def archive(
    *,
    stream: StreamOptions,
    to: OutputOption,
    partition_by: Annotated[
        str, typer.Option("--partition-by", help="dt (day stored, UTC), topic, brokerName, queueId.")
    ] = "dt,topic",
    columns: ColumnsOption = None,
    dedup: Annotated[
        int | None, typer.Option("--dedup", help="Drop messages whose unique key is among the last so many.")
    ] = None,
    compact_every: Annotated[
        str | None, typer.Option("--compact-every", help="Join small files so often, as in 1h.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep-days", help="At the end, forget days older than this.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Only remove files that belong to nothing, and older than 24 h.")
    ] = False,
    sweep_after: Annotated[
        int, typer.Option("--sweep-after-hours", help="How old those files must be.")
    ] = 24,
    trigger: TriggerOption = "30s",
    run: RunOptions,
    place: PlaceOptions,
) -> None:
    """Topics to a Delta table or Parquet files, every message once.

    Examples: skylark spark archive -n 127.0.0.1:9876 -t 'orders,pay_.*' --to delta:lake/raw --once

    skylark spark archive --store ~/store -t orders --from -7d --to parquet:out --once
    """
    from skylark.cli import spark_launch  # noqa: PLC0415

    source = spark_launch.stream_input(stream)
    from skylark.cli import spark_archive  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    dedup_keys = str(dedup) if dedup is not None else None
    output = parse_output(to, partitionBy=partition_by, columns=columns, dedupKeys=dedup_keys)
    if sweep:
        spark_archive.sweep(output, sweep_after, dry_run=run.dry_run)
        return
    upkeep = spark_archive.upkeep(compact_every, keep)
    pipeline = spark_launch.Pipeline("archive", "archive", stream, run, source, output)
    spark_archive.launch(place, pipeline, upkeep, trigger=trigger)


@app.command()
@grouped
def etl(
    *,
    stream: StreamOptions,
    to: OutputOption,
    decode: DecodeOption = "json",
    schema: SchemaOption = "auto",
    select: Annotated[
        list[str] | None, typer.Option("--select", help="Column or expression; several times.")
    ] = None,
    where: WhereOption = None,
    rejects: RejectsOption = None,
    partition_by: Annotated[str | None, typer.Option("--partition-by", help="Columns of a table.")] = None,
    trigger: TriggerOption = "10s",
    run: RunOptions,
    place: PlaceOptions,
) -> None:
    """Decode bodies, select, filter, and write rows to a table or a topic; bad bodies are put aside.

    Example: skylark spark etl -n 127.0.0.1:9876 -t orders --where 'amount > 0' --to delta:lake/orders
    --rejects topic:orders_rejects --once
    """
    from skylark.cli import spark_launch  # noqa: PLC0415

    source = spark_launch.stream_input(stream)
    from skylark.pipelines.jobs import etl as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    output = parse_output(to, partitionBy=partition_by)
    aside = parse_output(rejects) if rejects is not None else None
    pipeline = spark_launch.Pipeline("etl", "rows", stream, run, source, output)

    def work(spark: SparkSession) -> Summary:
        return job.etl(
            spark, source, output,
            state=pipeline.state, decode=decode, schema=schema, select=select or (), where=where,
            rejects=aside, once=run.once, trigger=trigger, watch=spark_launch.watcher(),
        )  # fmt: skip

    pipeline.launch(place, work)


@app.command()
@grouped
def cdc(
    *,
    stream: StreamOptions,
    to: OutputOption,
    keys: Annotated[str, typer.Option("--keys", help="Columns that identify a row, comma-separated.")],
    schema: Annotated[
        str, typer.Option("--schema", help="DDL of the table, as in 'id bigint, name string'.")
    ],
    event_format: Annotated[str, typer.Option("--format", help="debezium or canal.")] = "debezium",
    sequence: Annotated[
        str | None,
        typer.Option("--sequence", help="Fields of the event that order changes, as in source.ts_ms."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Only events of this table: users, or shop.users.")
    ] = None,
    trigger: TriggerOption = "10s",
    run: RunOptions,
    place: PlaceOptions,
) -> None:
    """Change events of a database (Debezium, Canal) to a Delta table that follows it.

    Example: skylark spark cdc -n 127.0.0.1:9876 -t db_users --keys id --schema 'id bigint, name string'
    --to delta:lake/users --once
    """
    from skylark.cli import spark_launch  # noqa: PLC0415

    source = spark_launch.stream_input(stream)
    from skylark.pipelines.jobs import cdc as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    output = parse_output(to)
    job.check_output(output)
    changes = job.Changes(
        format=event_format,
        keys=[name.strip() for name in keys.split(",") if name.strip()],
        schema=schema,
        sequence=[name.strip() for name in (sequence or "").split(",") if name.strip()],
        table=table,
    )
    pipeline = spark_launch.Pipeline("cdc", "cdc", stream, run, source, output)

    def work(spark: SparkSession) -> Summary:
        return job.cdc(
            spark, source, output,
            state=pipeline.state, changes=changes, once=run.once, trigger=trigger,
            watch=spark_launch.watcher(),
        )  # fmt: skip

    pipeline.launch(place, work)


@app.command()
@grouped
def agg(
    *,
    stream: StreamOptions,
    to: OutputOption,
    window: Annotated[
        str, typer.Option("--window", help="Length of a window, as in '1 minute'.")
    ] = "1 minute",
    slide: Annotated[str | None, typer.Option("--slide", help="A new window so often.")] = None,
    watermark: Annotated[
        str, typer.Option("--watermark", help="How long latecomers are waited for.")
    ] = "2 minutes",
    time_column: Annotated[str, typer.Option("--time", help="The column of event time.")] = "bornTimestamp",
    by: Annotated[list[str] | None, typer.Option("--by", help="Column or expression; several times.")] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", help="As in 'sum(amount) as total'; several times.")
    ] = None,
    decode: DecodeIfOption = None,
    schema: SchemaOption = "auto",
    trigger: TriggerOption = "10s",
    run: RunOptions,
    place: PlaceOptions,
) -> None:
    """Windowed aggregates of a stream, to a table or to a topic.

    Example: skylark spark agg -n 127.0.0.1:9876 -t orders --window '1 minute' --by tags
    --metric 'count(*) as orders' --to topic:orders_per_minute
    """
    from skylark.cli import spark_launch  # noqa: PLC0415

    source = spark_launch.stream_input(stream)
    from skylark.pipelines.jobs import agg as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415

    output = parse_output(to)
    frame = job.Window(length=window, slide=slide, watermark=watermark, time=time_column)
    pipeline = spark_launch.Pipeline("agg", "agg", stream, run, source, output)

    def work(spark: SparkSession) -> Summary:
        return job.agg(
            spark, source, output,
            state=pipeline.state, window=frame, by=by or (), metrics=metrics or ("count(*) as messages",),
            decode=decode, schema=schema, once=run.once, trigger=trigger, watch=spark_launch.watcher(),
        )  # fmt: skip

    pipeline.launch(place, work)


@app.command()
@grouped
def replay(
    *,
    topic: TopicOption,
    stretch: StretchOptions,
    archived: Annotated[
        str | None, typer.Option("--archive", help="Read from an archive: delta:DIR or parquet:DIR.")
    ] = None,
    where: WhereOption = None,
    to_topic: Annotated[str, typer.Option("--to-topic", help="Where messages are sent.")],
    to_namesrv: Annotated[
        str | None, typer.Option("--to-namesrv", help="Name servers of the target, if others.")
    ] = None,
    rate: RateOption = None,
    keep_times: Annotated[
        bool, typer.Option("--keep-times", help="Send the original time of birth.")
    ] = False,
    state: StateOption = None,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """Messages of a stretch of time to a topic again: from brokers, store files or an archive.

    Example: skylark spark replay -n 127.0.0.1:9876 --archive delta:lake/raw -t orders
    --from '2026-11-01 08:00' --to '2026-11-01 09:00' --to-topic orders_replay --rate 5000/s
    """
    from skylark.cli import spark_replay  # noqa: PLC0415

    spark_replay.replay(
        spark_replay.Wanted(
            topic=topic, stretch=stretch, archive=archived, where=where, to_topic=to_topic,
            to_namesrv=to_namesrv, rate=rate, keep_times=keep_times, state=state, show=show,
            now_ms=time.time_ns() // 1_000_000,
        ),
        place,
    )  # fmt: skip


@app.command()
@grouped
def sql(
    *,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Topics are views of their name.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Topics to query.")] = None,
    stretch: StretchOptions,
    archived: Annotated[
        list[str] | None, typer.Option("--archive", help="NAME=delta:DIR, a view of that name.")
    ] = None,
    decode: DecodeIfOption = None,
    schema: SchemaOption = "auto",
    limit: Annotated[int, typer.Option("--limit", help="At most so many rows.")] = 1000,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """A query over topics, store files and archives.

    Example: skylark spark sql "select tags, count(*) from orders group by tags" -n 127.0.0.1:9876 -t orders
    """
    from skylark.cli import spark_launch  # noqa: PLC0415

    source = spark_launch.make_input(stretch, topic, end=stretch.end) if topic else None
    if source is None and not archived:
        raise Mistake("give --topic with --namesrv or --store, or --archive NAME=delta:DIR")
    spark_launch.session_settings(place)
    from skylark.pipelines.jobs import sql as job  # noqa: PLC0415
    from skylark.pipelines.jobs.places import parse_output  # noqa: PLC0415
    from skylark.pipelines.jobs.replay import Stretch, archived_files  # noqa: PLC0415

    named = pairs(archived, "--archive")
    archives = {name: parse_output(where) for name, where in named.items()}
    files = [file for each in archives.values() for file in archived_files(each, None, Stretch())]
    if source is not None and not spark_launch.is_to_run(source, show):
        return
    if show.dry_run:
        spark_launch.show_files(files, as_json=show.as_json)
        return

    def work(spark: SparkSession) -> None:
        found = job.query(spark, query, source=source, archives=archives, decode=decode, schema=schema)
        spark_launch.show_rows(found, limit=limit, as_json=show.as_json)

    spark_launch.launch(place, work)


@app.command()
@grouped
def report(
    *,
    kinds: Annotated[
        list[str] | None, typer.Argument(help="lag, sizes, traffic, keys, duplicates, latency; all if none.")
    ] = None,
    topic: TopicOption,
    stretch: StretchOptions,
    group: Annotated[list[str] | None, typer.Option("--group", help="For lag; several times.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page.")] = None,
    show: ShowOptions,
    place: PlaceOptions,
) -> None:
    """Lag, sizes, traffic, keys, duplicates and latency of topics, as tables and as a page with charts.

    Example: skylark spark report -n 127.0.0.1:9876 -t orders --html orders.html
    """
    from skylark.cli import spark_launch, spark_report  # noqa: PLC0415

    source = spark_launch.make_input(stretch, topic, end=stretch.end)
    wanted = spark_report.check_kinds(kinds or ())
    spark_report.check_page(html)
    if spark_launch.is_to_run(source, show):
        spark_report.show(source, wanted, group or (), html, place, as_json=show.as_json)


@app.command(name="run")
@grouped
def run_file(
    *,
    pipeline: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, as YAML.")],
    namesrv: NamesrvOption = None,
    run: RunOptions,
    place: PlaceOptions,
) -> None:
    """A pipeline of your own: source, steps, quality rules, sinks and rejects from a file.

    Example: skylark spark run pipeline.yml --once
    """
    from skylark.cli import spark_launch  # noqa: PLC0415

    spark_launch.session_settings(place)
    from skylark.pipelines.jobs import run as job  # noqa: PLC0415
    from skylark.pipelines.jobs.pipeline_file import load_pipeline  # noqa: PLC0415
    from skylark.pipelines.jobs.places import state_directory  # noqa: PLC0415

    loaded = load_pipeline(pipeline)
    source = job.source_of(loaded, namesrv)
    outputs = job.outputs_of(loaded)
    state = state_directory(run.state, "run", loaded.name, pipeline.absolute())
    if not spark_launch.is_to_run(source, run, state=state, query=next(iter(outputs))):
        return

    def work(spark: SparkSession) -> Summary:
        return job.run_pipeline(
            spark, loaded, namesrv=namesrv, state=state, once=run.once, watch=spark_launch.watcher()
        )

    spark_launch.launch(place, work, source)
