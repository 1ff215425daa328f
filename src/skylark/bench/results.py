"""The format of result files, and their presentation as a table and an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from skylark import __version__
from skylark.bench.latencies import LatencyHistogram, Percentiles
from skylark.bench.machine import Machine, describe
from skylark.html_report import Chart, HtmlReport, Section, render

SCHEMA = 1
"""Version of the format; incremented when a member changes or disappears."""

Value = str | int | float | bool | None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Times and counts cover the measured window, without warm-up and last replies."""

    name: str
    settings: dict[str, Value] = {}
    operations: int
    """Messages, rows or requests answered in the window."""
    unit: str = "messages"
    seconds: float
    per_s: float
    mib_per_s: float | None = None
    failed: int = 0
    latency_us: Percentiles | None = None
    hdr: str = ""
    """The latencies in HdrHistogram's format."""
    server_cpu_us: float | None = None
    """Processor time of the server per operation."""
    client_cpu_us: float | None = None
    anonymous_mib: float | None = None
    """Memory of the server at the end, without mapped files."""
    series: list[tuple[float, int]] = []
    """Seconds since the start, and operations so far."""
    figures: dict[str, Value] = {}
    """Figures of this benchmark only."""
    wrong: list[str] = []
    """Reasons why the cell is void, one sentence each."""

    @property
    def is_void(self) -> bool:
        return bool(self.wrong)

    def beside(self, first: Cell, **figures: Value) -> Cell:
        """This cell with rate and server time relative to the first cell, and more figures."""
        shares = {
            "rate_of_first": (self.per_s, first.per_s),
            "server_time_of_first": (self.server_cpu_us, first.server_cpu_us),
        }
        found = {name: round(own / others, 3) for name, (own, others) in shares.items() if own and others}
        return msgspec.structs.replace(self, figures={**self.figures, **figures, **found})


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    """The head of every result file: time, version, machine and conditions of a run."""

    schema: int = SCHEMA
    benchmark: str
    made_at: str
    skylark: str
    machine: Machine
    conditions: dict[str, Value]

    @classmethod
    def now(cls, benchmark: str, conditions: Mapping[str, Value], **found: Any) -> Self:
        """The result of a run that ends now. `found` are the members of the subclass."""
        return cls(
            benchmark=benchmark,
            made_at=datetime.now(UTC).isoformat(" ", "seconds"),
            skylark=__version__,
            machine=describe(),
            conditions=dict(conditions),
            **found,
        )


class Document(ResultFile, frozen=True, kw_only=True):
    """A run of cells, as `--json` and `--out` write it."""

    cells: list[Cell]
    notes: list[str] = []


def make_cell(
    name: str,
    operations: int,
    seconds: float,
    *,
    latencies: LatencyHistogram | None = None,
    operation_bytes: int = 0,
    **more: Any,
) -> Cell:
    """A cell with computed rates. `more` are members of Cell."""
    per_s = operations / seconds if seconds else 0.0
    return Cell(
        name=name,
        operations=operations,
        seconds=round(seconds, 3),
        per_s=round(per_s, 1),
        mib_per_s=round(per_s * operation_bytes / (1 << 20), 2) if operation_bytes else None,
        latency_us=latencies.percentiles() if latencies is not None and len(latencies) else None,
        hdr=latencies.encode() if latencies is not None and len(latencies) else "",
        **more,
    )


def make_document(
    benchmark: str, conditions: Mapping[str, Value], cells: Sequence[Cell], notes: Sequence[str] = ()
) -> Document:
    return Document.now(benchmark, conditions, cells=list(cells), notes=list(notes))


def encode(found: ResultFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def decode(data: bytes) -> Document:
    """Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=Document)


# --- Presentation ---

COLUMNS = ("cell", "per s", "MiB/s", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "server µs", "verdict")


def table(cells: Sequence[Cell]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows, without columns that are empty in all cells."""
    rows = [_row(cell) for cell in cells]
    kept = [place for place in range(len(COLUMNS)) if any(row[place] is not None for row in rows)]
    return [COLUMNS[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _row(cell: Cell) -> list[Any]:
    latency = cell.latency_us
    times = [latency.p50, latency.p99, latency.p999, latency.max] if latency is not None else [None] * 4
    verdict = "void: " + "; ".join(cell.wrong) if cell.wrong else None
    return [cell.name, round(cell.per_s), cell.mib_per_s, *times, cell.server_cpu_us, verdict]


def report(document: Document, more: Sequence[Section] = ()) -> HtmlReport:
    """The contents of the page: `more`, then rates, latencies, the series over time, conditions."""
    sections = [*more, _rates(document.cells)]
    sections += [section for make in (_latencies, _course) if (section := make(document.cells)).rows]
    if extra := figure_rows(document.cells):
        sections.append(Section("figures", "Other figures", ["cell", "figure", "value"], extra))
    sections.append(conditions_section(document, " ".join(document.notes)))
    return HtmlReport(f"skylark bench {document.benchmark}", document.made_at, sections)


def figure_rows(cells: Sequence[Cell]) -> list[list[Any]]:
    """Rows of cell, figure and value."""
    return [[cell.name, name, value] for cell in cells for name, value in cell.figures.items()]


def page(document: Document, more: Sequence[Section] = ()) -> str:
    """The run as a self-contained HTML page."""
    return render(report(document, more))


def _rates(cells: Sequence[Cell]) -> Section:
    columns, rows = table(cells)
    units = ", ".join(dict.fromkeys(cell.unit for cell in cells))
    return Section("rates", "Rates", columns, rows, Chart(label="cell", value="per s", unit=f"{units}/s"))


def _latencies(cells: Sequence[Cell]) -> Section:
    rows = [
        [cell.name, percent, microseconds]
        for cell in cells
        if cell.hdr
        for percent, microseconds in _curve(cell)
    ]
    chart = Chart(label="percent", value="µs", series="cell", unit="µs", kind="lines", is_logarithmic=True)
    return Section("latencies", "LatencyHistogram", ["cell", "percent", "µs"], rows, chart)


def _curve(cell: Cell) -> list[tuple[str, float]]:
    return [(f"{percent:g}", value) for percent, value in LatencyHistogram.decode(cell.hdr).curve()]


def _course(cells: Sequence[Cell]) -> Section:
    rows: list[list[Any]] = []
    for cell in cells:
        before_s, before = 0.0, 0
        for second, operations in cell.series:
            rows.append([cell.name, second, round((operations - before) / max(second - before_s, 1e-9))])
            before_s, before = second, operations
    chart = Chart(label="second", value="per s", series="cell", unit="per s", kind="lines")
    return Section("course", "Over time", ["cell", "second", "per s"], rows, chart)


def conditions_section(found: ResultFile, note: str = "") -> Section:
    """Machine and conditions of a run."""
    facts = {"skylark": found.skylark, **msgspec.structs.asdict(found.machine), **found.conditions}
    rows = [[name, "" if value is None else str(value)] for name, value in facts.items()]
    return Section("conditions", "Conditions", ["what", "value"], rows, note=note)
