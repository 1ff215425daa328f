"""Mutant: a change of the code that takes the behaviour of one requirement away."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`text` occurs exactly once in `file` (under src/skylark). `tests` are node ids under tests/."""

    row: int
    file: str
    text: str
    replacement: str
    what: str
    tests: tuple[str, ...]
