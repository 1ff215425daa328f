"""`skylark topic`: topics, where their queues are, and what is in them."""

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
    asked_at_once,
    confirm,
    connected,
    pairs,
)
from skylark.cli.output import Listing, Rate, Rates, When, counted, done, show, show_or_watch
from skylark.errors import NoRoute
from skylark.model.message import DEAD_LETTER_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from skylark.admin.results import Route, TopicStats
    from skylark.admin.sync import Admin

app = typer.Typer(no_args_is_help=True, help="Topics: make, change, delete, and see what is in them.")

QUEUES = 8
PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
STATUS_COLUMNS = ("broker", "queue", "begin", "end", "messages", "last stored")
Queues = Annotated[int, typer.Option("--queues", "-q", min=1, help="Queues on each broker.")]
ReadQueues = Annotated[int | None, typer.Option("--read-queues", min=0, help="If not as many as written.")]
WriteQueues = Annotated[int | None, typer.Option("--write-queues", min=0, help="If not as many as read.")]
Attributes = Annotated[
    list[str] | None, typer.Option("--attribute", metavar="KEY=VALUE", help="Such as message.type=FIFO.")
]


@app.command("list")
def list_topics(
    cluster: Cluster = None,
    system: Annotated[
        bool, typer.Option("--system", help="Built-in, retry and dead-letter ones too.")
    ] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List topics with the brokers and queues they have.

    Example: skylark topic list
    """
    with connected(namesrv) as admin:
        names = named_topics(admin, cluster=cluster, system=system)
        routes = asked_at_once(lambda name: _route(admin, name), names)
    rows = [
        (
            route.topic,
            sorted({queues.broker_name for queues in route.brokers}),
            sum(queues.read_queues for queues in route.brokers),
            sum(queues.write_queues for queues in route.brokers),
            "+".join(sorted({permission_text(queues.permission) for queues in route.brokers})),
        )
        for route in routes
        if route is not None
    ]
    show(Listing(("topic", "brokers", "read queues", "write queues", "permission"), rows), as_json=as_json)


def _route(admin: Admin, name: str) -> Route | None:
    try:
        return admin.topics.route(name)
    except NoRoute:
        return None  # deleted meanwhile


@app.command()
def create(
    topic: Topic,
    queues: Queues = QUEUES,
    read_queues: ReadQueues = None,
    write_queues: WriteQueues = None,
    permission: Annotated[str, typer.Option("--permission", help="rw, r or w.")] = "rw",
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Queues keep their place when brokers go.")
    ] = False,
    attribute: Attributes = None,
    cluster: Cluster = None,
    broker: Broker = None,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Make a topic on all brokers, of one cluster, or on one; or replace its settings.

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
    """Change what is given, wherever the topic is, and leave the rest. An attribute without value goes.

    Example: skylark topic update orders --permission r
    """
    attributes = {name: value or None for name, value in pairs(attribute, "--attribute").items()}
    wanted = (read_queues, write_queues, permission, ordered, attribute)
    if all(item is None for item in wanted):
        raise UsageError(
            "nothing to change: say --read-queues, --write-queues, --permission or another option"
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
    done(f"topic {topic} is changed", {"topic": topic, "updated": True}, as_json=as_json)


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
    done(f"topic {topic} is deleted", {"topic": topic, "deleted": True}, as_json=as_json)


@app.command()
def route(topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show where a topic's queues are.

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
    show(Listing(columns, rows, failures=found.failures), as_json=as_json)


@app.command()
def status(
    topic: Topic,
    watch: Watch = False,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show where each queue begins and ends, and when it last grew.

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
def groups(topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """List the groups that consume a topic, or have, with their lag in it.

    Example: skylark topic groups orders
    """
    with connected(namesrv) as admin:
        names = admin.topics.groups(topic)
        rows = asked_at_once(lambda name: (name, admin.groups.progress(name, topic).lag), names)
    show(Listing(("group", "lag"), rows), as_json=as_json)


@app.command()
def order(
    topic: Topic,
    wanted: Annotated[
        str | None, typer.Argument(metavar="BROKER:QUEUES;...", help="Such as broker-a:4;broker-b:4.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="No fixed order any more.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show, set or remove the fixed order of a topic's queues, kept by name servers.

    Example: skylark topic order orders 'broker-a:4;broker-b:4'
    """
    if wanted is not None and remove:
        raise UsageError("say an order or --remove, not both")
    with connected(namesrv) as admin:
        if wanted is not None or remove:
            admin.topics.set_order(topic, wanted)
        found = admin.topics.order(topic)
    done(f"topic {topic}: {found or 'no fixed order'}", {"topic": topic, "order": found}, as_json=as_json)


@app.command()
def share(
    topic: Topic,
    members: Annotated[list[str], typer.Argument(metavar="CLIENT...", help="Names of members.")],
    strategy: Annotated[str, typer.Option("--strategy", help="RocketMQ's name of it.")] = "AVG",
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


def named_topics(admin: Admin, *, cluster: str | None = None, system: bool = False) -> list[str]:
    """The names of topics; without `system` only those that people made."""
    if cluster is not None:
        admin.brokers.nodes(cluster=cluster)  # name servers say nothing of a cluster that they do not know
    names = admin.topics.names(cluster=cluster)
    if system:
        return names
    hidden = set(admin.topics.system())
    derived = (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)
    return [name for name in names if name not in hidden and not name.startswith(derived)]


def permission_text(permission: int) -> str:
    """`rw`, `r`, `w` or `-`."""
    return ("r" if permission & 4 else "") + ("w" if permission & 2 else "") or "-"


def _permission(text: str) -> int:
    if text not in PERMISSIONS:
        raise UsageError(f"--permission {text}: rw, r or w is possible")
    return PERMISSIONS[text]
