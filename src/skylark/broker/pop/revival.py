"""Revival: reads check points and acknowledgements, and delivers again what was not acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from skylark.broker.delayed.timers import Timers
from skylark.broker.groups import SubscriptionGroups
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.check_points import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    REPUT_DELAYS_S,
    Acknowledgement,
    CheckPoint,
    MergeKey,
)
from skylark.broker.pop.popped_batches import PoppedBatches
from skylark.broker.pop.retries import Retries
from skylark.broker.pop.revive_log import ReviveLog
from skylark.broker.record_loader import ReadCold
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import CorruptRecord
from skylark.model import names
from skylark.model.message import StoredMessage
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.log_reader import GetResult, GetStatus
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

RECORDS_AT_ONCE = 32
FAILURE_PAUSE_S = 0.5


@dataclass(slots=True)
class _PendingCheckPoint:
    """A check point of the revive topic whose time has not come."""

    check_point: CheckPoint
    revive_offset: int
    acked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _ReviveQueue:
    """How far a queue of the revive topic was read."""

    next_offset: int
    pending: dict[MergeKey, _PendingCheckPoint] = field(default_factory=dict)
    end: int = 0
    """Where the last message delivered again ends in the log."""


class _WheelTime:
    """Up to when everything that the timer wheel let out can be read."""

    def __init__(self, store: MessageStore, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._noted_ms = 0
        self._noted_end = 0
        self.reached_ms = 0

    def note(self) -> None:
        """Records of a time are appended before the wheel passes it, and readable once they are confirmed."""
        if self._store.confirmed_offset >= self._noted_end:
            self.reached_ms = max(self.reached_ms, self._noted_ms)
            self._noted_ms, self._noted_end = self._timers.read_ms, self._store.appended_offset
            if self._store.confirmed_offset >= self._noted_end:
                self.reached_ms = max(self.reached_ms, self._noted_ms)


class Revival:
    """Loop thread. Runs on masters only."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        store: MessageStore,
        timers: Timers,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        batches: PoppedBatches,
        revive_log: ReviveLog,
        retries: Retries,
        read_cold: ReadCold,
    ) -> None:
        self._live = live
        self._clock = clock
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._batches = batches
        self._log = revive_log
        self._retries = retries
        self._read_cold = read_cold
        self._time = _WheelTime(store, timers)
        self._queues: dict[int, _ReviveQueue] = {}
        self.read: Counter[tuple[str, str, int, str]] = Counter()
        """Records read by group, topic, revive queue and kind (CK, ACK)."""

    async def run(self) -> None:
        """Read and deliver periodically, until cancelled."""
        while True:
            await asyncio.sleep(self._live.current.pop.revive_interval_ms / 1000)
            try:
                await self.step()
            except Exception:
                log.exception("revival of popped messages failed, retrying")
                await asyncio.sleep(FAILURE_PAUSE_S)

    @property
    def is_waiting(self) -> bool:
        """Whether an offset is not committed because the log is not on disk."""
        return any(state.end > self._store.durable_offset for state in self._queues.values())

    def stop(self) -> None:
        """Commit what is dealt with."""
        for queue_id, state in self._queues.items():
            self._commit(queue_id, state)
        self.abandon()

    def abandon(self) -> None:
        """Forget what was read; a later start begins at the committed offsets."""
        self._queues.clear()

    async def step(self) -> None:
        """Read what is new, and deliver again what is due."""
        self._time.note()
        for queue_id in range(self._live.current.revive_queues):
            queue = self._store.queues.get((self._log.topic, queue_id))
            if queue is not None:
                await self._step(queue)

    def lags(self) -> Iterator[tuple[int, int, int]]:
        """Yield revive queue, records not dealt with, and by how many milliseconds the first is late."""
        now_ms = self._clock.now_ms()
        for queue_id, state in self._queues.items():
            queue = self._store.queues.get((self._log.topic, queue_id))
            if queue is None:
                continue
            first = next(iter(state.pending.values()), None)
            behind = queue.max_offset - (first.revive_offset if first is not None else state.next_offset)
            late_ms = now_ms - first.check_point.revive_time if first is not None else 0
            yield queue_id, max(behind, 0), max(late_ms, 0)

    # --- One queue ---

    async def _step(self, queue: ConsumeQueue) -> None:
        state = self._state(queue)
        if state.next_offset == queue.max_offset and not state.pending:
            self._commit(queue.queue_id, state)
            return
        while state.next_offset < queue.max_offset:
            await self._read_some(queue, state)
        for key, pending in list(state.pending.items()):
            if pending.check_point.revive_time <= self._time.reached_ms:
                if await self._deliver(queue.queue_id, pending, state):
                    del state.pending[key]
        self._commit(queue.queue_id, state)

    def _state(self, queue: ConsumeQueue) -> _ReviveQueue:
        state = self._queues.get(queue.queue_id)
        if state is None:
            done = self._offsets.query(self._log.topic, names.REVIVE_GROUP, queue.queue_id)
            # The committed offset is that of the last record that was dealt with, as in RocketMQ.
            state = self._queues[queue.queue_id] = _ReviveQueue(0 if done is None else done + 1)
        state.next_offset = min(max(state.next_offset, queue.min_offset), queue.max_offset)
        return state

    async def _read_some(self, queue: ConsumeQueue, state: _ReviveQueue) -> None:
        def read(*, may_block: bool) -> GetResult:
            return self._store.reader.get(queue, state.next_offset, RECORDS_AT_ONCE, may_block=may_block)

        result = read(may_block=False)
        if result.status is GetStatus.COLD:
            result = await self._read_cold(lambda: read(may_block=True))
        try:
            messages = result.messages()
        except CorruptRecord as error:
            log.warning("records of pops are lost: %s", error)
            messages = []
        for message in messages:
            self._note(queue.queue_id, message, state)
        state.next_offset = max(result.next_offset, state.next_offset + 1)
        await asyncio.sleep(0)

    def _note(self, queue_id: int, message: StoredMessage, state: _ReviveQueue) -> None:
        broker_name = self._live.current.name
        try:
            if message.tags == CHECK_POINT_TAG:
                check_point = CheckPoint.decode(message.body, broker_name)
                state.pending[check_point.key] = _PendingCheckPoint(check_point, message.queue_offset)
                self._count(check_point.group, check_point.topic, queue_id, "CK")
            elif message.tags in (ACK_TAG, BATCH_ACK_TAG):
                ack = Acknowledgement.decode(message.body, broker_name)
                pending = state.pending.get(ack.key)
                if pending is not None:
                    pending.acked.update(ack.offsets)
                self._count(ack.group, ack.topic, queue_id, "ACK")
        except ValueError as error:
            log.warning("record of a pop left out queue_offset=%d reason=%s", message.queue_offset, error)

    def _count(self, group: str, topic: str, queue_id: int, kind: str) -> None:
        self.read[group, topic, queue_id, kind] += 1

    async def _deliver(self, queue_id: int, pending: _PendingCheckPoint, state: _ReviveQueue) -> bool:
        """Deliver the open messages of a check point again; return whether it is dealt with."""
        check_point = pending.check_point
        topic, group = check_point.topic, check_point.group
        left = [each for each in check_point.offsets if each not in pending.acked]
        if not left or not self._is_known(topic, group):
            return True
        outcome = await self._retries.put(topic, group, check_point.queue_id, left, check_point.pop_time)
        state.end = max(state.end, outcome.end)
        self._batches.settled_elsewhere(topic, group, len(left) - len(outcome.failed))
        pending.acked.update(set(left) - set(outcome.failed))
        return not outcome.failed or self._reput(queue_id, check_point, outcome.failed, state)

    def _is_known(self, topic: str, group: str) -> bool:
        normal = names.normal_topic(topic, group)
        return self._topics.get(normal) is not None and self._groups.get(group) is not None

    def _reput(self, queue_id: int, check_point: CheckPoint, failed: list[int], state: _ReviveQueue) -> bool:
        """Try messages that could not be delivered again later."""
        if self._live.current.pop.drops_after_reputs and check_point.reputs >= len(REPUT_DELAYS_S):
            log.error(
                "popped messages given up group=%s topic=%s queue_id=%d offsets=%s",
                check_point.group, check_point.topic, check_point.queue_id, failed,
            )  # fmt: skip
            return True
        now_ms = self._clock.now_ms()
        ends = self._log.put([(queue_id, check_point.reput(each, now_ms)) for each in failed])
        state.end = max([state.end, *(end for end in ends if end is not None)])
        return None not in ends

    def _commit(self, queue_id: int, state: _ReviveQueue) -> None:
        """Commit up to the first record that is still needed, once what was delivered again is on disk."""
        if state.end > self._store.durable_offset:
            return
        first = next(iter(state.pending.values()), None)
        done = (first.revive_offset if first is not None else state.next_offset) - 1
        topic = self._log.topic
        if done >= 0 and self._offsets.query(topic, names.REVIVE_GROUP, queue_id) != done:
            self._offsets.try_commit(topic, names.REVIVE_GROUP, queue_id, done, now_ms=self._clock.now_ms())
