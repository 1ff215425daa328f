"""Shared by the `skylark spark` commands: options, checks of sources, starting Spark, plans and rows."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from skylark.cli.errors import UsageError
from skylark.cli.options import pairs
from skylark.cli.output import Screen, format_bytes, print_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skylark.pipelines.jobs.endpoints import Input, Output
    from skylark.pipelines.jobs.queries import JobSummary, QueryProgress
    from skylark.pipelines.jobs.session import SessionSettings
    from skylark.pipelines.lake.parquet_files import TableFile
    from skylark.pipelines.planner import RangeRow


def _check_trigger(text: str) -> str:
    from skylark.pipelines.options import parse_duration_ms  # noqa: PLC0415

    try:
        parse_duration_ms(text)
    except ValueError as error:
        raise UsageError(f"--trigger: {error}") from None
    return text


def _check_rate(text: str | None) -> str | None:
    from skylark.pipelines.options import parse_rate  # noqa: PLC0415

    try:
        if text is not None:
            parse_rate(text)
    except ValueError as error:
        raise UsageError(f"--rate: {error}") from None
    return text


def _check_decode(text: str | None) -> str | None:
    if text not in (None, "json", "text"):
        raise UsageError(f"--decode: {text!r} is neither json nor text")
    return text


NamesrvOption = Annotated[
    str | None,
    typer.Option(
        "--namesrv", "-n", envvar="NAMESRV_ADDR", metavar="HOST:PORT", help="Name servers, several with ';'."
    ),
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Read store files, without a broker.")
]
TopicOption = Annotated[
    str, typer.Option("--topic", "-t", help="Topics, comma-separated; each a name or a pattern.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="START",
        help="earliest, latest, group, a time ('2026-11-01 08:00', -10m), '-1000 rows', or JSON offsets.",
    ),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="END", help="Before this time, as --from.")]
OutputOption = Annotated[
    str, typer.Option("--to", metavar="WHERE", help="delta:DIR, parquet:DIR, topic:NAME or console.")
]
GroupOption = Annotated[
    str | None, typer.Option("--group", help="Consumer group to which progress is written.")
]
TagsOption = Annotated[str | None, typer.Option("--tags", help="Only these tags: 'Create || Pay'.")]
Sql92Option = Annotated[str | None, typer.Option("--sql92", help="Only messages whose properties match.")]
_DECODE = typer.Option("--decode", callback=_check_decode, help="How bodies are decoded: json or text.")
DecodeOption = Annotated[str, _DECODE]
DecodeIfOption = Annotated[str | None, _DECODE]
SchemaOption = Annotated[str, typer.Option("--schema", help="DDL of JSON bodies, or auto: from a sample.")]
WhereOption = Annotated[str | None, typer.Option("--where", help="Only rows of which this is true.")]
RejectsOption = Annotated[
    str | None, typer.Option("--rejects", metavar="WHERE", help="For bodies that do not decode; as --to.")
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", help="Which columns are kept, comma-separated; all if not given.")
]
RateOption = Annotated[
    str | None,
    typer.Option("--rate", callback=_check_rate, help="At most so many messages a second: 200/s."),
]
OnceOption = Annotated[bool, typer.Option("--once", help="Stop at the end of what is there now.")]
TriggerOption = Annotated[
    str, typer.Option("--trigger", callback=_check_trigger, help="Without --once: a batch so often.")
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Where the pipeline keeps what it needs to go on."),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Any other option of the source; several times."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be read: ranges, messages, bytes.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, for scripts.")]
MasterOption = Annotated[
    str | None, typer.Option("--master", help="spark://HOST:7077, yarn, k8s://…; this machine if not given.")
]
RemoteOption = Annotated[
    str | None, typer.Option("--remote", metavar="sc://HOST:15002", help="A Spark Connect server.")
]
PackOption = Annotated[
    bool, typer.Option("--pack", help="With --master: send this environment to workers that have none.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; several times.")
]
MetricsOption = Annotated[
    int | None, typer.Option("--metrics-port", help="With --group: lag as Prometheus text on this port.")
]


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Where messages come from, and from when on."""

    namesrv: NamesrvOption = None
    store: StoreOption = None
    start: FromOption = None


