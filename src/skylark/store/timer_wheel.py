"""The timer wheel: for each second that messages wait for, where their chain in the timer log ends.

Slot: time divided by precision i64 · first position i64 · last position i64 · number i32 · 0 i32. The file
has two weeks of slots; one is live only if its time is the one asked for. In memory are those that are live.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from skylark.store.disk import Disk, DiskFile
from skylark.store.timer_log import NO_POSITION

SLOT = struct.Struct(">qqqii")
SLOT_BYTES = SLOT.size
assert SLOT_BYTES == 32
SLOTS = 2 * 7 * 24 * 3600
FILE_BYTES = SLOTS * SLOT_BYTES
READ_SLOTS = 8192


class Slot(NamedTuple):
    """The chain of one slot: its ends in the timer log, and how many messages wait."""

    first: int
    last: int
    waiting: int


class TimerWheel:
    """Live slots by their time. One thread, but for `write`."""

    def __init__(self, disk: Disk, path: Path, precision_ms: int) -> None:
        self._disk = disk
        self._path = path
        self._precision_ms = precision_ms
        self._slots: dict[int, Slot] = {}
        self.count = 0
        """How many messages wait."""
        self._dirty: set[int] = set()
        self._file: DiskFile | None = None

    def load(self, first_ms: int, last_ms: int) -> None:
        """Take the live slots of a range of times from the file, if there is one. Raises OSError."""
        self._slots.clear()
        self.count = 0
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        first, last = first_ms // self._precision_ms, last_ms // self._precision_ms
        while first <= last:
            index = first % SLOTS
            count = min(READ_SLOTS, last - first + 1, SLOTS - index)
            data = file.read(count * SLOT_BYTES, index * SLOT_BYTES)
            for number in range(len(data) // SLOT_BYTES):
                time, *slot, _ = SLOT.unpack_from(data, number * SLOT_BYTES)
                if time == first + number:
                    self._slots[time] = Slot(*slot)
                    self.count += slot[-1]
            first += count
        file.close()

    def clear(self) -> None:
        """Forget all, and the file, whose slots name places in a log that is gone."""
        self._slots.clear()
        self._dirty.clear()
        self.count = 0
        self._file = None
        self._disk.delete(self._path)

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, time_ms: int) -> Slot | None:
        return self._slots.get(time_ms // self._precision_ms)

    def waiting_between(self, first_ms: int, end_ms: int) -> int:
        """How many messages wait for the slots of a range of times. Any thread."""
        times = range(first_ms // self._precision_ms, end_ms // self._precision_ms)
        slots = (self._slots.get(time) for time in times)
        return sum(slot.waiting for slot in slots if slot is not None)

    def last_position(self, time_ms: int) -> int:
        """Where the chain of a time ends; NO_POSITION if nothing waits for it."""
        slot = self.get(time_ms)
        return NO_POSITION if slot is None else slot.last

    def add(self, time_ms: int, position: int, waiting: int, *, first: int | None = None) -> None:
        """Put a unit of the log at the end of a time's chain. A position that is there already is ignored.

        With `first` it is the last of several, which begin there.
        """
        time = time_ms // self._precision_ms
        slot = self._slots.get(time)
        if slot is None:
            self._slots[time] = Slot(position if first is None else first, position, waiting)
        elif position > slot.last:
            self._slots[time] = Slot(slot.first, position, slot.waiting + waiting)
        else:
            return
        self.count += waiting
        self._dirty.add(time)

    def remove(self, time_ms: int) -> None:
        """Forget a time that is over. The file keeps it, and does no harm."""
        slot = self._slots.pop(time_ms // self._precision_ms, None)
        if slot is not None:
            self.count -= slot.waiting

    def changes(self) -> list[tuple[int, bytes]]:
        """Take what the file lacks: positions and bytes, for `write`."""
        dirty, self._dirty = self._dirty, set()
        return sorted(
            (time % SLOTS * SLOT_BYTES, SLOT.pack(time, *slot, 0))
            for time in dirty
            if (slot := self._slots.get(time)) is not None
        )

    def lose_changes(self) -> None:
        """Take note that changes did not reach the file: all is written next time."""
        self._dirty.update(self._slots)

    def write(self, changes: list[tuple[int, bytes]]) -> None:
        """Return when the changes are on the medium. Any thread, one at a time. Raises DiskFull, OSError."""
        if not changes:
            return
        if self._file is None:
            self._file = self._disk.create(self._path, FILE_BYTES)
            self._disk.sync_directory(self._path.parent)
        for position, data in _joined(changes):
            self._file.write([data], position)
        self._file.sync()


def _joined(changes: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Neighbouring slots as one piece."""
    joined: list[tuple[int, bytearray]] = []
    for position, data in changes:
        if joined and joined[-1][0] + len(joined[-1][1]) == position:
            joined[-1][1].extend(data)
        else:
            joined.append((position, bytearray(data)))
    return [(position, bytes(data)) for position, data in joined]
