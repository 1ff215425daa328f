"""`skylark controller`: run a controller, or administer running ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli import server_process
from skylark.cli.options import (
    EVERY_S,
    NAMESRV,
    AsJson,
    Every,
    Namesrv,
    Pairs,
    Watch,
    Yes,
    confirm,
    connected,
    pairs,
    tabular,
)
from skylark.cli.output import Listing, done, show, show_or_watch
from skylark.cli.server_process import (
    CONTROLLER_PREFIX,
    HELP_OPTIONS,
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
    from skylark.admin.admin import Admin
    from skylark.protocol.bodies import ReplicasInfo

app = typer.Typer(invoke_without_command=True, context_settings=HELP_OPTIONS)

CONTROLLER = "127.0.0.1:9878"
COLUMNS = ("broker", "epoch", "id", "role", "alive", "address")

Controllers = Annotated[
    str,
    typer.Option(
        "--controller",
        envvar="CONTROLLER_ADDR",
        metavar="HOST:PORT",
        help="Controllers, separated by ;.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="BROKER", help="A broker name.")]


@app.callback()
def controller(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=PORT_MAX, help="9878 by default; 0: any free port."),
    ] = None,
    bind: Bind = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", file_okay=False, help="Its files; ./skylark-data/controller by default."
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option(
            "--etcd", metavar="URL", help="Keep everything in etcd; several URLs, separated by a comma."
        ),
    ] = None,
    config: Config = None,
    sets: Sets = None,
    print_config: PrintConfig = False,
    log_format: LogFormat = TEXT,
    log_levels: LogLevels = None,
) -> None:
    """Run a controller until Ctrl-C, or administer running ones.

    A controller elects the masters of brokers that run with enableControllerMode. One keeps its state in a
    file; several need etcd, and one of them leads.

    Examples: skylark controller --port 9878

    skylark controller --etcd http://10.0.0.1:2379,http://10.0.0.2:2379 -c controller.conf
    """
    if context.invoked_subcommand is not None:
        return
    from skylark.controller import controller as server  # noqa: PLC0415 - no other command needs it
    from skylark.settings.controller import ControllerSettings  # noqa: PLC0415

    started = time.monotonic()
    server_process.configure_logs(log_format, log_levels)
    flags = {"port": port, "host": bind, "store_path": data}
    if etcd is not None:
        flags |= {"register": "etcd", "etcd.endpoints": etcd}
    loaded = server_process.load(ControllerSettings, CONTROLLER_PREFIX, config, flags, sets)
    if print_config:
        server_process.print_settings(loaded.settings)
        return

    def ready(running: server.Controller) -> None:
        server_process.say_ready(started, f"controller on {running.address}")

    server_process.run(lambda stopping: server.serve(loaded.settings, on_ready=ready, on_stop=stopping))


@app.command()
@tabular
def status(
    broker: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER]...", help="Broker names; all by default.")
    ] = None,
    controller: Controllers = CONTROLLER,
    watch: Watch = False,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show who is master, who is in sync, and who is alive; and which controller leads.

    Example: skylark controller status --watch
    """
    with connected(namesrv) as admin:
        show_or_watch(
            lambda *_: _listing(admin, controller, broker or ()),
            watch=watch,
            every_s=every,
            as_json=as_json,
        )


def _listing(admin: Admin, controllers: str, names: list[str] | tuple[str, ...]) -> Listing:
    rows: list[tuple[object, ...]] = []
    for address, metadata in admin.controllers.metadata(controllers).items():
        role = "leads" if metadata.is_leader else "follows"
        rows.append(("(controller)", "", metadata.controller_leader_id or "none", role, "yes", address))
    for name, info in sorted(admin.controllers.replicas(controllers, names).items()):
        rows += _rows(name, info)
    return Listing(COLUMNS, rows)


def _rows(name: str, info: ReplicasInfo) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for kind, replicas in (("in sync", info.in_sync_replicas), ("behind", info.not_in_sync_replicas)):
        for replica in replicas:
            role = "master" if replica.broker_id == info.master_broker_id else kind
            alive = "yes" if replica.alive else "no"
            rows.append((name, info.master_epoch, replica.broker_id, role, alive, replica.broker_address))
    return sorted(rows, key=lambda row: str(row[2]))


@app.command()
def elect(
    broker: Name,
    broker_id: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="The controller id of a broker in sync.")
    ],
    cluster: Annotated[str, typer.Option("--cluster")] = "DefaultCluster",
    controller: Controllers = CONTROLLER,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Make a broker that is in sync the master of its name, also while another is alive.

    Example: skylark controller elect broker-a 2
    """
    with connected(namesrv) as admin:
        master = admin.controllers.elect(controller, broker, broker_id, cluster=cluster)
    done(
        f"{broker} {master.master_broker_id} at {master.master_address} is the master,"
        f" epoch {master.master_epoch}",
        {"broker": broker, "master": master.master_broker_id, "epoch": master.master_epoch},
        as_json=as_json,
    )


@app.command()
def clean(
    broker: Name,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="Controller ids; the whole name without.")
    ] = None,
    living: Annotated[bool, typer.Option("--living", help="Also brokers that are alive.")] = False,
    cluster: Annotated[str, typer.Option("--cluster")] = "DefaultCluster",
    yes: Yes = False,
    controller: Controllers = CONTROLLER,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Make the controllers forget brokers that will not return.

    Without members in sync, the living broker with the most messages is elected: messages that only the
    forgotten ones had are lost.

    Example: skylark controller clean broker-a 3
    """
    what = f"{broker} {' '.join(map(str, ids))}" if ids else f"all of {broker}"
    confirm(f"Forget {what}?", yes=yes)
    with connected(namesrv) as admin:
        admin.controllers.clean(controller, broker, ids or (), cluster=cluster, living=living)
    done(f"{what} is forgotten", {"broker": broker, "ids": ids or []}, as_json=as_json)


@app.command()
@tabular
def config(
    like: Annotated[str, typer.Option("--like", help="Only keys that contain this.")] = "",
    controller: Controllers = CONTROLLER,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the settings of controllers, by RocketMQ's keys.

    Example: skylark controller config --like elect
    """
    with connected(namesrv) as admin:
        found = admin.controllers.config(controller)
    rows = [
        (address, key, value)
        for address, table in found.items()
        for key, value in sorted(table.items())
        if like.lower() in key.lower()
    ]
    show(Listing(("controller", "key", "value"), rows, long=("value",)), as_json=as_json)


@app.command("set")
def set_config(
    settings: Pairs, controller: Controllers = CONTROLLER, namesrv: Namesrv = NAMESRV, as_json: AsJson = False
) -> None:
    """Change settings of controllers, by RocketMQ's keys.

    Example: skylark controller set enableElectUncleanMaster=true
    """
    changes = pairs(settings, "setting")
    with connected(namesrv) as admin:
        admin.controllers.update_config(controller, changes)
    done(f"{', '.join(settings)} set on {controller}", changes, as_json=as_json)
