"""Counts and times of calls, for the metrics of a proxy."""

from __future__ import annotations

from collections import Counter

from skylark.proxy.schema import Code


class CallMetrics:
    """Calls by method and code, and the seconds that they took by method."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[str] = Counter()

    def count(self, method: str, code: Code, seconds: float) -> None:
        self.calls[method, code.name] += 1
        self.seconds[method] += seconds  # type: ignore[assignment]
