"""Batch consume queues: per topic and queue, 46-byte units, each for a record with one or more messages.

Topics with `queue.type=BatchCQ` have them. Units are dense in the files, but queue offsets are not: a unit
states the offset of its first message and how many there are, and a search finds the unit of an offset.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.mapped_file import OpenFiles
from skylark.store.queue_entry import BLANK_ENTRY, ENTRY, ENTRY_BYTES

BATCH_UNIT = struct.Struct(">qiqqqhii")
"""Physical offset, record size, tags code, store time, queue offset of the first message, messages, -1
(the offset in a compaction log, which there is none of), 0."""
BATCH_UNIT_BYTES = BATCH_UNIT.size
assert BATCH_UNIT_BYTES == 46
NO_COMPACTION = -1
KNOWN_POSITIONS_MAX = 64
"""Positions remembered per queue: one for each reader that reads on from where it was."""

BatchUnit = tuple[int, int, int, int, int, int, int, int]
_GONE: BatchUnit = (0, 0, 0, 0, -1, 0, 0, 0)
"""A unit whose file was deleted: it is before every offset."""


class BatchConsumeQueue(ConsumeQueue):
    """One queue of a BatchCQ topic. To others it looks like a queue whose batches share an entry."""

    __slots__ = ("_end", "_known")

    is_batched: ClassVar[bool] = True
    entry_bytes: ClassVar[int] = BATCH_UNIT_BYTES

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        file_bytes: int,
        disk: Disk,
        open_files: OpenFiles,
        lock: threading.Lock,
    ) -> None:
        super().__init__(topic, queue_id, directory, file_bytes, disk, open_files, lock)
        self.is_special = True
        self._end = 0
        self._known: dict[int, int] = {}

    @property
    def max_offset(self) -> int:
        """One above the last message of the last published unit."""
        return self._end

    # Units and their positions

    @property
    def _end_position(self) -> int:
        return self._tail_start + len(self.tail)

    def _unit_at(self, position: int) -> BatchUnit:
        length, tail = self._split(position, BATCH_UNIT_BYTES)
        data = self._read(position, length) if length else tail
        return BATCH_UNIT.unpack(data) if len(data) == BATCH_UNIT_BYTES else _GONE

    def position_of(self, queue_offset: int) -> int:
        """Return the position of the unit with the offset, or of the first unit behind it."""
        low, high = 0, (self._end_position - self._files.first) // BATCH_UNIT_BYTES
        while low < high:
            middle = (low + high) // 2
            _, _, _, _, base, count, _, _ = self._unit_at(self._files.first + middle * BATCH_UNIT_BYTES)
            if base + count <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return self._files.first + low * BATCH_UNIT_BYTES

    def offset_at(self, position: int) -> int:
        """Return the first offset of the unit at a position, or the offset behind the last unit."""
        end = self._end_position
        if position < end:
            return max(self._unit_at(position)[4], 0)
        if end <= self._files.first:
            return 0
        _, _, _, _, base, count, _, _ = self._unit_at(end - BATCH_UNIT_BYTES)
        return max(base + count, 0)

    def units(self, queue_offset: int, number: int, *, may_block: bool = True) -> bytes | bytearray | None:
        """Return up to `number` units from that of an offset on, never across a file's end.

        Empty if there is none or its file is gone; without `may_block`, None if the disk must be read.
        """
        position = self._known.get(queue_offset)
        units = None if position is None else self._units_at(position, number, may_block=may_block)
        if not units or not _holds(BATCH_UNIT.unpack_from(units), queue_offset):
            # A search reads a few units of the whole queue: most are in memory, as those of any search are.
            position = self.position_of(queue_offset)
            units = self._units_at(position, number, may_block=may_block)
        if not units or position is None:
            return units
        _, _, _, _, base, count, _, _ = BATCH_UNIT.unpack_from(units, len(units) - BATCH_UNIT_BYTES)
        if len(self._known) >= KNOWN_POSITIONS_MAX:
            self._known.clear()
        self._known[base + count] = position + len(units)
        return units

    def _units_at(self, position: int, number: int, *, may_block: bool) -> bytes | bytearray | None:
        length, tail = self._split(position, number * BATCH_UNIT_BYTES)
        if not length:
            return tail
        written = self._read(position, length) if may_block else self._read_resident(position, length)
        return written + tail if written is not None and len(written) == length else written

    # Reading

    def entries(self, first: int, count: int) -> bytes | bytearray:
        """Return the entries of up to `count` offsets. Messages of a batch share one."""
        return _entries_of(self.units(first, count) or b"", first, count)

    def resident_entries(self, first: int, count: int) -> bytes | bytearray | None:
        units = self.units(first, count, may_block=False)
        return None if units is None else _entries_of(units, first, count)

    def search(self, low: int, high: int, predicate: Callable[[int, int], bool]) -> int:
        """Return the first offset in [low, high) whose unit meets a monotone predicate, else `high`."""
        first = self.position_of(low)
        start, behind = 0, (self.position_of(high) - first) // BATCH_UNIT_BYTES
        found = high
        while start < behind:
            middle = (start + behind) // 2
            physical_offset, size, _, _, base, _, _, _ = self._unit_at(first + middle * BATCH_UNIT_BYTES)
            if base >= 0 and predicate(physical_offset, size):
                found, behind = max(base, low), middle
            else:
                start = middle + 1
        return found

    # Publishing: hold the store's lock

    def fill_to(self, queue_offset: int) -> None:
        """Leave out offsets without a record: units need not be consecutive."""
        if self._end_position <= self._files.first:
            self.min_offset = queue_offset
        self._end = queue_offset

    def _publish(
        self, queue_offset: int, physical_offset: int, size: int, tags_code: int, timestamp: int, count: int
    ) -> None:
        self.tail += BATCH_UNIT.pack(
            physical_offset, size, tags_code, timestamp, queue_offset, count, NO_COMPACTION, 0
        )
        self._end = queue_offset + count

    def _is_covered(self, physical_offset: int) -> bool:
        end = self._end_position
        if end <= self._files.first:
            return False
        last_offset, last_size, _, _, _, _, _, _ = self._unit_at(end - BATCH_UNIT_BYTES)
        return physical_offset < last_offset + last_size

    # Loading

    def _is_entry(self, data: bytes) -> bool:
        unit = BATCH_UNIT.unpack(data) if len(data) == BATCH_UNIT_BYTES else _GONE
        physical_offset, size, _, _, base, count, _, _ = unit
        return bool(physical_offset >= 0 and size > 0 and base >= 0 and count > 0)

    def _after_load(self) -> None:
        self.tail = bytearray()
        self._known.clear()
        self._end = self.offset_at(self._tail_start)
        super()._after_load()


def _holds(unit: BatchUnit, queue_offset: int) -> bool:
    _, _, _, _, base, count, _, _ = unit
    return base <= queue_offset < base + count


def batch_entries(
    queue: BatchConsumeQueue, queue_offset: int, messages_max: int, *, may_block: bool
) -> tuple[bytearray | None, list[int]]:
    """Return one entry for each unit from an offset on, and the offset behind each of them.

    They hold up to `messages_max` messages together, but there is at least one; None and none as `units`.
    """
    units = queue.units(queue_offset, messages_max, may_block=may_block)
    if units is None:
        return None, []
    entries, ends = bytearray(), list[int]()
    for physical_offset, size, code, _, base, count, _, _ in BATCH_UNIT.iter_unpack(units):
        if ends and base + count - queue_offset > messages_max:
            break
        entries += ENTRY.pack(physical_offset, size, code)
        ends.append(base + count)
    return entries, ends


def _entries_of(units: bytes | bytearray, first: int, count: int) -> bytearray:
    """Return the entries of offsets from `first` on: one for each message, blank where none is."""
    entries = bytearray()
    wanted = count * ENTRY_BYTES
    for physical_offset, size, code, _, base, messages, _, _ in BATCH_UNIT.iter_unpack(units):
        behind = first + len(entries) // ENTRY_BYTES
        entries += BLANK_ENTRY * (base - behind)
        entries += ENTRY.pack(physical_offset, size, code) * (base + messages - max(base, behind))
        if len(entries) >= wanted:
            break
    return entries[:wanted]
