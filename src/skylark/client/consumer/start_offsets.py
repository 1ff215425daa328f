"""Where a consumer starts in a queue, and the broker queries for minimum, maximum and time offsets."""

from __future__ import annotations

from skylark.client.consumer.offset_store import OffsetStore, find_broker
from skylark.client.consumer.pull_policy import StartQuery, start_offset
from skylark.client.session.session import Session
from skylark.errors import BrokerError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp
from skylark.settings.client import ConsumeFrom

LOWER = "LOWER"


async def min_offset(session: Session, queue: MessageQueue) -> int:
    """The first offset that the queue still has. Raises RocketMQError."""
    request = GetMinOffset(queue.topic, queue.queue_id, broker_name=queue.broker_name)
    return await session.call(await find_broker(session, queue), request)


async def max_offset(session: Session, queue: MessageQueue) -> int:
    """The offset that the next message will have. Raises RocketMQError."""
    request = GetMaxOffset(queue.topic, queue.queue_id, committed=True, broker_name=queue.broker_name)
    return await session.call(await find_broker(session, queue), request)


async def offset_at(session: Session, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset of the first message at or after a time. Raises RocketMQError."""
    request = SearchOffsetByTimestamp(
        queue.topic, queue.queue_id, timestamp_ms, boundary_type=LOWER, broker_name=queue.broker_name
    )
    return await session.call(await find_broker(session, queue), request)


class StartOffsets:
    """Where a consumer begins in a queue that it gets."""

    def __init__(
        self, session: Session, offsets: OffsetStore, consume_from: ConsumeFrom, timestamp_ms: int
    ) -> None:
        self._session = session
        self._offsets = offsets
        self._consume_from = consume_from
        self._timestamp_ms = timestamp_ms

    async def find(self, queue: MessageQueue) -> int:
        """Return where to begin. Raises RocketMQError: then the queue is not begun in this round."""
        where = start_offset(await self._offsets.read(queue), self._consume_from, queue.topic)
        if where is StartQuery.MAX_OFFSET:
            where = await max_offset(self._session, queue)
        elif where is StartQuery.BY_TIMESTAMP:
            where = await offset_at(self._session, queue, self._timestamp_ms)
        assert isinstance(where, int)
        if where < 0:
            raise BrokerError(1, f"Found unexpected result {where}")
        return where
