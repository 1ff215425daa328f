"""GrpcProxy: builds the parts of the gRPC front, starts and stops them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from signal import Signals
from typing import TYPE_CHECKING

from skylark.auth.store import AuthStore
from skylark.clock import Clock, SystemClock
from skylark.errors import SettingsError
from skylark.proxy.access import USERS_MS, CallGate, UserCopy
from skylark.proxy.client_calls import ClientCalls
from skylark.proxy.clients import ClientTable
from skylark.proxy.cluster import Cluster
from skylark.proxy.grpc_server import GrpcServer
from skylark.proxy.proxy_metrics import METRICS, CallCounts, proxy_samples
from skylark.proxy.receive_calls import ReceiveCalls
from skylark.proxy.renewals import Renewals
from skylark.proxy.route_calls import RouteCalls
from skylark.proxy.send_calls import SendCalls
from skylark.proxy.service import Service
from skylark.remoting.address import join_address
from skylark.remoting.monitor import Monitor
from skylark.remoting.nearby import NearbyServer
from skylark.remoting.server_metrics import Part
from skylark.remoting.tls import FILES_CHECK_MS, ServerTls
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import secret_text
from skylark.settings.proxy import ProxySettings
from skylark.settings.tls import TlsMode
from skylark.stop_signal import StopSignal
from skylark.tasks import Tasks

if TYPE_CHECKING:
    from skylark.remoting.pages import Pages

log = logging.getLogger(__name__)

SWEEP_MS = 5000
DRAIN_S = 5.0
ALPN = ("h2",)


class GrpcProxy:
    """A proxy on the running loop. Start it once, stop it once."""

    def __init__(
        self,
        settings: ProxySettings,
        cluster: ClientSettings,
        *,
        users: AuthStore | None = None,
        nearby: NearbyServer | None = None,
        clock: Clock | None = None,
        shares_port: bool = False,
    ) -> None:
        """`cluster` says how brokers are reached; `nearby` is one of this process.

        With authentication, `users` may call; None: a broker's.
        Other processes may listen on the same port with `shares_port`. Raises SettingsError.
        """
        self.settings = settings
        self.clock = clock or SystemClock()
        self.port = settings.port
        self._shares_port = shares_port
        self._tasks = Tasks()
        self.counts = CallCounts()
        self.cluster = Cluster(cluster, settings.metadata_fresh_ms, nearby)
        self.clients = ClientTable(settings, self.cluster, self._tasks)
        self.renewals = Renewals(settings, self.cluster, self.clock)
        self.clients.on_gone = self.renewals.release
        self._user_copy = UserCopy(self.cluster) if settings.auth.enabled and users is None else None
        gate = None
        if settings.auth.enabled:
            store = users if self._user_copy is None else self._user_copy.store
            assert store is not None
            gate = CallGate(settings.auth, store, self.clock)
        service = Service(
            RouteCalls(settings, self.cluster),
            SendCalls(settings, self.cluster, self.clock),
            ReceiveCalls(settings, self.cluster, self.clients, self.renewals, self.clock, self._tasks),
            ClientCalls(settings, self.cluster, self.clients),
            gate,
            settings.calls_max,
            self.counts,
        )
        self._server = GrpcServer(settings, service.methods)
        self.monitor: Monitor | None = None
        """Serves the metrics; None before the certificate is loaded, and without a port for them."""

    @property
    def address(self) -> str:
        return join_address(self.settings.host, self.port)

    async def start(self) -> None:
        """Listen. Raises OSError for a port that is taken, SettingsError, RemotingError, BrokerError."""
        await self.cluster.start()
        try:
            if self._user_copy is not None:
                await self._user_copy.load()
                self._tasks.every(USERS_MS, self._user_copy.refresh, "refresh users")
            self.port = await self._server.listen(shares_port=self._shares_port)
        except BaseException:
            await self._tasks.close()
            await self.cluster.close()
            raise
        self.clients.start()
        self._tasks.every(SWEEP_MS, self._server.sweep, "close idle connections")
        self._tasks.every(self.settings.renew_interval_ms, self.renewals.renew, "renew messages")
        self._tasks.spawn(self._load_tls(), "load certificate")
        log.info("gRPC proxy started address=%s", self.address)

    async def _load_tls(self) -> None:
        """Load or make the certificate in a thread: making one takes a while, and few clients need it."""
        settings = self.settings.tls
        if settings.mode is TlsMode.DISABLED:
            self._server.use_tls(None, "TLS is disabled")
            self._start_monitor(None)
            return
        if not settings.has_certificate and settings.config_file is None:
            settings = replace(settings, test_mode=True)
        loop = asyncio.get_running_loop()
        try:
            tls = await loop.run_in_executor(None, lambda: ServerTls(settings, alpn=ALPN))
        except SettingsError as error:
            self._server.use_tls(None, str(error))
            log.error("gRPC proxy has no TLS reason=%s", error)  # noqa: TRY400 (no fault of the program)
            return
        self._server.use_tls(tls)
        self._start_monitor(tls)
        self._tasks.every(
            FILES_CHECK_MS, lambda: loop.run_in_executor(None, tls.check_files), "watch certificates"
        )

    @property
    def metrics(self) -> Part:
        return METRICS, lambda: proxy_samples(
            self.counts,
            self.clients,
            connections=len(self._server.connections),
            renewed=self.renewals.count,
        )

    def _start_monitor(self, tls: ServerTls | None) -> None:
        settings = self.settings
        if not settings.metrics_port:
            return
        self.monitor = Monitor(self._make_pages, tls)
        self.monitor.start(settings.host, settings.metrics_port)
        log.info("metrics address=%s", self.monitor.address)

    def _make_pages(self) -> Pages:
        """Build the pages of the monitor, at its first request."""
        from skylark.remoting.pages import Pages, ServerMetrics  # noqa: PLC0415

        return Pages(ServerMetrics(*self.metrics), secret_text(self.settings.metrics_token))

    async def stop(self) -> None:
        """Finish calls, release messages, unregister clients. Also after a failed start."""
        if self.monitor is not None:
            self.monitor.stop()
        await self._server.close(drain_s=DRAIN_S)
        await self.clients.close()
        await self.renewals.release_all()
        await self._tasks.close()
        await self.cluster.close()
        log.info("gRPC proxy stopped address=%s", self.address)


async def serve(
    server: GrpcProxy,
    on_ready: Callable[[], None],
    on_stop: Callable[[Signals], None] = lambda number: None,
) -> None:
    """Run a proxy until SIGTERM or SIGINT, which `on_stop` gets before it is stopped. Main thread only."""
    with StopSignal() as stop_signal:
        await server.start()
        try:
            on_ready()
            on_stop(await stop_signal.wait())
        finally:
            await server.stop()
