"""`skylark topic`: topics, their routes, settings and contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import (
    EVERY_S,
    NAMESRV,
    AsJson,
    Broker,
    Cluster,
    Every,
    Namesrv,
    Topic,
    Watch,
    Yes,
    confirm,
    connected,
    in_parallel,
    pairs,
    tabular,
)
from skylark.cli.output import Listing, Rate, Rates, When, counted, done, show, show_or_watch

if TYPE_CHECKING:
    from skylark.admin.results import TopicStats

app = typer.Typer(no_args_is_help=True, help="Topics: create, change, delete, and inspect.")

QUEUES = 8
PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
STATUS_COLUMNS = ("broker", "queue", "begin", "end", "messages", "last stored")
Queues = Annotated[int, typer.Option("--queues", "-q", min=1, help="Queues on each broker.")]
ReadQueues = Annotated[int | None, typer.Option("--read-queues", min=0, help="If different from --queues.")]
WriteQueues = Annotated[int | None, typer.Option("--write-queues", min=0, help="If different from --queues.")]
Attributes = Annotated[
    list[str] | None, typer.Option("--attribute", metavar="KEY=VALUE", help="Such as message.type=FIFO.")
]


@app.command("list")
@tabular
def list_topics(
    cluster: Cluster = None,
    system: Annotated[
        bool, typer.Option("--system", help="Also built-in, retry and dead-letter topics.")
    ] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List topics with their brokers and queues.

    Example: skylark topic list
    """
    with connected(namesrv) as admin:
        names = admin.overview.topic_names(cluster=cluster, system=system)
        found = admin.topics.on_brokers()
        brokers = {node.address: node.name for node in admin.brokers.nodes()}
    tables = {
        brokers.get(address, address): {topic.name: topic for topic in topics}
        for address, topics in found.answers.items()
    }
    rows = []
    for name in names:
        parts = {broker: table[name] for broker, table in sorted(tables.items()) if name in table}
        if parts:  # else deleted meanwhile
            permissions = {permission_text(part.permission) for part in parts.values()}
            rows.append(
                (
                    name, list(parts), sum(part.read_queues for part in parts.values()),
                    sum(part.write_queues for part in parts.values()), "+".join(sorted(permissions)),
                )
            )  # fmt: skip
    columns = ("topic", "brokers", "read queues", "write queues", "permission")
    show(Listing(columns, rows, failures=found.failures, long=("brokers",)), as_json=as_json)


@app.command()
def create(
    topic: Topic,
    queues: Queues = QUEUES,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    permission: Annotated[str, typer.Option("--permission", help="rw, r or w.")] = "rw",
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Keep messages of a key in their queue when brokers go down.")
    ] = False,
    attribute: Attributes = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or replace its settings: on all brokers, a cluster, or one.

    Example: skylark topic create orders --queues 8
    """
    with connected(namesrv) as admin:
        admin.topics.create(
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=_permission(permission),
            ordered=ordered,
            attributes=pairs(attribute, "--attribute"),
            cluster=cluster,
            broker=broker,
        )
        brokers = sorted({part.broker_name for part in admin.topics.route(topic).brokers})
    done(
        f"topic {topic} is on {', '.join(brokers)}",
        {"topic": topic, "brokers": brokers, "created": True},
        as_json=as_json,
    )


@app.command()
def update(
    topic: Topic,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    permission: Annotated[str | None, typer.Option("--permission", help="rw, r or w.")] = None,
    ordered: Annotated[bool | None, typer.Option("--ordered/--unordered")] = None,
    attribute: Attributes = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Change the given settings wherever the topic is. An attribute without a value is removed.

    Example: skylark topic update orders --permission r
    """
    attributes = {name: value or None for name, value in pairs(attribute, "--attribute").items()}
    wanted = (read_queues, write_queues, permission, ordered, attribute)
    if all(item is None for item in wanted):
        raise UsageError(
            "nothing to change; pass --read-queues, --write-queues, --permission or another option"
        )
    with connected(namesrv) as admin:
        admin.topics.update(
            topic,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=None if permission is None else _permission(permission),
            ordered=ordered,
            attributes=attributes,
            cluster=cluster,
            broker=broker,
        )
    done(f"topic {topic} changed", {"topic": topic, "updated": True}, as_json=as_json)


