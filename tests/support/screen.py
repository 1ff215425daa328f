"""What a terminal shows after the bytes that a program wrote: only the control codes that ours write."""

from __future__ import annotations

import re

from rich.cells import cell_len

_CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[=>]")


def screen_of(raw: bytes, columns: int, lines: int) -> list[str]:
    """The lines of the screen. Raises AssertionError for a code that moves the cursor in another way."""
    text, at, row, column = raw.decode(errors="replace"), 0, 0, 0
    grid = [[" "] * columns for _ in range(lines)]
    while at < len(text):
        if found := _CONTROL.match(text, at):
            at = found.end()
            row, column = _controlled(grid, found[1] or "", found[2] or "", row, column)
            continue
        character = text[at]
        at += 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row += 1
        elif character >= " ":
            if column + cell_len(character) > columns:
                row, column = row + 1, 0
            _scroll(grid, max(row - lines + 1, 0))
            row = min(row, lines - 1)
            grid[row][column] = character
            column += max(cell_len(character), 1)
        _scroll(grid, max(row - lines + 1, 0))
        row = min(row, lines - 1)
    return ["".join(cells).rstrip() for cells in grid]


def _scroll(grid: list[list[str]], count: int) -> None:
    for _ in range(count):
        grid.append([" "] * len(grid.pop(0)))


def _controlled(grid: list[list[str]], arguments: str, code: str, row: int, column: int) -> tuple[int, int]:
    """The cursor after a control code."""
    numbers = [int(word) if word.isdecimal() else 0 for word in arguments.split(";")]
    match code:
        case "H":
            row, column = max(numbers[0], 1) - 1, max(*numbers[1:2], 1) - 1 if numbers[1:] else 0
        case "A":
            row = max(row - max(numbers[0], 1), 0)
        case "J":
            for number in range(0 if numbers[0] == 2 else row + 1, len(grid)):
                grid[number] = [" "] * len(grid[number])
            if numbers[0] != 2:
                grid[row][column:] = [" "] * (len(grid[row]) - column)
        case "K":
            begin = 0 if numbers[0] == 2 else column
            grid[row][begin:] = [" "] * (len(grid[row]) - begin)
        case "m" | "h" | "l" | "":
            pass
        case _:
            raise AssertionError(f"control code {arguments}{code} is not known here")
    return row, column
