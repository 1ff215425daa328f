"""Tasks with a parent: whoever started them sees them fail and waits for their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one object. A failure is logged and ends nothing else; `close` cancels and awaits all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def every(self, interval_s: Callable[[], float], step: Callable[[], Awaitable[None] | None]) -> None:
        """Run a step again and again, first after one interval. What it raises is logged, and it goes on."""
        self.spawn(self._repeat(interval_s, step))

    async def _repeat(
        self, interval_s: Callable[[], float], step: Callable[[], Awaitable[None] | None]
    ) -> None:
        while True:
            await asyncio.sleep(interval_s())
            try:
                waiting = step()
                if waiting is not None:
                    await waiting
            except Exception:
                log.exception("a regular task failed, it goes on")

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task failed", exc_info=task.exception())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
