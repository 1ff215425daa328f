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
    """What a unit is for. A rolled one is written again when its slot comes; a delete cancels another.

    Plain numbers: those of an enumeration take ten times as long to compare, and each message is.
    """

    DEFAULT = 1
    ROLL = 2
    DELETE = 4


class TimerUnit(msgspec.Struct, frozen=True, gc=False):
    """One message that waits."""

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
    """Files of units. One thread appends and reads; `flush` may run in another."""

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
        """Yield the units from a position on, to their end, which is where appending goes on."""
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
        """Forget what lies behind the end: files, and the rest of the last one, which must read as zeros."""
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
        """How many units can be appended together: as many as the current file still takes."""
        return self._room(self.appended) // TIMER_UNIT_BYTES

    def append(self, *units: bytes) -> int:
        """Write encoded units, `room` at most, with one write, and return the position of the first.

        Each other lies UNIT_BYTES behind the one before. Raises DiskFull, OSError.
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
        """Raises CorruptRecord where no unit lies."""
        return next(self.chain(position))

    def chain(self, position: int) -> Iterator[TimerUnit]:
        """Yield a unit and those before it in its chain, the last first. Raises CorruptRecord as `read`."""
        data, first, count = b"", position, 1
        while position != NO_POSITION:
            if not first <= position < first + len(data):
                # Units that came together lie together: more and more of them are read at once.
                is_near = 0 < first - position <= NEAR_UNITS * TIMER_UNIT_BYTES
                count = min(2 * count, READ_UNITS_MAX) if is_near else 1
                first, data = self._read_back(position, count)
            unit = _decode(data, position - first, position)
            if unit is None:
                raise CorruptRecord(position, "no unit of the timer log lies here")
            yield unit
            position = unit.previous

    def _read_back(self, position: int, count: int) -> tuple[int, bytes]:
        """Units of one file up to the one at a position: where they begin, and they themselves."""
        if not self._files.first <= position < self.appended:
            return position, b""
        first = max(position - (count - 1) * TIMER_UNIT_BYTES, self._files.start_of(position))
        return first, self._read(first, position + TIMER_UNIT_BYTES - first)

    def flush(self) -> None:
        """Return when all units are on the medium. Raises OSError."""
        unsynced, self._unsynced = self._unsynced, set()
        try:
            for start in unsynced:
                self._open.get(self._files.directory, start).sync()
        except OSError:
            self._unsynced |= unsynced
            raise

    def delete_before(self, time_ms: int, window_ms: int) -> None:
        """Delete files whose last unit was written so long before a time that it has been dealt with."""
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
        """Bytes of units from a position to the end of its file."""
        start = self._files.start_of(position)
        return start + self._units_per_file * TIMER_UNIT_BYTES - position

    def _behind(self, position: int) -> int:
        """Where the next unit begins."""
        position += TIMER_UNIT_BYTES
        start = self._files.start_of(position - TIMER_UNIT_BYTES)
        is_full = position - start >= self._units_per_file * TIMER_UNIT_BYTES
        return start + self.file_bytes if is_full else position


def _decode(data: bytes, at: int, position: int) -> TimerUnit | None:
    """Read a unit; None if it makes no sense: most likely nothing was written there."""
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
        self._slots: dict[int, TimerSlot] = {}
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
                    self._slots[time] = TimerSlot(*slot)
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

    def get(self, time_ms: int) -> TimerSlot | None:
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
            self._slots[time] = TimerSlot(position if first is None else first, position, waiting)
        elif position > slot.last:
            self._slots[time] = TimerSlot(slot.first, position, slot.waiting + waiting)
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


CHECKPOINT_FIELDS = struct.Struct(">qqqqqqq")
assert CHECKPOINT_FIELDS.size == 56
CHECKPOINT_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """What a restart goes on from."""

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
        """The bytes that are also the answer to who asks for them."""
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
    """The check point on disk, rewritten in place. One thread at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None

    def load(self) -> TimerCheckpoint | None:
        """What was saved last; None if that is nothing. Raises OSError."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        data = file.read(CHECKPOINT_FIELDS.size, 0)
        file.close()
        return TimerCheckpoint.decode(data) if len(data) == CHECKPOINT_FIELDS.size and any(data) else None

    def save(self, check: TimerCheckpoint) -> None:
        """Return when it is on the medium. Raises DiskFull, OSError."""
        if self._file is None:
            self._file = self._disk.create(self._path, CHECKPOINT_PAGE_BYTES)
            self._disk.sync_directory(self._path.parent)
        self._file.write([check.encode()], 0)
        self._file.sync()
