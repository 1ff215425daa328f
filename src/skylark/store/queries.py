"""What can be asked of an open store: messages by offset, key, id and time; offsets; topics."""

from __future__ import annotations

import threading

from skylark.model.message import StoredMessage
from skylark.model.record import decode, parse_offset_message_id
from skylark.settings import StoreSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.index import Index
from skylark.store.queue_table import QueueTable
from skylark.store.reading import GetResult, GetStatus, LogReader, RecordFilter, TagsFilter


class StoreQueries:
    """The reading half of a `MessageStore`. Any thread."""

    settings: StoreSettings
    queues: QueueTable
    reader: LogReader
    index: Index | None
    _lock: threading.Lock

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        *,
        max_bytes: int = 128 << 20,
        tags_filter: TagsFilter | None = None,
        record_filter: RecordFilter | None = None,
        may_block: bool = True,
    ) -> GetResult:
        """Messages of a queue from an offset on, as slices of the log. Asking makes the queue. Any thread."""
        try:
            queue = self.queue(topic, queue_id)
        except ValueError:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        return self.reader.get(
            queue,
            queue_offset,
            max_messages,
            max_bytes=max_bytes,
            tags_filter=tags_filter,
            record_filter=record_filter,
            may_block=may_block,
        )

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it is not there. Raises ValueError for names that cannot be stored."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            with self._lock:
                queue = self.queues[topic, queue_id]
        return queue

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        queue = self.queues.get((topic, queue_id))
        return self.reader.offset_by_time(queue, timestamp, upper=upper) if queue else 0

    def earliest_timestamp(self, topic: str, queue_id: int) -> int | None:
        """Store time of the queue's first message; None without one."""
        queue = self.queues.get((topic, queue_id))
        return self.reader.earliest_timestamp(queue) if queue else None

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        queue = self.queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        return self.reader.unit_timestamp(queue, queue_offset)

    def message_at(self, physical_offset: int) -> StoredMessage:
        """Raises OffsetOutOfRange, CorruptRecord."""
        return decode(self.reader.record_at(physical_offset))

    def message_by_id(self, offset_message_id: str) -> StoredMessage:
        """Raises ValueError for what is no id, OffsetOutOfRange, CorruptRecord."""
        return self.message_at(parse_offset_message_id(offset_message_id)[1])

    def messages_by_key(
        self, topic: str, key: str, *, maximum: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[StoredMessage]:
        """Messages with a key or unique key, oldest first. Hash collisions are sorted out here."""
        if self.index is None:
            return []
        maximum = min(maximum, self.settings.query_messages_max)
        found = self.index.query(topic, key, maximum, begin_ms, end_ms)
        return self.reader.messages_with_key(found.physical_offsets, topic, key)

    def topics(self) -> list[str]:
        return self.queues.topics()
