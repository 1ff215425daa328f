"""The units of the timer log: messages linked together get the chains that they get one by one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.delayed.timed_messages import (
    PROPERTY_DELETES,
    LinkedUnits,
    TimedMessage,
    TimerEntry,
    TimerTarget,
    link_units,
    weight_of,
)
from skylark.model.message import PutMessage
from skylark.settings.broker import TimerSettings
from skylark.store.timer_files import TIMER_UNIT, TIMER_UNIT_BYTES, TimerFlag, TimerWheel
from tests.support.store import ROOT, simulated_disk

NOW_MS = 1_700_000_000_000
SETTINGS = TimerSettings(roll_window_slots=60)
WISHES = st.tuples(
    st.sampled_from([-1000, 0, 1000, 2000, 61_000, 70_000, 100_000, 500_000]), st.sampled_from("TU"),
    st.booleans(),
)  # fmt: skip


def entry(number: int, delay_ms: int, topic: str, deletes: bool) -> TimerEntry:
    text = f"{PROPERTY_DELETES}\x01{topic}+K\x02".encode() if deletes else b"a\x01b\x02"
    timed = TimedMessage(
        PutMessage("", 0, b"", text), TimerTarget(NOW_MS + delay_ms, topic, 0, hash(topic) % 99)
    )
    return (1000 * number, 200 + number), timed


def empty_wheel() -> TimerWheel:
    return TimerWheel(simulated_disk(), ROOT / "timerwheel", 1000)


def enqueue(entries: list[TimerEntry], position: int, wheel: TimerWheel) -> LinkedUnits:
    linked = link_units(entries, position, wheel.last_position, SETTINGS, NOW_MS)
    for slot_ms, chain in linked.chains.items():
        wheel.add(slot_ms, chain.last, chain.waiting, first=chain.first)
    return linked


@given(st.lists(WISHES, max_size=40), st.integers(0, 40))
def test_together_and_one_by_one_is_the_same(wishes: list[tuple[int, str, bool]], before: int) -> None:
    entries = [entry(number, *wish) for number, wish in enumerate(wishes)]
    one_by_one, together = empty_wheel(), empty_wheel()
    units: list[bytes] = []
    counts: Counter[str] = Counter()
    for number, each in enumerate(entries):
        linked = enqueue([each], number * TIMER_UNIT_BYTES, one_by_one)
        units += linked.units
        counts.update(linked.counts)
    first = enqueue(entries[:before], 0, together)
    rest = enqueue(entries[before:], len(first.units) * TIMER_UNIT_BYTES, together)
    assert first.units + rest.units == units
    first.counts.update(rest.counts)
    assert first.counts == counts
    assert together.count == one_by_one.count
    assert sorted(together.changes()) == sorted(one_by_one.changes())


def test_a_unit_says_what_its_message_asks_for() -> None:
    linked = link_units(
        [entry(0, 5000, "T", deletes=False), entry(1, 5000, "T", deletes=True)],
        52,
        lambda _: 7,
        SETTINGS,
        NOW_MS,
    )
    units = [TIMER_UNIT.unpack(unit) for unit in linked.units]
    assert [
        (previous, write_ms + delay_ms, size) for _, previous, _, write_ms, delay_ms, _, size, *_ in units
    ] == [
        (7, NOW_MS + 5000, 200),
        (52, NOW_MS + 5000, 201),
    ]
    assert [unit[2] for unit in units] == [TimerFlag.DEFAULT, TimerFlag.DEFAULT | TimerFlag.DELETE]
    assert linked.counts == {"T": 0}
    assert weight_of(TimerFlag.DEFAULT | TimerFlag.ROLL) == 1
