"""`skylark store dump`: print messages as they are read, so that the first is seen at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from skylark.cli.message_text import COLUMNS, document, row
from skylark.cli.output import Screen, clean, print_json
from skylark.cli.selection import Selection
from skylark.model.message import StoredMessage
from skylark.store.store_reader import StoreReader

ROWS_AT_A_TIME = 50
# Fixed, so that all stretches of the table stand under one another; the body takes what is left.
WIDTHS = (20, 5, 9, 12, 23, 7, 10, 16, None)
NUMBERS = {"queue", "offset", "physical", "size"}


def show(reader: StoreReader, selection: Selection, *, as_json: bool) -> bool:
    """Print the messages; return whether all of them could be read, and there are any of the key."""
    screen = Screen()
    found = unreadable = 0

    def report(sentence: str) -> None:
        nonlocal unreadable
        unreadable += 1
        screen.warn(sentence)

    def counted(messages: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
        nonlocal found
        for message in messages:
            found += 1
            yield message

    messages = counted(selection.messages(reader, report))
    if as_json:
        for message in messages:
            print_json(document(message))
    elif screen.out.is_terminal:
        _print_table(screen, messages)
    else:
        screen.cells(COLUMNS)
        for message in messages:
            screen.cells(row(message))
    return not unreadable and (bool(found) or selection.key is None)


def _print_table(screen: Screen, messages: Iterable[StoredMessage]) -> None:
    rows: list[Sequence[object]] = []
    is_first = True
    for message in messages:
        rows.append(row(message))
        if len(rows) == ROWS_AT_A_TIME:
            _print_rows(screen, rows, with_header=is_first)
            rows, is_first = [], False
    _print_rows(screen, rows, with_header=is_first)


def _print_rows(screen: Screen, rows: list[Sequence[object]], *, with_header: bool) -> None:
    table = Table(box=None, show_header=with_header, header_style="bold", pad_edge=False)
    for name, width in zip(COLUMNS, WIDTHS, strict=True):
        side = "right" if name in NUMBERS else "left"
        table.add_column(name, width=width, justify=side, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for cells in rows:
        table.add_row(*(Text(clean(str(cell))) for cell in cells))
    screen.out.print(table, soft_wrap=False)
