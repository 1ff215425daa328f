"""Broker: builds the parts, starts and stops them. No request is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from skylark.auth.access_control import AccessControl
from skylark.broker.address import BrokerAddress
from skylark.broker.clients import ConsumerGroups, ProducerGroups, QueueLockTable
from skylark.broker.cold_reads import ColdReads
from skylark.broker.configuration import BrokerConfiguration
from skylark.broker.delayed.delay_levels import DelayLevels
from skylark.broker.delayed.delivery_progress import DeliveryProgress, current_boot
from skylark.broker.delayed.timers import FLUSH_INTERVAL_S, DelayedMessages, SlaveTimers, Timers
from skylark.broker.filters.consumer_filters import ConsumerFilters
from skylark.broker.group_topics import ArchiveProgress, GroupTopics
from skylark.broker.groups import RequestModes, SubscriptionGroups
from skylark.broker.handlers.auth import AuthHandlers, with_record_rights
from skylark.broker.handlers.broker_admin import BrokerAdminHandlers
from skylark.broker.handlers.clients import ClientHandlers, notify_members
from skylark.broker.handlers.groups import GroupHandlers
from skylark.broker.handlers.lite import LiteHandlers
from skylark.broker.handlers.message_queries import MessageQueryHandlers
from skylark.broker.handlers.offsets import OffsetHandlers
from skylark.broker.handlers.pop import PopHandlers
from skylark.broker.handlers.pull import PullPath
from skylark.broker.handlers.relay import RelayHandlers
from skylark.broker.handlers.replica_group import ReplicaGroupHandlers
from skylark.broker.handlers.reply import ReplyHandlers
from skylark.broker.handlers.send import SendPath
from skylark.broker.handlers.send_back import SendBackHandlers
from skylark.broker.handlers.stats import StatsHandlers
from skylark.broker.handlers.timers import TimerHandlers
from skylark.broker.handlers.topics import TopicHandlers
from skylark.broker.handlers.transactions import TransactionHandlers
from skylark.broker.metadata_files import MetadataFile, MetadataWriter, load_metadata, newer_file
from skylark.broker.monitoring.runtime_info import RuntimeInfo
from skylark.broker.monitoring.stats import STEP_S, BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.pop.lite_pops import LitePops
from skylark.broker.pop.pops import Pops
from skylark.broker.registration import Registration
from skylark.broker.replication.controller_session import ControllerSession
from skylark.broker.replication.group_master import GroupReplication
from skylark.broker.replication.group_slave import GroupSlave
from skylark.broker.replication.identity import IdentityFiles
from skylark.broker.replication.last_master import LAST_MASTER_FILE, LastMaster
from skylark.broker.replication.lease import MasterLease
from skylark.broker.replication.master import ReplicationMaster
from skylark.broker.replication.membership import Membership
from skylark.broker.replication.metadata_sync import METADATA_LIMITS, MetadataSync
from skylark.broker.replication.restore_offsets import OffsetRestoration
from skylark.broker.replication.role import Role
from skylark.broker.replication.role_change import RoleChange, Service
from skylark.broker.replication.slave import ReplicationSlave
from skylark.broker.replication.user_sync import UserSync
from skylark.broker.request_routes import fast_routes, main_routes, watermarks
from skylark.broker.topic_lifecycle import TopicDeletion, TopicRestoration
from skylark.broker.topics import TopicTable
from skylark.broker.transactions.coordinator import TransactionCoordinator
from skylark.clock import Clock, SystemClock
from skylark.errors import SettingsError
from skylark.model.lite_topic import LIGHT_PREFIX
from skylark.model.sql92 import compile_selector
from skylark.protocol.connection import Limits
from skylark.protocol.frame_templates import SendReplies
from skylark.remoting.address import check_listener, is_loopback, join_address
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.latency import RequestLatencies
from skylark.remoting.monitor import Monitor
from skylark.remoting.nearby import NearbyServer
from skylark.remoting.server import Peer, RemotingServer, RequestRate, Routes, ServerLimits
from skylark.remoting.server_metrics import Part
from skylark.remoting.tls import FILES_CHECK_MS, make_replication_tls, make_server_tls
from skylark.remoting.tls_client import ClientTls, make_outgoing_tls
from skylark.settings import BrokerSettings, parse_delay_levels
from skylark.settings.broker import words_of
from skylark.settings.credentials import secret_text
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.disk import Disk, RealDisk
from skylark.store.epochs import EpochFile
from skylark.store.message_store import INDEX_SLICE, MessageStore
from skylark.store.replica import CopyMark
from skylark.tasks import Tasks

if TYPE_CHECKING:
    from skylark.remoting.pages import Pages

log = logging.getLogger(__name__)

T = TypeVar("T")

OFFSETS_FILE = "consumerOffset.json"
LIGHT_OFFSETS_FILE = "lmqConsumerOffset.json"
"""All offsets again: RocketMQ's file if light queues are enabled. Written once there are lite topics."""
COLD_READERS = 4
EXPIRE_WAITERS_S = 0.1
WAITERS_CHECK_S = 0.005
INDEX_TOGETHER = 8
"""Messages of a lone sender that are indexed together: few enough not to delay its next one."""
SLAVE_INDEX_TOGETHER = 512
"""Messages that a slave indexes together, on the loop: a thread indexes fewer, within a second."""
WARM_UP_AFTER_S = 3.0
"""Delay before warm-up: not while clients connect."""
WARM_UP_TURN_S = 0.0005
"""Switch interval of threads during warm-up: how long the loop waits each time."""
GROUP_PACE_MS = 1000
"""A slave that may become the master at any time is at most so far behind with metadata, or its next try."""
USUAL_TURN_S = sys.getswitchinterval()
"""Read at import: another broker of this process may be warming up."""


