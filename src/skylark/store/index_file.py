"""One index file: keys hashed into slots; a slot points to a chain's newest item, an item to the previous.

HEADER · slots, i32 each: number of the newest item, 0 for none · items: keyHash i32 · phyOffset i64 ·
timeDiff i32 (seconds since beginTimestamp) · prevIndex i32. Items are numbered from 1; item 0 is never used.

The newest file keeps its slots and unwritten items in memory. The owner calls `put`, a background thread
`flush`; both use the store's lock, which `flush` holds for copies only. Items and slots are durable before
the header that counts them, so a header never counts items that a crash can lose.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from skylark.errors import BadStoreFile
from skylark.store.disk import Disk, DiskFile

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ITEM = struct.Struct(">iqii")
assert (HEADER.size, SLOT.size, ITEM.size) == (40, 4, 20)

SECONDS_MAX = (1 << 31) - 1
_PAGE_BYTES = 4096
_PAGE_SLOTS = _PAGE_BYTES // SLOT.size
# The header precedes the slots, so they do not start at a page boundary.
_HEADER_SLOTS = HEADER.size // SLOT.size
_CHUNK_SLOTS = 1 << 18
_CHUNK_ITEMS = 1 << 16
_CHUNK_BYTES = 1 << 20
_OFFSET = struct.Struct(">q")
_OFFSET_IN_ITEM = 4
PUT_MAX = 256
"""Items per `put`."""

Lock = AbstractContextManager[object]


class IndexRows(NamedTuple):
    """Keys to put, as columns."""

    hashes: list[int]
    physical_offsets: list[int]
    timestamps: list[int]


class SameKeyRows(NamedTuple):
    """One key of several messages with the same store time."""

    key_hash: int
    physical_offsets: list[int]
    timestamp: int


class IndexHeader(NamedTuple):
    """The header. Items are numbered from 1, so `next_item` is the item count plus 1."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    slots_used: int = 0
    next_item: int = 1

    def successor(self) -> IndexHeader:
        """Return the initial header of the next file; its first item overwrites the begin fields."""
        time, physical_offset = self.end_timestamp, self.end_physical_offset
        return IndexHeader(time, time, physical_offset, physical_offset)

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        first, last = self.begin_timestamp, self.end_timestamp
        encloses = begin_ms < first and end_ms > last
        return encloses or first <= begin_ms <= last or first <= end_ms <= last


@dataclass(frozen=True, slots=True)
class IndexGeometry:
    """Number of slots and items of a file: a setting, which the length of the file does not tell."""

    slots: int
    items: int

    @property
    def slot_area_end(self) -> int:
        return HEADER.size + SLOT.size * self.slots

    @property
    def file_bytes(self) -> int:
        return self.item_position(self.items)

    @property
    def slot_pages(self) -> int:
        """Number of pages that contain slots."""
        return (self.slots - 1 + _HEADER_SLOTS) // _PAGE_SLOTS + 1

    def item_position(self, number: int) -> int:
        return self.slot_area_end + ITEM.size * number


@dataclass(frozen=True, slots=True)
class IndexChain:
    """A snapshot of the items of one slot: read without a lock while items are added."""

    header: IndexHeader
    _geometry: IndexGeometry
    _slot: int
    _newest: int | None  # None: the slot is on disk
    _tail: bytearray
    _tail_start: int
    _file: DiskFile | None

    def collect(self, key_hash: int, begin_ms: int, end_ms: int, found: set[int], maximum: int) -> None:
        """Add the physical offsets of the key's items in the time window, newest first, up to `maximum`.

        A chain must lead to older items, so a damaged chain ends and never loops. Items that the header does
        not count yet are skipped: another process may be flushing them.
        """
        header = self.header
        number = self._newest if self._newest is not None else self._slot_on_disk()
        if number >= self._geometry.items:
            return
        while number > 0 and len(found) < maximum:
            item = self._item(number)
            if len(item) < ITEM.size:
                return
            item_hash, physical_offset, seconds, previous = ITEM.unpack(item)
            if seconds < 0:
                return
            timestamp = header.begin_timestamp + seconds * 1000
            if item_hash == key_hash and begin_ms <= timestamp <= end_ms and number < header.next_item:
                found.add(physical_offset)
            if timestamp < begin_ms or previous >= number:
                return
            number = previous

    def _slot_on_disk(self) -> int:
        assert self._file is not None
        data = self._file.read(SLOT.size, HEADER.size + SLOT.size * self._slot)
        return int(SLOT.unpack(data)[0]) if len(data) == SLOT.size else 0

    def _item(self, number: int) -> bytes | bytearray:
        return read_items(self._geometry, self._file, self._tail, self._tail_start, number, number + 1)


