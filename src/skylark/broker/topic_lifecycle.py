"""Deletion of topics with all their data, and restoration of topics that only the store has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from skylark.broker.long_polling import LongPolling
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)


class TopicDeletion:
    """Deletes topics, on masters and slaves. Loop thread."""

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        long_polling: LongPolling,
        read_cold: ReadCold,
        forget_pops: Callable[[str], None],
    ) -> None:
        self._store = store
        self._forget_pops = forget_pops
        self._offsets = offsets
        self._stats = stats
        self._long_polling = long_polling
        self._read_cold = read_cold
        self._deleting = asyncio.Lock()
        """Deletions use one reader thread."""

    async def delete(self, topic: str, *, was_configured: bool) -> None:
        """Delete offsets, statistics and queues of a topic that its table no longer has, and its lite topics.

        Records stay in the log until it expires. Pulls that are held for the topic are resumed.
        """
        self._offsets.delete_topic(topic)
        self._stats.forget_topic(topic)
        self._forget_pops(topic)
        # The store remembers deleted topics while records of them may exist: not ones that never existed.
        if was_configured or await self._read_cold(lambda: topic in self._store.topics()):
            await self.delete_queues(topic)
        self._long_polling.wake_topic(topic)
        for name in self._store.queues.light_queues(topic):
            await self.delete(name, was_configured=True)

    async def delete_queues(self, topic: str) -> None:
        async with self._deleting:
            await self._read_cold(partial(self._store.housekeeper.delete_topic, topic))


class TopicRestoration:
    """Adds topics that hold messages but are missing from the table. Loop thread.

    A broker killed just after it created a topic has it neither in topics.json nor in a queue.
    """

    def __init__(self, topics: TopicTable, store: MessageStore, clock: Clock) -> None:
        self._topics = topics
        self._store = store
        self._clock = clock

    def restore(self, queues_by_topic: Mapping[str, int]) -> None:
        """Add missing topics, with as many queues as they need."""
        try:
            restored = self._topics.adopt(
                queues_by_topic.items(), self._store.queues.batch_topics, now_ms=self._clock.now_ms()
            )
        except BrokerError as error:
            log.warning("topics of the store not restored reason=%s", error.remark)
            return
        for topic in restored:
            log.warning("restored topic missing from topics.json topic=%s", topic)

    def restore_undeleted(self, queues_by_topic: Mapping[str, int]) -> None:
        """As `restore`, for topics of delayed messages: those deleted meanwhile stay deleted."""
        deleted = self._store.housekeeper.deleted
        self.restore({topic: queues for topic, queues in queues_by_topic.items() if topic not in deleted})
