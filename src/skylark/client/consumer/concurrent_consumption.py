"""Concurrent consumption: batches run in parallel; failed messages are sent back to the broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from skylark.client.consumer.consumption import Consumption, ConsumptionParts
from skylark.client.consumer.listeners import ConsumeContext, ConsumeOutcome, Handler
from skylark.client.consumer.process_queue import NOTHING_HELD, ProcessQueue
from skylark.client.received_message import PulledMessages, ReceivedMessage
from skylark.model.message import RETRY_TOPIC_PREFIX

log = logging.getLogger(__name__)

SEND_BACKS_MAX = 64
"""Concurrent send-backs; further messages wait."""
EXPIRED_LEVEL = 3


class ConcurrentJob(NamedTuple):
    """A batch for a listener."""

    process_queue: ProcessQueue
    messages: Sequence[ReceivedMessage]
    topic: str
    handler: Handler


class ConcurrentResult(NamedTuple):
    """The result of a batch. Without an outcome the listener was not called: the queue had been released."""

    job: ConcurrentJob
    outcome: ConsumeOutcome | None
    delay_level: int
    took_ms: float


class ConcurrentConsumption(Consumption[ConcurrentJob, ConcurrentResult]):
    """Runs batches of all queues in parallel. Loop thread, except for the listeners."""

    def __init__(self, parts: ConsumptionParts) -> None:
        super().__init__(parts)
        self._sending_back = asyncio.Semaphore(SEND_BACKS_MAX)

    # --- Jobs ---

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Submit messages of one queue to their listeners, in batches."""
        jobs = list(self._jobs(process_queue, messages))
        blocking = [job for job in jobs if not job.handler.is_async]
        self.threads.submit(blocking)
        if len(blocking) < len(jobs):
            self._coroutines.submit(job for job in jobs if job.handler.is_async)

    def _jobs(
        self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]
    ) -> Iterator[ConcurrentJob]:
        size = self._settings.batch_max
        runs: Iterable[Sequence[ReceivedMessage]] = [messages]
        if process_queue.queue.topic.startswith(RETRY_TOPIC_PREFIX):
            # A retry topic holds messages of several topics, with different listeners.
            runs = (list(of_topic) for _, of_topic in groupby(messages, _topic_of))
        for run in runs:
            topic = run.topic if isinstance(run, PulledMessages) else run[0].topic
            handler = self._listeners.get(topic)
            if isinstance(run, PulledMessages) and len(run) <= size:
                yield ConcurrentJob(process_queue, run, topic, handler)
                continue
            for start in range(0, len(run), size):
                yield ConcurrentJob(process_queue, tuple(run[start : start + size]), topic, handler)

    # --- In a thread, or a task ---

    def _run(self, job: ConcurrentJob) -> ConcurrentResult:
        if job.process_queue.dropped:
            return ConcurrentResult(job, None, 0, 0.0)
        context = ConsumeContext(job.process_queue.queue, self._group)
        started = _start(job)
        outcome = self._call(job.handler, job.messages, context, self._loop)
        return ConcurrentResult(job, outcome, context.delay_level, (time.monotonic() - started) * 1000)

    async def _run_async(self, job: ConcurrentJob) -> ConcurrentResult:
        if job.process_queue.dropped:
            return ConcurrentResult(job, None, 0, 0.0)
        context = ConsumeContext(job.process_queue.queue, self._group)
        started = _start(job)
        outcome = await self._call_async(job.handler, job.messages, context)
        return ConcurrentResult(job, outcome, context.delay_level, (time.monotonic() - started) * 1000)

    # --- Results ---

    def _deliver(self, results: list[ConcurrentResult]) -> None:
        now = time.monotonic()
        finished: dict[ProcessQueue, list[Sequence[ReceivedMessage]]] = {}
        sums: dict[str, list[float]] = {}
        for done in results:
            job, outcome = done.job, done.outcome
            if outcome is None:
                continue
            process_queue = job.process_queue
            process_queue.last_consume_at = now
            size = len(job.messages)
            total = sums.get(job.topic)
            if total is None:
                total = sums[job.topic] = [0, 0, 0, 0.0]
            total[0] += outcome.done
            total[1] += size - outcome.done
            total[2] += 1
            total[3] += done.took_ms
            if process_queue.dropped:
                log.warning(
                    "queue was released, result ignored queue=%s offset=%d count=%d",
                    process_queue.queue, job.messages[0].queue_offset, size,
                )  # fmt: skip
            elif outcome.done == size:
                if process_queue not in finished:
                    finished[process_queue] = []
                finished[process_queue].append(job.messages)
            else:
                self._failed(done, outcome)
        for process_queue, batches in finished.items():
            self._finish(process_queue, *batches)
        for topic, (ok, failed, runs, took_ms) in sums.items():
            self._stats.ran(topic, int(ok), int(failed), int(runs), took_ms, now)

    def _finish(self, process_queue: ProcessQueue, *batches: Iterable[ReceivedMessage]) -> None:
        """Remove finished messages and update the queue's offset."""
        committable = process_queue.remove(*batches)
        if committable != NOTHING_HELD and not process_queue.dropped:
            self._offsets.update(process_queue.queue, committable, increase_only=True)
        self._made_room(process_queue)

    def _failed(self, done: ConcurrentResult, outcome: ConsumeOutcome) -> None:
        job = done.job
        if self._send_back is None:
            for message in job.messages[outcome.done :]:
                log.warning("broadcast message failed and is dropped message=%r", message)
            self._finish(job.process_queue, job.messages)
            return
        self._tasks.spawn(self._send_back_rest(job, outcome.done, done.delay_level), "send back")

    async def _send_back_rest(self, job: ConcurrentJob, done: int, delay_level: int) -> None:
        """Send back the rest of a batch; retry locally what could not be sent back."""
        assert self._send_back is not None
        process_queue = job.process_queue
        finished = list(job.messages[:done])
        again: list[ReceivedMessage] = []
        for message in job.messages[done:]:
            if not process_queue.holds(message):  # expired and sent back already
                continue
            async with self._sending_back:
                taken = await self._send_back.send_back(message, delay_level)
            if taken:
                finished.append(message)
            else:
                message.reconsume_times += 1
                again.append(message)
        self._finish(process_queue, finished)
        if again:
            self._loop.call_later(self._settings.local_retry_ms / 1000, self.submit, process_queue, again)

    # --- Expiry ---

    async def clean_expired(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Send back messages that exceed the consume timeout: a stuck message must not block its queue."""
        if self._send_back is None:
            return
        before = time.monotonic() - self._settings.consume_timeout_ms / 1000
        for process_queue in list(process_queues):
            for message in process_queue.take_expired(before):
                if not await self._send_back.send_back(message, EXPIRED_LEVEL):
                    break
                if process_queue.holds(message):
                    log.warning("message exceeded consume_timeout_ms and was sent back message=%r", message)
                    self._finish(process_queue, [message])


def _topic_of(message: ReceivedMessage) -> str:
    return message.topic


def _start(job: ConcurrentJob) -> float:
    now = time.monotonic()
    if isinstance(job.messages, PulledMessages):
        job.messages.start(now)
    else:
        for message in job.messages:
            message.started_at = now
    return now
