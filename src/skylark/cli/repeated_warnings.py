"""Warnings that repeat are logged once a minute, with their number."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

INTERVAL_S = 60.0
DIFFERENT_MAX = 5
"""Lines of one kind that differ in names or addresses; more of them count as the same."""


@dataclass
class Repeats:
    """Warnings that were held back since the last one that was logged."""

    last: logging.LogRecord
    due_at: float
    count: int = 0


class RepeatTable:
    """Decides which warnings are logged. Pure: times are arguments."""

    def __init__(self) -> None:
        self._repeats: dict[Hashable, Repeats] = {}
        self._different: dict[Hashable, int] = {}

    def take(self, record: logging.LogRecord, now_s: float) -> bool:
        """Return whether to log it now; else it is counted. Other numbers do not make it another warning."""
        kind = (record.name, record.levelno, record.msg)
        arguments = record.args if isinstance(record.args, tuple) else (record.args,)
        key: Hashable = (kind, tuple(str(each) for each in arguments if not isinstance(each, int | float)))
        if key not in self._repeats and self._different.get(kind, 0) >= DIFFERENT_MAX:
            key = kind
        found = self._repeats.get(key)
        if found is None:
            self._repeats[key] = Repeats(record, now_s + INTERVAL_S)
            self._different[kind] = self._different.get(kind, 0) + 1
            return True
        found.last, found.count = record, found.count + 1
        return False

    @property
    def is_holding(self) -> bool:
        return any(found.count for found in self._repeats.values())

    def due(self, now_s: float) -> list[tuple[logging.LogRecord, int]]:
        """The last of each kind that was held back for a minute, and their number; others are forgotten."""
        told = []
        for key, found in list(self._repeats.items()):
            if now_s < found.due_at:
                continue
            if found.count:
                told.append((found.last, found.count))
                found.count, found.due_at = 0, now_s + INTERVAL_S
            else:
                kind = (found.last.name, found.last.levelno, found.last.msg)
                self._different[kind] -= 1
                del self._repeats[key]
        return told


class RepeatedWarnings(logging.Handler):
    """Passes records on to another handler, repeated warnings once a minute. Any thread may log."""

    def __init__(self, target: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._target = target
        self._clock = clock
        self._table = RepeatTable()
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:
            self._target.handle(record)
            return
        self._tell(self._clock())
        if self._table.take(record, self._clock()):
            self._target.handle(record)
        elif self._timer is None:
            self._start_timer()

    def close(self) -> None:
        """Log what was held back. Called at exit."""
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
            self._tell(float("inf"))
        finally:
            self.release()
        super().close()

    def _start_timer(self) -> None:
        self._timer = threading.Timer(INTERVAL_S, self._end_of_interval)
        self._timer.daemon = True
        self._timer.start()

    def _end_of_interval(self) -> None:
        self.acquire()
        try:
            self._timer = None
            self._tell(self._clock())
            if self._table.is_holding:
                self._start_timer()
        finally:
            self.release()

    def _tell(self, now_s: float) -> None:
        for record, count in self._table.due(now_s):
            times = "once" if count == 1 else f"{count:,} times"
            told = copy.copy(record)
            told.msg = f"{record.getMessage()} (repeated {times})"
            told.args, told.exc_info, told.exc_text = (), None, None
            self._target.handle(told)
