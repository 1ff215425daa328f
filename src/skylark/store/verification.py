"""Full verification of a store directory, read-only: every record, queue entry, index item and other file.

One pass over the log checks each record, its entry and its keys; entries that no record claimed are then
checked one by one. Memory stays flat: a window of entries per recently used queue, and the slots of one
index file. Start reading at `verify`.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from skylark.errors import BadJson, BadStoreFile, CorruptRecord, OffsetOutOfRange
from skylark.model import java
from skylark.model.message import PROPERTY_CRC32, StoredMessage, find_keys, find_unique_key, split_keys
from skylark.model.record import CRC_PROPERTY_BYTES, ScannedRecord, has_valid_crc_property, unwrap
from skylark.store.append_result import AppendedRecord
from skylark.store.checkpoint import CHECKPOINT_BYTES, load_manifest
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import DiskFile
from skylark.store.dispatch import Dispatcher, is_indexed
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
from skylark.store.log_scan import LiveLogScan, LogDamage
from skylark.store.mapped_file import NAME_DIGITS, file_name
from skylark.store.queue_entry import (
    BLANK_ENTRY_SIZE,
    ENTRY,
    ENTRY_BYTES,
    NO_ENTRY_MASK,
    PREPARED,
)
from skylark.store.recovery import DAMAGED_DIRECTORY, FILLER_TOPIC
from skylark.store.store_reader import StoreReader
from skylark.store.unsupported_files import (
    ROCKSDB_STORE,
    ROCKSDB_WAY_OUT,
    holds_rocksdb_data,
    is_foreign_light_queue,
)

FINDINGS_MAX = 1000
NOTES_MAX = 100


class FindingKind(Enum):
    """Kinds of findings."""

    LOG_FILE = "commit-log-file"
    LOG_HOLE = "commit-log-hole"
    LOG_TAIL = "commit-log-tail"
    RECORD = "record"
    CRC_PROPERTY = "crc-property"
    QUEUE_FILE = "consume-queue-file"
    QUEUE_MISSING = "consume-queue-missing"
    UNIT_MISSING = "unit-missing"
    UNIT_WRONG = "unit-wrong"
    INDEX_FILE = "index-file"
    INDEX_CHAIN = "index-chain"
    INDEX_ITEM = "index-item"
    INDEX_KEY = "index-key-missing"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    REFUSED = "refused"
    """Sound, but not servable here."""


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """One defect: the file, the byte position in it, and the reason."""

    kind: FindingKind
    path: Path
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.path} at byte {self.position}: {self.reason}"


@dataclass(slots=True)
class VerificationCounts:
    """Numbers of verified items."""

    log_files: int = 0
    log_bytes: int = 0
    records: int = 0
    queues: int = 0
    units: int = 0
    blank_units: int = 0
    """Entries without a record: the messages are lost."""
    index_files: int = 0
    index_items: int = 0
    config_files: int = 0
    waiting: int = 0
    """Records of a running or killed store without an entry yet: the store or recovery adds it."""
    unindexed: int = 0
    """Records with keys outside the index's range."""
    left_over: int = 0
    """Records of deleted topics."""


