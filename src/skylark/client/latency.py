"""Pure. Which brokers to avoid for a while, by how slowly they answered or that they failed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15_000)
AVOID_MS = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
ISOLATED_AS_MS = 10_000
"""A broker that failed is avoided as long as one that took so long."""


def avoid_ms(latency_ms: float) -> int:
    """Return for how long a broker is avoided that took so long to answer."""
    index = bisect_right(LATENCY_MS, latency_ms) - 1
    return 0 if index < 0 else AVOID_MS[index]


@dataclass(slots=True)
class _Entry:
    available_from: float = 0.0
    is_reachable: bool = True


class LatencyTable:
    """What is known of brokers by name. One that is not known is available and reachable."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Entry] = {}

    def answered(self, broker: str, latency_ms: float, now: float) -> None:
        """Note how long a broker took."""
        self._avoid(broker, avoid_ms(latency_ms), now, is_reachable=True)

    def failed(self, broker: str, now: float, *, is_reachable: bool) -> None:
        """Note that a broker did not do what it was asked; `is_reachable` unless it said so itself."""
        self._avoid(broker, avoid_ms(ISOLATED_AS_MS), now, is_reachable=is_reachable)

    def _avoid(self, broker: str, for_ms: int, now: float, *, is_reachable: bool) -> None:
        entry = self._brokers.setdefault(broker, _Entry())
        entry.is_reachable = is_reachable
        if for_ms:
            entry.available_from = max(entry.available_from, now + for_ms / 1000)

    def is_available(self, broker: str, now: float) -> bool:
        """Say whether a broker is not avoided at present."""
        entry = self._brokers.get(broker)
        return entry is None or now >= entry.available_from

    def is_reachable(self, broker: str) -> bool:
        """Say whether a broker at least does not refuse."""
        entry = self._brokers.get(broker)
        return entry is None or entry.is_reachable
