"""The overview of a cluster, what needs attention, and the search over everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from starlette.responses import Response

from skylark.admin.results import TopicStats
from skylark.admin.server_calls import at_once
from skylark.console.grid import Grid, GridColumn
from skylark.console.view import Ask, PageView, redirect
from skylark.console.watch import Look, Watch
from skylark.errors import RocketMQError

TOPICS_MAX = 24
"""Topics of the overview; each costs a request."""
ROWS = 8
DISK_NOTE = 0.75
LAG_GROWTH_NOTE = 1.0
"""Messages per second."""
FOUND_MAX = 50


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs attention, with the page that shows it."""

    level: str
    text: str
    href: str


async def show(ask: Ask) -> PageView:
    """Figures with their curves, what needs attention, topics, groups, brokers."""
    look = await ask.look()
    watch = ask.connection.watch
    curves = watch.totals()
    plain = [name for name in look.inventory.topics if is_plain(look, name)]
    stats = await stats_of(ask, plain[:TOPICS_MAX])
    figures = [
        ("in", look.puts_per_s, "rate", curves["in"]),
        ("out", look.gets_per_s, "rate", curves["out"]),
        ("lag", look.lag, "number", curves["lag"]),
        ("dead_letters", look.dead_letters, "number", curves["dead_letters"]),
        ("disk", look.disk_used_ratio, "percent", []),
    ]
    concerns = list(concerns_of(ask, look, watch))
    return PageView(
        template="overview.html",
        nav="overview",
        title=ask.t("overview"),
        sentence=ask.t(
            "overview.sentence",
            brokers=len(look.summary.brokers),
            topics=len(plain),
            groups=len(look.inventory.groups),
        ),
        grids=(_topics(ask, stats), _groups(ask, look), brokers_grid(ask, look)),
        data={"figures": figures, "concerns": concerns, "is_new": not plain},
        code=(("skylark", f"skylark top --namesrv {ask.connection.namesrv}"),),
        failures=look.failures,
        live_s=2,
    )


def concerns_of(ask: Ask, look: Look, watch: Watch) -> Iterator[Concern]:
    """The worst first."""
    for address in look.summary.failures:
        yield Concern("bad", ask.t("concern.broker", address=address), ask.href("health"))
    for item in look.summary.brokers:
        if item.disk_used_ratio > DISK_NOTE:
            level = "bad" if item.disk_used_ratio > 0.85 else "warn"
            text = ask.t("concern.disk", broker=item.node.name, used=f"{item.disk_used_ratio:.0%}")
            yield Concern(level, text, ask.href("brokers", item.node.name))
    for name, count in look.inventory.dead_letters.items():
        if count.waiting:
            text = ask.t("concern.dead_letters", group=name, count=f"{count.waiting:,}")
            yield Concern("warn", text, ask.href("dead-letters", name))
    behind = sorted(look.groups.values(), key=lambda group: -group.lag)
    for group in behind[:ROWS]:
        growth = watch.lag_growth_per_s(group.name)
        if group.lag and growth is not None and growth > LAG_GROWTH_NOTE:
            text = ask.t("concern.lag", group=group.name, lag=f"{group.lag:,}", rate=f"{growth:,.0f}")
            yield Concern("warn", text, ask.href("groups", group.name))


def is_plain(look: Look, topic: str) -> bool:
    """Whether a topic is neither built-in nor of retries or dead letters."""
    return topic not in look.inventory.system_topics and not topic.startswith("%")


async def stats_of(ask: Ask, topics: Iterable[str]) -> dict[str, TopicStats | None]:
    """Of the topics on screen, each with a request per broker; None if it is gone."""
    names = list(topics)
    found = await at_once(ask.admin.topics.stats, names)
    return {
        name: None if isinstance(stats, RocketMQError) else stats
        for name, stats in zip(names, found, strict=True)
    }


