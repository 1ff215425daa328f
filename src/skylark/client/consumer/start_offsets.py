"""Where a group starts in a queue, and the queries for the minimum, maximum and time offsets of a queue."""

from __future__ import annotations

from enum import Enum

from skylark.client.consumer.offset_store import OffsetStore, find_broker
from skylark.client.session.session import Session
from skylark.errors import BrokerError, RocketMQError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.model.names import LAKE_NAMESPACE
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.name_server import GetKvConfig
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp
from skylark.settings.client import ConsumeFrom

LOWER = "LOWER"


class StartQuery(Enum):
    """What to query from a broker to know the start offset."""

    MAX_OFFSET = "the end of the queue"
    BY_TIMESTAMP = "the offset at a time"


def start_offset(stored: int | None, consume_from: ConsumeFrom, topic: str) -> int | StartQuery:
    """Return where a newly assigned queue starts: at the group's committed offset, else by `consume_from`.

    A retry topic starts at its beginning, because it holds failed messages. An offset below the queue's
    minimum is corrected by the broker's reply to the first pull.
    """
    if stored is not None:
        return stored
    is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
    if consume_from is ConsumeFrom.TIMESTAMP:
        return StartQuery.MAX_OFFSET if is_retry else StartQuery.BY_TIMESTAMP
    if consume_from is ConsumeFrom.FIRST_OFFSET or is_retry:
        return 0
    return StartQuery.MAX_OFFSET


async def min_offset(session: Session, queue: MessageQueue) -> int:
    """Return the first offset that the queue still has. Raises RocketMQError."""
    request = GetMinOffset(queue.topic, queue.queue_id, broker_name=queue.broker_name)
    return await session.call(await find_broker(session, queue), request)


async def max_offset(session: Session, queue: MessageQueue) -> int:
    """Return the offset of the next message to be stored. Raises RocketMQError."""
    request = GetMaxOffset(queue.topic, queue.queue_id, committed=True, broker_name=queue.broker_name)
    return await session.call(await find_broker(session, queue), request)


async def offset_at(session: Session, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at a time or later. Raises RocketMQError."""
    request = SearchOffsetByTimestamp(
        queue.topic, queue.queue_id, timestamp_ms, boundary_type=LOWER, broker_name=queue.broker_name
    )
    return await session.call(await find_broker(session, queue), request)


async def archive_of(session: Session, topic: str) -> str | None:
    """The table in which a lake archives a topic; None if there is none, or no name server can be asked."""
    try:
        return (await session.call_name_server(GetKvConfig(LAKE_NAMESPACE, topic))).value
    except RocketMQError:
        return None


class StartOffsets:
    """Finds the start offset of the queues of one consumer."""

    def __init__(
        self, session: Session, offsets: OffsetStore, consume_from: ConsumeFrom, timestamp_ms: int
    ) -> None:
        self._session = session
        self._offsets = offsets
        self._consume_from = consume_from
        self._timestamp_ms = timestamp_ms

    async def find(self, queue: MessageQueue) -> int:
        """Raises RocketMQError: the queue is not started in this round then."""
        where = start_offset(await self._offsets.read(queue), self._consume_from, queue.topic)
        if where is StartQuery.MAX_OFFSET:
            where = await max_offset(self._session, queue)
        elif where is StartQuery.BY_TIMESTAMP:
            where = await offset_at(self._session, queue, self._timestamp_ms)
        assert isinstance(where, int)
        if where < 0:
            raise BrokerError(1, f"Found unexpected result {where}")
        return where
