"""Pure. Limits on cold reads: how much data that is not in memory groups may read per window."""

from collections.abc import Mapping
from dataclasses import dataclass

from skylark.broker.error_replies import full
from skylark.model import names
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings

WINDOW_S = 5.0
"""Length of a window; counts start again after each."""
IDLE_S = 60.0
"""A group without cold reads is forgotten after this."""


@dataclass(slots=True)
class _Reads:
    bytes: int
    since_ms: int
    last: float
    last_ms: int


class ColdReads:
    """Cold reads of one broker by group, against the limits of groups and of all of them together."""

    def __init__(self, live: LiveSettings[BrokerSettings], *, now: float) -> None:
        self._live = live
        self.limits: dict[str, int] = {}
        """Bytes per window, by group, as set by administrators; other groups have the broker's setting."""
        self._reads: dict[str, _Reads] = {}
        self._bytes = 0
        self._window_ends = now + WINDOW_S

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """Raises BrokerError 1 at the limit of groups."""
        groups_max = self._live.current.groups_max
        if len(self.limits.keys() | limits.keys()) > groups_max:
            raise full("groups with a limit for cold reads", groups_max)
        self.limits.update(limits)

    def count(self, group: str, size: int, *, now: float, now_ms: int) -> None:
        """Count a cold read."""
        if size <= 0 or not self._is_limited(group):
            return
        self._roll(now)
        reads = self._reads.setdefault(group, _Reads(0, now_ms, now, now_ms))
        reads.bytes, reads.last, reads.last_ms = reads.bytes + size, now, now_ms
        self._bytes += size

    def had_enough(self, group: str, *, now: float) -> bool:
        """Return whether a group, or all groups together, have used up this window's limit."""
        if not self._is_limited(group):
            return False
        self._roll(now)
        reads, settings = self._reads.get(group), self._live.current
        if reads is None:
            return False
        limit = self.limits.get(group, settings.group_cold_bytes_max)
        return reads.bytes >= limit or self._bytes >= settings.cold_bytes_max

    def totals(self, *, now: float) -> dict[str, int]:
        """Return the limits of the settings and the total of this window, under RocketMQ's names."""
        self._roll(now)
        settings = self._live.current
        return {
            "cgColdReadThreshold": settings.group_cold_bytes_max,
            "globalColdReadThreshold": settings.cold_bytes_max,
            "globalAcc": self._bytes,
        }

    def table(self) -> dict[str, dict[str, int]]:
        """Return the reads of each group in this window, under RocketMQ's names."""
        return {
            group: {
                "coldAcc": reads.bytes,
                "createTimeMills": reads.since_ms,
                "lastColdReadTimeMills": reads.last_ms,
            }
            for group, reads in self._reads.items()
        }

    def _is_limited(self, group: str) -> bool:
        return self._live.current.limit_cold_reads and not names.is_system_group(group)

    def _roll(self, now: float) -> None:
        """Begin a new window if the last one is over."""
        if now < self._window_ends:
            return
        self._window_ends = now + WINDOW_S
        self._bytes = 0
        self._reads = {group: reads for group, reads in self._reads.items() if now < reads.last + IDLE_S}
        for reads in self._reads.values():
            reads.bytes = 0
