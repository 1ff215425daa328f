"""Printing: tables and colours on a terminal, tab-separated lines elsewhere, JSON on request, live views."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from skylark.cli.table import Column, Layout, lay_out
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from rich.progress import Progress

EXIT_INCOMPLETE = 1
NOT_KNOWN = "-"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
AGES_S = {"d": 86_400, "h": 3600, "min": 60}
WIDE = ContextVar("WIDE", default=False)
"""Whether tables are printed in full width (`--wide`)."""


class Screen:
    """Standard output and standard error, as they are when it is made."""

    def __init__(self) -> None:
        self.out = Console(highlight=False, soft_wrap=True)
        self.err = Console(stderr=True, highlight=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        self.out.print(Text(clean(text), style=style))

    def warn(self, text: str) -> None:
        self.err.print(Text(f"skylark: {clean(text)}", style="yellow"))

    def section(self, title: str, lines: Iterable[str], style: str = "bold") -> None:
        """A title and indented lines; prints nothing without lines."""
        for number, text in enumerate(lines):
            if number == 0:
                self.line()
                self.line(title, style)
            self.line(f"  {text}")

    def cells(self, cells: Sequence[object]) -> None:
        """One tab-separated line."""
        sys.stdout.write("\t".join(clean(str(cell)) for cell in cells) + "\n")

    def facts(self, facts: Sequence[tuple[str, object]]) -> None:
        """Names and values, one pair per line."""
        width = max((len(name) for name, _ in facts), default=0)
        for name, value in facts:
            if self.out.is_terminal:
                self.out.print(Text(f"{name:<{width}}  ", style="bold"), Text(clean(str(value))), sep="")
            else:
                self.cells((name.strip(), value))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, long: Sequence[str] = ()
    ) -> None:
        """Texts of the columns in `long` are cut if a row does not fit the terminal."""
        if not self.out.is_terminal:
            for row in (columns, *rows):
                self.cells(row)
            return
        self.out.print(Group(*(table := self.layout(columns, rows, long=long)).heading, *table.rows))
        if not rows:
            self.line("none", "dim")

    def layout(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, long: Sequence[str] = ()
    ) -> Layout:
        """For a terminal: numbers are right-aligned, times of today have no date (but with `--wide`)."""
        wide, today = WIDE.get(), datetime.now().date()
        parts = []
        for number, name in enumerate(columns):
            cells = [row[number] for row in rows]
            texts = [
                clean(str(cell) if wide or not isinstance(cell, When) else cell.short(today))
                for cell in cells
            ]
            is_number = bool(cells) and all(isinstance(cell, int | float | Rate) for cell in cells)
            parts.append(Column(name, texts, is_number, name in long))
        return lay_out(parts, None if wide else self.out.width)

    @contextmanager
    def progress(self, title: str, *, in_bytes: bool) -> Iterator[tuple[Progress, Any]]:
        """A transient bar on standard error, if that is a terminal."""
        from rich.progress import (  # noqa: PLC0415 - most commands show none
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        counter = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
        columns = (TextColumn(title), BarColumn(), counter, TimeRemainingColumn())
        shown = self.err.is_terminal
        with Progress(*columns, console=self.err, transient=True, disable=not shown) as progress:
            yield progress, progress.add_task(title, total=None)


def print_json(value: object) -> None:
    """One document on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def clean(text: str) -> str:
    """Replace control characters: message contents must not steer the terminal or break a line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\u00b7" for char in text)


# --- Values ---


def counted(number: int, one: str, many: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {one if number == 1 else many}"


def format_bytes(size: int) -> str:
    amount = float(size)
    for unit in UNITS:
        if amount < 1024 or unit == UNITS[-1]:
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def format_time(timestamp_ms: int | None) -> str:
    """Local time with milliseconds; the number itself if `datetime` cannot represent it."""
    if timestamp_ms is None:
        return NOT_KNOWN
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


@dataclass(frozen=True, slots=True)
class When:
    """Milliseconds since 1970: a local time in tables, the number in JSON."""

    ms: int | None

    def __str__(self) -> str:
        return format_time(self.ms)

    def short(self, today: date) -> str:
        """Without the date if it is today."""
        return str(self).removeprefix(f"{today} ")


@dataclass(frozen=True, slots=True)
class Age:
    """Milliseconds since 1970: an age in tables, the number in JSON."""

    ms: int | None
    now_ms: int

    def __str__(self) -> str:
        if self.ms is None:
            return NOT_KNOWN
        seconds = max(self.now_ms - self.ms, 0) // 1000
        for unit, length_s in AGES_S.items():
            if seconds >= 2 * length_s:
                return f"{seconds // length_s} {unit}"
        return f"{seconds} s"


@dataclass(frozen=True, slots=True)
class Share:
    """A ratio, 0.0 to 1.0: a percentage in tables."""

    ratio: float

    def __str__(self) -> str:
        return f"{self.ratio:.0%}"


@dataclass(frozen=True, slots=True)
class Rate:
    """A count per second, None if it is not known yet."""

    per_s: float | None

    def __str__(self) -> str:
        return NOT_KNOWN if self.per_s is None else f"{self.per_s:,.1f}"


# --- Listings ---


@dataclass(frozen=True)
class Listing:
    """Columns and rows, facts above them, and the servers that did not answer, by address.

    As JSON it is a list of objects, or with facts an object that holds the list as `items`. Servers that did
    not answer do not change the shape. On a terminal, texts of the columns in `long` may be cut.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    facts: Sequence[tuple[str, object]] = ()
    failures: Mapping[str, RocketMQError] = field(default_factory=dict)
    items: str = "rows"
    long: Sequence[str] = ()

    def document(self) -> object:
        names = [_member(column) for column in self.columns]
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in self.rows]
        if not self.facts:
            return rows
        failures = {address: str(error) for address, error in self.failures.items()}
        facts = {_member(name): _plain(value) for name, value in self.facts}
        return {**facts, self.items: rows, **({"failures": failures} if failures else {})}

    def show(self, screen: Screen, *, as_json: bool) -> None:
        if as_json:
            print_json(self.document())
        else:
            screen.facts([(name, _text(value)) for name, value in self.facts])
            if self.facts and screen.out.is_terminal:
                screen.line()
            screen.table(self.columns, self._cells(), long=self.long)
        for sentence in self.failure_sentences():
            screen.warn(sentence)

    def failure_sentences(self) -> list[str]:
        return [f"no answer from {address}: {error}" for address, error in self.failures.items()]

    def renderable(self, screen: Screen) -> RenderableType:
        """For a live view."""
        facts = [Text(f"{name}  {clean(str(_text(value)))}") for name, value in self.facts]
        facts += [Text()] if facts else []
        warnings = [Text(clean(text), style="yellow") for text in self.failure_sentences()]
        table = self.layout(screen)
        return Group(*facts, *table.heading, *table.rows, *warnings)

    def layout(self, screen: Screen) -> Layout:
        """The lines of the table on a terminal."""
        return screen.layout(self.columns, self._cells(), long=self.long)

    def _cells(self) -> list[list[object]]:
        return [[_cell(cell) for cell in row] for row in self.rows]


