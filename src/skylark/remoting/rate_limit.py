"""Pure. Token bucket: requests per second on average, with bursts."""

from typing import NamedTuple


class RequestRate(NamedTuple):
    """The rate limit of one client."""

    per_second: int
    burst: int


class TokenBucket:
    """Token bucket of one client. Starts full, refills over time up to the burst, one token per request.

    Times are monotonic seconds. The rate is an argument of each call because it may change at run time.
    """

    __slots__ = ("_filled_at", "_tokens")

    def __init__(self, rate: RequestRate, now: float) -> None:
        self._tokens = float(rate.burst)
        self._filled_at = now

    def take(self, wanted: int, rate: RequestRate, now: float) -> int:
        """Take one token per wanted request; return the number taken."""
        gained = max(now - self._filled_at, 0.0) * rate.per_second
        self._filled_at = now
        self._tokens = min(self._tokens + gained, float(rate.burst))
        taken = min(wanted, int(self._tokens))
        self._tokens -= taken
        return taken