@dataclass(slots=True)
class Verification:
    """The result: all findings are counted, the first are kept. `notes` are not defects."""

    findings_max: int = FINDINGS_MAX
    findings: list[StoreFinding] = field(default_factory=list)
    by_kind: Counter[FindingKind] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    counts: VerificationCounts = field(default_factory=VerificationCounts)

    @property
    def total(self) -> int:
        return self.by_kind.total()

    @property
    def is_clean(self) -> bool:
        return not self.by_kind

    def add(self, kind: FindingKind, path: Path, position: int, reason: str) -> None:
        self.by_kind[kind] += 1
        if len(self.findings) < self.findings_max:
            self.findings.append(StoreFinding(kind, path, position, reason))

    def note(self, sentence: str) -> None:
        if len(self.notes) < NOTES_MAX and sentence not in self.notes:
            self.notes.append(sentence)


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
    """Compares index items and records in one pass: both are in log order.

    Records before the first item and behind the last are outside of the index: it may have been enabled late
    or disabled, and on a running store it lags.
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
        """Yield the damaged ranges of the log that recovery copied aside."""
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
                f" {self._geometry.items} items; pass the right numbers"
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
                continue  # deleted since the directory was listed
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
        """Yield the items in order; each must point to the previous item of its slot, and offsets ascend."""
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
                    reason = f"item {number} points to item {previous} instead of item {newest[slot]}"
                    self._result.add(FindingKind.INDEX_CHAIN, path, position, reason)
                newest[slot] = number
                if physical_offset < before:
                    reason = f"item {number} has physical offset {physical_offset}, but follows {before}"
                    self._result.add(FindingKind.INDEX_ITEM, path, position, reason)
                    continue
                before = physical_offset
                yield _Item(path, header, number, position, key_hash, physical_offset, seconds)

    def _check_slots(self, file: DiskFile, header: IndexHeader, newest: array[int]) -> None:
        """Check that each slot points to the newest item of its chain; in a running store it may be ahead."""
        may_be_ahead = self._reader.is_marked_running
        for first in range(0, len(newest), SLOTS_AT_A_TIME):
            count = min(SLOTS_AT_A_TIME, len(newest) - first)
            position = HEADER.size + SLOT.size * first
            slots = from_big_endian(file.read(SLOT.size * count, position))
            if slots == newest[first : first + count]:
                continue
            for slot, number in enumerate(slots, first):
                if number != newest[slot] and not (may_be_ahead and number >= header.next_item):
                    reason = f"slot {slot} points to item {number} instead of item {newest[slot]}"
                    at = HEADER.size + SLOT.size * slot
                    self._result.add(FindingKind.INDEX_CHAIN, file.path, at, reason)
        used = len(newest) - newest.count(0)
        if used != header.slots_used and not may_be_ahead:
            reason = f"the header counts {header.slots_used} slots in use instead of {used}"
            self._result.add(FindingKind.INDEX_CHAIN, file.path, 0, reason)


def keys_of(record: ScannedRecord) -> dict[int, str]:
    """Return the record's keys by hash."""
    topic = record.topic.decode(errors="replace")
    unique_key, keys = find_unique_key(record.properties), find_keys(record.properties)
    texts = [unique_key.decode(errors="replace")] if unique_key else []
    texts += split_keys(keys.decode(errors="replace")) if keys else []
    return {key_hash_of(topic, text): text for text in texts}


WINDOW_ENTRIES = 512
WINDOWS_MAX = 1024
# A tags code below the range of i32 is an address in the queue's extension, which is not supported.
EXTENSION_BELOW = -(1 << 31)


