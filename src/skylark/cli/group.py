"""`skylark group`: consumer groups, their progress and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from skylark.cli.errors import UsageError
from skylark.cli.options import (
    EVERY_S,
    NAMESRV,
    AsJson,
    Broker,
    Cluster,
    Every,
    Group,
    Namesrv,
    Topic,
    Watch,
    Yes,
    complete_group,
    complete_topic,
    confirm,
    connected,
    grouped,
    in_parallel,
    pairs,
    tabular,
)
from skylark.cli.output import Listing, Rate, Rates, When, done, show, show_or_watch
from skylark.errors import BrokerError
from skylark.model.message import RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from skylark.admin.admin import Admin
    from skylark.admin.dead_letters import DeadLetterCount
    from skylark.admin.results import ConnectedConsumers, GroupProgress
    from skylark.protocol.bodies import SubscriptionKind

app = typer.Typer(no_args_is_help=True, help="Consumer groups: create, change, delete, and inspect.")

NOT_ONLINE = 206
LIST_COLUMNS = ("group", "members", "topics", "lag", "retrying", "dead letters", "out/s")
PROGRESS_COLUMNS = ("topic", "broker", "queue", "committed", "end", "lag", "in flight", "last consumed")


@dataclass(frozen=True)
class GroupChanges:
    """Settings of a group, and where to change them."""

    retries: Annotated[
        int | None, typer.Option("--retries", min=0, help="Attempts before a message is a dead letter.")
    ] = None
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="Whether it may consume.")] = (
        None
    )
    broadcast: Annotated[
        bool | None, typer.Option("--broadcast/--no-broadcast", help="Whether it may broadcast.")
    ] = None
    orderly: Annotated[bool | None, typer.Option("--orderly/--concurrently")] = None
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", metavar="KEY=VALUE", help="Such as lite.bind.topic=chats."),
    ] = None
    cluster: Cluster = None
    broker: Broker = None

    def given(self) -> dict[str, Any]:
        """The given settings, by the names of `admin.results.Group`."""
        wanted = {
            "retries_max": self.retries,
            "consume_enabled": self.enabled,
            "broadcast_enabled": self.broadcast,
            "orderly": self.orderly,
            "attributes": pairs(self.attribute, "--attribute") or None,
        }
        return {name: value for name, value in wanted.items() if value is not None}


@app.command("list")
@tabular
def list_groups(
    cluster: Cluster = None,
    system: Annotated[bool, typer.Option("--system", help="Also built-in groups.")] = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """List groups with their members, topics, lag and dead letters.

    `lag` includes what waits in the retry topic, which `retrying` shows by itself. `dead letters` are those
    that were not sent again.

    Example: skylark group list
    """
    with connected(namesrv) as admin:
        names = admin.overview.group_names(cluster=cluster, system=system)
        dead_letters = admin.dead_letters.counts()
        rows = in_parallel(lambda name: _overview(admin, name, dead_letters.get(name)), names)
    show(Listing(LIST_COLUMNS, rows, long=("topics",)), as_json=as_json)


def _overview(admin: Admin, name: str, dead_letters: DeadLetterCount | None) -> tuple[object, ...]:
    progress = admin.groups.progress(name)
    topics = sorted({part.queue.topic for part in progress.queues if not part.queue.topic.startswith("%")})
    return (
        name, _member_count(_members(admin, name)), topics, progress.lag, progress.retrying,
        0 if dead_letters is None else dead_letters.waiting, Rate(progress.consumed_per_s),
    )  # fmt: skip


def _members(admin: Admin, name: str) -> ConnectedConsumers | None:
    try:
        return admin.clients.consumers(name)
    except BrokerError as error:
        if error.code == NOT_ONLINE:
            return None
        raise


def _member_count(members: ConnectedConsumers | None) -> int:
    return 0 if members is None else len(members.clients)


@app.command()
@grouped
def create(group: Group, changes: GroupChanges, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Create a group, or replace its settings: on all brokers, a cluster, or one.

    Example: skylark group create billing --retries 5
    """
    from skylark.admin import results  # noqa: PLC0415

    with connected(namesrv) as admin:
        wanted = results.Group(group, **changes.given())
        admin.groups.create(wanted, cluster=changes.cluster, broker=changes.broker)
    done(f"group {group} created", {"group": group, "created": True}, as_json=as_json)