@dataclass(frozen=True, kw_only=True)
class StretchOptions(OriginOptions):
    """A stretch of time."""

    end: ToOption = None


@dataclass(frozen=True, kw_only=True)
class StreamOptions(OriginOptions):
    """What a pipeline reads as long as it runs."""

    topic: TopicOption
    group: GroupOption = None
    metrics_port: MetricsOption = None
    tags: TagsOption = None
    sql92: Sql92Option = None
    option: OptionOption = None


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """What is shown, and how."""

    dry_run: DryRunOption = False
    as_json: JsonOption = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(ShowOptions):
    """How long a pipeline runs, and where it goes on."""

    once: OnceOption = False
    state: StateOption = None


@dataclass(frozen=True, kw_only=True)
class SparkSessionOptions:
    """Where Spark runs."""

    master: MasterOption = None
    remote: RemoteOption = None
    pack: PackOption = False
    conf: ConfOption = None


LINE_INTERVAL_S = 2.0
LOGGERS_OF_ERRORS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
CELL_CHARS_MAX = 200
CHECK_TIMEOUT = "3s"
"""For what is asked before anything is started: a person waits for it."""


def session_settings(place: SparkSessionOptions, *, shows_stages: bool = False) -> SessionSettings:
    """Where Spark runs, as the options say. Raises Mistake, SettingsError.

    `shows_stages` lets Spark draw its bar on a terminal; a Connect server has none.
    """
    _need_extra()
    from skylark.pipelines.jobs.session import SessionSettings  # noqa: PLC0415

    conf = pairs(place.conf, "--conf")
    if shows_stages and place.remote is None and sys.stderr.isatty():
        conf = {"spark.ui.showConsoleProgress": "true", **conf}
    return SessionSettings(master=place.master, remote=place.remote, pack=place.pack, conf=conf)


def _need_extra() -> None:
    try:
        import deltalake  # noqa: F401, PLC0415
        import pyarrow as pa  # noqa: F401, PLC0415
        import pyspark  # noqa: F401, PLC0415
        import yaml  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(f"{error}: install skylarkmq[spark]") from None


def make_input(origin: OriginOptions, topic: str, *, end: str | None = None) -> Input:
    """What is read of some topics. Raises Mistake, SettingsError."""
    _need_extra()
    from skylark.pipelines.jobs.endpoints import Input  # noqa: PLC0415

    namesrv = origin.namesrv
    if origin.store is not None and namesrv == os.environ.get("NAMESRV_ADDR"):
        namesrv = None  # said once for all commands, and not for this one
    return Input(namesrv=namesrv, store=origin.store, topic=topic, start=origin.start, end=end)


def stream_input(stream: StreamOptions) -> Input:
    """What a pipeline reads. Raises Mistake, SettingsError."""
    options = pairs(stream.option, "--option")
    if stream.metrics_port is not None and (stream.group is None or stream.namesrv is None):
        raise UsageError("--metrics-port shows the lag of a group: give --group and --namesrv")
    return replace(
        make_input(stream, stream.topic),
        group=stream.group,
        tags=stream.tags,
        sql92=stream.sql92,
        options=options,
    )


@dataclass(frozen=True)
class Pipeline:
    """A stream on its way to an output; `query` is the one whose offsets say how far it is."""

    name: str
    query: str
    stream: StreamOptions
    run: RunOptions
    source: Input
    output: Output

    @property
    def state(self) -> Path:
        """Where it keeps what it needs to go on."""
        from skylark.pipelines.jobs.endpoints import state_directory  # noqa: PLC0415

        identity = (self.source.topic, self.source.namesrv or self.source.store, self.output)
        return state_directory(self.run.state, self.name, *identity)

    def launch(self, place: SparkSessionOptions, job: Callable[[SparkSession], JobSummary]) -> None:
        """Show what would be read, or read it. Raises SettingsError, RocketMQError."""
        if is_to_run(self.source, self.run, state=self.state, query=self.query):
            launch(place, job, self.source, metrics_port=self.stream.metrics_port)


