"""Pure. Histograms with RocketMQ's bucket bounds."""

from __future__ import annotations

from bisect import bisect_left

REQUEST_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
"""Upper bucket bounds, inclusive."""
CREATION_MS = (10, 100, 1_000, 3_000, 5_000)
TRANSACTION_S = (5, 60, 600, 3_600, 43_200, 86_400)
DELAY_S = (60, 600, 3_600, 43_200, 86_400, 259_200)
MESSAGE_BYTES = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)


class Histogram:
    """Counts per bucket, the last of which is unbounded, and the sum of all values."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: int, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times
