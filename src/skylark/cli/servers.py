"""`skylark namesrv`, `skylark broker`, `skylark serve`: the servers in the foreground."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark import __version__
from skylark.cli import logs
from skylark.cli.descriptors import raise_descriptor_limit
from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, BrokerName, Namesrv

if TYPE_CHECKING:
    from skylark.settings import BrokerSettings, NameServerSettings
    from skylark.settings.loader import LoadedSettings

BROKER_PREFIX = "SKYLARK_BROKER_"
NAME_SERVER_PREFIX = "SKYLARK_NAMESRV_"
NAMESRV_VARIABLE = "NAMESRV_ADDR"
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - looked for, to warn
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
READ_BYTES = 4096
COLLECT_AFTER = (50_000, 20, 50)
"""Objects and rounds: an answer is made of up to thousands of views, each of which counts as an object."""
PORT_MAX = 0xFFFF
FLUSH_MODES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}

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
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", file_okay=False, help="Where messages are kept; ./skylark-data by default."
    ),
]


def namesrv(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=PORT_MAX, help="9876 by default; 0: any.")
    ] = None,
    bind: Bind = None,
    config: Config = None,
    sets: Sets = None,
    print_config: PrintConfig = False,
    log_format: logs.LogFormat = logs.TEXT,
    log_levels: logs.LogLevels = None,
) -> None:
    """Run a name server until Ctrl-C, or ask and tell those that run.

    Example: skylark namesrv --port 9876 --bind 127.0.0.1
    """
    if context.invoked_subcommand is not None:
        return
    from skylark.namesrv import server  # noqa: PLC0415 - no other command needs it
    from skylark.settings import NameServerSettings  # noqa: PLC0415

    started = time.monotonic()
    logs.configure(log_format, log_levels)
    loaded = _load(NameServerSettings, NAME_SERVER_PREFIX, config, {"port": port, "host": bind}, sets)
    if print_config:
        _print_settings(loaded.settings)
        return

    def ready(running: server.NameServer) -> None:
        _say(started, f"name server on {running.address}")

    _run(server.serve(loaded.settings, on_ready=ready))


def broker(
    context: typer.Context,
    config: Config = None,
    name_servers: Annotated[
        str | None, typer.Option("--namesrv", metavar="HOST:PORT", help="Name servers, separated by ;.")
    ] = None,
    data: Data = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=PORT_MAX, help="10911 by default; 0: any.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The broker's name; broker-a by default.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="DefaultCluster by default.")] = None,
    flush: Flush = None,
    bind: Bind = None,
    advertise: Advertise = None,
    slave_of: Annotated[
        str | None, typer.Option("--slave-of", metavar="HOST:PORT", help="Follow this master as its slave.")
    ] = None,
    force_master: Annotated[
        bool, typer.Option("--force-master", help="Start although name servers know another master.")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when standard input ends.", hidden=True)
    ] = False,
    sets: Sets = None,
    print_config: PrintConfig = False,
    log_format: logs.LogFormat = logs.TEXT,
    log_levels: logs.LogLevels = None,
) -> None:
    """Run a broker until Ctrl-C, or ask and tell those that run.

    Example: skylark broker --namesrv 127.0.0.1:9876 --data /var/lib/skylark --flush sync
    """
    if context.invoked_subcommand is not None:
        return
    from skylark import embedded  # noqa: PLC0415 - no other command needs it
    from skylark.broker.broker import Broker  # noqa: PLC0415
    from skylark.settings import BrokerSettings  # noqa: PLC0415

    started = time.monotonic()
    logs.configure(log_format, log_levels)
    flags = {
        "name_servers": name_servers, "port": port, "name": name, "cluster": cluster, "host": bind,
        "advertised_host": advertise, "replication.slave_of": slave_of,
        "replication.force_master": force_master or None, **_store_flags(data, flush),
    }  # fmt: skip
    loaded = _load(BrokerSettings, BROKER_PREFIX, config, flags, sets)
    if print_config:
        _print_settings(loaded.settings)
        return
    settings = _checked(replace(loaded.settings, config_path=loaded.settings.config_path or config))

    async def run() -> None:
        server = Broker(settings)
        if stop_with_stdin:
            _stop_with_stdin()
        await embedded.serve(server, lambda: _say_broker(started, server))

    _run(run())


def ha(
    name: BrokerName,
    name_servers: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show how a broker replicates: of a master its slaves, of a slave its link to the master.

    By its name it is the master that is asked; an address is asked without any name server.

    Example: skylark broker ha 127.0.0.1:10911
    """
    from skylark.cli import replication  # noqa: PLC0415 - no other command needs it

    replication.show(name, name_servers, as_json=as_json)


