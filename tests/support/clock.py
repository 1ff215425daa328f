"""The clock that our own tests move is the one that users get."""

from skylark.testing.clock import ManualClock

__all__ = ["ManualClock"]
