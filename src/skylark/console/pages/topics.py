"""Topics: the list, and of one topic its queues, groups and settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from skylark.admin.results import Gathered, Topic
from skylark.admin.server_calls import at_once
from skylark.console.grid import Grid, GridColumn, Row
from skylark.console.pages.overview import with_stats
from skylark.console.view import LIST, Ask, PageSection, PageView, failures_of, list_page
from skylark.errors import BrokerError, RocketMQError, SomeServersFailed

MESSAGE_TYPE = "message.type"
TOPICS = PageSection(
    "topics",
    {"messages": "messages", "queues": "", "groups": "groups", "settings": "settings"},
    first="messages",
)


async def index(ask: Ask) -> PageView:
    """All topics; those on screen with their messages and groups."""
    look = await ask.look()
    with_system = ask.arg("system") == "1"
    names = [name for name in look.inventory.topics if with_system or look.is_plain(name)]
    groups: dict[str, list[str]] = {}
    for state in look.groups.values():
        for topic in state.topics:
            groups.setdefault(topic, []).append(state.name)
    rows = []
    for name in names:
        parts = look.inventory.topics[name]
        rows.append(
            {
                "topic": name,
                "type": message_type(next(iter(parts.values()))),
                "brokers": list(parts),
                "queues": sum(part.read_queues for part in parts.values()),
                "groups": sorted(groups.get(name, ())),
            }
        )
    columns = (
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"], "messages")),
        GridColumn("type", "tag", optional=True),
        GridColumn("queues", "number", lambda row: ask.href("topics", row["topic"])),
        GridColumn("in_per_s", "rate"),
        GridColumn("messages", "number"),
        GridColumn("last_stored", "time"),
        GridColumn("groups", "groups"),
        GridColumn("brokers", "words"),
    )
    return await list_page(
        ask,
        "topics",
        Grid("topics", columns, rows, sort="topic", sortable=frozenset({"topic", "type", "queues"})),
        search=("topic",),
        fill=lambda shown: with_stats(ask, shown),
        data={
            "switches": [("system", with_system)],
            "empty": f"skylark topic create orders --namesrv {ask.connection.namesrv}",
            "action": None if ask.settings.read_only else ("new_topic", ask.href("new-topic")),
        },
        code=(
            ("skylark", f"skylark topic list --namesrv {ask.connection.namesrv}"),
            ("python", "admin.topics.on_brokers()"),
        ),
        failures=look.failures,
        live_s=5,
    )


def consumer_command(ask: Ask, group: str, topic: str) -> str:
    """What starts a member of a group in a terminal."""
    own, namesrv, name = (json.dumps(text) for text in (group, ask.connection.namesrv, topic))
    script = (
        f"from skylark import PushConsumer; consumer = PushConsumer({own}, namesrv={namesrv}); "
        f'consumer.subscribe({name}, "*", print); consumer.run()'
    )
    return f"python -c {shlex.quote(script)}"


def message_type(topic: Topic) -> str:
    """`NORMAL`, `FIFO`, `DELAY`, `TRANSACTION`: what brokers of 5.x keep, or empty."""
    return topic.attributes.get(MESSAGE_TYPE) or topic.attributes.get(f"+{MESSAGE_TYPE}", "")


async def queues(ask: Ask) -> PageView:
    """Begin, end and last message of each queue, and who serves it."""
    topic = ask.path("topic")
    stats = await ask.admin.topics.stats(topic)
    route = await ask.admin.topics.route(topic)
    largest = max((part.end - part.begin for part in stats.queues), default=0)
    rows = [
        {
            "broker": part.queue.broker_name,
            "queue": part.queue.queue_id,
            "begin": part.begin,
            "end": part.end,
            "messages": part.end - part.begin,
            "share": (part.end - part.begin) / largest if largest else 0.0,
            "last_stored": part.last_stored_ms,
        }
        for part in stats.queues
    ]
    columns = (
        GridColumn("broker", "name", lambda row: ask.href("brokers", row["broker"])),
        GridColumn("queue", "number"),
        GridColumn("begin", "number"),
        GridColumn("end", "number"),
        GridColumn("messages", "number"),
        GridColumn("share", "bar"),
        GridColumn("last_stored", "time"),
    )
    served = [
        {
            "broker": part.broker_name,
            "cluster": part.cluster,
            "read_queues": part.read_queues,
            "write_queues": part.write_queues,
            "permission": permission(part.permission),
            "addresses": [f"{broker_id}: {address}" for broker_id, address in part.addresses.items()],
        }
        for part in route.brokers
    ]
    route_columns = (
        GridColumn("broker"),
        GridColumn("cluster"),
        GridColumn("read_queues", "number"),
        GridColumn("write_queues", "number"),
        GridColumn("permission", "code"),
        GridColumn("addresses", "words"),
    )
    return PageView(
        template="list.html",
        nav="topics",
        title=topic,
        sentence=ask.t("topic.sentence", queues=len(rows), messages=f"{stats.messages:,}"),
        crumbs=TOPICS.crumbs(ask, topic),
        tabs=TOPICS.tabs(ask, topic, "queues"),
        grids=(Grid("queues", columns, rows), Grid("route", route_columns, served)),
        data=LIST,
        code=(
            ("skylark", f"skylark topic status {topic} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.topics.stats("{topic}")'),
        ),
        failures=failures_of(stats.failures),
        live_s=2,
    )


def permission(bits: int) -> str:
    return ("r" if bits & 4 else "") + ("w" if bits & 2 else "") or "-"


async def groups(ask: Ask) -> PageView:
    """The groups that consume a topic, with their lag in it."""
    topic = ask.path("topic")
    names = await ask.admin.topics.groups(topic)

    async def with_lag(rows: Sequence[Row]) -> Sequence[Row]:
        async def lag_of(group: str) -> Row:
            progress = await ask.admin.groups.progress(group, topic)
            return {"lag": progress.lag, "out_per_s": progress.consumed_per_s}

        found = await at_once(lag_of, [str(row["group"]) for row in rows])
        return [
            row if isinstance(part, RocketMQError) else {**row, **part}
            for row, part in zip(rows, found, strict=True)
        ]

    columns = (
        GridColumn("group", "name", lambda row: ask.href("groups", row["group"])),
        GridColumn("lag", "lag"),
        GridColumn("out_per_s", "rate"),
    )
    return await list_page(
        ask,
        "topic.groups",
        Grid("groups", columns, [{"group": name} for name in names], sortable=frozenset({"group"})),
        search=("group",),
        fill=with_lag,
        nav="topics",
        title=topic,
        crumbs=TOPICS.crumbs(ask, topic),
        tabs=TOPICS.tabs(ask, topic, "groups"),
        data={"empty": consumer_command(ask, "billing", topic)},
        code=(
            ("skylark", f"skylark topic groups {topic} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.topics.groups("{topic}")'),
        ),
        live_s=3,
    )


async def settings(ask: Ask) -> PageView:
    """The settings on each broker; differences are marked."""
    topic = ask.path("topic")
    known = (await ask.look()).inventory.topics.get(topic, {})
    try:
        found = await ask.admin.topics.config(topic)
    except (BrokerError, SomeServersFailed):
        if not known:
            raise
        found = Gathered(known, {})  # brokers of 4.9 list settings, but do not answer for one topic
    values = {
        address: {
            "read_queues": part.read_queues,
            "write_queues": part.write_queues,
            "permission": permission(part.permission),
            "ordered": part.ordered,
            **{f"attribute {name}": value for name, value in sorted(part.attributes.items())},
        }
        for address, part in found.answers.items()
    }
    return PageView(
        template="topic_settings.html",
        nav="topics",
        title=topic,
        sentence=ask.t("settings.sentence", count=len(values)),
        crumbs=TOPICS.crumbs(ask, topic),
        tabs=TOPICS.tabs(ask, topic, "settings"),
        grids=(settings_grid(values),),
        data={"topic": topic, "part": next(iter(found.answers.values()), None)},
        code=(
            ("skylark", f"skylark topic update {topic} --write-queues 8"),
            ("python", f'admin.topics.update("{topic}", write_queues=8)'),
        ),
        failures=failures_of(found.failures),
    )


def settings_grid(values: Mapping[str, Mapping[str, object]]) -> Grid:
    """One row per setting, one column per broker, and whether they differ."""
    keys = list(dict.fromkeys(key for part in values.values() for key in part))
    rows = []
    for key in keys:
        cells = {address: part.get(key) for address, part in values.items()}
        rows.append({"setting": key, **cells, "differs": len(set(map(str, cells.values()))) > 1})
    columns = (GridColumn("setting", "setting"), *(GridColumn(address, "code") for address in values))
    return Grid("settings", columns, rows)
