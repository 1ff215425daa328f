"""Orderly consumption: the messages of a queue one after the other, under a lock that its broker gives.

A worker gets a stretch of one queue at a time, runs through it as long as its time slice lasts, and comes
back with how far it got: neither does each message cost a way to the loop, nor does one queue keep a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from skylark.client.consumer.consumption import Consumption, ConsumptionParts
from skylark.client.consumer.listeners import ConsumeContext, ConsumeOutcome, ConsumeVerdict, Handler
from skylark.client.consumer.process_queue import NOTHING_HELD, ProcessQueue
from skylark.client.consumer.queue_locks import OrderlyLocks
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import MessageQueue

log = logging.getLogger(__name__)

STRETCH_MESSAGES = 256
SLICE_S = 0.05
LOCK_DELAY_MS = 100
RESUBMIT_DELAY_MS = 10
SUSPEND_MIN_MS, SUSPEND_MAX_MS = 10, 30_000


class OrderlyJob(NamedTuple):
    """The next messages of a queue, cut into batches."""

    process_queue: ProcessQueue
    batches: list[tuple[ReceivedMessage, ...]]
    handler: Handler


class OrderlyResult(NamedTuple):
    """How far a worker got: batches done, and what ended it before the end of the stretch or slice."""

    stretch: OrderlyJob
    batches_done: int
    outcome: ConsumeOutcome | None
    context: ConsumeContext
    took_ms: float


class OrderlyConsumption(Consumption[OrderlyJob, OrderlyResult]):
    """Runs listeners for all queues of a consumer, each queue in order. Loop thread, but for the listeners.

    `locks` is None for broadcasting, where every member has all queues and nobody else interferes.
    """

    def __init__(self, parts: ConsumptionParts, locks: OrderlyLocks | None) -> None:
        super().__init__(parts)
        self._locks = locks
        # A queue that comes back while a listener still has messages of its former life must wait for that.
        self._running: dict[MessageQueue, asyncio.Event] = {}

    # --- Handing out ---

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Work on a queue that got messages and that nobody works on."""
        self._go_on(process_queue)

    def _go_on(self, process_queue: ProcessQueue) -> None:
        if process_queue.dropped:
            return
        if process_queue.queue in self._running:
            self._later(RESUBMIT_DELAY_MS, process_queue)
            return
        if self._locks is not None and not self._is_locked(process_queue):
            self._tasks.spawn(self._lock_and_go_on(process_queue), "lock queue")
            return
        messages = process_queue.take(STRETCH_MESSAGES)
        if not messages:
            return
        stretch, rest = self._cut(process_queue, messages)
        process_queue.take_back(rest)
        self._running[process_queue.queue] = asyncio.Event()
        workers = self._coroutines if stretch.handler.is_async else self.threads
        workers.submit([stretch])

    def _cut(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage]
    ) -> tuple[OrderlyJob, list[ReceivedMessage]]:
        """Cut off the messages at the front that have one listener; the others stay."""
        topic, size = messages[0].topic, self._settings.batch_max
        count = next((n for n, message in enumerate(messages) if message.topic != topic), len(messages))
        batches = [tuple(messages[start : min(start + size, count)]) for start in range(0, count, size)]
        return OrderlyJob(process_queue, batches, self._listeners.get(topic)), messages[count:]

    def _later(self, delay_ms: float, process_queue: ProcessQueue) -> None:
        self._loop.call_later(delay_ms / 1000, self._go_on, process_queue)

    def _is_locked(self, process_queue: ProcessQueue) -> bool:
        expiry_s = self._settings.lock_expiry_ms / 1000
        return process_queue.locked and not process_queue.is_lock_expired(time.monotonic(), expiry_s)

    async def _lock_and_go_on(self, process_queue: ProcessQueue) -> None:
        assert self._locks is not None
        await asyncio.sleep(min(LOCK_DELAY_MS, self._settings.lock_failure_delay_ms) / 1000)
        if process_queue.dropped:
            return
        await self._locks.renew([process_queue], time.monotonic())
        delay_ms = RESUBMIT_DELAY_MS if process_queue.locked else self._settings.lock_failure_delay_ms
        self._later(delay_ms, process_queue)

    async def wait_until_free(self, queue: MessageQueue, wait_ms: float) -> bool:
        """Wait until no listener has messages of a queue, for so long at most; False if one still has."""
        running = self._running.get(queue)
        if running is None:
            return True
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await running.wait()
        except TimeoutError:
            return False
        return True

    # --- In a thread, or a task ---

    def _run(self, stretch: OrderlyJob) -> OrderlyResult:
        started = time.monotonic()
        process_queue, done = stretch.process_queue, 0
        context = ConsumeContext(process_queue.queue, self._group)
        for batch in stretch.batches:
            if process_queue.dropped or (done and time.monotonic() - started > SLICE_S):
                break
            context = ConsumeContext(process_queue.queue, self._group)
            outcome = self._call(stretch.handler, batch, context, self._loop)
            if _ends_stretch(outcome, context):
                return OrderlyResult(stretch, done, outcome, context, _ms_since(started))
            done += 1
        return OrderlyResult(stretch, done, None, context, _ms_since(started))

    async def _run_async(self, stretch: OrderlyJob) -> OrderlyResult:
        started = time.monotonic()
        process_queue, done = stretch.process_queue, 0
        context = ConsumeContext(process_queue.queue, self._group)
        for batch in stretch.batches:
            if process_queue.dropped or (done and time.monotonic() - started > SLICE_S):
                break
            context = ConsumeContext(process_queue.queue, self._group)
            outcome = await self._call_async(stretch.handler, batch, context)
            if _ends_stretch(outcome, context):
                return OrderlyResult(stretch, done, outcome, context, _ms_since(started))
            done += 1
        return OrderlyResult(stretch, done, None, context, _ms_since(started))

    # --- Results ---

    def _deliver(self, results: list[OrderlyResult]) -> None:
        for ran in results:
            process_queue = ran.stretch.process_queue
            process_queue.last_consume_at = time.monotonic()
            if process_queue.dropped:
                self._free(process_queue.queue)
                log.warning(
                    "queue was given up meanwhile, its result is ignored queue=%s", process_queue.queue
                )
            elif ran.outcome is None:
                self._count(ran, failed=0)
                _put_back(ran, ran.batches_done)
                self._commit(process_queue)
                self._free(process_queue.queue)
                self._go_on(process_queue)
            else:
                self._tasks.spawn(self._settle(ran, ran.outcome), "settle orderly batch")

    def _free(self, queue: MessageQueue) -> None:
        running = self._running.pop(queue, None)
        if running is not None:
            running.set()

    def _count(self, ran: OrderlyResult, *, failed: int) -> None:
        ok = sum(map(len, ran.stretch.batches[: ran.batches_done]))
        topic = ran.stretch.batches[0][0].topic
        runs = ran.batches_done + (ran.outcome is not None)
        self._stats.ran(topic, ok, failed, runs, ran.took_ms, time.monotonic())

    def _commit(self, process_queue: ProcessQueue) -> None:
        committable = process_queue.commit()
        if committable != NOTHING_HELD and not process_queue.dropped:
            self._offsets.update(process_queue.queue, committable, increase_only=False)
        self._made_room(process_queue)

    async def _settle(self, ran: OrderlyResult, outcome: ConsumeOutcome) -> None:
        """Deal with a batch that ended its stretch: a failure, or a listener that commits itself."""
        process_queue, context = ran.stretch.process_queue, ran.context
        batch = ran.stretch.batches[ran.batches_done]
        self._count(ran, failed=len(batch) if outcome.failed else 0)
        _put_back(ran, ran.batches_done + 1)
        suspended = False
        try:
            if context.auto_commit:
                if outcome.verdict in (ConsumeVerdict.COMMIT, ConsumeVerdict.ROLLBACK):
                    ran.stretch.handler.warn_of_commit(outcome.verdict)
                elif outcome.failed:
                    suspended = await self._is_retried(batch)
                    process_queue.take_back(batch if suspended else ())
                self._commit(process_queue)
            elif outcome.verdict is ConsumeVerdict.COMMIT:
                self._commit(process_queue)
            elif outcome.verdict is ConsumeVerdict.ROLLBACK:
                process_queue.rollback()
                suspended = True
            elif outcome.failed and await self._is_retried(batch):
                process_queue.take_back(batch)
                suspended = True
        finally:
            self._free(process_queue.queue)
        if suspended:
            rest_ms = self._settings.suspend_ms if context.suspend_ms < 0 else context.suspend_ms
            self._later(max(SUSPEND_MIN_MS, min(rest_ms, SUSPEND_MAX_MS)), process_queue)
        else:
            self._go_on(process_queue)

    async def _is_retried(self, batch: Iterable[ReceivedMessage]) -> bool:
        """Count a failure; True if any message is tried again here, False if all became dead letters."""
        again = False
        for message in batch:
            if message.reconsume_times >= self._settings.attempts_max and self._send_back is not None:
                if await self._send_back.send_to_retry_topic(message):
                    continue
            message.reconsume_times += 1
            again = True
        return again


def _ends_stretch(outcome: ConsumeOutcome, context: ConsumeContext) -> bool:
    return outcome.verdict is not ConsumeVerdict.SUCCESS or not context.auto_commit


def _put_back(ran: OrderlyResult, batches: int) -> None:
    """Put back what the worker did not come to."""
    ran.stretch.process_queue.take_back(chain.from_iterable(ran.stretch.batches[batches:]))


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000
