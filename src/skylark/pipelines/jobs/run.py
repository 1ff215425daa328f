"""`run pipeline.yml`: runs a declarative pipeline.

Every sink, and the rejects, is a separate query with its own checkpoint: a slow one does not delay the
others, and each has the delivery guarantee of its kind.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from skylark.errors import SettingsError
from skylark.pipelines import sink as sending
from skylark.pipelines.jobs import etl, queries
from skylark.pipelines.jobs.counts import (
    READ,
    REJECTED,
    WRITTEN,
    JobCounts,
    Loss,
    followed,
    observe_rows,
    observe_source,
    place,
)
from skylark.pipelines.jobs.endpoints import (
    Input,
    Output,
    check_progress,
    message_columns,
    origin_columns,
    parse_output,
    state_directory,
    table_options,
    whole_row,
    write_stream,
)
from skylark.pipelines.jobs.pipeline_file import PipelineFile, PipelineStep, SinkEntry
from skylark.pipelines.lake import table_sink
from skylark.pipelines.options import SourceOptions, absolute_path, load
from skylark.quantities import parse_duration_ms
from skylark.settings.object_store import is_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

REASON = "REJECTED_BECAUSE"
QUALITY = "quality"
AFTER = "after"
"""Begins the names of the metrics for rows that a step passes on."""
MESSAGE_COLUMNS = ("topic", "keys", "tags")


@dataclass(frozen=True)
class Flow:
    """The result of a pipeline's steps: good rows and rejects."""

    rows: DataFrame
    rejects: DataFrame | None
    losses: tuple[Loss, ...]
    """For each observed step, in order: what became of the rows that it did not pass on."""

    def counts(self, observed: Mapping[str, int]) -> JobCounts:
        """The counts of a query of `rows`."""
        read, late = observed.get(READ, 0), observed.get(queries.LATE, 0)
        held, written = observed.get(queries.HELD, 0), observed.get(WRITTEN, 0)
        passed = [observed.get(f"{AFTER}{number}", 0) for number in range(len(self.losses))]
        steps: list[tuple[Loss, int]] = [("rejected", read - observed.get(REJECTED, 0))]
        steps += zip(self.losses, passed, strict=True)
        counts = followed(read, [*steps, ("filtered", written + held), ("duplicates", written)])
        # Spark drops rows that are too late to be compared; they are not known to be repeated.
        counts.duplicates -= late
        counts.filtered += late
        return counts


def source_of(pipeline: PipelineFile, namesrv: str | None) -> Input:
    """Raises SettingsError, BadSettingsFile with the line of an invalid option."""
    given = pipeline.source
    limit = given.get("limit") or {}
    options = {str(name): str(value) for name, value in (given.get("options") or {}).items()}
    if "bytes" in limit:
        options["maxBytesPerTrigger"] = str(limit["bytes"])
    if "rows" in limit:
        options["maxRowsPerTrigger"] = str(limit["rows"])
    path = given.get("path")
    source = Input(
        namesrv=None if path else str(given.get("namesrv") or namesrv or "") or None,
        store=_beside(pipeline, path) if path else None,
        topic=str(given["topic"]),
        start=given.get("start"),
        group=given.get("group"),
        tags=given.get("tags"),
        sql92=given.get("sql92"),
        options=options,
    )
    try:
        load(SourceOptions, source.source_options(is_stream=True))
    except SettingsError as error:
        pipeline.fail(pipeline.source_line, f"{error.name}: {error.reason}")
    return source


def _table(pipeline: PipelineFile, name: str) -> str:
    """A table's address, or its directory, relative to the pipeline file."""
    return name if is_uri(name) else str(_beside(pipeline, name))


def _beside(pipeline: PipelineFile, name: str) -> Path:
    """Resolve a path relative to the pipeline file."""
    return absolute_path(pipeline.path.absolute().parent / Path(name).expanduser())