def show(listing: Listing, *, as_json: bool) -> None:
    """Print a listing. Exit code 1 if some servers did not answer."""
    listing.show(Screen(), as_json=as_json)
    if listing.failures:
        raise typer.Exit(EXIT_INCOMPLETE)


def show_or_watch(
    sample: Callable[[Rates | None, float], Listing], *, watch: bool, every_s: float, as_json: bool
) -> None:
    """Print one sample, or with `watch` new ones until q or Ctrl-C; those get rates and the time for them."""
    if not watch:
        show(sample(None, 0.0), as_json=as_json)
        return
    rates = Rates()
    show_live(lambda: sample(rates, time.monotonic()), as_json=as_json, every_s=every_s)


def show_live(make: Callable[[], Listing], *, as_json: bool, every_s: float) -> None:
    """Print new listings until q or Ctrl-C: in place on a terminal, one after the other elsewhere.

    An error of the servers is shown instead of a listing, and the next one is tried.
    """
    from rich.live import Live  # noqa: PLC0415 - most commands show none

    from skylark.cli.keyboard import Keyboard  # noqa: PLC0415

    screen = Screen()
    try:
        if as_json or not screen.out.is_terminal:
            while True:
                try:
                    make().show(screen, as_json=as_json)
                except RocketMQError as error:
                    screen.warn(str(error))
                screen.out.file.flush()
                time.sleep(every_s)
        with (
            Keyboard() as keyboard,
            Live(console=screen.out, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            live.update(_or_error(make, screen), refresh=True)
            while "q" not in keyboard.read(every_s):
                live.update(_or_error(make, screen), refresh=True)
    except KeyboardInterrupt:
        return


def _or_error(make: Callable[[], Listing], screen: Screen) -> RenderableType:
    try:
        return make().renderable(screen)
    except RocketMQError as error:
        return Text(f"skylark: {clean(str(error))}", style="yellow")


class Rates:
    """Growth of counters between two samples."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, int]] = {}

    def per_s(self, counter: Hashable, count: int, now_s: float) -> Rate:
        """Unknown for the first sample, and if no time has passed; 0 for a counter that went back."""
        last = self._last.get(counter)
        self._last[counter] = (now_s, count)
        if last is None or now_s <= last[0]:
            return Rate(None)
        return Rate(max(0, count - last[1]) / (now_s - last[0]))


def done(sentence: str, document: Mapping[str, object], *, as_json: bool) -> None:
    """Print the result of a change."""
    if as_json:
        print_json({name: _plain(value) for name, value in document.items()})
    else:
        Screen().line(sentence)


def _member(column: str) -> str:
    return column.strip().replace("/", "_per_").replace(" ", "_")


def _plain(value: object) -> object:
    if isinstance(value, When | Age):
        return value.ms
    if isinstance(value, Rate):
        return value.per_s
    if isinstance(value, Share):
        return value.ratio
    return value


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOT_KNOWN if value is None else value


def _cell(value: object) -> object:
    """Lists are joined; numbers stay numbers, which the table right-aligns."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return _text(value)
