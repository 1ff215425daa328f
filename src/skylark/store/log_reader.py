"""Reads messages by queue offset, physical offset and time. Shared by the store and the read-only reader."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate

from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model.message import StoredMessage
from skylark.model.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    STORE_TIMESTAMP,
    SYS_FLAG_POSITION,
    decode,
    decode_all,
    store_timestamp_position,
)
from skylark.settings import StoreSettings
from skylark.store.batch_consume_queue import BatchConsumeQueue, batch_entries
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.page_cache import PageCache
from skylark.store.queue_entry import BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES
from skylark.store.tail_reader import (
    Entries,
    Part,
    RecordFilter,
    TagsFilter,
    TailReader,
    record_parts,
    sizes_of,
)

FastRead = tuple[int, int, list[Part]]
"""Record count, total bytes, and the records, one part each or all in one."""

RESPONSE_BYTES_MAX = 128 << 20
RESPONSE_BYTES_MIN = 100
BULK_BYTES_MAX = 1 << 20
BULK_MESSAGES_MAX = 2048
STORE_TIMESTAMP_END = 76
NEAR_BYTES = 64 << 20
"""Bytes written by this process and this close to the log's end are in memory."""
_SIZE = struct.Struct(">i")


class GetStatus(Enum):
    """RocketMQ's GetMessageStatus, and COLD."""

    FOUND = "messages found"
    NO_MATCHED_MESSAGE = "the filter matched nothing"
    MESSAGE_WAS_REMOVING = "the log's file is gone"
    OFFSET_FOUND_NULL = "the queue's file is gone"
    OFFSET_OVERFLOW_BADLY = "far behind the end"
    OFFSET_OVERFLOW_ONE = "at the end"
    OFFSET_TOO_SMALL = "before the beginning"
    NO_MATCHED_LOGIC_QUEUE = "no such queue"
    NO_MESSAGE_IN_QUEUE = "the queue is empty"
    COLD = "the data is not in memory: repeat the read on a thread that may wait for the disk"