def decoding(pipeline: PipelineFile) -> dict[str, str]:
    """The source's options for a decode step."""
    first = pipeline.steps[0] if pipeline.steps else None
    if first is None or first.kind != "decode":
        return {}
    schema = str(first.value.get("schema", "auto"))
    if schema.endswith(".ddl"):
        path = _beside(pipeline, schema)
        if not path.is_file():
            pipeline.fail(first.value.line_of("schema"), f"no such file: {path}")
        schema = " ".join(path.read_text().split())
    kind = str(first.value.get("format", "json"))
    if kind in ("avro", "protobuf") and not schema.startswith("{"):
        schema = str(_beside(pipeline, schema))
    registry = {"schemaRegistry": str(first.value["registry"])} if "registry" in first.value else {}
    return {"decode": kind, **({"decodeSchema": schema} if kind != "text" else {}), **registry}


def transform(spark: SparkSession, df: DataFrame, pipeline: PipelineFile) -> Flow:
    """Apply steps and quality rules. Raises BadSettingsFile with the line of a failing step."""
    is_decoded = bool(pipeline.steps) and pipeline.steps[0].kind == "decode"
    rows = etl.observe_decoded(df) if is_decoded else observe_source(df)
    rejects, losses = None, list[Loss]()
    for step in pipeline.steps:
        try:
            if step.kind == "decode":
                on_error = step.value.get("on_error", "rejects")
                rejects = etl.rejected(df) if on_error == "rejects" else None
                rows = etl.transform(_failing(rows) if on_error == "fail" else rows)
            else:
                rows = observe_rows(_step(spark, rows, step, pipeline), f"{AFTER}{len(losses)}")
                losses.append("duplicates" if step.kind == "dedup" else "filtered")
        except PySparkException as error:
            pipeline.fail(step.line, f"{step.kind}: {str(error).strip().splitlines()[0]}")
    return _rules(Flow(rows, rejects, tuple(losses)), pipeline)


def _failing(df: DataFrame) -> DataFrame:
    stop = F.raise_error(F.concat(F.lit("cannot decode the body of "), place()))
    return df.withColumn("rejects", F.when(F.col("rejects").isNotNull(), stop.cast("binary")))


def _step(spark: SparkSession, rows: DataFrame, step: PipelineStep, pipeline: PipelineFile) -> DataFrame:
    if step.kind == "sql":
        rows.createOrReplaceTempView("input")
        return spark.sql(str(step.value))
    if step.kind == "dedup":
        moment = str(step.value.get("time", "bornTimestamp"))
        within = str(step.value.get("within", "10 minutes"))
        keys = [str(name) for name in step.value["keys"]]
        return rows.withWatermark(moment, within).dropDuplicatesWithinWatermark(keys)
    changed = load_function(pipeline, str(step.value), step.line)(rows)
    if not hasattr(changed, "columns"):
        pipeline.fail(
            step.line, f"{step.value} returned {type(changed).__name__}; it must return a DataFrame"
        )
    return changed


def load_function(pipeline: PipelineFile, text: str, line: int) -> Callable[[DataFrame], DataFrame]:
    """Load the function `file.py:name`; the path is relative to the pipeline file."""
    name, _, function = text.rpartition(":")
    path = _beside(pipeline, name)
    try:
        return function_from(path, function)
    except SettingsError as error:
        pipeline.fail(line, error.reason)


