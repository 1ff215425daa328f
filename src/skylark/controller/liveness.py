"""Pure. LiveTable: which brokers are alive, by their heartbeats and connections. Times are monotonic seconds.

Every controller has one, in memory: all brokers send heartbeats to all controllers.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from skylark.protocol.requests.name_server import BrokerHeartbeat

log = logging.getLogger(__name__)

TIMEOUT_MS = 10_000
PRIORITY_LAST = (1 << 31) - 1
BROKERS_MAX = 10_000
"""Heartbeats of further brokers are ignored."""


class BrokerKey(NamedTuple):
    """A broker as its controller id names it."""

    cluster: str
    name: str
    broker_id: int


@dataclass(slots=True)
class LiveBroker:
    """What the last heartbeats told. `channel` is the connection of the last one."""

    address: str
    channel: object
    seen_at: float
    timeout_s: float
    epoch: int = -1
    max_offset: int = -1
    priority: int = PRIORITY_LAST

    def expires_before(self, now: float) -> bool:
        return self.seen_at + self.timeout_s < now

    @property
    def progress(self) -> tuple[int, int]:
        return self.epoch, self.max_offset


@dataclass(slots=True)
class LiveTable:
    """Brokers by key. `started_at` is when this controller began to listen."""

    started_at: float
    unseen_grace_s: float
    _brokers: dict[BrokerKey, LiveBroker] = field(default_factory=dict)
    _seen: set[BrokerKey] = field(default_factory=set)

    def beat(self, beat: BrokerHeartbeat, broker_id: int, channel: object, now: float) -> bool:
        """Record a heartbeat; return whether the broker was not alive before.

        A second broker with the same id, such as one with a copied store, is not recorded.
        """
        key = BrokerKey(beat.cluster_name, beat.broker_name, broker_id)
        timeout_s = (TIMEOUT_MS if beat.heartbeat_timeout_ms is None else beat.heartbeat_timeout_ms) / 1000
        known = self._brokers.get(key)
        is_known = known is not None and not known.expires_before(now)
        if is_known and known is not None and known.address != beat.broker_addr:
            log.warning(
                "heartbeat ignored broker=%s id=%d address=%s reason=%s has this id and is alive",
                beat.broker_name, broker_id, beat.broker_addr, known.address,
            )  # fmt: skip
            return False
        if key not in self._seen and len(self._seen) >= BROKERS_MAX:
            log.warning(
                "heartbeat ignored address=%s reason=%d brokers are known", beat.broker_addr, BROKERS_MAX
            )
            return False
        self._seen.add(key)
        self._brokers[key] = LiveBroker(
            address=beat.broker_addr,
            channel=channel,
            seen_at=now,
            timeout_s=timeout_s,
            epoch=-1 if beat.epoch is None else beat.epoch,
            max_offset=-1 if beat.max_offset is None else beat.max_offset,
            priority=PRIORITY_LAST if beat.election_priority is None else beat.election_priority,
        )
        return not is_known

    def drop_channel(self, channel: object) -> list[BrokerKey]:
        """Remove the brokers whose last heartbeat came over this connection; return them."""
        return self._drop([key for key, broker in self._brokers.items() if broker.channel is channel])

    def expire(self, now: float) -> list[BrokerKey]:
        """Remove the brokers that were silent for too long; return them."""
        return self._drop([key for key, broker in self._brokers.items() if broker.expires_before(now)])

    def _drop(self, gone: list[BrokerKey]) -> list[BrokerKey]:
        for key in gone:
            del self._brokers[key]
        return gone

    def alive(self, cluster: str, name: str, now: float) -> Mapping[int, LiveBroker]:
        """Return the living brokers of a name by id."""
        return {
            key.broker_id: broker
            for key, broker in list(self._brokers.items())  # metrics are read by another thread
            if key.cluster == cluster and key.name == name and not broker.expires_before(now)
        }

    def is_awaited(self, key: BrokerKey, now: float) -> bool:
        """Return whether this broker was never heard of, and the controller is too young to call it dead.

        Otherwise a restarted controller would replace masters that are only about to connect.
        """
        return key not in self._seen and now < self.started_at + self.unseen_grace_s

    def count(self) -> Iterator[tuple[str, str, int]]:
        """Yield cluster, name and the number of living brokers."""
        counts: dict[tuple[str, str], int] = {}
        for key in list(self._brokers):
            counts[key.cluster, key.name] = counts.get((key.cluster, key.name), 0) + 1
        for (cluster, name), number in counts.items():
            yield cluster, name, number
