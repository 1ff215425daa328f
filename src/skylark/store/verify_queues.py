"""Verification of consume queues against the log, both ways."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model.record import ScannedRecord
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.dispatch import Dispatcher
from skylark.store.findings import FindingKind, Verification
from skylark.store.foreign import LIGHT_TOPIC_PREFIX
from skylark.store.manifest import load_manifest
from skylark.store.mapped_file import file_name
from skylark.store.reader import StoreReader
from skylark.store.unit import BLANK_UNIT_SIZE, NO_UNIT_MASK, UNIT, UNIT_BYTES

WINDOW_UNITS = 512
WINDOWS_MAX = 1024
# A tags code below every i32 is an address in the queue's extension, which is not served.
EXTENSION_BELOW = -(1 << 31)


class QueueCheck:
    """Every ordinary record has its unit, and every unit its record.

    `check` is called for each record in the log's order and counts the units that a record claims as its own;
    where a queue has more units than that, `finish` looks at each of them.
    """

    def __init__(self, reader: StoreReader, result: Verification) -> None:
        self._reader = reader
        self._result = result
        self._table = reader.queue_table
        self._dispatcher = Dispatcher(reader.log, reader.queue_table, None)
        self._batch_topics = reader.batch_topics()
        self._claimed: Counter[ConsumeQueue] = Counter()
        self._windows: OrderedDict[ConsumeQueue, tuple[int, bytes | bytearray]] = OrderedDict()
        self._first_records: dict[ConsumeQueue, int] = {}
        self._topic_firsts: dict[str, int] = {}
        self._missing: set[tuple[str, int]] = set()
        self._topics = {topic for topic, _ in self._table}
        manifest = load_manifest(reader.disk, reader.path)
        self._recorded = {(known.topic, known.queue_id) for known in manifest.queues} if manifest else set()
        durable = reader.checkpoint.durable_offset if reader.checkpoint is not None else None
        # Up to there every unit must be on disk, even while the store runs.
        self._complete_to = (durable or 0) if reader.is_marked_running else 1 << 63
        result.counts.queues = len(self._table)
        result.counts.units = sum(queue.max_offset - queue.min_offset for queue in self._table.values())

    # From records to units

    def check(self, record: ScannedRecord) -> None:
        """Look up the record's unit."""
        topic = record.topic.decode(errors="replace")
        if record.sys_flag & NO_UNIT_MASK or topic in self._batch_topics:
            return
        queue = self._table.get((topic, record.queue_id))
        if queue is None:
            self._without_queue(topic, record)
            return
        unit = self._unit(queue, record.queue_offset)
        if unit is None or unit[0] != record.physical_offset:
            self._without_unit(queue, record)
            return
        self._claimed[queue] += 1
        _, size, tags_code = unit
        expected = self._dispatcher.place(record).tags_code
        if size != record.size:
            self._wrong(queue, record.queue_offset, f"says {size} bytes, its record has {record.size}")
        elif tags_code != expected and tags_code >= EXTENSION_BELOW:
            self._wrong(queue, record.queue_offset, f"says tags code {tags_code}, its record {expected}")

    def _unit(self, queue: ConsumeQueue, queue_offset: int) -> tuple[int, int, int] | None:
        """The unit as it was when the reader looked; records come in order, so one window holds the next."""
        if not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        first, units = self._windows.get(queue, (0, b""))
        if not first <= queue_offset < first + len(units) // UNIT_BYTES:
            first = queue_offset
            units = queue.units(first, min(WINDOW_UNITS, queue.max_offset - first))
            self._windows[queue] = first, units
            if len(self._windows) > WINDOWS_MAX:
                self._windows.popitem(last=False)
        if len(units) < UNIT_BYTES:
            return None
        return UNIT.unpack_from(units, (queue_offset - first) * UNIT_BYTES)

    def _without_queue(self, topic: str, record: ScannedRecord) -> None:
        key = (topic, record.queue_id)
        first = self._first_of_topic(topic)
        known = topic in self._topics or topic in self._reader.topic_attributes or key in self._recorded
        is_new = record.physical_offset >= self._complete_to
        # Without a list of topics, one that has no queue yet looks like one that is deleted.
        is_deleted = not known and not (is_new and not self._reader.topic_attributes)
        if is_deleted or record.physical_offset < first:
            self._left_over(topic)
        elif is_new:
            self._result.counts.waiting += 1
        elif key not in self._missing and not self._reader.is_cleaned(record.physical_offset):
            self._missing.add(key)
            reason = f"there is none; the record at physical offset {record.physical_offset} needs it"
            directory = self._table.directory / topic / str(record.queue_id)
            self._result.add(FindingKind.QUEUE_MISSING, directory, 0, reason)

    def _without_unit(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        is_behind = record.queue_offset >= queue.max_offset
        if record.queue_offset >= queue.min_offset and record.physical_offset < self._first_record(queue):
            # Older than the queue's first message although its offset is not: the topic was deleted since.
            self._left_over(queue.topic)
        elif is_behind and record.physical_offset >= self._complete_to:
            self._result.counts.waiting += 1
        elif not self._reader.is_cleaned(record.physical_offset) and self._reader.disk.exists(
            queue.directory
        ):
            reason = f"none points to the record at physical offset {record.physical_offset}"
            self._add(FindingKind.UNIT_MISSING, queue, record.queue_offset, reason)

    def _left_over(self, topic: str) -> None:
        self._result.counts.left_over += 1
        self._result.note(f"topic {topic} was deleted: records of it are left in the log")

    def _first_record(self, queue: ConsumeQueue) -> int:
        """Physical offset of the record that the queue's first unit points to."""
        first = self._first_records.get(queue)
        if first is None:
            at = queue.search(queue.min_offset, queue.max_offset, lambda physical_offset, size: True)
            unit = queue.unit(at) if at < queue.max_offset else None
            first = self._first_records[queue] = unit[0] if unit is not None else 0
        return first

    def _first_of_topic(self, topic: str) -> int:
        first = self._topic_firsts.get(topic)
        if first is None:
            first = min(map(self._first_record, self._table.of_topic(topic)), default=0)
            self._topic_firsts[topic] = first
        return first

    # From units to records

    def finish(self) -> None:
        """Look at every unit that no record claimed. Call after the last record."""
        for queue in list(self._table.values()):
            unclaimed = queue.max_offset - queue.min_offset - self._claimed[queue]
            if unclaimed and not queue.topic.startswith(LIGHT_TOPIC_PREFIX):
                self._check_units(queue, unclaimed)

    def _check_units(self, queue: ConsumeQueue, unclaimed: int) -> None:
        blank = sum(size == BLANK_UNIT_SIZE for _, _, size in self._units(queue))
        self._result.counts.blank_units += blank
        if blank:
            name = f"{queue.topic}/{queue.queue_id}"
            self._result.note(f"queue {name} has {blank} offsets whose messages were lost or never there")
        if blank == unclaimed:
            return
        for queue_offset, physical_offset, size in self._units(queue):
            if size != BLANK_UNIT_SIZE:
                self._check_unit(queue, queue_offset, physical_offset)

    def _units(self, queue: ConsumeQueue) -> Iterator[tuple[int, int, int]]:
        """Queue offset, physical offset and size of each unit that can be read."""
        queue_offset = queue.min_offset
        while queue_offset < queue.max_offset:
            units = queue.units(queue_offset, min(WINDOW_UNITS, queue.max_offset - queue_offset))
            if not units:
                queue_offset = queue.next_file_offset(queue_offset)
            for physical_offset, size, _ in UNIT.iter_unpack(units):
                yield queue_offset, physical_offset, size
                queue_offset += 1

    def _check_unit(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> None:
        try:
            message = self._reader.message_at(physical_offset)
        except (CorruptRecord, OffsetOutOfRange) as error:
            if not self._reader.is_cleaned(physical_offset):
                self._wrong(queue, queue_offset, f"points to physical offset {physical_offset}: {error}")
            return
        found = (message.topic, message.queue_id, message.queue_offset)
        if message.physical_offset != physical_offset:
            place = f"a record that says it lies at {message.physical_offset}"
            self._wrong(queue, queue_offset, f"points to physical offset {physical_offset}, to {place}")
        elif found != (queue.topic, queue.queue_id, queue_offset):
            place = f"{message.topic}/{message.queue_id} at queue offset {message.queue_offset}"
            self._wrong(queue, queue_offset, f"points to the record of {place}")

    def _wrong(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> None:
        self._add(FindingKind.UNIT_WRONG, queue, queue_offset, reason)

    def _add(self, kind: FindingKind, queue: ConsumeQueue, queue_offset: int, reason: str) -> None:
        position = queue_offset * UNIT_BYTES
        within = position % self._reader.settings.consume_queue_file_bytes
        unit = f"unit of queue offset {queue_offset} {reason}"
        self._result.add(kind, queue.directory / file_name(position - within), within, unit)
