"""The timer log: which message is due when, in the order of enqueuing, chained by slot of the wheel.

Unit: size i32 (52) · previous position of the slot i64 · flags i32 · write time i64 · delay i32 (ms from the
write time) · physical offset i64 · record size i32 · hash of the real topic i32 · reserved i64. Where no unit
fits any more a file ends: remaining length i32 · 0 i64 · 0xCBD43194 u32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from skylark.errors import CorruptRecord
from skylark.model.record import MAGIC_BLANK
from skylark.store.disk import Disk
from skylark.store.mapped_file import MappedFileQueue, OpenFiles

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_BYTES = UNIT.size
assert UNIT_BYTES == 52
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
        return UNIT.pack(
            UNIT_BYTES, self.previous, self.flags, self.write_ms, self.delay_ms, self.physical_offset,
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
            data = self._read(position, min(SCAN_UNITS * UNIT_BYTES, self._room(position)))
            for at in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
                unit = _decode(data, at, position)
                if unit is None:
                    self._cut()
                    return
                yield position, unit
                position = self.appended = self._behind(position)
            if len(data) < UNIT_BYTES:
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
        return self._room(self.appended) // UNIT_BYTES

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
        behind = self._behind(position + len(data) - UNIT_BYTES)
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
                is_near = 0 < first - position <= NEAR_UNITS * UNIT_BYTES
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
        first = max(position - (count - 1) * UNIT_BYTES, self._files.start_of(position))
        return first, self._read(first, position + UNIT_BYTES - first)

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
            last = start + self._units_per_file * UNIT_BYTES - UNIT_BYTES
            unit = _decode(self._read(last, UNIT_BYTES), 0, last)
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
        return (self.file_bytes - END.size) // UNIT_BYTES

    def _room(self, position: int) -> int:
        """Bytes of units from a position to the end of its file."""
        start = self._files.start_of(position)
        return start + self._units_per_file * UNIT_BYTES - position

    def _behind(self, position: int) -> int:
        """Where the next unit begins."""
        position += UNIT_BYTES
        start = self._files.start_of(position - UNIT_BYTES)
        is_full = position - start >= self._units_per_file * UNIT_BYTES
        return start + self.file_bytes if is_full else position


def _decode(data: bytes, at: int, position: int) -> TimerUnit | None:
    """Read a unit; None if it makes no sense: most likely nothing was written there."""
    if len(data) < at + UNIT_BYTES:
        return None
    size, previous, flags, write_ms, delay_ms, physical_offset, record_bytes, topic_hash, _ = (
        UNIT.unpack_from(data, at)
    )
    if size != UNIT_BYTES or not 0 <= flags <= FLAGS_MAX or physical_offset < 0 or record_bytes <= 0:
        return None
    if not NO_POSITION <= previous < position:
        return None
    return TimerUnit(previous, flags, write_ms, delay_ms, physical_offset, record_bytes, topic_hash)
