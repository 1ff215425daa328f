"""Timed messages on a slave: its own wheel turns with the master's time, and delivers nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from skylark.broker.late_records import ReadCold
from skylark.broker.stats import BrokerStats
from skylark.broker.timer import MARGIN_MS, TimerHost, Timers
from skylark.clock import Clock
from skylark.model.message import PutMessage
from skylark.protocol.stats_bodies import TimerMetrics
from skylark.settings import BrokerSettings
from skylark.settings.live import Live
from skylark.store.disk import Disk
from skylark.store.message_store import MessageStore
from skylark.store.timer_check import TimerCheck


class MasterTime:
    """The clock of a wheel that follows another: what the master has not dealt with lies ahead."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.read_ms: int | None = None
        """The next slot that the master deals with, as far as it is known."""

    @property
    def latest_ms(self) -> int:
        """What was due before this, a master that lives has dealt with, if it can."""
        return self._clock.now_ms() - MARGIN_MS

    def now_ms(self) -> int:
        return self.latest_ms if self.read_ms is None else self.read_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


class _Host:
    """The broker, but for its clock."""

    def __init__(self, broker: TimerHost, clock: Clock) -> None:
        self._broker = broker
        self.live: Live[BrokerSettings] = broker.live
        self.clock = clock
        self.store: MessageStore = broker.store
        self.stats: BrokerStats = broker.stats

    @property
    def read_cold(self) -> ReadCold:
        return self._broker.read_cold

    def adopt_undeleted(self, queues_by_topic: Mapping[str, int]) -> None:
        """Nothing is delivered, so nothing is missing."""


class SlaveTimers(Timers):
    """What waits is in the wheel here, too: a slave that is made master goes on with it.

    The slots that the master has dealt with since it was last asked are then dealt with once more.
    """

    def __init__(self, broker: TimerHost, disk: Disk, root: Path) -> None:
        self._time = MasterTime(broker.clock)
        super().__init__(_Host(broker, self._time), disk, root)

    def follow(self, check: TimerCheck, metrics: TimerMetrics) -> None:
        """Take how far the master is. It says so only now and then: empty slots are passed over."""
        # What it says may be years old, or nothing at all: what was dealt with here needs no second look.
        read_ms = max(check.read_ms, self._time.read_ms or self.read_ms)
        while read_ms < self._time.latest_ms and self.wheel.get(read_ms) is None:
            read_ms += self._precision_ms
        self._time.read_ms = read_ms
        counts = Counter({topic: max(each.count, 0) for topic, each in metrics.timing_count.items()})
        if counts != self._counts:
            self._counts = counts
            self.changes += 1

    async def step(self) -> None:
        if self._time.read_ms is not None:
            # The end of the log may have been cut off.
            self.queue_offset = min(self.queue_offset, self._queue().max_offset)
            await super().step()

    async def _put(self, messages: list[PutMessage]) -> None:
        """The master has delivered them."""

    def _count_all(self, counts: Mapping[str, int]) -> None:
        """The master counts."""
