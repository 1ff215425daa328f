"""Pure. Token bucket: requests per second on average, with bursts."""

from typing import NamedTuple


class RequestRate(NamedTuple):
    """A limit for one client."""

    per_second: int
    burst: int


class TokenBucket:
    """What one client may send now. Starts full, fills with time up to a burst, and each request takes one.

    Times are monotonic seconds. The rate is given anew each time: it may change while a client is there.
    """

    __slots__ = ("_filled_at", "_tokens")

    def __init__(self, rate: RequestRate, now: float) -> None:
        self._tokens = float(rate.burst)
        self._filled_at = now

    def take(self, wanted: int, rate: RequestRate, now: float) -> int:
        """Take a token for each of the wanted requests; return how many there are."""
        gained = max(now - self._filled_at, 0.0) * rate.per_second
        self._filled_at = now
        self._tokens = min(self._tokens + gained, float(rate.burst))
        taken = min(wanted, int(self._tokens))
        self._tokens -= taken
        return taken