@app.command()
def delete(
    topic: Topic,
    cluster: Cluster = None,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its messages on all brokers, then at all name servers.

    Example: skylark topic delete orders --yes
    """
    with connected(namesrv) as admin:
        admin.topics.route(topic)
        confirm(f"Delete topic {topic} and all its messages?", yes=yes)
        admin.topics.delete(topic, cluster=cluster)
    done(f"topic {topic} deleted", {"topic": topic, "deleted": True}, as_json=as_json)


@app.command()
@tabular
def route(topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show the brokers of a topic's queues.

    Example: skylark topic route orders
    """
    with connected(namesrv) as admin:
        found = admin.topics.route(topic)
    rows = [
        (
            part.broker_name, part.cluster, part.read_queues, part.write_queues,
            permission_text(part.permission), broker_id, address,
        )
        for part in found.brokers
        for broker_id, address in part.addresses.items()
    ]  # fmt: skip
    columns = ("broker", "cluster", "read queues", "write queues", "permission", "id", "address")
    show(Listing(columns, rows, [("order", found.order)] if found.order else ()), as_json=as_json)


@app.command()
@tabular
def config(topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show a topic's settings on each broker.

    Example: skylark topic config orders
    """
    with connected(namesrv) as admin:
        found = admin.topics.config(topic)
    rows = [
        (
            address, item.read_queues, item.write_queues, permission_text(item.permission), item.ordered,
            [f"{name}={value}" for name, value in sorted(item.attributes.items())],
        )
        for address, item in found.answers.items()
    ]  # fmt: skip
    columns = ("broker", "read queues", "write queues", "permission", "ordered", "attributes")
    show(Listing(columns, rows, failures=found.failures, long=("attributes",)), as_json=as_json)


@app.command()
@tabular
def status(
    topic: Topic,
    watch: Watch = False,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the offsets of each queue and the time of its last message.

    Examples: skylark topic status orders

    skylark topic status orders --watch
    """
    with connected(namesrv) as admin:
        show_or_watch(
            lambda rates, now_s: _status(admin.topics.stats(topic), rates, now_s),
            watch=watch,
            every_s=every,
            as_json=as_json,
        )


def _status(stats: TopicStats, rates: Rates | None, now_s: float) -> Listing:
    rows: list[tuple[object, ...]] = []
    for part in stats.queues:
        row: tuple[object, ...] = (
            part.queue.broker_name, part.queue.queue_id, part.begin, part.end, part.end - part.begin,
            When(part.last_stored_ms),
        )  # fmt: skip
        rows.append(row if rates is None else (*row, rates.per_s(part.queue, part.end, now_s)))
    total = sum(part.end for part in stats.queues)
    facts = [
        ("topic", stats.topic),
        ("messages", stats.messages),
        ("in/s", Rate(stats.puts_per_s) if rates is None else rates.per_s(stats.topic, total, now_s)),
    ]
    columns = STATUS_COLUMNS if rates is None else (*STATUS_COLUMNS, "in/s")
    return Listing(columns, rows, facts, stats.failures, items="queues")


@app.command()
@tabular
def groups(topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List the groups that consume a topic, or have consumed it, with their lag.

    Example: skylark topic groups orders
    """
    with connected(namesrv) as admin:
        names = admin.topics.groups(topic)
        rows = in_parallel(lambda name: (name, admin.groups.progress(name, topic).lag), names)
    show(Listing(("group", "lag"), rows), as_json=as_json)


@app.command()
def order(
    topic: Topic,
    wanted: Annotated[
        str | None, typer.Argument(metavar="BROKER:QUEUES;...", help="Such as broker-a:4;broker-b:4.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the fixed order.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show, set or remove the fixed order of a topic's queues, kept by name servers.

    Example: skylark topic order orders 'broker-a:4;broker-b:4'
    """
    if wanted is not None and remove:
        raise UsageError("pass an order or --remove, not both")
    with connected(namesrv) as admin:
        if wanted is not None or remove:
            admin.topics.set_order(topic, wanted)
        found = admin.topics.order(topic)
    done(f"topic {topic}: {found or 'no fixed order'}", {"topic": topic, "order": found}, as_json=as_json)


@app.command()
@tabular
def share(
    topic: Topic,
    members: Annotated[list[str], typer.Argument(metavar="CLIENT...", help="Client ids of members.")],
    strategy: Annotated[str, typer.Option("--strategy", help="RocketMQ's name of the strategy.")] = "AVG",
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show how members of a group would share a topic's queues.

    Example: skylark topic share orders client-1 client-2
    """
    from skylark.client.consumer.allocation_strategies import strategy_named  # noqa: PLC0415

    allocate = strategy_named(strategy)
    with connected(namesrv) as admin:
        queues = admin.topics.queues(topic)
    everybody = sorted(set(members))
    shares = {member: allocate(member, queues, everybody) for member in everybody}
    rows = [(member, queue.broker_name, queue.queue_id) for member in shares for queue in shares[member]]
    idle = [member for member, taken in shares.items() if not taken]
    facts = [("without a queue", counted(len(idle), "member", "members"))] if idle else ()
    show(Listing(("member", "broker", "queue"), rows, facts), as_json=as_json)


def permission_text(permission: int) -> str:
    """`rw`, `r`, `w` or `-`."""
    return ("r" if permission & 4 else "") + ("w" if permission & 2 else "") or "-"


def _permission(text: str) -> int:
    if text not in PERMISSIONS:
        raise UsageError(f"invalid --permission {text!r}; choose rw, r or w")
    return PERMISSIONS[text]
