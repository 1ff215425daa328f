"""Verification of index files: their own structure, and their items against the log's records."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skylark.errors import BadStoreFile
from skylark.model.message import KEY_SEPARATOR, find_keys, find_unique_key
from skylark.model.record import ScannedRecord
from skylark.store.disk import DiskFile
from skylark.store.dispatch import is_indexed
from skylark.store.findings import FindingKind, Verification
from skylark.store.index import index_names, key_hash_of
from skylark.store.index_file import (
    HEADER,
    ITEM,
    SLOT,
    IndexHeader,
    elapsed_seconds,
    from_big_endian,
    read_header,
    read_items,
)
from skylark.store.reader import StoreReader
from skylark.store.recovery import DAMAGED_DIRECTORY
from skylark.store.replay import FILLER_TOPIC

ITEMS_AT_A_TIME = 4096
SLOTS_AT_A_TIME = 1 << 18


@dataclass(frozen=True, slots=True)
class _Item:
    path: Path
    header: IndexHeader
    number: int
    position: int
    key_hash: int
    physical_offset: int
    seconds: int


class IndexCheck:
    """The items of all index files stand in the log's order, so one walk over both compares them.

    Records before the first item and behind the last are outside the index's range: it may have been turned
    on late, or off, and on a running store it lags.
    """

    def __init__(self, reader: StoreReader, result: Verification) -> None:
        self._reader = reader
        self._result = result
        self._geometry = reader.index_geometry
        self._skipped = list(self._set_aside())
        self._items = self._all_items()
        self._next = next(self._items, None)
        self._has_begun = False

    def _set_aside(self) -> Iterator[tuple[int, int]]:
        """What recovery once found damaged in the log and kept a copy of."""
        directory, disk = self._reader.path / DAMAGED_DIRECTORY, self._reader.disk
        for name in disk.files(directory):
            if name.isdigit():
                yield int(name), int(name) + disk.length(directory / name)

    def skip(self, physical_from: int, physical_to: int) -> None:
        """The log is damaged there: items of its records have nothing to be compared with."""
        # Items before it have been looked at: a log full of damage must not fill the memory.
        self._skipped = [(low, high) for low, high in self._skipped if high > physical_from]
        self._skipped.append((physical_from, physical_to))

    def check(self, record: ScannedRecord) -> None:
        """Compare the record's keys with the items that point to it. Call in the log's order."""
        item = self._next
        while item is not None and item.physical_offset < record.physical_offset:
            self._without_record(item)
            item = self._advance()
        if record.topic == FILLER_TOPIC.encode():
            self.skip(record.physical_offset, record.physical_offset + record.size)
        keys = keys_of(record) if is_indexed(record.sys_flag) else {}
        if item is None or not (self._has_begun or item.physical_offset == record.physical_offset):
            self._result.counts.unindexed += bool(keys) and self._result.counts.index_files > 0
            return
        self._has_begun = True
        found = set()
        while item is not None and item.physical_offset == record.physical_offset:
            found.add(item.key_hash)
            self._compare(item, record, keys)
            item = self._advance()
        for key_hash in keys.keys() - found:
            self._key_missing(record, keys[key_hash])

    def finish(self) -> None:
        """Look at the items behind the last record."""
        while self._next is not None:
            self._without_record(self._next)
            self._advance()

    def _advance(self) -> _Item | None:
        self._next = next(self._items, None)
        return self._next

    def _compare(self, item: _Item, record: ScannedRecord, keys: dict[int, str]) -> None:
        if item.key_hash not in keys:
            if self._is_skipped(item.physical_offset):
                return
            reason = f"item {item.number} is of no key of the record at {item.physical_offset}"
            self._result.add(FindingKind.INDEX_ITEM, item.path, item.position, reason)
            return
        seconds = elapsed_seconds(item.header.begin_timestamp, record.store_timestamp)
        # The first item counts its time from the end of the file before.
        if item.number > 1 and item.seconds != seconds:
            reason = f"item {item.number} is {item.seconds} s after the file's begin, its record {seconds} s"
            self._result.add(FindingKind.INDEX_ITEM, item.path, item.position, reason)

    def _is_skipped(self, physical_offset: int) -> bool:
        return any(low <= physical_offset < high for low, high in self._skipped)

    def _without_record(self, item: _Item) -> None:
        physical_offset = item.physical_offset
        if self._is_skipped(physical_offset):
            return
        is_new = self._reader.is_marked_running and physical_offset >= self._reader.end_physical_offset
        if is_new or self._reader.is_cleaned(physical_offset):
            return
        reason = f"item {item.number} points to physical offset {physical_offset}, where no record starts"
        self._result.add(FindingKind.INDEX_ITEM, item.path, item.position, reason)

    def _key_missing(self, record: ScannedRecord, key: str) -> None:
        files = self._reader.log.files
        start = files.start_of(record.physical_offset)
        reason = f"key {key!r} of the record is not in the index"
        position = record.physical_offset - start
        self._result.add(FindingKind.INDEX_KEY, files.path(start), position, reason)

    # The files

    def _all_items(self) -> Iterator[_Item]:
        """Items of all files, oldest file first; each file's structure is checked on the way."""
        reader, result = self._reader, self._result
        problems: list[str] = []
        directory = reader.path / "index"
        names = index_names(reader.disk, directory, problems)
        for problem in problems:
            result.add(FindingKind.INDEX_FILE, directory, 0, problem)
        lengths = self._lengths([directory / name for name in names])
        if reader.is_marked_running and lengths and list(lengths.values())[-1] == 0:
            lengths.popitem()  # being made
        expected = self._geometry.file_bytes
        if lengths and expected not in lengths.values() and len(set(lengths.values())) == 1:
            result.note(
                f"the index is not verified: its files do not have {self._geometry.slots} slots and"
                f" {self._geometry.items} items; say how many they have"
            )
            return
        for path, length in lengths.items():
            if length != expected:
                result.add(FindingKind.INDEX_FILE, path, 0, f"has {length} bytes instead of {expected}")
            else:
                yield from self._file_items(path)

    def _lengths(self, paths: list[Path]) -> dict[Path, int]:
        lengths = {}
        for path in paths:
            try:
                lengths[path] = self._reader.disk.length(path)
            except FileNotFoundError:
                continue  # cleaned since the directory was listed
        return lengths

    def _file_items(self, path: Path) -> Iterator[_Item]:
        try:
            file = self._reader.disk.open(path)
            header = read_header(file, self._geometry)
        except FileNotFoundError:
            return
        except BadStoreFile as error:
            self._result.add(FindingKind.INDEX_FILE, path, 0, error.reason)
            return
        self._result.counts.index_files += 1
        self._result.counts.index_items += header.next_item - 1
        newest = array("i", bytes(SLOT.size * self._geometry.slots))
        yield from self._chained_items(file, header, newest)
        self._check_slots(file, header, newest)
        file.close()

    def _chained_items(self, file: DiskFile, header: IndexHeader, newest: array[int]) -> Iterator[_Item]:
        """The items in order; each must name the one before it in its slot, and none is before its elder."""
        path, geometry = file.path, self._geometry
        before = header.begin_physical_offset
        for first in range(1, header.next_item, ITEMS_AT_A_TIME):
            end = min(first + ITEMS_AT_A_TIME, header.next_item)
            data = read_items(geometry, file, bytearray(), 0, first, end)
            for number, row in enumerate(ITEM.iter_unpack(data), first):
                key_hash, physical_offset, seconds, previous = row
                position = geometry.item_position(number)
                slot = key_hash % geometry.slots
                if key_hash < 0 or previous != newest[slot]:
                    reason = f"item {number} names item {previous} before it, that is item {newest[slot]}"
                    self._result.add(FindingKind.INDEX_CHAIN, path, position, reason)
                newest[slot] = number
                if physical_offset < before:
                    reason = f"item {number} is of physical offset {physical_offset}, behind one of {before}"
                    self._result.add(FindingKind.INDEX_ITEM, path, position, reason)
                    continue
                before = physical_offset
                yield _Item(path, header, number, position, key_hash, physical_offset, seconds)

    def _check_slots(self, file: DiskFile, header: IndexHeader, newest: array[int]) -> None:
        """Each slot names the newest item of its chain; in a running store it may be ahead."""
        may_be_ahead = self._reader.is_marked_running
        for first in range(0, len(newest), SLOTS_AT_A_TIME):
            count = min(SLOTS_AT_A_TIME, len(newest) - first)
            position = HEADER.size + SLOT.size * first
            slots = from_big_endian(file.read(SLOT.size * count, position))
            if slots == newest[first : first + count]:
                continue
            for slot, number in enumerate(slots, first):
                if number != newest[slot] and not (may_be_ahead and number >= header.next_item):
                    reason = f"slot {slot} names item {number}, the newest of its chain is {newest[slot]}"
                    at = HEADER.size + SLOT.size * slot
                    self._result.add(FindingKind.INDEX_CHAIN, file.path, at, reason)
        used = len(newest) - newest.count(0)
        if used != header.slots_used and not may_be_ahead:
            reason = f"the header counts {header.slots_used} slots in use, there are {used}"
            self._result.add(FindingKind.INDEX_CHAIN, file.path, 0, reason)


def keys_of(record: ScannedRecord) -> dict[int, str]:
    """The record's keys by their hashes."""
    topic = record.topic.decode(errors="replace")
    unique_key, keys = find_unique_key(record.properties), find_keys(record.properties)
    texts = [unique_key.decode(errors="replace")] if unique_key else []
    texts += keys.decode(errors="replace").split(KEY_SEPARATOR) if keys else []
    return {key_hash_of(topic, text): text for text in texts if text}
