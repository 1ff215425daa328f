"""Every table of every page has as many cells in each row as it has columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+\s*")
FENCE = re.compile(r"\s*(```|~~~)")


def cells(row: str) -> int:
    """How many a row has. A bar behind a backslash is text."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def tables(text: str) -> Iterator[list[tuple[int, str]]]:
    """Rows with the numbers of their lines, table by table; what stands in blocks of code is none."""
    rows: list[tuple[int, str]] = []
    in_code = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if FENCE.match(line):
            in_code = not in_code
        if line.startswith("|") and not in_code:
            rows.append((number, line))
        elif rows:
            yield rows
            rows = []


def faults(text: str) -> list[str]:
    found = []
    for rows in tables(text):
        (first, header), *others = rows
        if not others or not RULE.fullmatch(others[0][1]):
            found.append(f"line {first}: no line of dashes below the header")
            continue
        found += [
            f"line {number}: {cells(row)} cells instead of {cells(header)}"
            for number, row in others
            if cells(row) != cells(header)
        ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_row_of_a_table_has_as_many_cells_as_there_are_columns(page: Path) -> None:
    assert faults(page.read_text()) == []


def test_what_is_wrong_is_found() -> None:
    good = "| a | b |\n|---|---:|\n| `x\\|y` | 1 |\n\n```\n| not | a | table |\n```\n"
    assert faults(good) == []
    assert faults(good.replace("| 1 |", "| 1 | 2 |")) == ["line 3: 3 cells instead of 2"]
    assert faults("| a | b |\n| 1 | 2 |\n") == ["line 1: no line of dashes below the header"]
