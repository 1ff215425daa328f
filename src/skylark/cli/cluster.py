"""`skylark cluster`: run a whole cluster here, list brokers, measure latency, export and import metadata."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.options import (
    EVERY_S,
    NAMESRV,
    AsJson,
    Broker,
    Cluster,
    Every,
    Namesrv,
    Watch,
    connected,
    tabular,
)
from skylark.cli.output import Age, Listing, Rate, Share, counted, done, show, show_or_watch
from skylark.errors import RocketMQError

if TYPE_CHECKING:
    from skylark.admin.results import ClusterSummary
    from skylark.cluster.supervisor import ClusterState

app = typer.Typer(no_args_is_help=True, help="Clusters: run one here, list brokers, copy metadata.")

COLUMNS = (
    "cluster", "broker", "id", "address", "version", "in/s", "out/s", "in today", "out today", "disk",
    "oldest message",
)  # fmt: skip


# --- A cluster on this machine ---

Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", file_okay=False, help="State, logs and stores of the cluster.")
]
DIRECTORY = Path("skylark-cluster")
STOP_TIMEOUT_S = 120.0


@app.command()
def start(
    brokers: Annotated[int, typer.Option("--brokers", metavar="N", help="Broker names.")] = 2,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Brokers of each name.")] = 2,
    controllers: Annotated[
        int, typer.Option("--controllers", metavar="N", help="More than 1 need etcd.")
    ] = 1,
    etcd: Annotated[
        str, typer.Option("--etcd", metavar="local|URL", help="Start an etcd, or use one that runs.")
    ] = "",
    directory: Directory = DIRECTORY,
) -> None:
    """Run a whole cluster on this machine until Ctrl-C, for trial and tests.

    Every node is a process on free ports; one that ends is started again after a second. While it runs,
    `skylark cluster status`, `kill` and `stop` find it by its directory.

    Examples: skylark cluster start

    skylark cluster start --brokers 2 --replicas 3 --controllers 3 --etcd local
    """
    from skylark.cluster.layout import ClusterShape, local_nodes  # noqa: PLC0415
    from skylark.cluster.supervisor import Supervisor  # noqa: PLC0415
    from skylark.processes import free_ports  # noqa: PLC0415

    shape = ClusterShape(brokers=brokers, replicas=replicas, controllers=controllers, etcd=etcd)
    nodes = local_nodes(shape, directory.absolute(), free_ports)

    def ready(state: ClusterState) -> None:
        typer.echo(f"{counted(len(state.nodes), 'node', 'nodes')} run; logs are below {directory}")
        typer.echo(f"export NAMESRV_ADDR={state.namesrv}")
        if state.controllers:
            typer.echo(f"export CONTROLLER_ADDR='{state.controllers}'")
        typer.echo(f"try: skylark cluster status --dir {directory}")

    Supervisor(directory, nodes, typer.echo).run(ready)


@app.command()
@tabular
def status(directory: Directory = DIRECTORY, as_json: AsJson = False) -> None:
    """Show the nodes of a cluster that `skylark cluster start` runs, and their roles.

    Example: skylark cluster status
    """
    from skylark.cluster.supervisor import read_state  # noqa: PLC0415

    state = read_state(directory)
    roles = _roles(state)
    rows = [
        (
            node.name, node.kind, node.address, roles.get(node.address, ""),
            "running" if node.pid else "ended", node.pid or "", node.restarts,
        )
        for node in state.nodes
    ]  # fmt: skip
    show(Listing(("node", "kind", "address", "role", "state", "pid", "restarts"), rows), as_json=as_json)


def _roles(state: ClusterState) -> dict[str, str]:
    """The roles of controllers and brokers by address, as far as a controller tells."""
    roles: dict[str, str] = {}
    if not state.controllers:
        return roles
    with connected(state.namesrv) as admin:
        try:
            for address, metadata in admin.controllers.metadata(state.controllers).items():
                roles[address] = "leader" if metadata.is_leader else "follower"
            groups = admin.controllers.replicas(state.controllers)
        except RocketMQError as error:
            typer.echo(f"skylark: roles are unknown: {error}", err=True)
            return roles
    for group in groups.values():
        roles |= {replica.broker_address: "in sync" for replica in group.in_sync_replicas}
        roles |= {replica.broker_address: "behind" for replica in group.not_in_sync_replicas}
        if group.master_address is not None:
            roles[group.master_address] = "master"
    return roles


@app.command()
def kill(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of `cluster status`.")],
    directory: Directory = DIRECTORY,
    as_json: AsJson = False,
) -> None:
    """Kill a node with SIGKILL, to see what happens. It is started again after a second.

    Example: skylark cluster kill broker-a-1
    """
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415

    from skylark.cluster.supervisor import read_state  # noqa: PLC0415

    found = read_state(directory).node(node)
    if found.pid:
        os.killpg(found.pid, signal.SIGKILL)
    done(f"{node} is killed", {"node": node, "pid": found.pid}, as_json=as_json)


@app.command()
def stop(directory: Directory = DIRECTORY, as_json: AsJson = False) -> None:
    """Stop a cluster that `skylark cluster start` runs. Its data stays.

    Example: skylark cluster stop
    """
    from skylark.cluster.supervisor import stop_cluster  # noqa: PLC0415

    stop_cluster(directory, STOP_TIMEOUT_S)
    done(f"the cluster in {directory} is stopped", {"stopped": str(directory)}, as_json=as_json)


@app.command()
def render(
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="HOST,...", help="Names or addresses, with commas.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Where to write.")],
    brokers: Annotated[int, typer.Option("--brokers", metavar="N", help="Broker names.")] = 2,
    replicas: Annotated[int, typer.Option("--replicas", metavar="N", help="Brokers of each name.")] = 2,
    controllers: Annotated[
        int, typer.Option("--controllers", metavar="N", help="More than 1 need etcd.")
    ] = 1,
    etcd: Annotated[str, typer.Option("--etcd", metavar="URL,...", help="URLs of an etcd.")] = "",
    compose: Annotated[bool, typer.Option("--compose", help="A compose file instead of units.")] = False,
) -> None:
    """Write the files of a cluster on several hosts: settings, and units of systemd or a compose file.

    Each host gets a folder: copy its .conf files to /etc/skylark and its units to /etc/systemd/system.

    Examples: skylark cluster render --hosts a,b,c --controllers 3 --etcd http://a:2379 --out files

    skylark cluster render --hosts a,b --compose --out files
    """
    from skylark.cluster.deployment import compose_file, hosted_nodes, systemd_files  # noqa: PLC0415
    from skylark.cluster.layout import ClusterShape  # noqa: PLC0415

    shape = ClusterShape(brokers=brokers, replicas=replicas, controllers=controllers, etcd=etcd)
    nodes = hosted_nodes(shape, [word.strip() for word in hosts.split(",") if word.strip()])
    files = systemd_files(nodes)
    if compose:
        files = {name: text for name, text in files.items() if not name.endswith(".service")}
        files["compose.yaml"] = compose_file(nodes)
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    typer.echo(f"{counted(len(files), 'file', 'files')} for {counted(len(nodes), 'node', 'nodes')} in {out}")


# --- All clusters ---


@app.command("list")
@tabular
def list_clusters(
    cluster: Cluster = None,
    watch: Watch = False,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List all brokers: version, rates, messages today, disk.

    Example: skylark cluster list --watch
    """
    with connected(namesrv) as admin:
        show_or_watch(
            lambda *_: summary_listing(admin.brokers.summary(cluster=cluster)),
            watch=watch,
            every_s=every,
            as_json=as_json,
        )


