"""Pure. Tables that fit a terminal: long texts are cut, columns that do not fit follow below their row.

Ids, offsets, times and names are never cut or broken, so that they can be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = 2
LONG_CELLS_MIN = 16
"""A column of long texts is not cut below this width: it moves below the row instead."""
ELLIPSIS = "…"
RULE = "─"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and its texts. `is_long` texts may be cut; others never."""

    name: str
    texts: Sequence[str]
    is_number: bool = False
    is_long: bool = False

    @property
    def heading(self) -> list[str]:
        """Lines of the heading: broken at spaces if it is wider than the texts."""
        is_wider = len(self.name) > max(map(cell_len, self.texts), default=len(self.name))
        return self.name.split(" ") if is_wider else [self.name]

    @property
    def width(self) -> int:
        return max(map(cell_len, (*self.heading, *self.texts)))


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of a table."""

    heading: list[Text]
    rows: list[Text]


def lay_out(columns: Sequence[Column], width: int | None) -> Layout:
    """Without `width`, nothing is cut or moved."""
    widths = [column.width for column in columns]
    beside, below = list(range(len(columns))), list[int]()
    if width is not None:
        beside, below = _fit(columns, widths, width)
    heading = _heading([columns[number] for number in beside], [widths[number] for number in beside])
    lines: list[Text] = []
    for row in range(len(columns[0].texts) if columns else 0):
        cells = [
            _padded(columns[number].texts[row], widths[number], is_right=columns[number].is_number)
            for number in beside
        ]
        lines.append(Text((" " * GAP).join(cells).rstrip()))
        if below and width is not None:
            lines += _below([columns[number] for number in below], row, width)
    return Layout(heading, lines)


def _fit(columns: Sequence[Column], widths: list[int], width: int) -> tuple[list[int], list[int]]:
    """Cut `widths` of long columns; return the columns of a row and those below it.

    Long columns are cut from the last to the first, then moved in that order, then the others.
    """
    beside, below = list(range(len(columns))), list[int]()
    long = [number for number in reversed(beside) if columns[number].is_long]
    rigid = [number for number in reversed(beside) if not columns[number].is_long]

    def excess() -> int:
        return sum(widths[number] for number in beside) + GAP * (len(beside) - 1) - width

    for number in long:
        widths[number] -= min(max(excess(), 0), max(widths[number] - LONG_CELLS_MIN, 0))
    for number in (*long, *rigid[:-1]):
        if excess() <= 0:
            break
        beside.remove(number)
        below.append(number)
    return beside, sorted(below)


def _heading(columns: Sequence[Column], widths: Sequence[int]) -> list[Text]:
    headings = [column.heading for column in columns]
    height = max(map(len, headings), default=0)
    lines = []
    for line in range(height):
        words = [
            _padded(
                heading[line - height + len(heading)] if line >= height - len(heading) else "",
                width,
                is_right=column.is_number,
            )
            for column, heading, width in zip(columns, headings, widths, strict=True)
        ]
        lines.append(Text((" " * GAP).join(words).rstrip(), style="bold"))
    return [*lines, Text(RULE * (sum(widths) + GAP * (len(widths) - 1)))]


def _padded(text: str, width: int, *, is_right: bool) -> str:
    shown = cut(text, width)
    room = " " * (width - cell_len(shown))
    return room + shown if is_right else shown + room


def cut(text: str, width: int) -> str:
    """At most `width` cells; an ellipsis stands for the rest."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + ELLIPSIS


def _below(columns: Sequence[Column], row: int, width: int) -> list[Text]:
    """The other columns of a row, each with its name; empty ones are left out."""
    lines: list[Text] = []
    for column in columns:
        if not (text := column.texts[row]):
            continue
        name = f"{column.name} "
        taken = cell_len(lines[-1].plain) if lines else width
        needed = GAP + cell_len(name) + (LONG_CELLS_MIN if column.is_long else cell_len(text))
        if taken + min(needed, GAP + cell_len(name) + cell_len(text)) > width:
            lines.append(Text())
            taken = 0
        lines[-1].append(" " * GAP).append(name, style="dim")
        room = max(width - taken - GAP - cell_len(name), 1)
        lines[-1].append(cut(text, room) if column.is_long else text)
    return lines
