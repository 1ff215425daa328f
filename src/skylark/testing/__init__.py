"""Support for testing code that uses Skylark: in-process servers, pytest fixtures, a manual clock.

>>> with skylark.testing.broker() as namesrv:
...     ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.testing.embedded_servers import EmbeddedServers, broker

__all__ = ["EmbeddedServers", "ManualClock", "broker"]


class ManualClock:
    """Implements `skylark.clock.Clock`. `advance` moves both times, `jump` only the wall clock."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, duration_ms: int) -> None:
        """Advance wall and monotonic time. Raises ValueError for a negative duration."""
        if duration_ms < 0:
            raise ValueError(f"cannot advance by {duration_ms} ms; use jump to set the clock back")
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def jump(self, duration_ms: int) -> None:
        """Set the wall clock forward or back, as NTP does; monotonic time is unchanged."""
        self._now_ms += duration_ms


if not TYPE_CHECKING:  # a type checker must see no `__getattr__`: it would accept every name

    def __getattr__(name: str) -> Any:
        # Lazy, because pytest imports this package in every session for its plugin.
        if name in ("EmbeddedServers", "broker"):
            from skylark.testing import embedded_servers  # noqa: PLC0415

            return getattr(embedded_servers, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
