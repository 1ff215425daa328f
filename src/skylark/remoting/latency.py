"""How long requests took, by what was asked, what was answered, and how."""

from __future__ import annotations

import time
from collections.abc import Callable

from skylark.histogram import REQUEST_MS, Histogram

SUCCESS = "success"
ONEWAY = "oneway"
WRITE_FAILED = "write_channel_failed"
"""The peer was gone when the answer was there."""
UNKNOWN_CODE = -1
"""For all requests that nobody serves: they can name any number."""

KINDS_MAX = 1024
"""Then all that is new counts as unknown: clients that tools ask answer any code."""

# Code, response code, whether it was held, result: what is counted together.
Kind = tuple[int, int, bool, str]
_REST: Kind = (UNKNOWN_CODE, UNKNOWN_CODE, False, SUCCESS)
_MILLISECOND_S = 0.001
_SHORT_S = (REQUEST_MS[0] + 1) / 1000
"""What is shorter is, in whole milliseconds, in the first range."""


class RequestLatencies:
    """Times of requests, in whole milliseconds as RocketMQ counts them. Loop thread; read by any.

    A loop may round the time of a turn down to milliseconds. Rounding down what has passed since makes up
    for that: on average the sum is right.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.table: dict[Kind, Histogram] = {}
        self._successes: dict[int, Histogram] = {}  # some of the table, by code

    def count_successes(self, code: int, since: float, times: int = 1) -> None:
        """The same as `count` for what is answered at once, and with success: nearly all there is."""
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
        """Count requests that came together, at `since` of the loop's clock, and are answered alike now."""
        elapsed_ms = int((self._now() - since) * 1000)
        self._histogram((code, response_code, was_held, result)).add(max(elapsed_ms, 0), times)

    def _histogram(self, kind: Kind) -> Histogram:
        histogram = self.table.get(kind)
        if histogram is None:
            kind = kind if len(self.table) < KINDS_MAX else _REST
            histogram = self.table.setdefault(kind, Histogram(REQUEST_MS))
        return histogram
