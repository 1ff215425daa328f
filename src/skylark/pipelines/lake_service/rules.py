"""Which topics are archived to which tables: the rule file of `skylark lake`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from skylark.errors import SettingsError
from skylark.model.archived_topics import ArchivedTopics, is_named
from skylark.model.names import NO_LAKE_TABLE
from skylark.pipelines.jobs.endpoints import Output, parse_output
from skylark.pipelines.lake.upkeep import VACUUM_HOURS, UpkeepRules
from skylark.pipelines.offsets import split_names
from skylark.pipelines.yaml_file import LinedMapping, YamlReader
from skylark.quantities import parse_bytes, parse_duration_ms

T = TypeVar("T")
N = TypeVar("N", int, None)

TOP = ("namesrv", "group", "tables", "skip")
NEEDED = ("tables",)
TABLE_KEYS = (
    "name",
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
    """A table and the topics that belong to it: those whose attribute `lake.table` is its name, too."""

    output: Output
    topics: tuple[str, ...] = ()
    """Names and regular expressions, for topics without that attribute."""
    given_name: str | None = None
    delay_s: float = parse_duration_ms(DELAY) / 1000
    """Messages are committed this often while there are any."""
    batch_bytes: int = parse_bytes(BATCH)
    decode: str | None = None
    """`json`: fields of bodies become columns."""
    maintain_s: float | None = None
    """The table is maintained this often."""
    upkeep: UpkeepRules = field(default_factory=UpkeepRules)

    def __post_init__(self) -> None:
        if self.name == NO_LAKE_TABLE:
            raise SettingsError("name", f"{NO_LAKE_TABLE!r} means no table; use another name")
        if not self.output.is_table:
            raise SettingsError("to", f"invalid table {self.output}; use delta:DIR, parquet:DIR or iceberg:…")
        if self.decode not in (None, "json"):
            raise SettingsError("decode", f"invalid value {self.decode!r}; use json, or leave it out")
        if self.decode is not None and (self.output.kind == "parquet" or self.output.options.get("columns")):
            raise SettingsError("decode", "not supported for Parquet directories and with columns")
        if self.output.kind == "parquet" and self.maintain_s is not None:
            raise SettingsError("maintain", f"not supported for {self.output}; use a Delta or Iceberg table")

    @property
    def name(self) -> str:
        """As given, else the last part of its address."""
        return self.given_name or re.split(r"[/.:]", str(self.output).rstrip("/"))[-1]

    @property
    def source_topics(self) -> str:
        """What a source reads at most, as its option."""
        return ",".join(self.topics) or ".*"

    def chooses(self, topic: str) -> bool:
        """Return whether it names the topic. Raises SettingsError."""
        return is_named(topic, self.topics)


@dataclass(frozen=True, kw_only=True)
class LakeRules:
    """All tables of a lake. The attribute of a topic decides, else the first table that chooses it."""

    namesrv: str
    group: str = GROUP
    tables: Sequence[LakeTable] = field(default_factory=tuple)
    skip: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        places = [str(table.output) for table in self.tables]
        if twice := {place for place in places if places.count(place) > 1}:
            raise SettingsError("to", f"{min(twice)} is named twice; give all its topics in one place")
        self.archived.encode()  # what brokers would refuse

    @property
    def archived(self) -> ArchivedTopics:
        """What brokers must know to keep it."""
        return ArchivedTopics(
            tables=tuple(table.name for table in self.tables),
            topics=tuple(topic for table in self.tables for topic in table.topics),
            skip=self.skip,
        )

    def topics_of(
        self, table: LakeTable, known: Iterable[str], attributes: Mapping[str, str] | None = None
    ) -> list[str]:
        """The topics of a table among those that exist; `attributes` has the `lake.table` of some.

        Raises SettingsError.
        """
        named = attributes or {}
        return sorted(topic for topic in known if self.table_of(topic, named.get(topic)) is table)

    def table_of(self, topic: str, attribute: str | None = None) -> LakeTable | None:
        """The table of a topic; None if it is not archived. Raises SettingsError."""
        if is_named(topic, self.skip):
            return None
        if attribute is not None:
            return next((table for table in self.tables if table.name == attribute), None)
        return next((table for table in self.tables if table.chooses(topic)), None)


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
    if not entry.get("to"):
        reader.fail(entry.line, "a table needs to")
    every = entry.get("maintain")
    made = _named(
        reader,
        entry.line,
        lambda: LakeTable(
            topics=_names(entry.get("topics")),
            given_name=None if entry.get("name") is None else str(entry["name"]),
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
