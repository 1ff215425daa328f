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


class Latencies:
    """Times of requests, in whole milliseconds as RocketMQ counts them. Loop thread; read by any.

    A loop may round the time of a turn down to milliseconds. Rounding down what has passed since makes up
    for that: on average the sum is right.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.table: dict[Kind, Histogram] = {}

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
        # Once for all that a read brought, and once for a pull: plain, for it is on the hot path.
        histogram = self.table.get((code, response_code, was_held, result))
        if histogram is None:
            kind = (code, response_code, was_held, result) if len(self.table) < KINDS_MAX else _REST
            histogram = self.table.setdefault(kind, Histogram(REQUEST_MS))
        elapsed_ms = int((self._now() - since) * 1000)
        histogram.add(elapsed_ms if elapsed_ms > 0 else 0, times)
