"""Consumption: runs listeners in worker threads (functions) or tasks (coroutine functions).

There is neither a task nor a loop hop per job: workers take jobs from one queue, and results are collected
until the loop takes them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from skylark.client.consumer.consume_rates import ConsumeRates
from skylark.client.consumer.listeners import Handler, Listeners
from skylark.client.consumer.offset_store import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.send_back import SendBack
from skylark.client.message_trace import ConsumeTrace
from skylark.client.received_message import ReceivedMessage
from skylark.settings.client import PushConsumerSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

J = TypeVar("J")
R = TypeVar("R")

GROW_CHECK_S = 0.005
BUSY_SHARE = 0.8
"""Share of one processor above which more threads do not help."""
LOOP_SHARE_S = 0.01
"""How long coroutines that never wait may keep the loop."""


_worker_thread = threading.local()


def is_worker_thread() -> bool:
    """Return whether this thread runs listeners: it must not wait for its own consumer to stop."""
    return getattr(_worker_thread, "is_one", False)


class ThreadWorkers(Generic[J, R]):
    """A queue of jobs and the threads that run them.

    It starts with one thread and adds more while jobs wait and the processor is idle. `run` is called in a
    thread and must not raise; `deliver` gets results on the loop, several at a time.
    """

    def __init__(
        self, run: Callable[[J], R], deliver: Callable[[list[R]], None], *, threads_max: int, name: str
    ) -> None:
        self._run = run
        self._deliver = deliver
        self._threads_max = threads_max
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[J | None] = SimpleQueue()
        self._results: deque[R] = deque()
        self._crossing = False  # the loop is scheduled to take results
        self._threads: list[threading.Thread] = []
        self._undelivered = 0
        self._delivered = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._check: asyncio.TimerHandle | None = None
        self._checked = (0.0, 0.0, 0)  # time, processor time, delivered
        self._stopping = False

    def submit(self, jobs: Iterable[J]) -> None:
        """Add jobs to the queue. Loop thread."""
        if self._stopping:
            return
        for job in jobs:
            self._undelivered += 1
            self._jobs.put(job)
        if not self._undelivered:
            return
        self._idle.clear()
        if not self._threads:
            self._add_threads(1)
        if self._check is None and len(self._threads) < self._threads_max:
            self._checked = (time.monotonic(), time.process_time(), self._delivered)
            self._check = self._loop.call_later(GROW_CHECK_S, self._grow)

    @property
    def thread_count(self) -> int:
        return len(self._threads)

    def _grow(self) -> None:
        """Add threads while jobs wait and either no job finishes or the processor is idle."""
        self._check = None
        waiting = self._jobs.qsize()
        if not waiting or self._stopping:
            return
        now, processor = time.monotonic(), time.process_time()
        since, processor_since, delivered_since = self._checked
        busy = (processor - processor_since) / max(now - since, 1e-6)
        if self._delivered == delivered_since or busy < BUSY_SHARE:
            count = len(self._threads)
            self._add_threads(min(waiting, max(count, 1), self._threads_max - count))
        if len(self._threads) < self._threads_max:
            self._checked = (now, processor, self._delivered)
            self._check = self._loop.call_later(GROW_CHECK_S, self._grow)

    def _add_threads(self, count: int) -> None:
        for _ in range(count):
            number = len(self._threads) + 1
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        _worker_thread.is_one = True
        take, run, put = self._jobs.get, self._run, self._results.append
        while True:
            job = take()
            if job is None:
                return
            put(run(job))
            if not self._crossing:
                self._crossing = True
                try:
                    self._loop.call_soon_threadsafe(self._take_results)
                except RuntimeError:  # the loop is closed
                    return

    def _take_results(self) -> None:
        # Reset before taking results: a result added right after is taken now or schedules the loop again.
        self._crossing = False
        results: list[R] = []
        while self._results:
            results.append(self._results.popleft())
        if not results:
            return
        self._undelivered -= len(results)
        self._delivered += len(results)
        try:
            self._deliver(results)
        finally:
            if not self._undelivered:
                self._idle.set()

    async def stop(self, wait_s: float) -> bool:
        """Drop queued jobs and wait for running ones; False if some still run after `wait_s`."""
        self._stopping = True
        if self._check is not None:
            self._check.cancel()
        with contextlib.suppress(Empty):  # never block here: a thread may take the job first
            while True:
                if self._jobs.get_nowait() is not None:
                    self._undelivered -= 1
        for _ in self._threads:
            self._jobs.put(None)
        self._take_results()
        if not self._undelivered:
            return True
        try:
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("listeners still run and are abandoned workers=%s", self._name)
            return False
        return True


class TaskWorkers(Generic[J, R]):
    """As `ThreadWorkers`, for coroutine functions: one task per suspended job, up to a limit."""

    def __init__(
        self,
        run: Callable[[J], Awaitable[R]],
        deliver: Callable[[list[R]], None],
        *,
        tasks_max: int,
        name: str,
    ) -> None:
        self._run = run
        self._deliver = deliver
        self._tasks_max = tasks_max
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[J] = deque()
        self._results: list[R] = []
        self._tasks = Tasks()
        self._working: set[asyncio.Task[object] | None] = set()
        self._starting = False
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, jobs: Iterable[J]) -> None:
        if not self._stopping:
            self._jobs.extend(jobs)
            self._add_task()

    def _add_task(self) -> None:
        """Start one task at a time: the next starts only when the last one is suspended."""
        if self._jobs and not self._starting and len(self._working) < self._tasks_max:
            self._starting = True
            self._tasks.spawn(self._work(), self._name)

    async def _work(self) -> None:
        task = asyncio.current_task()
        self._starting = False
        self._working.add(task)
        self._idle.clear()
        try:
            yield_at = self._loop.time() + LOOP_SHARE_S
            while self._jobs:
                job = self._jobs.popleft()
                self._add_task()
                self._put(await self._run(job))
                if self._loop.time() > yield_at:
                    await asyncio.sleep(0)
                    yield_at = self._loop.time() + LOOP_SHARE_S
        finally:
            self._working.discard(task)
            if not self._working:
                self._idle.set()

    def _put(self, result: R) -> None:
        if not self._results:
            self._loop.call_soon(self._take_results)
        self._results.append(result)

    def _take_results(self) -> None:
        results, self._results = self._results, []
        if results:
            self._deliver(results)

    async def stop(self, wait_s: float) -> bool:
        self._stopping = True
        self._jobs.clear()
        self._stopping_from_listener()
        finished = True
        try:
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("listeners still run and are cancelled workers=%s", self._name)
            finished = False
        await self._tasks.close()
        self._take_results()
        return finished

    def _stopping_from_listener(self) -> None:
        """Do not wait for a listener that stops its own consumer: it waits for this stop."""
        self._working.discard(asyncio.current_task())
        if not self._working:
            self._idle.set()


class ConsumptionParts(NamedTuple):
    """Collaborators of a consumption.

    `send_back` is None for broadcasting, where failed messages are dropped. `made_room` is called for queues
    that hold fewer messages than before.
    """

    group: str
    settings: PushConsumerSettings
    listeners: Listeners
    offsets: OffsetTable
    send_back: SendBack | None
    stats: ConsumeRates
    made_room: Callable[[ProcessQueue], None]
    trace: ConsumeTrace | None


class Consumption(ABC, Generic[J, R]):
    """Runs listeners for all queues of a consumer. Loop thread, except for the listeners themselves."""

    def __init__(self, parts: ConsumptionParts) -> None:
        self._group = parts.group
        self._settings = parts.settings
        self._listeners = parts.listeners
        self._offsets = parts.offsets
        self._send_back = parts.send_back
        self._stats = parts.stats
        self._made_room = parts.made_room
        trace = parts.trace
        self._call = Handler.run if trace is None else trace.run
        self._call_async = Handler.run_async if trace is None else trace.run_async
        self._tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        limit, name = parts.settings.threads_max, f"consume-{parts.group}"
        self.threads: ThreadWorkers[J, R] = ThreadWorkers(
            self._run, self._deliver, threads_max=limit, name=name
        )
        self._coroutines: TaskWorkers[J, R] = TaskWorkers(
            self._run_async, self._deliver, tasks_max=limit, name=name
        )

    @abstractmethod
    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Consume messages that arrived for a queue."""

    @abstractmethod
    def _run(self, job: J, /) -> R:
        """Call a listener in a thread."""

    @abstractmethod
    async def _run_async(self, job: J, /) -> R:
        """Call a listener in a task."""

    @abstractmethod
    def _deliver(self, results: list[R], /) -> None:
        """Process results of listeners."""

    async def stop(self, wait_ms: int) -> None:
        """Wait for running listeners and send-backs.

        Queued messages are left to the next owner of the queue.
        """
        deadline = time.monotonic() + wait_ms / 1000
        # One after the other, in this task: a listener that stops its own consumer is recognized by its task.
        await self.threads.stop(deadline - time.monotonic())
        await self._coroutines.stop(deadline - time.monotonic())
        await self._tasks.finish(max(deadline - time.monotonic(), 0))
