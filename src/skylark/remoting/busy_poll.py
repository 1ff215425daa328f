"""Busy polling: the loop stays awake briefly after a reply when the next request usually follows at once.

Waking a loop that sleeps in the kernel takes about 40 us on a virtual machine, nearly as long as a reply.
"""

import asyncio
import time
from collections.abc import Callable

RUN_MIN, RUN_MAX = 8, 64
"""Consecutive quick replies required before the loop polls."""
CLOSELY_WINDOWS = 3
"""A reply is quick if it follows the previous one within this many windows, handling included."""


def _nothing() -> None:
    pass


class BusyPoll:
    """Keeps a loop awake between the requests of peers that send one at a time.

    Polling ends when no request arrives within the window and resumes only after a new run of quick replies,
    twice as long if polling saved little. It wastes at most one window per `RUN_MIN` requests and nothing on
    an idle server. Other callbacks of the loop run meanwhile, and other threads get the interpreter at every
    iteration.
    """

    def __init__(self, window_us: int, *, now: Callable[[], float] = time.perf_counter) -> None:
        """`window_us` is the time to stay awake after a reply; 0 disables polling."""
        self._window_s = window_us / 1e6
        self._now = now
        self._answered_at = 0.0
        self._run = 0
        self._run_needed = RUN_MIN
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_kept = False
        self.on_end: Callable[[], None] = _nothing
        """Called when polling ends, before the loop sleeps; for deferred work."""

    def answered(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record a reply to a request that arrived alone. Loop thread."""
        now = self._now()
        is_close = now - self._answered_at < CLOSELY_WINDOWS * self._window_s
        self._answered_at = now
        self._run = self._run + 1 if is_close else 0
        if self._run < self._run_needed:
            return
        self._until = now + self._window_s
        if not self.is_kept:
            self.is_kept = True
            self._loop = loop
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        assert self._loop is not None
        if self._now() < self._until:
            self._loop.call_soon(self._turn)
            return
        self.is_kept = False
        was_useful = self._run >= self._run_needed + RUN_MIN
        self._run_needed = RUN_MIN if was_useful else min(2 * self._run_needed, RUN_MAX)
        self._run = 0
        self.on_end()
