"""Pure. Why a group lags: rules over one snapshot. The first cause that holds is the headline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from skylark.admin.results import (
    ConnectedConsumers,
    Group,
    GroupProgress,
    QueueOwners,
    QueueProgress,
    QueueStats,
)
from skylark.model.names import retry_topic
from skylark.protocol.bodies import MessageQueue

STANDS_PER_S = 0.05
QUEUE_STANDS_S = 30.0
"""A queue stands if it has not moved for this time while others did."""
SAMPLE_MIN, PASSING_MAX = 10, 0.1
"""A filter passes few messages if at most this share of a sample of at least that size matches."""
PLACES_MAX = 3
"""Queues that a cause names."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What the rules look at. Rates are None if they are not known yet."""

    progress: GroupProgress
    members: ConnectedConsumers | None
    settings: Mapping[str, Group]
    """By the address of each broker that has the group."""
    queues: Mapping[MessageQueue, QueueStats]
    unreadable_topics: Sequence[str] = ()
    consumed_per_s: float | None = None
    growth_per_s: float | None = None
    now_ms: int = 0
    owners: QueueOwners | None = None
    """None if members do not share queues, or are not online."""
    standing_s: Mapping[MessageQueue, float] = field(default_factory=dict)
    """For how long a queue with waiting messages has not moved, as far as it was watched."""
    sample: tuple[int, int] | None = None
    """How many of the next messages match the subscription, and how many were looked at."""


@dataclass(frozen=True, slots=True)
class LagCause:
    """A rule that holds: its name, the evidence, and the level (bad, warn, note)."""

    name: str
    level: str = "bad"
    facts: Mapping[str, object] = field(default_factory=dict)


def lag_causes(seen: GroupSnapshot) -> list[LagCause]:
    """The causes that hold, the most likely first; `none` if the group keeps up."""
    return list(_causes(seen)) or [LagCause("none", "good")]


def _causes(seen: GroupSnapshot) -> Iterator[LagCause]:
    progress, members = seen.progress, seen.members
    yield from _deleted(seen)
    if not progress.lag:
        return
    last_ms = max((queue.last_consumed_ms or 0 for queue in progress.queues), default=0)
    disabled = [address for address, group in seen.settings.items() if not group.consume_enabled]
    if disabled:
        yield LagCause("disabled", facts={"brokers": ", ".join(disabled)})
    if seen.unreadable_topics:
        yield LagCause("unreadable", facts={"topics": ", ".join(seen.unreadable_topics)})
    if members is None or not members.clients:
        ago_s = (seen.now_ms - last_ms) / 1000 if last_ms else None
        yield LagCause("nobody", facts={"seconds": ago_s})
        return
    if members.different_subscriptions:
        kinds = "; ".join(map(str, members.different_subscriptions))
        yield LagCause("different", facts={"kinds": kinds})
    yield from _unsubscribed(seen)
    queues = {queue.queue for queue in progress.queues if queue.queue.topic != retry_topic(progress.group)}
    if len(members.clients) > len(queues) > 0:
        facts = {"members": len(members.clients), "queues": len(queues)}
        yield LagCause("more_members", "note", facts)
    yield from _unsettled(seen)
    yield from _rates(seen)
    yield from _filtered(seen)
    if progress.retrying and progress.retrying * 2 >= progress.lag:
        yield LagCause("retrying", "warn", {"count": progress.retrying})
    if progress.failures:
        yield LagCause("incomplete", "note", {"brokers": ", ".join(progress.failures)})


def _deleted(seen: GroupSnapshot) -> Iterator[LagCause]:
    """Messages that retention deleted before the group read them."""
    lost = 0
    for part in seen.progress.queues:
        stats = seen.queues.get(part.queue)
        if stats is not None and part.committed < stats.begin:
            lost += stats.begin - part.committed
    if lost:
        yield LagCause("deleted", facts={"count": lost})


def _unsubscribed(seen: GroupSnapshot) -> Iterator[LagCause]:
    """Topics with lag that no member subscribes to any more."""
    assert seen.members is not None
    behind = {part.queue.topic for part in seen.progress.queues if part.lag}
    left = sorted(
        topic
        for topic in behind - set(seen.members.subscriptions)
        if topic != retry_topic(seen.progress.group)
    )
    if left:
        yield LagCause("unsubscribed", "warn", {"topics": ", ".join(left)})


def _unsettled(seen: GroupSnapshot) -> Iterator[LagCause]:
    """Queues that no member holds, or two; only if all members have said what they hold."""
    owners = seen.owners
    if owners is None or owners.silent or not owners.queues:
        return
    held = {
        part.queue: len(owners.queues.get(part.queue, ()))
        for part in seen.progress.queues
        if part.lag and seen.members is not None and part.queue.topic in seen.members.subscriptions
    }
    wrong = sorted(queue for queue, count in held.items() if count != 1)
    if wrong:
        places = ", ".join(
            f"{queue.topic} {queue.broker_name}:{queue.queue_id}" for queue in wrong[:PLACES_MAX]
        )
        unheld = sum(1 for count in held.values() if count == 0)
        yield LagCause(
            "unsettled", facts={"unheld": unheld, "doubled": len(wrong) - unheld, "places": places}
        )


def _rates(seen: GroupSnapshot) -> Iterator[LagCause]:
    progress = seen.progress
    if seen.consumed_per_s is None:
        return
    if seen.consumed_per_s < STANDS_PER_S:
        stuck = [part for part in progress.queues if part.lag]
        held = sum(part.pulled - part.committed for part in stuck)
        yield LagCause("stands", facts={"place": _place(stuck[0]), "held": held, "queues": len(stuck)})
        return
    standing = [part for part in progress.queues if seen.standing_s.get(part.queue, 0.0) >= QUEUE_STANDS_S]
    if standing:
        seconds = max(seen.standing_s[part.queue] for part in standing)
        facts = {"place": _place(standing[0]), "queues": len(standing), "seconds": seconds}
        yield LagCause("queue_stands", facts=facts)
    moving = [part for part in progress.queues if part.lag]
    if seen.growth_per_s is not None and seen.growth_per_s > 1:
        members = len(seen.members.clients) if seen.members is not None else 1
        one = seen.consumed_per_s / max(1, members)
        needed = (seen.consumed_per_s + seen.growth_per_s) / one if one else 0
        facts = {"rate": seen.growth_per_s, "members": members, "needed": int(needed + 0.999)}
        yield LagCause("slow", "warn", facts)
    elif moving:
        seconds = progress.lag / seen.consumed_per_s
        yield LagCause("catching_up", "note", {"seconds": seconds})


def _place(part: QueueProgress) -> str:
    """The next message of a queue."""
    return f"{part.queue.topic} {part.queue.broker_name}:{part.queue.queue_id}:{part.committed}"


def _filtered(seen: GroupSnapshot) -> Iterator[LagCause]:
    """Lag counts messages that the filter skips."""
    passing, looked_at = seen.sample or (0, 0)
    if looked_at >= SAMPLE_MIN and passing <= looked_at * PASSING_MAX:
        yield LagCause("filtered", "note", {"passing": passing, "count": looked_at})
