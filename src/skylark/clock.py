"""Time as an argument: whatever asks for the time takes a Clock, so that tests can say what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two times, never mixed: wall time for what is stored or sent, monotonic time for durations."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970. May jump when the system's clock is set."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. Never goes back."""


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Return the system's wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the system's monotonic seconds."""
        return time.monotonic()
