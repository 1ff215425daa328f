"""Latency histogram: three significant digits from a nanosecond to an hour, mergeable, of constant size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec
from hdrh.histogram import HdrHistogram

LOWEST_NS = 1
HIGHEST_NS = 3_600 * 10**9
DIGITS = 3
PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
CURVE = (0.0, 50.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999)


class Percentiles(msgspec.Struct, frozen=True):
    """Of some latencies, in microseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    p9999: float
    max: float


class LatencyHistogram:
    """How often which latency was seen. One thread at a time."""

    def __init__(self, bins: Iterable[tuple[int, int]] = ()) -> None:
        """`bins` are nanoseconds and how often."""
        self._histogram = HdrHistogram(LOWEST_NS, HIGHEST_NS, DIGITS)
        for nanoseconds, count in bins:
            self.record(nanoseconds, count)

    @classmethod
    def decode(cls, text: str) -> Self:
        """From what `encode` gave. Raises what hdrhistogram raises for other texts."""
        latencies = cls()
        latencies._histogram.decode_and_add(text)
        return latencies

    def record(self, nanoseconds: int, count: int = 1) -> None:
        """What is outside the range counts as its end."""
        self._histogram.record_value(min(max(nanoseconds, LOWEST_NS), HIGHEST_NS), count)

    def add(self, other: LatencyHistogram) -> None:
        self._histogram.add(other._histogram)

    def __len__(self) -> int:
        return int(self._histogram.total_count)

    def at_percent(self, percent: float) -> float:
        """Microseconds within which so many per cent were; 0 if there are none."""
        return _microseconds(self._histogram.get_value_at_percentile(percent)) if len(self) else 0.0

    def percentiles(self) -> Percentiles:
        found = self._histogram.get_percentile_to_value_dict(PERCENTS.values()) if len(self) else {}
        return Percentiles(
            count=len(self),
            mean=_microseconds(self._histogram.get_mean_value()) if len(self) else 0.0,
            max=_microseconds(self._histogram.get_max_value()) if len(self) else 0.0,
            **{name: _microseconds(found.get(percent, 0)) for name, percent in PERCENTS.items()},
        )

    def curve(self) -> list[tuple[float, float]]:
        """Percent and microseconds, for a chart: ever finer towards 100."""
        found = self._histogram.get_percentile_to_value_dict(CURVE) if len(self) else {}
        return [(percent, _microseconds(value)) for percent, value in sorted(found.items())]

    def encode(self) -> str:
        """In HdrHistogram's own format (V2, compressed, base64), which its other tools read."""
        return str(self._histogram.encode(), "ascii")


def _microseconds(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 1)
