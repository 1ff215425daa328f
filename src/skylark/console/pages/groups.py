"""Consumer groups: the list, and of one group its progress, members and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skylark.admin.overview import GroupState
from skylark.admin.results import ConnectedConsumers
from skylark.console.grid import Grid, GridColumn, Row
from skylark.console.pages.overview import state_of
from skylark.console.pages.topics import consumer_command, settings_grid
from skylark.console.view import LIST, Ask, NotThere, PageSection, PageView, failures_of, list_page
from skylark.errors import RocketMQError
from skylark.model.names import dead_letter_topic
from skylark.protocol.codes import version_name

GROUPS = PageSection("groups", {"progress": "", "why": "why", "members": "members", "settings": "settings"})
NO_STATE = GroupState("", (), 0, 0, 0, 0, 0)
"""The state of a group without offsets."""


async def members_of(ask: Ask, group: str) -> ConnectedConsumers | None:
    """None if nobody is online. Raises RocketMQError."""
    found = (await ask.connection.watch.members([group]))[group]
    if isinstance(found, RocketMQError):
        raise found
    return found


async def index(ask: Ask) -> PageView:
    """All groups with lag; those on screen with their members."""
    look = await ask.look()
    watch = ask.connection.watch
    rows = []
    for name in look.inventory.groups:
        state = look.groups.get(name, NO_STATE)
        count = look.inventory.dead_letters.get(name)
        has_letters = dead_letter_topic(name) in look.inventory.topics
        rows.append(
            {
                "group": name,
                "topics": list(state.topics),
                "lag": state.lag if name in look.groups else None,
                "out_per_s": watch.consumed_per_s(name),
                "retrying": state.retrying if name in look.groups else None,
                "dead_letters": (None if has_letters else 0) if count is None else count.waiting,
                "last_consumed": state.last_consumed_ms,
            }
        )
    columns = (
        GridColumn("group", "name", lambda row: ask.href("groups", row["group"])),
        GridColumn("state", "state"),
        GridColumn("members", "number", lambda row: ask.href("groups", row["group"], "members")),
        GridColumn("topics", "topics"),
        GridColumn("lag", "lag"),
        GridColumn("curve", "curve"),
        GridColumn("out_per_s", "rate"),
        GridColumn("retrying", "number"),
        GridColumn(
            "dead_letters",
            "number",
            lambda row: ask.href("dead-letters", row["group"]) if row["dead_letters"] else None,
        ),
        GridColumn("last_consumed", "time"),
    )
    sortable = frozenset({"group", "lag", "out_per_s", "retrying", "dead_letters", "last_consumed"})

    async def with_members(shown: Sequence[Row]) -> Sequence[Row]:
        online = await watch.members(str(row["group"]) for row in shown)
        filled = []
        for row in shown:
            name = str(row["group"])
            state = look.groups.get(name, replace(NO_STATE, name=name))
            members, word = state_of(watch, state, online[name])
            filled.append({**row, "members": members, "state": word, "curve": watch.lag_curve(name)})
        return filled

    return await list_page(
        ask,
        "groups",
        Grid("groups", columns, rows, sort="-lag", sortable=sortable),
        search=("group", "topics"),
        fill=with_members,
        sentence={"lag": f"{look.lag:,}"},
        data={"empty": consumer_command(ask, "billing", "orders")},
        code=(
            ("skylark", f"skylark group list --namesrv {ask.connection.namesrv}"),
            ("python", 'admin.groups.progress("billing").lag'),
        ),
        failures=look.failures,
        live_s=3,
    )


async def known(ask: Ask, group: str) -> None:
    """Raises NotThere for a group that no broker has."""
    look = await ask.look()
    if group not in look.inventory.groups and group not in look.groups:
        ask.connection.watch.forget()
        if group not in (await ask.look()).inventory.groups:
            raise NotThere(ask.t("group.missing", group=group))


async def progress(ask: Ask) -> PageView:
    """Committed offset, end and lag of each queue, and the lag over time."""
    group = ask.path("group")
    await known(ask, group)
    found = await ask.admin.groups.progress(group)
    online = await members_of(ask, group)
    watch = ask.connection.watch
    owners = await watch.owners(group)
    held = {} if owners is None else owners.queues
    rows = [
        {
            "topic": part.queue.topic,
            "broker": part.queue.broker_name,
            "queue": part.queue.queue_id,
            "committed": part.committed,
            "end": part.end,
            "lag": part.lag,
            "in_flight": part.pulled - part.committed,
            "owner": list(held.get(part.queue, ())),
            "last_consumed": part.last_consumed_ms,
        }
        for part in found.queues
    ]
    columns = (
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"])),
        GridColumn("broker"),
        GridColumn("queue", "number"),
        GridColumn("committed", "number", lambda row: _place(ask, row) if row["lag"] else None),
        GridColumn("end", "number"),
        GridColumn("lag", "lag"),
        GridColumn("in_flight", "number"),
        GridColumn("owner", "code", lambda row: _owner(ask, group, row), optional=True),
        GridColumn("last_consumed", "time"),
    )
    members, word = state_of(watch, replace(NO_STATE, name=group, lag=found.lag), online)
    count = (await ask.look()).inventory.dead_letters.get(group)
    facts = [
        ("state", word, "state", None),
        ("lag", found.lag, "number", None),
        ("out_per_s", watch.consumed_per_s(group), "rate", None),
        ("members", members, "number", ask.href("groups", group, "members")),
        ("retrying", found.retrying, "number", None),
        ("dead_letters", 0 if count is None else count.waiting, "number", ask.href("dead-letters", group)),
    ]
    return PageView(
        template="group.html",
        nav="groups",
        title=group,
        sentence=ask.t(f"group.{word}"),
        crumbs=GROUPS.crumbs(ask, group),
        tabs=GROUPS.tabs(ask, group, "progress"),
        grids=(Grid("queues", columns, rows),),
        data={"facts": facts, "curve": watch.lag_curve(group), "group": group},
        document={"group": group, **{name: value for name, value, *_ in facts}, "queues": rows},
        code=(
            ("skylark", f"skylark group status {group} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.groups.progress("{group}").lag'),
        ),
        failures=failures_of(found.failures),
        live_s=2,
    )


def _place(ask: Ask, row: Row) -> str:
    """The next message of a queue."""
    return ask.href("topics", row["topic"], "at", row["broker"], row["queue"], row["committed"])


def _owner(ask: Ask, group: str, row: Row) -> str | None:
    """The page of the member that holds a queue; the list if two do."""
    return (
        ask.href("groups", group, "members", *row["owner"][: len(row["owner"]) == 1])
        if row["owner"]
        else None
    )


async def members(ask: Ask) -> PageView:
    """Who consumes, and what they subscribe to; differences are shown side by side."""
    group = ask.path("group")
    await known(ask, group)
    online = await members_of(ask, group)
    owners = await ask.connection.watch.owners(group)
    queues = [name for names in ([] if owners is None else owners.queues.values()) for name in names]
    rows = [] if online is None else [
        {
            "client": client.client_id,
            "address": client.address,
            "language": client.language,
            "version": version_name(client.version),
            "queues": None
            if owners is None or client.client_id in owners.silent
            else queues.count(client.client_id),
            "brokers": list(client.brokers),
        }
        for client in online.clients
    ]  # fmt: skip
    columns = (
        GridColumn("client", "code", lambda row: ask.href("groups", group, "members", row["client"])),
        GridColumn("address", "code"),
        GridColumn("language"),
        GridColumn("version"),
        GridColumn("queues", "number"),
        GridColumn("brokers", "words"),
    )
    subscriptions = [] if online is None else [
        {"topic": topic, "expression": data.sub_string or "*", "type": data.expression_type or "TAG"}
        for topic, data in sorted(online.subscriptions.items())
    ]  # fmt: skip
    different = [] if online is None else [
        {"members": kind.members, "subscription": [f"{name}: {w}" for name, w in kind.expressions.items()]}
        for kind in online.different_subscriptions
    ]  # fmt: skip
    subscribed = (
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"])),
        GridColumn("expression", "code"),
        GridColumn("type"),
    )
    grids = [Grid("members", columns, rows), Grid("subscriptions", subscribed, subscriptions)]
    if different:
        grids.append(
            Grid(
                "different", (GridColumn("subscription", "words"), GridColumn("members", "words")), different
            )
        )
    return PageView(
        template="list.html",
        nav="groups",
        title=group,
        sentence=ask.t("group.members.different" if different else "group.members.sentence", count=len(rows)),
        crumbs=GROUPS.crumbs(ask, group),
        tabs=GROUPS.tabs(ask, group, "members"),
        grids=tuple(grids),
        data={**LIST, "empty": consumer_command(ask, group, "orders")},
        code=(
            ("skylark", f"skylark consumer list {group} --namesrv {ask.connection.namesrv}"),
            ("python", f'admin.clients.consumers("{group}")'),
        ),
        failures=() if online is None else failures_of(online.failures),
        live_s=5,
    )


async def member(ask: Ask) -> PageView:
    """What one member reports about itself; with `stack=1` also where its threads are."""
    group, client = ask.path("group"), ask.path("client")
    info = await ask.admin.clients.running_info(group, client, with_stack=ask.arg("stack") == "1")
    rows = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "cached": state.cached_msg_count,
            "committed": state.commit_offset,
        }
        for queue, state in sorted(info.mq_table.items())
    ]
    columns = (
        GridColumn("topic", "name", lambda row: ask.href("topics", row["topic"])),
        GridColumn("broker"),
        GridColumn("queue", "number"),
        GridColumn("committed", "number"),
        GridColumn("cached", "number"),
    )
    return PageView(
        template="member.html",
        nav="groups",
        title=client,
        sentence=ask.t("member.sentence", count=len(rows)),
        crumbs=(*GROUPS.crumbs(ask, group), (ask.t("tab.members"), ask.href("groups", group, "members"))),
        grids=(Grid("queues", columns, rows),),
        data={"properties": dict(sorted(info.properties.items())), "stack": info.jstack or ""},
        code=(("skylark", f"skylark consumer status {group} {client}"),),
    )


async def settings(ask: Ask) -> PageView:
    """The settings on each broker; differences are marked."""
    group = ask.path("group")
    await known(ask, group)
    found = await ask.admin.groups.config(group)
    values = {
        address: {
            "enabled": part.consume_enabled,
            "broadcast": part.broadcast_enabled,
            "orderly": part.orderly,
            "retries": part.retries_max,
            "retry queues": part.retry_queues,
            "timeout minutes": part.consume_timeout_min,
            **{f"attribute {name}": value for name, value in sorted(part.attributes.items())},
        }
        for address, part in found.answers.items()
    }
    return PageView(
        template="group_settings.html",
        nav="groups",
        title=group,
        sentence=ask.t("settings.sentence", count=len(values)),
        crumbs=GROUPS.crumbs(ask, group),
        tabs=GROUPS.tabs(ask, group, "settings"),
        grids=(settings_grid(values),),
        data={"group": group, "part": next(iter(found.answers.values()), None)},
        code=(
            ("skylark", f"skylark group update {group} --retries 5"),
            ("python", f'admin.groups.update("{group}", retries_max=5)'),
        ),
        failures=failures_of(found.failures),
    )
