"""Unique message ids as the Java client makes them: address, process, class loader, time, counter."""

from __future__ import annotations

import itertools
import os
import struct
from datetime import UTC, datetime

_HEAD = struct.Struct(">HI")  # process id, a number in place of Java's class loader
_TAIL = struct.Struct(">IH")  # milliseconds since the month began, counter
COUNTER_LIMIT = 1 << 16


class UniqueIds:
    """Ids of one process. Any thread; no two calls give the same id within a month's milliseconds."""

    def __init__(self, address: bytes, started_ms: int, process_id: int | None = None) -> None:
        """`address` is the 4 or 16 bytes of an IP; `started_ms` the wall time now."""
        pid = os.getpid() if process_id is None else process_id
        self._prefix = (
            address + _HEAD.pack(pid & 0xFFFF, os.getrandom(4)[0] << 24 | id(self) & 0xFFFFFF)
        ).hex()
        month = datetime.fromtimestamp(started_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        self._month_ms = int(month.timestamp() * 1000)
        self._counter = itertools.count()

    def next(self, now_ms: int) -> str:
        elapsed = now_ms - self._month_ms & 0xFFFFFFFF
        tail = _TAIL.pack(elapsed, next(self._counter) % COUNTER_LIMIT)
        return (self._prefix + tail.hex()).upper()
