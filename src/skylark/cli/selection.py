"""Which messages of a store a person asked for, and how to get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from skylark.cli.errors import UsageError
from skylark.cli.times import parse_time
from skylark.errors import BadStoreFile, CorruptRecord, OffsetOutOfRange
from skylark.model.message import StoredMessage
from skylark.store.store_reader import QueueSummary, StoreReader

KEY_MATCHES_MAX = 1 << 31
NAMES_SHOWN = 5

Unreadable = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters; None means all. Times are milliseconds, both ends included; `to_offset` is excluded."""

    topic: str | None = None
    queue_id: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: str | None = None
    limit: int | None = None

    @staticmethod
    def parse(
        topic: str | None,
        queue_id: int | None,
        from_offset: int | None,
        to_offset: int | None,
        since: str | None,
        until: str | None,
        key: str | None,
        limit: int | None,
    ) -> Selection:
        """From the command's options. Raises Mistake for what makes no sense together."""
        since_ms = parse_time(since, "--since") if since else None
        until_ms = parse_time(until, "--until") if until else None
        if topic is None and (queue_id is not None or key is not None):
            raise UsageError(f"{'--key' if key is not None else '--queue'} needs --topic")
        if topic is None and (from_offset is not None or to_offset is not None):
            raise UsageError("--from-offset and --to-offset are offsets in a queue: they need --topic")
        if from_offset is not None and to_offset is not None and from_offset >= to_offset:
            raise UsageError(f"--from-offset {from_offset} is not below --to-offset {to_offset}")
        if since_ms is not None and until_ms is not None and since_ms > until_ms:
            raise UsageError(f"--since {since} is later than --until {until}")
        return Selection(topic, queue_id, from_offset, to_offset, since_ms, until_ms, key, limit)

    def messages(
        self, reader: StoreReader, unreadable: Unreadable, *, by_queue: bool = False
    ) -> Iterator[StoredMessage]:
        """The messages: by key, queue after queue, or without a topic in the log's order unless `by_queue`.

        `unreadable` is told a sentence for each message that cannot be read. Raises Mistake, when called, for
        topics, queues and offsets that the store does not have.
        """
        found: Iterator[StoredMessage]
        if self.topic is None and not by_queue:
            found = self._from_log(reader, unreadable)
        elif self.key is not None and self.topic is not None:
            found = self._by_key(reader, self.topic, self.key)
        else:
            ranges = self.ranges(reader)
            found = (
                message
                for low, high, queue in ranges
                for message in reader.messages(
                    queue.topic, queue.queue_id, low, high, on_corrupt=lambda error: unreadable(str(error))
                )
            )
        return islice(found, self.limit)

    def ranges(self, reader: StoreReader) -> list[tuple[int, int, QueueSummary]]:
        """The queues chosen, each with the offsets wanted: from, and to excluded. Raises Mistake."""
        chosen = []
        for queue in self._queues(reader):
            low = max(queue.min_offset, self.from_offset or 0)
            high = queue.max_offset if self.to_offset is None else min(self.to_offset, queue.max_offset)
            if self.since_ms is not None:
                low = max(low, reader.offset_by_time(queue.topic, queue.queue_id, self.since_ms) or 0)
            if self.until_ms is not None:
                high = min(high, reader.offset_by_time(queue.topic, queue.queue_id, self.until_ms + 1) or 0)
            if low < high:
                chosen.append((low, high, queue))
        return chosen

    def _queues(self, reader: StoreReader) -> list[QueueSummary]:
        if self.topic is None:
            return reader.queues()
        if self.topic in reader.batch_topics():
            raise UsageError(f"topic {self.topic} has a batch consume queue, which is not supported")
        queues = reader.queues(self.topic)
        if not queues:
            raise UsageError(f"topic {self.topic} is not in the store, which holds {names(reader.topics())}")
        if self.queue_id is None:
            return queues
        queue = next((queue for queue in queues if queue.queue_id == self.queue_id), None)
        if queue is None:
            numbers = names([str(queue.queue_id) for queue in queues])
            raise UsageError(f"topic {self.topic} has no queue {self.queue_id}; its queues are {numbers}")
        self._check_offsets(queue)
        return [queue]

    def _check_offsets(self, queue: QueueSummary) -> None:
        wanted = f"queue {queue.topic}/{queue.queue_id} holds"
        if not queue.count:
            raise UsageError(f"{wanted} no messages")
        wanted = f"{wanted} offsets {queue.min_offset} to {queue.max_offset - 1}"
        if self.from_offset is not None and self.from_offset >= queue.max_offset:
            raise UsageError(f"{wanted}: nothing from {self.from_offset} on")
        if self.to_offset is not None and self.to_offset <= queue.min_offset:
            raise UsageError(f"{wanted}: nothing before {self.to_offset}")

    def _by_key(self, reader: StoreReader, topic: str, key: str) -> Iterator[StoredMessage]:
        self._queues(reader)
        try:
            found = reader.by_key(
                topic,
                key,
                maximum=KEY_MATCHES_MAX,
                begin_ms=self.since_ms or 0,
                end_ms=self.until_ms if self.until_ms is not None else 1 << 62,
            )
        except BadStoreFile as error:
            raise UsageError(f"{error}; say with --index-slots and --index-items what it has") from error
        return filter(self._takes, found)

    def _from_log(self, reader: StoreReader, unreadable: Unreadable) -> Iterator[StoredMessage]:
        for record in reader.records(on_damage=lambda damage: unreadable(str(damage))):
            if self._is_in_time(record.store_timestamp):
                try:
                    yield reader.message_at(record.physical_offset)
                except OffsetOutOfRange:
                    continue  # deleted since it was scanned
                except CorruptRecord as error:
                    unreadable(str(error))

    def _takes(self, message: StoredMessage) -> bool:
        in_queue = self.queue_id is None or message.queue_id == self.queue_id
        from_here = self.from_offset is None or message.queue_offset >= self.from_offset
        to_here = self.to_offset is None or message.queue_offset < self.to_offset
        return in_queue and from_here and to_here and self._is_in_time(message.store_timestamp)

    def _is_in_time(self, timestamp: int) -> bool:
        is_late = self.since_ms is None or timestamp >= self.since_ms
        return is_late and (self.until_ms is None or timestamp <= self.until_ms)


def names(all_names: list[str]) -> str:
    """A few of the names, and how many more there are."""
    if not all_names:
        return "none"
    shown = ", ".join(all_names[:NAMES_SHOWN])
    more = len(all_names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
