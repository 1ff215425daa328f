"""Every change made in the console: who, when, before and after; most can be put back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from skylark.errors import SettingsError

log = logging.getLogger(__name__)

CHANGES_MAX = 1000
FILE = "changes.jsonl"


@dataclass(frozen=True, slots=True)
class Change:
    """`before` is what `put_back` restores; None if it cannot be put back."""

    number: int
    time_ms: int
    user: str
    address: str
    cluster: str
    action: str
    target: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    undone_by: int = 0

    @property
    def can_be_undone(self) -> bool:
        return self.before is not None and not self.undone_by


class ChangeLog:
    """The last changes in memory; with a directory, all of them in a file of JSON lines."""

    def __init__(self, directory: Path | None = None) -> None:
        """Reads the last changes. Raises SettingsError, OSError."""
        self._changes: deque[Change] = deque(maxlen=CHANGES_MAX)
        self._path = None if directory is None else directory / FILE
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._read(self._path)
        self._next = max((change.number for change in self._changes), default=0) + 1

    def _read(self, path: Path) -> None:
        known: dict[int, Change] = {}
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                change = msgspec.json.decode(line, type=Change)
            except msgspec.DecodeError as error:
                raise SettingsError("state", f"{path}:{number} is not a change: {error}") from None
            known[change.number] = change
        self._changes.extend(sorted(known.values(), key=lambda change: change.number))

    def add(
        self,
        *,
        user: str,
        address: str,
        cluster: str,
        action: str,
        target: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> Change:
        """Record what was done. Raises OSError."""
        change = Change(
            self._next, round(time.time() * 1000), user, address, cluster, action, target, before, after or {}
        )
        self._next += 1
        self._changes.append(change)
        log.info(
            "change user=%s address=%s cluster=%s action=%s target=%s", user, address, cluster, action, target
        )
        self._write(change)
        return change

    def undone(self, number: int, by: int) -> None:
        """Mark a change as put back by another one."""
        for place, change in enumerate(self._changes):
            if change.number == number:
                self._changes[place] = replace(change, undone_by=by)
                self._write(self._changes[place])

    def get(self, number: int) -> Change | None:
        return next((change for change in self._changes if change.number == number), None)

    def of(self, cluster: str) -> list[Change]:
        """Newest first."""
        return [change for change in reversed(self._changes) if change.cluster == cluster]

    def _write(self, change: Change) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(change) + b"\n")