namesrv_app = typer.Typer(invoke_without_command=True, context_settings=HELP_OPTIONS)
namesrv_app.callback()(namesrv)
broker_app = typer.Typer(invoke_without_command=True, context_settings=HELP_OPTIONS)
broker_app.callback()(broker)
broker_app.command()(ha)


def serve(
    data: Data = None,
    name_server_port: Annotated[
        int, typer.Option("--namesrv-port", min=0, max=PORT_MAX, help="0: any.")
    ] = 9876,
    broker_port: Annotated[
        int | None, typer.Option("--broker-port", min=0, max=PORT_MAX, help="10911 by default; 0: any.")
    ] = None,
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", help="As many broker processes, ports 10 apart.")
    ] = 1,
    flush: Flush = None,
    bind: Bind = None,
    advertise: Advertise = None,
    config: Config = None,
    sets: Sets = None,
    log_format: logs.LogFormat = logs.TEXT,
    log_levels: logs.LogLevels = None,
) -> None:
    """Run a name server and a broker in one process until Ctrl-C.

    That is all that one machine needs. With --brokers, each broker is a process with a core of its own; one
    that dies is started again.

    Examples: skylark serve --data ./skylark-data

    skylark serve --brokers 4
    """
    from skylark import embedded  # noqa: PLC0415 - no other command needs it
    from skylark.cli.broker_processes import check_layout  # noqa: PLC0415
    from skylark.settings import BrokerSettings  # noqa: PLC0415

    started = time.monotonic()
    logs.configure(log_format, log_levels)
    flags = {"port": broker_port, "host": bind, "advertised_host": advertise, **_store_flags(data, flush)}
    loaded = _load(BrokerSettings, BROKER_PREFIX, config, flags, sets)
    _say_not_joined(loaded)
    settings = _checked(loaded.settings)
    name_server = _name_server_of(settings, name_server_port)
    check_layout(settings.store.path, brokers)
    if brokers != 1:
        more = _given_again(flush=flush, bind=bind, advertise=advertise, config=config, sets=_shared(sets))
        more += logs.given_again(log_format, log_levels)
        _run(_serve_many(name_server, settings, brokers, more, started))
        return

    async def run() -> None:
        both = embedded.Embedded(name_server, settings)

        def ready() -> None:
            assert both.broker is not None
            _say(started, f"name server on {both.name_server.address}")
            _say_broker(started, both.broker)
            _say_next(both.name_server.address)

        await embedded.serve(both, ready)

    _run(run())


def _say_not_joined(loaded: LoadedSettings[BrokerSettings]) -> None:
    """Of name servers that a file or a flag names; the variable is mostly there for clients."""
    origin = loaded.origins.get("name_servers", NAMESRV_VARIABLE)
    if origin != NAMESRV_VARIABLE:
        typer.echo(
            "skylark: namesrvAddr has no effect here, as `serve` has a name server of its own;"
            f" `skylark broker` registers with others ({origin})",
            err=True,
        )


def _name_server_of(settings: BrokerSettings, port: int) -> NameServerSettings:
    """A name server beside a broker: set by the environment, with its values in the broker's directory."""
    from skylark.settings import NameServerSettings  # noqa: PLC0415

    flags = {"host": settings.host, "port": port}
    loaded: LoadedSettings[NameServerSettings] = _load(
        NameServerSettings, NAME_SERVER_PREFIX, None, flags, None
    )
    if "kv_config_path" in loaded.origins:
        return loaded.settings
    return replace(loaded.settings, kv_config_path=settings.store.path / "namesrv/kvConfig.json")


