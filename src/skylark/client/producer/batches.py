"""Batches: many messages in one request, split by the caller or accumulated by a producer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from skylark.client.producer.async_sender import AsyncSender, InFlightSend
from skylark.client.producer.message_encoder import SystemMessage
from skylark.client.producer.queue_selectors import SendTarget
from skylark.client.producer.send_receipt import SendReceipt
from skylark.model.message import RETRY_TOPIC_PREFIX, Message
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.frame_templates import Tail
from skylark.settings.client import ProducerSettings

log = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT")
OnOutcome = Callable[[Message, SendReceipt | Exception], None]
"""Called with a message, and its receipt or the error of its send."""

BATCH_BYTES_MAX = 1_000_000
MESSAGE_OVERHEAD_BYTES = 20
_Key = tuple[str, MessageQueue | None, bool]


def message_bytes(message: Message) -> int:
    """Return the size of a message in a batch: body, property names and values, and a fixed overhead."""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    properties = sum(len(name) + len(value) for name, value in message.properties.items())
    named = len(keys) + len(message.tags or "") + properties
    return len(message.topic) + len(message.body) + named + MESSAGE_OVERHEAD_BYTES


def split_into_batches(
    messages: Iterable[Message], bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[list[Message]]:
    """Yield the messages, in order, in lists that each fit into one batch.

    A message that is larger than a batch is yielded alone.

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


class GatheredSend(InFlightSend, Generic[OutcomeT]):
    """Messages of one request in flight, with an outcome for each."""

    outcomes: list[OutcomeT]


class SubmittedSend(GatheredSend[asyncio.Future[SendReceipt]]):
    """The outcomes are futures."""

    @property
    def is_abandoned(self) -> bool:
        return all(future.cancelled() for future in self.outcomes)

    def deliver(self, receipts: list[SendReceipt]) -> None:
        for future, receipt in zip(self.outcomes, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)

    def fail(self, error: Exception) -> None:
        for future in self.outcomes:
            if not future.done():
                future.set_exception(error)


class PostedSend(GatheredSend[OnOutcome]):
    """The outcomes are functions to call."""

    @property
    def is_abandoned(self) -> bool:
        return False

    def deliver(self, receipts: list[SendReceipt]) -> None:
        self._call_all(receipts)

    def fail(self, error: Exception) -> None:
        self._call_all([error] * len(self.outcomes))

    def _call_all(self, results: Sequence[SendReceipt | Exception]) -> None:
        for message, result, call in zip(self.encoded.messages, results, self.outcomes, strict=True):
            try:
                call(message, result)
            except Exception:
                log.exception("function of a posted message failed topic=%s", message.topic)


class _OpenBatch(Generic[OutcomeT]):
    """A batch that still accepts messages."""

    __slots__ = ("bytes", "messages", "outcomes", "plain", "tails", "timer")

    def __init__(self, timer: asyncio.TimerHandle, plain: Tail) -> None:
        self.timer = timer
        self.plain = plain  # for messages without properties
        self.messages: list[Message] = []
        self.tails: list[Tail] = []
        self.outcomes: list[OutcomeT] = []
        self.bytes = 0


class Accumulator(Generic[OutcomeT]):
    """Accumulates messages for the same queue and sends them as one batch; each has its outcome.

    A message is checked when it is added. Unique keys and frames are made once per batch, which is why this
    costs much less than single sends.
    """

    def __init__(
        self, sender: AsyncSender, settings: ProducerSettings, kind: type[GatheredSend[OutcomeT]]
    ) -> None:
        """`kind` decides what becomes of outcomes."""
        self._sender = sender
        self._settings = settings
        self._kind = kind
        # Half of the limit: the last message may exceed the batch size, and brokers refuse larger batches.
        self._bytes_max = min(settings.batch_bytes_max, settings.message_bytes_max // 2)
        self._pending_bytes_max = settings.batch_pending_bytes_max
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Key, _OpenBatch[OutcomeT]] = {}
        self._pending_bytes = 0

    def add(self, message: Message, queue: MessageQueue | None, outcome: OutcomeT) -> bool:
        """Add a message to the open batch of its queue.

        False if there is no open batch (see `begin`), or if the message cannot be batched: send it alone
        then, which also reports invalid messages. Raises BadMessage.
        """
        key = (message.topic, queue, message.wait_for_store)
        batch = self._open.get(key)
        body = message.body
        if (
            batch is None
            or type(body) is not bytes
            or not 0 < len(body) < self._bytes_max
            or self._pending_bytes >= self._pending_bytes_max
            or message.delay_level
            or message.deliver_at is not None
            or message.deliver_after is not None
            or (type(message) is not Message and isinstance(message, SystemMessage))
        ):
            return False
        tail = batch.plain
        if (
            message.tags
            or message.keys
            or message.properties
            or message.flag
            or message.sharding_key is not None
        ):
            if message.sharding_key is not None and queue is None:
                return False  # its queue is not chosen yet
            tail = self._sender.encoder.tail(message)
        batch.messages.append(message)
        batch.tails.append(tail)
        batch.outcomes.append(outcome)
        size = len(body) + tail[0]
        batch.bytes += size
        self._pending_bytes += size
        if batch.bytes >= self._bytes_max:
            self._flush(key)
        return True

    async def begin(self, message: Message, queue: MessageQueue | None, outcome: OutcomeT) -> bool:
        """As `open`, when there is room. Raises SendFailed if there is none in time."""
        topic, body = message.topic, message.body
        if not isinstance(body, bytes):
            return False
        if self._sender.is_crowded or not self._sender.has_room(len(body)):
            deadline = self._loop.time() + self._settings.send_timeout_ms / 1000
            await self._sender.wait_for_room(topic, len(body), deadline)
        return self.open(message, queue, outcome)

    def open(self, message: Message, queue: MessageQueue | None, outcome: OutcomeT) -> bool:
        """Open a batch with this message. Returns False as `add` does. Raises BadMessage, BadName."""
        topic = message.topic
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return False
        key = (topic, queue, message.wait_for_store)
        if key not in self._open:
            plain = Message(topic, b"any", wait_for_store=message.wait_for_store)
            tail = self._sender.encoder.tail(plain)
            timer = self._loop.call_later(self._settings.batch_delay_ms / 1000, self._flush, key)
            self._open[key] = _OpenBatch(timer, tail)
        return self.add(message, queue, outcome)

    def _flush(self, key: _Key) -> None:
        batch = self._open.pop(key)
        batch.timer.cancel()
        self._pending_bytes -= batch.bytes
        if not batch.messages:
            return  # the message for which it was opened was not batched
        encoder = self._sender.encoder
        send = self._kind(
            self._sender,
            encoder.join(batch.messages, batch.tails)
            if len(batch.messages) > 1
            else encoder.single(batch.messages[0], batch.tails[0]),
            self._loop.time(),
            SendTarget(key[1]),
        )
        send.outcomes = batch.outcomes
        send.caller = Context()  # several callers: hooks get no context variables
        self._sender.launch(send)

    def flush(self) -> None:
        """Send all open batches now."""
        for key in list(self._open):
            self._flush(key)
