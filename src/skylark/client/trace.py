"""Message trace: what became of each send, told to a topic of its own as RocketMQ's tools read it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from skylark.client.hooks import SendContext, SendHook
from skylark.client.sender import Sender
from skylark.client.session import Session
from skylark.client.tasks import Tasks
from skylark.clock import Clock, SystemClock
from skylark.errors import RocketMQError
from skylark.model.message import KEY_SEPARATOR, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, Message
from skylark.settings.client import ProducerSettings

log = logging.getLogger(__name__)

TRACE_GROUP = "_INNER_TRACE_PRODUCER-{group}-PRODUCE"
WAITING_MAX = 2048
BATCH = 10
CHECK_INTERVAL_MS = 50
TEXT_CHARS_MAX = 128_000
KEYS_CHARS_MAX = 8_000  # however many bytes they take, a message's properties have room for them
SEND_TIMEOUT_MS = 5000
NORMAL = 0
DELAYED = 3


@dataclass(frozen=True, slots=True)
class Trace:
    """What is told of one message that was sent."""

    text: str
    keys: tuple[str, ...]


def trace_of(context: SendContext, number: int, *, sent_ms: int) -> Trace:
    """Return the trace of one message of an attempt that got a receipt. Pure."""
    message, receipt = context.messages[number], context.receipts[number]
    keys = message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)
    waits = message.delay_level or message.deliver_at is not None or message.deliver_after is not None
    fields = [
        "Pub",
        sent_ms,
        receipt.region,
        context.group,
        context.queue.topic,
        receipt.message_id,
        message.tags or "",
        keys,
        context.broker_address,
        len(message.body),
        round(context.elapsed_ms),
        DELAYED if waits else NORMAL,
        receipt.offset_message_id,
        "true" if receipt.is_ok else "false",
    ]
    text = NAME_VALUE_SEPARATOR.join(map(str, fields)) + PROPERTY_SEPARATOR
    return Trace(text, (receipt.message_id, *keys.split()))


def trace_messages(traces: Iterable[Trace], topic: str) -> list[Message]:
    """Return as few messages as tell these traces. Pure."""
    messages: list[Message] = []
    texts: list[str] = []
    keys: dict[str, None] = {}

    def close() -> None:
        if texts:
            messages.append(Message(topic, "".join(texts).encode(), keys=tuple(keys)))
            texts.clear()
            keys.clear()

    text_chars = keys_chars = 0
    for trace in traces:
        own_keys_chars = sum(len(key) + 1 for key in trace.keys)
        if text_chars + len(trace.text) > TEXT_CHARS_MAX or keys_chars + own_keys_chars > KEYS_CHARS_MAX:
            close()
            text_chars = keys_chars = 0
        texts.append(trace.text)
        keys.update(dict.fromkeys(trace.keys))
        text_chars += len(trace.text)
        keys_chars += own_keys_chars
    close()
    return messages


class TraceHook(SendHook):
    """Tells of every send that got a receipt, ten at a time or after `flush_ms`.

    What cannot be told is lost and counted, as a trace must not hold up what it tells of. Any thread may
    send; the traces are sent on the session's loop.
    """

    def __init__(
        self, session: Session, group: str, settings: ProducerSettings, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._topic = settings.trace_topic
        self._flush_ms = settings.trace_flush_ms
        own = replace(
            settings,
            trace=False,
            batching=False,
            send_timeout_ms=SEND_TIMEOUT_MS,
            compress_from_bytes=1 << 30,
        )
        self._sender = Sender(session, TRACE_GROUP.format(group=group), own)
        self._waiting: deque[Trace] = deque()
        self._flushed_ms = self._clock.monotonic() * 1000
        self._tasks = Tasks()
        self.lost = 0
        self._tasks.every(min(CHECK_INTERVAL_MS, self._flush_ms), self._check, "trace")

    def after(self, context: SendContext) -> None:
        if context.queue.topic == self._topic:
            return
        sent_ms = self._clock.now_ms() - round(context.elapsed_ms)
        for number, receipt in enumerate(context.receipts):
            if not receipt.is_traced:
                continue
            if len(self._waiting) >= WAITING_MAX:
                self.lost += 1
            else:
                self._waiting.append(trace_of(context, number, sent_ms=sent_ms))

    async def _check(self) -> None:
        now_ms = self._clock.monotonic() * 1000
        if len(self._waiting) >= BATCH or (self._waiting and now_ms - self._flushed_ms >= self._flush_ms):
            await self.flush()

    async def flush(self) -> None:
        """Tell what waits."""
        self._flushed_ms = self._clock.monotonic() * 1000
        traces: Sequence[Trace] = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for message in trace_messages(traces, self._topic):
            try:
                await (await self._sender.send((self._sender.preparation.prepare(message),)))
            except RocketMQError as error:
                self.lost += len(traces)
                log.warning("trace was not sent topic=%s error=%s", self._topic, error)

    async def close(self, timeout_s: float) -> None:
        """Tell what waits, and end."""
        await self._tasks.close()
        await self.flush()
        if self.lost:
            log.warning("traces were lost count=%d", self.lost)
        await self._sender.close(timeout_s)
