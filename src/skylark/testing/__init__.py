"""Support for testing code that uses Skylark: in-process servers, pytest fixtures, a manual clock.

>>> with skylark.testing.broker() as namesrv:
...     ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skylark.testing.embedded_servers import EmbeddedServers, broker
    from skylark.testing.manual_clock import ManualClock

__all__ = ["EmbeddedServers", "ManualClock", "broker"]


def __getattr__(name: str) -> Any:
    # Lazy, because pytest imports this package in every session for its plugin.
    if name == "ManualClock":
        from skylark.testing.manual_clock import ManualClock  # noqa: PLC0415

        return ManualClock
    if name in ("EmbeddedServers", "broker"):
        from skylark.testing import embedded_servers  # noqa: PLC0415

        return getattr(embedded_servers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
