"""Busy polling: the loop stays awake briefly after a reply when the next request usually follows at once.

Waking a loop that sleeps in the kernel takes about 40 us on a virtual machine, nearly as long as a reply.
"""

import asyncio
import time
from collections.abc import Callable

RUN_MIN, RUN_MAX = 8, 64
"""So many answers must have followed one another closely before the loop waits awake for a request."""
CLOSELY_WINDOWS = 3
"""How closely: within so many times what the loop would stay awake, the handling of the request included."""


def _nothing() -> None:
    """Nobody wants to know."""


class BusyPoll:
    """Keeps a loop awake between the requests of peers that send one, wait for its answer, and send the next.

    It ends with the first request that does not come within the window, and begins again only after a new
    run, of twice the length if it was of little use. So it wastes one window in `RUN_MIN` requests at most,
    far less where peers pause often, and nothing where nobody sends. The loop does whatever else there is
    meanwhile, and other threads get the interpreter at every turn.
    """

    def __init__(self, window_us: int, *, now: Callable[[], float] = time.perf_counter) -> None:
        """`window_us` is how long to stay awake after an answer; 0: never."""
        self._window_s = window_us / 1e6
        self._now = now
        self._answered_at = 0.0
        self._run = 0
        self._run_needed = RUN_MIN
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_kept = False
        self.on_end: Callable[[], None] = _nothing
        """Called when the loop is about to fall asleep: for what had time until then."""

    def answered(self, loop: asyncio.AbstractEventLoop) -> None:
        """A request that came alone was answered on this loop, just now."""
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
