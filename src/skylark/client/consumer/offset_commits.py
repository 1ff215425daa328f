"""Offset commits of a pull consumer, one at a time per queue."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable

from skylark.client.consumer.offset_store import LocalOffsetStore, OffsetStore, find_broker
from skylark.client.consumer.process_queue import PulledQueue
from skylark.client.session.session import Session
from skylark.errors import RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.offset import UpdateConsumerOffset

log = logging.getLogger(__name__)


class OffsetCommits:
    """The commits of one consumer. Loop thread.

    Of each queue one at a time: a broker that works with many threads could take the older of two last. Of
    each topic the first alone: of several that come at once, Apache's brokers may forget all but one.
    """

    def __init__(self, session: Session, group: str, offsets: OffsetStore, timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._offsets = offsets
        self._timeout_ms = timeout_ms
        self._committed: dict[MessageQueue, int] = {}
        self._turns: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._given_up: list[PulledQueue] = []
        self._giving_up = asyncio.Lock()
        self._first: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._known: set[tuple[str, str]] = set()  # brokers and topics with a commit that was answered

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
        if not wait:
            await self._session.notify(address, request)
            return
        place = queue.broker_name, queue.topic
        if place not in self._known:
            async with self._first[place]:
                if place not in self._known:
                    await self._session.call(address, request, timeout_ms=self._timeout_ms)
                    self._known.add(place)
                    return
        await self._session.call(address, request, timeout_ms=self._timeout_ms)

    async def commit_done(self, queues: Iterable[PulledQueue]) -> None:
        """Commit what is done of queues and was not committed yet. Failures are logged."""
        await asyncio.gather(*map(self._commit_done, queues))

    async def _commit_done(self, held: PulledQueue) -> None:
        async with self._turns[held.queue]:
            done = held.done  # looked at in turn: what was done before an earlier commit may be behind it
            if done is None or self._committed.get(held.queue) == done:
                return
            try:
                await self._commit(held.queue, done, wait=True)
            except RocketMQError as error:
                log.warning("offset was not committed queue=%s offset=%d error=%s", held.queue, done, error)

    def give_up(self, queues: Iterable[PulledQueue]) -> None:
        """Note queues that are another member's now, for `commit_given_up`."""
        self._given_up += queues

    async def commit_given_up(self) -> None:
        """Commit what is done of queues that were given up. Cancelled, it can be called again."""
        async with self._giving_up:
            given_up = list(self._given_up)
            await self.commit_done(given_up)
            for held in given_up:
                self._committed.pop(held.queue, None)  # another member commits other offsets
            del self._given_up[: len(given_up)]

    async def settle(self) -> None:
        """Wait until no commit is under way."""
        while taken := [turn for turn in self._turns.values() if turn.locked()]:
            async with taken[0]:
                pass
