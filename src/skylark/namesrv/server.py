"""NameServer builds, starts and stops the parts; `serve` is the whole life of a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from skylark.atomic_file import load_file
from skylark.auth.access_control import AccessControl
from skylark.clock import Clock, SystemClock
from skylark.namesrv.handlers import ROUTES, USER_CODES, NameServerState, SavedFile
from skylark.namesrv.kv_config import KvConfig, decode_tables, encode_tables
from skylark.namesrv.route_table import RouteTable
from skylark.protocol.codes import RequestCode
from skylark.remoting.address import check_host, check_listener, join_address
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
from skylark.settings import NameServerSettings
from skylark.settings.credentials import secret_text
from skylark.settings.loader import to_properties
from skylark.stop_signal import StopSignal
from skylark.tasks import Tasks

if TYPE_CHECKING:
    from skylark.remoting.pages import Pages

log = logging.getLogger(__name__)

METRICS = {
    "skylark_namesrv_brokers": ServerMetric("Brokers that are registered, slaves included."),
    "skylark_namesrv_topics": ServerMetric("Topics that have routes."),
    "skylark_namesrv_connections": ServerMetric("Open connections of brokers and clients."),
    "skylark_namesrv_request_total": ServerMetric("Requests.", ("request_type", "response_code")),
    **SECURITY,
}


class NameServer:
    """A name server on the running loop. Start it once, stop it once; any number may run side by side."""

    def __init__(self, settings: NameServerSettings, *, clock: Clock | None = None) -> None:
        """Raises SettingsError if the certificate cannot be loaded."""
        self.port = 0
        self._clock = clock or SystemClock()
        # One thread each: a hanging disk must not keep brokers from registering.
        self._writer = ThreadPoolExecutor(1, "namesrv-file")
        self._decoder = ThreadPoolExecutor(1, "namesrv-decode")
        self._scan_timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._tls = make_server_tls(settings.tls)
        self._access = AccessControl(
            settings.auth,
            settings.kv_config_path.parent,
            self._clock,
            cluster=settings.auth.cluster or "DefaultCluster",
            open_codes=frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC} if settings.open_routes else ()),
        )
        self._latencies = RequestLatencies()
        self._server = RemotingServer(
            ServerLimits(connections_max=settings.connections_max, idle_timeout_s=settings.idle_timeout_s),
            on_disconnect=self._disconnected,
            latencies=self._latencies,
            tls=self._tls,
            gate=self._access.gate,
        )
        self.monitor = Monitor(self._make_pages, self._tls)
        self._is_insecure = False
        kv_config = KvConfig(entries_max=settings.kv_entries_max, chars_max=settings.kv_chars_max)
        self._state = NameServerState(
            settings=settings,
            clock=self._clock,
            routes=RouteTable(settings),
            kv_config=kv_config,
            kv_file=SavedFile(
                settings.kv_config_path, self._writer, snapshot=kv_config.snapshot, encode=encode_tables
            ),
            config_file=self._config_file(settings),
            users=self._access.administration,
            user_files=self._user_files(),
            decoder=self._decoder,
            started_at=self._clock.monotonic(),
            security_faults=lambda: security_faults(self._tls, self._open_host),
        )

    @property
    def address(self) -> str:
        """The address for clients and brokers, after `start`."""
        return join_address(self._state.settings.host, self.port)

    async def start(self) -> None:
        """Read the key-value configuration and listen. Raises SettingsError, BadStoreFile and OSError."""
        settings = self._state.settings
        check_host(settings.host)
        self._is_insecure = check_listener(
            join_address(settings.host, settings.port),
            is_authenticated=settings.auth.enabled,
            is_encrypted=self._tls is not None and self._tls.is_enforcing,
            is_secure_required=settings.require_secure_listener,
        )
        loop = asyncio.get_running_loop()
        tables = await loop.run_in_executor(self._writer, load_file, settings.kv_config_path, decode_tables)
        self._state.kv_config.restore(tables or {})
        if await loop.run_in_executor(self._writer, self._access.load):
            for file in self._state.user_files:
                await file.save()
        unserved = frozenset() if settings.auth.is_served else USER_CODES
        routes: dict[int, Handler] = {
            code: partial(handler, self._state) for code, handler in ROUTES.items() if code not in unserved
        }
        self.port = await self._server.listen(settings.host, settings.port, routes)
        self._state.settings = replace(settings, port=self.port)
        self._state.started_at = self._clock.monotonic()
        self._schedule_scan()
        if settings.metrics_port:
            self.monitor.start(settings.host, settings.metrics_port)
        if self._tls is not None:
            watch = partial(loop.run_in_executor, self._writer, self._tls.check_files)
            self._tasks.every(FILES_CHECK_MS, watch, "watch certificates")
        log.info("name server started address=%s", self.address)

    async def stop(self) -> None:
        """Finish requests in flight and close all connections. Also after a failed start."""
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        self.monitor.stop()
        await self._tasks.close()
        await self._server.close()
        self._access.close()
        self._writer.shutdown(wait=False)
        self._decoder.shutdown(wait=False)
        log.info("name server stopped address=%s", self.address)

    def _make_pages(self) -> Pages:
        """Build the pages of the monitor, at its first request."""
        from skylark.remoting.pages import Pages, ServerMetrics, security_warnings  # noqa: PLC0415

        settings, gate, tls = self._state.settings, self._access.gate, self._tls
        refusals = {} if gate is None else gate.refusals
        collector = ServerMetrics(
            METRICS,
            self._samples,
            partial(request_samples, "skylark_namesrv_request_total", self._latencies),
            partial(security_samples, tls, refusals, is_insecure=self._is_insecure),
        )
        token = secret_text(settings.metrics_token)
        return Pages(collector, token, warnings=lambda: security_warnings(tls, self._open_host))

    @property
    def _open_host(self) -> str:
        """The address where the server is open to the whole network; empty if it is not."""
        return self._state.settings.host if self._is_insecure else ""

    def _samples(self) -> Samples:
        routes = self._state.routes
        yield "skylark_namesrv_brokers", (), routes.broker_count
        yield "skylark_namesrv_topics", (), routes.topic_count
        yield "skylark_namesrv_connections", (), len(self._server.peers)

    def _user_files(self) -> tuple[SavedFile[Callable[[], bytes]], SavedFile[Callable[[], bytes]]]:
        access, store = self._access, self._access.store

        def saved(path: Path, snapshot: Callable[[], Callable[[], bytes]]) -> SavedFile[Callable[[], bytes]]:
            return SavedFile(
                path, self._writer, snapshot=snapshot, encode=lambda encode: encode(), is_private=True
            )

        return saved(access.users_path, store.users_snapshot), saved(access.acls_path, store.acls_snapshot)

    def _config_file(self, settings: NameServerSettings) -> SavedFile[str] | None:
        if settings.config_path is None:
            return None
        return SavedFile(
            settings.config_path,
            self._writer,
            snapshot=lambda: to_properties(self._state.settings),
            encode=str.encode,
            is_private=bool(settings.auth.first_user or settings.auth.inner_credentials),
        )

    def _schedule_scan(self) -> None:
        self._scan_timer = asyncio.get_running_loop().call_later(
            self._state.settings.scan_interval_ms / 1000, self._scan
        )

    def _scan(self) -> None:
        self._schedule_scan()
        for address, channel in self._state.routes.expire(self._clock.monotonic()):
            log.warning("broker removed address=%s reason=silent", address)
            if isinstance(channel, Peer):
                channel.abort()

    def _disconnected(self, peer: Peer) -> None:
        if peer not in self._state.broker_peers or self._server.is_closing:
            return
        self._state.broker_peers.discard(peer)
        for address in self._state.routes.drop_channel(peer):
            log.warning("broker removed address=%s reason=connection closed", address)


async def serve(
    settings: NameServerSettings,
    *,
    on_ready: Callable[[NameServer], None] = lambda server: None,
    on_stop: Callable[[Signals], None] = lambda number: None,
) -> None:
    """Run a name server until SIGTERM or SIGINT, which `on_stop` gets before the server is stopped.

    Main thread only. Raises as `NameServer.start` does.
    """
    server = NameServer(settings)
    with StopSignal() as stop_signal:
        try:
            await server.start()
            on_ready(server)
            on_stop(await stop_signal.wait())
        finally:
            await server.stop()