def summary_listing(summary: ClusterSummary) -> Listing:
    """One row per broker that answered."""
    now_ms = round(time.time() * 1000)
    rows = [
        (
            item.node.cluster, item.node.name, item.node.broker_id, item.node.address, item.version,
            Rate(item.puts_per_s), Rate(item.gets_per_s), item.puts_today, item.gets_today,
            Share(item.disk_used_ratio), Age(item.earliest_message_ms, now_ms),
        )
        for item in summary.brokers
    ]  # fmt: skip
    return Listing(COLUMNS, rows, failures=summary.failures)


@app.command()
@tabular
def latency(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="Messages per broker.")] = 20,
    size: Annotated[int, typer.Option("--size", min=1, max=1 << 20, help="Bytes of a message.")] = 128,
    cluster: Cluster = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Measure how long brokers take to store a message, sent to each broker's built-in topic.

    Example: skylark cluster latency --count 100
    """
    from skylark.client.producer.producer import Producer  # noqa: PLC0415
    from skylark.model.message import Message  # noqa: PLC0415
    from skylark.protocol.bodies import MessageQueue  # noqa: PLC0415

    with connected(namesrv) as admin:
        masters = [node for node in admin.brokers.nodes(cluster=cluster) if node.is_master]
    rows = []
    with Producer("skylark-latency", namesrv=namesrv) as producer:
        for node in masters:
            queue = MessageQueue(node.name, node.name, 0)
            message = Message(node.name, b"x" * size)
            producer.send(message, queue=queue)  # connects
            times_ms = []
            for _ in range(count):
                started = time.perf_counter()
                producer.send(message, queue=queue)
                times_ms.append((time.perf_counter() - started) * 1000)
            times_ms.sort()
            rows.append(
                (
                    node.cluster,
                    node.name,
                    count,
                    round(sum(times_ms) / count, 2),
                    round(times_ms[count // 2], 2),
                    round(times_ms[-1], 2),
                )
            )
    columns = ("cluster", "broker", "messages", "average ms", "median ms", "worst ms")
    show(Listing(columns, rows), as_json=as_json)


@app.command("export")
def export_metadata(cluster: Cluster = None, broker: Broker = None, namesrv: Namesrv = NAMESRV) -> None:
    """Print all topics and groups with their settings, as JSON for `skylark cluster import`.

    From all brokers, a cluster, or one broker; without built-in, retry and dead-letter topics.

    Example: skylark cluster export > metadata.json
    """
    from skylark.cli import metadata  # noqa: PLC0415

    with connected(namesrv) as admin:
        typer.echo(metadata.to_text(metadata.gather(admin, cluster=cluster, broker=broker)))


@app.command("import")
def import_metadata(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A file of `cluster export`; -: standard input.")
    ],
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Create the topics and groups of a file, or change their settings: on all brokers, a cluster, or one.

    The file is written by `skylark cluster export` or `mqadmin exportMetadata`, or is a list for mqadmin's
    `updateTopicList` or `updateSubGroupList`.

    Examples: skylark cluster import metadata.json --broker broker-b

    skylark cluster export --namesrv 10.0.0.1:9876 | skylark cluster import - --namesrv 10.0.0.2:9876
    """
    from skylark.cli import metadata  # noqa: PLC0415

    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    topics, groups = metadata.parse(data, file)
    with connected(namesrv) as admin:
        metadata.create_in_batches(admin.topics.create_all, topics, cluster=cluster, broker=broker)
        metadata.create_in_batches(admin.groups.create_all, groups, cluster=cluster, broker=broker)
    what = f"{counted(len(topics), 'topic', 'topics')} and {counted(len(groups), 'group', 'groups')}"
    done(
        f"{what} are on {broker or cluster or 'all brokers'}",
        {"topics": [topic.name for topic in topics], "groups": [group.name for group in groups]},
        as_json=as_json,
    )
