"""LitePops: consumption of lite topics: pops over the light queues of a client, each in order.

The batches are kept in memory only. After a restart the messages that were not acknowledged come again.
"""

from __future__ import annotations

import logging
from functools import partial
from random import Random

from skylark.broker.error_replies import illegal, invalid_parameter
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.lite_subscriptions import LiteSubscriptions
from skylark.broker.pop.ordered_batches import OrderedAck, OrderedBatches
from skylark.broker.pop.pop_reader import PopFound, PopReader
from skylark.broker.pop.popped_batches import PoppedBatches
from skylark.broker.record_loader import ReadCold
from skylark.broker.topic_lifecycle import TopicDeletion
from skylark.broker.topics import MESSAGE_TYPE, TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError
from skylark.model.lite_topic import (
    BIND_TOPIC,
    EXPIRATION,
    LIGHT_QUEUE_ID,
    LITE,
    light_queue_of,
)
from skylark.protocol.codes import ResponseCode
from skylark.protocol.pop_handle import PopHandle
from skylark.protocol.requests.lite import PopLiteMessage
from skylark.protocol.requests.pop import AckMessage, ChangeMessageInvisibleTime, InvisibleTimeReply
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

MINUTE_MS = 60_000


class LitePops:
    """Loop thread."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        read_cold: ReadCold,
        started_ms: int,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._read_cold = read_cold
        self._started_ms = started_ms
        self.ordered = OrderedBatches()
        self.subscriptions = LiteSubscriptions(live, clock, store, groups, offsets)
        self._reader = PopReader(
            live, clock, store, topics, groups, offsets, PoppedBatches(lambda *_: None),
            self.ordered, stats, Random(),  # noqa: S311 - it only spreads pops over queues
        )  # fmt: skip

    # --- Consumption ---

    def pop(self, request: PopLiteMessage, *, may_block: bool = False) -> PopFound:
        """Take messages of the light queues that may have some for the client."""
        client = self.subscriptions.clients.get(request.client_id)
        if client is None or client.group != request.consumer_group:
            return self._reader.pop_light(request, ())
        client.accessed_ms = self._clock.now_ms()
        names = list(client.events)
        found = self._reader.pop_light(request, names, may_block=may_block)
        for name in names[: found.visited]:
            del client.events[name]
            if self.lag(name, client.group) > 0:
                client.events[name] = None  # visited again after the others
        return found

    def lag(self, name: str, group: str) -> int:
        """Return how many messages of a light queue a group has not consumed."""
        queue = self._store.queues.get((name, LIGHT_QUEUE_ID))
        if queue is None:
            return 0
        if self._offsets.is_reset_pending(name, group, LIGHT_QUEUE_ID):
            return queue.max_offset
        return queue.max_offset - self._reader.position(queue, group)

    def acknowledge(self, request: AckMessage, handle: PopHandle) -> None:
        """Raises BrokerError 29 for a wrong group or queue, 104 or 13 for a message that was not popped."""
        assert request.lite_topic
        group, queue_offset = request.consumer_group, request.queue_offset
        config = self._groups.get(group)
        if config is None or config.attributes.get(BIND_TOPIC) != request.topic:
            raise invalid_parameter("group type or bind topic not match.")
        name = light_queue_of(request.topic, request.lite_topic)
        if queue_offset > self._store.max_offset(name, LIGHT_QUEUE_ID):
            raise BrokerError.for_code(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        if request.queue_id != LIGHT_QUEUE_ID or not handle.is_ordered:
            raise invalid_parameter("ack queue illegal.")
        key = (name, group, LIGHT_QUEUE_ID)
        if queue_offset < (self._offsets.query(*key) or 0):
            return
        following = self.ordered.acknowledge(key, queue_offset, handle.pop_time)
        if following is OrderedAck.ILLEGAL:
            raise illegal("ack offset illegal.")
        if isinstance(following, OrderedAck):
            return
        now_ms = self._clock.now_ms()
        if not self._offsets.is_reset_pending(*key):
            self._offsets.commit(*key, following, now_ms=now_ms)
        if self.ordered.free_at(key, None, 0) <= now_ms and self.lag(name, group) > 0:
            self.subscriptions.arrived(name, group)

    def change_invisible_time(
        self, request: ChangeMessageInvisibleTime, handle: PopHandle
    ) -> InvisibleTimeReply:
        """Raises BrokerError 104 for a message that is not there."""
        assert request.lite_topic
        name = light_queue_of(request.topic, request.lite_topic)
        if request.queue_offset > self._store.max_offset(name, LIGHT_QUEUE_ID):
            raise BrokerError.for_code(ResponseCode.NO_MESSAGE, "offset illegal.")
        key = (name, request.consumer_group, LIGHT_QUEUE_ID)
        if request.queue_offset < (self._offsets.query(*key) or 0):
            return InvisibleTimeReply(0, 0, 0)
        visible_ms = self._clock.now_ms() + request.invisible_time
        if request.suspend:
            self.ordered.suspend(key, handle.pop_time, visible_ms)
        else:
            self.ordered.change(key, request.queue_offset, handle.pop_time, visible_ms)
        self.subscriptions.arrived(name, request.consumer_group)  # held pops learn the new time
        return InvisibleTimeReply(handle.pop_time, visible_ms - handle.pop_time, handle.revive_queue_id)

    # --- Lite topics ---

    def expirations(self) -> dict[str, int]:
        """Return the parent topics, and after how many minutes their lite topics expire."""
        return {
            config.topic_name: int(config.attributes.get(EXPIRATION, -1))
            for config in self._topics.all()
            if config.attributes.get(MESSAGE_TYPE) == LITE
        }

    def forget(self, name: str) -> None:
        """Forget what is kept of a light queue that is deleted."""
        self.ordered.forget_topic(name)
        self.subscriptions.forget(name)

    async def delete_expired(self, deletion: TopicDeletion) -> None:
        """Delete the lite topics that have got no message for too long, consumed or not."""
        now_ms, least_ms = self._clock.now_ms(), self._live.current.lite.ttl_ms_min
        self.ordered.retire(lambda key: (key[0], key[2]) in self._store.queues, now_ms)
        if now_ms - self._started_ms < least_ms:
            return
        for topic, minutes in self.expirations().items():
            if minutes <= 0:
                continue
            oldest_ms = now_ms - max(minutes * MINUTE_MS, least_ms)
            names = self._store.queues.light_queues(topic)
            for name in await self._read_cold(partial(self._idle, names, oldest_ms)):
                log.info("lite topic expired name=%s", name)
                await deletion.delete(name, was_configured=True)

    def _idle(self, names: list[str], oldest_ms: int) -> list[str]:
        """Return the light queues whose last message was stored before this time. Any thread."""
        idle = []
        for name in names:
            last = self._store.max_offset(name, LIGHT_QUEUE_ID) - 1
            stored_ms = self._store.store_timestamp(name, LIGHT_QUEUE_ID, last)
            if stored_ms is not None and stored_ms < oldest_ms:
                idle.append(name)
        return idle
