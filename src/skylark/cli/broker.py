"""`skylark broker`: run a broker, or administer running ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skylark.cli import server_process
from skylark.cli.errors import UsageError
from skylark.cli.grpc_front import GrpcFront, GrpcPort
from skylark.cli.options import (
    NAMESRV,
    AsJson,
    Broker,
    BrokerName,
    Cluster,
    Namesrv,
    Pairs,
    Yes,
    confirm,
    connected,
    in_parallel,
    pairs,
    tabular,
)
from skylark.cli.output import NOT_KNOWN, Listing, Rate, Screen, When, done, print_json, show
from skylark.cli.server_process import (
    BROKER_PREFIX,
    HELP_OPTIONS,
    PORT_MAX,
    TEXT,
    Advertise,
    Bind,
    Config,
    Data,
    Flush,
    LogFormat,
    LogLevels,
    PrintConfig,
    Sets,
)
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from skylark.admin.admin import Admin
    from skylark.protocol.bodies import HaStatus

app = typer.Typer(invoke_without_command=True, context_settings=HELP_OPTIONS)

UPKEEP = {
    "queues": "consume queue entries of deleted messages",
    "topics": "consume queues of deleted topics",
    "log": "expired commit log files",
}
SLAVE_COLUMNS = ("slave", "in sync", "acknowledged", "behind", "seconds", "bytes/s")
Like = Annotated[str, typer.Option("--like", help="Only keys that contain this.")]


@app.callback()
def broker(
    context: typer.Context,
    config: Config = None,
    name_servers: Annotated[
        str | None, typer.Option("--namesrv", metavar="HOST:PORT", help="Name servers, separated by ;.")
    ] = None,
    data: Data = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=PORT_MAX, help="10911 by default; 0: any free port.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The broker's name; broker-a by default.")
    ] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="DefaultCluster by default.")] = None,
    flush: Flush = None,
    bind: Bind = None,
    advertise: Advertise = None,
    grpc_port: GrpcPort = None,
    slave_of: Annotated[
        str | None,
        typer.Option("--slave-of", metavar="HOST:PORT", help="Replicate this master, as its slave."),
    ] = None,
    force_master: Annotated[
        bool, typer.Option("--force-master", help="Start even if name servers know another master.")
    ] = False,
    stop_with_stdin: Annotated[
        bool, typer.Option("--stop-with-stdin", help="Stop when standard input ends.", hidden=True)
    ] = False,
    sets: Sets = None,
    print_config: PrintConfig = False,
    log_format: LogFormat = TEXT,
    log_levels: LogLevels = None,
) -> None:
    """Run a broker until Ctrl-C, or administer running ones.

    Example: skylark broker --namesrv 127.0.0.1:9876 --data /var/lib/skylark --flush sync
    """
    if context.invoked_subcommand is not None:
        return
    from skylark import embedded  # noqa: PLC0415 - no other command needs it
    from skylark.broker.broker import Broker  # noqa: PLC0415
    from skylark.settings import BrokerSettings  # noqa: PLC0415

    started = time.monotonic()
    server_process.configure_logs(log_format, log_levels)
    flags = {
        "name_servers": name_servers, "port": port, "name": name, "cluster": cluster, "host": bind,
        "advertised_host": advertise, "replication.slave_of": slave_of,
        "replication.force_master": force_master or None, **server_process.store_flags(data, flush),
    }  # fmt: skip
    loaded = server_process.load(BrokerSettings, BROKER_PREFIX, config, flags, sets)
    server_process.check_log_of_data(loaded)
    if print_config:
        server_process.print_settings(loaded.settings)
        return
    settings = replace(loaded.settings, config_path=loaded.settings.config_path or config)
    settings = server_process.with_role_of_last_master(settings, loaded.origins)
    server_process.warn_of_any_address(settings)

    front = GrpcFront(grpc_port)

    async def main(stopping: Callable[[Signals], None]) -> None:
        server = Broker(settings)
        if stop_with_stdin:
            server_process.stop_with_stdin()
        await embedded.serve(
            server, lambda: server_process.say_broker_ready(started, server), stopping, beside=front
        )

    server_process.run(main)


@app.command("list")
@tabular
def list_brokers(cluster: Cluster = None, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List all brokers, masters and slaves.

    Example: skylark broker list
    """
    with connected(namesrv) as admin:
        nodes = admin.brokers.nodes(cluster=cluster)
    rows = [(node.cluster, node.name, node.broker_id, node.address) for node in nodes]
    show(Listing(("cluster", "broker", "id", "address"), rows), as_json=as_json)


