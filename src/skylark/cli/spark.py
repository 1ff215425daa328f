"""`skylark spark`: pipelines over topics, store files and archives; the work is in `pipelines.jobs`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import spark_jobs
from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Namesrv, connected, grouped, pairs, parsed, tabular
from skylark.cli.output import Age, Listing, Rate, Screen, When, print_json
from skylark.cli.output import show as show_listing
from skylark.cli.spark_jobs import (
    ColumnsOption,
    DecodeIfOption,
    DecodeOption,
    NamesrvOption,
    OriginOptions,
    OutputOption,
    Printing,
    RateOption,
    RejectsOption,
    ReportOption,
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
from skylark.quantities import parse_duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skylark.html_report import HtmlReport
    from skylark.model.job_report import JobReport
    from skylark.pipelines.jobs.dlq import Edit
    from skylark.pipelines.jobs.pipeline_file import PipelineFile
    from skylark.pipelines.jobs.queries import JobSummary, Watch
    from skylark.pipelines.jobs.replay import ReplayRange

app = typer.Typer(
    no_args_is_help=True,
    help="Spark pipelines: archive, transform, aggregate, replay, report. Each runs until Ctrl-C, or with"
    " --once to the end of the data, and resumes from its state.",
)
dlq_app = typer.Typer(no_args_is_help=True, help="Dead letters of consumer groups.")
app.add_typer(dlq_app, name="dlq")

DLQ_COLUMNS = ("originTopic", "originId", "keys", "tags", "reconsumeTimes", "storeTimestamp", "text")
DLQ_ROWS_MAX = 1000
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
LimitOption = Annotated[int, typer.Option("--limit", help="At most this many.")]


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
        int | None, typer.Option("--dedup", help="Drop messages whose unique key is among the last N.")
    ] = None,
    compact_every: Annotated[
        str | None, typer.Option("--compact-every", help="Interval of joining small files, such as 1h.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep-days", help="At the end, delete days older than this.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Only remove files that belong to no batch, if old enough.")
    ] = False,
    sweep_after: Annotated[
        int, typer.Option("--sweep-after-hours", help="Age of the files that --sweep removes.")
    ] = 24,
    trigger: TriggerOption = "30s",
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """Write topics to a Delta table or Parquet files, every message once.

    Examples: skylark spark archive -n 127.0.0.1:9876 -t 'orders,pay_.*' --to delta:lake/raw --once

    skylark spark archive --store ~/store -t orders --from -7d --to parquet:out --once
    """
    source = spark_jobs.stream_input(stream)
    from skylark.pipelines.jobs import archive as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    dedup_keys = str(dedup) if dedup is not None else None
    output = parse_output(to, partitionBy=partition_by, columns=columns, dedupKeys=dedup_keys)
    if sweep:
        print_json(job.sweep(output, sweep_after, dry_run=run.dry_run))
        return
    every_s = parsed(parse_duration_ms, compact_every, "--compact-every") / 1000 if compact_every else None
    upkeep = job.Upkeep(compact_every_s=every_s, keep_days=keep)
    sink = job.options(source, output, upkeep)
    pipeline = spark_jobs.Pipeline("archive", "archive", stream, run, source, output)

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.archive(
            spark, source, output,
            state=pipeline.state, once=run.once, trigger=trigger, upkeep=upkeep, sink=sink,
            watch=watch,
        )  # fmt: skip

    pipeline.launch(place, work)


@app.command()
@grouped
def etl(
    *,
    stream: StreamOptions,
    to: OutputOption,
    decode: DecodeOption = "json",
    schema: SchemaOption = "auto",
    select: Annotated[
        list[str] | None, typer.Option("--select", help="Column or expression; may be repeated.")
    ] = None,
    where: WhereOption = None,
    rejects: RejectsOption = None,
    partition_by: Annotated[str | None, typer.Option("--partition-by", help="Columns of a table.")] = None,
    trigger: TriggerOption = "10s",
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """Decode bodies, select, filter, and write rows to a table or a topic; bad bodies go to --rejects.

    Example: skylark spark etl -n 127.0.0.1:9876 -t orders --where 'amount > 0' --to delta:lake/orders
    --rejects topic:orders_rejects --once
    """
    source = spark_jobs.stream_input(stream)
    from skylark.pipelines.jobs import etl as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    output = parse_output(to, partitionBy=partition_by)
    aside = parse_output(rejects) if rejects is not None else None
    pipeline = spark_jobs.Pipeline("etl", "rows", stream, run, source, output, where)

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.etl(
            spark, source, output,
            state=pipeline.state, decode=decode, schema=schema, select=select or (), where=where,
            rejects=aside, once=run.once, trigger=trigger, watch=watch,
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
        str, typer.Option("--schema", help="DDL of the table, such as 'id bigint, name string'.")
    ],
    event_format: Annotated[str, typer.Option("--format", help="debezium or canal.")] = "debezium",
    sequence: Annotated[
        str | None,
        typer.Option("--sequence", help="Fields of the event that order changes, such as source.ts_ms."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", help="Only events of this table: users or shop.users.")
    ] = None,
    trigger: TriggerOption = "10s",
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """Apply change events of a database (Debezium, Canal) to a Delta table.

    Example: skylark spark cdc -n 127.0.0.1:9876 -t db_users --keys id --schema 'id bigint, name string'
    --to delta:lake/users --once
    """
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
    pipeline = spark_jobs.Pipeline("cdc", "cdc", stream, run, source, output, table)

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.cdc(
            spark, source, output,
            state=pipeline.state, changes=changes, once=run.once, trigger=trigger,
            watch=watch,
        )  # fmt: skip

    pipeline.launch(place, work)


@app.command()
@grouped
def agg(
    *,
    stream: StreamOptions,
    to: OutputOption,
    window: Annotated[
        str, typer.Option("--window", help="Length of a window, such as '1 minute'.")
    ] = "1 minute",
    slide: Annotated[str | None, typer.Option("--slide", help="Interval of new windows.")] = None,
    watermark: Annotated[
        str, typer.Option("--watermark", help="How long to wait for late messages.")
    ] = "2 minutes",
    time_column: Annotated[str, typer.Option("--time", help="Column of the event time.")] = "bornTimestamp",
    by: Annotated[
        list[str] | None, typer.Option("--by", help="Column or expression; may be repeated.")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", help="Such as 'sum(amount) as total'; may be repeated.")
    ] = None,
    decode: DecodeIfOption = None,
    schema: SchemaOption = "auto",
    trigger: TriggerOption = "10s",
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """Write windowed aggregates of a stream to a table or a topic.

    Example: skylark spark agg -n 127.0.0.1:9876 -t orders --window '1 minute' --by tags
    --metric 'count(*) as orders' --to topic:orders_per_minute
    """
    source = spark_jobs.stream_input(stream)
    from skylark.pipelines.jobs import agg as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    output = parse_output(to)
    frame = job.Window(length=window, slide=slide, watermark=watermark, time=time_column)
    pipeline = spark_jobs.Pipeline("agg", "agg", stream, run, source, output)

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.agg(
            spark, source, output,
            state=pipeline.state, window=frame, by=by or (), metrics=metrics or ("count(*) as messages",),
            decode=decode, schema=schema, once=run.once, trigger=trigger, watch=watch,
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
    to_topic: Annotated[str, typer.Option("--to-topic", help="The topic to send to.")],
    to_namesrv: Annotated[
        str | None, typer.Option("--to-namesrv", help="Name servers of the target, if it is another cluster.")
    ] = None,
    rate: RateOption = None,
    keep_times: Annotated[bool, typer.Option("--keep-times", help="Keep the original born time.")] = False,
    state: StateOption = None,
    report: ReportOption = True,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Send the messages of a time range to a topic again: from brokers, store files or an archive.

    Example: skylark spark replay -n 127.0.0.1:9876 --archive delta:lake/raw -t orders
    --from '2026-11-01 08:00' --to '2026-11-01 09:00' --to-topic orders_replay --rate 5000/s
    """
    spark_jobs.session_settings(place)
    from skylark.pipelines.jobs import replay as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output, stable_name  # noqa: PLC0415
    from skylark.pipelines.options import absolute_path  # noqa: PLC0415

    target = to_namesrv or stretch.namesrv
    if not target:
        raise UsageError("no cluster to send to; pass --namesrv or --to-namesrv")
    output = parse_output(f"topic:{to_topic}")
    span = job.ReplayRange.parse(stretch.start, stretch.end, where, time.time_ns() // 1_000_000)
    read = _replay_reader(topic, stretch, archived, span, show)
    if read is None:
        return
    directory = absolute_path(state) if state is not None else None

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.replay(
            spark, read(spark), output, span,
            namesrv=target, state=directory, rate=rate, keep_times=keep_times,
        )  # fmt: skip

    reporter = spark_jobs.job_reporter(
        target,
        "replay",
        stable_name("replay", topic, archived or stretch.store or stretch.namesrv, to_topic),
        None if archived else spark_jobs.make_input(_origin(stretch), topic),
        [output],
        state=directory,
        is_wanted=report,
    )
    spark_jobs.launch(place, work, as_json=show.as_json, reporter=reporter)


def _origin(stretch: StretchOptions) -> OriginOptions:
    """Store files, if they are given: the name servers are the target's then."""
    return OriginOptions(namesrv=None if stretch.store is not None else stretch.namesrv, store=stretch.store)


def _replay_reader(
    topic: str, stretch: StretchOptions, archived: str | None, span: ReplayRange, show: ShowOptions
) -> Callable[[SparkSession], DataFrame] | None:
    """How the messages are read; None if a plan was shown instead."""
    from skylark.pipelines.jobs import replay as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output  # noqa: PLC0415

    if archived is not None:
        table = parse_output(archived)
        files = job.archived_files(table, topic, span)
        if show.dry_run:
            spark_jobs.show_files(files, as_json=show.as_json)
            return None
        return lambda spark: job.read_archive(spark, table, topic, span)
    source = job.source_input(spark_jobs.make_input(_origin(stretch), topic, history=stretch.history), span)
    return source.read if spark_jobs.is_to_run(source, show) else None


@app.command()
def forget(
    *,
    key: Annotated[str, typer.Option("--key", help="The key of the messages, or their unique key.")],
    topic: TopicOption,
    archived: Annotated[str, typer.Option("--archive", help="The table: delta:DIR or iceberg:…")],
    namesrv: NamesrvOption = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Delete old files and versions at once, not after a week.")
    ] = False,
) -> None:
    """Delete the messages of a key from an archive, and tell what the log still holds of them.

    Starts no Spark. Without --vacuum the old files stay until the table is maintained.

    Example: skylark spark forget -n 127.0.0.1:9876 -t orders --key customer-7 --archive delta:lake/raw
    """
    spark_jobs.need_extra()
    from datetime import UTC, datetime  # noqa: PLC0415

    from skylark.pipelines.cluster_client import shared_client  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output, table_options  # noqa: PLC0415
    from skylark.pipelines.lake import erasure, table_sink  # noqa: PLC0415

    output = parse_output(archived)
    if not output.is_table:
        raise UsageError(f"invalid --archive {archived}; use delta:DIR or iceberg:NAMESPACE.TABLE")
    table = table_sink.read_options(table_options(output)).log()
    if not table.exists():
        raise UsageError(f"no table in {output}; check --archive")
    rows, files = erasure.erase(table, topic, key)
    if vacuum:
        table.expire(0, datetime.now(UTC))
        table.sweep(0)
    rest = [] if namesrv is None else erasure.still_in_log(shared_client(namesrv), [topic], key)
    print_json(erasure.ErasureReport(rows, files, rest))


