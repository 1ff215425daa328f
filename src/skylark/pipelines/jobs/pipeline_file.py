"""Parses and checks `pipeline.yml`; errors name the line. Does not need Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from skylark.arrow.body_formats import FORMATS
from skylark.errors import BadSettingsFile
from skylark.model.names import topic_name_error
from skylark.pipelines.yaml_file import LinedMapping, YamlReader, hint, kind_of
from skylark.quantities import parse_bytes, parse_duration_ms

SOURCE_KEYS = ("namesrv", "path", "topic", "start", "group", "tags", "sql92", "limit", "options")
LIMIT_KEYS = ("bytes", "rows")
STEPS = ("decode", "sql", "dedup", "python")
SINKS = ("delta", "parquet", "rocketmq", "console")
REJECT_KEYS = ("topic", "table")
ON_FAIL = ("reject", "drop", "warn", "fail")
ON_ERROR = ("rejects", "drop", "fail")
CLUSTER_KEYS = ("master", "remote", "pack", "conf")
TOP = ("name", "source", "steps", "sinks", "rejects", "trigger", "quality", "cluster")
NEEDED = ("source", "sinks")


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """One step and its line in the file."""

    kind: str
    value: Any
    line: int


@dataclass(frozen=True, kw_only=True)
class SinkEntry:
    """One sink with its options."""

    kind: str
    options: Mapping[str, Any]
    line: int


@dataclass(frozen=True, kw_only=True)
class QualityRule:
    """A condition on rows, and what happens to rows that break it."""

    expect: str
    on_fail: str
    line: int


@dataclass(frozen=True, kw_only=True)
class ClusterEntry:
    """Where `submit` runs the pipeline."""

    master: str | None = None
    remote: str | None = None
    pack: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PipelineFile:
    """A parsed pipeline file."""

    path: Path
    name: str
    source: Mapping[str, Any]
    source_line: int
    steps: Sequence[PipelineStep] = ()
    sinks: Sequence[SinkEntry] = ()
    rejects: Mapping[str, str] = field(default_factory=dict)
    trigger: str = "10s"
    quality: Sequence[QualityRule] = ()
    cluster: ClusterEntry = ClusterEntry()

    def fail(self, line: int, reason: str) -> NoReturn:
        """Raises BadSettingsFile."""
        raise BadSettingsFile(f"{self.path}:{line}", reason)


def load_pipeline(path: Path) -> PipelineFile:
    """Raises BadSettingsFile, OSError."""
    reader = YamlReader(path)
    top = reader.mapping(reader.read(NEEDED), "the file", 1, TOP)
    for name in NEEDED:
        if name not in top:
            reader.fail(1, f"missing {name}")
    trigger = str(top.get("trigger", "10s"))
    _checked(reader, top.line_of("trigger"), "trigger", lambda: parse_duration_ms(trigger))
    return PipelineFile(
        path=path,
        name=str(top.get("name") or path.stem),
        source=_source(reader, top),
        source_line=top.line_of("source"),
        steps=_steps(reader, top),
        sinks=_sinks(reader, top),
        rejects=_rejects(reader, top),
        trigger=trigger,
        quality=_quality(reader, top),
        cluster=_cluster(reader, top),
    )


def _checked(reader: YamlReader, line: int, what: str, parse: Callable[[], Any]) -> None:
    try:
        parse()
    except ValueError as error:
        reader.fail(line, f"{what}: {error}")


def _source(reader: YamlReader, top: LinedMapping) -> Mapping[str, Any]:
    source = reader.mapping(top["source"], "source", top.line_of("source"), SOURCE_KEYS)
    if not source.get("topic"):
        reader.fail(source.line, "source has no topic")
    if "limit" in source:
        limit = reader.mapping(source["limit"], "limit", source.line_of("limit"), LIMIT_KEYS)
        if "bytes" in limit:
            _checked(reader, limit.line_of("bytes"), "bytes", lambda: parse_bytes(str(limit["bytes"])))
    return source


def _list(reader: YamlReader, top: LinedMapping, name: str) -> list[Any]:
    items = top.get(name) or []
    if not isinstance(items, list):
        reader.fail(top.line_of(name), f"{name} is {kind_of(items)}; it must be a list")
    return items


def _steps(reader: YamlReader, top: LinedMapping) -> list[PipelineStep]:
    steps = []
    for number, item in enumerate(_list(reader, top, "steps")):
        kind, value, line = reader.one_of(item, STEPS, "step", top.line_of("steps"))
        if kind == "decode":
            value = reader.mapping(value, "decode", line, ("format", "schema", "registry", "on_error"))
            if number:
                reader.fail(line, "decode must be the first step, as it needs the original body")
            _choice(reader, value, "format", FORMATS)
            _choice(reader, value, "on_error", ON_ERROR)
            if value.get("on_error") == "rejects":
                _need_rejects(reader, top, value.line_of("on_error"), "on_error: drop")
        elif kind == "dedup":
            value = reader.mapping(value, "dedup", line, ("keys", "within", "time"))
            if not isinstance(value.get("keys"), list) or not value["keys"]:
                reader.fail(line, "dedup needs keys, a list of columns")
        elif kind == "sql" and "input" not in str(value):
            reader.fail(line, "a sql step must read from `input`: select … from input …")
        elif kind == "python" and ":" not in str(value):
            reader.fail(line, f"invalid function {value!r}; use file.py:function")
        steps.append(PipelineStep(kind=kind, value=value, line=line))
    return steps


def _choice(reader: YamlReader, value: LinedMapping, name: str, known: Sequence[str]) -> None:
    if name in value and value[name] not in known:
        reader.fail(value.line_of(name), f"invalid {name} {value[name]!r}{hint(str(value[name]), known)}")


def _sinks(reader: YamlReader, top: LinedMapping) -> list[SinkEntry]:
    sinks = []
    for item in _list(reader, top, "sinks"):
        if item == "console":
            sinks.append(SinkEntry(kind="console", options={}, line=top.line_of("sinks")))
            continue
        kind, value, line = reader.one_of(item, SINKS, "sink", top.line_of("sinks"))
        if kind in ("delta", "parquet"):
            compact_too = ("compact",) if kind == "delta" else ()
            value = reader.mapping(value, kind, line, ("path", "partition", "columns", "codec", *compact_too))
            if not value.get("path"):
                reader.fail(line, f"{kind} has no path")
            compact = str(value.get("compact", "1h"))
            _checked(reader, value.line_of("compact"), "compact", partial(parse_duration_ms, compact))
        elif kind == "rocketmq":
            if not isinstance(value, LinedMapping) or not (value.get("topic")):
                reader.fail(line, "rocketmq has no topic")
        sinks.append(SinkEntry(kind=kind, options=value or {}, line=line))
    if not sinks:
        reader.fail(top.line_of("sinks"), "no sink given")
    return sinks


def _rejects(reader: YamlReader, top: LinedMapping) -> Mapping[str, str]:
    if "rejects" not in top:
        return {}
    rejects = reader.mapping(top["rejects"], "rejects", top.line_of("rejects"), REJECT_KEYS)
    if not any(rejects.values()):
        reader.fail(rejects.line, f"rejects needs one of {', '.join(REJECT_KEYS)}")
    if "topic" in rejects and (fault := topic_name_error(str(rejects["topic"]))):
        reader.fail(rejects.line_of("topic"), f"topic {rejects['topic']!r}: {fault}")
    return rejects


def _need_rejects(reader: YamlReader, top: LinedMapping, line: int, alternative: str) -> None:
    """Rejects need an output: without one they would be dropped silently."""
    if "rejects" not in top:
        reader.fail(line, f"missing rejects; add it, or use {alternative}")


def _quality(reader: YamlReader, top: LinedMapping) -> list[QualityRule]:
    rules = []
    for item in _list(reader, top, "quality"):
        rule = reader.mapping(item, "a rule", top.line_of("quality"), ("expect", "on_fail"))
        if not rule.get("expect"):
            reader.fail(rule.line, "a rule needs expect, a condition such as `orderId is not null`")
        _choice(reader, rule, "on_fail", ON_FAIL)
        on_fail = rule.get("on_fail", "reject")
        if on_fail == "reject":
            _need_rejects(reader, top, rule.line, "on_fail: drop")
        rules.append(QualityRule(expect=str(rule["expect"]), on_fail=on_fail, line=rule.line))
    return rules


def _cluster(reader: YamlReader, top: LinedMapping) -> ClusterEntry:
    if "cluster" not in top:
        return ClusterEntry()
    given = reader.mapping(top["cluster"], "cluster", top.line_of("cluster"), CLUSTER_KEYS)
    is_packed = given.get("pack", False)
    if not isinstance(is_packed, bool):
        reader.fail(given.line_of("pack"), f"invalid pack {is_packed!r}; use true or false")
    conf = given.get("conf", {})
    if not isinstance(conf, dict):
        reader.fail(given.line_of("conf"), f"conf is {kind_of(conf)}; it must be a mapping of Spark settings")
    return ClusterEntry(
        master=given.get("master"),
        remote=given.get("remote"),
        pack=is_packed,
        conf={name: _setting(value) for name, value in conf.items()},
    )


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
