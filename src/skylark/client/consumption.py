"""What both ways of consuming, side by side and in order, have in common: listeners, workers, their end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from skylark.client.consume_stats import ConsumeStats
from skylark.client.listeners import Handler, Listeners
from skylark.client.offset_table import OffsetTable
from skylark.client.process_queue import ProcessQueue
from skylark.client.received import ReceivedMessage
from skylark.client.send_back import SendBack
from skylark.client.trace import ConsumeTrace
from skylark.client.workers import J, R, TaskWorkers, ThreadWorkers
from skylark.settings.consumer import PushConsumerSettings
from skylark.tasks import Tasks


class ConsumptionParts(NamedTuple):
    """What a consumption works with.

    `send_back` is None for broadcasting, where nothing is given back. `made_room` is told of queues that hold
    less than before.
    """

    group: str
    settings: PushConsumerSettings
    listeners: Listeners
    offsets: OffsetTable
    send_back: SendBack | None
    stats: ConsumeStats
    made_room: Callable[[ProcessQueue], None]
    trace: ConsumeTrace | None


class Consumption(ABC, Generic[J, R]):
    """Runs listeners for all queues of a consumer. Loop thread, but for the listeners themselves."""

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
        """Have messages that came for a queue consumed."""

    @abstractmethod
    def _run(self, job: J, /) -> R:
        """Call a listener, in a thread."""

    @abstractmethod
    async def _run_async(self, job: J, /) -> R:
        """Call a listener, in a task."""

    @abstractmethod
    def _deliver(self, results: list[R], /) -> None:
        """Do what follows from what listeners said."""

    async def stop(self, wait_ms: int) -> None:
        """Let finish what runs, and what failed be given back; what waits is left for whoever comes next."""
        deadline = time.monotonic() + wait_ms / 1000
        # One after the other, in this task: a listener that stops its own consumer must be known as such.
        await self.threads.stop(deadline - time.monotonic())
        await self._coroutines.stop(deadline - time.monotonic())
        await self._tasks.finish(max(deadline - time.monotonic(), 0))
