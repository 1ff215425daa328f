"""Pops: pop consumption of one broker, composed; acknowledgements, and what is done when time is up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from skylark.broker.delayed.timers import Timers
from skylark.broker.error_replies import system_error
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.check_points import Acknowledgement, CheckPoint, PopRecord
from skylark.broker.pop.ordered_batches import OrderedBatches
from skylark.broker.pop.pop_reader import PopReader
from skylark.broker.pop.popped_batches import PoppedBatch, PoppedBatches
from skylark.broker.pop.retries import Retries
from skylark.broker.pop.revival import Revival
from skylark.broker.pop.revive_log import ReviveLog
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.protocol.pop_handle import PopHandle
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

SCAN_S = 0.05
RETRY_MS = 500
"""When a batch is tried again whose record could not be stored."""
BATCHES_AT_ONCE = 64


class Pops:
    """Loop thread. Start it on a master; stop it before the broker ends; abandon it if another leads."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        timers: Timers,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        read_cold: ReadCold,
        host: bytes,
    ) -> None:
        """`host` is the broker's address as records hold it."""
        self._live = live
        self._clock = clock
        self._store = store
        self._offsets = offsets
        self._read_cold = read_cold
        self._tasks = Tasks()
        self.batches = PoppedBatches(self._commit)
        self.ordered = OrderedBatches()
        self.log = ReviveLog(live, clock, store, timers, host)
        self.retries = Retries(live, clock, store, topics, offsets, stats, read_cold, host)
        random = Random()  # noqa: S311 - it only spreads pops over queues
        self.reader = PopReader(
            live, clock, store, topics, groups, offsets, self.batches, self.ordered, stats, random
        )
        self.revival = Revival(
            live, clock, store, timers, topics, groups, offsets, self.batches, self.log, self.retries,
            read_cold,
        )  # fmt: skip

    def _commit(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        if not self._offsets.is_reset_pending(topic, group, queue_id):
            self._offsets.try_commit(topic, group, queue_id, queue_offset, now_ms=self._clock.now_ms())

    # --- Life ---

    def start(self) -> None:
        self._tasks.spawn(self._run())
        self._tasks.spawn(self.revival.run())

    async def stop(self) -> None:
        """Replace everything in memory by check points, and commit what that allows.

        Without it, as after a crash, the committed offsets are further behind, and messages come twice.
        """
        await self._tasks.close()
        self._store_check_points(self.batches.take_all())
        if self.batches.is_waiting or self.revival.is_waiting:
            end = self._store.appended_offset
            await self._read_cold(lambda: self._store.make_durable(end))
            self.batches.commit_durable(self._store.durable_offset)
        self.batches.clear()
        self.revival.stop()

    async def abandon(self) -> None:
        """Forget everything, as a crash does: another broker is the master, and this log may be cut.

        A check point written now may not survive, so no offset may be committed on its account.
        """
        await self._tasks.close()
        self.batches.clear()
        self.revival.abandon()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SCAN_S)
            try:
                await self.step()
            except Exception:
                log.exception("popped messages were not looked after, retrying")

    async def step(self) -> None:
        """Replace batches whose time in memory is over by what is in the log."""
        now_ms = self._clock.now_ms()
        due = self.batches.take_due(now_ms)
        if due:
            later = [batch for batch in due if batch.revive_time > now_ms]
            for first in range(0, len(later), BATCHES_AT_ONCE):
                self._store_check_points(later[first : first + BATCHES_AT_ONCE])
                await asyncio.sleep(0)
            for batch in due:
                if batch.revive_time <= now_ms:
                    await self._deliver_again(batch)
        if self.batches.is_waiting:
            self.batches.commit_durable(self._store.durable_offset)

    def _store_check_points(self, batches: Sequence[PoppedBatch]) -> None:
        """Write the check points of open batches: of the messages that are not acknowledged."""
        records: list[tuple[int, PopRecord]] = [
            (batch.revive_queue_id, self._check_point(batch)) for batch in batches
        ]
        for batch, end in zip(batches, self.log.put(records) if records else (), strict=True):
            if end is None:
                self.batches.retry(batch, self._clock.now_ms() + RETRY_MS)
            else:
                self.batches.replaced(batch, end, is_redelivered=False)

    def _check_point(self, batch: PoppedBatch) -> CheckPoint:
        return CheckPoint(
            batch.topic, batch.group, batch.queue_id, batch.start_offset, batch.open_offsets, batch.pop_time,
            batch.invisible_time, self._live.current.name,
        )  # fmt: skip

    async def _deliver_again(self, batch: PoppedBatch) -> None:
        """Put what is open of a batch into the retry topic: it was never written as a check point."""
        offsets = batch.open_offsets
        outcome = await self.retries.put(batch.topic, batch.group, batch.queue_id, offsets, batch.pop_time)
        batch.durable_end = max(batch.durable_end, outcome.end)
        if not outcome.failed:
            self.batches.replaced(batch, outcome.end, is_redelivered=True)
            return
        done = [each for each in offsets if each not in outcome.failed]
        self.batches.acknowledge(batch.lane, batch.start_offset, batch.pop_time, done)
        self.batches.retry(batch, self._clock.now_ms() + RETRY_MS)

    def forget_topic(self, topic: str) -> None:
        """Forget the positions of groups in a topic that is deleted."""
        self.batches.forget_topic(topic)
        self.ordered.forget_topic(topic)

    # --- Clients ---

    def acknowledge(
        self, topic: str, group: str, queue_id: int, handle: PopHandle, offsets: Sequence[int]
    ) -> None:
        """Acknowledge messages of one check point. Raises BrokerError 1 if that cannot be stored."""
        lane = (topic, group, queue_id)
        if self.batches.acknowledge(lane, handle.start_offset, handle.pop_time, offsets):
            return
        ack = Acknowledgement(
            topic, group, queue_id, handle.start_offset, offsets, handle.pop_time, handle.invisible_time,
            handle.broker_name,
        )  # fmt: skip
        if None in self.log.put([(handle.revive_queue_id, ack)]):
            raise system_error("the acknowledgement could not be stored; acknowledge again")
        self.batches.settled_elsewhere(topic, group, len(offsets))

    def change_invisible_time(
        self, topic: str, group: str, queue_id: int, handle: PopHandle, queue_offset: int, invisible_time: int
    ) -> int:
        """Give a message a check point of its own, from now on; return its pop time.

        Raises BrokerError 1 if it cannot be stored; then everything is as before.
        """
        # Later than that of the handle: an acknowledgement of the old check point must not match the new one.
        pop_time = max(self._clock.now_ms(), handle.pop_time + 1)
        check_point = CheckPoint(
            topic, group, queue_id, queue_offset, [queue_offset], pop_time, invisible_time,
            self._live.current.name,
        )  # fmt: skip
        [end] = self.log.put([(handle.revive_queue_id, check_point)])
        if end is None:
            raise system_error("the new invisible time could not be stored; change it again")
        batch = self.batches.find((topic, group, queue_id), handle.start_offset, handle.pop_time)
        if batch is not None:
            batch.durable_end = max(batch.durable_end, end)
        self.acknowledge(topic, group, queue_id, handle, [queue_offset])
        self.batches.in_flight[topic, group] += 1  # it stays with its consumer
        return pop_time
