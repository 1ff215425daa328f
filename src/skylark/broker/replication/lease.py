"""The lease of a master: until when no other master can have been elected, as far as time can tell.

It covers what is not acknowledged by the in-sync set: queue locks, and messages of a master that is alone in
its set. Acknowledgements by the set need no clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable

NEVER = float("-inf")


def boot_time() -> float:
    """Seconds since the machine was started, including those in which it was suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class MasterLease:
    """Held until some time after the last question that the leader of the controllers answered.

    It counts from the moment of the question: the answer may have been under way for long.
    """

    def __init__(self, lease_ms: int, now: Callable[[], float] = boot_time) -> None:
        """A lease of 0 ms is held for ever."""
        self._lease_s = lease_ms / 1000
        self.now = now
        self._renewed = NEVER

    @property
    def holds(self) -> bool:
        return self._lease_s == 0 or self.now() <= self._renewed + self._lease_s

    def renew(self, asked_at: float) -> None:
        """The leader answered a question of that time by naming this broker as the master."""
        self._renewed = max(self._renewed, asked_at)

    def end(self) -> None:
        """This broker is not the master any more."""
        self._renewed = NEVER
