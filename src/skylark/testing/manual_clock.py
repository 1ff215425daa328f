"""A clock that a test advances by hand."""

from __future__ import annotations


class ManualClock:
    """Implements `skylark.clock.Clock`. `advance` lets time pass, `jump` sets the wall clock alone."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, duration_ms: int) -> None:
        """Let time pass on both faces. Time does not run backwards."""
        if duration_ms < 0:
            raise ValueError(f"time cannot pass by {duration_ms} ms")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def jump(self, duration_ms: int) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does; durations are not touched."""
        self._now_ms += duration_ms
