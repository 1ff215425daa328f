"""The clock that our own tests move is the one that users get."""

from skylark.testing import ManualClock

__all__ = ["ManualClock"]
