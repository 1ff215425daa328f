"""Resets of a group: a preview, then the change, which can be put back; and why a group lags."""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.responses import Response

from skylark.admin.lag_causes import GroupSnapshot, lag_causes
from skylark.admin.messages import is_wanted
from skylark.admin.offsets import BEGIN, END, OffsetPreview
from skylark.admin.results import ConnectedConsumers, GroupProgress
from skylark.admin.server_calls import at_once
from skylark.console.grid import Grid, GridColumn, format_duration
from skylark.console.pages.groups import GROUPS, known, members_of
from skylark.console.pages.messages import cursor_text, parse_cursor
from skylark.console.pages.topics import consumer_command
from skylark.console.view import Ask, BadForm, PageView, failures_of, redirect
from skylark.errors import BrokerError, RocketMQError
from skylark.model.tag_expression import MATCH_ALL
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.quantities import parse_time_ms

PLACES = {"begin": BEGIN, "end": END}
LIKE, AT = "group:", "at:"
"""Before the name of another group, and before a cursor: offsets of some queues."""
COMMANDS = {
    "disabled": "skylark group update {group} --enabled --namesrv {namesrv}",
    "deleted": "skylark offset reset {group} {topic} --to begin --dry-run --namesrv {namesrv}",
}
"""The next step for some causes."""
STATS_MAX = 50
"""Topics of a group that are asked for their queues."""
SAMPLE_MAX = 32
"""Waiting messages that are compared with a filter."""


def moment(ask: Ask, text: str) -> int:
    """`begin`, `end`, or a time. Raises BadForm."""
    if text in PLACES:
        return PLACES[text]
    try:
        return parse_time_ms(text, round(time.time() * 1000))
    except ValueError as error:
        raise BadForm(str(error)) from None


async def plan(ask: Ask, group: str, topic: str, to: str) -> OffsetPreview:
    """What a reset would do: to a time, to the place of another group, or to offsets of some queues.

    Raises BadForm.
    """
    offsets: Mapping[MessageQueue, int | None]
    if to.startswith(LIKE):
        offsets = await ask.admin.offsets.committed(to.removeprefix(LIKE), topic)
    elif to.startswith(AT):
        offsets = parse_cursor(topic, to.removeprefix(AT)) or {}
    else:
        return await ask.admin.offsets.preview(group, topic, moment(ask, to))
    new = {queue: at for queue, at in offsets.items() if at is not None}
    if not new:
        raise BadForm(ask.t("reset.no_offsets", group=to.removeprefix(LIKE), topic=topic))
    old = await ask.admin.offsets.committed(group, topic)
    if unknown := sorted(new.keys() - old.keys()):
        raise BadForm(ask.t("messages.no_queue", queue=f"{unknown[0].broker_name}:{unknown[0].queue_id}"))
    return OffsetPreview(group, topic, {queue: old[queue] for queue in new}, new)


async def form(ask: Ask) -> PageView:
    """Where to go; with a topic and a place also what would happen."""
    group = ask.path("group")
    await known(ask, group)
    look = await ask.look()
    state = look.groups.get(group)
    known_topics = await ask.admin.groups.topics(group) if state is None else state.topics
    topics = [name for name in known_topics if not name.startswith("%")]
    topic, to = ask.arg("topic"), ask.arg("to")
    grids: tuple[Grid, ...] = ()
    planned = None
    if topic and to:
        planned = await plan(ask, group, topic, to)
        grids = (preview_grid(ask, planned),)
    return PageView(
        template="reset.html",
        nav="groups",
        title=ask.t("reset.title", group=group),
        sentence="" if planned is None else summary_of(ask, planned),
        crumbs=(*GROUPS.crumbs(ask, group), (ask.t("reset"), ask.here())),
        grids=grids,
        data={
            "group": group,
            "topics": topics,
            "others": [other.name for other in look.groups.values() if {*other.topics} & {*topics}],
            "topic": topic,
            "to": to,
            "expected": "" if planned is None else _expected(planned),
            "online": await members_of(ask, group) is not None,
        },
        code=(
            ("skylark", f"skylark offset reset {group} {topic or 'TOPIC'} --to {to or '30m'} --dry-run"),
            ("python", f'admin.offsets.preview("{group}", "{topic or "TOPIC"}", time_ms)'),
        ),
    )


def preview_grid(ask: Ask, planned: OffsetPreview) -> Grid:
    rows = []
    for queue, new in sorted(planned.new.items()):
        old = planned.old.get(queue)
        move = None if old is None else new - old
        href = ask.href("topics", queue.topic, "at", queue.broker_name, queue.queue_id, new)
        rows.append(
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "now": old,
                "then": new,
                "again": None if move is None else max(0, -move),
                "skipped": None if move is None else max(0, move),
                "href": href,
            }
        )
    columns = (
        GridColumn("broker"),
        GridColumn("queue", "number"),
        GridColumn("now", "number"),
        GridColumn("then", "number", lambda row: row["href"]),
        GridColumn("again", "number"),
        GridColumn("skipped", "number"),
    )
    return Grid("preview", columns, rows)


def summary_of(ask: Ask, planned: OffsetPreview) -> str:
    moves = [new - old for queue, new in planned.new.items() if (old := planned.old.get(queue)) is not None]
    again, skipped = -sum(move for move in moves if move < 0), sum(move for move in moves if move > 0)
    return ask.t("reset.sentence", again=f"{again:,}", skipped=f"{skipped:,}")


def _expected(planned: OffsetPreview) -> str:
    return cursor_text({queue: old for queue, old in planned.old.items() if old is not None})


