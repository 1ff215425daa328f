"""The screen of `skylark top`: three tables that keys sort and scroll. Without IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.text import Text

from skylark.cli.output import Listing, Rate, Screen, Share, clean
from skylark.cli.table import cut

FOOT = "q quit  Tab next table  ←→ sort by  r reverse  ↑↓ PgUp PgDn Home End scroll"
QUIT = "q"


@dataclass
class Panel:
    """A table, the column that it is sorted by, and the first row on the screen."""

    title: str
    listing: Listing
    sort_by: int
    is_reversed: bool = False
    first: int = 0
    shown: int = field(default=1, init=False)
    """Rows on the screen when it was drawn last."""

    def sorted_rows(self) -> list[Sequence[object]]:
        """Numbers from the largest, texts from A; equal rows stay in order."""
        rows = list(self.listing.rows)
        keys = [_sort_key(row[self.sort_by]) for row in rows]
        descends = any(isinstance(key, float) for key in keys) != self.is_reversed
        order = sorted(range(len(rows)), key=lambda number: keys[number], reverse=descends)
        return [rows[number] for number in order]

    def press(self, key: str) -> None:
        match key:
            case "left" | "right":
                step = 1 if key == "right" else -1
                self.sort_by = (self.sort_by + step) % len(self.listing.columns)
                self.is_reversed, self.first = False, 0
            case "r":
                self.is_reversed, self.first = not self.is_reversed, 0
            case "home":
                self.first = 0
            case "end":
                self.first = len(self.listing.rows)
            case "up" | "down" | "page up" | "page down":
                step = self.shown if key.startswith("page") else 1
                self.first += step if key.endswith("down") else -step
        self.first = max(0, min(self.first, len(self.listing.rows) - self.shown))

    def lines_per_row(self, screen: Screen) -> int:
        layout = self.listing.layout(screen)
        return max(1, -(-len(layout.rows) // max(len(self.listing.rows), 1)))

    def draw(self, screen: Screen, height: int, *, is_chosen: bool) -> list[Text]:
        """Title, headings, and rows in at most `height` lines."""
        rows = self.sorted_rows()
        self.shown = max(1, height // self.lines_per_row(screen))
        self.first = max(0, min(self.first, len(rows) - self.shown))
        visible = rows[self.first : self.first + self.shown]
        layout = replace(self.listing, rows=visible).layout(screen)
        arrow = "▲" if any(isinstance(_sort_key(row[self.sort_by]), str) for row in rows[:1]) else "▼"
        if self.is_reversed:
            arrow = "▼" if arrow == "▲" else "▲"
        span = f"{self.first + 1}-{self.first + len(visible)} of {len(rows)}"
        title = f"{self.title} {span}, by {self.listing.columns[self.sort_by]} {arrow}"
        return [
            Text(title, style="bold reverse" if is_chosen else "bold"),
            *(Text(line.plain, style="dim") for line in layout.heading[:-1]),
            *layout.rows[:height],
        ]


class TopScreen:
    """What is on the screen, and what keys do to it."""

    def __init__(self) -> None:
        self.head = ""
        self.warnings: Sequence[str] = ()
        self._panels: dict[str, Panel] = {}
        self._chosen = ""

    def show(self, title: str, listing: Listing, sort_by: str) -> None:
        """Replace the rows of a table; a new one is sorted by `sort_by` until a key changes that."""
        panel = self._panels.get(title)
        if panel is None:
            self._panels[title] = Panel(title, listing, list(listing.columns).index(sort_by))
        else:
            panel.listing = listing

    def press(self, key: str) -> bool:
        """Return whether to go on."""
        titles = self._titles()
        if key in ("tab", "back tab") and titles:
            step = 1 if key == "tab" else -1
            self._chosen = titles[(titles.index(self._chosen) + step) % len(titles)]
        elif titles:
            self._panels[self._chosen].press(key)
        return key != QUIT

    def _titles(self) -> list[str]:
        """The tables with rows; one of them is chosen, the last at first."""
        titles = [title for title, panel in self._panels.items() if panel.listing.rows]
        if titles and self._chosen not in titles:
            self._chosen = titles[-1]
        return titles

    def lines(self, screen: Screen, height: int) -> list[Text]:
        """The whole screen, in `height` lines."""
        panels = [self._panels[title] for title in self._titles()]
        top = [Text(cut(self.head, screen.out.width), style="bold")]
        top += [Text(cut(clean(text), screen.out.width), style="yellow") for text in self.warnings]
        taken = len(top) + 1
        needs = []
        for panel in panels:
            taken += 2 + len(panel.listing.layout(screen).heading) - 1
            needs.append(len(panel.listing.rows) * panel.lines_per_row(screen))
        heights = shares(needs, max(height - taken, 0))
        body = [
            line
            for panel, share in zip(panels, heights, strict=True)
            for line in (Text(), *panel.draw(screen, max(share, 1), is_chosen=panel.title == self._chosen))
        ]
        lines = [*top, *body][: height - 1]
        lines += [Text()] * (height - 1 - len(lines))
        return [*lines, Text(cut(FOOT, screen.out.width), style="dim")]


def shares(needs: Sequence[int], total: int) -> list[int]:
    """Divide `total` evenly; what one does not need, others get."""
    found = [0] * len(needs)
    order = sorted(range(len(needs)), key=lambda number: needs[number])
    for turn, number in enumerate(order):
        found[number] = min(needs[number], total // (len(order) - turn))
        total -= found[number]
    return found


def _sort_key(cell: object) -> float | str:
    if isinstance(cell, Rate):
        return -1.0 if cell.per_s is None else cell.per_s
    if isinstance(cell, Share):
        return cell.ratio
    if isinstance(cell, int | float):
        return float(cell)
    return " ".join(cell) if isinstance(cell, list | tuple) else str(cell)
