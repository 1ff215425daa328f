"""Controller builds, starts and stops the parts; `serve` is the whole life of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING

from skylark.auth.access_control import AccessControl
from skylark.auth.administration import CHANGES as USER_CHANGES
from skylark.auth.administration import READS as USER_READS
from skylark.clock import Clock, SystemClock
from skylark.controller.decisions import Decisions
from skylark.controller.election import Outcome
from skylark.controller.etcd import EtcdRegister
from skylark.controller.handlers import ROUTES
from skylark.controller.register import FileRegister, Leader, Register
from skylark.controller.role_notices import RoleNotices
from skylark.protocol.command import RemotingCommand
from skylark.remoting.address import check_host, check_listener, join_address, split_address
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.latency import RequestLatencies
from skylark.remoting.link import Handler
from skylark.remoting.monitor import Monitor
from skylark.remoting.server import Peer, RemotingServer, ServerLimits
from skylark.remoting.server_metrics import (
    SECURITY,
    Samples,
    ServerMetric,
    request_samples,
    security_faults,
    security_samples,
)
from skylark.remoting.tls import FILES_CHECK_MS, make_server_tls
from skylark.remoting.tls_client import make_outgoing_tls
from skylark.settings.controller import ControllerSettings, RegisterKind
from skylark.settings.credentials import secret_text
from skylark.stop_signal import StopSignal
from skylark.tasks import Tasks

if TYPE_CHECKING:
    from skylark.remoting.pages import Pages

log = logging.getLogger(__name__)

GROUP_LABELS = ("cluster", "broker_set")
METRICS = {
    "rocketmq_controller_role": ServerMetric("1: this controller leads."),
    "rocketmq_controller_active_broker_num": ServerMetric("Brokers that are alive.", GROUP_LABELS),
    "rocketmq_controller_election_total": ServerMetric("Elections by result.", ("election_result",)),
    "rocketmq_controller_request_total": ServerMetric("Requests.", ("request_type", "response_code")),
    "skylark_controller_master": ServerMetric("1: the broker name has a living master.", GROUP_LABELS),
    "skylark_controller_master_epoch": ServerMetric("Master epoch.", GROUP_LABELS),
    "skylark_controller_in_sync_replicas": ServerMetric("Members of the SyncStateSet.", GROUP_LABELS),
    "skylark_controller_replicas": ServerMetric("Known replicas.", GROUP_LABELS),
    **SECURITY,
}
"""Only the leader reports groups."""


class Controller:
    """A controller on the running loop. Start it once, stop it once; any number may run side by side."""

    def __init__(self, settings: ControllerSettings, *, clock: Clock | None = None) -> None:
        """Raises SettingsError if a certificate cannot be loaded or the register is not installed."""
        self.port = 0
        self._settings = settings
        self.latencies = RequestLatencies()
        self._clock = clock or SystemClock()
        self._tasks = Tasks()
        self._writer = ThreadPoolExecutor(1, "controller-config")
        self._tls = make_server_tls(settings.tls)
        self._access = AccessControl(
            settings.auth,
            settings.store_path,
            self._clock,
            cluster=settings.auth.cluster or "DefaultCluster",
        )
        self._server = RemotingServer(
            ServerLimits(connections_max=settings.connections_max, idle_timeout_s=settings.idle_timeout_s),
            on_disconnect=self._disconnected,
            latencies=self.latencies,
            tls=self._tls,
            gate=self._access.gate,
        )
        self._pool = ConnectionPool(
            signer=self._access.signer, tls=make_outgoing_tls(settings.tls, settings.tls_client)
        )
        self._register: Register = (
            EtcdRegister(settings.etcd)
            if settings.register is RegisterKind.ETCD
            else FileRegister(settings.store_path)
        )
        self.monitor = Monitor(self._make_pages, self._tls)
        self._is_insecure = False
        self.decisions = Decisions(
            settings, self._register, RoleNotices(self._pool, self._tasks), self._clock, self._writer
        )

    # --- Life ---

    @property
    def address(self) -> str:
        """The address for brokers, after `start`."""
        own = self._settings.peer_addresses.get(self._settings.self_id)
        return own or join_address(self._settings.host, self.port)

    async def start(self) -> None:
        """Listen, open the register and try to lead. Raises SettingsError, BadStoreFile and OSError."""
        settings = self._settings
        own = settings.peer_addresses.get(settings.self_id)
        port = settings.port if own is None else split_address(own)[1]
        check_host(settings.host)
        self._is_insecure = check_listener(
            join_address(settings.host, port),
            is_authenticated=settings.auth.enabled,
            is_encrypted=self._tls is not None and self._tls.is_enforcing,
            is_secure_required=settings.require_secure_listener,
        )
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._writer, self._access.load):
            await loop.run_in_executor(self._writer, self._access.writer())
        self.decisions.security_faults = lambda: security_faults(self._tls, self._open_host)
        routes: dict[int, Handler] = {
            code: partial(handler, self.decisions) for code, handler in ROUTES.items()
        }
        if settings.auth.is_served:
            routes |= dict.fromkeys(USER_CHANGES, self._change_users)
            routes |= dict.fromkeys(USER_READS, self._read_users)
        self.port = await self._server.listen(settings.host, port, routes)
        self.decisions.live.started_at = self._clock.monotonic()
        self.decisions.peers = settings.peer_addresses or {settings.self_id: self.address}
        await self._register.start(Leader(settings.self_id, self.address), self._began_to_lead)
        self._tasks.spawn(self._scan_forever(), "scan brokers")
        if settings.metrics_port:
            self.monitor.start(settings.metrics_host or settings.host, settings.metrics_port)
        if self._tls is not None:
            watch = partial(loop.run_in_executor, self._writer, self._tls.check_files)
            self._tasks.every(FILES_CHECK_MS, watch, "watch certificates")
        log.info("controller started id=%s address=%s", settings.self_id, self.address)

    async def stop(self) -> None:
        """Give up leadership and close all connections. Also after a failed start."""
        await self._tasks.close()
        self.monitor.stop()
        await self._register.close()
        await self._server.close()
        await self._pool.close()
        self._access.close()
        self._writer.shutdown(wait=False)
        log.info("controller stopped id=%s address=%s", self._settings.self_id, self.address)

    def _make_pages(self) -> Pages:
        """Build the pages of the monitor, at its first request."""
        from skylark.remoting.pages import Pages, ServerMetrics, security_warnings  # noqa: PLC0415

        gate, tls = self._access.gate, self._tls
        refusals = {} if gate is None else gate.refusals
        collector = ServerMetrics(
            METRICS,
            partial(decision_samples, self.decisions),
            partial(request_samples, "rocketmq_controller_request_total", self.latencies),
            partial(security_samples, tls, refusals, is_insecure=self._is_insecure),
        )
        token = secret_text(self._settings.metrics_token)
        return Pages(collector, token, warnings=lambda: security_warnings(tls, self._open_host))

    @property
    def _open_host(self) -> str:
        """The address where the controller is open to the whole network; empty if it is not."""
        return self._settings.host if self._is_insecure else ""

    # --- Users ---

    def _read_users(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        return self._access.administration.reply(command)

    async def _change_users(self, _: Peer, command: RemotingCommand) -> RemotingCommand:
        reply = self._access.administration.reply(command)
        await asyncio.get_running_loop().run_in_executor(self._writer, self._access.writer())
        return reply

    def _began_to_lead(self) -> None:
        log.warning("controller leads id=%s groups=%d", self._settings.self_id, len(self._register.groups))

    def _disconnected(self, peer: Peer) -> None:
        if self._server.is_closing:
            return
        names = self.decisions.drop_channel(peer)
        if names:
            self._tasks.spawn(self.decisions.elect_where_needed(names), "elect masters")

    async def _scan_forever(self) -> None:
        while True:
            await asyncio.sleep(self.decisions.settings.scan_interval_ms / 1000)
            await self.decisions.scan()


def decision_samples(decisions: Decisions) -> Samples:
    """Yield leadership, living brokers, elections and, of a leader, the groups."""
    yield "rocketmq_controller_role", (), decisions.is_leading
    for cluster, name, number in decisions.live.count():
        yield "rocketmq_controller_active_broker_num", (cluster, name), number
    for outcome in Outcome:
        yield "rocketmq_controller_election_total", (outcome.value,), decisions.elections[outcome]
    if not decisions.is_leading:
        return
    for group in list(decisions.groups.values()):
        labels = (group.cluster, group.name)
        yield "skylark_controller_master", labels, decisions.has_living_master(group)
        yield "skylark_controller_master_epoch", labels, group.master_epoch
        yield "skylark_controller_in_sync_replicas", labels, len(group.members)
        yield "skylark_controller_replicas", labels, len(group.replicas)


async def serve(
    settings: ControllerSettings,
    *,
    on_ready: Callable[[Controller], None] = lambda controller: None,
    on_stop: Callable[[Signals], None] = lambda number: None,
) -> None:
    """Run a controller until SIGTERM or SIGINT, which `on_stop` gets before the controller is stopped.

    Main thread only. Raises as `Controller.start` does.
    """
    controller = Controller(settings)
    with StopSignal() as stop_signal:
        try:
            await controller.start()
            on_ready(controller)
            on_stop(await stop_signal.wait())
        finally:
            await controller.stop()
