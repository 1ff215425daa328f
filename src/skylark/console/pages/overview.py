"""The overview of a cluster, what needs attention, and the search over everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from skylark.admin.overview import GroupState
from skylark.admin.results import ConnectedConsumers, TopicStats
from skylark.console.grid import Grid, GridColumn, Row, format_size
from skylark.console.view import Ask, PageView, redirect
from skylark.console.watch import BROADCASTING, Look, Watch
from skylark.errors import RocketMQError
from skylark.model.names import HALF_TOPIC

ROWS = 8
DISK_NOTE = 0.75
BEHIND_BYTES_NOTE = 32 << 20
CLOCK_MS_NOTE = 5000
LAG_GROWTH_NOTE = 1.0
"""Messages per second."""
STANDS_PER_S = 0.05
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
    plain = [name for name in look.inventory.topics if look.is_plain(name)]
    figures = [
        ("in", look.puts_per_s, "rate", curves["in"]),
        ("out", look.gets_per_s, "rate", curves["out"]),
        ("lag", look.lag, "number", curves["lag"]),
        ("dead_letters", look.dead_letters, "number", curves["dead_letters"]),
        ("disk", look.disk_used_ratio, "percent", []),
    ]
    behind = sorted(look.groups.values(), key=lambda group: (-group.lag, group.name))[:ROWS]
    online = await watch.members(state.name for state in behind)
    concerns = list(concerns_of(ask, look, online))
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
        grids=(await _topics(ask, plain), _groups(ask, behind, online), brokers_grid(ask, look)),
        data={"figures": figures, "concerns": concerns, "is_new": not plain},
        code=(("skylark", f"skylark top --namesrv {ask.connection.namesrv}"),),
        failures=look.failures,
        live_s=2,
    )


def concerns_of(
    ask: Ask, look: Look, online: Mapping[str, ConnectedConsumers | RocketMQError | None]
) -> Iterator[Concern]:
    """The worst first. `online` has the members of the groups that are furthest behind."""
    for address in look.summary.failures:
        yield Concern("bad", ask.t("concern.broker", address=address), ask.href("health"))
    for item in look.summary.brokers:
        if item.disk_used_ratio > DISK_NOTE:
            level = "bad" if item.disk_used_ratio > 0.85 else "warn"
            text = ask.t("concern.disk", broker=item.node.name, used=f"{item.disk_used_ratio:.0%}")
            yield Concern(level, text, ask.href("brokers", item.node.name))
    yield from _server_concerns(ask, look)
    for name, count in look.inventory.dead_letters.items():
        if count.waiting:
            text = ask.t("concern.dead_letters", group=name, count=f"{count.waiting:,}")
            yield Concern("warn", text, ask.href("dead-letters", name))
    for name, members in online.items():
        group = look.groups[name]
        growth = ask.connection.watch.lag_growth_per_s(name)
        if group.lag and members is None:
            text = ask.t("concern.nobody", group=name, lag=f"{group.lag:,}")
            yield Concern("warn", text, ask.href("groups", name, "why"))
        elif group.lag and growth is not None and growth > LAG_GROWTH_NOTE:
            text = ask.t("concern.lag", group=name, lag=f"{group.lag:,}", rate=f"{growth:,.0f}")
            yield Concern("warn", text, ask.href("groups", name, "why"))


def _server_concerns(ask: Ask, look: Look) -> Iterator[Concern]:
    """Slaves that are behind, clocks that differ, undecided transactions."""
    ends = {item.node.name: item.log_end for item in look.summary.brokers if item.node.is_master}
    for item in look.summary.brokers:
        name, number = item.node.name, item.node.broker_id
        gap = ends.get(name, 0) - item.log_end
        if gap > BEHIND_BYTES_NOTE:
            text = ask.t("concern.slave", broker=f"{name}:{number}", gap=format_size(gap))
            yield Concern("warn", text, ask.href("brokers", name, id=number or None))
        skew_ms = 0 if item.clock_ms is None else item.clock_ms - look.summary.time_ms
        if abs(skew_ms) > CLOCK_MS_NOTE:
            text = ask.t("concern.clock", broker=f"{name}:{number}", seconds=f"{skew_ms / 1000:+,.0f}")
            yield Concern("warn", text, ask.href("brokers", name, id=number or None))
    if look.inventory.open_transactions:
        text = ask.t("concern.transactions", count=f"{look.inventory.open_transactions:,}")
        yield Concern("warn", text, ask.href("topics", HALF_TOPIC, "messages"))


async def _topics(ask: Ask, plain: Sequence[str]) -> Grid:
    """The busiest, as far as groups consume them, then any."""
    watch = ask.connection.watch
    names = sorted(plain, key=lambda name: (-(watch.sent_per_s(name) or 0), name))[:ROWS]
    columns = (
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"], "messages")),
        GridColumn("in_per_s", "rate"),
        GridColumn("messages", "number"),
        GridColumn("last_stored", "time"),
    )
    rows = await with_stats(ask, [{"topic": name} for name in names])
    rows = sorted(rows, key=lambda row: (row.get("in_per_s") or 0, row.get("last_stored") or 0), reverse=True)
    return Grid("topics", columns, rows)


async def with_stats(ask: Ask, rows: Sequence[Row]) -> Sequence[Row]:
    """The topics on screen with rate, messages and time of the last one."""
    watch = ask.connection.watch
    stats = await watch.stats(str(row["topic"]) for row in rows)
    filled = []
    for row in rows:
        found = stats[str(row["topic"])]
        sent = watch.sent_per_s(str(row["topic"]))
        if found is None:
            filled.append(row)
            continue
        rate = found.puts_per_s if sent is None else sent
        more = {"in_per_s": rate, "messages": found.messages, "last_stored": last_stored(found)}
        filled.append({**row, **more})
    return filled


def last_stored(stats: TopicStats) -> int | None:
    return max((queue.last_stored_ms or 0 for queue in stats.queues), default=0) or None


def _groups(
    ask: Ask, states: Sequence[GroupState], online: Mapping[str, ConnectedConsumers | RocketMQError | None]
) -> Grid:
    """The furthest behind."""
    watch = ask.connection.watch
    rows = [
        {
            "group": state.name,
            "state": state_of(watch, state, online[state.name])[1],
            "lag": state.lag,
            "curve": watch.lag_curve(state.name),
            "out_per_s": watch.consumed_per_s(state.name),
            "dead_letters": state.dead_letters,
        }
        for state in states
    ]
    columns = (
        GridColumn("group", "name", lambda row: ask.href("groups", row["group"])),
        GridColumn("state", "state"),
        GridColumn("lag", "lag"),
        GridColumn("curve", "curve"),
        GridColumn("out_per_s", "rate"),
        GridColumn("dead_letters", "number", optional=True),
    )
    return Grid("groups", columns, rows)


def state_of(
    watch: Watch, state: GroupState, online: ConnectedConsumers | RocketMQError | None
) -> tuple[int | None, str]:
    """The number of members, and the state of a group in a word of `grid.LEVELS`."""
    members = None if isinstance(online, RocketMQError) else 0 if online is None else len(online.clients)
    consumed, growth = watch.consumed_per_s(state.name), watch.lag_growth_per_s(state.name)
    stands = consumed is not None and consumed < STANDS_PER_S and growth is not None and growth >= 0
    if isinstance(online, ConnectedConsumers) and online.message_model == BROADCASTING:
        word = "broadcast"
    elif members == 0:
        word = "nobody" if state.lag else "offline"
    elif state.lag == 0:
        word = "follows"
    elif growth is not None and growth > LAG_GROWTH_NOTE:
        word = "behind"
    else:
        word = "stands" if stands else "follows"
    return members, word


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
        GridColumn("id", "number", optional=True),
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
        nav="overview",
        title=ask.t("find.title"),
        sentence=ask.t("find.sentence", text=text, count=len(found)),
        grids=(Grid("found", columns, rows),),
        code=(("skylark", f"skylark topic list --namesrv {ask.connection.namesrv}"),),
        data={"text": text, "topics": [name for name in look.inventory.topics if look.is_plain(name)]},
    )
