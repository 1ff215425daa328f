"""Reads and writes Java's `.properties` format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from skylark.errors import SettingsError

_BLANKS = " \t\f"
# A key ends at the first unescaped blank, `=` or `:`.
_KEY_AND_VALUE = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertyLine(NamedTuple):
    """A `key=value` pair and the number of its first line, from 1."""

    key: str
    value: str
    line: int


def read_properties(text: str) -> Iterator[PropertyLine]:
    """Yield the properties in order, with values stripped. Raises SettingsError."""
    for number, line in _logical_lines(text):
        match = _KEY_AND_VALUE.fullmatch(line)
        if match is None:
            raise SettingsError(line[:40], f"line {number} ends in a lone backslash")
        yield PropertyLine(_unescaped(match[1]), _unescaped(match[2]).strip(), number)


def write_properties(values: Mapping[str, str]) -> str:
    """Return one line per value, sorted by key."""
    lines = (f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in sorted(values.items()))
    return "".join(lines)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines joined with their continuations, without comments and blank lines."""
    start, pending = 0, ""
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        piece = line.lstrip(_BLANKS)
        if not pending:
            start = number
            if not piece or piece[0] in "#!":
                continue
        if _ends_open(piece):
            pending += piece[:-1]
            continue
        yield start, pending + piece
        pending = ""
    if pending:
        yield start, pending


def _ends_open(piece: str) -> bool:
    backslashes = len(piece) - len(piece.rstrip("\\"))
    return backslashes % 2 == 1


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    escaped = match[1]
    if len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _ESCAPED.get(escaped, escaped)


def _escaped(text: str, *, key: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    text = text.replace("\f", "\\f")
    if key:
        return re.sub(r"([ =:#!])", r"\\\1", text)
    return text
