"""Batches: many messages, one request. Split by hand, or gathered by a producer for a few milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextvars import Context
from typing import Any

from skylark.client.preparing import Prepared
from skylark.client.receipt import SendReceipt
from skylark.client.replying import Reply
from skylark.client.sender import Flight, Sender
from skylark.errors import RocketMQError
from skylark.model.message import RETRY_TOPIC_PREFIX, Message
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ProducerSettings

BATCH_BYTES_MAX = 1_000_000
MESSAGE_OVERHEAD_BYTES = 20
_Key = tuple[str, MessageQueue | None, bool]


def message_bytes(message: Message) -> int:
    """Return how large a message counts in a batch: body, names, values and what surrounds them."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    properties = sum(len(name) + len(value) for name, value in message.properties.items())
    named = len(keys) + len(message.tags or "") + properties
    return len(message.topic) + len(message.body) + named + MESSAGE_OVERHEAD_BYTES


def split_into_batches(
    messages: Iterable[Message], bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[list[Message]]:
    """Yield the messages, in their order, as lists none of which is larger than a batch may be.

    A message that is too large by itself comes alone.

    >>> for batch in split_into_batches(messages):
    ...     producer.send_batch(batch)
    """
    batch: list[Message] = []
    batch_bytes = 0
    for message in messages:
        size = message_bytes(message)
        if batch and batch_bytes + size > bytes_max:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += size
    if batch:
        yield batch


class _Gathered(Flight):
    """A batch whose members have a future each."""

    futures: list[asyncio.Future[SendReceipt]]

    @property
    def is_abandoned(self) -> bool:
        return all(future.cancelled() for future in self.futures)

    def deliver(self, receipts: list[SendReceipt]) -> None:
        for future, receipt in zip(self.futures, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)

    def fail(self, error: Exception) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)


class _Open:
    """A batch that is still gathering."""

    __slots__ = ("bytes", "futures", "members", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.timer = timer
        self.members: list[Prepared] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.bytes = 0


class Accumulator:
    """Gathers messages for the same queue and sends them as one batch; each has a future and a receipt."""

    def __init__(self, sender: Sender, settings: ProducerSettings) -> None:
        self._sender = sender
        self._settings = settings
        self._bytes_max = settings.batch_bytes_max
        self._pending_bytes_max = settings.batch_pending_bytes_max
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Key, _Open] = {}
        self._pending_bytes = 0

    def takes(self, message: Message) -> bool:
        """Say whether a message may wait in a batch; others are sent at once."""
        return (
            self._pending_bytes < self._pending_bytes_max
            and len(message.body) < self._bytes_max
            and not message.delay_level
            and message.deliver_at is None
            and message.deliver_after is None
            and not message.topic.startswith(RETRY_TOPIC_PREFIX)
            and (type(message) is Message or not isinstance(message, Reply))
        )

    def add(self, prepared: Prepared, queue: MessageQueue | None) -> asyncio.Future[SendReceipt]:
        """Put a message into the batch of its queue and return the future of its receipt."""
        key = (prepared.topic, queue, prepared.message.wait_for_store)
        batch = self._open.get(key)
        if batch is None:
            timer = self._loop.call_later(self._settings.batch_delay_ms / 1000, self._flush, key)
            batch = self._open[key] = _Open(timer)
        future: asyncio.Future[SendReceipt] = asyncio.Future(loop=self._loop)
        size = len(prepared.body) + len(prepared.properties)
        batch.members.append(prepared)
        batch.futures.append(future)
        batch.bytes += size
        self._pending_bytes += size
        if batch.bytes >= self._bytes_max:
            self._flush(key)
        return future

    def _flush(self, key: _Key) -> None:
        batch = self._open.pop(key)
        batch.timer.cancel()
        self._pending_bytes -= batch.bytes
        now = self._loop.time()
        flight = _Gathered(
            self._sender,
            batch.members,
            started=now,
            deadline=now + self._settings.send_timeout_ms / 1000,
            attempts=1 if key[1] is not None else 1 + self._settings.retries,
        )
        flight.futures = batch.futures
        flight.caller = Context()  # several have sent, so it is nobody's
        flight.fixed_queue = key[1]
        try:
            if len(batch.members) > 1:
                flight.make_batch(
                    self._sender.preparation.next_unique_key(), self._settings.message_bytes_max
                )
            self._sender.launch(flight)
        except RocketMQError as error:
            flight.fail(error)

    def flush(self) -> None:
        """Send all that is gathered, now."""
        for key in list(self._open):
            self._flush(key)
