"""Pure. Allocation strategies: which queues of a topic belong to which member of a group.

Every member computes the same split from the same sorted lists, so no leader is needed.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from skylark.errors import SettingsError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.queue_allocation import averagely, averagely_by_circle

T = TypeVar("T")

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""Maps `(me, queues, members)`, both sorted, to my queues. If it raises, the assignment stays unchanged."""

VIRTUAL_NODES = 10
ROOM_SEPARATOR = "@"


def fixed(queues: Iterable[MessageQueue]) -> Strategy:
    """Always the same queues: the user is responsible for a complete and disjoint split."""
    mine = list(queues)
    return lambda me, queues, members: list(mine)


def machine_room(rooms: Collection[str]) -> Strategy:
    """Only the queues of brokers named `<room>@<name>` with one of these rooms; others stay unassigned."""
    wanted = frozenset(rooms)

    def allocate(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        near = [queue for queue in queues if _room_in_name(queue) in wanted]
        share, extra = divmod(len(near), len(members))
        index = members.index(me)
        mine = near[share * index : share * (index + 1)]
        return mine + near[share * len(members) + index :][:1] if index < extra else mine

    return allocate


def _room_in_name(queue: MessageQueue) -> str | None:
    room, separator, name = queue.broker_name.partition(ROOM_SEPARATOR)
    return room if separator and name and ROOM_SEPARATOR not in name else None


def machine_room_nearby(
    inner: Strategy,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_member: Callable[[str], str],
) -> Strategy:
    """Queues of a room go to its members, split by `inner`; those of rooms without members to all members."""

    def allocate(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        queues_of = _by_room(queues, room_of_queue)
        members_of = _by_room(members, room_of_member)
        my_room = room_of_member(me)
        mine: list[MessageQueue] = []
        if my_room in queues_of:
            mine += inner(me, queues_of[my_room], members_of[my_room])
        for room in sorted(queues_of.keys() - members_of.keys()):
            mine += inner(me, queues_of[room], members)
        return mine

    return allocate


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ValueError(f"the resolver returned no room for {thing}")
        rooms.setdefault(room, []).append(thing)
    return rooms


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Each member has `virtual_nodes` places on a ring; a queue goes to the first at or after its own hash.

    Few queues move when members join or leave, but the shares are uneven.
    """
    if virtual_nodes < 1:
        raise SettingsError("virtual_nodes", f"{virtual_nodes} is out of range, the minimum is 1")

    def allocate(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        ring = sorted(
            (ring_hash(f"{member}-{number}"), member) for member in members for number in range(virtual_nodes)
        )
        places = [place for place, _ in ring]

        def owner(queue: MessageQueue) -> str:
            return ring[bisect.bisect_left(places, ring_hash(queue_text(queue))) % len(ring)][1]

        return [queue for queue in queues if owner(queue) == me]

    return allocate


def ring_hash(text: str) -> int:
    """Return the place of a text on the ring: the first four bytes of its MD5."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_text(queue: MessageQueue) -> str:
    """Return a queue as Java prints it, the input of its hash."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


BUILDERS: Mapping[str, Callable[..., Strategy]] = {
    "AVG": lambda: averagely,
    "AVG_BY_CIRCLE": lambda: averagely_by_circle,
    "CONFIG": fixed,
    "MACHINE_ROOM": machine_room,
    "MACHINE_ROOM_NEARBY": machine_room_nearby,
    "CONSISTENT_HASH": consistent_hash,
}
"""Strategies by RocketMQ's names. The three in the middle take arguments: see the functions."""


def strategy_named(name: str, *arguments: object, **options: object) -> Strategy:
    """Return a strategy by RocketMQ's name for it. Raises SettingsError.

    >>> strategy_named("AVG")
    >>> strategy_named("MACHINE_ROOM", {"beijing", "hangzhou"})
    """
    builder = BUILDERS.get(name)
    if builder is None:
        raise SettingsError("strategy", f"unknown strategy {name!r}; choose one of {', '.join(BUILDERS)}")
    try:
        return builder(*arguments, **options)
    except TypeError as error:
        raise SettingsError("strategy", f"wrong arguments for {name}: {error}") from None


def allocate(
    strategy: Strategy, me: str, queues: Iterable[MessageQueue], members: Iterable[str]
) -> list[MessageQueue]:
    """Return my queues, none while the brokers do not know me.

    Sorts both lists first: brokers return them in any order. Raises the errors of the strategy.
    """
    known = sorted(set(members))
    if me not in known:
        return []
    return list(strategy(me, sorted(queues), known))


class QueueChanges(NamedTuple):
    """Queues of one topic that a member must release and take."""

    release: list[MessageQueue]
    take: list[MessageQueue]


def queue_changes(
    held: Mapping[MessageQueue, float], wanted: Collection[MessageQueue], *, stale_before: float
) -> QueueChanges:
    """Compare the held queues, with the time of their last pull, to the wanted ones.

    A wanted queue that was not pulled since `stale_before` is released and taken again: its pull loop is
    stuck.
    """
    wanted = frozenset(wanted)
    release = [queue for queue, pulled_at in held.items() if queue not in wanted or pulled_at < stale_before]
    kept = held.keys() - set(release)
    return QueueChanges(sorted(release), sorted(wanted - kept))