def function_from(path: Path, function: str) -> Callable[..., Any]:
    """Load a function from a file. Raises SettingsError."""
    if not path.is_file():
        raise SettingsError(str(path), f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(f"pipeline_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingsError(str(path), f"cannot import {path}: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise SettingsError(str(path), f"{path} has no function {function}")
    return found  # type: ignore[no-any-return]


def _rules(flow: Flow, pipeline: PipelineFile) -> Flow:
    rows, rejects, losses = flow.rows, flow.rejects, list(flow.losses)
    warned: list[Any] = []
    for number, rule in enumerate(pipeline.quality):
        holds = F.coalesce(F.expr(rule.expect), F.lit(False))
        try:
            broken, kept = rows.where(~holds), rows.where(holds)
        except PySparkException as error:
            pipeline.fail(rule.line, f"expect: {str(error).strip().splitlines()[0]}")
        if rule.on_fail == "warn":
            warned.append(F.count(F.when(~holds, 1)).alias(f"rule{number}"))
        elif rule.on_fail == "fail":
            stop = F.raise_error(F.lit(f"{pipeline.path}:{rule.line}: a row breaks `{rule.expect}`"))
            rows = rows.where(F.when(holds, True).otherwise(stop.cast("boolean")))
        else:
            if rule.on_fail == "reject" and pipeline.rejects:
                aside = _as_reject(broken, rule.expect)
                rejects = aside if rejects is None else _same(rejects).unionByName(_same(aside))
            rows = observe_rows(kept, f"{AFTER}{len(losses)}")
            losses.append("rejected" if rule.on_fail == "reject" else "filtered")
    return Flow(rows.observe(QUALITY, *warned) if warned else rows, rejects, tuple(losses))


def _as_reject(rows: DataFrame, reason: str) -> DataFrame:
    """Rows that break a rule as messages: the row as JSON, the reason as a property."""
    why = F.create_map(F.lit(REASON), F.lit(reason))
    return rows.select(whole_row(rows).cast("binary").alias("body"), why.alias("properties"))


def _same(rejects: DataFrame) -> DataFrame:
    return rejects.select("body", "properties")


def outputs_of(pipeline: PipelineFile) -> dict[str, Output]:
    """Outputs by query name. Raises BadSettingsFile with the line of an invalid sink."""
    outputs = {}
    for number, sink in enumerate(pipeline.sinks):
        try:
            outputs[f"{sink.kind}-{number}"] = _output(pipeline, sink)
        except SettingsError as error:
            pipeline.fail(sink.line, error.reason if error.name == "to" else f"{error.name}: {error.reason}")
    return outputs


def state_of(pipeline: PipelineFile, given: Path | None) -> Path:
    """The directory with the checkpoints: as given, or inside the first table, or in the user's state.

    A pipeline with a table resumes wherever its file is run from.
    """
    table = next((output for output in outputs_of(pipeline).values() if output.is_table), None)
    identity = pipeline.path.absolute() if table is None else pipeline.source["topic"]
    return state_directory(given, "run", pipeline.name, identity, table=table)


def _output(pipeline: PipelineFile, sink: SinkEntry) -> Output:
    """Checks the options before Spark is started."""
    if sink.kind == "console":
        return parse_output("console")
    if sink.kind == "rocketmq":
        given = {name: str(value) for name, value in sink.options.items() if name not in MESSAGE_COLUMNS}
        sending.read_options({"namesrv": "that-of-the-source:0", **given})
        return parse_output(f"topic:{sink.options['topic']}", **given)
    output = parse_output(
        f"{sink.kind}:{_table(pipeline, str(sink.options['path']))}",
        partitionBy=_names(sink.options.get("partition")),
        columns=_names(sink.options.get("columns")),
        codec=sink.options.get("codec"),
    )
    table_sink.read_options(table_options(output))
    return output


def _names(value: Any) -> str | None:
    """One or several column names as an option."""
    return ",".join(map(str, value if isinstance(value, list) else [value])) if value else None


def with_message_columns(rows: DataFrame, options: Mapping[str, Any]) -> DataFrame:
    """Rows for a topic; `keys` and `tags` come from the columns that the sink's options name."""
    has_body = "body" in rows.columns
    body = F.col("body") if has_body else whole_row(rows).cast("binary").alias("body")
    named = {
        name: F.col(f"`{options[name]}`").cast("string").alias(name)
        for name in ("keys", "tags")
        if name in options
    }
    own = ("keys", "tags", "shardingKey", *(("properties", "delayLevel", "deliverAt") if has_body else ()))
    kept = message_columns(rows, [name for name in own if name not in named])
    return rows.select(body, *named.values(), *kept, *origin_columns(rows))


def run_pipeline(
    spark: SparkSession,
    pipeline: PipelineFile,
    *,
    namesrv: str | None,
    state: Path,
    once: bool,
    watch: queries.Watch | None = None,
) -> queries.JobSummary:
    """Run until the end of data, or until interrupted. Raises SettingsError, RocketMQError."""
    source = source_of(pipeline, namesrv)
    flow = transform(spark, source.read_stream(spark, **decoding(pipeline)), pipeline)
    outputs = outputs_of(pipeline)
    writers, held = {}, {}

    def add_query(name: str, rows: DataFrame, output: Output) -> None:
        job = f"run {pipeline.name} {name}"
        held[name] = check_progress(source, output, queries.checkpoint_of(state, name), job)
        writers[name] = write_stream(rows, output, source.namesrv, job)

    counted = observe_rows(flow.rows, WRITTEN)
    for (name, output), sink in zip(outputs.items(), pipeline.sinks, strict=True):
        try:
            rows = with_message_columns(counted, sink.options) if sink.kind == "rocketmq" else counted
            add_query(name, rows, output)
        except PySparkException as error:
            pipeline.fail(sink.line, f"{sink.kind}: {str(error).strip().splitlines()[0]}")
        except SettingsError as error:
            pipeline.fail(sink.line, f"{error.name}: {error.reason}")
    if flow.rejects is not None:
        for kind, where in pipeline.rejects.items():
            place = f"topic:{where}" if kind == "topic" else f"delta:{_table(pipeline, where)}"
            add_query(f"rejects-{kind}", flow.rejects, parse_output(place))
    tally = queries.ProgressTally(held)
    summary = queries.run(
        pipeline.name,
        writers,
        state=state,
        once=once,
        trigger=pipeline.trigger,
        watch=watch,
        tally=tally,
        now_and_then=_Compaction(pipeline, outputs).now_and_then,
    )
    counts = {str(output): flow.counts(tally.observed.get(name, {})) for name, output in outputs.items()}
    first = next(iter(outputs))
    summary.counts = counts[str(outputs[first])]
    summary.outputs = counts if len(counts) > 1 else msgspec.UNSET
    summary.details = {
        "to": str(outputs[first]),
        "sinks": {name: str(output) for name, output in outputs.items()},
        **tally.examples.get(first, {}),
    }
    if broken := _broken_rules(pipeline, tally.observed.get(first, {})):
        summary.details["quality"] = broken
    return summary


def _broken_rules(pipeline: PipelineFile, observed: Mapping[str, int]) -> dict[str, int]:
    """Rows that broke each rule with on_fail: warn."""
    counts = {rule.expect: observed.get(f"rule{number}", 0) for number, rule in enumerate(pipeline.quality)}
    broken = {expect: count for expect, count in counts.items() if count}
    for expect, count in broken.items():
        log.warning("quality rule broken rule=%r rows=%d", expect, count)
    return broken


class _Compaction:
    """Compacts Delta sinks at their interval while the pipeline runs."""

    def __init__(self, pipeline: PipelineFile, outputs: Mapping[str, Output]) -> None:
        self._due: dict[str, float] = {}
        self._every: dict[str, tuple[float, Output]] = {}
        for (name, output), sink in zip(outputs.items(), pipeline.sinks, strict=True):
            if sink.kind == "delta" and "compact" in sink.options:
                every_s = parse_duration_ms(str(sink.options["compact"])) / 1000
                self._every[name] = (every_s, output)
                self._due[name] = time.monotonic() + every_s

    def now_and_then(self) -> None:
        for name, (every_s, output) in self._every.items():
            if time.monotonic() >= self._due[name]:
                table_sink.read_options(table_options(output)).log().compact()
                self._due[name] = time.monotonic() + every_s
