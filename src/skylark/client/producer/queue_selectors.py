"""Pure. Queue selection for a send: round robin, hash, random, and avoidance of slow brokers."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from skylark.model.java import java_hash
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue

LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15_000)
AVOID_MS = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
ISOLATED_AS_MS = 10_000
"""A broker that failed is avoided like one with this latency."""


def avoid_ms(latency_ms: float) -> int:
    """Return how long to avoid a broker with this latency."""
    index = bisect_right(LATENCY_MS, latency_ms) - 1
    return 0 if index < 0 else AVOID_MS[index]


@dataclass(slots=True)
class _Entry:
    available_from: float = 0.0
    is_reachable: bool = True


class LatencyTable:
    """Availability of brokers by name. Unknown brokers are available and reachable."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Entry] = {}

    def answered(self, broker: str, latency_ms: float, now: float) -> None:
        self._avoid(broker, avoid_ms(latency_ms), now, is_reachable=True)

    def failed(self, broker: str, now: float, *, is_reachable: bool) -> None:
        """Record a failure; `is_reachable` unless the broker itself replied with an error."""
        self._avoid(broker, avoid_ms(ISOLATED_AS_MS), now, is_reachable=is_reachable)

    def _avoid(self, broker: str, for_ms: int, now: float, *, is_reachable: bool) -> None:
        entry = self._brokers.setdefault(broker, _Entry())
        entry.is_reachable = is_reachable
        if for_ms:
            entry.available_from = max(entry.available_from, now + for_ms / 1000)

    def is_available(self, broker: str, now: float) -> bool:
        entry = self._brokers.get(broker)
        return entry is None or now >= entry.available_from

    def is_reachable(self, broker: str) -> bool:
        """Return whether the broker's last failure, if any, was not an error reply."""
        entry = self._brokers.get(broker)
        return entry is None or entry.is_reachable


Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue | None]
"""Gets the writable queues of the topic, the message and the argument of the send; returns one queue."""

_INDEX_MASK = 0x7FFF_FFFF


class SendTarget(NamedTuple):
    """Where a send goes: to `queue`, to the queue that `selector` returns, or round robin without either."""

    queue: MessageQueue | None = None
    selector: Selector | None = None
    argument: Any = None


ROUND_ROBIN = SendTarget()


def by_hash(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
    """Choose by the argument's hash, as Java clients do: the same key always selects the same queue."""
    return queues[hash_index(argument, len(queues))]


def by_random(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
    """Choose at random with equal probability."""
    return random.choice(queues)  # noqa: S311 (spreads load, keeps no secret)


def hash_index(argument: Any, number: int) -> int:
    """Return the index below `number` that Java computes for a string or an integer."""
    if isinstance(argument, bool):
        code = 1231 if argument else 1237
    elif isinstance(argument, int):
        code = argument if -(1 << 31) <= argument < 1 << 31 else _long_hash(argument)
    else:
        code = java_hash(str(argument))
    return abs(code) % number


def _long_hash(number: int) -> int:
    """Java's hash of a Long."""
    word = number & 0xFFFF_FFFF_FFFF_FFFF
    low = (word ^ word >> 32) & 0xFFFF_FFFF
    return low - (1 << 32) if low >= 1 << 31 else low


class RoundRobin:
    """Round robin over the queues of one topic, from a random start. One thread (or loop) at a time."""

    def __init__(self, start: int | None = None) -> None:
        self._index = random.getrandbits(31) if start is None else start

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        self._index = (self._index + 1) & _INDEX_MASK
        return queues[self._index % len(queues)]

    def avoiding(
        self,
        queues: Sequence[MessageQueue],
        failed_broker: str | None,
        latencies: LatencyTable | None,
        now: float,
    ) -> MessageQueue:
        """Return the next queue that is neither on the broker that has just failed nor on an avoided one.

        If there is none, return a queue of a reachable broker; if there is none either, any queue.
        """
        if latencies is None:
            return self._first(queues, lambda broker: broker != failed_broker) or self.next(queues)
        if failed_broker is not None:
            self._index = random.getrandbits(31)
        return (
            self._first(
                queues, lambda broker: broker != failed_broker and latencies.is_available(broker, now)
            )
            or self._first(queues, lambda broker: broker != failed_broker and latencies.is_reachable(broker))
            or self.next(queues)
        )

    def _first(self, queues: Sequence[MessageQueue], is_good: Callable[[str], bool]) -> MessageQueue | None:
        for _ in queues:
            queue = self.next(queues)
            if is_good(queue.broker_name):
                return queue
        return None
