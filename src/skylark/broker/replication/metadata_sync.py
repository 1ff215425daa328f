"""Copies what is not in the log from the master to a slave, periodically: topics, groups, offsets, modes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from skylark.broker.delayed.delay_levels import DelayLevels
from skylark.broker.delayed.timers import SlaveTimers
from skylark.broker.groups import RequestModes, SubscriptionGroups
from skylark.broker.offsets import SEPARATOR, ConsumerOffsets
from skylark.broker.pop.ordered_batches import OrderedBatches
from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.role import SlaveStatus
from skylark.broker.replication.user_sync import UserSync
from skylark.broker.topic_lifecycle import TopicDeletion
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError, MalformedFrame, SystemBusy
from skylark.protocol.bodies import ConsumerOffsetTable
from skylark.protocol.connection import Limits
from skylark.protocol.requests.admin import GetTimerCheckPoint, GetTimerMetrics
from skylark.protocol.requests.client import GetAllMessageRequestMode
from skylark.protocol.requests.group import GetAllSubscriptionGroupConfig
from skylark.protocol.requests.offset import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    UpdateConsumerOffset,
)
from skylark.protocol.requests.topic import GetAllTopicConfig
from skylark.remoting.address import join_address, split_address
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.store.replica import CopyMark
from skylark.store.timer_files import CHECKPOINT_FIELDS as TIMER_CHECK
from skylark.store.timer_files import TimerCheckpoint

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
METADATA_LIMITS = Limits(header_bytes_max=16 << 20, frame_bytes_max=256 << 20)


class MetadataSync:
    """Copies from a master's fast port everything that is not in the log. Loop thread."""

    def __init__(
        self,
        *,
        clock: Clock,
        status: SlaveStatus,
        topics: TopicTable,
        groups: SubscriptionGroups,
        request_modes: RequestModes,
        offsets: ConsumerOffsets,
        ordered: OrderedBatches,
        delay_levels: DelayLevels,
        timers: SlaveTimers,
        deletion: TopicDeletion,
        copy_mark: CopyMark,
        save_offsets: Callable[[], Awaitable[None]],
        make_batched: Callable[[], None],
        read_cold: ReadCold,
        pool: ConnectionPool,
        users: UserSync | None,
    ) -> None:
        """`save_offsets` returns when the offsets are on disk. `users` is None without access control.

        `make_batched` is called in a thread after topics have changed.
        """
        self._clock = clock
        self._status = status
        self._topics = topics
        self._groups = groups
        self._request_modes = request_modes
        self._offsets = offsets
        self._ordered = ordered
        self._delay_levels = delay_levels
        self._timers = timers
        self._deletion = deletion
        self._copy_mark = copy_mark
        self._save_offsets = save_offsets
        self._make_batched = make_batched
        self._read_cold = read_cold
        self.pool = pool
        self._users = users
        offsets.stray = set()
        self._masters: set[str] = set()
        """The master's topics at the last synchronization."""

    async def run(self, master_address: str) -> None:
        """Copy everything once. Raises RemotingError, and BrokerError if the master refuses."""
        host, port = split_address(master_address)
        address = join_address(host, port - FAST_PORT_DISTANCE)
        failure: BrokerError | None = None
        steps: list[Callable[[str], Awaitable[None]]] = [
            self._sync_topics, self._sync_groups, self._sync_offsets, self._sync_delays, self._sync_modes,
            self._sync_timers,
        ]  # fmt: skip
        if self._users is not None:
            steps.append(self._users.run)
        for step in steps:
            try:
                await step(address)
            except BrokerError as error:
                log.warning("cannot copy metadata from the master address=%s reason=%s", address, error)
                failure = failure or error
        if failure is not None:
            raise failure
        self._status.metadata_ms = self._clock.now_ms()

    async def _sync_topics(self, address: str) -> None:
        table = await self.pool.call(address, GetAllTopicConfig(), timeout_s=TIMEOUT_S)
        if table.data_version == self._topics.data_version:
            self._masters = set(table.topic_config_table)
            return
        gone, self._masters = self._masters, set(table.topic_config_table)
        removed = self._topics.follow(table)
        await self._read_cold(self._make_batched)
        # Only topics that the master had before: those created here since its reply are not deleted.
        for topic in gone.intersection(removed):
            log.info("topic deleted on the master topic=%s", topic)
            await self._deletion.delete(topic, was_configured=True)

    async def _sync_groups(self, address: str) -> None:
        table = await self.pool.call(address, GetAllSubscriptionGroupConfig(), timeout_s=TIMEOUT_S)
        if table.data_version != self._groups.data_version:
            self._groups.follow(table)

    async def _sync_offsets(self, address: str) -> None:
        table = await self.pool.call(address, GetAllConsumerOffset(), timeout_s=TIMEOUT_S)
        await self._tell_offsets(address, table)
        self._offsets.follow(table)
        try:
            self._ordered.follow(table.consumer_order_info)
        except ValueError as error:
            raise MalformedFrame(f"the master's consumerOrderInfo is not understood: {error}") from error
        if not self._status.is_copy:
            await self._save_offsets()
            await self._read_cold(self._copy_mark.set)
            self._status.is_copy = True

    async def _tell_offsets(self, address: str, table: ConsumerOffsetTable) -> None:
        """Send the master the offsets that were committed here: else its groups would go back."""
        offsets = self._offsets
        while offsets.stray:
            topic, group, queue_id = place = next(iter(offsets.stray))
            queues = table.offset_table.setdefault(topic + SEPARATOR + group, {})
            queue_offset = offsets.query(topic, group, queue_id) or 0
            if queue_offset > queues.get(queue_id, 0):  # else its members are ahead already
                request = UpdateConsumerOffset(group, topic, queue_id, queue_offset)
                try:
                    await self.pool.call(address, request, timeout_s=TIMEOUT_S)
                    queues[queue_id] = queue_offset
                except SystemBusy:
                    raise  # retried later
                except BrokerError as error:  # the topic or the group was deleted
                    log.warning("master refused offset topic=%s group=%s reason=%s", topic, group, error)
            if (offsets.query(topic, group, queue_id) or 0) == queue_offset:  # else there is a newer one
                offsets.stray.discard(place)
                offsets.changes += 1  # the file still has it

    async def _sync_delays(self, address: str) -> None:
        table = await self.pool.call(address, GetAllDelayOffset(), timeout_s=TIMEOUT_S)
        self._delay_levels.follow(table)

    async def _sync_modes(self, address: str) -> None:
        table = await self.pool.call(address, GetAllMessageRequestMode(), timeout_s=TIMEOUT_S)
        self._request_modes.follow(table)

    async def _sync_timers(self, address: str) -> None:
        try:
            check = await self.pool.call(address, GetTimerCheckPoint(), timeout_s=TIMEOUT_S)
            metrics = await self.pool.call(address, GetTimerMetrics(), timeout_s=TIMEOUT_S)
        except BrokerError as error:
            log.debug("the master has no timer address=%s reason=%s", address, error)
            return
        if len(check) < TIMER_CHECK.size:
            raise MalformedFrame(f"the master's timer check point has {len(check)} bytes")
        self._timers.follow(TimerCheckpoint.decode(bytes(check)), metrics)