def _show_table(table: dict[str, str], like: str, *, as_json: bool) -> None:
    chosen = {key: value for key, value in sorted(table.items()) if like.lower() in key.lower()}
    if as_json:
        print_json(chosen)
    else:
        show(Listing(("key", "value"), list(chosen.items()), long=("value",)), as_json=False)


@app.command()
@tabular
def status(broker: BrokerName, like: Like = "", namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show the run-time information of a broker, by RocketMQ's names.

    Example: skylark broker status broker-a --like tps
    """
    with connected(namesrv) as admin:
        _show_table(dict(admin.brokers.runtime(broker)), like, as_json=as_json)


@app.command()
@tabular
def config(broker: BrokerName, like: Like = "", namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show a broker's settings, by RocketMQ's keys.

    Example: skylark broker config broker-a --like flush
    """
    with connected(namesrv) as admin:
        _show_table(admin.brokers.config(broker), like, as_json=as_json)


@app.command("set")
def set_config(
    settings: Pairs,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Change settings of running brokers, by RocketMQ's keys: all brokers, a cluster, or one.

    Example: skylark broker set fileReservedTime=48 --broker broker-a
    """
    changes = pairs(settings, "setting")
    with connected(namesrv) as admin:
        brokers = [broker] if broker else sorted({node.name for node in admin.brokers.nodes(cluster=cluster)})
        _refuse_unknown(admin, changes, brokers)
        admin.brokers.update_config(changes, cluster=cluster, broker=broker)
    done(f"{', '.join(settings)} set on {broker or cluster or 'all brokers'}", changes, as_json=as_json)


def _refuse_unknown(admin: Admin, keys: Iterable[str], brokers: Iterable[str]) -> None:
    """Brokers silently ignore unknown keys. Raises UsageError for them."""
    from skylark.settings import BrokerSettings  # noqa: PLC0415
    from skylark.settings.loader import known_settings  # noqa: PLC0415
    from skylark.settings.rocketmq_keys import UNUSED_KEYS  # noqa: PLC0415

    known = {key for table in in_parallel(lambda name: _config(admin, name), brokers) for key in table}
    known |= {key for key, setting in known_settings(BrokerSettings).items() if setting.java in known}
    for key in keys if known else ():
        if key in known:
            continue
        if key in UNUSED_KEYS:
            raise UsageError(f"{key} has no effect: {UNUSED_KEYS[key]}")
        near = get_close_matches(key, known, n=1)
        raise UsageError(f"unknown setting {key}{f'; did you mean {near[0]}?' if near else ''}")


def _config(admin: Admin, broker: str) -> dict[str, str]:
    try:
        return admin.brokers.config(broker)
    except RocketMQError:
        return {}  # the change itself reports it


@app.command()
@tabular
def progress(
    broker: BrokerName,
    behind: Annotated[int, typer.Option("--behind", min=0, help="Only groups with at least this lag.")] = 0,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the progress of all groups in the queues of a broker.

    Example: skylark broker progress broker-a --behind 1000
    """
    with connected(namesrv) as admin:
        found = admin.brokers.consume_stats(broker)
    rows = []
    for groups in found.consume_stats_list:
        for group, tables in sorted(groups.items()):
            for table in tables:
                for queue, at in sorted(table.offset_table.items()):
                    lag = at.broker_offset - at.consumer_offset
                    if lag >= behind:
                        last = When(at.last_timestamp or None)
                        rows.append((group, queue.topic, queue.queue_id, at.consumer_offset, lag, last))
    facts = [("broker", broker), ("lag", found.total_diff), ("in flight", found.total_inflight_diff)]
    columns = ("group", "topic", "queue", "committed", "lag", "last consumed")
    show(Listing(columns, rows, facts, items="queues"), as_json=as_json)


@app.command()
@tabular
def stats(
    broker: BrokerName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as TOPIC_PUT_NUMS, GROUP_GET_NUMS.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="A topic, or TOPIC@GROUP.")],
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show a broker's counters of the last minute, hour and day.

    Example: skylark broker stats broker-a TOPIC_PUT_NUMS orders
    """
    with connected(namesrv) as admin:
        found = admin.brokers.stats(broker, name, key)
    spans = (("minute", found.stats_minute), ("hour", found.stats_hour), ("day", found.stats_day))
    rows = [(span, part.sum, Rate(part.tps), round(part.avgpt, 2)) for span, part in spans]
    show(Listing(("last", "sum", "rate/s", "average"), rows), as_json=as_json)


@app.command()
@tabular
def timers(broker: BrokerName, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show the number of scheduled messages, by topic.

    Example: skylark broker timers broker-a
    """
    with connected(namesrv) as admin:
        found = admin.brokers.timers(broker)
    rows = [
        (topic, part.count, When(part.time_stamp or None))
        for topic, part in sorted(found.timing_count.items())
    ]
    show(Listing(("topic", "waiting", "changed"), rows), as_json=as_json)


@app.command()
def clean(
    what: Annotated[str, typer.Argument(metavar="queues|topics|log", help="What to delete.")],
    broker: Broker = None,
    cluster: Cluster = None,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Delete now what retention would delete later: queue entries, unused topics, old log files.

    Example: skylark broker clean log --broker broker-a --yes
    """
    if what not in UPKEEP:
        raise UsageError(f"invalid argument {what!r}; choose {', '.join(UPKEEP)}")
    where = broker or cluster or "all brokers"
    confirm(f"Delete {UPKEEP[what]} on {where}?", yes=yes)
    with connected(namesrv) as admin:
        brokers = admin.brokers
        clean_up = {"queues": brokers.clean_queues, "topics": brokers.clean_topics}
        clean_up.get(what, brokers.delete_expired_log)(cluster=cluster, broker=broker)
    done(f"{UPKEEP[what]} deleted on {where}", {"cleaned": what, "where": where}, as_json=as_json)


@app.command()
def drain(
    name: BrokerName,
    undo: Annotated[bool, typer.Option("--undo", help="Accept messages again.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Stop producers from sending to a broker, at all name servers; consumers continue. --undo reverts it.

    Example: skylark broker drain broker-a
    """
    with connected(namesrv) as admin:
        name = _name_of(admin, name)
        change = admin.brokers.add_write_permission if undo else admin.brokers.wipe_write_permission
        counts = change(name)
    state = "accepts messages again" if undo else "accepts no more messages"
    topics = max(counts.values(), default=0)
    done(
        f"broker {name} {state}: {topics} topics changed",
        {"broker": name, "writable": undo, "topics": dict(counts)},
        as_json=as_json,
    )


def _name_of(admin: Admin, broker: str) -> str:
    """The broker's name at the name servers, which do not report a wrong one. Raises UsageError."""
    nodes = admin.brokers.nodes()
    for node in nodes:
        if broker in (node.name, node.address):
            return node.name
    known = ", ".join(sorted({node.name for node in nodes})) or "none"
    raise UsageError(f"unknown broker {broker}; known brokers: {known}")


# --- Replication ---


@app.command()
def handover(
    name: BrokerName,
    to: Annotated[
        int | None, typer.Option("--to", min=1, metavar="ID", help="The replica; by default any slave.")
    ] = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Make another replica the master, in controller mode, without failed sends: before maintenance.

    The master accepts no messages until the replica has all; clients retry theirs at the new master.

    Example: skylark broker handover broker-a --to 2
    """
    with connected(namesrv) as admin:
        found = admin.brokers.hand_over(name, to)
    done(
        f"broker {name}: {found.master_address} is the master now, in epoch {found.master_epoch}",
        {
            "broker": name,
            "id": found.master_broker_id,
            "address": found.master_address,
            "epoch": found.master_epoch,
        },
        as_json=as_json,
    )


@app.command()
@tabular
def ha(
    name: BrokerName,
    name_servers: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the replication of a broker: the slaves of a master, or a slave's link to its master.

    A name means its master; an address is asked directly, without a name server.

    Example: skylark broker ha 127.0.0.1:10911
    """
    with connected(name if ":" in name else name_servers) as admin:
        status, runtime = admin.brokers.replication(name), admin.brokers.runtime(name)
    if as_json:
        print_json(replication_document(status, runtime))
    elif status.master:
        _show_master(status, runtime)
    else:
        _show_slave(status, runtime)


def replication_document(status: HaStatus, runtime: Mapping[str, str]) -> dict[str, Any]:
    """Plain values; only Skylark brokers report seconds and errors."""
    facts = {name: value for name, value in runtime.items() if name.startswith("replication")}
    slaves = [
        {
            "address": slave.addr,
            "inSync": slave.in_sync,
            "acknowledgedOffset": slave.slave_ack_offset,
            "lagBytes": slave.diff,
            "lagSeconds": _lag_seconds(runtime).get(slave.addr or ""),
            "bytesPerSecond": slave.transferred_byte_in_second,
        }
        for slave in status.ha_connection_info
    ]
    return {
        "master": status.master,
        "logEnd": int(runtime.get("commitLogMaxOffset", 0)),
        "slaves": slaves,
        **facts,
    }


def _show_master(status: HaStatus, runtime: Mapping[str, str]) -> None:
    screen, seconds = Screen(), _lag_seconds(runtime)
    facts = [
        ("role", runtime.get("replicationRole", "master")),
        ("log ends at", status.master_commit_log_max_offset),
        ("slaves", f"{len(status.ha_connection_info)}, {status.in_sync_slave_nums} in sync"),
        ("last error", runtime.get("replicationLastError") or NOT_KNOWN),
    ]
    screen.facts(facts)
    if status.ha_connection_info:
        rows = [
            (
                slave.addr, "yes" if slave.in_sync else "no", slave.slave_ack_offset, slave.diff,
                seconds.get(slave.addr or "", NOT_KNOWN), slave.transferred_byte_in_second,
            )
            for slave in status.ha_connection_info
        ]  # fmt: skip
        screen.table(SLAVE_COLUMNS, rows)


def _show_slave(status: HaStatus, runtime: Mapping[str, str]) -> None:
    client = status.ha_client_runtime_info
    connected = runtime.get("replicationConnected")
    Screen().facts(
        [
            ("role", runtime.get("replicationRole", "slave")),
            ("master", runtime.get("replicationMaster") or client.master_addr or NOT_KNOWN),
            ("master's role", runtime.get("replicationMasterRole") or NOT_KNOWN),
            ("connected", {"true": "yes", "false": "no"}.get(connected or "", NOT_KNOWN)),
            ("log ends at", client.max_offset),
            ("behind", runtime.get("replicationLagBytes", NOT_KNOWN)),
            ("seconds behind", runtime.get("replicationLagSeconds", NOT_KNOWN)),
            ("bytes/s", client.transferred_byte_in_second),
            ("last error", runtime.get("replicationLastError") or NOT_KNOWN),
            ("cut off", runtime.get("replicationDivergence") or NOT_KNOWN),
        ]
    )


def _lag_seconds(runtime: Mapping[str, str]) -> dict[str, str]:
    """By slave: how long it has been behind."""
    pairs = (text.rpartition("=") for text in runtime.get("replicationLagSeconds", "").split())
    return {address: lag_s for address, _, lag_s in pairs if address}
