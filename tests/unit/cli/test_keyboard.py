"""Keys from the terminal."""

from __future__ import annotations

import pytest

from skylark.cli.keyboard import key_names


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOC\x1bOD", ["up", "down", "right", "left"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["page up", "page down", "home", "end"]),
        (b"\t\x1b[Z", ["tab", "back tab"]),
        (b"\x1b[1;5Ar", ["r"]),  # Ctrl-Up is not used
        ("äq".encode(), ["q"]),
        (b"\x1b", []),
        (b"", []),
    ],
)
def test_bytes_are_keys(data: bytes, names: list[str]) -> None:
    assert key_names(data) == names