class IndexFile:
    """One index file, with its unwritten part in memory."""

    def __init__(
        self, path: Path, geometry: IndexGeometry, header: IndexHeader, file: DiskFile | None
    ) -> None:
        self.path = path
        self.header = header
        self._geometry = geometry
        self._file = file
        self._durable_header = header
        # Only while the file has room for items.
        self._slots: memoryview | None = None
        self._tail = bytearray()
        self._tail_start = header.next_item
        # One byte per page of slots: 1 if the page must be written.
        self._dirty_pages = bytearray(geometry.slot_pages)
        self._flushing: list[tuple[int, int]] = []

    @staticmethod
    def new(path: Path, geometry: IndexGeometry, header: IndexHeader) -> IndexFile:
        """Return a new file, in memory only: the first flush with items creates it on disk."""
        made = IndexFile(path, geometry, header, None)
        made._slots = empty_slots(geometry)
        return made

    @staticmethod
    def open(disk: Disk, path: Path, geometry: IndexGeometry, *, writable: bool) -> IndexFile:
        """Open a file for queries. Raises BadStoreFile, OSError."""
        file = disk.open(path, writable=writable)
        if file.length != geometry.file_bytes:
            expected = f"{geometry.file_bytes} bytes for {geometry.slots} slots and {geometry.items} items"
            raise BadStoreFile(path, f"{file.length} bytes instead of {expected}")
        return IndexFile(path, geometry, read_header(file, geometry), file)

    @property
    def is_empty(self) -> bool:
        return self.header.next_item <= 1

    @property
    def is_full(self) -> bool:
        return self.header.next_item >= self._geometry.items

    @property
    def is_sealed(self) -> bool:
        """Whether the file is full and completely on disk."""
        return self.is_full and not self.is_dirty

    @property
    def is_dirty(self) -> bool:
        return self.header != self._durable_header or bool(self._flushing) or 1 in self._dirty_pages

    @property
    def durable_timestamp(self) -> int:
        """End time in the header on disk."""
        return self._durable_header.end_timestamp

    @property
    def first_volatile_offset(self) -> int | None:
        """Physical offset of the first item that is not durable."""
        return int(ITEM.unpack_from(self._tail)[1]) if self._tail else None

    def reload(self) -> None:
        """Read the header again: another process may have added items. Raises BadStoreFile, OSError."""
        assert self._file is not None
        self.header = read_header(self._file, self._geometry)

    def seed(self, header: IndexHeader) -> None:
        """Set the initial header of an empty file."""
        assert self.is_empty
        self.header = self._durable_header = header

    def check_ends(self) -> None:
        """Raise BadStoreFile if header and items disagree."""
        if self.is_empty:
            return
        header = self.header
        first, last = self._item_offset(1), self._item_offset(header.next_item - 1)
        if (first, last) != (header.begin_physical_offset, header.end_physical_offset):
            covered = f"{header.begin_physical_offset} to {header.end_physical_offset}"
            raise BadStoreFile(
                self.path, f"its items go from physical offset {first} to {last}, its header says {covered}"
            )

    # --- Owner: under the store's lock ---

    def put(self, rows: IndexRows | SameKeyRows, start: int) -> int:
        """Put rows from `start` on while there is room; return the index of the first remaining row."""
        begin_timestamp, _, begin_offset, _, used, number = self.header
        # The first item's time is relative to the initial header, later ones to the first: put it alone.
        room = 1 if number == 1 else self._geometry.items - number
        assert room > 0
        stop = start + min(room, PUT_MAX)
        offsets = rows.physical_offsets[start:stop]
        count = len(offsets)
        assert count > 0
        if isinstance(rows, SameKeyRows):
            first_time = last_time = rows.timestamp
            items = [rows.key_hash, 0, elapsed_seconds(begin_timestamp, first_time), 0] * count
            previous = self._chain_run(rows.key_hash, number, count)
        else:
            hashes, timestamps = rows.hashes[start:stop], rows.timestamps[start:stop]
            first_time, last_time = timestamps[0], timestamps[-1]
            earliest = elapsed_seconds(begin_timestamp, min(timestamps))
            items = [0, 0, earliest, 0] * count
            items[0::4] = hashes
            if elapsed_seconds(begin_timestamp, max(timestamps)) > earliest:
                items[2::4] = [elapsed_seconds(begin_timestamp, timestamp) for timestamp in timestamps]
            previous = self._chain(hashes, number)
        items[1::4], items[3::4] = offsets, previous
        self._tail += _packed_items(count)(*items)
        if self.is_empty:
            begin_timestamp, begin_offset = first_time, offsets[0]
        used += previous.count(0)
        self.header = IndexHeader(begin_timestamp, last_time, begin_offset, offsets[-1], used, number + count)
        return start + count

    def _chain_run(self, key_hash: int, number: int, count: int) -> list[int]:
        """As `_chain`, for new items that all have the same hash."""
        assert self._slots is not None
        place = key_hash % self._geometry.slots
        before = self._slots[place]
        self._slots[place] = number + count - 1
        self._dirty_pages[(place + _HEADER_SLOTS) // _PAGE_SLOTS] = 1
        return [before if 0 < before < number else 0, *range(number, number + count - 1)]

    def _chain(self, hashes: list[int], number: int) -> list[int]:
        """Point the slots to the new items, numbered from `number` on; return the previous items."""
        slots, slot_count, dirty = self._slots, self._geometry.slots, self._dirty_pages
        assert slots is not None
        places = [key_hash % slot_count for key_hash in hashes]
        # One call for all slots, so that cache misses overlap; slot 0 only ensures a tuple for one place.
        previous = list(itemgetter(0, *places)(slots)[1:])
        if min(previous) < 0 or max(previous) >= number:  # only in a damaged file
            previous = [before if 0 < before < number else 0 for before in previous]
        if len(set(places)) < len(places):
            newest: dict[int, int] = {}
            for index, place in enumerate(places):
                previous[index] = newest.get(place, previous[index])
                newest[place] = number + index
        for new, place in enumerate(places, number):
            slots[place] = new
            dirty[(place + _HEADER_SLOTS) // _PAGE_SLOTS] = 1
        return previous

    def newest_first(self) -> Iterator[tuple[int, int]]:
        """Key hash and physical offset of each item. Raises BadStoreFile, OSError."""
        for number in range(self.header.next_item - 1, 0, -1):
            key_hash, physical_offset, _, _ = ITEM.unpack(self._items(number, number + 1))
            yield key_hash, physical_offset

    def chain(self, key_hash: int) -> IndexChain:
        """Return a snapshot of the key's chain."""
        slot = key_hash % self._geometry.slots
        newest = self._slots[slot] if self._slots is not None else None
        return IndexChain(self.header, self._geometry, slot, newest, self._tail, self._tail_start, self._file)

    def truncate(self, physical_offset: int) -> None:
        """Remove all items from this physical offset on; the first item must be below it. Raises OSError."""
        if self.header.end_physical_offset < physical_offset:
            return
        items = range(1, self.header.next_item)
        next_item = 1 + bisect_left(items, physical_offset, key=self._item_offset)
        assert next_item > 1
        _, end_offset, seconds, _ = ITEM.unpack(self._items(next_item - 1, next_item))
        self.header = self.header._replace(
            next_item=next_item,
            end_physical_offset=end_offset,
            end_timestamp=min(self.header.begin_timestamp + seconds * 1000, self.header.end_timestamp),
        )
        self._tail = self._tail[: ITEM.size * max(0, next_item - self._tail_start)]
        self._tail_start = min(self._tail_start, next_item)
        self.rebuild_slots()

    def load_slots(self) -> None:
        """Load the slots into memory, so that items can be put. Raises BadStoreFile, OSError."""
        if self._slots is not None:
            return
        assert self._file is not None
        slots = empty_slots(self._geometry)
        for first in range(0, len(slots), _CHUNK_SLOTS):
            wanted = SLOT.size * min(_CHUNK_SLOTS, len(slots) - first)
            data = self._file.read(wanted, HEADER.size + SLOT.size * first)
            if len(data) < wanted:
                raise BadStoreFile(self.path, "cannot read its slots")
            numbers = from_big_endian(data)
            slots[first : first + len(numbers)] = memoryview(numbers)
        self._slots = slots

    def rebuild_slots(self) -> None:
        """Rebuild the slots from the items. Raises BadStoreFile, OSError.

        After a crash the slots on disk cannot be trusted: their pages are written before the header, so they
        may point to items that it does not count.
        """
        slots, slot_count, end = empty_slots(self._geometry), self._geometry.slots, self.header.next_item
        for first in range(1, end, _CHUNK_ITEMS):
            items = self._items(first, min(first + _CHUNK_ITEMS, end))
            hashes = from_big_endian(items)[:: ITEM.size // SLOT.size]
            for number, key_hash in enumerate(hashes, first):
                slots[key_hash % slot_count] = number
        self._slots = slots
        self.header = self.header._replace(slots_used=slot_count - copied(slots).count(0))
        self._dirty_pages = bytearray(b"\1" * self._geometry.slot_pages)

    def _item_offset(self, number: int) -> int:
        return int(ITEM.unpack(self._items(number, number + 1))[1])

    def _items(self, first: int, end: int) -> bytes | bytearray:
        """Return the bytes of items. Raises BadStoreFile, OSError."""
        data = read_items(self._geometry, self._file, self._tail, self._tail_start, first, end)
        if len(data) < ITEM.size * (end - first):
            raise BadStoreFile(self.path, f"cannot read items {first} to {end - 1}")
        return data

    # --- Background: takes the lock for copies ---

    def flush(self, disk: Disk, lock: Lock) -> None:
        """Make all items durable.

        Raises DiskFull, OSError; the next flush then writes everything again.
        """
        with lock:
            if not self.is_dirty:
                return
            header = self.header
            items = bytes(self._tail)
            for first_page, end_page in self._flushing:  # left by a failed flush
                self._dirty_pages[first_page:end_page] = b"\1" * (end_page - first_page)
            self._flushing = list(adjacent(self._dirty_pages))
            self._dirty_pages = bytearray(self._geometry.slot_pages)
            runs = self._slot_runs()
        if self._file is None:
            self._file = create_file(disk, self.path, self._geometry)
        if items:
            self._file.write([items], self._geometry.item_position(self._tail_start))
        for first, numbers in runs:
            if sys.byteorder == "little":
                numbers.byteswap()
            self._file.write([memoryview(numbers).cast("B")], HEADER.size + SLOT.size * first)
        self._file.sync()
        self._file.write([HEADER.pack(*header)], 0)
        self._file.sync()
        with lock:
            self._durable_header = header
            # A new object: queries hold the old tail.
            self._tail = self._tail[len(items) :]
            self._tail_start = header.next_item
            self._flushing = []
            if self.is_sealed:
                self._slots = None

    @property
    def is_on_disk(self) -> bool:
        return self._file is not None

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def _slot_runs(self) -> list[tuple[int, array[int]]]:
        """Return copies of the slots to write, per range of pages: the first slot and all slots."""
        slots = self._slots
        assert slots is not None
        runs = []
        for first_page, end_page in self._flushing:
            first = max(0, first_page * _PAGE_SLOTS - _HEADER_SLOTS)
            runs.append((first, copied(slots[first : end_page * _PAGE_SLOTS - _HEADER_SLOTS])))
        return runs


@lru_cache(PUT_MAX)
def _packed_items(count: int) -> Callable[..., bytes]:
    return struct.Struct(">" + "iqii" * count).pack


def elapsed_seconds(begin_timestamp: int, store_timestamp: int) -> int:
    """Return an item's time: seconds since the header's begin, 0 if that is not set."""
    if begin_timestamp <= 0:
        return 0
    return min(max(0, (store_timestamp - begin_timestamp) // 1000), SECONDS_MAX)


def empty_slots(geometry: IndexGeometry) -> memoryview:
    return memoryview(bytearray(SLOT.size * geometry.slots)).cast("i")


def copied(slots: memoryview) -> array[int]:
    numbers = array("i")
    numbers.frombytes(slots.cast("B"))
    return numbers


def from_big_endian(data: bytes | bytearray) -> array[int]:
    """Decode i32 numbers."""
    numbers = array("i")
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def adjacent(pages: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the first page and the page after the last of each range of pages whose byte is 1."""
    end = 0
    while (first := pages.find(1, end)) >= 0:
        end = pages.find(0, first)
        if end < 0:
            end = len(pages)
        yield first, end


def read_header(file: DiskFile, geometry: IndexGeometry) -> IndexHeader:
    """Raises BadStoreFile for an invalid header, OSError."""
    data = file.read(HEADER.size, 0)
    if len(data) < HEADER.size:
        raise BadStoreFile(file.path, "cannot read its header")
    header = IndexHeader._make(HEADER.unpack(data))
    if header.next_item <= 1:
        return header._replace(next_item=1)
    if header.next_item > geometry.items or not 0 <= header.slots_used <= geometry.slots:
        raise BadStoreFile(
            file.path, f"its header counts {header.next_item} items and {header.slots_used} slots in use"
        )
    if not 0 <= header.begin_physical_offset <= header.end_physical_offset:
        covered = f"{header.begin_physical_offset} to {header.end_physical_offset}"
        raise BadStoreFile(file.path, f"its header covers physical offsets {covered}")
    return header


def read_items(
    geometry: IndexGeometry, file: DiskFile | None, tail: bytearray, tail_start: int, first: int, end: int
) -> bytes | bytearray:
    """Return items `first` to `end` - 1; `tail` holds those from `tail_start` on. May be short."""
    on_disk_end = min(max(first, tail_start), end) if tail else end
    in_tail = tail[ITEM.size * (on_disk_end - tail_start) : ITEM.size * (end - tail_start)] if tail else b""
    if first == on_disk_end or file is None:
        return in_tail
    wanted = ITEM.size * (on_disk_end - first)
    data = file.read(wanted, geometry.item_position(first))
    return data + in_tail if len(data) == wanted else data


def create_file(disk: Disk, path: Path, geometry: IndexGeometry) -> DiskFile:
    """Create the file at full length with allocated slots. Raises DiskFull, OSError."""
    directory = path.parent
    is_first = not disk.exists(directory)
    file = disk.create(path, geometry.file_bytes)
    file.allocate(0, geometry.slot_area_end)
    disk.sync_directory(directory)
    if is_first:
        disk.sync_directory(directory.parent)
    return file


def find_geometry(disk: Disk, path: Path) -> IndexGeometry | None:
    """Return the geometry of an index file; None without items, or if they are not found. Raises OSError.

    The length of a file fits many pairs of numbers. The place of the newest item tells them apart: the header
    says which message it belongs to, and its slot points to it.
    """
    file = disk.open(path, writable=False)
    try:
        return _find_geometry(file)
    finally:
        file.close()


def _find_geometry(file: DiskFile) -> IndexGeometry | None:
    if file.length < HEADER.size:
        return None
    header = IndexHeader._make(HEADER.unpack(file.read(HEADER.size, 0)))
    number = header.next_item - 1
    if number < 1 or header.end_physical_offset <= 0:
        return None  # an offset of zeros is everywhere
    for position in _places(file, _OFFSET.pack(header.end_physical_offset)):
        slot_bytes = position - _OFFSET_IN_ITEM - ITEM.size * number - HEADER.size
        slots, rest = divmod(slot_bytes, SLOT.size)
        items, more = divmod(file.length - HEADER.size - slot_bytes, ITEM.size)
        if slots > 0 and not rest and not more and number < items:
            geometry = IndexGeometry(slots, items)
            if _is_newest(file, geometry, number):
                return geometry
    return None


def _places(file: DiskFile, pattern: bytes) -> Iterator[int]:
    """Yield the positions of some bytes in a file."""
    overlap = len(pattern) - 1
    for start in range(HEADER.size, file.length, _CHUNK_BYTES):
        data = file.read(min(_CHUNK_BYTES + overlap, file.length - start), start)
        found = data.find(pattern)
        while found >= 0:
            yield start + found
            found = data.find(pattern, found + 1)


def _is_newest(file: DiskFile, geometry: IndexGeometry, number: int) -> bool:
    """Return whether the item is the newest of its slot."""
    key_hash, _, _, previous = ITEM.unpack(file.read(ITEM.size, geometry.item_position(number)))
    if key_hash < 0 or not 0 <= previous < number:
        return False
    slot = file.read(SLOT.size, HEADER.size + SLOT.size * (key_hash % geometry.slots))
    return bool(slot == SLOT.pack(number))
