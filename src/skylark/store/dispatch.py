"""Dispatch of records to consume queues and index, in log order: from the append or read back from the log.

Both ways produce the same entries and index items; a property test compares them. A replica reads every
record back: a compiled module does that for plain records, if there is one.
"""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import zlib_ng.zlib_ng

from skylark.accelerator import split_records as _split_records
from skylark.model.lite_topic import LIGHT_OFFSETS_NAME, LIGHT_QUEUE_ID, light_place
from skylark.model.message import TRANSACTION_MASK, SystemFlag
from skylark.model.record import ScannedRecord
from skylark.store.append_result import (
    AppendedBatch,
    AppendedInnerBatch,
    AppendedRecord,
    PlainFields,
    ReadRecords,
)
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.index import Index
from skylark.store.log_scan import LogWalk
from skylark.store.queue_entry import ENTRY, INNER_BATCH, NO_ENTRY_MASK, PREPARED, UNUSUAL_MASK, tags_code
from skylark.store.queue_table import QueueTable

log = logging.getLogger(__name__)

FOLLOWED_BYTES = 1 << 20
"""Bytes of the log that are read and placed at once."""
UNPLACED_BYTES_MAX = 64 << 20
"""So far back, recovery reads the log again for an inner batch without an entry."""
_ROLLED_BACK = int(SystemFlag.TRANSACTION_ROLLBACK)  # a member of IntFlag is slow to compare

_NONE: Mapping[bytes, int] = {}

Arrival = Callable[[Sequence[AppendedRecord]], None]


