"""`skylark spark`: pipelines over topics, store files and archives; the work is in `pipelines.jobs`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import spark_jobs as run
from skylark.cli.errors import UsageError
from skylark.cli.options import grouped, pairs
from skylark.cli.output import Screen, print_json
from skylark.cli.spark_jobs import (
    ColumnsOption,
    DecodeIfOption,
    DecodeOption,
    NamesrvOption,
    OriginOptions,
    OutputOption,
    RateOption,
    RejectsOption,
    RunOptions,
    SchemaOption,
    ShowOptions,
    SparkSessionOptions,
    StateOption,
    StreamOptions,
    StretchOptions,
    TopicOption,
    TriggerOption,
    WhereOption,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skylark.pipelines.jobs.dlq import Edit
    from skylark.pipelines.jobs.endpoints import Input
    from skylark.pipelines.jobs.queries import JobSummary
    from skylark.pipelines.jobs.replay import ReplayRange

dlq_app = typer.Typer(no_args_is_help=True, help="Dead letters of consumer groups.")

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
LimitOption = Annotated[int, typer.Option("--limit", help="At most so many.")]
SHOWN = ("originTopic", "originId", "keys", "tags", "reconsumeTimes", "storeTimestamp", "text")


@dlq_app.command(name="list")
@grouped
def list_dead_letters(
    *,
    origin: OriginOptions,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """By group and topic: how many dead letters, since when, until when.

    Example: skylark spark dlq list -n 127.0.0.1:9876
    """
    from skylark.cli import spark_jobs as run  # noqa: PLC0415

    source = run.make_input(origin, "%DLQ%.*")
    if not run.is_to_run(source, show):
        return
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415

    def work(spark: SparkSession) -> None:
        found = job.overview(job.transform(source.read(spark)))
        run.show_rows(found, limit=1000, as_json=show.as_json)

    run.launch(place, work)


@dlq_app.command(name="show")
@grouped
def show_dead_letters(
    *,
    group: GroupArgument,
    origin: OriginOptions,
    where: WhereOption = None,
    limit: LimitOption = 100,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Dead letters of a group, those that --where picks.

    Example: skylark spark dlq show billing -n 127.0.0.1:9876 --where "text like '%timeout%'"
    """
    from skylark.cli import spark_jobs as run  # noqa: PLC0415

    source = run.make_input(origin, f"%DLQ%{group}")
    if not run.is_to_run(source, show):
        return
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415

    def work(spark: SparkSession) -> None:
        letters = job.chosen(job.transform(source.read(spark)), where)
        run.show_rows(letters.orderBy("storeTimestamp").select(*SHOWN), limit=limit, as_json=show.as_json)

    run.launch(place, work)