def launch(
    place: SparkSessionOptions,
    job: Callable[[SparkSession], JobSummary | None],
    source: Input | None = None,
    *,
    metrics_port: int | None = None,
) -> None:
    """Start Spark, do the job, print its summary as JSON. Raises RocketMQError in plain words.

    If the source has a group, a listener measures the lag and writes the group's offsets. Jobs without a
    source are no streams, and show no progress of their own: Spark shows its stages.
    """
    settings = session_settings(place, shows_stages=source is None)
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from skylark.pipelines.jobs.queries import plain_error  # noqa: PLC0415
    from skylark.pipelines.jobs.session import session  # noqa: PLC0415

    quieten()
    try:
        with session(settings) as spark, _listening(spark, source, metrics_port):
            summary = job(spark)
    except PySparkException as error:
        raise plain_error(error) from error
    if summary is not None:
        print_json(summary)


def quieten() -> None:
    """Let Spark's half in Python not log what it raises as well; `--debug` shows it, with its traces."""
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


def watcher() -> Callable[[QueryProgress], None]:
    """Shows where queries are: a line that moves on a terminal, elsewhere a line now and then."""
    console = Console(stderr=True, highlight=False)
    shown_at = float("-inf")
    totals: dict[str, int] = {}

    def watch(progress: QueryProgress) -> None:
        nonlocal shown_at
        total = totals[progress.query] = totals.get(progress.query, 0) + progress.messages
        now = time.monotonic()
        if not console.is_terminal and now - shown_at < LINE_INTERVAL_S:
            return
        shown_at = now
        behind = "" if progress.behind is None else f", {progress.behind:,} behind"
        text = (
            f"{progress.query}: batch {progress.batch}, {total:,} messages, "
            f"{progress.messages_per_second:,.0f}/s{behind}"
        )
        console.print(text, end="\r" if console.is_terminal else "\n")

    return watch


# --- Plans ---


def is_to_run(source: Input, show: ShowOptions, *, state: Path | None = None, query: str = "") -> bool:
    """Whether Spark is to start: not for a dry run, which shows the plan.

    Raises Mistake, and as `check_source`.
    """
    if (source.start or "").startswith("group") and source.group is None:
        raise UsageError(f"--from {source.start} means a consumer group's offsets, and no --group is given")
    if show.dry_run:
        show_plan(source, state=state, query=query, as_json=show.as_json)
        return False
    check_source(source)
    return True


def check_source(source: Input) -> None:
    """Ask the brokers, or look at the files, before Spark is started. Raises SettingsError, RocketMQError."""
    from skylark.pipelines.planner import plan  # noqa: PLC0415

    plan({"retryTimeout": CHECK_TIMEOUT, **source.source_options(is_stream=False)})


def show_plan(source: Input, *, state: Path | None = None, query: str = "", as_json: bool = False) -> None:
    """What a run would read now: ranges, messages, bytes. Nothing is started. Raises SettingsError."""
    from skylark.pipelines.planner import plan  # noqa: PLC0415

    options = {"retryTimeout": CHECK_TIMEOUT, **source.source_options(is_stream=False)}
    resumed = last_offsets(state / "checkpoints" / query) if state is not None else None
    if resumed is not None:
        options["startingOffsets"] = resumed
    rows = plan(options)
    _print_plan(rows, "the state" if resumed is not None else options["startingOffsets"], as_json=as_json)


def last_offsets(checkpoint: Path) -> str | None:
    """Where a query will go on: the end of its last batch that was committed."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdecimal()]
    if not done:
        return None
    lines = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
    return lines[2] if len(lines) > 2 and lines[2].startswith("{") else None


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
    """What of an archive would be read, by partition."""
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


def show_rows(df: DataFrame, *, limit: int, as_json: bool) -> None:
    """Print the rows of a query, at most so many."""
    from skylark.pipelines.jobs.endpoints import plain_rows  # noqa: PLC0415

    rows = plain_rows(df, limit + 1)
    shown = [[printable(value) for value in row] for row in rows[:limit]]
    if as_json:
        for row in shown:
            print_json(dict(zip(df.columns, row, strict=True)))
    else:
        Screen().table(df.columns, [[short(value) for value in row] for row in shown])
    if len(rows) > limit:
        sys.stderr.write(f"skylark: there are more; --limit {limit}\n")


def printable(value: Any) -> Any:
    """What JSON can hold of a value."""
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
    """A cell of a table for people."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = "" if value is None else value if isinstance(value, str) else _as_json(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"
