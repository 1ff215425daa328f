"""`skylark namesrv`: run a name server, or administer running ones."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from signal import Signals
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import server_process
from skylark.cli.errors import UsageError
from skylark.cli.options import NAMESRV, AsJson, Namesrv, Pairs, connected, pairs, tabular
from skylark.cli.output import Listing, done, show
from skylark.cli.server_process import (
    CONTROLLER_PREFIX,
    HELP_OPTIONS,
    NAME_SERVER_PREFIX,
    PORT_MAX,
    TEXT,
    Bind,
    Config,
    LogFormat,
    LogLevels,
    PrintConfig,
    Sets,
)

if TYPE_CHECKING:
    from skylark.settings.controller import ControllerSettings

app = typer.Typer(invoke_without_command=True, context_settings=HELP_OPTIONS)

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Such as ORDER_TOPIC_CONFIG.")]
Key = Annotated[str, typer.Argument(metavar="KEY")]


@app.callback()
def namesrv(
    context: typer.Context,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=PORT_MAX, help="9876 by default; 0: any free port.")
    ] = None,
    bind: Bind = None,
    config: Config = None,
    sets: Sets = None,
    print_config: PrintConfig = False,
    log_format: LogFormat = TEXT,
    log_levels: LogLevels = None,
) -> None:
    """Run a name server until Ctrl-C, or administer running ones.

    Example: skylark namesrv --port 9876 --bind 127.0.0.1
    """
    if context.invoked_subcommand is not None:
        return
    from skylark.namesrv import server  # noqa: PLC0415 - no other command needs it
    from skylark.settings import NameServerSettings  # noqa: PLC0415
    from skylark.settings.controller import ControllerSettings  # noqa: PLC0415

    started = time.monotonic()
    server_process.configure_logs(log_format, log_levels)
    flags = {"port": port, "host": bind}
    loaded = server_process.load(
        NameServerSettings, NAME_SERVER_PREFIX, config, flags, sets, shared_with=ControllerSettings
    )
    if print_config:
        server_process.print_settings(loaded.settings)
        return

    def ready(running: server.NameServer) -> None:
        server_process.say_ready(started, f"name server on {running.address}")

    async def serve(stopping: Callable[[Signals], None]) -> None:
        async with AsyncExitStack() as stack:
            if loaded.settings.with_controller:
                settings = server_process.load(
                    ControllerSettings, CONTROLLER_PREFIX, config, {}, None, shared_with=NameServerSettings
                ).settings
                await stack.enter_async_context(_controller(settings))
            await server.serve(loaded.settings, on_ready=ready, on_stop=stopping)

    server_process.run(serve)


@asynccontextmanager
async def _controller(settings: ControllerSettings) -> AsyncIterator[None]:
    """A controller beside the name server. Raises as `Controller.start` does."""
    from skylark.controller.controller import Controller  # noqa: PLC0415

    if not settings.peers:
        raise UsageError("enableControllerInNamesrv needs controllerDLegerPeers, such as n0-127.0.0.1:9878")
    controller = Controller(settings)
    try:
        await controller.start()
        typer.echo(f"controller on {controller.address}")
        yield
    finally:
        await controller.stop()


@app.command()
@tabular
def config(
    like: Annotated[str, typer.Option("--like", help="Only keys that contain this.")] = "",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the settings of all name servers, by RocketMQ's keys.

    Example: skylark namesrv config
    """
    with connected(namesrv) as admin:
        found = admin.name_servers.config()
    rows = [
        (address, key, value)
        for address, table in found.items()
        for key, value in sorted(table.items())
        if like.lower() in key.lower()
    ]
    show(Listing(("name server", "key", "value"), rows, long=("value",)), as_json=as_json)


@app.command("set")
def set_config(settings: Pairs, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Change settings of all name servers, by RocketMQ's keys.

    Example: skylark namesrv set orderMessageEnable=true
    """
    changes = pairs(settings, "setting")
    with connected(namesrv) as admin:
        admin.name_servers.update_config(changes)
    done(f"{', '.join(settings)} set on {namesrv}", changes, as_json=as_json)


@app.command()
@tabular
def kv(namespace: Namespace, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show a namespace of the name servers' key-value table.

    Example: skylark namesrv kv ORDER_TOPIC_CONFIG
    """
    with connected(namesrv) as admin:
        table = admin.name_servers.table(namespace)
    show(Listing(("key", "value"), sorted(table.items()), long=("value",)), as_json=as_json)


@app.command()
def put(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(metavar="VALUE")],
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Set a value in the key-value table of all name servers.

    Example: skylark namesrv put ORDER_TOPIC_CONFIG orders broker-a:4
    """
    with connected(namesrv) as admin:
        admin.name_servers.put(namespace, key, value)
    done(f"{namespace} {key} is {value}", {"namespace": namespace, key: value}, as_json=as_json)


@app.command()
def delete(namespace: Namespace, key: Key, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Delete a value from the key-value table of all name servers.

    Example: skylark namesrv delete ORDER_TOPIC_CONFIG orders
    """
    with connected(namesrv) as admin:
        if admin.name_servers.get(namespace, key) is None:
            raise UsageError(f"no {key} in {namespace}; `skylark namesrv kv {namespace}` lists the keys")
        admin.name_servers.delete(namespace, key)
    done(f"{namespace} {key} deleted", {"namespace": namespace, "deleted": key}, as_json=as_json)
