"""Pure. Queue selection for a send: round robin, hash, random, and avoidance of slow brokers."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from skylark.model.java import java_hash
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue

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


Selector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue | None]
"""Given the writable queues of the topic, the message and the argument of the send; returns one of them."""

_INDEX_MASK = 0x7FFF_FFFF


def by_hash(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
    """Choose by the argument's hash, as Java clients do: the same key always goes to the same queue."""
    return queues[hash_index(argument, len(queues))]


def by_random(queues: Sequence[MessageQueue], message: Message, argument: Any) -> MessageQueue:
    """Choose at random, each queue as likely as the others."""
    return random.choice(queues)  # noqa: S311 (spreads load, keeps no secret)


def hash_index(argument: Any, number: int) -> int:
    """Return Java's place for a text or a whole number among so many."""
    if isinstance(argument, bool):
        code = 1231 if argument else 1237
    elif isinstance(argument, int):
        code = argument if -(1 << 31) <= argument < 1 << 31 else _long_hash(argument)
    else:
        code = java_hash(str(argument))
    return abs(code) % number


def _long_hash(number: int) -> int:
    """Of a Long; numbers that fit into an int hash to themselves in either class, negative ones aside."""
    word = number & 0xFFFF_FFFF_FFFF_FFFF
    low = (word ^ word >> 32) & 0xFFFF_FFFF
    return low - (1 << 32) if low >= 1 << 31 else low


class RoundRobin:
    """Takes the queues of one topic in turn, from a random start. One thread (or loop) at a time."""

    def __init__(self, start: int | None = None) -> None:
        self._index = random.getrandbits(31) if start is None else start

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the next queue."""
        self._index = (self._index + 1) & _INDEX_MASK
        return queues[self._index % len(queues)]

    def avoiding(
        self,
        queues: Sequence[MessageQueue],
        failed_broker: str | None,
        latencies: LatencyTable | None,
        now: float,
    ) -> MessageQueue:
        """Return the next queue that is not on the broker which has just failed, nor on one that is avoided.

        Where no queue is good, a less good one is taken: of a broker that can be reached, then any.
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
