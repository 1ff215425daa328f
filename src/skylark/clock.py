"""Clock: time as an argument, so that tests can control it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps that are stored or sent, monotonic time for durations."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970. May jump when the system clock is set."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. Never goes back."""


def now_ms() -> int:
    """Return wall-clock milliseconds since 1970, for code whose time no test controls."""
    return time.time_ns() // 1_000_000


class SystemClock:
    """The system clock."""

    def now_ms(self) -> int:
        return now_ms()

    def monotonic(self) -> float:
        return time.monotonic()