class Broker:
    """A broker on the running loop. Start it once, stop it once.

    Everything belongs to the loop thread; reads that may wait for the disk go through `read_cold`.
    """

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock | None = None, disk: Disk | None = None
    ) -> None:
        """Raises SettingsError for an address that cannot be used, or a certificate that cannot be loaded."""
        self._tls = make_server_tls(settings.tls)
        self.clock = clock or SystemClock()
        self.access = AccessControl(
            settings.auth, settings.config_directory, self.clock, cluster=settings.cluster
        )
        self._is_tls_enforced = self._tls is not None and self._tls.is_enforcing
        names = words_of(settings.replication.allowed_names)
        self._replication_tls = make_replication_tls(self._tls, names)
        self._outgoing_tls = make_outgoing_tls(settings.tls, settings.tls_client)
        self.addresses = BrokerAddress.choose(settings)
        self.address = self.addresses.text
        self.port = self.addresses.port
        settings = replace(settings, port=self.port)
        self.live = LiveSettings(settings)
        self.started_ms = self.clock.now_ms()
        self.role = Role(settings)
        self.tasks = Tasks()
        self.stats = BrokerStats()
        self.latencies = RequestLatencies()
        # A disk that hangs stops cold reads or the writing of metadata, and nothing else.
        self.readers = ThreadPoolExecutor(COLD_READERS, "skylark-read")
        self._writers = ThreadPoolExecutor(1, "skylark-metadata")
        self.store = MessageStore(settings.store, disk=disk, clock=clock, store_host=self.addresses.packed)
        self.store.is_replica = self.store.reader.keep_offset_on_correction = self.role.is_slave
        self.epoch_file = EpochFile(settings.store.path)
        self.replication = self._make_replication(settings)
        self._last_master = LastMaster()
        self._build_tables(settings)
        self._build_services(settings, disk or RealDisk())
        self._build_files(settings)
        self._build_replication(settings, disk or RealDisk())
        self.monitor = Monitor(self.make_pages, self._tls)
        self.more_metrics: list[Part] = []
        """Metrics of parts that others run in this process; they are on the broker's page."""
        self._handlers = self._build_handlers()
        self._server = RemotingServer(
            server_limits(settings),
            on_disconnect=self._disconnected,
            latencies=self.latencies,
            tls=self._tls,
            gate=self.access.gate,
        )
        self._server.rate = request_rate(settings)
        self._server.busy_poll.on_end = self._index_soon
        self._indexing = False
        self._opening: asyncio.Future[None] | None = None
        self._has_new_users = False
        self._is_insecure = False

    # --- Composition ---

    def _make_replication(self, settings: BrokerSettings) -> ReplicationMaster:
        live, store, clock, role, tasks = self.live, self.store, self.clock, self.role, self.tasks
        tls, is_enforced = self._replication_tls, self._is_tls_enforced
        if not settings.group.enabled:
            return ReplicationMaster(
                live, store, clock, role, tasks, self.read_cold, tls, is_tls_enforced=is_enforced
            )
        role.lease = MasterLease(settings.group.lease_ms)
        return GroupReplication(
            live, store, clock, role, tasks, self.read_cold, self.epoch_file, tls,
            is_tls_enforced=is_enforced,
        )  # fmt: skip

    def _build_tables(self, settings: BrokerSettings) -> None:
        live, now_ms = self.live, self.started_ms
        self.topics = TopicTable(live, now_ms=now_ms)
        self.store.queues.is_declared_batched = self.topics.is_batched
        self.groups = SubscriptionGroups(live, now_ms=now_ms)
        self.request_modes = RequestModes(live)
        self.offsets = ConsumerOffsets(live, now_ms=now_ms)
        archive = ArchiveProgress(live, self.topics, self.groups, self.offsets, self.store)
        self.store.needed_from = archive.needed_from
        self.consumers = ConsumerGroups(live)
        self.group_topics = GroupTopics(self.topics, self.consumers, self.store)
        self.producers = ProducerGroups(live)
        self.consumer_filters = ConsumerFilters(filters_max=settings.offset_keys_max)
        self.locks = QueueLockTable(live)
        self.configuration = BrokerConfiguration(live, now_ms=now_ms)
        self.cold_reads = ColdReads(live, now=self.clock.monotonic())

    def _build_services(self, settings: BrokerSettings, disk: Disk) -> None:
        """Build delivery, transactions, and the two hot paths."""
        live, clock, store, stats = self.live, self.clock, self.store, self.stats
        read_cold = self.read_cold
        self.restoration = TopicRestoration(self.topics, store, clock)
        restore_topics = self.restoration.restore_undeleted
        self._delivered = progress = DeliveryProgress(disk, settings.store.path, current_boot())
        self.delay_levels = DelayLevels(
            store, clock, parse_delay_levels(settings.store.delay_levels), read_cold, restore_topics, stats,
            progress,
        )  # fmt: skip
        kind = SlaveTimers if self.role.is_slave else Timers
        self.timers: Timers = kind(
            live=live, clock=clock, store=store, disk=disk, restore_topics=restore_topics, stats=stats,
            read_cold=read_cold, progress=progress,
        )  # fmt: skip
        delayed = DelayedMessages(self.delay_levels, self.timers)
        self.transactions = TransactionCoordinator(
            live=live, clock=clock, store=store, host=self.addresses.packed, topics=self.topics,
            offsets=self.offsets, producers=self.producers, delayed=delayed, restore_topics=restore_topics,
            stats=stats, read_cold=read_cold,
        )  # fmt: skip
        self.pops = Pops(
            live=live, clock=clock, store=store, timers=self.timers, topics=self.topics, groups=self.groups,
            offsets=self.offsets, stats=stats, read_cold=read_cold, host=self.addresses.packed,
        )  # fmt: skip
        self.lite_pops = LitePops(
            live, clock, store, self.topics, self.groups, self.offsets, stats, read_cold, self.started_ms
        )
        self.pop_handlers = PopHandlers(
            live, clock, self.addresses.host, store, self.topics, self.groups, self.consumers, self.offsets,
            self.pops, self.lite_pops, self.latencies, self.tasks, read_cold,
        )  # fmt: skip
        self.lite_handlers = LiteHandlers(
            live, clock, self.addresses.host, store, self.topics, self.groups, self.offsets, self.lite_pops,
            self.latencies, self.tasks, read_cold,
        )  # fmt: skip
        self.held_pops, self.held_notifications = self.pop_handlers.held, self.pop_handlers.held_notifications
        self._replies = SendReplies(region=settings.region, trace_on=settings.trace_on)
        self.send_path = SendPath(
            live=live, clock=clock, role=self.role, address=self.addresses, store=store,
            replication=self.replication, topics=self.topics, groups=self.groups, locks=self.locks,
            delayed=delayed, transactions=self.transactions, stats=stats, latencies=self.latencies,
            replies=self._replies,
        )  # fmt: skip
        self.pull_path = PullPath(
            live=live, clock=clock, role=self.role, host=self.addresses.host, store=store,
            topics=self.topics, groups=self.groups, consumers=self.consumers, offsets=self.offsets,
            cold_reads=self.cold_reads, stats=stats, latencies=self.latencies, tasks=self.tasks,
            read_cold=read_cold,
        )  # fmt: skip
        self.long_polling = self.pull_path.held
        self.deletion = TopicDeletion(
            store, self.offsets, stats, self.long_polling, read_cold, self._forget_pops
        )
        self.registration = Registration(
            live,
            clock,
            self.role,
            self.addresses,
            self.topics,
            self.tasks,
            self.access.signer,
            self._outgoing_tls,
        )

    def _build_files(self, settings: BrokerSettings) -> None:
        directory = settings.config_directory
        self.metadata = MetadataWriter(
            gather_s=settings.metadata_gather_ms / 1000, run_blocking=self._run_writer
        )
        self._topics_file = self.metadata.add(directory / "topics.json", self.topics.snapshot)
        groups_file = self.metadata.add(directory / "subscriptionGroup.json", self.groups.snapshot)
        self._offsets_file = self.metadata.add(directory / OFFSETS_FILE, self.offsets.snapshot)
        self._light_offsets_file = self.metadata.add(directory / LIGHT_OFFSETS_FILE, self.offsets.snapshot)
        self._had_light_offsets = False
        self._delays_file = self.metadata.add(directory / "delayOffset.json", self.delay_levels.snapshot)
        self._timers_file = self.metadata.add(directory / "timermetrics", self.timers.snapshot)
        self._order_file = self.metadata.add(directory / "consumerOrderInfo.json", self.pops.ordered.snapshot)
        self._offset_changes_saved = self._delay_changes_saved = self._timer_changes_saved = 0
        self._order_changes_saved = 0
        self.topics.on_change = self._topics_changed
        self.topics.on_new = self.registration.share
        self.groups.on_change = groups_file.mark
        modes_file = self.metadata.add(directory / "messageRequestMode.json", self.request_modes.snapshot)
        self.request_modes.on_change = modes_file.mark
        filters_file = self.metadata.add(directory / "consumerFilter.json", self.consumer_filters.snapshot)
        self.consumer_filters.on_change = filters_file.mark
        self._config_file: MetadataFile | None = None
        if (path := settings.config_path) is not None:
            self._config_file = self.metadata.add(path, lambda: self.configuration.snapshot(path))
        self.configuration.on_change = self._settings_changed
        access, store = self.access, self.access.store
        self._user_files = (
            self.metadata.add(access.users_path, store.users_snapshot, is_private=True),
            self.metadata.add(access.acls_path, store.acls_snapshot, is_private=True),
        )

    def _build_replication(self, settings: BrokerSettings, disk: Disk) -> None:
        self._copy_mark = CopyMark(disk, settings.store.path)
        self._last_master.on_change = self.metadata.add(
            settings.config_directory / LAST_MASTER_FILE, self._last_master.snapshot
        ).mark
        self._slave: ReplicationSlave | None = None
        self._user_sync: UserSync | None = None
        self.membership: Membership | None = None
        self._master_services: list[Service] = [self.delay_levels.run, self.transactions.run]
        if isinstance(self.timers, SlaveTimers):
            pool = ConnectionPool(limits=METADATA_LIMITS, signer=self.access.signer, tls=self._outgoing_tls)
            self._user_sync = UserSync(
                self.access.store, settings.auth, self.role.slave, pool, self._write_users
            )
            sync = MetadataSync(
                clock=self.clock, status=self.role.slave, topics=self.topics, groups=self.groups,
                request_modes=self.request_modes, offsets=self.offsets, ordered=self.pops.ordered,
                delay_levels=self.delay_levels, timers=self.timers, deletion=self.deletion,
                copy_mark=self._copy_mark, save_offsets=self._write_offsets,
                make_batched=self.store.make_declared_batched, read_cold=self.read_cold, pool=pool,
                users=self._user_sync if settings.auth.is_served else None,
            )  # fmt: skip
            tls = None if settings.replication.plain_text else self._outgoing_tls
            if settings.group.enabled:
                self._build_group(settings, sync, self.timers, tls)
            else:
                self._slave = ReplicationSlave(
                    settings.replication, self.clock, self.role.slave, self.store, sync, self._last_master,
                    self.long_polling, self.tasks, self.read_cold, tls,
                )  # fmt: skip

    def _build_group(
        self, settings: BrokerSettings, sync: MetadataSync, timers: SlaveTimers, tls: ClientTls | None
    ) -> None:
        """Build what joins a group whose master a controller chooses."""
        assert isinstance(self.replication, GroupReplication)
        replication = replace(
            settings.replication,
            metadata_interval_ms=min(settings.replication.metadata_interval_ms, GROUP_PACE_MS),
            reconnect_interval_ms_max=min(settings.replication.reconnect_interval_ms_max, GROUP_PACE_MS),
        )
        self._slave = slave = GroupSlave(
            replication, self.clock, self.role.slave, self.store, sync, self._last_master,
            self.long_polling, Tasks(), self.read_cold, tls,
        )  # fmt: skip
        slave.begin(self.epoch_file)
        changes = RoleChange(
            clock=self.clock, role=self.role, store=self.store, epoch_file=self.epoch_file,
            copy_mark=self._copy_mark, replication=self.replication, slave=slave,
            registration=self.registration, topics=self.topics, offsets=self.offsets, locks=self.locks,
            delay_levels=self.delay_levels, timers=timers, transactions=self.transactions,
            pulls=self.pull_path, pops=self.pops, read_cold=self.read_cold,
            restore_topics=self._restore_topics, master_services=self._master_services,
        )  # fmt: skip
        controllers = ControllerSession(
            words_of(settings.group.controllers), settings.group.request_timeout_ms / 1000,
            self.access.signer, self._outgoing_tls,
        )  # fmt: skip
        identity = IdentityFiles(settings.store.path, settings.cluster, settings.name)
        self.membership = Membership(
            live=self.live, clock=self.clock, role=self.role, address=self.addresses, store=self.store,
            epoch_file=self.epoch_file, identity=identity, controllers=controllers, changes=changes,
            replication=self.replication, tasks=self.tasks, read_cold=self.read_cold,
        )  # fmt: skip

    def _build_handlers(self) -> tuple[object, ...]:
        live, clock, store, stats = self.live, self.clock, self.store, self.stats
        topics, groups, offsets = self.topics, self.groups, self.offsets
        consumers, producers, read_cold = self.consumers, self.producers, self.read_cold
        info = RuntimeInfo(
            live, clock, self.role, store, self.replication, self.delay_levels, self.timers, stats,
            read_cold, self.monitor, consumers, self._last_master, self.started_ms, self._tls,
        )  # fmt: skip
        self.offset_handlers = OffsetHandlers(
            live, clock, store, topics, groups, offsets, self.pops.ordered, consumers, self.delay_levels,
            self.latencies, read_cold,
        )  # fmt: skip
        return (
            self.offset_handlers,
            self.pop_handlers,
            self.lite_handlers,
            AuthHandlers(
                self.access.administration, self._write_users, self.role,
                None if self._user_sync is None else self._user_sync.forward,
            ),
            ClientHandlers(
                live, clock, topics, groups, consumers, producers, self.consumer_filters, self.locks,
                self.request_modes, self.role, self.registration.route,
            ),
            MessageQueryHandlers(live, store, consumers, self.consumer_filters, read_cold),
            SendBackHandlers(
                live, clock, store, topics, groups, stats, self.delay_levels, read_cold, self.addresses.host
            ),
            TransactionHandlers(live, clock, store, self.transactions, self.replication, self.latencies),
            ReplyHandlers(
                live, clock, store, topics, producers, stats, self._replies, self.latencies,
                self.addresses.packed,
            ),
            TimerHandlers(live, clock, self.role, store, topics, self.timers, stats),
            TopicHandlers(
                live, clock, store, topics, offsets, consumers, stats, self.deletion,
                self.registration.settle, self.started_ms,
            ),
            GroupHandlers(
                clock, topics, groups, self.request_modes, offsets, consumers, producers, stats, self.address
            ),
            StatsHandlers(
                live, clock, store, topics, groups, offsets, consumers, self.group_topics, stats, read_cold,
                self.address,
            ),
            RelayHandlers(live, clock, store, topics, groups, consumers, read_cold),
            BrokerAdminHandlers(
                live, clock, store, topics, self.configuration, self.cold_reads, self.role, self.replication,
                self.addresses, info.collect,
            ),
            ReplicaGroupHandlers(live, self.role, store, self.epoch_file, self.membership),
        )  # fmt: skip

    def make_pages(self) -> Pages:
        """Build the pages of the monitor. Called at its first request: brokers start without Prometheus."""
        from skylark.broker.monitoring.metrics import MetricsCollector  # noqa: PLC0415
        from skylark.remoting.pages import JoinedMetrics, Pages  # noqa: PLC0415

        collector = MetricsCollector(
            self.live, self.clock, self.role, self.store, self.replication, self.topics, self.groups,
            self.offsets, self.consumers, self.group_topics, self.producers, self.long_polling,
            self.pops, lambda: self.held_pops.count + self.held_notifications.count,
            self.transactions, self.timers, self.stats, self.latencies, self.watermarks,
            {} if self.access.gate is None else self.access.gate.refusals,
            self._tls, lambda: self._is_insecure,
        )  # fmt: skip
        return Pages(
            JoinedMetrics(collector, self.more_metrics),
            secret_text(self.live.current.metrics_token),
            fault=collector.fault,
            idle_reason=collector.idle_reason,
            warnings=collector.warnings,
        )

    def main_routes(self) -> Routes:
        return self._gated(
            main_routes(self._handlers, self.send_path, self.pull_path, self.offset_handlers, self.role)
        )

    def nearby(self) -> NearbyServer:
        """Return the main port for clients in this process."""
        return NearbyServer(self.address, self._server, self.main_routes())

    def fast_routes(self) -> Routes:
        return self._gated(fast_routes(self._handlers, self.send_path, self.offset_handlers, self.role))

    def _gated(self, routes: Routes) -> Routes:
        gate = self.access.gate
        return routes if gate is None else with_record_rights(routes, gate, self.store, self.read_cold)

    # --- Life ---

    async def start(self) -> None:
        """Recover the store, load metadata, listen, register. Raises StoreError, MasterExists, OSError."""
        self._loop = asyncio.get_running_loop()
        settings = self.live.current
        self._is_insecure = check_listener(
            join_address(settings.host, self.port),
            is_authenticated=settings.auth.enabled,
            is_encrypted=self._is_tls_enforced,
            is_secure_required=settings.require_secure_listener,
        )
        self._check_replication(settings)
        try:
            slaves = set() if self.role.is_slave else await self.registration.find_slaves()
            self._opening = self._loop.run_in_executor(self.readers, self._open)
            await asyncio.shield(self._opening)
            self.access.store.on_change = self._mark_users
            if self._has_new_users:
                self._mark_users()
            restoration = OffsetRestoration(
                self.clock,
                self.store,
                self.topics,
                self.groups,
                self.offsets,
                self.access.signer,
                self._outgoing_tls,
            )
            await restoration.run(slaves)
            await self._server.listen(settings.host, self.port, self.main_routes())
            await self._server.listen(settings.host, self.port - FAST_PORT_DISTANCE, self.fast_routes())
            if self._slave is None or self.membership is not None:
                await self.replication.start(settings.host, self.addresses.replica_port)
            self.monitor.start(settings.host, settings.metrics_port)
        except BaseException:
            await self.stop()
            raise
        self._start_services(settings)
        log.info("broker started name=%s address=%s", settings.name, self.address)

    def _check_replication(self, settings: BrokerSettings) -> None:
        """Raise SettingsError if everybody on the network could copy the log of a broker with users."""
        is_guarded = self._is_tls_enforced or settings.replication.allowed_addresses
        listens = settings.group.enabled or not self.role.is_slave
        if settings.auth.enabled and listens and not (is_guarded or is_loopback(settings.host)):
            raise SettingsError(
                "replication.allowed_addresses",
                "missing; the replication port would give the whole log to everybody: set haAllowedAddresses "
                "to the addresses of slaves (127.0.0.1 for none), or tls.server.mode=enforcing",
            )

    def _open(self) -> None:
        """Load metadata and open the store. May block; nothing else runs yet."""
        directory = self.live.current.config_directory
        load_metadata(directory / LAST_MASTER_FILE, self._last_master.load)
        if not self.role.is_slave:
            for sentence in self._last_master.safety.shortfalls(self.live.current):
                log.warning("this broker is less safe than the master whose place it takes: %s", sentence)
        self._has_new_users = self.access.load()
        load_metadata(directory / "topics.json", self.topics.load)
        load_metadata(directory / "subscriptionGroup.json", self.groups.load)
        load_metadata(newer_file(directory, OFFSETS_FILE, LIGHT_OFFSETS_FILE), self.offsets.load)
        self._had_light_offsets = (directory / LIGHT_OFFSETS_FILE).exists()
        load_metadata(directory / "messageRequestMode.json", self.request_modes.load)
        load_metadata(directory / "consumerOrderInfo.json", self.pops.ordered.load)
        now_ms = self.clock.now_ms()
        load_metadata(
            directory / "consumerFilter.json", lambda data: self.consumer_filters.load(data, now_ms=now_ms)
        )
        report = self.store.open()
        if self.membership is not None:
            self.epoch_file.load(self.store.log.min_offset, self.store.appended_offset)
        if report.others_wrote or not self.role.is_slave:
            self._copy_mark.clear()
        # In controller mode another replica may have been elected that lacks the end of this log.
        self.role.slave.is_copy = self._copy_mark.is_set and self.membership is None
        if report.others_wrote or self.role.is_slave:
            self._delivered.clear()
        else:
            self._delivered.load(self.store.log.appended)
        load_metadata(directory / "delayOffset.json", self.delay_levels.load)
        self.delay_levels.resume()
        if not self.role.is_slave:
            self.transactions.load()
        load_metadata(directory / "timermetrics", self.timers.load_metrics)
        self.timers.load()
        self.store.make_declared_batched(unknown=lambda topic: self.topics.get(topic) is None)
        self._restore_topics()

    def _restore_topics(self) -> None:
        """Add topics that only the store has: they were created shortly before a crash."""
        queues: dict[str, int] = {}
        for topic, queue_id in list(self.store.queues):
            if topic.startswith(LIGHT_PREFIX):
                continue
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        self.restoration.restore(queues)

    def _start_services(self, settings: BrokerSettings) -> None:
        self.store.on_arrival = self._arrived
        self.store.on_flushed = self._flush_returned
        self.store.start()
        tasks = self.tasks
        tasks.spawn(self.metadata.run())
        if self.membership is not None:
            self.membership.start()  # it starts what belongs to the role
        else:
            self._start_role(tasks)
        tasks.spawn(self._warm_up())
        tasks.every(FLUSH_INTERVAL_S * 1000, self.timers.flush, "flush timers")
        tasks.every(settings.offset_persist_interval_ms, self._save_offsets, "save offsets")
        tasks.every(settings.delay_offset_persist_interval_ms, self._save_delays, "save delays")
        tasks.every(settings.hold_check_interval_ms, self.long_polling.check, "check held pulls")
        tasks.every(settings.client_scan_interval_ms, self._expire_clients, "expire clients")
        tasks.every(STEP_S * 1000, self._step_stats, "step statistics")
        tasks.every(settings.lite.ttl_check_interval_ms, self._delete_lite_topics, "expire lite topics")
        tasks.every(
            settings.lite.subscription_check_interval_ms, self.lite_pops.subscriptions.expire,
            "expire lite subscriptions",
        )  # fmt: skip
        for tls in filter(None, (self._tls, self._replication_tls)):
            check_files = partial(self.read_cold, tls.check_files)
            tasks.every(FILES_CHECK_MS, check_files, "watch certificates")
        if settings.store.syncs_every_put:
            tasks.every(EXPIRE_WAITERS_S * 1000, self.store.expire_waiters, "expire waiters")

    def _start_role(self, tasks: Tasks) -> None:
        """Start what belongs to a role that stays."""
        if self._slave is None:
            for service in self._master_services:
                tasks.spawn(service())
            self.pops.start()
        else:
            self.registration.on_reply = self._slave.registered
            self._slave.start()
        tasks.spawn(self.timers.run())
        self.registration.start()

    async def stop(self) -> None:
        """Unregister, answer requests in flight, save all, close the store. Also after a failed start."""
        if self._opening is not None:
            # A cancelled start leaves its thread running: what it opens is closed, too.
            await asyncio.wait([self._opening])
        if self.membership is not None:
            await self.membership.leave()
        await self.registration.stop()
        self.monitor.stop()
        self._server.stop_reading()
        self.long_polling.wake_all()
        self.held_pops.wake_all()
        self.held_notifications.wake_all()
        self.lite_handlers.held.wake_all()
        timeout_s = self.live.current.shutdown_timeout_ms / 1000
        await self._answer_waiting(timeout_s / 2)
        self.replication.stop()
        await self._server.close(drain_timeout_s=timeout_s)
        await self.tasks.close()
        if self.membership is not None:
            await self.membership.stop()
        if self._slave is not None:
            await self._slave.stop()
        await self.pops.stop()
        self.store.on_arrival = None  # closing flushes once more, in a thread
        self._save_offsets()
        self._save_delays()
        try:
            await self.timers.flush()
            await self.metadata.flush()
        finally:
            await asyncio.get_running_loop().run_in_executor(self.readers, self.store.close)
            self.readers.shutdown(wait=False)
            self._writers.shutdown(wait=False)
            self.access.close()
            log.info("broker stopped name=%s address=%s", self.live.current.name, self.address)

    async def _answer_waiting(self, timeout_s: float) -> None:
        """Wait, for a limited time, until sends that wait for disk or slaves are answered."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self.store.waiters) or self.replication.waiting:  # noqa: ASYNC110 (a flush answers many at once)
                    await asyncio.sleep(WAITERS_CHECK_S)
        # Fail the rest here, and not in the thread that closes the store.
        self.store.waiters.failed()

    # --- Called by the parts ---

    async def read_cold(self, read: Callable[[], T]) -> T:
        """Run a read that may wait for the disk in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, read)

    def _mark_users(self) -> None:
        for file in self._user_files:
            file.mark()

    async def _write_users(self) -> None:
        """Return when users and ACLs are on disk. Raises OSError."""
        await self.metadata.flush()

    async def _write_offsets(self) -> None:
        """Return when the offsets are on disk. Raises OSError."""
        self._offsets_file.mark()
        if self._keeps_light_offsets:
            self._light_offsets_file.mark()
        await self.metadata.flush()

    def watermarks(self) -> dict[str, int]:
        return watermarks(
            self._server.at_work.copy(), sends=self.send_path.waiting, pulls=self.pull_path.cold
        )

    def _arrived(self, batch: Sequence[AppendedRecord]) -> None:
        """Resume held pulls and index new messages, both after the replies to the sends."""
        self.long_polling.arrived(batch)
        if self.held_pops.count:
            self.held_pops.arrived(batch)
        if self.held_notifications.count:
            self.held_notifications.arrived(batch)
        if self.lite_pops.subscriptions.count:
            self.lite_pops.subscriptions.arrived_in(batch)
        index = self.store.index
        # Indexing several messages together is cheaper, but of a master only a polling loop may defer it: a
        # sleeping loop would have to be woken for it, which takes longer than indexing one message.
        if self.role.is_slave:
            together = SLAVE_INDEX_TOGETHER
        else:
            together = INDEX_TOGETHER if self._server.busy_poll.is_polling else 0
        if index is not None and index.pending_count >= together:
            self._index_soon()

    def _index_soon(self) -> None:
        if not self._indexing and self.store.index is not None:
            self._indexing = True
            self._loop.call_soon(self._build_index)

    def _build_index(self) -> None:
        self._indexing = self.store.build_some_index(INDEX_SLICE)
        if self._indexing:
            self._loop.call_soon(self._build_index)

    def _flush_returned(self) -> None:
        """Flush thread: answer a lone send here, and continue on the loop."""
        answer = self.send_path.flushed_lone()
        if answer is not None:
            self.store.publish()  # acknowledged messages are readable
            answer.send()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker stopped while the disk hung
            self._loop.call_soon_threadsafe(self._flushed)

    def _flushed(self) -> None:
        # Replies leave before the index is built: with `call_soon` they would come after it.
        with self._server.gathering():
            self.store.advance()
        if self._slave is not None:
            self._slave.flushed()

    def _settings_changed(self) -> None:
        self._server.rate = request_rate(self.live.current)
        if self._config_file is not None:
            self._config_file.mark()

    def _topics_changed(self) -> None:
        self._topics_file.mark()
        self.registration.topics_changed()

    def _disconnected(self, peer: Peer) -> None:
        self.long_polling.drop(peer)
        self.held_pops.drop(peer)
        self.held_notifications.drop(peer)
        self.lite_handlers.held.drop(peer)
        self.producers.channel_closed(peer)
        for notice in self.consumers.channel_closed(peer):
            notify_members(notice)

    def _expire_clients(self) -> None:
        now = self.clock.monotonic()
        silent, notices = self.consumers.expire(now)
        for channel in dict.fromkeys([*silent, *self.producers.expire(now)]):
            if isinstance(channel, Peer):
                log.warning("client expired, connection closed peer=%s", channel.address)
                channel.abort()
        for notice in notices:
            notify_members(notice)
        self.locks.expire(now)
        self.consumer_filters.retire(
            lambda group: self.consumers.group(group) is not None, now_ms=self.clock.now_ms()
        )

    async def _warm_up(self) -> None:
        """Load the grammar of selectors: the first one would block the loop for a tenth of a second."""
        await asyncio.sleep(WARM_UP_AFTER_S)
        if not self.live.current.sql_filters:
            return
        sys.setswitchinterval(WARM_UP_TURN_S)
        try:
            await self.read_cold(lambda: compile_selector("warm = TRUE"))
        finally:
            sys.setswitchinterval(USUAL_TURN_S)

    async def _step_stats(self) -> None:
        for _ in self.stats.slices(self.clock.monotonic(), self.clock.now_ms()):
            await asyncio.sleep(0)

    def _save_offsets(self) -> None:
        if not self.role.is_slave:
            self.transactions.save_progress()
        if self.offsets.changes != self._offset_changes_saved:
            self._offset_changes_saved = self.offsets.changes
            self._offsets_file.mark()
            if self._keeps_light_offsets:
                self._light_offsets_file.mark()

    def _save_delays(self) -> None:
        if self.delay_levels.changes != self._delay_changes_saved:
            self._delay_changes_saved = self.delay_levels.changes
            self.delay_levels.bump()
            self._delays_file.mark()
        if self.timers.changes != self._timer_changes_saved:
            self._timer_changes_saved = self.timers.changes
            self._timers_file.mark()
        ordered = self.pops.ordered
        if ordered.changes != self._order_changes_saved:
            ordered.retire(self._has_queue, self.clock.now_ms())
            self._order_changes_saved = ordered.changes
            self._order_file.mark()

    def _forget_pops(self, topic: str) -> None:
        self.pops.forget_topic(topic)
        self.held_pops.wake_topic(topic)
        self.held_notifications.wake_topic(topic)
        self.lite_pops.forget(topic)

    @property
    def _keeps_light_offsets(self) -> bool:
        return self._had_light_offsets or self.lite_pops.subscriptions.was_used

    async def _delete_lite_topics(self) -> None:
        if not self.role.is_slave:
            await self.lite_pops.delete_expired(self.deletion)

    def _has_queue(self, key: tuple[str, str, int]) -> bool:
        topic, group, queue_id = key
        config = self.topics.get(topic)
        return config is not None and queue_id < config.read_queue_nums and group in self.groups

    async def _run_writer(self, write: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writers, write)


def request_rate(settings: BrokerSettings) -> RequestRate | None:
    """What each connection may send, None without a limit."""
    per_second = settings.client_requests_per_s_max
    return RequestRate(per_second, settings.client_requests_burst_max) if per_second else None


def server_limits(settings: BrokerSettings) -> ServerLimits:
    return ServerLimits(
        protocol=Limits(frame_bytes_max=settings.frame_bytes_max),
        connections_max=settings.connections_max,
        requests_in_flight_max=settings.requests_in_flight_max,
        bytes_in_flight_max=settings.bytes_in_flight_max,
        write_high_water_bytes=settings.write_high_water_bytes,
        write_bytes_max=settings.write_bytes_max,
        idle_timeout_s=settings.idle_timeout_s,
        stay_awake_us=settings.stay_awake_us,
    )
