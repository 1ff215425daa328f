"""Shared by the `skylark spark` commands: options, checks of sources, starting Spark, plans and rows."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import pairs, parsed
from skylark.cli.output import Screen, counted, format_bytes, print_json
from skylark.cli.spark_progress import SparkProgress, StageWatch
from skylark.quantities import parse_duration_ms, parse_rate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skylark.pipelines.job_reporter import JobReporter
    from skylark.pipelines.jobs.endpoints import Input, Output
    from skylark.pipelines.jobs.pipeline_file import ClusterEntry
    from skylark.pipelines.jobs.queries import JobSummary, QueryProgress, Watch
    from skylark.pipelines.jobs.session import SessionSettings
    from skylark.pipelines.lake.parquet_files import TableFile
    from skylark.pipelines.planner import RangeRow

Printing = Callable[[], None]


def _check_trigger(text: str) -> str:
    parsed(parse_duration_ms, text, "--trigger")
    return text


def _check_rate(text: str | None) -> str | None:
    if text is not None:
        parsed(parse_rate, text, "--rate")
    return text


FORMATS = ("json", "text", "csv", "avro", "confluent", "protobuf")


def _check_decode(text: str | None) -> str | None:
    if text not in (None, *FORMATS):
        raise UsageError(f"invalid --decode {text!r}; choose {', '.join(FORMATS)}")
    return text


NamesrvOption = Annotated[
    str | None,
    typer.Option(
        "--namesrv", "-n", envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Name servers, separated by ;."
    ),
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Read a store directory, without a broker.")
]
TopicOption = Annotated[
    str, typer.Option("--topic", "-t", help="Topics, comma-separated; each a name or a pattern.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="START",
        help="earliest, latest, group, '-1000 rows', JSON offsets, or a time: '2026-11-01 08:00' (local time"
        " unless a zone is given), -10m, or milliseconds since 1970.",
    ),
]
HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--history", metavar="TABLE", help="Archive of the topics, delta:DIR: read from it what it holds."
    ),
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="END", help="Before this time; in the forms of --from.")
]
OutputOption = Annotated[
    str, typer.Option("--to", metavar="WHERE", help="delta:DIR, parquet:DIR, topic:NAME or console.")
]
GroupOption = Annotated[str | None, typer.Option("--group", help="Consumer group that gets the offsets.")]
TagsOption = Annotated[str | None, typer.Option("--tags", help="Only these tags: 'Create || Pay'.")]
Sql92Option = Annotated[
    str | None, typer.Option("--sql92", help="Only messages whose properties match this SQL92 condition.")
]
_DECODE = typer.Option(
    "--decode", callback=_check_decode, help=f"How to decode bodies: {', '.join(FORMATS)}."
)
DecodeOption = Annotated[str, _DECODE]
DecodeIfOption = Annotated[str | None, _DECODE]
SchemaOption = Annotated[
    str, typer.Option("--schema", help="DDL, auto, an Avro file, a subject, or FILE#MESSAGE.")
]
WhereOption = Annotated[str | None, typer.Option("--where", help="Only rows that match this SQL condition.")]
RejectsOption = Annotated[
    str | None,
    typer.Option("--rejects", metavar="WHERE", help="Where bodies go that cannot be decoded; as --to."),
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", help="Columns to keep, comma-separated; all by default.")
]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", callback=_check_rate, help="Messages per second at most: 200/s."),
]
OnceOption = Annotated[bool, typer.Option("--once", help="Stop at the end of the data.")]
TriggerOption = Annotated[
    str, typer.Option("--trigger", callback=_check_trigger, help="Interval of batches, without --once.")
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Where the pipeline keeps its state, to resume."),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Any other option of the source; may be repeated."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would be read: ranges, messages, bytes.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="spark://HOST:7077, yarn, k8s://…; this machine by default.")
]
RemoteOption = Annotated[
    str | None, typer.Option("--remote", metavar="sc://HOST:15002", help="A Spark Connect server.")
]
PackOption = Annotated[
    bool, typer.Option("--pack", help="With --master: send this Python environment to the workers.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
]
ReportOption = Annotated[
    bool,
    typer.Option(
        "--report/--no-report",
        help="Report the job to the cluster, for `skylark spark list` and the console.",
    ),
]
MetricsOption = Annotated[
    int | None, typer.Option("--metrics-port", help="With --group: serve the lag to Prometheus on this port.")
]


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """The source of messages and the start."""

    namesrv: NamesrvOption = None
    store: StoreOption = None
    start: FromOption = None


@dataclass(frozen=True, kw_only=True)
class StretchOptions(OriginOptions):
    """A time range, which may reach into an archive."""

    end: ToOption = None
    history: HistoryOption = None


@dataclass(frozen=True, kw_only=True)
class StreamOptions(OriginOptions):
    """What a pipeline reads while it runs."""

    topic: TopicOption
    group: GroupOption = None
    metrics_port: MetricsOption = None
    tags: TagsOption = None
    sql92: Sql92Option = None
    option: OptionOption = None


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What is printed."""

    dry_run: DryRunOption = False
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(ShowOptions):
    """How long a pipeline runs, and where it keeps its state."""

    once: OnceOption = False
    state: StateOption = None
    report: ReportOption = True


