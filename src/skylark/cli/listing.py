"""What a command found: a table on a terminal, tab-separated lines elsewhere, JSON on demand, or live."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from skylark.cli.output import NOT_KNOWN, Age, Rate, Screen, Share, When, clean, print_json
from skylark.errors import RocketMQError

EXIT_INCOMPLETE = 1


@dataclass(frozen=True)
class Listing:
    """Columns and rows, facts above them, and who could not be asked, by address.

    As JSON it is a list of objects, or with facts an object that holds it as `items`; whoever does not
    answer does not change that.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    facts: Sequence[tuple[str, object]] = ()
    failures: Mapping[str, RocketMQError] = field(default_factory=dict)
    items: str = "rows"

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
            screen.table(self.columns, [[_cell(cell) for cell in row] for row in self.rows])
        for sentence in self.failure_sentences():
            screen.warn(sentence)

    def failure_sentences(self) -> list[str]:
        return [f"no answer from {address}: {error}" for address, error in self.failures.items()]

    def renderable(self, screen: Screen) -> RenderableType:
        """For a live view."""
        facts = [Text(f"{name}  {clean(str(_text(value)))}") for name, value in self.facts]
        facts += [Text()] if facts else []
        warnings = [Text(clean(text), style="yellow") for text in self.failure_sentences()]
        return Group(
            *facts,
            screen.as_table(self.columns, [[_cell(cell) for cell in row] for row in self.rows]),
            *warnings,
        )


def show(listing: Listing, *, as_json: bool) -> None:
    """Print it. Exit code 1 if some servers could not be asked."""
    listing.show(Screen(), as_json=as_json)
    if listing.failures:
        raise typer.Exit(EXIT_INCOMPLETE)


def show_or_watch(
    look: Callable[[Rates | None, float], Listing], *, watch: bool, every_s: float, as_json: bool
) -> None:
    """Print what a look gives: once, or live until Ctrl-C, when it is given rates and the time for them."""
    if not watch:
        show(look(None, 0.0), as_json=as_json)
        return
    rates = Rates()
    show_live(lambda: look(rates, time.monotonic()), as_json=as_json, every_s=every_s)


def show_live(make: Callable[[], Listing], *, as_json: bool, every_s: float) -> None:
    """Print it again and again until Ctrl-C: in place on a terminal, one after the other elsewhere.

    While servers do not answer, their error stands there instead.
    """
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
        with Live(console=screen.out, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                live.update(_or_error(make, screen), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _or_error(make: Callable[[], Listing], screen: Screen) -> RenderableType:
    try:
        return make().renderable(screen)
    except RocketMQError as error:
        return Text(f"skylark: {clean(str(error))}", style="yellow")


class Rates:
    """How fast counters grow between two looks at them."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, int]] = {}

    def per_s(self, counter: Hashable, count: int, now_s: float) -> Rate:
        """Not known at the first look, nor when no time has passed. A counter that went back has rate 0."""
        last = self._last.get(counter)
        self._last[counter] = (now_s, count)
        if last is None or now_s <= last[0]:
            return Rate(None)
        return Rate(max(0, count - last[1]) / (now_s - last[0]))


def done(sentence: str, document: Mapping[str, object], *, as_json: bool) -> None:
    """Say what was changed."""
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
    """Lists read as words; whole numbers stay numbers, which stand to the right."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return _text(value)
