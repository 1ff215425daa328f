"""Tasks with an owner that logs their failures and awaits them on close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one object. A failure is logged. `close` cancels and awaits all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start a coroutine as a task. `name` is for the log; the default is the function's name."""
        task = asyncio.get_running_loop().create_task(work, name=name or getattr(work, "__qualname__", None))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def every(
        self,
        interval_ms: float,
        step: Callable[[], Awaitable[object] | None],
        name: str,
        *,
        first_ms: float | None = None,
    ) -> None:
        """Run a step at a fixed rate, first after `first_ms` or one interval.

        Exceptions are logged and do not stop it. A step that takes longer than the interval skips runs.
        """
        first_s = (interval_ms if first_ms is None else first_ms) / 1000
        self.spawn(self._repeat(interval_ms / 1000, first_s, step, name), name)

    async def _repeat(
        self, interval_s: float, first_s: float, step: Callable[[], Awaitable[object] | None], name: str
    ) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + first_s
        while True:
            await asyncio.sleep(due - loop.time())
            try:
                waiting = step()
                if waiting is not None:
                    await waiting
            except Exception:
                log.exception("periodic task failed, will run again task=%s", name)
            due = max(due + interval_s, loop.time())

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task failed task=%s", task.get_name(), exc_info=task.exception())

    async def close(self) -> None:
        """Cancel and await all tasks, except the calling one."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self, wait_s: float) -> None:
        """Wait up to `wait_s` for all tasks, then cancel the rest."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)
        await self.close()