@dataclass(frozen=True, kw_only=True)
class SparkSessionOptions:
    """Where Spark runs."""

    master: MasterOption = None
    remote: RemoteOption = None
    pack: PackOption = False
    conf: ConfOption = None


LOGGERS_OF_ERRORS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
CELL_CHARS_MAX = 200
WHOLE_CHARS_MAX = 36
"""As long as an id."""
CHECK_TIMEOUT = "3s"
"""Timeout of the checks before Spark is started."""


def session_settings(place: SparkSessionOptions) -> SessionSettings:
    """Settings of the Spark session. Raises UsageError, SettingsError."""
    need_extra()
    from skylark.pipelines.jobs.session import SessionSettings  # noqa: PLC0415

    conf = pairs(place.conf, "--conf")
    return SessionSettings(master=place.master, remote=place.remote, pack=place.pack, conf=conf)


def chosen_place(place: SparkSessionOptions, cluster: ClusterEntry) -> SparkSessionOptions:
    """Options of the command line, and for what they leave open the part `cluster` of a pipeline's file."""
    is_given = place.master is not None or place.remote is not None
    return SparkSessionOptions(
        master=place.master if is_given else cluster.master,
        remote=place.remote if is_given else cluster.remote,
        pack=place.pack or (cluster.pack and not is_given),
        conf=[*(f"{name}={value}" for name, value in cluster.conf.items()), *(place.conf or ())],
    )


def show_needs(name: str, settings: SessionSettings) -> None:
    """Print where a job runs and what must be there, beside its output. Raises SettingsError."""
    screen, found = Screen(), settings.needs()
    screen.err.print(f"{name} runs on {settings.place}{', which needs' if found else ''}", markup=False)
    for sentence in found:
        screen.err.print(f"  {sentence}", markup=False)


def need_extra() -> None:
    """Raises UsageError without what pipelines need."""
    try:
        import deltalake  # noqa: F401, PLC0415
        import pyarrow as pa  # noqa: F401, PLC0415
        import pyspark  # noqa: F401, PLC0415
        import yaml  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(f"{error}: install skylarkmq[spark]") from None


def make_input(
    origin: OriginOptions, topic: str, *, end: str | None = None, history: str | None = None
) -> Input:
    """What is read. Raises UsageError, SettingsError."""
    need_extra()
    from skylark.pipelines.jobs.endpoints import Input  # noqa: PLC0415

    namesrv = origin.namesrv
    if origin.store is not None and namesrv == os.environ.get("NAMESRV_ADDR"):
        namesrv = None  # the variable is meant for other commands
    options = {"history": history} if history is not None else {}
    return Input(
        namesrv=namesrv, store=origin.store, topic=topic, start=origin.start, end=end, options=options
    )


def stream_input(stream: StreamOptions) -> Input:
    """What a pipeline reads. Raises UsageError, SettingsError."""
    options = pairs(stream.option, "--option")
    if stream.metrics_port is not None and (stream.group is None or stream.namesrv is None):
        raise UsageError("--metrics-port serves the lag of a group: pass --group and --namesrv, too")
    return replace(
        make_input(stream, stream.topic),
        group=stream.group,
        tags=stream.tags,
        sql92=stream.sql92,
        options=options,
    )


@dataclass(frozen=True)
class Pipeline:
    """A stream and its output; `query` is the one whose offsets are the progress."""

    name: str
    query: str
    stream: StreamOptions
    run: RunOptions
    source: Input
    output: Output
    where: str | None = None
    """The condition on messages, if the job has one."""

    @property
    def state(self) -> Path:
        """Directory of its state."""
        from skylark.pipelines.jobs.endpoints import state_directory  # noqa: PLC0415

        return state_directory(self.run.state, self.name, *self._identity, table=self.output)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.source.topic, self.source.namesrv or self.source.store, self.output

    def launch(self, place: SparkSessionOptions, job: Callable[[SparkSession, Watch], JobSummary]) -> None:
        """Show what would be read, or read it. Raises SettingsError, RocketMQError."""
        from skylark.pipelines.jobs.endpoints import from_table, job_name, stable_name  # noqa: PLC0415

        source = from_table(self.source, self.output, job_name(self.name, self.source, self.where))
        if not is_to_run(source, self.run, state=self.state, query=self.query):
            return
        reporter = job_reporter(
            source.namesrv,
            self.name,
            stable_name(self.name, *self._identity),
            source,
            [self.output],
            state=self.state,
            is_wanted=self.run.report,
        )
        launch(
            place,
            job,
            source,
            metrics_port=self.stream.metrics_port,
            as_json=self.run.as_json,
            reporter=reporter,
        )


