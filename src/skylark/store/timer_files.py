"""The files of delayed messages: timer log, timer wheel and timer checkpoint, in RocketMQ's layouts.

Timer log unit: size i32 (52) · previous position of the slot i64 · flags i32 · write time i64 · delay i32
(ms from the write time) · physical offset i64 · record size i32 · hash of the real topic i32 · reserved
i64. A file ends where no unit fits: remaining length i32 · 0 i64 · 0xCBD43194 u32.

Timer wheel slot: time divided by precision i64 · first position i64 · last position i64 · number i32 · 0
i32. The file has two weeks of slots; a slot is live only if its time is the requested one.

Timer checkpoint: seven i64 at the start of a page of zeros: last read time · flushed position of the log
· queue offset · the master's queue offset · state version · timestamp · counter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from skylark.errors import CorruptRecord
from skylark.model.record import MAGIC_BLANK
from skylark.store.disk import Disk, DiskFile
from skylark.store.mapped_file import MappedFileQueue, OpenFiles

TIMER_UNIT = struct.Struct(">iqiqiqiiq")
TIMER_UNIT_BYTES = TIMER_UNIT.size
assert TIMER_UNIT_BYTES == 52
END = struct.Struct(">iqI")
assert END.size == 16
NO_POSITION = -1
FLAGS_MAX = 15
OPEN_FILES_MAX = 8
ZERO_CHUNK_BYTES = 1 << 20
SCAN_UNITS = 1024
NEAR_UNITS = 8
READ_UNITS_MAX = 1024


class TimerFlag:
    """Flags of a unit. ROLL is written again when its slot is due; DELETE cancels another unit.

    Plain numbers: an enumeration takes ten times as long to compare, and every message is compared.
    """

    DEFAULT = 1
    ROLL = 2
    DELETE = 4


class TimerUnit(msgspec.Struct, frozen=True, gc=False):
    """One delayed message."""

    previous: int
    flags: int
    write_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int

    @property
    def due_ms(self) -> int:
        """The time of its slot."""
        return self.write_ms + self.delay_ms

    def encode(self) -> bytes:
        return TIMER_UNIT.pack(
            TIMER_UNIT_BYTES, self.previous, self.flags, self.write_ms, self.delay_ms, self.physical_offset,
            self.size, self.topic_hash, 0,
        )  # fmt: skip


class TimerLog:
    """The files of the timer log. One thread appends and reads; `flush` may run in another."""

    def __init__(self, disk: Disk, directory: Path, file_bytes: int) -> None:
        self._disk = disk
        self._files = MappedFileQueue(disk, directory, file_bytes)
        self._open = OpenFiles(disk, OPEN_FILES_MAX, writable=True)
        self.appended = 0
        self._unsynced: set[int] = set()

    @property
    def first(self) -> int:
        return self._files.first

    @property
    def file_bytes(self) -> int:
        return self._files.file_bytes

    # --- Recovery ---

    def load(self, scan_from: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield the units from a position on; appending continues behind the last."""
        self._files.load()
        position = max(scan_from - scan_from % self.file_bytes, self._files.first)
        self.appended = position
        while position < self._files.end and self._files.start_of(position) in self._files.starts:
            data = self._read(position, min(SCAN_UNITS * TIMER_UNIT_BYTES, self._room(position)))
            for at in range(0, len(data) - TIMER_UNIT_BYTES + 1, TIMER_UNIT_BYTES):
                unit = _decode(data, at, position)
                if unit is None:
                    self._cut()
                    return
                yield position, unit
                position = self.appended = self._behind(position)
            if len(data) < TIMER_UNIT_BYTES:
                break
        self._cut()

    def _cut(self) -> None:
        """Delete files behind the end and zero the rest of the last file."""
        start = self._files.start_of(self.appended)
        for later in [each for each in self._files.starts if each > start]:
            self._delete(later)
        if start in self._files.starts:
            file = self._open.get(self._files.directory, start)
            at = self.appended - start
            if not file.is_zero_from(at):
                for chunk in range(at, self.file_bytes, ZERO_CHUNK_BYTES):
                    file.write([bytes(min(ZERO_CHUNK_BYTES, self.file_bytes - chunk))], chunk)
                self._unsynced.add(start)

    # --- Reading and writing ---

    @property
    def room(self) -> int:
        """Number of units that fit into the current file."""
        return self._room(self.appended) // TIMER_UNIT_BYTES

    def append(self, *units: bytes) -> int:
        """Append encoded units, at most `room`, with one write; return the position of the first.

        The others follow at intervals of TIMER_UNIT_BYTES. Raises DiskFull, OSError.
        """
        position = self.appended
        start = self._files.start_of(position)
        if start not in self._files.starts:
            self._open.get(self._files.directory, start, create_bytes=self.file_bytes)
            self._disk.sync_directory(self._files.directory)
            self._files.starts.append(start)
        file = self._open.get(self._files.directory, start)
        data = b"".join(units)
        behind = self._behind(position + len(data) - TIMER_UNIT_BYTES)
        if self._files.start_of(behind) != start:
            left = self.file_bytes - (position - start) - len(data)
            data += END.pack(left, 0, MAGIC_BLANK)
        file.write([data], position - start)
        self._unsynced.add(start)
        self.appended = behind
        return position

    def read(self, position: int) -> TimerUnit:
        """Raises CorruptRecord if there is no unit."""
        return next(self.chain(position))

    def chain(self, position: int) -> Iterator[TimerUnit]:
        """Yield a unit and the previous units of its chain, newest first. Raises CorruptRecord as `read`."""
        data, first, count = b"", position, 1
        while position != NO_POSITION:
            if not first <= position < first + len(data):
                # Units of one batch are adjacent: read ahead, doubling each time.
                is_near = 0 < first - position <= NEAR_UNITS * TIMER_UNIT_BYTES
                count = min(2 * count, READ_UNITS_MAX) if is_near else 1
                first, data = self._read_back(position, count)
            unit = _decode(data, position - first, position)
            if unit is None:
                raise CorruptRecord(position, "no unit of the timer log starts here")
            yield unit
            position = unit.previous

    def _read_back(self, position: int, count: int) -> tuple[int, bytes]:
        """Return up to `count` units of one file that end with the one at `position`, and their start."""
        if not self._files.first <= position < self.appended:
            return position, b""
        first = max(position - (count - 1) * TIMER_UNIT_BYTES, self._files.start_of(position))
        return first, self._read(first, position + TIMER_UNIT_BYTES - first)

    def flush(self) -> None:
        """Make all units durable. Raises OSError."""
        unsynced, self._unsynced = self._unsynced, set()
        try:
            for start in unsynced:
                self._open.get(self._files.directory, start).sync()
        except OSError:
            self._unsynced |= unsynced
            raise

    def delete_before(self, time_ms: int, window_ms: int) -> None:
        """Delete files whose last unit was written more than `window_ms` before `time_ms`."""
        while len(self._files.starts) > 1:
            start = self._files.starts[0]
            last = start + self._units_per_file * TIMER_UNIT_BYTES - TIMER_UNIT_BYTES
            unit = _decode(self._read(last, TIMER_UNIT_BYTES), 0, last)
            if unit is not None and unit.write_ms + window_ms >= time_ms:
                return
            self._delete(start)

    def _delete(self, start: int) -> None:
        self._open.forget(self._files.directory, start)
        self._unsynced.discard(start)
        self._disk.delete(self._files.path(start))
        self._files.starts.remove(start)

    def _read(self, position: int, length: int) -> bytes:
        start = self._files.start_of(position)
        return self._open.get(self._files.directory, start).read(length, position - start)

    @property
    def _units_per_file(self) -> int:
        return (self.file_bytes - END.size) // TIMER_UNIT_BYTES

    def _room(self, position: int) -> int:
        """Return the bytes for units from a position to the end of its file."""
        start = self._files.start_of(position)
        return start + self._units_per_file * TIMER_UNIT_BYTES - position

    def _behind(self, position: int) -> int:
        """Return the position of the next unit."""
        position += TIMER_UNIT_BYTES
        start = self._files.start_of(position - TIMER_UNIT_BYTES)
        is_full = position - start >= self._units_per_file * TIMER_UNIT_BYTES
        return start + self.file_bytes if is_full else position


