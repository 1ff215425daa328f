"""Copies topics, groups, offsets and request modes from the master to a slave, periodically."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from skylark.broker.delayed.timers import SlaveTimers
from skylark.broker.offsets import SEPARATOR
from skylark.broker.state import BrokerState
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
from skylark.store.timer_files import CHECKPOINT_FIELDS as TIMER_CHECK
from skylark.store.timer_files import TimerCheckpoint

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
METADATA_LIMITS = Limits(header_bytes_max=16 << 20, frame_bytes_max=256 << 20)


class MetadataSync:
    """Asks a master, on its fast port, for all that is in no log. Loop thread."""

    def __init__(self, broker: BrokerState, pool: ConnectionPool) -> None:
        self._broker = broker
        self._pool = pool
        self._masters: set[str] = set()
        """The topics that the master had when it was last asked."""

    async def run(self, master_address: str) -> None:
        """Take everything once. Raises RemotingError if the master is away, BrokerError if it refuses."""
        host, port = split_address(master_address)
        address = join_address(host, port - FAST_PORT_DISTANCE)
        failure: BrokerError | None = None
        steps: list[Callable[[str], Awaitable[None]]] = [
            self._topics, self._groups, self._offsets, self._delays, self._modes, self._timer,
        ]  # fmt: skip
        for step in steps:
            try:
                await step(address)
            except BrokerError as error:
                log.warning("metadata not taken from the master address=%s reason=%s", address, error)
                failure = failure or error
        if failure is not None:
            raise failure
        self._broker.slave_status.metadata_ms = self._broker.clock.now_ms()

    async def _topics(self, address: str) -> None:
        broker = self._broker
        table = await self._pool.call(address, GetAllTopicConfig(), timeout_s=TIMEOUT_S)
        if table.data_version == broker.topics.data_version:
            self._masters = set(table.topic_config_table)
            return
        gone, self._masters = self._masters, set(table.topic_config_table)
        # Only what the master had and has no more: what it has made since it answered is not gone.
        for topic in gone.intersection(broker.topics.follow(table)):
            log.info("topic is gone from the master topic=%s", topic)
            broker.offsets.delete_topic(topic)
            broker.long_polling.wake_topic(topic)
            async with broker.deleting:
                await broker.read_cold(partial(broker.store.housekeeper.delete_topic, topic))

    async def _groups(self, address: str) -> None:
        table = await self._pool.call(address, GetAllSubscriptionGroupConfig(), timeout_s=TIMEOUT_S)
        if table.data_version != self._broker.groups.data_version:
            self._broker.groups.follow(table)

    async def _offsets(self, address: str) -> None:
        table = await self._pool.call(address, GetAllConsumerOffset(), timeout_s=TIMEOUT_S)
        await self._tell_offsets(address, table)
        broker = self._broker
        broker.offsets.follow(table)
        if not broker.slave_status.is_copy:
            await broker.keep_offsets()
            await broker.read_cold(broker.copy_mark.set)
            broker.slave_status.is_copy = True

    async def _tell_offsets(self, address: str, table: ConsumerOffsetTable) -> None:
        """Tell the master what was committed here instead of there: else its groups would go back."""
        offsets = self._broker.offsets
        while offsets.stray:
            topic, group, queue_id = place = next(iter(offsets.stray))
            queues = table.offset_table.setdefault(topic + SEPARATOR + group, {})
            queue_offset = offsets.query(topic, group, queue_id) or 0
            if queue_offset > queues.get(queue_id, 0):  # else its members have moved on already
                request = UpdateConsumerOffset(group, topic, queue_id, queue_offset)
                try:
                    await self._pool.call(address, request, timeout_s=TIMEOUT_S)
                    queues[queue_id] = queue_offset
                except SystemBusy:
                    raise  # it takes it later
                except BrokerError as error:  # the topic or the group is gone
                    log.warning(
                        "offset not taken by the master topic=%s group=%s reason=%s", topic, group, error
                    )
            if (offsets.query(topic, group, queue_id) or 0) == queue_offset:  # else there is more to tell
                offsets.stray.discard(place)
                offsets.changes += 1  # the file has it still

    async def _delays(self, address: str) -> None:
        table = await self._pool.call(address, GetAllDelayOffset(), timeout_s=TIMEOUT_S)
        self._broker.schedule.follow(table)

    async def _modes(self, address: str) -> None:
        table = await self._pool.call(address, GetAllMessageRequestMode(), timeout_s=TIMEOUT_S)
        self._broker.request_modes.follow(table)

    async def _timer(self, address: str) -> None:
        timers = self._broker.timers
        assert isinstance(timers, SlaveTimers)
        try:
            check = await self._pool.call(address, GetTimerCheckPoint(), timeout_s=TIMEOUT_S)
            metrics = await self._pool.call(address, GetTimerMetrics(), timeout_s=TIMEOUT_S)
        except BrokerError as error:
            log.debug("the master has no timer address=%s reason=%s", address, error)
            return
        if len(check) < TIMER_CHECK.size:
            raise MalformedFrame(f"the master's timer check point has {len(check)} bytes")
        timers.follow(TimerCheckpoint.decode(bytes(check)), metrics)
