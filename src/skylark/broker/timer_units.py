"""Pure. The units of the timer log for messages that go into the wheel together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from skylark.broker.timed_messages import PROPERTY_DELETES, TimedMessage, may_have, place
from skylark.settings.delivery import TimerSettings
from skylark.store.timer_log import UNIT, UNIT_BYTES, TimerFlag

Entry = tuple[tuple[int, int], TimedMessage]
"""A record of the timer topic: its physical offset and its size, and what it holds."""


@dataclass(slots=True)
class Chain:
    """Units that a slot gets together: where the first and the last lie, how many messages more wait."""

    first: int
    last: int
    waiting: int = 0


class _Spot(NamedTuple):
    """What messages with the same wish have in common."""

    chain: Chain
    flags: int
    write_ms: int
    delay_ms: int
    weight: int


@dataclass(slots=True)
class Linked:
    """Units, one behind the other; their chains by slot; how many messages more wait, by topic."""

    units: list[bytes] = field(default_factory=list)
    chains: dict[int, Chain] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def link(
    entries: Sequence[Entry],
    position: int,
    last_position: Callable[[int], int],
    settings: TimerSettings,
    now_ms: int,
) -> Linked:
    """The units of messages that are enqueued now, for a position of the log; `last_position` is a slot's."""
    linked = Linked()
    units, counts, pack = linked.units, linked.counts, UNIT.pack
    any_deletes = may_have(PROPERTY_DELETES, [timed for _, timed in entries])
    spots: dict[tuple[int, bool], _Spot] = {}
    for (physical_offset, size), timed in entries:
        out_ms, topic, _, topic_hash = timed.terms
        wish = out_ms, any_deletes and timed.deletes is not None
        spot = spots.get(wish)
        if spot is None:
            # Its slot may be over, but not dealt with: then what takes it back still counts.
            write_ms = min(now_ms, out_ms)
            slot_ms, flags = place(out_ms, write_ms, settings, deletes=wish[1])
            chain = linked.chains.setdefault(slot_ms, Chain(position, last_position(slot_ms)))
            spot = spots[wish] = _Spot(chain, flags, write_ms, slot_ms - write_ms, weight_of(flags))
        chain, flags, write_ms, delay_ms, weight = spot
        units.append(
            pack(UNIT_BYTES, chain.last, flags, write_ms, delay_ms, physical_offset, size, topic_hash, 0)
        )
        chain.last = position
        chain.waiting += weight
        counts[topic] += weight
        position += UNIT_BYTES
    return linked


def weight_of(flags: int) -> int:
    """What a unit adds to the number of messages that wait: a delete takes one away."""
    return -1 if flags & TimerFlag.DELETE else 1
