"""A broker in its group: gets its id from the controller, reports that it lives, and takes its role.

The controller's word counts: a notice that the master has changed (1008) only makes the broker ask at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from skylark.broker.address import BrokerAddress
from skylark.broker.error_replies import system_error
from skylark.broker.record_loader import ReadCold
from skylark.broker.replication.controller_session import ControllerSession
from skylark.broker.replication.group_master import GroupReplication
from skylark.broker.replication.identity import Application, IdentityFiles
from skylark.broker.replication.role import Role
from skylark.broker.replication.role_change import RoleChange
from skylark.broker.replication.sync_state import UNCERTAIN_S, Proposal
from skylark.clock import Clock
from skylark.errors import BrokerError, ConnectFailed, RemotingError, RocketMQError
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    ElectMaster,
    GetNextBrokerId,
    GetReplicaInfo,
    GroupMaster,
    RegisterBrokerToController,
)
from skylark.protocol.requests.name_server import BrokerHeartbeat
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.epochs import EpochFile
from skylark.store.message_store import MessageStore
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

Step = Callable[[], Awaitable[None]]

RETRY_S = 0.3
APPLICATIONS = 5
"""Tries to get an id: another broker may have got the one that was next."""
HAND_OVER_TIMEOUT_S = 5.0
HAND_OVER_CHECK_S = 0.005


@dataclass
class GroupStatus:
    """Where the broker stands with its controllers. Written by the membership, read by any part."""

    broker_id: int = 0
    """The id at the controller; 0 before it has one."""
    clean_start: bool = True
    """The log has everything that this broker acknowledged before it was started."""
    last_error: str = ""
    is_member: bool = False


class Membership:
    """Keeps the broker's place in its group. Loop thread."""

    def __init__(
        self,
        *,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        role: Role,
        address: BrokerAddress,
        store: MessageStore,
        epoch_file: EpochFile,
        identity: IdentityFiles,
        controllers: ControllerSession,
        changes: RoleChange,
        replication: GroupReplication,
        tasks: Tasks,
        read_cold: ReadCold,
    ) -> None:
        self._live = live
        self._clock = clock
        self._role = role
        self._address = address
        self._store = store
        self._epoch_file = epoch_file
        self._identity = identity
        self._controllers = controllers
        self._changes = changes
        self._replication = replication
        self._tasks = tasks
        self._read_cold = read_cold
        self._poll_now = asyncio.Event()
        self._changing = asyncio.Lock()
        self.status = GroupStatus()
        replication.on_proposal = self._spawn_proposal

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def leave(self) -> None:
        """Let another member take over before the broker stops, if it is the master and there is one."""
        successors = self._replication.successors()
        if successors:
            try:
                await self.hand_over(successors[0])
            except (RocketMQError, OSError) as error:
                log.warning("no replica takes over before the stop reason=%s", error)

    async def stop(self) -> None:
        """End the services of the role, and the connections to controllers; tasks are the broker's."""
        await self._changes.stop()
        await self._controllers.close()

    def notified(self) -> None:
        """A controller says that the master has changed: ask for it now."""
        self._poll_now.set()

    # --- Joining ---

    async def _run(self) -> None:
        settings = self._live.current.group
        while not await self._tried(self._join):  # noqa: ASYNC110 (it is the work, not a condition)
            await asyncio.sleep(RETRY_S)
        self.status.is_member = True
        for address in self._controllers.addresses:
            self._tasks.spawn(self._beat(address))
        self._tasks.every(
            settings.leader_interval_ms, self._find_leader, "find the leader of the controllers"
        )
        while True:
            self._poll_now.clear()
            await self._tried(self._poll)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.poll_interval_ms / 1000):
                    await self._poll_now.wait()

    async def _tried(self, step: Step) -> bool:
        """Run a step; log a failure once. Returns whether it succeeded."""
        try:
            await step()
        except (RocketMQError, OSError, ValueError) as error:
            text = str(error)
        except Exception as error:
            log.exception("controller mode failed, retrying")
            text = str(error) or type(error).__name__
        else:
            self.status.last_error = ""
            return True
        if text != self.status.last_error:
            log.warning("controllers cannot be used, retrying reason=%s", text)
        self.status.last_error = text
        return False

    async def _find_leader(self) -> None:
        await self._tried(self._controllers.find_leader)

    async def _join(self) -> None:
        """Get an id, register under it, and take a role. Raises RocketMQError, OSError."""
        if not self._controllers.leader:
            await self._controllers.find_leader()
        if not self.status.broker_id:
            await self._read_cold(self._check_store)
            self.status.broker_id = await self._get_id()
        settings = self._live.current
        asked_at = self._now()
        found = await self._controllers.ask(
            RegisterBrokerToController(
                settings.cluster, settings.name, self.status.broker_id, self._address.text,
                invoke_time=self._clock.now_ms(), clean_start=self.status.clean_start,
                async_learner=settings.replication.async_learner,
            )
        )  # fmt: skip
        beats = (
            self._controllers.tell(address, self._heartbeat()) for address in self._controllers.addresses
        )
        await asyncio.gather(*beats, return_exceptions=True)
        if found.master_broker_id is None:
            asked_at = self._now()
            found = await self._elect()
        await self._apply(found, asked_at)

    def _check_store(self) -> None:
        """Find out whether the store may have lost what this broker acknowledged."""
        store, settings = self._store, self._store.settings
        same_boot = self._identity.is_same_boot()
        is_safe = store.report.clean_exit or settings.syncs_every_put or same_boot
        self.status.clean_start = is_safe or store.appended_offset == 0
        if not self.status.clean_start:
            log.warning("the machine ended with unflushed messages: this log may lack acknowledged ones")
        if store.appended_offset == 0 and not self._epoch_file.epochs.entries:
            if self._identity.load() is not None:
                log.warning("the log of this replica is gone: it applies for a new id")
            self._identity.drop()

    async def _get_id(self) -> int:
        """Return the id of this replica: the known one, or a new one. Raises RocketMQError, OSError."""
        known = await self._read_cold(self._identity.load)
        if known is not None:
            return known
        for attempt in range(APPLICATIONS):
            application = await self._read_cold(self._identity.load_application)
            if application is None or attempt > 0:
                application = await self._new_application()
            if await self._apply_for(application):
                await self._read_cold(partial(self._identity.grant, application.broker_id))
                return application.broker_id
        raise ConnectFailed(self._controllers.leader, f"no broker id after {APPLICATIONS} tries")

    async def _new_application(self) -> Application:
        settings = self._live.current
        next_id = await self._controllers.ask(GetNextBrokerId(settings.cluster, settings.name))
        application = Application(next_id, f"{self._address.text};{self._clock.now_ms()}")
        await self._read_cold(partial(self._identity.apply, application))
        return application

    async def _apply_for(self, application: Application) -> bool:
        """Return whether the controller has granted an id. Raises RemotingError."""
        settings = self._live.current
        try:
            await self._controllers.ask(
                ApplyBrokerId(settings.cluster, settings.name, application.broker_id, application.check_code)
            )
        except BrokerError as error:
            log.info("broker id is taken id=%d reason=%s", application.broker_id, error)
            return False
        return True

    # --- Roles ---

    async def _elect(self, broker_id: int | None = None) -> GroupMaster:
        """Ask for an election, of another replica if one is given. Raises BrokerError, RemotingError."""
        settings = self._live.current
        return await self._controllers.ask(
            ElectMaster(
                settings.cluster, settings.name, broker_id or self.status.broker_id,
                designate_elect=broker_id is not None, invoke_time=self._clock.now_ms(),
            )
        )  # fmt: skip

    async def _poll(self) -> None:
        """Ask who is the master. Raises BrokerError, RemotingError, and what a change raises."""
        asked_at = self._now()
        try:
            found = await self._controllers.ask(GetReplicaInfo(self._live.current.name))
        except BrokerError as error:
            if error.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                raise
            await self._join()
            return
        if found.master_broker_id is None:
            asked_at = self._now()
            found = await self._elect()
        await self._apply(found, asked_at)

    async def _apply(self, found: GroupMaster, asked_at: float) -> None:
        """Take the role that the controller decided. Raises what the change of a role raises."""
        role, own_id = self._role, self.status.broker_id
        async with self._changing:
            if found.master_broker_id is None or found.master_epoch < role.epoch:
                return
            is_own = found.master_broker_id == own_id
            if is_own and role.lease is not None:
                role.lease.renew(asked_at)
            if found.master_epoch > role.epoch:
                if is_own:
                    await self._changes.to_master(found.master_epoch, own_id, found.sync_state_set)
                else:
                    await self._changes.to_slave(found.master_epoch, own_id, found.master_address or "")
            elif is_own:
                self._replication.adopt(found.sync_state_set)
            self._fence()

    def _fence(self) -> None:
        """Let a master that may have been replaced store nothing by itself, such as delayed messages."""
        if not self._role.is_slave:
            self._store.is_replica = self._role.is_fenced

    async def hand_over(self, broker_id: int) -> GroupMaster:
        """Make another member of the in-sync set the master. Raises BrokerError, RemotingError.

        Sends are refused meanwhile, and retried by clients; none of those taken before is lost.
        """
        role, state = self._role, self._replication.state
        if role.is_slave or state is None:
            raise system_error(f"this broker is not the master of its group, {role.slave.master_address} is")
        if broker_id == state.own_id or broker_id not in state.members:
            others = sorted(state.members - {state.own_id})
            raise system_error(f"broker {broker_id} cannot take over; members that can: {others}")
        role.is_paused = True
        try:
            try:
                async with asyncio.timeout(HAND_OVER_TIMEOUT_S):
                    while not self._replication.has_all(broker_id):  # noqa: ASYNC110 (an ack moves it)
                        await asyncio.sleep(HAND_OVER_CHECK_S)
            except TimeoutError:
                raise system_error(f"broker {broker_id} does not catch up, nothing was changed") from None
            found = await self._elect(broker_id)
            await self._apply(found, self._now())
            return found
        finally:
            role.is_paused = False

    # --- The in-sync set ---

    def _spawn_proposal(self, proposal: Proposal) -> None:
        self._tasks.spawn(self._propose(proposal))

    async def _propose(self, proposal: Proposal) -> None:
        """Propose a set until its fate is known."""
        replication, settings = self._replication, self._live.current
        uncertain_until = 0.0
        while (state := replication.state) is not None and state.proposal is proposal:
            request = AlterSyncStateSet(
                broker_name=settings.name,
                master_broker_id=self.status.broker_id,
                master_epoch=self._role.epoch,
                body=SyncStateSet.of(proposal.members, proposal.epoch),
                invoke_time=self._clock.now_ms(),
            )
            try:
                decided = await self._controllers.ask(request)
            except BrokerError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:  # such as a register whose answer was lost
                    uncertain_until = self._clock.monotonic() + UNCERTAIN_S
                log.info("in-sync set refused members=%s reason=%s", sorted(proposal.members), error)
                self._poll_now.set()
                await asyncio.sleep(RETRY_S)
                # An earlier attempt without an answer may still take effect, until its time is over.
                if self._clock.monotonic() > uncertain_until:
                    replication.refuse(proposal)
                    return
            except ConnectFailed as error:
                log.debug("in-sync set not proposed reason=%s", error)
            except RemotingError as error:
                uncertain_until = self._clock.monotonic() + UNCERTAIN_S
                log.info("no answer to a proposed in-sync set reason=%s", error)
            else:
                replication.adopt(decided)
                return
            await asyncio.sleep(RETRY_S)

    # --- Heartbeats ---

    async def _beat(self, address: str) -> None:
        """Report to one controller that the broker lives, for ever."""
        interval_s = self._live.current.group.heartbeat_interval_ms / 1000
        while True:
            try:
                await self._controllers.tell(address, self._heartbeat())
            except RocketMQError as error:
                log.debug("no heartbeat to controller address=%s reason=%s", address, error)
            self._fence()
            await asyncio.sleep(interval_s)

    def _heartbeat(self) -> BrokerHeartbeat:
        settings, group = self._live.current, self._live.current.group
        return BrokerHeartbeat(
            cluster_name=settings.cluster,
            broker_addr=self._address.text,
            broker_name=settings.name,
            broker_id=self.status.broker_id,
            epoch=self._epoch_file.epochs.last_epoch,
            max_offset=self._store.appended_offset,
            confirm_offset=self._store.confirmed_offset,
            heartbeat_timeout_ms=group.heartbeat_timeout_ms,
            election_priority=group.election_priority,
        )

    def _now(self) -> float:
        lease = self._role.lease
        return lease.now() if lease is not None else 0.0
