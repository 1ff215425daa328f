"""Tables that fit a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from skylark.cli.table import LONG_CELLS_MIN, Column, cut, lay_out

ID = "C00002020449AA3E480052FCDEBA0000"
BODY = '{"id": 0, "customer": "ACME", "amount": 1.5}'
MESSAGES = (
    Column("stored", ["02:45:03.819", "2026-11-16 02:45:03.876"]),
    Column("offset", ["7", "12345"], is_number=True),
    Column("id", [ID, ID[::-1]]),
    Column("keys", ["order-4200", ""], is_long=True),
    Column("body", [BODY, "short"], is_long=True),
)


def lines(columns: tuple[Column, ...], width: int | None) -> list[str]:
    table = lay_out(columns, width)
    return [line.plain for line in (*table.heading, *table.rows)]


def test_a_table_that_fits_is_shown_whole() -> None:
    assert lines(MESSAGES, None) == lines(MESSAGES, 200) == [
        "stored                   offset  id                                keys        body",
        "─" * 123,
        f"02:45:03.819                  7  {ID}  order-4200  {BODY}",
        f"2026-11-16 02:45:03.876   12345  {ID[::-1]}              short",
    ]  # fmt: skip


def test_the_last_long_text_is_cut_first() -> None:
    assert lines(MESSAGES, 110)[2:] == [
        f'02:45:03.819                  7  {ID}  order-4200  {{"id": 0, "customer": "ACME",…',
        f"2026-11-16 02:45:03.876   12345  {ID[::-1]}              short",
    ]


def test_what_does_not_fit_follows_below_its_row() -> None:
    assert lines(MESSAGES, 68) == [
        "stored                   offset  id",
        "─" * 65,
        f"02:45:03.819                  7  {ID}",
        '  keys order-4200  body {"id": 0, "customer": "ACME", "amount": 1.5}',
        f"2026-11-16 02:45:03.876   12345  {ID[::-1]}",
        "  body short",
    ]


def test_columns_of_numbers_move_whole() -> None:
    shown = lines(MESSAGES, 40)
    assert shown[:2] == ["stored                   offset", "─" * 31]
    assert shown[2:6] == [
        "02:45:03.819                  7",
        f"  id {ID}",
        '  keys order-4200  body {"id": 0, "cust…',
        "2026-11-16 02:45:03.876   12345",
    ]


def test_a_heading_is_broken_rather_than_a_column_widened() -> None:
    assert lines((Column("in flight", ["3"], is_number=True), Column("lag", ["400"])), 80)[:2] == [
        "    in",
        "flight  lag",
    ]
    assert lines((Column("in flight", []),), 80)[0] == "in flight"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("订单一二", 6, "订单…"), ("a b", 2, "a…")],
)
def test_a_cut_text_ends_with_an_ellipsis(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert cell_len(cut(text, width)) <= width


WORDS = st.text("ab订", min_size=1, max_size=30)


@given(st.lists(st.tuples(WORDS, st.booleans(), st.booleans()), min_size=1, max_size=8), st.integers(30, 120))
def test_no_line_is_wider_than_the_terminal_and_no_rigid_text_is_lost(
    cells: list[tuple[str, bool, bool]], width: int
) -> None:
    columns = tuple(Column(f"c{number}", [text], *kind) for number, (text, *kind) in enumerate(cells))
    shown = lines(columns, width)
    for column in columns:
        if not column.is_long or cell_len(column.texts[0]) <= LONG_CELLS_MIN:
            assert any(column.texts[0] in line for line in shown), column
    for line in shown:
        widest = max(cell_len(text) for text, *_ in cells)
        assert cell_len(line) <= max(width, widest + len("  c0 "))