def _decode(data: bytes, at: int, position: int) -> TimerUnit | None:
    """Decode a unit; None if it is invalid: most likely nothing was written there."""
    if len(data) < at + TIMER_UNIT_BYTES:
        return None
    size, previous, flags, write_ms, delay_ms, physical_offset, record_bytes, topic_hash, _ = (
        TIMER_UNIT.unpack_from(data, at)
    )
    if size != TIMER_UNIT_BYTES or not 0 <= flags <= FLAGS_MAX or physical_offset < 0 or record_bytes <= 0:
        return None
    if not NO_POSITION <= previous < position:
        return None
    return TimerUnit(previous, flags, write_ms, delay_ms, physical_offset, record_bytes, topic_hash)


SLOT = struct.Struct(">qqqii")
SLOT_BYTES = SLOT.size
assert SLOT_BYTES == 32
SLOTS = 2 * 7 * 24 * 3600
FILE_BYTES = SLOTS * SLOT_BYTES
READ_SLOTS = 8192


class TimerSlot(NamedTuple):
    """The chain of one slot: its ends in the timer log, and its number of messages."""

    first: int
    last: int
    waiting: int


class TimerWheel:
    """Live slots by time. One thread, except for `write`."""

    def __init__(self, disk: Disk, path: Path, precision_ms: int) -> None:
        self._disk = disk
        self._path = path
        self._precision_ms = precision_ms
        self._slots: dict[int, TimerSlot] = {}
        self.count = 0
        """Number of delayed messages."""
        self._dirty: set[int] = set()
        self._file: DiskFile | None = None

    def load(self, first_ms: int, last_ms: int) -> None:
        """Load the live slots of a time range from the file, if it exists. Raises OSError."""
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
                    self._slots[time] = TimerSlot(*slot)
                    self.count += slot[-1]
            first += count
        file.close()

    def clear(self) -> None:
        """Drop all slots and delete the file: its slots point into a deleted timer log."""
        self._slots.clear()
        self._dirty.clear()
        self.count = 0
        self._file = None
        self._disk.delete(self._path)

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, time_ms: int) -> TimerSlot | None:
        return self._slots.get(time_ms // self._precision_ms)

    def waiting_between(self, first_ms: int, end_ms: int) -> int:
        """Return the number of messages in the slots of a time range. Any thread."""
        times = range(first_ms // self._precision_ms, end_ms // self._precision_ms)
        slots = (self._slots.get(time) for time in times)
        return sum(slot.waiting for slot in slots if slot is not None)

    def last_position(self, time_ms: int) -> int:
        """Return the end of a time's chain; NO_POSITION without one."""
        slot = self.get(time_ms)
        return NO_POSITION if slot is None else slot.last

    def add(self, time_ms: int, position: int, waiting: int, *, first: int | None = None) -> None:
        """Add a unit to the end of a time's chain. A known position is ignored.

        With `first` it is the last of several units that start there.
        """
        time = time_ms // self._precision_ms
        slot = self._slots.get(time)
        if slot is None:
            self._slots[time] = TimerSlot(position if first is None else first, position, waiting)
        elif position > slot.last:
            self._slots[time] = TimerSlot(slot.first, position, slot.waiting + waiting)
        else:
            return
        self.count += waiting
        self._dirty.add(time)

    def remove(self, time_ms: int) -> None:
        """Drop a slot that has passed. The file keeps it, which is harmless."""
        slot = self._slots.pop(time_ms // self._precision_ms, None)
        if slot is not None:
            self.count -= slot.waiting

    def changes(self) -> list[tuple[int, bytes]]:
        """Take the changed slots as positions and bytes, for `write`."""
        dirty, self._dirty = self._dirty, set()
        return sorted(
            (time % SLOTS * SLOT_BYTES, SLOT.pack(time, *slot, 0))
            for time in dirty
            if (slot := self._slots.get(time)) is not None
        )

    def lose_changes(self) -> None:
        """Mark all slots as changed, after a failed `write`."""
        self._dirty.update(self._slots)

    def write(self, changes: list[tuple[int, bytes]]) -> None:
        """Write the changes durably. Any thread, one at a time. Raises DiskFull, OSError."""
        if not changes:
            return
        if self._file is None:
            self._file = self._disk.create(self._path, FILE_BYTES)
            self._disk.sync_directory(self._path.parent)
        for position, data in _joined(changes):
            self._file.write([data], position)
        self._file.sync()


def _joined(changes: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Merge adjacent slots."""
    joined: list[tuple[int, bytearray]] = []
    for position, data in changes:
        if joined and joined[-1][0] + len(joined[-1][1]) == position:
            joined[-1][1].extend(data)
        else:
            joined.append((position, bytearray(data)))
    return [(position, bytes(data)) for position, data in joined]


CHECKPOINT_FIELDS = struct.Struct(">qqqqqqq")
assert CHECKPOINT_FIELDS.size == 56
CHECKPOINT_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The state from which a restart resumes."""

    read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    @staticmethod
    def decode(data: bytes) -> TimerCheckpoint:
        return TimerCheckpoint(*CHECKPOINT_FIELDS.unpack_from(data))

    def encode(self) -> bytes:
        """Return the fields as bytes; they are also the reply to a slave's request."""
        return CHECKPOINT_FIELDS.pack(
            self.read_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.timestamp,
            self.counter,
        )


class TimerCheckpointFile:
    """The timer checkpoint on disk, rewritten in place. One thread at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None

    def load(self) -> TimerCheckpoint | None:
        """Return the saved checkpoint, or None. Raises OSError."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        data = file.read(CHECKPOINT_FIELDS.size, 0)
        file.close()
        return TimerCheckpoint.decode(data) if len(data) == CHECKPOINT_FIELDS.size and any(data) else None

    def save(self, check: TimerCheckpoint) -> None:
        """Write it durably. Raises DiskFull, OSError."""
        if self._file is None:
            self._file = self._disk.create(self._path, CHECKPOINT_PAGE_BYTES)
            self._disk.sync_directory(self._path.parent)
        self._file.write([check.encode()], 0)
        self._file.sync()