def crc32_address() -> int | None:
    """Return the address of CRC-32 in the library that Python uses; None if it is linked in another way."""
    try:
        function = ctypes.CDLL(zlib_ng.zlib_ng.__file__).zng_crc32
    except (AttributeError, OSError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


_CRC32 = crc32_address()


class Dispatcher:
    """Publishes records that are confirmed. Under the store's lock."""

    def __init__(self, log: CommitLog, queues: QueueTable, index: Index | None) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._waiting: deque[Sequence[AppendedRecord]] = deque()
        self.dirty: deque[ConsumeQueue] = deque()
        """Queues with unwritten entries, each once; the flush thread takes them from the left."""
        self.dispatched = 0
        """End of the last published record."""
        self.dispatched_timestamp = 0
        self._places: dict[tuple[bytes, int], ConsumeQueue] = {}
        """Queues with plain entries that were met in the log, by topic and id as records have them."""
        self.unplaced_batches: dict[str, int] = {}
        """The first inner batch of a topic that got no entry, since its queue is plain: where it is."""

    def stage(self, batch: Sequence[AppendedRecord]) -> None:
        """Hold back an appended batch until it is confirmed."""
        self._waiting.append(batch)

    def unstage(self) -> None:
        """Drop what is held back: it is published from the log, or cut off it."""
        self._waiting.clear()

    def publish_confirmed(self, confirmed: int) -> list[Sequence[AppendedRecord]]:
        """Publish every staged batch that ends at or below `confirmed`; return the published batches."""
        published: list[Sequence[AppendedRecord]] = []
        loose: list[AppendedRecord] = []
        while self._waiting and _last_of(self._waiting[0]).end <= confirmed:
            batch = self._waiting.popleft()
            self.publish(batch)
            if isinstance(batch, AppendedBatch):
                published.append(batch)
            else:
                loose += batch
        return [*published, loose]

    def publish(self, batch: Sequence[AppendedRecord]) -> None:
        """Make a batch visible. Its queue offsets continue the published ones: the append assigned them."""
        if isinstance(batch, AppendedBatch):
            self._add_run(batch)
        else:
            ordinary = self._add_each(batch)
            if self._index is not None:
                self._index.enqueue(
                    batch if ordinary else [each for each in batch if is_indexed(each.sys_flag)]
                )
        last = _last_of(batch)
        self.dispatched, self.dispatched_timestamp = last.end, last.store_timestamp

    def _add_run(self, run: AppendedBatch) -> None:
        queue = run.queue
        if isinstance(run, AppendedInnerBatch):
            physical_offset, size, code = ENTRY.unpack(run.entries)
            queue.add(
                run.first_offset, physical_offset, size, code, run.store_timestamp, run.message_count
            )  # fmt: skip
        elif queue.is_batched:
            for placed in run:
                self._add(placed)
        else:
            queue.tail += run.entries
        self._note_dirty(queue)
        if self._index is not None:
            self._index.enqueue_run(run)

    def _add_each(self, batch: Sequence[AppendedRecord]) -> bool:
        """Return whether every record got a plain entry; half messages get none."""
        pack, dirty = ENTRY.pack, self.dirty
        ordinary = True
        for placed in batch:
            queue = placed.queue
            if placed.sys_flag & UNUSUAL_MASK:
                ordinary = False
                if not self.has_entry(placed):
                    continue
                self._add(placed)
                if placed.light is not None and not placed.light.queue.is_forgotten:
                    self._add(placed.light)
                    self._note_dirty(placed.light.queue)
            else:
                queue.tail += pack(placed.physical_offset, placed.size, placed.tags_code)
            if not queue.dirty:
                queue.dirty = True
                dirty.append(queue)
        return ordinary

    def dispatch(self, records: Iterable[ScannedRecord]) -> list[AppendedRecord]:
        """Publish records read from the log; records that are published already are skipped.

        A gap in the queue offsets before a record is filled with blank entries.
        """
        found: list[AppendedRecord] = []
        for record in records:
            try:
                placed = self.place(record)
            except ValueError as error:
                log.warning("invalid queue of record physical_offset=%d: %s", record.physical_offset, error)
                continue
            found.append(placed)
            if self.has_entry(placed):
                for each in placed.places:
                    self.add_entry(each)
            self.note_unplaced(placed)
        self.note(found)
        return found

    def note_unplaced(self, placed: AppendedRecord) -> None:
        """Remember an inner batch that gets no entry: its topic may turn out to be a batch topic."""
        if placed.sys_flag & INNER_BATCH and not self.has_entry(placed):
            self.unplaced_batches.setdefault(placed.queue.topic, placed.physical_offset)

    @property
    def complete_up_to(self) -> int:
        """End of the last published record, or the first inner batch without an entry, unless far back."""
        near = self.dispatched - UNPLACED_BYTES_MAX
        unplaced = [first for first in self.unplaced_batches.values() if first >= near]
        return min(unplaced, default=self.dispatched)

    def note(self, found: Sequence[AppendedRecord]) -> None:
        """Index records read from the log, in the log's order."""
        if not found:
            return
        self.dispatched = max(self.dispatched, found[-1].end)
        self.dispatched_timestamp = max(self.dispatched_timestamp, found[-1].store_timestamp)
        if self._index is not None:
            self._index.enqueue([placed for placed in found if is_indexed(placed.sys_flag)])

    def has_entry(self, placed: AppendedRecord) -> bool:
        """Return whether a record belongs into its queue; an inner batch only into a batch consume queue."""
        return not placed.sys_flag & (PREPARED if placed.queue.is_batched else NO_ENTRY_MASK)

    def contradicts_itself(self, placed: AppendedRecord) -> bool:
        """Return whether a record has a queue offset, although its flags are of one without an entry."""
        return bool(placed.queue_offset) and not self.has_entry(placed)

    def add_entry(self, placed: AppendedRecord) -> None:
        """Add the entry of a record read from the log, after the entries of its earlier records."""
        queue = placed.queue
        if self._add(placed):
            queue.next_offset = queue.max_offset
            self._note_dirty(queue)

    def _note_dirty(self, queue: ConsumeQueue) -> None:
        if not queue.dirty:
            queue.dirty = True
            self.dirty.append(queue)

    def _add(self, placed: AppendedRecord) -> bool:
        return placed.queue.add(
            placed.queue_offset, placed.physical_offset, placed.size, placed.tags_code,
            placed.store_timestamp, placed.message_count,
        )  # fmt: skip

    def follow_log(self, confirmed: int) -> list[Sequence[AppendedRecord]]:
        """Dispatch complete, confirmed records from the log; stops at a record that is still arriving."""
        self.dispatched = max(self.dispatched, self._log.min_offset)
        found: list[Sequence[AppendedRecord]] = list(self._follow_plain(confirmed))
        if self.dispatched < confirmed:
            walk = LogWalk(self._log, self.dispatched, end=confirmed, step_over_damage=False)
            others = self.dispatch(walk)
            for queue in {placed.queue for placed in others if not placed.queue.is_special}:
                self._places[queue.topic.encode(), queue.queue_id] = queue
            if others:
                found.append(others)
            self.dispatched = walk.end
        if found:
            timestamp = _last_of(found[-1]).store_timestamp
            self._log.last_timestamp = max(self._log.last_timestamp, timestamp)
        return found

    def _follow_plain(self, confirmed: int) -> Iterator[ReadRecords]:
        """Dispatch plain records from the log, up to the first other one, or one not continuing its queue."""
        if _split_records is None or _CRC32 is None:
            return
        files, end = self._log.files, min(confirmed, self._log.appended)
        while self._places and self.dispatched < end and files.start_of(self.dispatched) in files.starts:
            data = self._log.read(self.dispatched, min(FOLLOWED_BYTES, end - self.dispatched))
            placed = self._place_plain(_split_records(data, self.dispatched, _CRC32))
            if not placed:
                return
            self.dispatched = placed.end
            self.dispatched_timestamp = max(self.dispatched_timestamp, placed.store_timestamp)
            if self._index is not None:
                self._index.enqueue_read(placed)
            yield placed

    def _place_plain(self, records: list[PlainFields]) -> ReadRecords:
        """Add the entries of the first records, those that continue known queues."""
        pack, places = ENTRY.pack, self._places
        queues: list[ConsumeQueue] = []
        added: dict[ConsumeQueue, bytearray] = {}
        for topic, queue_id, queue_offset, physical_offset, size, code, _, _, text in records:
            queue = places.get((topic, queue_id))
            if queue is None or LIGHT_OFFSETS_NAME in text:
                break
            entries = added.get(queue)
            if queue_offset != (queue.max_offset if entries is None else queue.next_offset):
                break
            if entries is None:
                entries = added[queue] = bytearray()
            entries += pack(physical_offset, size, code)
            queue.next_offset = queue_offset + 1
            queues.append(queue)
        for queue, entries in added.items():
            queue.tail += entries
            self._note_dirty(queue)
        return ReadRecords(queues, records[: len(queues)])

    def forget_topic(self, topic: str) -> None:
        """Drop staged records and unwritten entries of a deleted topic."""
        self._places.clear()
        self.unplaced_batches.pop(topic, None)
        self._waiting = deque(
            kept for batch in self._waiting if (kept := [each for each in batch if each.queue.topic != topic])
        )
        for _ in range(len(self.dirty)):
            queue = self.dirty.popleft()
            if queue.topic != topic:
                self.dirty.append(queue)

    def place(self, record: ScannedRecord, deleted: Mapping[bytes, int] = _NONE) -> AppendedRecord:
        """Return the append result of a record read from the log. Raises ValueError for an invalid topic.

        `deleted` as in `Replay`: a light queue gets no entries from before its deletion.
        """
        topic, is_inner = record.topic.decode(errors="replace"), bool(record.sys_flag & INNER_BATCH)
        queue = self._queues.for_record(topic, record.queue_id, is_inner_batch=is_inner)
        properties, timestamp = record.properties, record.store_timestamp
        code = (
            self._log.schedule_tags_code(properties, timestamp)
            if queue.is_schedule
            else tags_code(properties)
        )
        placed = AppendedRecord(
            queue, record.queue_offset, record.physical_offset, record.size, code, timestamp, record.sys_flag,
            properties,
        )  # fmt: skip
        light = light_place(topic, properties)
        if light is not None and record.physical_offset >= deleted.get(light[0].encode(), 0):
            placed.add_light(self._queues[light[0], LIGHT_QUEUE_ID], light[1])
        return placed


def _last_of(batch: Sequence[AppendedRecord]) -> AppendedBatch | ReadRecords | AppendedRecord:
    """Return an object with the end of the batch, without splitting it."""
    return batch if isinstance(batch, AppendedBatch | ReadRecords) else batch[-1]


def is_indexed(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK != _ROLLED_BACK