async def apply(ask: Ask) -> PageView | Response:
    """Reset as previewed; refused if a group that is offline has moved since."""
    group, fields = ask.path("group"), await ask.form()
    topic, to = fields.get("topic", ""), fields.get("to", "")
    if not topic or not to:
        raise BadForm(ask.t("reset.incomplete"))
    planned = await plan(ask, group, topic, to)
    if await members_of(ask, group) is None and _expected(planned) != fields.get("expected", ""):
        raise BadForm(ask.t("reset.moved"))
    offsets = await move(ask, planned, to)
    before = {"group": group, "topic": topic, "offsets": _expected(planned)}
    after = {"to": to, "offsets": cursor_text(offsets)}
    change = ask.record("reset", f"{group} {topic}", before=before, after=after)
    return redirect(ask.href("groups", group, changed=change.number))


async def move(ask: Ask, planned: OffsetPreview, to: str) -> Mapping[MessageQueue, int]:
    """Reset as planned. To a time, brokers find the offsets: messages may be new since the preview."""
    if to.startswith((LIKE, AT)):
        await _put(ask, planned.group, planned.new)
        return planned.new
    return (await ask.admin.offsets.reset(planned.group, planned.topic, moment(ask, to))).offsets


async def put_back(ask: Ask, before: dict[str, str]) -> None:
    """Restore the offsets that a reset has changed."""
    await _put(ask, before["group"], parse_cursor(before["topic"], before["offsets"]) or {})


async def _put(ask: Ask, group: str, offsets: Mapping[MessageQueue, int]) -> None:
    for queue, queue_offset in offsets.items():
        try:
            await ask.admin.offsets.reset_queue(group, queue, queue_offset)
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            await ask.admin.offsets.commit(group, {queue: queue_offset})  # brokers of 4.9


# --- Why ---


async def why(ask: Ask) -> PageView:
    """The causes that hold, the most likely first, each with its evidence and a next step."""
    group = ask.path("group")
    await known(ask, group)
    seen = await snapshot(ask, group)
    topics = sorted(
        {part.queue.topic for part in seen.progress.queues if not part.queue.topic.startswith("%")}
    )
    topic = next(iter(topics), "TOPIC")
    causes = [
        {
            "name": cause.name,
            "level": cause.level,
            "text": ask.t(f"why.{cause.name}", **_words(dict(cause.facts))),
            "advice": ask.t(f"why.{cause.name}.do"),
            "command": consumer_command(ask, group, topic)
            if cause.name == "nobody"
            else COMMANDS.get(cause.name, "").format(
                group=group, topic=topic, namesrv=ask.connection.namesrv
            ),
        }
        for cause in lag_causes(seen)
    ]
    columns = tuple(GridColumn(name) for name in ("name", "level", "text", "advice", "command"))
    return PageView(
        template="why.html",
        nav="groups",
        title=group,
        sentence=ask.t("why.sentence"),
        crumbs=GROUPS.crumbs(ask, group),
        tabs=GROUPS.tabs(ask, group, "why"),
        grids=(Grid("causes", columns, causes),),
        data={"causes": causes, "group": group},
        code=(("skylark", f"skylark group status {group} --watch"),),
        failures=failures_of(seen.progress.failures),
        live_s=3,
    )


async def snapshot(ask: Ask, group: str) -> GroupSnapshot:
    """Everything that the rules look at, asked at once."""
    progress = await ask.admin.groups.progress(group)
    topics = sorted({part.queue.topic for part in progress.queues})[:STATS_MAX]
    found = await at_once(ask.admin.topics.stats, topics)
    queues = {
        part.queue: part for stats in found if not isinstance(stats, RocketMQError) for part in stats.queues
    }
    inventory = (await ask.look()).inventory
    unreadable = [
        name
        for name in topics
        if not all(part.is_readable for part in inventory.topics.get(name, {}).values())
    ]
    watch = ask.connection.watch
    members = await members_of(ask, group)
    return GroupSnapshot(
        progress,
        members,
        (await ask.admin.groups.config(group)).answers,
        queues,
        unreadable,
        watch.consumed_per_s(group),
        watch.lag_growth_per_s(group),
        round(time.time() * 1000),
        await watch.owners(group),
        watch.standing_s(progress),
        None if members is None else await _sample(ask, progress, members),
    )


async def _sample(ask: Ask, progress: GroupProgress, members: ConnectedConsumers) -> tuple[int, int] | None:
    """How many of the next messages match a filter, and how many were read; None without a filter."""
    filtered = [
        part
        for part in progress.queues
        if part.lag and (data := members.subscriptions.get(part.queue.topic)) is not None
        and (data.sub_string or MATCH_ALL) != MATCH_ALL
    ]  # fmt: skip
    if not filtered:
        return None
    part = max(filtered, key=lambda each: each.lag)
    try:
        found = await ask.admin.messages.since(
            part.queue.topic, {part.queue: part.committed}, messages_max=SAMPLE_MAX
        )
    except RocketMQError:
        return None
    return sum(is_wanted(members, message) for message in found.messages), len(found.messages)


def _words(facts: dict[str, object]) -> dict[str, object]:
    """Numbers as people read them."""
    words: dict[str, object] = {}
    for name, value in facts.items():
        if name == "seconds" and isinstance(value, float):
            words[name] = format_duration(value * 1000)
        elif isinstance(value, float):
            words[name] = f"{value:,.0f}"
        else:
            words[name] = f"{value:,}" if isinstance(value, int) else value
    return words
