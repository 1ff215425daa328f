"""Unique message keys: one source per process."""

from __future__ import annotations

import os

from skylark.clock import Clock, SystemClock
from skylark.model.message import pack_host
from skylark.model.message_id import UniqueIds
from skylark.remoting.address import local_ip

_ids_by_pid: dict[int, UniqueIds] = {}


def unique_ids() -> UniqueIds:
    """Return this process's source of unique ids; a forked child gets its own. Any thread may call it."""
    pid = os.getpid()
    ids = _ids_by_pid.get(pid)
    if ids is None:
        made = UniqueIds(pack_host(local_ip(), 0)[:-4], SystemClock().now_ms(), process_id=pid)
        ids = _ids_by_pid.setdefault(pid, made)  # the first of several threads wins
    return ids


class UniqueKeys:
    """Unique keys of this process, with the time of a clock."""

    def __init__(self, clock: Clock) -> None:
        ids = unique_ids()
        self.chars = ids.chars
        self._next, self._several, self._now_ms = ids.next, ids.several, clock.now_ms

    def next(self) -> str:
        return self._next(self._now_ms())

    def several(self, count: int) -> list[str]:
        return self._several(count, self._now_ms())
