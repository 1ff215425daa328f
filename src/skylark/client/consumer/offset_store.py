"""Offset stores: committed offsets at the brokers (clustering) or in a local file (broadcasting)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from skylark.atomic_file import load_file, write_file
from skylark.client.session.session import Session
from skylark.errors import BadJson, BrokerError, BrokerUnknown, RemoteProtocolError, RocketMQError
from skylark.model import java
from skylark.protocol.bodies import MessageQueue, QueueOffsets, decode_body
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset


class OffsetTable:
    """The next offset to consume, by queue. One owner: the loop thread."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, queue_offset: int, *, increase_only: bool) -> None:
        """Set a queue's offset; with `increase_only` the larger of it and what is known."""
        if queue in self._frozen:
            return
        known = self._offsets.get(queue)
        if known is None or not increase_only or queue_offset > known:
            self._offsets[queue] = queue_offset

    def freeze(self, queue: MessageQueue, queue_offset: int) -> None:
        """Set a queue's offset for good: what is still under way cannot change it, until it is removed."""
        self._offsets[queue] = queue_offset
        self._frozen.add(queue)

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def keep(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """Forget all other queues, and return what is left, to be written somewhere."""
        for queue in self._offsets.keys() - set(queues):
            self.remove(queue)
        return dict(self._offsets)

    def of_topic(self, topic: str) -> dict[MessageQueue, int]:
        return {queue: number for queue, number in self._offsets.items() if queue.topic == topic}


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The text of `offsets.json`, as RocketMQ's Java client writes it."""
    table = {
        java.ObjectKey({"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}): n
        for queue, n in offsets.items()
    }
    return java.dumps({"offsetTable": table}, indent=True)


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Read `offsets.json`. Raises ValueError."""
    try:
        return decode_body(data, QueueOffsets).offset_table
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None


def read_reset_body(data: bytes) -> dict[MessageQueue, int]:
    """Read the offsets in a request to reset them, in any of the three forms in which they come.

    A map with queues as keys, a list of pairs, or a list of objects. Raises RemoteProtocolError.
    """
    try:
        document = java.loads(data)
    except BadJson as error:
        raise RemoteProtocolError(f"body of a reset: {error}") from None
    table = document.get("offsetTable") if isinstance(document, dict) else None
    try:
        if isinstance(table, Mapping):
            return {_queue(_key(key)): int(number) for key, number in table.items()}
        if isinstance(table, list):
            return dict(_entry(entry) for entry in table)
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"body of a reset: {type(error).__name__} {error}") from None
    raise RemoteProtocolError("body of a reset has no offsetTable")


def _key(key: object) -> Mapping[str, object]:
    # Some writers quote the object that is the key.
    found = java.loads(key.encode()) if isinstance(key, str) else key
    if not isinstance(found, Mapping):
        raise TypeError(f"{key!r} is not a queue")
    return found


def _entry(entry: object) -> tuple[MessageQueue, int]:
    if isinstance(entry, Mapping):
        return _queue(entry), int(entry["offset"])
    if isinstance(entry, Iterable):
        members, number = entry
        return _queue(members), int(number)
    raise TypeError(f"{entry!r} is not an offset")


def _queue(members: Mapping[str, object]) -> MessageQueue:
    return MessageQueue(str(members["topic"]), str(members["brokerName"]), int(str(members["queueId"])))


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
