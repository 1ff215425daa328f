"""Pure. How far a consumer is in each queue, in memory, and the file that keeps it for broadcasting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from skylark.errors import BadJson, RemoteProtocolError
from skylark.model import java
from skylark.protocol.bodies import MessageQueue, decode_body
from skylark.protocol.stats_bodies import QueueOffsets


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
