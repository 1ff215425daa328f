"""`skylark namesrv`, `skylark broker`, `skylark serve`: the servers in the foreground."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from skylark import __version__
from skylark.cli.descriptors import raise_descriptor_limit
from skylark.cli.mistake import Mistake
from skylark.settings import BrokerSettings, FlushMode, NameServerSettings
from skylark.settings.loading import Loaded, load_settings, to_properties

ENVIRONMENT_PREFIXES = {BrokerSettings: "SKYLARK_BROKER_", NameServerSettings: "SKYLARK_NAMESRV_"}
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - looked for, to warn
FLUSH_MODES = {"async": FlushMode.ASYNC, "sync": FlushMode.SYNC}

Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings: .properties or .toml.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, by either of its names.")
]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print all settings and stop.")]
Bind = Annotated[
    str | None, typer.Option("--bind", metavar="HOST", help="Listen there; 127.0.0.1 by default.")
]
Advertise = Annotated[
    str | None, typer.Option("--advertise", metavar="HOST", help="The address that clients are told.")
]
Flush = Annotated[str | None, typer.Option("--flush", help="async or sync: when a message counts as stored.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where messages are kept.")]


def namesrv(
    port: Annotated[int | None, typer.Option("--port", help="9876 by default; 0: any.")] = None,
    bind: Bind = None,
    config: Config = None,
    sets: Sets = None,
    print_config: PrintConfig = False,
) -> None:
    """Run a name server until Ctrl-C.

    Example: skylark namesrv --port 9876 --bind 127.0.0.1
    """
    from skylark.namesrv import server  # noqa: PLC0415 - no other command needs it

    started = time.monotonic()
    loaded = _load(NameServerSettings, config, {"port": port, "host": bind}, sets)
    if print_config:
        typer.echo(to_properties(loaded.settings), nl=False)
        return

    def ready(running: server.NameServer) -> None:
        _say(started, f"name server on {running.address}")

    _run(server.serve(loaded.settings, on_ready=ready))


def broker(
    config: Config = None,
    name_servers: Annotated[
        str | None, typer.Option("--namesrv", metavar="HOST:PORT", help="Name servers, separated by ;.")
    ] = None,
    data: Data = None,
    port: Annotated[int | None, typer.Option("--port", help="10911 by default; 0: any.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The broker's name; broker-a by default.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="DefaultCluster by default.")] = None,
    flush: Flush = None,
    bind: Bind = None,
    advertise: Advertise = None,
    sets: Sets = None,
    print_config: PrintConfig = False,
) -> None:
    """Run a broker until Ctrl-C.

    Example: skylark broker --namesrv 127.0.0.1:9876 --data /var/lib/skylark --flush sync
    """
    from skylark import embedded  # noqa: PLC0415 - no other command needs it
    from skylark.broker.broker import Broker  # noqa: PLC0415

    started = time.monotonic()
    flags = {
        "name_servers": name_servers, "port": port, "name": name, "cluster": cluster, "host": bind,
        "advertised_host": advertise, **_store_flags(data, flush),
    }  # fmt: skip
    loaded = _load(BrokerSettings, config, flags, sets)
    if print_config:
        typer.echo(to_properties(loaded.settings), nl=False)
        return
    settings = _checked(replace(loaded.settings, config_path=loaded.settings.config_path or config))

    async def run() -> None:
        server = Broker(settings)
        await embedded.serve(server, lambda: _say_broker(started, server))

    _run(run())


def serve(
    data: Data = None,
    name_server_port: Annotated[int, typer.Option("--namesrv-port", help="0: any.")] = 9876,
    broker_port: Annotated[
        int | None, typer.Option("--broker-port", help="10911 by default; 0: any.")
    ] = None,
    flush: Flush = None,
    bind: Bind = None,
    advertise: Advertise = None,
    config: Config = None,
    sets: Sets = None,
) -> None:
    """Run a name server and a broker in one process until Ctrl-C: all that one machine needs.

    Example: skylark serve --data ./skylark-data
    """
    from skylark import embedded  # noqa: PLC0415 - no other command needs it

    started = time.monotonic()
    flags = {"port": broker_port, "host": bind, "advertised_host": advertise, **_store_flags(data, flush)}
    settings = _checked(_load(BrokerSettings, config, flags, sets).settings)
    name_server = NameServerSettings(
        host=settings.host,
        port=name_server_port,
        kv_config_path=settings.store.path / "namesrv/kvConfig.json",
    )

    async def run() -> None:
        both = embedded.Embedded(name_server, settings)

        def ready() -> None:
            assert both.broker is not None
            _say(started, f"name server on {both.name_server.address}")
            _say_broker(started, both.broker)

        await embedded.serve(both, ready)

    _run(run())


def _store_flags(data: Path | None, flush: str | None) -> dict[str, Any]:
    if flush is not None and flush not in FLUSH_MODES:
        raise Mistake(f"--flush {flush}: async or sync is possible")
    mode = FLUSH_MODES[flush].value if flush is not None else None
    return {"store.path": None if data is None else str(data), "store.flush_mode": mode}


def _load(
    settings_type: type[Any], config: Path | None, flags: Mapping[str, Any], sets: list[str] | None
) -> Loaded[Any]:
    given = {key: str(value) for key, value in flags.items() if value is not None}
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise Mistake(f"--set {text}: KEY=VALUE is expected")
        given[key.strip()] = value.strip()
    loaded = load_settings(
        settings_type,
        file=config,
        environment=os.environ,
        prefix=ENVIRONMENT_PREFIXES[settings_type],
        flags=given,
    )
    for warning in loaded.warnings:
        typer.echo(f"skylark: {warning}", err=True)
    return loaded


def _checked(settings: BrokerSettings) -> BrokerSettings:
    if settings.host in ANY_ADDRESS and not settings.advertised_host:
        typer.echo(
            f"skylark: bound to {settings.host}, and clients are told the same: use --advertise HOST",
            err=True,
        )
    return settings


def _say(started: float, text: str) -> None:
    typer.echo(f"skylark {__version__}: {text}, ready after {time.monotonic() - started:.2f} s")


def _say_broker(started: float, server: Any) -> None:
    settings = server.live.current
    _say(started, f"broker {settings.name} on {server.address} (fast port {server.port - 2})")
    typer.echo(f"store {settings.store.path.absolute()}, flush {settings.store.flush_mode.value}")
    if server.monitor.address:
        typer.echo(
            f"metrics http://{server.monitor.address}/metrics, health http://{server.monitor.address}/health"
        )


def _run(main: Coroutine[Any, Any, None]) -> None:
    import uvloop  # noqa: PLC0415 - the servers' loop alone

    raise_descriptor_limit()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(main)
