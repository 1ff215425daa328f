"""`skylark proxy`: serve RocketMQ 5 clients (gRPC) in front of a cluster, in one process or several."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from signal import Signals
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import server_process
from skylark.cli.errors import UsageError
from skylark.cli.grpc_front import PROXY_PREFIX, check_installed
from skylark.cli.server_process import (
    PORT_MAX,
    TEXT,
    Bind,
    Config,
    LogFormat,
    LogLevels,
    PrintConfig,
    Sets,
    say_ready,
)

if TYPE_CHECKING:
    from skylark.settings.proxy import ProxySettings

PROCESSES_MAX = 64


def proxy(
    name_servers: Annotated[
        str | None, typer.Option("--namesrv", metavar="HOST:PORT", help="Name servers, separated by ;.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=PORT_MAX, help="8081 by default; 0: any free port.")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", help="Processes that share the port, each with a core.")
    ] = 1,
    bind: Bind = None,
    advertise: Annotated[
        str | None,
        typer.Option("--advertise", metavar="HOST:PORT", help="What routes say; as clients ask by default."),
    ] = None,
    shares_port: Annotated[
        bool, typer.Option("--share-port", help="One of several processes on the port.", hidden=True)
    ] = False,
    config: Config = None,
    sets: Sets = None,
    print_config: PrintConfig = False,
    log_format: LogFormat = TEXT,
    log_levels: LogLevels = None,
) -> None:
    """Serve RocketMQ 5 clients (gRPC) in front of a cluster.

    The cluster may be Skylark's or Apache's. It keeps nothing on disk: run as many as are needed.

    Example: skylark proxy --namesrv 127.0.0.1:9876 --port 8081
    """
    from skylark.settings.client import ClientSettings  # noqa: PLC0415
    from skylark.settings.proxy import ProxySettings  # noqa: PLC0415

    started = time.monotonic()
    server_process.configure_logs(log_format, log_levels)
    flags = {"name_servers": name_servers, "port": port, "host": bind, "advertised_endpoint": advertise}
    settings: ProxySettings = server_process.load(ProxySettings, PROXY_PREFIX, config, flags, sets).settings
    if print_config:
        server_process.print_settings(settings)
        return
    check_installed()
    if not 1 <= processes <= PROCESSES_MAX:
        raise UsageError(f"invalid --processes {processes}; choose 1 to {PROCESSES_MAX}")
    if processes > 1:
        words = [word for text in sets or () for word in ("--set", text)]
        words += server_process.log_flags(log_format, log_levels)
        if config is not None:
            words += ["--config", str(config)]
        _run_processes(settings, processes, words, started)
        return
    from skylark.proxy.proxy import GrpcProxy, serve  # noqa: PLC0415

    async def main(stopping: Callable[[Signals], None]) -> None:
        cluster = ClientSettings(name_servers=settings.name_servers)
        server = GrpcProxy(settings, cluster, shares_port=shares_port)
        if shares_port:
            server_process.stop_with_stdin()
        await serve(server, lambda: say_ready(started, f"gRPC proxy on {server.address}"), stopping)

    server_process.run(main)


def _run_processes(settings: ProxySettings, processes: int, more: list[str], started: float) -> None:
    from skylark.cli.broker_processes import watch_processes  # noqa: PLC0415
    from skylark.stop_signal import StopSignal  # noqa: PLC0415

    if settings.port == 0:
        raise UsageError("--port 0 and --processes: several processes need a port that all know; name one")
    own = {
        "--port": settings.port,
        "--namesrv": settings.name_servers,
        "--bind": settings.host,
        "--advertise": settings.advertised_endpoint,
    }
    flags = [str(word) for flag, value in own.items() if value != "" for word in (flag, value)]
    command = [sys.executable, "-m", "skylark", "proxy", "--share-port", *flags, *more]
    commands = {f"proxy-{number}": command for number in range(1, processes + 1)}

    async def ready() -> None:
        say_ready(started, f"{processes} gRPC proxies on {settings.host}:{settings.port}")

    async def main(stopping: Callable[[Signals], None]) -> None:
        with StopSignal() as stop_signal:
            await watch_processes(stop_signal, commands, typer.echo, ready, stopping)

    server_process.run(main)
