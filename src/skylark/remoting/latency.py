"""Request latencies by request code, response code and result."""

from __future__ import annotations

import time
from collections.abc import Callable

from skylark.histogram import REQUEST_MS, Histogram

SUCCESS = "success"
ONEWAY = "oneway"
WRITE_FAILED = "write_channel_failed"
"""The peer had disconnected when the reply was ready."""
UNKNOWN_CODE = -1
"""Stands for all codes that are not served, which peers choose freely."""

KINDS_MAX = 1024
"""Further combinations count as unknown, because relayed replies may carry any code."""

# Request code, response code, held or not, result.
Kind = tuple[int, int, bool, str]
_REST: Kind = (UNKNOWN_CODE, UNKNOWN_CODE, False, SUCCESS)
_MILLISECOND_S = 0.001
_SHORT_S = (REQUEST_MS[0] + 1) / 1000
"""Shorter times fall into the first bucket in whole milliseconds."""


class RequestLatencies:
    """Histograms of request times in whole milliseconds, as in RocketMQ. The loop writes, any thread reads.

    A loop may round the arrival time down to a millisecond. Rounding the elapsed time down compensates for
    that: the sum is correct on average.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.table: dict[Kind, Histogram] = {}
        self._successes: dict[int, Histogram] = {}  # some of the table, by code

    def count_successes(self, code: int, since: float, times: int = 1) -> None:
        """Fast path of `count` for immediate successful replies."""
        histogram = self._successes.get(code)
        if histogram is None:
            histogram = self._successes[code] = self._histogram((code, 0, False, SUCCESS))
        elapsed_s = self._now() - since
        if elapsed_s < _SHORT_S:
            histogram.counts[0] += times
            if elapsed_s >= _MILLISECOND_S:
                histogram.sum += times
        else:
            histogram.add(int(elapsed_s * 1000), times)

    def count(
        self,
        code: int,
        response_code: int,
        since: float,
        times: int = 1,
        *,
        was_held: bool = False,
        result: str = SUCCESS,
    ) -> None:
        """Count requests that arrived together at loop time `since` and get the same result now."""
        elapsed_ms = int((self._now() - since) * 1000)
        self._histogram((code, response_code, was_held, result)).add(max(elapsed_ms, 0), times)

    def _histogram(self, kind: Kind) -> Histogram:
        histogram = self.table.get(kind)
        if histogram is None:
            kind = kind if len(self.table) < KINDS_MAX else _REST
            histogram = self.table.setdefault(kind, Histogram(REQUEST_MS))
        return histogram
