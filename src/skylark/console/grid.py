"""Pure. Tables of the console: rows of plain values that become HTML, JSON or CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

UNKNOWN = "\u2013"
ROWS_MAX = 50
"""Rows of a page; only these cost requests of their own."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would compute a cell that starts so."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NUMBERS = frozenset({"number", "rate", "bytes", "percent", "lag", "duration"})
LEVELS = {
    "follows": "good", "online": "good", "ok": "good", "running": "good", "master": "good",
    "consumed": "good", "sent": "good", "ready": "good", "finished": "good",
    "behind": "warn", "note": "warn", "retrying": "warn", "slave": "off", "waiting": "warn",
    "stands": "bad", "fault": "bad", "failed": "bad", "away": "bad", "nobody": "bad", "dead": "bad",
    "idle": "off", "unknown": "off", "broadcast": "off", "undone": "off", "offline": "off",
    "stopped": "off", "silent": "bad", "leader": "good", "follower": "off",
}  # fmt: skip
"""How a state is coloured; the word is shown, too."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class GridColumn:
    """A key of the rows; `href` makes a cell a link."""

    key: str
    kind: str = "text"
    href: Callable[[Row], str | None] | None = None
    optional: bool = False
    """Not shown while no row has a value."""

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS


@dataclass(frozen=True)
class Grid:
    """A table. `total` counts all rows, of which a page shows some."""

    name: str
    columns: Sequence[GridColumn]
    rows: Sequence[Row]
    total: int | None = None
    page: int = 1
    sort: str = ""
    sortable: frozenset[str] = field(default_factory=frozenset)
    choosable: str = ""
    """The key whose value a check box per row sends."""

    @property
    def shown_columns(self) -> list[GridColumn]:
        return [
            column
            for column in self.columns
            if not column.optional or any(row.get(column.key) not in (None, "", 0) for row in self.rows)
        ]

    @property
    def pages(self) -> int:
        return max(1, math.ceil((self.total if self.total is not None else len(self.rows)) / ROWS_MAX))

    def document(self) -> list[dict[str, Any]]:
        keys = [column.key for column in self.columns]
        return [{key: row.get(key) for key in keys} for row in self.rows]

    def csv(self) -> str:
        """Cells that a spreadsheet would compute are quoted with an apostrophe."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow([column.key for column in self.columns])
        for row in self.rows:
            writer.writerow([_csv_cell(row.get(column.key)) for column in self.columns])
        return out.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, list | tuple):
        value = " ".join(map(str, value))
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return "" if value is None else value


def arranged(
    grid: Grid, *, text: str = "", sort: str = "", page: int = 1, in_columns: Iterable[str] = ()
) -> Grid:
    """The rows that contain a text, sorted by `key` or `-key`, of one page."""
    rows = list(grid.rows)
    if word := text.strip().lower():
        keys = tuple(in_columns) or tuple(column.key for column in grid.columns)
        rows = [row for row in rows if any(word in _searched(row.get(key)) for key in keys)]
    key = sort.removeprefix("-")
    if key in grid.sortable:
        known = [row for row in rows if row.get(key) is not None]
        known.sort(key=lambda row: row[key], reverse=sort.startswith("-"))
        rows = known + [row for row in rows if row.get(key) is None]
    else:
        sort = ""
    total = len(rows)
    page = min(max(1, page), max(1, math.ceil(total / ROWS_MAX)))
    start = (page - 1) * ROWS_MAX
    return replace(grid, rows=rows[start : start + ROWS_MAX], total=total, page=page, sort=sort)


def _searched(value: object) -> str:
    return " ".join(map(str, value)).lower() if isinstance(value, list | tuple) else str(value).lower()


# --- Cells as text ---


def shown(value: Any, kind: str = "text") -> str:
    """The text of a cell; unknown is a dash, never 0."""
    if value is None or value == "":
        return UNKNOWN
    match kind:
        case "number" | "lag":
            return f"{value:,}"
        case "rate":
            return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
        case "percent":
            return f"{value:.0%}"
        case "bytes":
            return format_size(value)
        case "duration":
            return format_duration(value)
        case "time":
            return format_moment(value)
        case _:
            if isinstance(value, list | tuple):
                return ", ".join(map(str, value)) or UNKNOWN
            return str(value)


def format_size(size: float) -> str:
    amount, unit = float(size), UNITS[0]
    for unit in UNITS:
        if amount < 1024 or unit == UNITS[-1]:
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def format_duration(milliseconds: float) -> str:
    seconds = milliseconds / 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{milliseconds:.0f} ms"


def format_moment(time_ms: int) -> str:
    """UTC; the page's script shows the reader's zone."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.isoformat(" ", "milliseconds").removesuffix("+00:00")