@dataclass(slots=True)
class GetResult:
    """Encoded records as slices of the log, and the next offset."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[Part] = field(default_factory=list)
    suggest_slave: bool = False
    bytes: int = 0
    """Total of all records."""
    damaged: int = 0
    """Skipped entries that point to no record."""
    cold_bytes: int = 0
    """Bytes of records read from disk, including those that the filter rejected."""
    entries: Entries = b""
    """The entries of the records, if several records share a part."""
    batched: int = 0
    """Messages in records of a batch consume queue, if no filter chose them."""

    @property
    def count(self) -> int:
        return self.batched or len(self.entries) // ENTRY_BYTES or len(self.records)

    def messages(self) -> list[StoredMessage]:
        return [message for part in self.records for message in decode_all(part)]


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class LogReader:
    """Reads messages through consume queues. Any thread."""

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        hot: PageCache,
        *,
        keep_offset_on_correction: bool = False,
    ) -> None:
        self._log = log
        self.settings = settings
        self.hot = hot
        hot.memory_bytes = memory_bytes() * settings.memory_share_percent // 100
        self.tail = TailReader(log, hot)
        self.keep_offset_on_correction = keep_offset_on_correction
        """A slave returns a wrong offset unchanged: its master may have the message."""

    def get(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_messages: int,
        *,
        max_bytes: int = RESPONSE_BYTES_MAX,
        tags_filter: TagsFilter | None = None,
        record_filter: RecordFilter | None = None,
        may_block: bool = True,
        bulk_bytes: int = 0,
        is_checked: bool = True,
    ) -> GetResult:
        """Return messages from an offset on. Without `may_block`, data that is not in memory returns COLD.

        `bulk_bytes` replaces the transfer limits of consumers. With `is_checked=False` the caller of a bulk
        read checks that records and entries match.
        """
        max_messages = max(max_messages, 1)
        if bulk_bytes:
            max_messages, max_bytes = min(max_messages, BULK_MESSAGES_MAX), min(bulk_bytes, BULK_BYTES_MAX)
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            status, corrected = _misplaced(queue_offset, low, high)
            return GetResult(status, self._corrected(queue_offset, corrected), low, high)
        filtered = tags_filter is not None or record_filter is not None
        scan_entries = max_messages
        if filtered:
            scan_entries = max(scan_entries, self.settings.filter_scan_bytes // ENTRY_BYTES)
        ends: list[int] = []
        entries: Entries | None
        if isinstance(queue, BatchConsumeQueue):
            if not filtered and not bulk_bytes:
                scan_entries = min(scan_entries, self.settings.transfer_count_in_memory)
            entries, ends = batch_entries(queue, queue_offset, scan_entries, may_block=may_block)
        else:
            read = queue.entries if may_block else queue.resident_entries
            entries = read(queue_offset, min(scan_entries, high - queue_offset))
        if entries is None:
            return GetResult(GetStatus.COLD, queue_offset, low, high)
        if not entries:
            next_offset = self._corrected(queue_offset, queue.next_file_offset(queue_offset))
            return GetResult(GetStatus.OFFSET_FOUND_NULL, next_offset, low, high)
        if not filtered:
            if bulk_bytes:
                fast = self._bulk(entries, max_bytes, is_checked=is_checked)
            else:
                fast = self._slices(entries, min(max_bytes, self.settings.transfer_bytes_in_memory))
            if fast is not None:
                count, taken, records = fast
                next_offset = ends[count - 1] if ends else queue_offset + count
                found = GetResult(GetStatus.FOUND, next_offset, low, high, records, bytes=taken)
                if ends:
                    found.batched = next_offset - queue_offset
                else:
                    found.entries = entries[: count * ENTRY_BYTES]
                return found
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, queue_offset, low, high)
        limit = min(max(max_bytes, RESPONSE_BYTES_MIN), RESPONSE_BYTES_MAX)
        in_memory, on_disk = self._transfer_limits(max_messages, limit, is_bulk=bulk_bytes > 0)
        self._collect(result, entries, in_memory, on_disk, tags_filter, record_filter, may_block)
        if ends and (units := result.next_offset - queue_offset):
            result.next_offset = ends[units - 1]
            result.batched = 0 if filtered or not result.records else result.next_offset - queue_offset
        return result

    def _transfer_limits(
        self, max_messages: int, max_bytes: int, *, is_bulk: bool
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the limits (messages, bytes) of a reply: for data in memory, and for data on disk."""
        settings, asked = self.settings, (max_messages, max_bytes)
        if is_bulk:
            return asked, asked
        return (
            (
                min(max_messages, settings.transfer_count_in_memory),
                min(max_bytes, settings.transfer_bytes_in_memory),
            ),
            (
                min(max_messages, settings.transfer_count_on_disk),
                min(max_bytes, settings.transfer_bytes_on_disk),
            ),
        )

    def _bulk(self, entries: Entries, max_bytes: int, *, is_checked: bool) -> FastRead | None:
        """Fast path of a bulk read: all entries in one file and in memory; cut at `max_bytes`."""
        log = self._log
        first, _, _ = ENTRY.unpack_from(entries)
        last, last_size, _ = ENTRY.unpack_from(entries, -ENTRY_BYTES)
        start = first - first % log.file_bytes
        end = last + last_size
        view = log.views.get(start) or log.view(start)
        known_hot_from = max(self.hot.written_from, log.appended - self.hot.memory_bytes)
        if (
            view is None
            or not first <= last < end <= start + log.file_bytes
            or (first < known_hot_from and not self.hot.holds(first, end - first))
        ):
            return None
        sizes = sizes_of(entries)
        taken = sum(sizes)
        if taken > max_bytes:
            count = max(bisect_right(list(accumulate(sizes)), max_bytes), 1)
            sizes, entries = sizes[:count], entries[: count * ENTRY_BYTES]
            taken = sum(sizes)
        is_checked = is_checked and first < self.hot.written_from
        records = record_parts(view, start, entries, sizes, self.tail.joiner, is_checked=is_checked)
        return None if records is None else (len(sizes), taken, records)

    def _slices(self, entries: Entries, max_bytes: int) -> FastRead | None:
        """Fast path of a consumer that keeps up: all entries in one file, in memory, within the limits."""
        log = self._log
        first, _, _ = ENTRY.unpack_from(entries)
        last, last_size, _ = ENTRY.unpack_from(entries, -ENTRY_BYTES)
        end = last + last_size
        start = first - first % log.file_bytes
        view = log.views.get(start)
        if (
            view is None
            or not 0 < end - first <= max_bytes
            or len(entries) > self.settings.transfer_count_in_memory * ENTRY_BYTES
            or first < log.appended - self.hot.memory_bytes
            or end > start + log.file_bytes
            or (first < self.hot.written_from and not self.hot.holds(first, end - first))
        ):
            return None
        size_at = _SIZE.unpack_from
        try:
            records: list[Part] = [
                view[position : position + size]
                for physical_offset, size, _ in ENTRY.iter_unpack(entries)
                if size_at(view, position := physical_offset - start)[0] == size
            ]
        except struct.error:
            return None  # a blank or damaged entry points out of the file
        if len(records) * ENTRY_BYTES != len(entries):
            return None
        return len(records), sum(map(len, records)), records

    def _corrected(self, queue_offset: int, corrected: int) -> int:
        return queue_offset if self.keep_offset_on_correction else corrected

    def _collect(
        self,
        result: GetResult,
        entries: Entries,
        in_memory_max: tuple[int, int],
        on_disk_max: tuple[int, int],
        tags_filter: TagsFilter | None,
        record_filter: RecordFilter | None,
        may_block: bool,
    ) -> None:
        log, records = self._log, result.records
        in_memory_from = log.appended - self.hot.memory_bytes
        # Data that this process wrote long ago may have left the page cache.
        hot_from, holds = max(self.hot.written_from, in_memory_from), self.hot.holds
        views, file_bytes = log.views, log.file_bytes
        size_at, no_data_before, next_offset, taken = _SIZE.unpack_from, 0, result.next_offset, 0
        physical_offset = 0
        for physical_offset, size, code in ENTRY.iter_unpack(entries):
            if records:
                count_max, bytes_max = in_memory_max if physical_offset >= in_memory_from else on_disk_max
                if len(records) >= count_max or taken + size > bytes_max:
                    break
            if physical_offset < no_data_before or (tags_filter is not None and not tags_filter(code)):
                next_offset += 1
                continue
            start = physical_offset - physical_offset % file_bytes
            position = physical_offset - start
            view = views.get(start) or log.view(start)
            if view is None and not 0 <= physical_offset < log.appended:
                result.damaged += 1
                next_offset += 1
                continue
            if view is None or size == BLANK_ENTRY_SIZE:
                no_data_before = start + file_bytes if view is None else no_data_before
                result.status = GetStatus.MESSAGE_WAS_REMOVING
                next_offset += 1
                continue
            if physical_offset < hot_from and not holds(physical_offset, size):
                if not may_block:
                    result.status = GetStatus.COLD
                    break
                # Not through the map: a page fault would block every thread, an IO error kill the process.
                view, position = self._read_cold(physical_offset, size), 0
                result.cold_bytes += len(view)
            next_offset += 1
            if not RECORD_BYTES_MIN <= size <= len(view) - position or size_at(view, position)[0] != size:
                result.damaged += 1
                continue
            if record_filter is not None and not record_filter(view, position, position + size):
                continue
            records.append(view[position : position + size])
            taken += size
        result.next_offset, result.bytes = next_offset, taken
        result.suggest_slave = log.appended - physical_offset > self.hot.memory_bytes
        if records:
            result.status = GetStatus.FOUND

    def _read_cold(self, physical_offset: int, size: int) -> memoryview:
        """Read a record with pread; empty if its file was deleted meanwhile."""
        try:
            return memoryview(self._log.read(physical_offset, max(size, 0)))
        except OffsetOutOfRange:
            return memoryview(b"")

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record that starts there. Raises OffsetOutOfRange, CorruptRecord."""
        log = self._log
        if not log.min_offset <= physical_offset < log.appended:
            raise OffsetOutOfRange(physical_offset, log.min_offset, log.appended)
        head = self._read_near(physical_offset, SIZE_AND_MAGIC.size)
        size, magic = SIZE_AND_MAGIC.unpack(head) if len(head) == SIZE_AND_MAGIC.size else (0, 0)
        if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0:
            raise CorruptRecord(physical_offset, "no record starts here")
        record = self._read_near(physical_offset, size)
        if len(record) != size:
            raise CorruptRecord(physical_offset, f"its size of {size} bytes exceeds the file")
        return record

    def _read_near(self, physical_offset: int, size: int) -> bytes:
        """Read bytes of the log, recent ones without a system call. Raises as `CommitLog.read`."""
        log = self._log
        if physical_offset >= max(self.hot.written_from, log.appended - NEAR_BYTES):
            view = log.select(physical_offset, size)
            if view is not None:
                return bytes(view)
        return log.read(physical_offset, size)

    def messages_with_key(self, physical_offsets: list[int], topic: str, key: str) -> list[StoredMessage]:
        """Return the messages with the key among those found by the index, which compares only hashes."""
        messages = []
        for physical_offset in physical_offsets:
            with suppress(OffsetOutOfRange, CorruptRecord):  # deleted, not in the log yet, or damaged
                messages.append(decode(self.record_at(physical_offset)))
        return [
            message
            for message in messages
            if message.topic == topic and (key in message.keys or key == message.unique_key)
        ]

    def store_timestamp(self, physical_offset: int) -> int | None:
        """Return the store time of a record, or None if it cannot be read."""
        try:
            record = self._log.read(physical_offset, STORE_TIMESTAMP_END)
        except OffsetOutOfRange:
            return None
        if len(record) < STORE_TIMESTAMP_END:
            return None
        (sys_flag,) = _SIZE.unpack_from(record, SYS_FLAG_POSITION)
        return int(STORE_TIMESTAMP.unpack_from(record, store_timestamp_position(sys_flag))[0])

    def entry_timestamp(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        entry = queue.entry(queue_offset)
        if entry is None or entry[1] == BLANK_ENTRY_SIZE:
            return None
        return self.store_timestamp(entry[0])

    def earliest_timestamp(self, queue: ConsumeQueue) -> int | None:
        """Return the store time of the queue's first message; None without one."""
        if queue.min_offset >= queue.max_offset:
            return None
        return self.entry_timestamp(queue, queue.min_offset)

    def offset_by_time(self, queue: ConsumeQueue, timestamp: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after `timestamp`; with `upper` the last at or before it."""

        def is_behind(physical_offset: int, size: int) -> bool:
            stored = self.store_timestamp(physical_offset) if size != BLANK_ENTRY_SIZE else None
            return stored is not None and (stored > timestamp if upper else stored >= timestamp)

        found = queue.search(queue.min_offset, queue.max_offset, is_behind)
        return max(found - 1, queue.min_offset) if upper else found


def _misplaced(queue_offset: int, low: int, high: int) -> tuple[GetStatus, int]:
    """Return the status and the corrected offset for an offset without a message."""
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low
    if queue_offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, queue_offset
    return GetStatus.OFFSET_OVERFLOW_BADLY, high