class QueueCheck:
    """Checks that every ordinary record has an entry, and every entry a record.

    Call `check` for each record in log order; it counts the entries that match a record. If a queue has more
    entries, `finish` checks each of them.
    """

    def __init__(self, reader: StoreReader, result: Verification) -> None:
        self._reader = reader
        self._result = result
        self._table = reader.queue_table
        self._dispatcher = Dispatcher(reader.log, reader.queue_table, None)
        self._claimed: Counter[ConsumeQueue] = Counter()
        self._windows: OrderedDict[ConsumeQueue, tuple[int, bytes | bytearray]] = OrderedDict()
        self._first_records: dict[ConsumeQueue, int] = {}
        self._topic_firsts: dict[str, int] = {}
        self._missing: set[tuple[str, int]] = set()
        self._topics = {topic for topic, _ in self._table}
        manifest = load_manifest(reader.disk, reader.path)
        self._recorded = {(known.topic, known.queue_id) for known in manifest.queues} if manifest else set()
        durable = reader.checkpoint.durable_offset if reader.checkpoint is not None else None
        # All entries of records below must be on disk, even while the store is running.
        self._complete_to = (durable or 0) if reader.is_marked_running else 1 << 63
        result.counts.queues = len(self._table)
        result.counts.units = sum(queue.max_offset - queue.min_offset for queue in self._table.values())

    # From records to entries

    def check(self, record: ScannedRecord) -> None:
        """Check the record's entry."""
        topic = record.topic.decode(errors="replace")
        queue = self._table.get((topic, record.queue_id))
        is_batched = queue.is_batched if queue is not None else self._table.is_batched(topic)
        if record.sys_flag & (PREPARED if is_batched else NO_ENTRY_MASK):
            return
        if queue is None:
            self._without_queue(topic, record)
            return
        for placed in self._dispatcher.place(record).places:
            self._check_place(placed)

    def _check_place(self, placed: AppendedRecord) -> None:
        queue = placed.queue
        entry = self._entry(queue, placed.queue_offset)
        if entry is None or entry[0] != placed.physical_offset:
            self._without_entry(placed)
            return
        self._claimed[queue] += placed.message_count
        _, size, tags_code = entry
        expected = placed.tags_code
        if size != placed.size:
            self._wrong(queue, placed.queue_offset, f"has size {size}, its record {placed.size}")
        elif tags_code != expected and tags_code >= EXTENSION_BELOW:
            self._wrong(queue, placed.queue_offset, f"has tags code {tags_code}, its record {expected}")

    def _entry(self, queue: ConsumeQueue, queue_offset: int) -> tuple[int, int, int] | None:
        """Return an entry, from a window of entries: records come in order, so the next are in it, too."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        first, entries = self._windows.get(queue, (0, b""))
        if not first <= queue_offset < first + len(entries) // ENTRY_BYTES:
            first = queue_offset
            entries = queue.entries(first, min(WINDOW_ENTRIES, queue.max_offset - first))
            self._windows[queue] = first, entries
            if len(self._windows) > WINDOWS_MAX:
                self._windows.popitem(last=False)
        if len(entries) < ENTRY_BYTES:
            return None
        return ENTRY.unpack_from(entries, (queue_offset - first) * ENTRY_BYTES)

    def _without_queue(self, topic: str, record: ScannedRecord) -> None:
        key = (topic, record.queue_id)
        first = self._first_of_topic(topic)
        known = topic in self._topics or topic in self._reader.topic_attributes or key in self._recorded
        is_new = record.physical_offset >= self._complete_to
        # Without a list of topics, a new topic without a queue looks like a deleted one.
        is_deleted = not known and not (is_new and not self._reader.topic_attributes)
        if is_deleted or record.physical_offset < first:
            self._left_over(topic)
        elif is_new:
            self._result.counts.waiting += 1
        elif key not in self._missing and not self._reader.is_cleaned(record.physical_offset):
            self._missing.add(key)
            reason = f"missing; the record at physical offset {record.physical_offset} needs it"
            directory = self._table.directory_of(topic) / str(record.queue_id)
            self._result.add(FindingKind.QUEUE_MISSING, directory, 0, reason)

    def _without_entry(self, placed: AppendedRecord) -> None:
        queue = placed.queue
        is_behind = placed.queue_offset >= queue.max_offset
        if placed.queue_offset >= queue.min_offset and placed.physical_offset < self._first_record(queue):
            # Older than the queue's first message, but with a higher offset: the topic was deleted.
            self._left_over(queue.topic)
        elif is_behind and placed.physical_offset >= self._complete_to:
            self._result.counts.waiting += 1
        elif not self._reader.is_cleaned(placed.physical_offset) and self._reader.disk.exists(
            queue.directory
        ):
            reason = f"does not point to the record at physical offset {placed.physical_offset}"
            self._add(FindingKind.UNIT_MISSING, queue, placed.queue_offset, reason)

    def _left_over(self, topic: str) -> None:
        self._result.counts.left_over += 1
        self._result.note(f"topic {topic} was deleted, but records of it are in the log")

    def _first_record(self, queue: ConsumeQueue) -> int:
        """Return the physical offset of the record that the queue's first entry points to."""
        first = self._first_records.get(queue)
        if first is None:
            at = queue.search(queue.min_offset, queue.max_offset, lambda physical_offset, size: True)
            entry = queue.entry(at) if at < queue.max_offset else None
            first = self._first_records[queue] = entry[0] if entry is not None else 0
        return first

    def _first_of_topic(self, topic: str) -> int:
        first = self._topic_firsts.get(topic)
        if first is None:
            first = min(map(self._first_record, self._table.of_topic(topic)), default=0)
            self._topic_firsts[topic] = first
        return first

    # From entries to records

    def finish(self) -> None:
        """Check every entry that matched no record. Call after the last record."""
        for queue in list(self._table.values()):
            unclaimed = queue.max_offset - queue.min_offset - self._claimed[queue]
            if unclaimed and not is_foreign_light_queue(queue.topic):
                self._check_entries(queue, unclaimed)

    def _check_entries(self, queue: ConsumeQueue, unclaimed: int) -> None:
        blank = sum(size == BLANK_ENTRY_SIZE for _, _, size in self._entries(queue))
        self._result.counts.blank_units += blank
        if blank:
            name = f"{queue.topic}/{queue.queue_id}"
            self._result.note(f"queue {name} has {blank} offsets whose messages were lost or never existed")
        if blank == unclaimed:
            return
        for queue_offset, physical_offset, size in self._entries(queue):
            if size != BLANK_ENTRY_SIZE:
                self._check_entry(queue, queue_offset, physical_offset)

    def _entries(self, queue: ConsumeQueue) -> Iterator[tuple[int, int, int]]:
        """Yield queue offset, physical offset and size of each readable entry."""
        queue_offset = queue.min_offset
        while queue_offset < queue.max_offset:
            entries = queue.entries(queue_offset, min(WINDOW_ENTRIES, queue.max_offset - queue_offset))
            if not entries:
                queue_offset = queue.next_file_offset(queue_offset)
            for physical_offset, size, _ in ENTRY.iter_unpack(entries):
                yield queue_offset, physical_offset, size
                queue_offset += 1

    def _check_entry(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> None:
        try:
            message = self._reader.message_at(physical_offset)
        except (CorruptRecord, OffsetOutOfRange) as error:
            if not self._reader.is_cleaned(physical_offset):
                self._wrong(queue, queue_offset, f"points to physical offset {physical_offset}: {error}")
            return
        found = (message.topic, message.queue_id, message.queue_offset)
        if message.physical_offset != physical_offset:
            reason = f"points to {physical_offset}, but its record has physical offset"
            self._wrong(queue, queue_offset, f"{reason} {message.physical_offset}")
        elif found != (queue.topic, queue.queue_id, queue_offset) and not _is_inside(message, queue_offset):
            place = f"{message.topic}/{message.queue_id} at queue offset {message.queue_offset}"
            self._wrong(queue, queue_offset, f"points to the record of {place}")

    def _wrong(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> None:
        self._add(FindingKind.UNIT_WRONG, queue, queue_offset, reason)

    def _add(self, kind: FindingKind, queue: ConsumeQueue, queue_offset: int, reason: str) -> None:
        position = queue.position_of(queue_offset)
        within = position % queue.file_bytes
        text = f"entry of queue offset {queue_offset} {reason}"
        self._result.add(kind, queue.directory / file_name(position - within), within, text)


def _is_inside(batch: StoredMessage, queue_offset: int) -> bool:
    """Return whether a message with this offset is in an inner batch."""
    try:
        return any(message.queue_offset == queue_offset for message in unwrap(batch))
    except CorruptRecord:
        return False


PROGRESS_BYTES = 4 << 20
TAIL_BYTES = 1 << 20
TRIES = 3
PAUSE_S = 0.05
_CRC_PROPERTY_NAME = f"{PROPERTY_CRC32}\x01".encode()

Progress = Callable[[int, int], None]


def verify(
    reader: StoreReader, *, progress: Progress | None = None, findings_max: int = FINDINGS_MAX
) -> Verification:
    """Verify everything. `progress` gets the bytes of the log done and in total. Raises OSError."""
    result = Verification(findings_max)
    if reader.is_marked_running:
        result.note("the store is running or was not closed: unwritten entries do not count as missing")
    if holds_rocksdb_data(reader.disk, reader.path):
        result.add(FindingKind.REFUSED, reader.path / ROCKSDB_STORE, 0, ROCKSDB_WAY_OUT)
    _check_files(reader, result)
    _check_checkpoint(reader, result)
    queues = QueueCheck(reader, result)
    index = IndexCheck(reader, result)
    _check_log(reader, result, queues, index, progress or (lambda done, total: None))
    queues.finish()
    index.finish()
    _check_config(reader, result)
    return result


# The log


def _check_files(reader: StoreReader, result: Verification) -> None:
    files = reader.log.files
    for bad in reader.bad_log_files:
        result.add(FindingKind.LOG_FILE, Path(bad.path), 0, bad.reason)
    for hole_from, hole_to in files.holes():
        result.add(FindingKind.LOG_HOLE, files.path(hole_from), 0, f"missing up to offset {hole_to}")
    for bad in reader.bad_queue_files:
        result.add(FindingKind.QUEUE_FILE, Path(bad.path), 0, bad.reason)
    for queue in reader.queue_table.values():
        for path in _unusable_files(reader, queue):
            reason = "unusable: a file before it is missing or has another length"
            result.add(FindingKind.QUEUE_FILE, path, 0, reason)


def _unusable_files(reader: StoreReader, queue: ConsumeQueue) -> Iterator[Path]:
    """Yield good files behind a gap or a bad file."""
    bad = {bad.path for bad in reader.bad_queue_files}
    is_broken = False
    next_start = None
    for name in reader.disk.files(queue.directory):
        path = queue.directory / name
        if len(name) != NAME_DIGITS or not name.isdigit():
            continue
        is_broken = is_broken or int(name) != (next_start if next_start is not None else int(name))
        if path in bad:
            is_broken = True
        elif is_broken:
            yield path
        next_start = int(name) + queue.file_bytes


def _check_log(
    reader: StoreReader, result: Verification, queues: QueueCheck, index: IndexCheck, progress: Progress
) -> None:
    log, files, counts = reader.log, reader.log.files, result.counts
    start, total = log.min_offset, reader.end_physical_offset - log.min_offset

    def on_damage(damage: LogDamage) -> None:
        index.skip(damage.physical_from, damage.physical_to)
        if files.start_of(damage.physical_from) in files.starts:
            path, position = _place(reader, damage.physical_from)
            reason = f"{damage.reason}; the next record is at physical offset {damage.physical_to}"
            result.add(FindingKind.RECORD, path, position, reason)

    counts.log_files = len(files.starts)
    progress(0, total)
    # To the files' end: the reader ends the log at damage behind the last entry.
    log.appended = files.end
    scan = LiveLogScan(log, start, on_damage)
    told = 0
    for record in scan:
        counts.records += 1
        _check_crc_property(reader, result, record)
        queues.check(record)
        index.check(record)
        done = record.physical_offset + record.size - start
        if done - told >= PROGRESS_BYTES:
            told = done
            progress(min(done, total), total)
    _check_tail(reader, result, scan)
    log.appended = scan.end
    counts.log_bytes = scan.end - start
    progress(total, total)


def _place(reader: StoreReader, physical_offset: int) -> tuple[Path, int]:
    start = reader.log.files.start_of(physical_offset)
    return reader.log.files.path(start), physical_offset - start


def _check_crc_property(reader: StoreReader, result: Verification, record: ScannedRecord) -> None:
    if not record.properties[-CRC_PROPERTY_BYTES:].startswith(_CRC_PROPERTY_NAME):
        return
    try:
        data = reader.log.read(record.physical_offset, record.size)
    except OffsetOutOfRange:
        return  # deleted after it was scanned
    if not has_valid_crc_property(memoryview(data)):
        path, position = _place(reader, record.physical_offset)
        result.add(FindingKind.CRC_PROPERTY, path, position, "the record does not match its CRC property")


def _check_tail(reader: StoreReader, result: Verification, scan: LiveLogScan) -> None:
    """Check that nothing follows the last record. Waits for a record that is being written."""
    log, files = reader.log, reader.log.files
    if files.start_of(scan.end) not in files.starts:
        return
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            tail = log.read(scan.end, TAIL_BYTES)
            if not tail.strip(b"\0") or scan.is_whole(scan.end):
                return
        except OffsetOutOfRange:
            return  # just deleted
    path, position = _place(reader, scan.end)
    size = len(tail.rstrip(b"\0"))
    reason = f"{size} bytes behind the last record are not a record: {scan.stopped}"
    result.add(FindingKind.LOG_TAIL, path, position, reason)


# Other files


def _check_checkpoint(reader: StoreReader, result: Verification) -> None:
    path = reader.path / "checkpoint"
    try:
        length = reader.disk.length(path)
    except FileNotFoundError:
        if reader.log.files.starts:
            result.add(
                FindingKind.CHECKPOINT, path, 0, "missing: recovery would scan the whole log after a crash"
            )
        return
    if length != CHECKPOINT_BYTES:
        reason = f"has {length} bytes instead of {CHECKPOINT_BYTES}"
        result.add(FindingKind.CHECKPOINT, path, 0, reason)
        return
    checkpoint = reader.checkpoint
    if checkpoint is None:
        return  # created, but not written yet
    times = (checkpoint.physic_timestamp, checkpoint.logics_timestamp, checkpoint.index_timestamp)
    if min(times) < 0:
        result.add(FindingKind.CHECKPOINT, path, 0, f"has times before 1970: {times}")
    for name, physical_offset in (
        ("confirmed", checkpoint.confirm_physical_offset),
        ("durable", checkpoint.durable_offset or 0),
    ):
        if not 0 <= physical_offset <= max(reader.log.files.end, reader.end_physical_offset):
            reason = f"its {name} offset {physical_offset} is outside the log"
            result.add(FindingKind.CHECKPOINT, path, 0, reason)


def _check_config(reader: StoreReader, result: Verification) -> None:
    directory = reader.path / "config"
    for name in reader.disk.files(directory):
        if name.endswith(".json"):
            result.counts.config_files += 1
            error = _json_error(reader, directory / name)
            if error is not None:
                result.add(FindingKind.CONFIG, directory / name, error.position, error.reason)


def _json_error(reader: StoreReader, path: Path) -> BadJson | None:
    """Return the file's syntax error, if any. Retries while a broker runs: it may be writing the file."""
    found = None
    for attempt in range(TRIES if reader.is_marked_running else 1):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            file = reader.disk.open(path)
        except FileNotFoundError:
            return None
        try:
            java.loads(file.read(file.length, 0))
        except BadJson as error:
            found = error
        else:
            return None
        finally:
            file.close()
    return found
