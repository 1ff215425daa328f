"""The gRPC port of `serve` and `broker`: a proxy in the broker's process, from the moment it is ready."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.errors import UsageError
from skylark.cli.server_process import PORT_MAX
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from skylark.broker.broker import Broker
    from skylark.proxy.proxy import GrpcProxy
    from skylark.settings import BrokerSettings
    from skylark.settings.client import ClientSettings

PROXY_PREFIX = "SKYLARK_PROXY_"
PORT_VARIABLE = "SKYLARK_GRPC_PORT"
OFF = "off"
LIBRARIES = ("hpack", "google.protobuf")
MISSING = "hpack and protobuf are not installed: pip install 'skylarkmq[grpc]'"

GrpcPort = Annotated[
    str | None,
    typer.Option(
        "--grpc-port",
        metavar="PORT|off",
        envvar=PORT_VARIABLE,
        show_envvar=False,
        help="For RocketMQ 5 clients; 8081 by default; 0: any free port.",
    ),
]


def is_installed() -> bool:
    """Whether the extra `grpc` is installed."""
    try:
        return all(importlib.util.find_spec(name) is not None for name in LIBRARIES)
    except ModuleNotFoundError:  # `google` itself
        return False


def check_installed() -> None:
    """Raises UsageError."""
    if not is_installed():
        raise UsageError(MISSING)


def parse_port(text: str | None) -> int | None:
    """Return the port, None for off. Raises UsageError."""
    if text is None:
        return 8081
    if text == OFF:
        return None
    if not text.isdecimal() or int(text) > PORT_MAX:
        raise UsageError(f"invalid --grpc-port {text!r}; use a port, 0 for any free one, or off")
    return int(text)


class GrpcFront:
    """Starts a proxy when the broker is ready. A port that is taken is reported, and the broker serves on."""

    def __init__(self, port: str | None) -> None:
        """`port` is that of the command line. Raises UsageError, and SettingsError for a variable."""
        from skylark.settings.loader import load_settings  # noqa: PLC0415
        from skylark.settings.proxy import ProxySettings  # noqa: PLC0415

        self._is_asked_for = port is not None
        self._port = parse_port(port)
        self._proxy: GrpcProxy | None = None
        if self._port is not None and self._is_asked_for:
            check_installed()
        self._loaded = load_settings(ProxySettings, environment=os.environ, prefix=PROXY_PREFIX)

    async def start(self, broker: Broker) -> None:
        """Listen beside a broker, with its users, and say where, or why not."""
        await self._start(broker.live.current, broker)
        if self._proxy is not None:
            broker.more_metrics.append(self._proxy.metrics)

    async def start_at(self, settings: BrokerSettings) -> None:
        """Listen before the cluster of these settings, with its users, and say where, or why not."""
        await self._start(settings, None)

    async def _start(self, settings: BrokerSettings, broker: Broker | None) -> None:
        if self._port is None or not is_installed():
            return
        if not settings.name_servers:
            if self._is_asked_for:
                typer.echo("no gRPC port: it needs a name server; pass --namesrv")
            return
        from skylark.proxy.proxy import GrpcProxy  # noqa: PLC0415 - slow, the broker serves already

        own = replace(
            self._loaded.settings, host=settings.host, port=self._port, auth=settings.auth, metrics_port=0
        )
        if not any(name.startswith("tls.") for name in self._loaded.origins):
            own = replace(own, tls=settings.tls)
        try:
            proxy = GrpcProxy(
                own,
                cluster_settings(settings),
                users=None if broker is None else broker.access.store,
                nearby=None if broker is None else broker.nearby(),
            )
            await proxy.start()
        except (OSError, RocketMQError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            typer.echo(
                f"no gRPC port: {settings.host}:{self._port} cannot be used ({reason}), so RocketMQ 5 "
                "clients are not served; pass --grpc-port PORT, or --grpc-port off"
            )
            return
        self._proxy = proxy
        typer.echo(f"gRPC for RocketMQ 5 clients on {proxy.address}")

    async def stop(self) -> None:
        if self._proxy is not None:
            await self._proxy.stop()


def cluster_settings(broker: BrokerSettings) -> ClientSettings:
    """Return how a proxy in a broker's process reaches brokers: as the broker itself does."""
    from skylark.settings.client import ClientSettings  # noqa: PLC0415
    from skylark.settings.tls import TlsMode, with_config_file  # noqa: PLC0415

    inner = broker.auth.inner
    client = broker.tls_client
    is_tls = broker.tls.mode is TlsMode.ENFORCING if client.enabled is None else client.enabled
    if is_tls:
        client = with_config_file(client, broker.tls.config_file)
    return ClientSettings(
        name_servers=broker.name_servers,
        access_key="" if inner is None else inner.access_key,
        secret_key="" if inner is None else inner.secret_key,
        tls=is_tls,
        tls_trusted=client.trusted,
        tls_check_server=client.check_server,
        tls_server_name=client.server_name,
        tls_certificate=client.certificate,
        tls_key=client.key,
        tls_key_password=client.key_password,
    )
