"""Which topics are archived to which tables: the rule file of `skylark lake`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from skylark.errors import SettingsError
from skylark.pipelines.jobs.endpoints import Output, parse_output
from skylark.pipelines.lake.upkeep import VACUUM_HOURS, UpkeepRules
from skylark.pipelines.offsets import split_names, topic_matcher
from skylark.pipelines.yaml_file import LinedMapping, YamlReader
from skylark.quantities import parse_bytes, parse_duration_ms

T = TypeVar("T")
N = TypeVar("N", int, None)

TOP = ("namesrv", "group", "tables", "skip")
NEEDED = ("tables",)
TABLE_KEYS = (
    "topics",
    "to",
    "delay",
    "batch",
    "partition",
    "columns",
    "decode",
    "maintain",
    "keep_days",
    "vacuum_hours",
)
GROUP = "lake"
DELAY = "30s"
BATCH = "256MB"
PARTITION = "dt,topic"


@dataclass(frozen=True, kw_only=True)
class LakeTable:
    """A table and the topics that belong to it."""

    topics: tuple[str, ...]
    """Names and regular expressions."""
    output: Output
    delay_s: float = parse_duration_ms(DELAY) / 1000
    """Messages are committed this often while there are any."""
    batch_bytes: int = parse_bytes(BATCH)
    decode: str | None = None
    """`json`: fields of bodies become columns."""
    maintain_s: float | None = None
    """The table is maintained this often."""
    upkeep: UpkeepRules = field(default_factory=UpkeepRules)

    def __post_init__(self) -> None:
        if not self.topics:
            raise SettingsError("topics", "no topics given; use names or patterns, separated by commas")
        if not self.output.is_table:
            raise SettingsError("to", f"invalid table {self.output}; use delta:DIR, parquet:DIR or iceberg:…")
        if self.decode not in (None, "json"):
            raise SettingsError("decode", f"invalid value {self.decode!r}; use json, or leave it out")
        if self.decode is not None and (self.output.kind == "parquet" or self.output.options.get("columns")):
            raise SettingsError("decode", "not supported for Parquet directories and with columns")
        if self.output.kind == "parquet" and self.maintain_s is not None:
            raise SettingsError("maintain", f"not supported for {self.output}; use a Delta or Iceberg table")

    def chooses(self, topic: str) -> bool:
        """Return whether it names the topic. Raises SettingsError."""
        return _is_named(topic, self.topics)


@dataclass(frozen=True, kw_only=True)
class LakeRules:
    """All tables of a lake. The first one that chooses a topic has it."""

    namesrv: str
    group: str = GROUP
    tables: Sequence[LakeTable] = field(default_factory=tuple)
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        places = [str(table.output) for table in self.tables]
        if twice := {place for place in places if places.count(place) > 1}:
            raise SettingsError("to", f"{min(twice)} is named twice; give all its topics in one place")

    def topics_of(self, table: LakeTable, known: Iterable[str]) -> list[str]:
        """The topics of a table among those that exist. Raises SettingsError."""
        return sorted(topic for topic in known if self.table_of(topic) is table)

    def table_of(self, topic: str) -> LakeTable | None:
        """The table of a topic; None if it is not archived. Raises SettingsError."""
        if _is_named(topic, self.skip):
            return None
        return next((table for table in self.tables if table.chooses(topic)), None)


def _is_named(topic: str, items: Sequence[str]) -> bool:
    return topic in items or any(topic_matcher(item)(topic) for item in items)


def load_rules(path: Path, namesrv: str | None = None) -> LakeRules:
    """Read a rule file; `namesrv` is used if the file names none. Raises BadSettingsFile, OSError."""
    reader = YamlReader(path)
    top = reader.mapping(reader.read(NEEDED), "the file", 1, TOP)
    addresses = top.get("namesrv") or namesrv
    if not addresses:
        reader.fail(1, "missing namesrv; add it, or pass --namesrv")
    if not isinstance(top.get("tables"), list) or not top["tables"]:
        reader.fail(top.line_of("tables"), "tables must be a list with at least one table")
    tables = [_table(reader, item, top.line_of("tables")) for item in top["tables"]]
    return _named(
        reader,
        top.line_of("tables"),
        lambda: LakeRules(
            namesrv=str(addresses),
            group=str(top.get("group") or GROUP),
            tables=tables,
            skip=_names(top.get("skip")),
        ),
    )


def _table(reader: YamlReader, item: Any, line: int) -> LakeTable:
    entry = reader.mapping(item, "a table", line, TABLE_KEYS)
    for needed in ("topics", "to"):
        if not entry.get(needed):
            reader.fail(entry.line, f"a table needs {needed}")
    every = entry.get("maintain")
    made = _named(
        reader,
        entry.line,
        lambda: LakeTable(
            topics=_names(entry["topics"]),
            output=parse_output(
                str(entry["to"]),
                partitionBy=",".join(_names(entry.get("partition") or PARTITION)),
                columns=",".join(_names(entry.get("columns"))) or None,
            ),
            delay_s=parse_duration_ms(str(entry.get("delay") or DELAY)) / 1000,
            batch_bytes=parse_bytes(str(entry.get("batch") or BATCH)),
            decode=entry.get("decode"),
            maintain_s=parse_duration_ms(str(every)) / 1000 if every else None,
            upkeep=UpkeepRules(
                keep_days=_count(entry, "keep_days", None),
                vacuum_hours=_count(entry, "vacuum_hours", VACUUM_HOURS),
            ),
        ),
    )
    _named(reader, entry.line_of("topics"), lambda: made.chooses(""))
    return made


def _named(reader: YamlReader, line: int, make: Callable[[], T]) -> T:
    """What `make` returns; its errors get the line."""
    try:
        return make()
    except SettingsError as error:
        reader.fail(line, f"{error.name}: {error.reason}")
    except ValueError as error:
        reader.fail(line, str(error))


def _names(value: Any) -> tuple[str, ...]:
    """A list, or a text with commas."""
    return tuple(str(item) for item in value) if isinstance(value, list) else tuple(split_names(value or ""))


def _count(entry: LinedMapping, name: str, otherwise: N) -> int | N:
    value = entry.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name}: invalid number {value!r}; use a whole number")
    return value