@dlq_app.command()
@grouped
def export(
    *,
    group: GroupArgument,
    to: OutputOption,
    origin: OriginOptions,
    where: WhereOption = None,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Dead letters of a group to a table, or to another topic.

    Example: skylark spark dlq export billing -n 127.0.0.1:9876 --to delta:lake/dead
    """
    from skylark.cli import spark_jobs as run  # noqa: PLC0415

    source = run.make_input(origin, f"%DLQ%{group}")
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    output = parse_output(to)
    if not run.is_to_run(source, show):
        return

    def work(spark: SparkSession) -> JobSummary:
        return job.export(spark, source, output, where)

    run.launch(place, work)


@dlq_app.command()
@grouped
def resend(
    *,
    group: GroupArgument,
    namesrv: NamesrvOption = None,
    where: WhereOption = None,
    to: Annotated[str, typer.Option("--to", help="original, or the name of a topic.")] = "original",
    rate: RateOption = None,
    edit: Annotated[
        str | None, typer.Option("--edit", metavar="FILE.py:NAME", help="A function DataFrame -> DataFrame.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also those that were sent again before.")] = False,
    audit: Annotated[
        Path | None,
        typer.Option(
            "--audit", metavar="DIR", help="Delta table of what was sent; in the state if not given."
        ),
    ] = None,
    state: StateOption = None,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Send chosen dead letters again, each once, and write each down.

    Example: skylark spark dlq resend billing -n 127.0.0.1:9876 --where "keys = 'order-7'" --rate 200/s
    """
    from skylark.cli import spark_jobs as run  # noqa: PLC0415

    source = run.make_input(OriginOptions(namesrv=namesrv), f"%DLQ%{group}")
    run.check_source(source)
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output, state_directory  # noqa: PLC0415

    directory = state_directory(state, "dlq", group, namesrv)
    book = parse_output(f"delta:{(audit or directory / 'audit').expanduser().absolute()}")
    wanted = job.Resend(where=where, to=to, rate=rate, edit=_edit(edit), again=again)

    def work(spark: SparkSession) -> JobSummary | None:
        if show.dry_run:
            letters = job.pending(spark, source, group, wanted, book)
            run.show_rows(letters.select(*SHOWN), limit=1000, as_json=show.as_json)
            return None
        return job.resend(spark, source, group, wanted, state=directory, audit=book)

    run.launch(place, work)


def _edit(text: str | None) -> Edit | None:
    if text is None:
        return None
    from skylark.pipelines.jobs.run import function_from  # noqa: PLC0415

    name, colon, function = text.rpartition(":")
    if not colon:
        raise UsageError(f"--edit {text}: write FILE.py:NAME")
    return function_from(Path(name).expanduser().absolute(), function)


@dataclass(frozen=True, kw_only=True)
class ReplayArguments:
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


def run_replay(wanted: ReplayArguments, place: SparkSessionOptions) -> None:
    """Raises Mistake, SettingsError, RocketMQError."""
    run.session_settings(place)
    from skylark.pipelines.jobs import replay as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    target = wanted.to_namesrv or wanted.stretch.namesrv
    if not target:
        raise UsageError("messages are sent to a cluster: give --namesrv or --to-namesrv")
    output = parse_output(f"topic:{wanted.to_topic}")
    stretch = job.ReplayRange.parse(wanted.stretch.start, wanted.stretch.end, wanted.where, wanted.now_ms)
    read = _replay_reader(wanted, stretch)
    if read is None:
        return
    state = wanted.state.expanduser().absolute() if wanted.state is not None else None

    def work(spark: SparkSession) -> JobSummary:
        return job.replay(
            spark, read(spark), output, stretch,
            namesrv=target, state=state, rate=wanted.rate, keep_times=wanted.keep_times,
        )  # fmt: skip

    run.launch(place, work)


def _replay_reader(
    wanted: ReplayArguments, stretch: ReplayRange
) -> Callable[[SparkSession], DataFrame] | None:
    """How the messages are read; None if a plan was shown instead."""
    from skylark.pipelines.jobs import replay as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

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


def check_report_kinds(kinds: Sequence[str]) -> Sequence[str]:
    """All, unless some are named. Raises Mistake."""
    from skylark.pipelines.jobs.report import NAMES  # noqa: PLC0415

    if unknown := [kind for kind in kinds if kind not in NAMES]:
        raise UsageError(f"there is no report {unknown[0]!r}; there are {', '.join(NAMES)}")
    return kinds or NAMES


def check_report_page(html: Path | None) -> None:
    """Raise Mistake, before the work, if the page could not be written after it."""
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise UsageError(f"--html {html}: give a file in a directory that is there")


def show_report(
    source: Input,
    kinds: Sequence[str],
    groups: Sequence[str],
    html: Path | None,
    place: SparkSessionOptions,
    *,
    as_json: bool,
) -> None:
    """Make the report and print or write it."""
    from skylark.html_report import render  # noqa: PLC0415
    from skylark.pipelines.jobs.report import report  # noqa: PLC0415

    def work(spark: SparkSession) -> None:
        made = report(spark, source, kinds=kinds, groups=groups)
        if html is not None:
            html.write_text(render(made))
            print_json({"pipeline": "report", "html": str(html), "sections": [s.name for s in made.sections]})
        elif as_json:
            print_json(made)
        else:
            screen = Screen()
            for section in made.sections:
                screen.line()
                screen.line(section.title, "bold")
                screen.table(section.columns, [[run.short(cell) for cell in row] for row in section.rows])
                if section.note:
                    screen.line(section.note)

    run.launch(place, work)


app = typer.Typer(
    no_args_is_help=True,
    help="Spark pipelines: archive, transform, aggregate, replay, report. Each runs with --once to the end of"
    " what is there, or until Ctrl-C, and goes on where it stopped.",
)
app.add_typer(dlq_app, name="dlq")


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
    place: SparkSessionOptions,
) -> None:
    """Topics to a Delta table or Parquet files, every message once.

    Examples: skylark spark archive -n 127.0.0.1:9876 -t 'orders,pay_.*' --to delta:lake/raw --once

    skylark spark archive --store ~/store -t orders --from -7d --to parquet:out --once
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    source = spark_jobs.stream_input(stream)
    from skylark.cli import spark_archive  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    dedup_keys = str(dedup) if dedup is not None else None
    output = parse_output(to, partitionBy=partition_by, columns=columns, dedupKeys=dedup_keys)
    if sweep:
        spark_archive.sweep(output, sweep_after, dry_run=run.dry_run)
        return
    upkeep = spark_archive.upkeep(compact_every, keep)
    pipeline = spark_jobs.Pipeline("archive", "archive", stream, run, source, output)
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
    place: SparkSessionOptions,
) -> None:
    """Decode bodies, select, filter, and write rows to a table or a topic; bad bodies are put aside.

    Example: skylark spark etl -n 127.0.0.1:9876 -t orders --where 'amount > 0' --to delta:lake/orders
    --rejects topic:orders_rejects --once
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    source = spark_jobs.stream_input(stream)
    from skylark.pipelines.jobs import etl as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    output = parse_output(to, partitionBy=partition_by)
    aside = parse_output(rejects) if rejects is not None else None
    pipeline = spark_jobs.Pipeline("etl", "rows", stream, run, source, output)

    def work(spark: SparkSession) -> JobSummary:
        return job.etl(
            spark, source, output,
            state=pipeline.state, decode=decode, schema=schema, select=select or (), where=where,
            rejects=aside, once=run.once, trigger=trigger, watch=spark_jobs.watcher(),
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
    place: SparkSessionOptions,
) -> None:
    """Change events of a database (Debezium, Canal) to a Delta table that follows it.

    Example: skylark spark cdc -n 127.0.0.1:9876 -t db_users --keys id --schema 'id bigint, name string'
    --to delta:lake/users --once
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    source = spark_jobs.stream_input(stream)
    from skylark.pipelines.jobs import cdc as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    output = parse_output(to)
    job.check_output(output)
    changes = job.ChangeEvents(
        format=event_format,
        keys=[name.strip() for name in keys.split(",") if name.strip()],
        schema=schema,
        sequence=[name.strip() for name in (sequence or "").split(",") if name.strip()],
        table=table,
    )
    pipeline = spark_jobs.Pipeline("cdc", "cdc", stream, run, source, output)

    def work(spark: SparkSession) -> JobSummary:
        return job.cdc(
            spark, source, output,
            state=pipeline.state, changes=changes, once=run.once, trigger=trigger,
            watch=spark_jobs.watcher(),
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
    place: SparkSessionOptions,
) -> None:
    """Windowed aggregates of a stream, to a table or to a topic.

    Example: skylark spark agg -n 127.0.0.1:9876 -t orders --window '1 minute' --by tags
    --metric 'count(*) as orders' --to topic:orders_per_minute
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    source = spark_jobs.stream_input(stream)
    from skylark.pipelines.jobs import agg as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    output = parse_output(to)
    frame = job.Window(length=window, slide=slide, watermark=watermark, time=time_column)
    pipeline = spark_jobs.Pipeline("agg", "agg", stream, run, source, output)

    def work(spark: SparkSession) -> JobSummary:
        return job.agg(
            spark, source, output,
            state=pipeline.state, window=frame, by=by or (), metrics=metrics or ("count(*) as messages",),
            decode=decode, schema=schema, once=run.once, trigger=trigger, watch=spark_jobs.watcher(),
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
    place: SparkSessionOptions,
) -> None:
    """Messages of a stretch of time to a topic again: from brokers, store files or an archive.

    Example: skylark spark replay -n 127.0.0.1:9876 --archive delta:lake/raw -t orders
    --from '2026-11-01 08:00' --to '2026-11-01 09:00' --to-topic orders_replay --rate 5000/s
    """
    pass

    run_replay(
        ReplayArguments(
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
    place: SparkSessionOptions,
) -> None:
    """A query over topics, store files and archives.

    Example: skylark spark sql "select tags, count(*) from orders group by tags" -n 127.0.0.1:9876 -t orders
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    source = spark_jobs.make_input(stretch, topic, end=stretch.end) if topic else None
    if source is None and not archived:
        raise UsageError("give --topic with --namesrv or --store, or --archive NAME=delta:DIR")
    spark_jobs.session_settings(place)
    from skylark.pipelines.jobs import sql as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415
    from skylark.pipelines.jobs.replay import ReplayRange, archived_files  # noqa: PLC0415

    named = pairs(archived, "--archive")
    archives = {name: parse_output(where) for name, where in named.items()}
    files = [file for each in archives.values() for file in archived_files(each, None, ReplayRange())]
    if source is not None and not spark_jobs.is_to_run(source, show):
        return
    if show.dry_run:
        spark_jobs.show_files(files, as_json=show.as_json)
        return

    def work(spark: SparkSession) -> None:
        found = job.query(spark, query, source=source, archives=archives, decode=decode, schema=schema)
        spark_jobs.show_rows(found, limit=limit, as_json=show.as_json)

    spark_jobs.launch(place, work)


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
    place: SparkSessionOptions,
) -> None:
    """Lag, sizes, traffic, keys, duplicates and latency of topics, as tables and as a page with charts.

    Example: skylark spark report -n 127.0.0.1:9876 -t orders --html orders.html
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    source = spark_jobs.make_input(stretch, topic, end=stretch.end)
    wanted = check_report_kinds(kinds or ())
    check_report_page(html)
    if spark_jobs.is_to_run(source, show):
        show_report(source, wanted, group or (), html, place, as_json=show.as_json)


@app.command(name="run")
@grouped
def run_file(
    *,
    pipeline: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, as YAML.")],
    namesrv: NamesrvOption = None,
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """A pipeline of your own: source, steps, quality rules, sinks and rejects from a file.

    Example: skylark spark run pipeline.yml --once
    """
    from skylark.cli import spark_jobs  # noqa: PLC0415

    spark_jobs.session_settings(place)
    from skylark.pipelines.jobs import run as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import state_directory  # noqa: PLC0415
    from skylark.pipelines.jobs.pipeline_file import load_pipeline  # noqa: PLC0415

    loaded = load_pipeline(pipeline)
    source = job.source_of(loaded, namesrv)
    outputs = job.outputs_of(loaded)
    state = state_directory(run.state, "run", loaded.name, pipeline.absolute())
    if not spark_jobs.is_to_run(source, run, state=state, query=next(iter(outputs))):
        return

    def work(spark: SparkSession) -> JobSummary:
        return job.run_pipeline(
            spark, loaded, namesrv=namesrv, state=state, once=run.once, watch=spark_jobs.watcher()
        )

    spark_jobs.launch(place, work, source)
