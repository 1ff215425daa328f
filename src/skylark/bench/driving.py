"""Operations of asyncio clients, driven in a closed or an open loop and timed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from skylark.bench.histogram import Latencies
from skylark.bench.pace import Pace
from skylark.bench.thin import Watch
from skylark.errors import RocketMQError

TICK_S = 1.0
LATE_S = 15.0
"""After the end, for operations that were due before it."""


@dataclass
class Driven:
    """What came of it. `answers`, `seconds`, `latencies` and `series` are of the window."""

    done: int = 0
    failed: int = 0
    answers: int = 0
    seconds: float = 0.0
    unsent: int = 0
    reasons: list[str] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)
    series: list[tuple[float, int]] = field(default_factory=list)


class Driver:
    """Keeps so many operations going. With a rate (operations a second) each is timed from when it was due,
    however late it begins; without, from its begin."""

    def __init__(self, operation: Callable[[], Awaitable[None]], *, in_flight: int, rate: float) -> None:
        """An operation fails by raising RocketMQError."""
        self._operation = operation
        self._in_flight = in_flight
        self._rate = rate
        self._numbers = itertools.count()
        self._began = self._end = 0.0
        self._pace = Pace(0.0, rate)
        self._driven = Driven()

    async def run(self, warm_up_s: float, seconds: float, watch: Watch) -> Driven:
        """`watch` hears what that of `ThinClient.run` hears."""
        start = time.perf_counter()
        self._pace = Pace(start, self._rate)
        self._began = start + warm_up_s
        self._end = self._began + seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(watch))
            workers = [tasks.create_task(self._work()) for _ in range(self._in_flight)]
        driven = self._driven
        driven.seconds = seconds
        driven.unsent = max(self._pace.count_until(self._end) - driven.done - driven.failed, 0)
        assert all(worker.done() for worker in workers)
        return driven

    async def _work(self) -> None:
        while True:
            due = self._pace.due(next(self._numbers))
            late_s = LATE_S if self._rate else 0.0
            if due >= self._end or time.perf_counter() >= self._end + late_s:
                return
            if self._rate:
                await asyncio.sleep(max(due - time.perf_counter(), 0))
            await self._do(due if self._rate else time.perf_counter())

    async def _do(self, due: float) -> None:
        driven = self._driven
        try:
            await self._operation()
        except RocketMQError as error:
            driven.failed += 1
            driven.reasons = [*driven.reasons, str(error)][:3]
            return
        now = time.perf_counter()
        driven.done += 1
        driven.answers += self._began <= now < self._end
        if due >= self._began:
            driven.latencies.record(round((now - due) * 1e9))

    async def _watch(self, watch: Watch) -> None:
        await asyncio.sleep(max(self._began - time.perf_counter(), 0))
        watch("begin")
        tick = self._began + TICK_S
        while tick < self._end:
            await asyncio.sleep(max(tick - time.perf_counter(), 0))
            second = time.perf_counter() - self._began
            self._driven.series.append((round(second, 3), self._driven.answers))
            watch(f"tick {second:.3f} {self._driven.answers}")
            tick += TICK_S
        await asyncio.sleep(max(self._end - time.perf_counter(), 0))
        watch("end")
