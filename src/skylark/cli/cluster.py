"""`skylark cluster`: brokers of all clusters, their latency, and export and import of metadata."""

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

if TYPE_CHECKING:
    from skylark.admin.results import ClusterSummary

app = typer.Typer(no_args_is_help=True, help="Clusters: list brokers, measure latency, copy metadata.")

COLUMNS = (
    "cluster", "broker", "id", "address", "version", "in/s", "out/s", "in today", "out today", "disk",
    "oldest message",
)  # fmt: skip


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
