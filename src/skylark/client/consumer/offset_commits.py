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
    """Commits of one consumer. Loop thread.

    One commit at a time per queue: a multi-threaded broker could apply the older of two last. The first
    commit of a topic runs alone: of several concurrent first commits, Apache's brokers may lose all but one.
    """

    def __init__(self, session: Session, group: str, offsets: OffsetStore, timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._offsets = offsets
        self._timeout_ms = timeout_ms
        self._committed: dict[MessageQueue, int] = {}
        self._queue_locks: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._released: list[PulledQueue] = []
        self._releasing = asyncio.Lock()
        self._first_commits: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._known: set[tuple[str, str]] = set()  # brokers and topics with a successful commit

    async def commit(self, queue: MessageQueue, queue_offset: int, *, wait: bool) -> None:
        """Commit an offset; with `wait`, wait for the broker's reply. Raises BrokerError, RemotingError."""
        async with self._queue_locks[queue]:
            await self._commit(queue, queue_offset, wait=wait)

    async def _commit(self, queue: MessageQueue, queue_offset: int, *, wait: bool) -> None:
        if isinstance(self._offsets, LocalOffsetStore):
            self._offsets.table.update(queue, queue_offset, increase_only=False)
            await self._offsets.persist(queue)
        else:
            await self._send(queue, queue_offset, wait=wait)
        self._committed[queue] = queue_offset

    async def _send(self, queue: MessageQueue, queue_offset: int, *, wait: bool) -> None:
        request = UpdateConsumerOffset(
            self._group, queue.topic, queue.queue_id, queue_offset, broker_name=queue.broker_name
        )
        address = await find_broker(self._session, queue)
        if not wait:
            await self._session.notify(address, request)
            return
        key = queue.broker_name, queue.topic
        if key not in self._known:
            async with self._first_commits[key]:
                if key not in self._known:
                    await self._session.call(address, request, timeout_ms=self._timeout_ms)
                    self._known.add(key)
                    return
        await self._session.call(address, request, timeout_ms=self._timeout_ms)

    async def commit_done(self, queues: Iterable[PulledQueue]) -> None:
        """Commit the progress of queues that is not committed yet. Failures are logged."""
        await asyncio.gather(*map(self._commit_done, queues))

    async def _commit_done(self, held: PulledQueue) -> None:
        async with self._queue_locks[held.queue]:
            done = held.done  # read under the lock: an earlier value may be behind the last commit
            if done is None or self._committed.get(held.queue) == done:
                return
            try:
                await self._commit(held.queue, done, wait=True)
            except RocketMQError as error:
                log.warning("offset not committed queue=%s offset=%d error=%s", held.queue, done, error)

    def release(self, queues: Iterable[PulledQueue]) -> None:
        """Remember queues that now belong to other members, for `commit_released`."""
        self._released += queues

    async def commit_released(self) -> None:
        """Commit the progress of released queues. After a cancellation it can be called again."""
        async with self._releasing:
            released = list(self._released)
            await self.commit_done(released)
            for held in released:
                self._committed.pop(held.queue, None)  # another member commits other offsets
            del self._released[: len(released)]

    async def settle(self) -> None:
        """Wait until no commit is in flight."""
        while taken := [lock for lock in self._queue_locks.values() if lock.locked()]:
            async with taken[0]:
                pass