def job_reporter(
    namesrv: str | None,
    kind: str,
    name: str,
    source: Input | None,
    outputs: Sequence[Output],
    *,
    state: Path | None = None,
    is_wanted: bool = True,
) -> JobReporter | None:
    """Reports a job to a cluster; None without one. Raises SettingsError."""
    if namesrv is None or not is_wanted:
        return None
    from skylark.pipelines.job_reporter import JobReporter  # noqa: PLC0415

    return JobReporter(
        namesrv,
        kind=kind,
        name=name,
        source="" if source is None else str(source.store or source.namesrv),
        topics=[] if source is None else [part.strip() for part in source.topic.split(",")],
        outputs=[str(output) for output in outputs],
        group="" if source is None else source.group or "",
        directory="" if state is None else str(state),
    )


def launch(
    place: SparkSessionOptions,
    job: Callable[[SparkSession, Watch], JobSummary | Printing],
    source: Input | None = None,
    *,
    metrics_port: int | None = None,
    as_json: bool = False,
    reporter: JobReporter | None = None,
) -> None:
    """Start Spark, run the job, and print its summary, or call what it returns to print.

    On a terminal a summary is a table, elsewhere JSON. If the source has a group, a listener measures the lag
    and commits the group's offsets. Raises RocketMQError, also for errors of Spark.
    """
    settings = session_settings(place)
    screen = Screen()
    reported: AbstractContextManager[object] = nullcontext() if reporter is None else reporter
    with SparkProgress(screen) as progress, reported:
        progress.say(_start_words(place))
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from skylark.pipelines.jobs.queries import plain_error  # noqa: PLC0415
        from skylark.pipelines.jobs.session import session  # noqa: PLC0415

        quieten()
        try:
            with session(settings) as spark, _listening(spark, source, metrics_port):
                progress.say("Spark is ready, reading")
                with _stages(spark, progress, is_wanted=source is None and place.remote is None):
                    result = job(spark, _watch(progress, reporter))
                if callable(result):
                    progress.close()
                    result()
                elif reporter is not None:
                    reporter.summed(result)
        except PySparkException as error:
            raise plain_error(error) from error
    if not callable(result):
        show_summary(screen, result, as_json=as_json)


def _watch(progress: SparkProgress, reporter: JobReporter | None) -> Watch:
    if reporter is None:
        return progress.watch

    def watch(seen: QueryProgress) -> None:
        progress.watch(seen)
        reporter.watch(seen)

    return watch


def _start_words(place: SparkSessionOptions) -> str:
    if place.remote is not None:
        return f"connecting to Spark at {place.remote}"
    return f"starting Spark{f' on {place.master}' if place.master else ''}, about 10 s"


@contextmanager
def _stages(spark: SparkSession, progress: SparkProgress, *, is_wanted: bool) -> Iterator[None]:
    """The progress of stages, for a job that is not a stream."""
    if not is_wanted:
        yield
        return
    with StageWatch(spark, progress):
        yield


def show_summary(screen: Screen, summary: JobSummary, *, as_json: bool) -> None:
    """How a job ended, and what became of the messages."""
    if as_json or not screen.out.is_terminal:
        print_json(summary)
        return
    end = f"{summary.status} after {summary.seconds:,.1f} s, {counted(summary.batches, 'batch', 'batches')}"
    screen.line(f"{summary.pipeline}: {end}", "bold")
    facts = {**summary.details, "state": summary.state}
    screen.facts([(name, value) for name, value in facts.items() if value])
    screen.line()
    columns, rows = summary.table()
    screen.table(columns, rows, long=columns[:1])


