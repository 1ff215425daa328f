"""`skylark cluster`: all brokers at a glance."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.listing import Listing, show, show_live
from skylark.cli.options import EVERY_S, NAMESRV, AsJson, Cluster, Every, Namesrv, Watch, connected
from skylark.cli.output import Rate, Share, When

if TYPE_CHECKING:
    from skylark.admin.results import ClusterSummary

app = typer.Typer(no_args_is_help=True, help="Clusters of brokers.")

COLUMNS = (
    "cluster", "broker", "id", "address", "version", "in/s", "out/s", "in today", "out today", "disk",
    "oldest message",
)  # fmt: skip


@app.command("list")
def list_clusters(
    cluster: Cluster = None,
    watch: Watch = False,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show how all brokers are: version, rates, messages today, disk.

    Example: skylark cluster list --watch
    """
    with connected(namesrv) as admin:
        if watch:
            show_live(
                lambda: summary_listing(admin.brokers.summary(cluster=cluster)),
                as_json=as_json,
                every_s=every,
            )
        else:
            show(summary_listing(admin.brokers.summary(cluster=cluster)), as_json=as_json)


def summary_listing(summary: ClusterSummary) -> Listing:
    """A row for each broker that answered."""
    rows = [
        (
            item.node.cluster, item.node.name, item.node.broker_id, item.node.address, item.version,
            Rate(item.puts_per_s), Rate(item.gets_per_s), item.puts_today, item.gets_today,
            Share(item.disk_used_ratio), When(item.earliest_message_ms),
        )
        for item in summary.brokers
    ]  # fmt: skip
    return Listing(COLUMNS, rows, failures=summary.failures)


@app.command()
def latency(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="Messages to each.")] = 20,
    size: Annotated[int, typer.Option("--size", min=1, max=1 << 20, help="Bytes of each.")] = 128,
    cluster: Cluster = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Measure how long brokers take to store a message: small ones are sent to each broker's own topic.

    Example: skylark cluster latency --count 100
    """
    from skylark.client.sync_producer import Producer  # noqa: PLC0415
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
