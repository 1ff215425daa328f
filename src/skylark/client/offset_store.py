"""Where a consumer's progress is kept: at the brokers for clustering, in a file for broadcasting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from skylark.atomic_file import load_file, write_file
from skylark.client.offset_table import OffsetTable, decode_offsets, encode_offsets
from skylark.client.session import Session
from skylark.errors import BrokerError, BrokerUnknown, RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset

log = logging.getLogger(__name__)

FILE_NAME = "offsets.json"


class OffsetStore(Protocol):
    """What a consumer asks of the keeper of its progress. Loop thread only.

    `table` is the progress in memory; the rest moves it to and from where it lasts.
    """

    table: OffsetTable

    async def load(self) -> None:
        """Make ready, before the first queue is taken. Raises what makes it impossible to begin."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the lasting offset of a queue and note it in the table; None if there is none yet.

        Raises RocketMQError if it cannot be known now.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Make one queue's offset last. Failures are logged."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Make the offsets of these queues last and forget all others. Failures are logged."""


class BrokerOffsetStore:
    """Progress of a group, kept by the broker that has the queue; any member goes on from there."""

    def __init__(self, session: Session, group: str, timeout_ms: int) -> None:
        self.table = OffsetTable()
        self._session = session
        self._group = group
        self._timeout_ms = timeout_ms

    async def load(self) -> None:
        """Nothing: brokers are asked queue by queue."""

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
        """Tell all brokers at the same time: one that is away must not keep the others waiting."""
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
            log.warning("offsets were not kept group=%s queues=%d error=%s", self._group, left, reason)


async def find_broker(session: Session, queue: MessageQueue) -> str:
    """Return where to ask about a queue: its master, any replica if there is none.

    Asks for the topic's route once if the broker is not known. Raises BrokerUnknown, RemotingError.
    """
    try:
        return session.routes.readable(queue.broker_name).address
    except BrokerUnknown:
        await session.refresh_route(queue.topic)
        return session.routes.readable(queue.broker_name).address


class LocalOffsetStore:
    """Progress of one client, kept in a file of its own as RocketMQ's Java client does."""

    def __init__(self, path: Path) -> None:
        self.table = OffsetTable()
        self._path = path
        self._kept: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read the file, or its backup. Raises BadStoreFile when there is something and it cannot be read."""
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
                # The thread goes on: two writers of one file must not meet, so its end is waited for.
                await asyncio.wait([writing])
                raise
            except OSError as error:
                log.warning("offsets were not kept file=%s error=%s", self._path, error)


def local_offsets_path(directory: Path, client_id: str, group: str) -> Path:
    """Return the file of one client and group, where the Java client would look for it."""
    return directory / client_id / group / FILE_NAME
