"""Reads the records of delayed messages and half messages, many at a time."""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import BLANK_ENTRY_SIZE

log = logging.getLogger(__name__)

T = TypeVar("T")

STRETCH_BYTES_MAX = 16 << 20
"""Records that lie further apart are read one by one."""

RecordPosition = tuple[int, int]
"""The physical offset of a record, and its size as its unit has it."""

_SIZE = struct.Struct(">i")


class ReadCold(Protocol):
    """Does in a thread what may wait for the disk."""

    def __call__(self, read: Callable[[], T], /) -> Awaitable[T]: ...


class RecordLoader:
    """Loop thread; what is not in memory is read in another."""

    def __init__(self, store: MessageStore, read_cold: ReadCold) -> None:
        self._store = store
        self._read_cold = read_cold

    async def read(self, places: Sequence[RecordPosition]) -> list[bytes | None]:
        """The records at these places, in order; None for what cannot be read."""
        if not places:
            return []
        found = self._from_memory(places)
        if found is not None:
            return found
        holds = self._store.reader.hot.holds
        if all(size == BLANK_ENTRY_SIZE or holds(physical_offset, size) for physical_offset, size in places):
            return self.each(places)
        return await self._read_cold(lambda: self.each(places))

    def _from_memory(self, places: Sequence[RecordPosition]) -> list[bytes | None] | None:
        """All of them out of one map, without a system call; None where it is not that simple."""
        store, (offsets, sizes) = self._store, zip(*places, strict=True)
        first, last = offsets[0], offsets[-1]
        start, end = store.log.files.start_of(first), last + sizes[-1]
        view = store.log.views.get(start) or store.log.view(start)
        if (
            view is None
            or not first == min(offsets) <= max(offsets) == last < end <= start + store.log.file_bytes
            or not max(sizes) <= end - first <= STRETCH_BYTES_MAX  # a blank unit claims more
            or not store.reader.hot.holds(first, end - first)
        ):
            return None
        records = [view[place - start : place - start + size].tobytes() for place, size in places]
        try:
            fits = [*map(_SIZE.unpack_from, records)] == [*zip(sizes, strict=True)]
        except struct.error:
            fits = False
        return [*records] if fits else None

    def each(self, places: Sequence[RecordPosition]) -> list[bytes | None]:
        """As `read`, one by one; it may wait for the disk. Any thread."""
        return [self._one(*place) for place in places]

    def _one(self, physical_offset: int, size: int) -> bytes | None:
        if size == BLANK_ENTRY_SIZE:
            return None
        try:
            return self._store.reader.record_at(physical_offset)
        except (OffsetOutOfRange, CorruptRecord) as error:
            log.warning("cannot read delayed message: %s", error)
            return None
