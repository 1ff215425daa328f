"""Retries: copies messages that were popped and not acknowledged to the retry topic of their group."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.record_loader import ReadCold, RecordLoader, RecordPosition
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError, CorruptRecord
from skylark.model import names
from skylark.model.message import PutMessage
from skylark.model.record import split, starts_with_batch, terminated, unwrap_record, without_crc_property
from skylark.protocol.pop_handle import PROPERTY_FIRST_POP_TIME, find_first_pop_time
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import BLANK_ENTRY_SIZE

log = logging.getLogger(__name__)


class RetryOutcome(NamedTuple):
    """Where the copies end in the log, and the offsets of messages that could not be copied."""

    end: int
    failed: list[int]


class Retries:
    """Loop thread; records that are not in memory are read in another."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        read_cold: ReadCold,
        host: bytes,
    ) -> None:
        """`host` is the broker's address as records hold it."""
        self._live = live
        self._clock = clock
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._records = RecordLoader(store, read_cold)
        self._read_cold = read_cold
        self._host = host
        self.written: Counter[tuple[str, str, str]] = Counter()
        """Copies by group, topic and status."""

    async def put(
        self, topic: str, group: str, queue_id: int, offsets: Sequence[int], pop_time: int
    ) -> RetryOutcome:
        """Copy messages of a queue to the group's retry topic.

        A message that is deleted already, or that cannot be read, counts as done. A message of a retry
        topic stays in that topic.
        """
        places = await self._read_cold(lambda: self._places(topic, queue_id, offsets))
        records = await self._records.read([place for _, place in places])
        try:
            retry_topic = self._retry_topic(topic, group)
        except BrokerError as error:
            log.warning("no retry topic group=%s topic=%s reason=%s", group, topic, error.remark)
            return RetryOutcome(0, list(offsets))
        messages, of = [], []
        for (queue_offset, _), record in zip(places, records, strict=True):
            message = None if record is None else self._message(record, queue_offset, retry_topic, pop_time)
            if message is not None:
                messages.append(message)
                of.append(queue_offset)
        end, failed = 0, []
        results = self._store.append(messages) if messages else ()
        self._stats.count_puts(results)
        for queue_offset, result in zip(of, results, strict=True):
            self.written[group, topic, result.status.name] += 1
            if isinstance(result, AppendedRecord):
                end = max(end, result.end)
            else:
                failed.append(queue_offset)
                log.warning("message not put into %s reason=%s", retry_topic, result.reason)
        return RetryOutcome(end, failed)

    def _places(self, topic: str, queue_id: int, offsets: Sequence[int]) -> list[tuple[int, RecordPosition]]:
        """Return the places of those messages that exist. Any thread."""
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return []
        found = []
        for queue_offset in offsets:
            if queue.min_offset <= queue_offset < queue.max_offset:
                entry = queue.entry(queue_offset)
                if entry is not None and entry[1] != BLANK_ENTRY_SIZE:
                    found.append((queue_offset, (entry[0], entry[1])))
        return found

    def _retry_topic(self, topic: str, group: str) -> str:
        """Return the retry topic, made if it is missing. Raises BrokerError."""
        if names.pop_retry_flag(topic) != names.NO_RETRY:
            return topic
        name = names.pop_retry_topics(topic, group)[self._live.current.pop.retry_topic_v2]
        now_ms = self._clock.now_ms()
        self._topics.ensure_topic(name, 1, now_ms=now_ms)
        if self._offsets.query(name, group, 0) is None:
            # Otherwise a first pop could start behind what is put there now.
            self._offsets.commit(name, group, 0, 0, now_ms=now_ms)
        return name

    def _message(
        self, record: bytes, queue_offset: int, retry_topic: str, pop_time: int
    ) -> PutMessage | None:
        try:
            if starts_with_batch(record):
                record = unwrap_record(record)[queue_offset - split(record).head[5]]
            parts = split(record)
            body = parts.body(record)
        except CorruptRecord as error:
            log.warning("popped message cannot be delivered again: %s", error)
            return None
        head, text = parts.head, terminated(without_crc_property(parts.properties))
        if head[12] == 0 or find_first_pop_time(text) is None:
            text += f"{PROPERTY_FIRST_POP_TIME}\x01{pop_time}\x02".encode()
        return PutMessage(
            retry_topic,
            0,
            body,
            text,
            flag=head[4],
            sys_flag=head[7],
            born_timestamp=head[8],
            born_host=self._host,
            reconsume_times=head[12] + 1,
            prepared_transaction_offset=head[13],
            wait=False,
        )
