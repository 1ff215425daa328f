"""Message trace: sends and consumptions are recorded in a trace topic, asynchronously and best effort."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator

from skylark.client import trace_records
from skylark.client.consumer.listeners import ConsumeContext, ConsumeOutcome, Handler, Messages
from skylark.client.producer.async_sender import AsyncSender, unique_ids
from skylark.client.producer.send_hooks import SendContext, SendHook
from skylark.client.received_message import ReceivedMessage
from skylark.client.session.session import Session
from skylark.client.trace_records import Trace
from skylark.clock import Clock, SystemClock
from skylark.errors import RocketMQError
from skylark.model.message import Message
from skylark.settings.client import ProducerSettings, PushConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

TRACE_GROUP = "_INNER_TRACE_PRODUCER-{group}-{kind}"
QUEUE_MAX = 16_384
"""Traces of a burst that wait: a few megabytes. Two are written for each consumed message."""
BATCH = 10
CHECK_INTERVAL_MS = 50
SENDING = ProducerSettings(send_timeout_ms=5000, compress_from_bytes=1 << 30)


class TraceQueue:
    """Queue of traces, sent once there are ten or after `flush_ms`, on the session's loop.

    Traces that cannot be sent are lost and counted.
    """

    def __init__(self, session: Session, group: str, topic: str, flush_ms: int) -> None:
        self.topic = topic
        self._flush_ms = flush_ms
        self._sender = AsyncSender(session, group, SENDING)
        self._traces: deque[Trace] = deque()
        self._flushed_at = time.monotonic()
        self._tasks = Tasks()
        self._lost = 0
        self._lost_lock = threading.Lock()
        self._is_failing = False
        self._flushing = asyncio.Lock()
        self._tasks.every(min(CHECK_INTERVAL_MS, flush_ms), self._check, "trace")

    def put(self, trace: Trace) -> None:
        """Add a trace if there is room. Any thread may call it."""
        if len(self._traces) < QUEUE_MAX:
            self._traces.append(trace)
        else:
            self._lose(1)

    def _lose(self, count: int) -> None:
        with self._lost_lock:
            self._lost += count

    async def _check(self) -> None:
        is_due = (time.monotonic() - self._flushed_at) * 1000 >= self._flush_ms
        if len(self._traces) >= BATCH or (self._traces and is_due):
            await self._flush()

    async def _flush(self) -> None:
        async with self._flushing:
            self._flushed_at = time.monotonic()
            traces = [self._traces.popleft() for _ in range(len(self._traces))]
            self._lose(len(traces))  # until a broker has stored them
            messages = list(trace_records.gathered(traces, self.topic))
            # Together: one after the other, the replies of a busy broker would let the queue overflow.
            failures = await asyncio.gather(*(self._send(message) for message, _ in messages))
            for (_, count), failure in zip(messages, failures, strict=True):
                if failure is None:
                    self._lose(-count)
            await self._note(next(filter(None, failures), None))

    async def _send(self, message: Message) -> RocketMQError | None:
        try:
            await (await self._sender.send(self._sender.encoder.encode(message)))
        except RocketMQError as error:
            return error
        return None

    async def _note(self, failure: RocketMQError | None) -> None:
        """Log the first failure of an outage, and look the topic's route up again."""
        if failure is not None:
            if not self._is_failing:
                log.warning("traces are lost, send failed topic=%s error=%s", self.topic, failure)
            await self._sender.refresh(self.topic)  # the session refreshes only topics of its members
        self._is_failing = failure is not None

    async def close(self, timeout_s: float) -> None:
        """Send the queued traces within a time limit, and close."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._flush()  # after a flush in progress
        except TimeoutError:
            log.warning("traces were not sent in time topic=%s", self.topic)
        finally:
            await self._tasks.close()
            if self._lost:
                log.warning("traces were lost count=%d", self._lost)
            await self._sender.close(0)


class TraceHook(SendHook):
    """Traces every send that got a receipt. Any thread may send."""

    def __init__(
        self, session: Session, group: str, settings: ProducerSettings, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        trace_group = TRACE_GROUP.format(group=group, kind="PRODUCE")
        self.queue = TraceQueue(session, trace_group, settings.trace_topic, settings.trace_flush_ms)

    def after(self, context: SendContext) -> None:
        if context.queue.topic == self.queue.topic:
            return
        sent_ms = self._clock.now_ms() - round(context.elapsed_ms)
        for number, receipt in enumerate(context.receipts):
            if receipt.is_traced:
                self.queue.put(trace_records.sent(context, number, sent_ms=sent_ms))


class ConsumeTrace:
    """Calls listeners and traces their messages before and after the call. Any thread may call.

    Replaces `Handler.run` and `Handler.run_async`, and raises no other errors.
    """

    def __init__(
        self, session: Session, group: str, settings: PushConsumerSettings, *, clock: Clock | None = None
    ) -> None:
        self._group = group
        self._clock = clock or SystemClock()
        self._consume_timeout_ms = settings.consume_timeout_ms
        self._orderly = settings.orderly
        self._next_id = unique_ids().next
        trace_group = TRACE_GROUP.format(group=group, kind="CONSUME")
        self.queue = TraceQueue(session, trace_group, settings.trace_topic, settings.trace_flush_ms)

    def run(
        self, handler: Handler, messages: Messages, context: ConsumeContext, loop: asyncio.AbstractEventLoop
    ) -> ConsumeOutcome:
        call_id, began = self._begin(messages)
        outcome = handler.run(messages, context, loop)
        self._record(self._after(messages, call_id, (time.monotonic() - began) * 1000, outcome))
        return outcome

    async def run_async(
        self, handler: Handler, messages: Messages, context: ConsumeContext
    ) -> ConsumeOutcome:
        call_id, began = self._begin(messages)
        outcome = await handler.run_async(messages, context)
        self._record(self._after(messages, call_id, (time.monotonic() - began) * 1000, outcome))
        return outcome

    def _begin(self, messages: Messages) -> tuple[str, float]:
        """Trace the start of a call; return its id and start time."""
        call_id = self._next_id(self._clock.now_ms())
        self._record(self._before(messages, call_id))
        return call_id, time.monotonic()

    def _record(self, traces: Iterable[Trace]) -> None:
        try:
            for trace in traces:
                self.queue.put(trace)
        except Exception:  # listeners may modify their messages
            log.exception("consumption was not traced group=%s", self._group)

    def _before(self, messages: Messages, call_id: str) -> Iterator[Trace]:
        now_ms = self._clock.now_ms()
        for _, message in self._traced(messages):
            yield trace_records.delivered(message, self._group, call_id, now_ms=now_ms)

    def _after(
        self, messages: Messages, call_id: str, call_ms: float, outcome: ConsumeOutcome
    ) -> Iterator[Trace]:
        now_ms = self._clock.now_ms()
        share_ms = round(call_ms / len(messages))
        done = outcome.done
        if self._orderly:  # orderly batches are retried as a whole
            done = 0 if outcome.failed else len(messages)
        for number, message in self._traced(messages):
            is_ok = number < done
            code = trace_records.context_code(
                outcome, is_ok=is_ok, took_too_long=call_ms >= self._consume_timeout_ms
            )
            yield trace_records.consumed(
                message, self._group, call_id, now_ms=now_ms, took_ms=share_ms, is_ok=is_ok, context_code=code
            )

    def _traced(self, messages: Messages) -> Iterator[tuple[int, ReceivedMessage]]:
        """Yield the messages to trace with their index; messages of the trace topic are not traced."""
        if messages[0].topic != self.queue.topic:
            yield from (each for each in enumerate(messages) if trace_records.is_traced(each[1]))