@app.command()
@tabular
@grouped
def sql(
    *,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Topics are views of the same name.")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Topics to query.")] = None,
    stretch: StretchOptions,
    archived: Annotated[
        list[str] | None, typer.Option("--archive", help="NAME=delta:DIR, a view of this name.")
    ] = None,
    decode: DecodeIfOption = None,
    schema: SchemaOption = "auto",
    limit: Annotated[int, typer.Option("--limit", help="At most this many rows.")] = 1000,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Query topics, store files and archives.

    Example: skylark spark sql "select tags, count(*) from orders group by tags" -n 127.0.0.1:9876 -t orders
    """
    source = None
    if topic:
        source = spark_jobs.make_input(stretch, topic, end=stretch.end, history=stretch.history)
    if source is None and not archived:
        raise UsageError(
            "nothing to query; pass --topic with --namesrv or --store, or --archive NAME=delta:DIR"
        )
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

    def work(spark: SparkSession, watch: Watch) -> Printing:
        found = job.query(spark, query, source=source, archives=archives, decode=decode, schema=schema)
        return spark_jobs.found_rows(found, limit=limit, as_json=show.as_json)

    spark_jobs.launch(place, work)


@app.command()
@tabular
@grouped
def report(
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            help="traffic, delay, latency, retries, groups, lag, journey, sizes, keys, duplicates;"
            " all by default."
        ),
    ] = None,
    topic: TopicOption,
    stretch: StretchOptions,
    group: Annotated[list[str] | None, typer.Option("--group", help="For lag; may be repeated.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write an HTML page.")] = None,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """What happened on topics, as tables or as a page: traffic, delay, retries, lag, a message's journey.

    Example: skylark spark report -n 127.0.0.1:9876 -t orders --html orders.html
    """
    source = spark_jobs.make_input(stretch, topic, end=stretch.end, history=stretch.history)
    from skylark.pipelines.jobs import report as job  # noqa: PLC0415

    if unknown := [kind for kind in kinds or () if kind not in job.NAMES]:
        raise UsageError(f"unknown report {unknown[0]!r}; choose {', '.join(job.NAMES)}")
    if html is not None and (html.is_dir() or not html.parent.is_dir()):
        raise UsageError(f"invalid --html {html}; pass a file in an existing directory")
    if not spark_jobs.is_to_run(source, show):
        return

    def work(spark: SparkSession, watch: Watch) -> Printing:
        made = job.report(spark, source, kinds=kinds or job.NAMES, groups=group or ())
        return lambda: _show_report(made, html, as_json=show.as_json)

    spark_jobs.launch(place, work)


def _show_report(made: HtmlReport, html: Path | None, *, as_json: bool) -> None:
    from skylark.html_report import render  # noqa: PLC0415

    screen, names = Screen(), [section.name for section in made.sections]
    if html is not None:
        html.write_text(render(made))
        if as_json or not screen.out.is_terminal:
            print_json({"pipeline": "report", "html": str(html), "sections": names})
        else:
            screen.line(f"{html} written: {', '.join(names)}")
    elif as_json:
        print_json(made)
    else:
        if made.verdict is not None:
            screen.line(made.verdict.title, "bold green" if made.verdict.is_good else "bold yellow")
            for sentence in made.verdict.sentences:
                screen.line(sentence)
            screen.facts([(total.name, total.value) for total in made.totals])
        for section in made.sections:
            screen.line()
            screen.line(section.title, "bold")
            spark_jobs.show_table(
                screen, section.columns, [[spark_jobs.short(cell) for cell in row] for row in section.rows]
            )
            if section.note:
                screen.line(section.note)


@app.command(name="run")
@grouped
def run_file(
    *,
    pipeline: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, a YAML file.")],
    namesrv: NamesrvOption = None,
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """Run a pipeline from a file: source, steps, quality rules, sinks and rejects.

    Example: skylark spark run pipeline.yml --once
    """
    spark_jobs.session_settings(place)
    from skylark.pipelines.jobs.pipeline_file import load_pipeline  # noqa: PLC0415

    _run_pipeline(load_pipeline(pipeline), namesrv, run, place)


@app.command()
@grouped
def submit(
    *,
    pipeline: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline, a YAML file.")],
    namesrv: NamesrvOption = None,
    run: RunOptions,
    place: SparkSessionOptions,
) -> None:
    """Run a pipeline where the part `cluster` of its file, or --master or --remote, says.

    That is this machine, a standalone cluster, YARN, Kubernetes or a Connect server. First it says what the
    workers must have; with --dry-run only that, and what would be read. The driver is this process.

    Examples: skylark spark submit pipeline.yml --master spark://host:7077 --pack

    skylark spark submit pipeline.yml --remote sc://host:15002 --once

    skylark spark submit pipeline.yml --master k8s://https://host:6443
    --conf spark.kubernetes.container.image=skylark-spark:latest --dry-run
    """
    spark_jobs.need_extra()
    from skylark.pipelines.jobs.pipeline_file import load_pipeline  # noqa: PLC0415

    loaded = load_pipeline(pipeline)
    place = spark_jobs.chosen_place(place, loaded.cluster)
    settings = spark_jobs.session_settings(place)
    spark_jobs.show_needs(loaded.name, settings)
    _run_pipeline(loaded, namesrv, run, place)


def _run_pipeline(
    loaded: PipelineFile, namesrv: str | None, run: RunOptions, place: SparkSessionOptions
) -> None:
    from skylark.pipelines.jobs import run as job  # noqa: PLC0415

    source = job.source_of(loaded, namesrv)
    outputs = job.outputs_of(loaded)
    state = job.state_of(loaded, run.state)
    if not spark_jobs.is_to_run(source, run, state=state, query=next(iter(outputs))):
        return

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.run_pipeline(spark, loaded, namesrv=namesrv, state=state, once=run.once, watch=watch)

    reporter = spark_jobs.job_reporter(
        source.namesrv, "run", loaded.name, source, list(outputs.values()), state=state, is_wanted=run.report
    )
    spark_jobs.launch(place, work, source, as_json=run.as_json, reporter=reporter)


# --- Reports of jobs ---

JOB_COLUMNS = ("job", "state", "topics", "to", "lag", "rows/s", "rows", "rejected", "batches", "seen")
RUN_COLUMNS = ("run", "state", "started", "seen", "rows", "rejected", "batches", "error")
BATCH_COLUMNS = ("query", "batch", "ended", "rows", "rows/s", "lag", "rejected")


def job_rows(jobs: Sequence[JobReport], now_ms: int) -> list[tuple[object, ...]]:
    """Cells of JOB_COLUMNS."""
    return [
        (
            job.name, job.state_at(now_ms), job.topics, job.outputs, job.lag, Rate(job.rows_per_s), job.rows,
            job.rejected, job.batches, Age(job.time_ms, now_ms),
        )
        for job in jobs
    ]  # fmt: skip


@app.command(name="list")
@tabular
def list_jobs(namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List jobs that run or ran in the last week, as they reported themselves.

    A silent job was killed, or does not reach the cluster.

    Example: skylark spark list
    """
    with connected(namesrv) as admin:
        rows = job_rows(admin.pipelines.jobs(), time.time_ns() // 1_000_000)
    show_listing(Listing(JOB_COLUMNS, rows, long=("topics", "to")), as_json=as_json)


@app.command(name="show")
@tabular
def show_job(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name in `skylark spark list`.")],
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show one job: its state, its last batches and its runs of the last week.

    Example: skylark spark show archive-orders-1f0c9a3e
    """
    with connected(namesrv) as admin:
        runs = admin.pipelines.runs(job)
    if not runs:
        raise UsageError(f"no job {job!r} has reported in the last week; see skylark spark list")
    if as_json:
        print_json(runs)
        return
    screen, now_ms, last = Screen(), time.time_ns() // 1_000_000, runs[0]
    facts = {
        "job": last.name, "state": last.state_at(now_ms), "error": last.error, "command": last.command,
        "runs on": f"{last.host}, process {last.pid}", "source": last.source,
        "topics": ", ".join(last.topics), "to": ", ".join(last.outputs), "group": last.group,
        "state directory": last.directory,
    }  # fmt: skip
    screen.facts([(name, value) for name, value in facts.items() if value])
    batches = [
        (
            part.query,
            part.number,
            When(part.time_ms),
            part.rows,
            Rate(part.rows_per_s),
            part.lag,
            part.rejected,
        )
        for part in reversed(last.last)
    ]
    each = [
        (
            run.run, run.state_at(now_ms), When(run.started_ms), When(run.time_ms), run.rows, run.rejected,
            run.batches, run.error,
        )
        for run in runs
    ]  # fmt: skip
    for columns, rows in ((BATCH_COLUMNS, batches), (RUN_COLUMNS, each)):
        screen.line()
        Listing(columns, rows, long=("error",)).show(screen, as_json=False)


# --- Dead letters ---


@dlq_app.command(name="list")
@tabular
@grouped
def list_dead_letters(
    *,
    origin: OriginOptions,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Count dead letters by group and topic, with their first and last time.

    Example: skylark spark dlq list -n 127.0.0.1:9876
    """
    source = spark_jobs.make_input(origin, "%DLQ%.*")
    if not spark_jobs.is_to_run(source, show):
        return
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415

    def work(spark: SparkSession, watch: Watch) -> Printing:
        found = job.overview(job.transform(source.read(spark)))
        return spark_jobs.found_rows(found, limit=DLQ_ROWS_MAX, as_json=show.as_json)

    spark_jobs.launch(place, work)


@dlq_app.command(name="show")
@tabular
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
    """Show dead letters of a group, those that match --where.

    Example: skylark spark dlq show billing -n 127.0.0.1:9876 --where "text like '%timeout%'"
    """
    source = spark_jobs.make_input(origin, f"%DLQ%{group}")
    if not spark_jobs.is_to_run(source, show):
        return
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415

    def work(spark: SparkSession, watch: Watch) -> Printing:
        letters = job.chosen(job.transform(source.read(spark)), where)
        return spark_jobs.found_rows(
            letters.orderBy("storeTimestamp").select(*DLQ_COLUMNS), limit=limit, as_json=show.as_json
        )

    spark_jobs.launch(place, work)


@dlq_app.command()
@grouped
def export(
    *,
    group: GroupArgument,
    to: OutputOption,
    origin: OriginOptions,
    where: WhereOption = None,
    report: ReportOption = True,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Write dead letters of a group to a table, each once, or to another topic.

    Example: skylark spark dlq export billing -n 127.0.0.1:9876 --to delta:lake/dead
    """
    source = spark_jobs.make_input(origin, f"%DLQ%{group}")
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import parse_output, stable_name  # noqa: PLC0415

    output = parse_output(to)
    if not spark_jobs.is_to_run(source, show):
        return

    def work(spark: SparkSession, watch: Watch) -> JobSummary:
        return job.export(spark, source, output, where)

    name = stable_name("dlq-export", group, source.namesrv or source.store, output)
    reporter = spark_jobs.job_reporter(source.namesrv, "dlq export", name, source, [output], is_wanted=report)
    spark_jobs.launch(place, work, as_json=show.as_json, reporter=reporter)


@dlq_app.command()
@grouped
def resend(
    *,
    group: GroupArgument,
    namesrv: NamesrvOption = None,
    where: WhereOption = None,
    to: Annotated[str, typer.Option("--to", help="original, or a topic.")] = "original",
    rate: RateOption = None,
    edit: Annotated[
        str | None, typer.Option("--edit", metavar="FILE.py:NAME", help="A function DataFrame -> DataFrame.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also dead letters that were sent again before.")
    ] = False,
    audit: Annotated[
        Path,
        typer.Option(
            "--audit",
            metavar="DIR",
            help="Delta table that records what was sent again, for everybody who resends.",
        ),
    ],
    state: StateOption = None,
    report: ReportOption = True,
    show: ShowOptions,
    place: SparkSessionOptions,
) -> None:
    """Send dead letters again, each once, and record them in a Delta table.

    Example: skylark spark dlq resend billing -n 127.0.0.1:9876 --where "keys = 'order-7'" --rate 200/s
    --audit lake/resent
    """
    source = spark_jobs.make_input(OriginOptions(namesrv=namesrv), f"%DLQ%{group}")
    spark_jobs.check_source(source)
    from skylark.pipelines.jobs import dlq as job  # noqa: PLC0415
    from skylark.pipelines.jobs.endpoints import (  # noqa: PLC0415
        Output,
        parse_output,
        stable_name,
        state_directory,
    )

    book = parse_output(f"delta:{audit}")
    directory = state_directory(state, "dlq", group, namesrv, table=book)
    wanted = job.Resend(where=where, to=to, rate=rate, edit=_edit(edit), again=again)

    def work(spark: SparkSession, watch: Watch) -> JobSummary | Printing:
        if show.dry_run:
            letters = job.pending(spark, source, group, wanted, book)
            return spark_jobs.found_rows(
                letters.select(*DLQ_COLUMNS), limit=DLQ_ROWS_MAX, as_json=show.as_json
            )
        return job.resend(spark, source, group, wanted, state=directory, audit=book)

    name, sent_to = stable_name("dlq-resend", group, namesrv, book), Output(kind="topic", where=to)
    reporter = spark_jobs.job_reporter(
        namesrv,
        "dlq resend",
        name,
        source,
        [sent_to],
        state=directory,
        is_wanted=report and not show.dry_run,
    )
    spark_jobs.launch(place, work, as_json=show.as_json, reporter=reporter)


def _edit(text: str | None) -> Edit | None:
    if text is None:
        return None
    from skylark.pipelines.jobs.run import function_from  # noqa: PLC0415

    name, colon, function = text.rpartition(":")
    if not colon:
        raise UsageError(f"invalid --edit {text!r}; write FILE.py:NAME")
    return function_from(Path(name).expanduser().absolute(), function)