def _topics(ask: Ask, stats: dict[str, TopicStats | None]) -> Grid:
    known = [(last_stored(found), name, found.messages) for name, found in stats.items() if found is not None]
    known.sort(key=lambda row: -(row[0] or 0))
    rows = [{"topic": name, "messages": count, "last_stored": last} for last, name, count in known]
    columns = (
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"], "messages")),
        GridColumn("messages", "number"),
        GridColumn("last_stored", "time"),
    )
    return Grid("topics", columns, rows[:ROWS])


def last_stored(stats: TopicStats) -> int | None:
    return max((queue.last_stored_ms or 0 for queue in stats.queues), default=0) or None


def _groups(ask: Ask, look: Look) -> Grid:
    states = sorted(look.groups.values(), key=lambda group: -group.lag)[:ROWS]
    watch = ask.connection.watch
    rows = [
        {
            "group": state.name,
            "lag": state.lag,
            "curve": watch.lag_curve(state.name),
            "out_per_s": watch.consumed_per_s(state.name),
            "dead_letters": state.dead_letters,
        }
        for state in states
    ]
    columns = (
        GridColumn("group", "name", lambda row: ask.href("groups", row["group"])),
        GridColumn("lag", "lag"),
        GridColumn("curve", "curve"),
        GridColumn("out_per_s", "rate"),
        GridColumn("dead_letters", "number"),
    )
    return Grid("groups", columns, rows)


def brokers_grid(ask: Ask, look: Look) -> Grid:
    rows = [
        {
            "broker": item.node.name,
            "id": item.node.broker_id,
            "role": "master" if item.node.is_master else "slave",
            "address": item.node.address,
            "version": item.version,
            "in_per_s": item.puts_per_s,
            "out_per_s": item.gets_per_s,
            "in_today": item.puts_today,
            "out_today": item.gets_today,
            "disk": item.disk_used_ratio,
            "earliest": item.earliest_message_ms,
        }
        for item in look.summary.brokers
    ]
    columns = (
        GridColumn("broker", "name", lambda row: ask.href("brokers", row["broker"], id=row["id"] or None)),
        GridColumn("id", "number"),
        GridColumn("role", "state"),
        GridColumn("address", "code"),
        GridColumn("version"),
        GridColumn("in_per_s", "rate"),
        GridColumn("out_per_s", "rate"),
        GridColumn("in_today", "number"),
        GridColumn("out_today", "number"),
        GridColumn("disk", "percent"),
        GridColumn("earliest", "time"),
    )
    return Grid("brokers", columns, rows)


async def find(ask: Ask) -> PageView | Response:
    """Topics, groups and brokers whose name contains a text; the only one is opened."""
    look = await ask.look()
    text = ask.arg("q")
    word = text.lower()
    found = [
        *(
            ("topic", name, ask.href("topics", name, "messages"))
            for name in look.inventory.topics
            if word in name.lower()
        ),
        *(
            ("group", name, ask.href("groups", name))
            for name in look.inventory.groups
            if word in name.lower()
        ),
        *(
            ("broker", item.node.name, ask.href("brokers", item.node.name))
            for item in look.summary.brokers
            if word in item.node.name.lower()
        ),
    ]
    found.sort(key=lambda item: (item[1].lower() != word, item[1].startswith("%"), item[1]))
    rows = [{"kind": ask.t(kind), "name": name, "href": href} for kind, name, href in found[:FOUND_MAX]]
    if text and len(rows) == 1 and ask.request.url.path.endswith("/find"):
        return redirect(rows[0]["href"])
    columns = (GridColumn("kind"), GridColumn("name", "name", lambda row: str(row["href"])))
    return PageView(
        template="find.html",
        nav="",
        title=ask.t("find.title"),
        sentence=ask.t("find.sentence", text=text, count=len(found)),
        grids=(Grid("found", columns, rows),),
        data={"text": text, "topics": [name for name in look.inventory.topics if is_plain(look, name)]},
    )
