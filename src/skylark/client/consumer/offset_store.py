"""Offset stores: committed offsets at the brokers (clustering) or in a local file (broadcasting)."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from skylark.atomic_file import load_file, write_file
from skylark.client.consumer.process_queue import PulledQueue
from skylark.client.session.session import Session
from skylark.errors import BrokerError, BrokerUnknown, RemoteProtocolError, RocketMQError
from skylark.model import java
from skylark.protocol.bodies import MessageQueue, QueueOffsets, decode_body
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset
from skylark.settings.client import (
    OFFSET_DIRECTORY,
    MessageModel,
    PullConsumerSettings,
    PushConsumerSettings,
)

log = logging.getLogger(__name__)

FILE_NAME = "offsets.json"


class OffsetTable:
    """The next offset to consume by queue, in memory. Loop thread."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, queue_offset: int, *, increase_only: bool) -> None:
        """Set a queue's offset; with `increase_only`, only to a larger one."""
        if queue in self._frozen:
            return
        known = self._offsets.get(queue)
        if known is None or not increase_only or queue_offset > known:
            self._offsets[queue] = queue_offset

    def freeze(self, queue: MessageQueue, queue_offset: int) -> None:
        """Set a queue's offset and ignore updates until the queue is removed."""
        self._offsets[queue] = queue_offset
        self._frozen.add(queue)

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def keep(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Remove all other queues, and return a copy of the rest."""
        for queue in self._offsets.keys() - set(queues):
            self.remove(queue)
        return dict(self._offsets)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: number for queue, number in self._offsets.items() if queue.topic == topic}


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Encode `offsets.json` as RocketMQ's Java client does."""
    table = {
        java.ObjectKey({"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}): n
        for queue, n in offsets.items()
    }
    return java.dumps({"offsetTable": table}, indent=True)


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Decode `offsets.json`. Raises ValueError."""
    try:
        return decode_body(data, QueueOffsets).offset_table
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None


class OffsetStore(Protocol):
    """Keeps the offsets of one consumer. Loop thread only.

    `table` holds them in memory; the methods read and persist them.
    """

    table: OffsetTable

    async def load(self) -> None:
        """Called before the first queue is taken. Raises if the store is unusable."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the persisted offset of a queue and put it into the table; None if there is none yet.

        Raises RocketMQError if it cannot be read now.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Persist one queue's offset. Failures are logged."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Persist the offsets of these queues and remove all others. Failures are logged."""


class BrokerOffsetStore:
    """Offsets of a group, kept by the broker of the queue; any member resumes there."""

    def __init__(self, session: Session, group: str, timeout_ms: int) -> None:
        self.table = OffsetTable()
        self._session = session
        self._group = group
        self._timeout_ms = timeout_ms

    async def load(self) -> None:
        """Does nothing: offsets are queried queue by queue."""

    async def read(self, queue: MessageQueue) -> int | None:
        address = await find_broker(self._session, queue)
        request = QueryConsumerOffset(self._group, queue.topic, queue.queue_id, broker_name=queue.broker_name)
        try:
            queue_offset = await self._session.call(address, request, timeout_ms=self._timeout_ms)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        self.table.update(queue, queue_offset, increase_only=False)
        return queue_offset

    async def persist(self, queue: MessageQueue) -> None:
        queue_offset = self.table.get(queue)
        if queue_offset is not None:
            await self._send_all({queue: queue_offset})

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        if queues:
            await self._send_all(self.table.keep(queues))

    async def _send_all(self, offsets: dict[MessageQueue, int]) -> None:
        """Send to all brokers in parallel: an unreachable one must not delay the others."""
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue, queue_offset in offsets.items():
            by_broker.setdefault(queue.broker_name, {})[queue] = queue_offset
        await asyncio.gather(*map(self._send_to_broker, by_broker.values()))

    async def _send_to_broker(self, offsets: dict[MessageQueue, int]) -> None:
        sent = 0
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                for queue, queue_offset in offsets.items():
                    address = await find_broker(self._session, queue)
                    request = UpdateConsumerOffset(
                        self._group, queue.topic, queue.queue_id, queue_offset, broker_name=queue.broker_name
                    )
                    await self._session.notify(address, request)
                    sent += 1
        except (RocketMQError, TimeoutError) as error:
            reason = str(error) or f"not within {self._timeout_ms} ms"
            left = len(offsets) - sent
            log.warning("offsets not persisted group=%s queues=%d error=%s", self._group, left, reason)


async def find_broker(session: Session, queue: MessageQueue) -> str:
    """Return the address for queries about a queue: its master, or any replica without one.

    Refreshes the topic's route once if the broker is unknown. Raises BrokerUnknown, RemotingError.
    """
    try:
        return session.routes.readable(queue.broker_name).address
    except BrokerUnknown:
        await session.refresh_route(queue.topic)
        return session.routes.readable(queue.broker_name).address


class LocalOffsetStore:
    """Offsets of one client in a local file, in the format of RocketMQ's Java client."""

    def __init__(self, path: Path) -> None:
        self.table = OffsetTable()
        self._path = path
        self._kept: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read the file or its backup. Raises BadStoreFile if neither is readable."""
        kept: dict[MessageQueue, int] | None = await asyncio.to_thread(
            lambda: load_file(self._path, decode_offsets)
        )
        self._kept = kept or {}

    async def read(self, queue: MessageQueue) -> int | None:
        queue_offset = self._kept.get(queue)
        if queue_offset is not None:
            self.table.update(queue, queue_offset, increase_only=False)
        return queue_offset

    async def persist(self, queue: MessageQueue) -> None:
        queue_offset = self.table.get(queue)
        if queue_offset is not None:
            await self._write({queue: queue_offset})

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        if queues:
            await self._write(self.table.keep(queues))

    async def _write(self, changes: dict[MessageQueue, int]) -> None:
        async with self._writing:
            if all(self._kept.get(queue) == queue_offset for queue, queue_offset in changes.items()):
                return
            self._kept |= changes
            writing = asyncio.ensure_future(
                asyncio.to_thread(write_file, self._path, encode_offsets(self._kept))
            )
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The thread continues: wait for it, so that two threads never write the file at once.
                await asyncio.wait([writing])
                raise
            except OSError as error:
                log.warning("offsets not persisted file=%s error=%s", self._path, error)


def local_offsets_path(directory: Path, client_id: str, group: str) -> Path:
    """Return the file of one client and group, at the Java client's location."""
    return directory / client_id / group / FILE_NAME


def open_offset_store(
    session: Session, group: str, settings: PushConsumerSettings | PullConsumerSettings
) -> OffsetStore:
    """Return the store for the settings' message model: at the brokers, or a local file for broadcasting."""
    if settings.model is MessageModel.CLUSTERING:
        return BrokerOffsetStore(session, group, settings.offset_timeout_ms)
    directory = settings.offset_directory or Path.home() / OFFSET_DIRECTORY
    return LocalOffsetStore(local_offsets_path(directory, session.client_id, group))


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