def _shared(sets: list[str] | None) -> list[str]:
    """What --set says for all of several brokers: what each has for itself is reckoned from the rest."""
    from skylark.cli.broker_processes import OWN_SETTINGS  # noqa: PLC0415 - no other command needs it
    from skylark.settings import BrokerSettings  # noqa: PLC0415
    from skylark.settings.loader import known_settings  # noqa: PLC0415

    known = known_settings(BrokerSettings)
    own = {key for key, setting in known.items() if setting.name in OWN_SETTINGS}
    return [text for text in sets or () if text.partition("=")[0].strip() not in own]


def _given_again(
    *, flush: str | None, bind: str | None, advertise: str | None, config: Path | None, sets: list[str]
) -> list[str]:
    """The flags that every broker process gets as they were given."""
    flags = {"--flush": flush, "--bind": bind, "--advertise": advertise, "--config": config}
    arguments = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
    return arguments + [word for text in sets for word in ("--set", text)]


def _serve_many(
    name_server: NameServerSettings, settings: BrokerSettings, count: int, more: list[str], started: float
) -> Coroutine[Any, Any, None]:
    from skylark.cli import broker_processes  # noqa: PLC0415 - no other command needs it

    def ready(namesrv: str) -> None:
        _say(started, f"name server on {namesrv}, {count} brokers")
        _say_next(namesrv)

    return broker_processes.serve(name_server, settings, count, more, typer.echo, ready)


def _store_flags(data: Path | None, flush: str | None) -> dict[str, Any]:
    if flush is not None and flush not in FLUSH_MODES:
        raise UsageError(f"--flush {flush}: async or sync is possible")
    mode = FLUSH_MODES[flush] if flush is not None else None
    return {"store.path": None if data is None else str(data), "store.flush_mode": mode}


def _load(
    settings_type: type[Any],
    prefix: str,
    config: Path | None,
    flags: Mapping[str, Any],
    sets: list[str] | None,
) -> LoadedSettings[Any]:
    from skylark.settings.loader import load_settings  # noqa: PLC0415 - `skylark --help` must not wait for it

    given = {key: str(value) for key, value in flags.items() if value is not None}
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: KEY=VALUE is expected")
        given[key.strip()] = value.strip()
    loaded = load_settings(
        settings_type,
        file=config,
        environment=os.environ,
        prefix=prefix,
        flags=given,
    )
    for warning in loaded.warnings:
        typer.echo(f"skylark: {warning}", err=True)
    return loaded


def _print_settings(settings: Any) -> None:
    from skylark.settings.loader import to_properties  # noqa: PLC0415

    typer.echo(to_properties(settings), nl=False)


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
    bound = "" if server.advertised_host == settings.host else f", bound to {settings.host}"
    _say(started, f"broker {settings.name} on {server.address} (fast port {server.port - 2}{bound})")
    role = f"{settings.role.value}, port for slaves {server.replica_port}"
    if settings.is_slave:
        role = f"slave {settings.broker_id} of {settings.replication.slave_of or 'the master of its name'}"
    typer.echo(f"store {settings.store.path.absolute()}, flush {settings.store.flush_mode.value}, {role}")
    if server.monitor.address:
        typer.echo(
            f"metrics http://{server.monitor.address}/metrics, health http://{server.monitor.address}/health"
        )


def _say_next(namesrv: str) -> None:
    """Two lines to copy."""
    where = "" if namesrv == NAMESRV else f" --namesrv {namesrv}"
    typer.echo(f"try: skylark send orders 'hello'{where}\n     skylark tail orders{where}")


def _stop_with_stdin() -> None:
    """End in order when whoever started us is gone, however that came: standard input is a pipe of theirs."""
    import asyncio  # noqa: PLC0415 - `skylark --help` must not wait for it

    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def look() -> None:
        if not os.read(descriptor, READ_BYTES):
            loop.remove_reader(descriptor)
            signal.raise_signal(signal.SIGTERM)

    loop.add_reader(descriptor, look)


def _run(main: Coroutine[Any, Any, None]) -> None:
    import uvloop  # noqa: PLC0415 - the servers' loop alone

    raise_descriptor_limit()
    gc.freeze()  # what is loaded stays
    gc.set_threshold(*COLLECT_AFTER)
    uvloop.run(main)