@app.command()
@grouped
def update(group: Group, changes: GroupChanges, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Change the given settings on each broker that has the group.

    Example: skylark group update billing --disabled
    """
    given = changes.given()
    if not given:
        raise UsageError(
            "nothing to change; pass --retries, --enabled, --broadcast, --orderly or --attribute"
        )
    with connected(namesrv) as admin:
        admin.groups.update(group, cluster=changes.cluster, broker=changes.broker, **given)
    done(f"group {group} changed", {"group": group, "updated": True}, as_json=as_json)


@app.command()
def delete(
    group: Group,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep its offsets, to resume later.")
    ] = False,
    cluster: Cluster = None,
    yes: Yes = False,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Delete a group with its offsets, its retry topic and its dead letters.

    Example: skylark group delete billing --yes
    """
    with connected(namesrv) as admin:
        if group not in admin.groups.names(cluster=cluster) and not admin.groups.topics(group):
            raise UsageError(f"no group {group}; `skylark group list` lists groups")
        confirm(f"Delete group {group}, its offsets and its dead letters?", yes=yes)
        admin.groups.delete(group, cluster=cluster, keep_offsets=keep_offsets)
    done(f"group {group} deleted", {"group": group, "deleted": True}, as_json=as_json)


@app.command()
@tabular
def config(group: Group, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show a group's settings on each broker that has it.

    Example: skylark group config billing
    """
    with connected(namesrv) as admin:
        found = admin.groups.config(group)
    if not found.answers and not found.failures:
        raise UsageError(f"no group {group} on any broker; `skylark group list` lists groups")
    rows = [
        (
            address, item.consume_enabled, item.broadcast_enabled, item.orderly, item.retries_max,
            item.retry_queues, item.consume_timeout_min,
        )
        for address, item in found.answers.items()
    ]  # fmt: skip
    columns = ("broker", "enabled", "broadcast", "orderly", "retries", "retry queues", "timeout minutes")
    show(Listing(columns, rows, failures=found.failures), as_json=as_json)


@app.command()
@tabular
def status(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=complete_group)],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Only this topic.", autocompletion=complete_topic)
    ] = None,
    watch: Watch = False,
    every: Every = EVERY_S,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a group in each queue: committed, end, lag; and what its members subscribe.

    `lag` includes what waits in the retry topic, which `retrying` shows by itself.

    Examples: skylark group status billing

    skylark group status billing --watch
    """
    with connected(namesrv) as admin:
        show_or_watch(
            lambda rates, now_s: _progress(admin, group, topic, rates, now_s),
            watch=watch,
            every_s=every,
            as_json=as_json,
        )


def _progress(admin: Admin, group: str, topic: str | None, rates: Rates | None, now_s: float) -> Listing:
    progress = admin.groups.progress(group, topic)
    if not progress.queues and not progress.failures and group not in admin.groups.names():
        raise UsageError(f"no group {group}; `skylark group list` lists groups")
    dead_letters = admin.dead_letters.count(group).waiting
    return progress_listing(progress, _members(admin, group), dead_letters, rates, now_s)


@dataclass(frozen=True, slots=True)
class GroupSubscriptions:
    """What the members of a group subscribe: a sentence in tables, all of it in JSON."""

    same: bool
    kinds: Sequence[SubscriptionKind]

    @classmethod
    def of(cls, members: ConnectedConsumers) -> Self:
        from skylark.protocol.bodies import SubscriptionKind  # noqa: PLC0415

        if members.different_subscriptions:
            return cls(False, members.different_subscriptions)
        expressions = {
            topic: data.sub_string or "*"
            for topic, data in sorted(members.subscriptions.items())
            if not topic.startswith(RETRY_TOPIC_PREFIX)
        }
        return cls(True, [SubscriptionKind(expressions, [client.client_id for client in members.clients])])

    def __str__(self) -> str:
        if not self.same:
            return f"DIFFERENT, so messages are skipped: {'; '.join(map(str, self.kinds))}"
        return ", ".join(
            f"{topic}: {text}" for kind in self.kinds for topic, text in kind.expressions.items()
        )


def progress_listing(
    progress: GroupProgress,
    members: ConnectedConsumers | None,
    dead_letters: int,
    rates: Rates | None,
    now_s: float,
) -> Listing:
    """With `rates`, also the rates of each queue."""
    rows: list[tuple[object, ...]] = []
    for part in progress.queues:
        row: tuple[object, ...] = (
            part.queue.topic, part.queue.broker_name, part.queue.queue_id, part.committed, part.end,
            part.lag, part.pulled - part.committed, When(part.last_consumed_ms),
        )  # fmt: skip
        if rates is not None:
            out = rates.per_s((part.queue, "out"), part.committed, now_s)
            row = (*row, rates.per_s((part.queue, "in"), part.end, now_s), out)
        rows.append(row)
    facts: list[tuple[str, object]] = [
        ("group", progress.group),
        ("members", _member_count(members)),
        ("subscriptions", None if members is None else GroupSubscriptions.of(members)),
        ("lag", progress.lag),
        ("retrying", progress.retrying),
        ("dead letters", dead_letters),
    ]
    if rates is None:
        facts.append(("out/s", Rate(progress.consumed_per_s)))
    else:
        total_in = sum(part.end for part in progress.queues)
        total_out = sum(part.committed for part in progress.queues)
        facts.append(("in/s", rates.per_s("in", total_in, now_s)))
        facts.append(("out/s", rates.per_s("out", total_out, now_s)))
    columns = PROGRESS_COLUMNS if rates is None else (*PROGRESS_COLUMNS, "in/s", "out/s")
    return Listing(columns, rows, facts, progress.failures, items="queues")


@app.command()
@tabular
def delay(group: Group, topic: Topic, namesrv: Namesrv = NAMESRV, as_json: AsJson = False) -> None:
    """Show for each queue of a topic the age of the next message of a group.

    Example: skylark group delay billing orders
    """
    with connected(namesrv) as admin:
        spans = admin.groups.time_spans(group, topic)
    rows = [
        (
            span.message_queue.broker_name, span.message_queue.queue_id, When(span.min_time_stamp),
            When(span.max_time_stamp), When(span.consume_time_stamp), span.delay_time,
        )
        for span in spans
    ]  # fmt: skip
    columns = ("broker", "queue", "first stored", "last stored", "next stored", "waiting ms")
    show(Listing(columns, rows), as_json=as_json)


@app.command()
def mode(
    group: Group,
    topic: Topic,
    wanted: Annotated[str, typer.Argument(metavar="PULL|POP")],
    queues: Annotated[
        int, typer.Option("--pop-queues", min=0, help="Queues that each member pops; 0: all.")
    ] = 0,
    namesrv: Namesrv = NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Set whether members of a group pull or pop a topic.

    Apache RocketMQ's brokers support both, Skylark's only PULL.

    Example: skylark group mode billing orders PULL
    """
    if wanted.upper() not in ("PULL", "POP"):
        raise UsageError(f"invalid mode {wanted!r}; choose PULL or POP")
    with connected(namesrv) as admin:
        admin.groups.set_request_mode(group, topic, wanted.upper(), pop_queues=queues)
    sentence = f"members of {group} use {wanted.upper()} for topic {topic}"
    done(sentence, {"group": group, "topic": topic, "mode": wanted.upper()}, as_json=as_json)
