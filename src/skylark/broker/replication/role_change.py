"""Changes the role of a running broker: stops and starts what belongs to a role, and tells the others.

Sends, pulls and requests ask `Role`; everything else that depends on the role is switched here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from skylark.broker.clients import QueueLockTable
from skylark.broker.delayed.delay_levels import DelayLevels
from skylark.broker.delayed.timers import SlaveTimers
from skylark.broker.handlers.pull import PullPath
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.pops import Pops
from skylark.broker.record_loader import ReadCold
from skylark.broker.registration import Registration
from skylark.broker.replication.group_master import GroupReplication
from skylark.broker.replication.group_slave import GroupSlave
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.clock import Clock
from skylark.protocol.bodies import SyncStateSet
from skylark.settings import BrokerRole
from skylark.store.epochs import EpochEntry, EpochFile
from skylark.store.message_store import MessageStore
from skylark.store.replica import CopyMark
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

Service = Callable[[], Coroutine[Any, Any, None]]


class RoleChange:
    """Makes a broker a master or a slave. Loop thread; one change at a time."""

    def __init__(
        self,
        *,
        clock: Clock,
        role: Role,
        store: MessageStore,
        epoch_file: EpochFile,
        copy_mark: CopyMark,
        replication: GroupReplication,
        slave: GroupSlave,
        registration: Registration,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        locks: QueueLockTable,
        delay_levels: DelayLevels,
        timers: SlaveTimers,
        transactions: TransactionCoordinator,
        pulls: PullPath,
        pops: Pops,
        read_cold: ReadCold,
        restore_topics: Callable[[], None],
        master_services: Sequence[Service],
    ) -> None:
        """`restore_topics` adds topics that only the store has; `master_services` run on a master."""
        self._clock = clock
        self._role = role
        self._store = store
        self._epoch_file = epoch_file
        self._copy_mark = copy_mark
        self._replication = replication
        self._slave = slave
        self._registration = registration
        self._topics = topics
        self._offsets = offsets
        self._locks = locks
        self._delay_levels = delay_levels
        self._timers = timers
        self._transactions = transactions
        self._pulls = pulls
        self._pops = pops
        self._read_cold = read_cold
        self._restore_topics = restore_topics
        self._master_services = master_services
        self._services = Tasks()
        self.count = 0
        """Changes since the start."""

    async def stop(self) -> None:
        """End the services of the role."""
        await self._services.close()
        await self._slave.leave()

    # --- To master ---

    async def to_master(self, epoch: int, own_id: int, decided: SyncStateSet) -> None:
        """Become the master of a new epoch. Raises BadStoreFile, OSError, DiskFull, StoreFailed."""
        began = self._clock.monotonic()
        role = self._role
        was_slave = role.is_slave
        await self.stop()
        if was_slave:
            await self._slave.last_metadata()
            on_arrival, self._store.on_arrival = self._store.on_arrival, None  # not from a thread
            try:
                await self._read_cold(partial(self._take_over, epoch))
            finally:
                self._store.on_arrival = on_arrival
            self._restore_topics()
            self._delay_levels.settle()
            self._timers.lead()
            self._offsets.stray = None
            role.slave.is_copy = role.slave.sees_master = False
        else:
            await self._read_cold(partial(self._begin_epoch, epoch))
        role.kind, role.broker_id, role.epoch = BrokerRole.SYNC_MASTER, 0, epoch
        self._replication.lead(own_id, decided)
        self._store.advance()
        self._announce(epoch)
        self._start(*self._master_services)
        if was_slave:
            self._pops.start()
        elapsed_ms = (self._clock.monotonic() - began) * 1000
        log.warning(
            "became the master epoch=%d physical_offset=%d took_ms=%d", epoch, self._store.appended_offset,
            elapsed_ms,
        )  # fmt: skip

    def _take_over(self, epoch: int) -> None:
        """In a thread: end the log, write the epoch, find open transactions."""
        store = self._store
        store.follow_no_more()
        store.make_declared_batched(unknown=lambda topic: self._topics.get(topic) is None)
        self._begin_epoch(epoch)
        self._copy_mark.clear()
        store.is_replica = False
        self._transactions.load()

    def _begin_epoch(self, epoch: int) -> None:
        """The epoch is durable before the first message of it is stored."""
        if epoch != self._epoch_file.epochs.last_epoch:
            self._epoch_file.append(EpochEntry(epoch, self._store.appended_offset))

    # --- To slave ---

    async def to_slave(self, epoch: int, own_id: int, master_address: str) -> None:
        """Follow the master of a new epoch."""
        role = self._role
        was_master = not role.is_slave
        role.kind, role.broker_id, role.epoch = BrokerRole.SLAVE, own_id, epoch
        if role.lease is not None:
            role.lease.end()
            if was_master:
                role.demoted_at = role.lease.now()
        self._replication.follow()
        await self.stop()
        if was_master:
            await self._pops.abandon()
            self._store.follow_another()
            # What members have confirmed is never cut; the new master asks this one for offsets.
            role.slave.is_copy = self._replication.all_ack
            self._offsets.stray = set()
            self._transactions.unload()
            self._timers.follow_another()
            self._locks.clear()
            self._pulls.forget_plans()
        self._announce(epoch)
        self._slave.broker_id = own_id
        self._slave.follow(master_address)
        self._start()
        log.warning(
            "following another master epoch=%d address=%s physical_offset=%d confirmed=%d",
            epoch, master_address, self._store.appended_offset, self._store.confirmed_offset,
        )  # fmt: skip

    # --- Both ---

    def _announce(self, epoch: int) -> None:
        self.count += 1
        self._topics.set_epoch(epoch, now_ms=self._clock.now_ms())
        self._registration.role_changed()
        self._pulls.held.wake_all()

    def _start(self, *services: Service) -> None:
        self._services = Tasks()
        for service in (self._timers.run, *services):
            self._services.spawn(service())
