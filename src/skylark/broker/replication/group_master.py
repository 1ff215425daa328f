"""The master's side of replication in controller mode: the in-sync set acknowledges messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.link import ConnectedReplica, ConnectedSlave
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.replication.role import Role
from skylark.broker.replication.sync_state import Progress, Proposal, SyncState
from skylark.clock import Clock
from skylark.protocol.bodies import HaConnectionInfo, SyncStateSet
from skylark.remoting.ha import HaLink
from skylark.remoting.tls import ServerTls
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import PutStatus
from skylark.store.epochs import EpochFile
from skylark.store.flush import FlushAnswer
from skylark.store.message_store import MessageStore
from skylark.tasks import Tasks

log = logging.getLogger(__name__)


class GroupReplication(ReplicationMaster):
    """The replicas of a master, between `lead` and `follow`; otherwise it has none. Loop thread."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        store: MessageStore,
        clock: Clock,
        role: Role,
        tasks: Tasks,
        read_cold: ReadCold,
        epoch_file: EpochFile,
        tls: ServerTls | None = None,
        *,
        is_tls_enforced: bool = False,
    ) -> None:
        super().__init__(live, store, clock, role, tasks, read_cold, tls, is_tls_enforced=is_tls_enforced)
        self._epoch_file = epoch_file
        self.state: SyncState | None = None
        """The in-sync set while this broker is the master."""
        self._reached = 0
        self._settled_at = 0
        self.all_ack = live.current.replication.all_ack
        self.on_proposal: Callable[[Proposal], None] = lambda proposal: None
        """Called with each set that is to be proposed to the controller."""

    # --- Role ---

    def lead(self, own_id: int, decided: SyncStateSet) -> None:
        """Become the master, alone or with the members of this set."""
        self.state = SyncState(own_id, decided)
        # After a restart the log may have an end that other members lack, one of which may be elected.
        self._settled_at = self._store.appended_offset
        self._role.is_settled = self._is_alone
        self._reached = self._settled_at if self._is_alone else 0
        self._confirm()

    def follow(self) -> None:
        """Stop being the master: close the links; waiting sends get a timeout reply."""
        self.state = None
        self._role.is_settled = True
        for link in list(self._slaves):
            link.abort()
        self._slaves.clear()
        self._waiters.failed()

    def stop(self) -> None:
        # Links are closed without a proposal: their replicas stay members, and one of them is elected.
        self.state = None
        super().stop()

    def adopt(self, decided: SyncStateSet) -> None:
        """Take over the controller's set."""
        if self.state is not None:
            before = self.state.members
            self.state.adopt(decided)
            if self.state.members != before:
                log.info("in-sync set members=%s epoch=%d", sorted(self.state.members), self.state.epoch)
            self._confirm()

    def refuse(self, proposal: Proposal) -> None:
        """The controller refused a proposal for certain."""
        if self.state is not None:
            self.state.refuse(proposal)
            self._confirm()

    @property
    def members(self) -> list[int]:
        return [] if self.state is None else sorted(self.state.members)

    def successors(self) -> list[int]:
        """The other members that are connected, while this broker is the master."""
        state = self.state
        return [] if state is None else sorted(self._connected().keys() & state.members)

    def has_all(self, replica_id: int) -> bool:
        """Whether a replica has the whole log, and no send waits."""
        progress = self._replicas().get(replica_id)
        end = self._store.appended_offset
        return progress is not None and progress.acknowledged == end and not len(self._waiters)

    @property
    def confirmed(self) -> int:
        """The confirm offset, which bounds what is seen."""
        return self._store.confirmed_offset

    # --- Sends ---

    @property
    def lacks_replicas(self) -> bool:
        state = self.state
        return state is not None and state.size < self._settings.min_in_sync_replicas

    @property
    def delays_acks(self) -> bool:
        return self._syncs or not self._is_alone

    @property
    def _is_alone(self) -> bool:
        """Whether sends are acknowledged without a replica."""
        if self.all_ack:
            return self.state is None or self.state.is_alone
        return (self._settings.in_sync_replicas or 1) == 1

    def when_stored(self, end: int, answer: FlushAnswer) -> None:
        super().when_stored(end, partial(self._answer, answer))

    def _answer(self, answer: FlushAnswer, status: PutStatus) -> None:
        """Answer a send; not with success if another master may have been elected meanwhile."""
        if status is PutStatus.PUT_OK and (self.state is None or self._role.is_doubtful):
            status = PutStatus.FLUSH_SLAVE_TIMEOUT
        answer(status)

    def when_replicated(self, end: int, answer: FlushAnswer) -> None:
        if self._is_alone or end <= self._reached:
            answer(PutStatus.PUT_OK)
        else:
            deadline = self._clock.monotonic() + self._settings.ack_timeout_ms / 1000
            self._waiters.add(end, deadline, answer)

    # --- Links ---

    def slaves(self) -> list[HaConnectionInfo]:
        members = frozenset() if self.state is None else self.state.members
        ids = {replica.link.address: replica_id for replica_id, replica in self._connected().items()}
        found = super().slaves()
        for each in found:
            each.in_sync = ids.get(each.addr or "", 0) in members
        return found

    def _connect(self, link: HaLink, now: float) -> ConnectedSlave:
        return ConnectedReplica(
            link, self._store, self._live, self._role, self._read_cold, self._epoch_file,
            lambda: self.confirmed, now=now,
        )  # fmt: skip

    def _opened(self, link: HaLink) -> None:
        if self.state is None:
            link.abort(ConnectionError("not the master"))
            return
        super()._opened(link)

    def _received(self, link: HaLink, data: bytes) -> None:
        super()._received(link, data)
        slave = self._slaves.get(link)
        if isinstance(slave, ConnectedReplica) and slave.acknowledged is None and slave.greeting is not None:
            self._drop_older(slave)

    def _drop_older(self, newer: ConnectedReplica) -> None:
        """Close older links of a replica that has connected again."""
        for link, slave in list(self._slaves.items()):
            if slave is not newer and isinstance(slave, ConnectedReplica) and slave.greeting is not None:
                assert newer.greeting is not None
                if slave.greeting.slave_id == newer.greeting.slave_id:
                    link.abort(ConnectionError("the replica has connected again"))

    def _connected(self) -> dict[int, ConnectedReplica]:
        return {
            slave.greeting.slave_id: slave
            for slave in self._slaves.values()
            if isinstance(slave, ConnectedReplica) and slave.greeting is not None and not slave.link.is_closed
        }

    def _replicas(self) -> Mapping[int, Progress]:
        now = self._clock.monotonic()
        return {replica_id: replica.progress(now) for replica_id, replica in self._connected().items()}

    # --- What is confirmed ---

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._watch_links(now)
        self._confirm()
        self._waiters.expired(now)

    def _count(self) -> None:
        """Only without `allAckInSyncStateSet`: enough replicas, of any kind."""
        known = [slave.acknowledged for slave in self._slaves.values() if slave.acknowledged is not None]
        settings = replace(self._settings, in_sync_replicas=self._settings.in_sync_replicas or 1)
        self._confirmation.update(known, self._store.appended_offset, settings)

    def _confirm(self) -> None:
        state, role = self.state, self._role
        if state is None:
            return
        replicas, end = self._replicas(), self._store.appended_offset
        if not self.all_ack:
            self._count()
            reached = self._confirmation.reached
        elif state.is_alone:
            reached = end
        else:
            reached = state.confirmed(end, replicas) or 0
        self._reached = max(self._reached, reached)
        role.is_settled = role.is_settled or self._reached >= self._settled_at
        last = self._epoch_file.epochs.last
        state.count_in(replicas, epoch_start=0 if last is None else last.start, end=end)
        lag_s_max = self._settings.lag_ms_max / 1000
        proposal = state.propose(replicas, now=self._clock.monotonic(), lag_s_max=lag_s_max)
        role.is_alone = self._is_alone
        bound = self._reached if self.all_ack and not state.is_alone else None
        self._release(bound, self._reached)
        if proposal is not None:
            log.info(
                "in-sync set proposed members=%s epoch=%d physical_offset=%d",
                sorted(proposal.members), proposal.epoch, end,
            )  # fmt: skip
            self.on_proposal(proposal)