def quieten() -> None:
    """Stop PySpark from logging errors that it also raises, unless `--debug` is given."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    logging.getLogger("py4j").setLevel(logging.ERROR)
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        for name in LOGGERS_OF_ERRORS:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _listening(spark: SparkSession, source: Input | None, metrics_port: int | None) -> Iterator[None]:
    if source is None or source.group is None or source.namesrv is None:
        yield
        return
    from skylark.pipelines.listener import LagListener  # noqa: PLC0415

    listener = LagListener(source.namesrv, source.group, metrics_port=metrics_port)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        listener.detach(spark)


# --- Plans ---


def is_to_run(source: Input, show: ShowOptions, *, state: Path | None = None, query: str = "") -> bool:
    """Check the source and return True; for a dry run, show the plan and return False.

    Raises UsageError, and as `check_source`.
    """
    if (source.start or "").startswith("group") and source.group is None:
        raise UsageError(f"--from {source.start} means a consumer group's offsets; pass --group, too")
    if show.dry_run:
        show_plan(source, state=state, query=query, as_json=show.as_json)
        return False
    check_source(source)
    return True


def check_source(source: Input) -> None:
    """Ask the brokers, or read the files, before Spark is started. Raises SettingsError, RocketMQError."""
    from skylark.pipelines.planner import plan  # noqa: PLC0415

    plan({"retryTimeout": CHECK_TIMEOUT, **source.source_options(is_stream=False)})


def show_plan(source: Input, *, state: Path | None = None, query: str = "", as_json: bool = False) -> None:
    """Print what a run would read now: ranges, messages, bytes. Raises SettingsError."""
    from skylark.pipelines.jobs.queries import checkpoint_of  # noqa: PLC0415
    from skylark.pipelines.lake.progress import last_offsets  # noqa: PLC0415
    from skylark.pipelines.planner import plan  # noqa: PLC0415

    options = {"retryTimeout": CHECK_TIMEOUT, **source.source_options(is_stream=False)}
    resumed = last_offsets(checkpoint_of(state, query)) if state is not None else None
    if resumed is not None:
        options["startingOffsets"] = resumed
    rows = plan(options)
    _print_plan(rows, "the state" if resumed is not None else options["startingOffsets"], as_json=as_json)


def _print_plan(rows: Sequence[RangeRow], start: str, *, as_json: bool) -> None:
    columns = ["topic", "broker", "queue", "from", "to", "messages", "bytes"]
    cells = [
        [
            row.topic,
            row.broker_name,
            row.queue_id,
            row.from_offset,
            row.to_offset,
            row.messages,
            row.record_bytes,
        ]
        for row in rows
    ]
    messages, size = sum(row.messages for row in rows), sum(row.record_bytes for row in rows)
    if as_json:
        ranges = [dict(zip(columns, row, strict=True)) for row in cells]
        print_json({"ranges": ranges, "messages": messages, "bytes": size})
        return
    screen = Screen()
    screen.table(columns, cells)
    total = f"{messages:,} messages, {format_bytes(size)} in {len(rows)} ranges"
    screen.line(f"from {start}: {total}; nothing was read")


def show_files(files: Sequence[TableFile], *, as_json: bool) -> None:
    """Print what would be read of an archive, by partition."""
    parts: dict[str, list[TableFile]] = {}
    for file in files:
        name = ", ".join(f"{name}={value}" for name, value in file.partition.items())
        parts.setdefault(name, []).append(file)
    columns = ["partition", "files", "messages", "bytes"]
    cells = [
        [name, len(found), sum(file.rows for file in found), sum(file.size for file in found)]
        for name, found in sorted(parts.items())
    ]
    messages, size = sum(file.rows for file in files), sum(file.size for file in files)
    if as_json:
        partitions = [dict(zip(columns, row, strict=True)) for row in cells]
        print_json({"partitions": partitions, "messages": messages, "bytes": size})
        return
    screen = Screen()
    screen.table(columns, cells)
    screen.line(f"{messages:,} messages, {format_bytes(size)} in {len(files)} files; nothing was read")


# --- Tables ---


def found_rows(df: DataFrame, *, limit: int, as_json: bool) -> Printing:
    """Run a query; return what prints at most `limit` of its rows."""
    from skylark.pipelines.jobs.endpoints import plain_rows  # noqa: PLC0415

    columns, rows = df.columns, plain_rows(df, limit + 1)

    def show() -> None:
        shown = [[printable(value) for value in row] for row in rows[:limit]]
        if as_json:
            for row in shown:
                print_json(dict(zip(columns, row, strict=True)))
        else:
            show_table(Screen(), columns, [[short(value) for value in row] for row in shown])
        if len(rows) > limit:
            sys.stderr.write(f"skylark: more than {limit} rows; raise --limit to see them\n")

    return show


def show_table(screen: Screen, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table of unknown columns: ids and times are kept whole, longer texts may be cut."""
    long = [
        name
        for number, name in enumerate(columns)
        if any(len(str(row[number])) > WHOLE_CHARS_MAX for row in rows)
    ]
    screen.table(columns, rows, long=long)


def printable(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value if isinstance(value, str | int | float | bool | None) else json.loads(_as_json(value))


def _as_json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def short(value: Any) -> Any:
    """A table cell."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = "" if value is None else value if isinstance(value, str) else _as_json(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
