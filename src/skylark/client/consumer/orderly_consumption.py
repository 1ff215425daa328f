"""Orderly consumption: the messages of a queue in order, under a lock from its broker.

A worker gets many messages of one queue at a time, processes them until its time slice ends, and returns how
far it got: there is no loop hop per message, and no queue occupies a thread forever.
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
from skylark.client.received_message import ReceivedMessage
from skylark.client.session.session import Session
from skylark.errors import RocketMQError
from skylark.protocol.bodies import LockRequest, MessageQueue
from skylark.protocol.requests.client import LockBatchMq, UnlockBatchMq

log = logging.getLogger(__name__)

JOB_MESSAGES = 256
SLICE_S = 0.05
LOCK_DELAY_MS = 100
RESUBMIT_DELAY_MS = 10
SUSPEND_MIN_MS, SUSPEND_MAX_MS = 10, 30_000


class OrderlyLocks:
    """Queue locks of one group member. Loop thread; failures are logged and mean not locked."""

    def __init__(self, session: Session, group: str, timeout_ms: int) -> None:
        self._session = session
        self._group = group
        self._timeout_ms = timeout_ms

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock or renew queues; return the locked ones. Brokers expire locks after a minute."""
        answers = await asyncio.gather(
            *(self._lock_at(broker, of_broker) for broker, of_broker in _by_broker(queues).items())
        )
        return set().union(*answers)

    async def _lock_at(self, broker: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        try:
            address = self._session.routes.master(broker)
            locked = await self._session.call(
                address, LockBatchMq(self._request(queues)), timeout_ms=self._timeout_ms
            )
        except RocketMQError as error:
            log.warning("queues not locked broker=%s count=%d error=%s", broker, len(queues), error)
            return set()
        return set(locked.queues) & set(queues)

    async def renew(self, process_queues: Iterable[ProcessQueue], now: float) -> None:
        """Renew the locks of all held queues and update their `locked`."""
        held = {held.queue: held for held in process_queues if not held.dropped}
        locked = await self.lock(held)
        for queue, process_queue in held.items():
            process_queue.locked = queue in locked
            if process_queue.locked:
                process_queue.last_lock_at = now

    async def unlock(self, queue: MessageQueue) -> None:
        """Unlock one queue without waiting for the reply."""
        try:
            address = self._session.routes.master(queue.broker_name)
            await self._session.notify(address, UnlockBatchMq(self._request([queue])))
        except RocketMQError as error:
            log.warning("queue not unlocked queue=%s error=%s", queue, error)

    async def unlock_all(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues and wait for the replies."""
        for broker, of_broker in _by_broker(queues).items():
            try:
                address = self._session.routes.master(broker)
                await self._session.call(
                    address, UnlockBatchMq(self._request(of_broker)), timeout_ms=self._timeout_ms
                )
            except RocketMQError as error:
                log.warning("queues not unlocked broker=%s error=%s", broker, error)

    def _request(self, queues: list[MessageQueue]) -> LockRequest:
        return LockRequest(self._session.client_id, self._group, queues)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    brokers: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        brokers.setdefault(queue.broker_name, []).append(queue)
    return brokers


class OrderlyJob(NamedTuple):
    """The next messages of a queue, in batches."""

    process_queue: ProcessQueue
    batches: list[tuple[ReceivedMessage, ...]]
    handler: Handler


class OrderlyResult(NamedTuple):
    """How far a worker got: finished batches, and the outcome that ended the job early, if any."""

    job: OrderlyJob
    batches_done: int
    outcome: ConsumeOutcome | None
    context: ConsumeContext
    took_ms: float


class OrderlyConsumption(Consumption[OrderlyJob, OrderlyResult]):
    """Runs listeners for all queues of a consumer, each queue in order. Loop thread, except for the
    listeners.

    `locks` is None for broadcasting, where every member consumes all queues.
    """

    def __init__(self, parts: ConsumptionParts, locks: OrderlyLocks | None) -> None:
        super().__init__(parts)
        self._locks = locks
        # A queue that is taken again must wait for a listener that still has messages from before its
        # release.
        self._running: dict[MessageQueue, asyncio.Event] = {}

    # --- Jobs ---

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Start to consume a queue that is not being consumed."""
        self._resume(process_queue)

    def _resume(self, process_queue: ProcessQueue) -> None:
        if process_queue.dropped:
            return
        if process_queue.queue in self._running:
            self._resume_later(RESUBMIT_DELAY_MS, process_queue)
            return
        if self._locks is not None and not self._is_locked(process_queue):
            self._tasks.spawn(self._lock_and_resume(process_queue), "lock queue")
            return
        messages = process_queue.take(JOB_MESSAGES)
        if not messages:
            return
        job, rest = self._cut(process_queue, messages)
        process_queue.take_back(rest)
        self._running[process_queue.queue] = asyncio.Event()
        workers = self._coroutines if job.handler.is_async else self.threads
        workers.submit([job])

    def _cut(
        self, process_queue: ProcessQueue, messages: list[ReceivedMessage]
    ) -> tuple[OrderlyJob, list[ReceivedMessage]]:
        """Return a job of the first messages with the same listener, and the rest."""
        topic, size = messages[0].topic, self._settings.batch_max
        count = next((n for n, message in enumerate(messages) if message.topic != topic), len(messages))
        batches = [tuple(messages[start : min(start + size, count)]) for start in range(0, count, size)]
        return OrderlyJob(process_queue, batches, self._listeners.get(topic)), messages[count:]

    def _resume_later(self, delay_ms: float, process_queue: ProcessQueue) -> None:
        self._loop.call_later(delay_ms / 1000, self._resume, process_queue)

    def _is_locked(self, process_queue: ProcessQueue) -> bool:
        expiry_s = self._settings.lock_expiry_ms / 1000
        return process_queue.locked and not process_queue.is_lock_expired(time.monotonic(), expiry_s)

    async def _lock_and_resume(self, process_queue: ProcessQueue) -> None:
        assert self._locks is not None
        await asyncio.sleep(min(LOCK_DELAY_MS, self._settings.lock_failure_delay_ms) / 1000)
        if process_queue.dropped:
            return
        await self._locks.renew([process_queue], time.monotonic())
        delay_ms = RESUBMIT_DELAY_MS if process_queue.locked else self._settings.lock_failure_delay_ms
        self._resume_later(delay_ms, process_queue)

    async def wait_until_free(self, queue: MessageQueue, wait_ms: float) -> bool:
        """Wait until no listener has messages of a queue; False if one still has after `wait_ms`."""
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

    def _run(self, job: OrderlyJob) -> OrderlyResult:
        started = time.monotonic()
        process_queue, done = job.process_queue, 0
        context = ConsumeContext(process_queue.queue, self._group)
        for batch in job.batches:
            if process_queue.dropped or (done and time.monotonic() - started > SLICE_S):
                break
            context = ConsumeContext(process_queue.queue, self._group)
            outcome = self._call(job.handler, batch, context, self._loop)
            if _ends_job(outcome, context):
                return OrderlyResult(job, done, outcome, context, _ms_since(started))
            done += 1
        return OrderlyResult(job, done, None, context, _ms_since(started))

    async def _run_async(self, job: OrderlyJob) -> OrderlyResult:
        started = time.monotonic()
        process_queue, done = job.process_queue, 0
        context = ConsumeContext(process_queue.queue, self._group)
        for batch in job.batches:
            if process_queue.dropped or (done and time.monotonic() - started > SLICE_S):
                break
            context = ConsumeContext(process_queue.queue, self._group)
            outcome = await self._call_async(job.handler, batch, context)
            if _ends_job(outcome, context):
                return OrderlyResult(job, done, outcome, context, _ms_since(started))
            done += 1
        return OrderlyResult(job, done, None, context, _ms_since(started))

    # --- Results ---

    def _deliver(self, results: list[OrderlyResult]) -> None:
        for result in results:
            process_queue = result.job.process_queue
            process_queue.last_consume_at = time.monotonic()
            if process_queue.dropped:
                self._free(process_queue.queue)
                log.warning("queue was released, result ignored queue=%s", process_queue.queue)
            elif result.outcome is None:
                self._count(result, failed=0)
                _put_back(result, result.batches_done)
                self._commit(process_queue)
                self._free(process_queue.queue)
                self._resume(process_queue)
            else:
                self._tasks.spawn(self._settle(result, result.outcome), "settle orderly batch")

    def _free(self, queue: MessageQueue) -> None:
        running = self._running.pop(queue, None)
        if running is not None:
            running.set()

    def _count(self, result: OrderlyResult, *, failed: int) -> None:
        ok = sum(map(len, result.job.batches[: result.batches_done]))
        topic = result.job.batches[0][0].topic
        runs = result.batches_done + (result.outcome is not None)
        self._stats.ran(topic, ok, failed, runs, result.took_ms, time.monotonic())

    def _commit(self, process_queue: ProcessQueue) -> None:
        committable = process_queue.commit()
        if committable != NOTHING_HELD and not process_queue.dropped:
            self._offsets.update(process_queue.queue, committable, increase_only=False)
        self._made_room(process_queue)

    async def _settle(self, result: OrderlyResult, outcome: ConsumeOutcome) -> None:
        """Process a batch that ended its job: a failure, or a listener without auto-commit."""
        process_queue, context = result.job.process_queue, result.context
        batch = result.job.batches[result.batches_done]
        self._count(result, failed=len(batch) if outcome.failed else 0)
        _put_back(result, result.batches_done + 1)
        suspended = False
        try:
            if context.auto_commit:
                if outcome.verdict in (ConsumeVerdict.COMMIT, ConsumeVerdict.ROLLBACK):
                    result.job.handler.warn_of_commit(outcome.verdict)
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
            self._resume_later(max(SUSPEND_MIN_MS, min(rest_ms, SUSPEND_MAX_MS)), process_queue)
        else:
            self._resume(process_queue)

    async def _is_retried(self, batch: Iterable[ReceivedMessage]) -> bool:
        """Count a failure; return whether any message is retried here, False if all are dead letters."""
        again = False
        for message in batch:
            if message.reconsume_times >= self._settings.attempts_max and self._send_back is not None:
                if await self._send_back.send_to_retry_topic(message):
                    continue
            message.reconsume_times += 1
            again = True
        return again


def _ends_job(outcome: ConsumeOutcome, context: ConsumeContext) -> bool:
    return outcome.verdict is not ConsumeVerdict.SUCCESS or not context.auto_commit


def _put_back(result: OrderlyResult, batches: int) -> None:
    """Put back the batches that were not processed."""
    result.job.process_queue.take_back(chain.from_iterable(result.job.batches[batches:]))


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000
