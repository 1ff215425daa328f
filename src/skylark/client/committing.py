"""Committing for a pull consumer: what brokers, or a file of its own, are told of its progress."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from skylark.client.offset_store import LocalOffsetStore, OffsetStore, find_broker
from skylark.client.pulled_queue import PulledQueue
from skylark.client.session import Session
from skylark.errors import RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.offset import UpdateConsumerOffset

log = logging.getLogger(__name__)


class Commits:
    """The commits of one consumer. Loop thread.

    Of each queue one at a time: a broker that works with many threads could take the older of two last.
    """

    def __init__(self, session: Session, group: str, offsets: OffsetStore, timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._offsets = offsets
        self._timeout_ms = timeout_ms
        self._committed: dict[MessageQueue, int] = {}
        self._turns: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def commit(self, queue: MessageQueue, queue_offset: int, *, wait: bool) -> None:
        """With `wait`, return when the broker has said that it has it. Raises BrokerError, RemotingError."""
        async with self._turns[queue]:
            await self._commit(queue, queue_offset, wait=wait)

    async def _commit(self, queue: MessageQueue, queue_offset: int, *, wait: bool) -> None:
        if isinstance(self._offsets, LocalOffsetStore):
            self._offsets.table.update(queue, queue_offset, increase_only=False)
            await self._offsets.persist(queue)
        else:
            await self._tell(queue, queue_offset, wait=wait)
        self._committed[queue] = queue_offset

    async def _tell(self, queue: MessageQueue, queue_offset: int, *, wait: bool) -> None:
        request = UpdateConsumerOffset(
            self._group, queue.topic, queue.queue_id, queue_offset, broker_name=queue.broker_name
        )
        address = await find_broker(self._session, queue)
        if wait:
            await self._session.call(address, request, timeout_ms=self._timeout_ms)
        else:
            await self._session.notify(address, request)

    async def commit_done(self, held: PulledQueue) -> None:
        """Commit what is done, if that was not committed yet. Failures are logged."""
        async with self._turns[held.queue]:
            done = held.done  # looked at in turn: what was done before an earlier commit may be behind it
            if done is None or self._committed.get(held.queue) == done:
                return
            try:
                await self._commit(held.queue, done, wait=True)
            except RocketMQError as error:
                log.warning("offset was not committed queue=%s offset=%d error=%s", held.queue, done, error)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is another member's now, who commits other offsets."""
        self._committed.pop(queue, None)
