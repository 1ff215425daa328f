"""Popped batches: the committed offset never passes what is neither acknowledged nor on disk."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.broker.pop.popped_batches import PoppedBatch, PoppedBatches

LANE = ("T", "G", 0)


def batch(start: int, offsets: list[int], next_offset: int, pop_time: int) -> PoppedBatch:
    return PoppedBatch("T", "G", 0, start, offsets, pop_time, 1000, 0, next_offset, (1 << len(offsets)) - 1)


class PopMachine(RuleBasedStateMachine):
    """One queue; offsets are popped, skipped, acknowledged, replaced by records, and flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.committed = 0
        self.position = 0
        self.now = 0
        self.log_end = 0
        self.flushed = 0
        self.batches = PoppedBatches(self.commit)
        self.open: dict[int, int] = {}
        """Messages that are not acknowledged: offset to the log's end of what replaces it, -1 for nothing."""
        self.held: list[PoppedBatch] = []

    def commit(self, topic: str, group: str, queue_id: int, queue_offset: int) -> None:
        assert (topic, group, queue_id) == LANE
        self.committed = queue_offset

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=4), tail=st.integers(0, 2))
    def pop(self, gaps: list[int], tail: int) -> None:
        start = self.batches.next_offset(LANE)
        start = self.committed if start is None else start
        assert start == self.position
        offsets, at = [], start - 1
        for gap in gaps:
            at += gap
            offsets.append(at)
        self.now += 1
        popped = batch(start, offsets, at + 1 + tail, self.now)
        assert self.batches.add(popped, self.now + 5)
        assert not self.batches.add(popped, self.now)
        self.position = at + 1 + tail
        self.open |= dict.fromkeys(offsets, -1)
        self.held.append(popped)

    @rule(count=st.integers(1, 3))
    def skip(self, count: int) -> None:
        self.position += count
        self.batches.skip(LANE, self.position)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        popped = data.draw(st.sampled_from(self.held))
        offsets = data.draw(st.lists(st.sampled_from(list(popped.offsets)), unique=True))
        known = self.batches.acknowledge(LANE, popped.start_offset, popped.pop_time, [*offsets, 10_000])
        assert known == (not popped.is_closed or known)
        if known:
            for each in offsets:
                self.open.pop(each, None)

    @rule(later=st.integers(0, 6), fails=st.booleans())
    def replace_due(self, later: int, fails: bool) -> None:
        self.now += later
        for popped in self.batches.take_due(self.now):
            if fails:
                self.batches.retry(popped, self.now + 1)
                continue
            self.log_end += 10
            for each in popped.open_offsets:
                assert each in self.open
                self.open[each] = self.log_end
            self.batches.replaced(popped, self.log_end, is_redelivered=False)

    @rule(part=st.integers(0, 100))
    def flush(self, part: int) -> None:
        self.flushed = max(self.flushed, self.log_end * part // 100)
        self.batches.commit_durable(self.flushed)

    @invariant()
    def nothing_is_lost(self) -> None:
        for each, end in self.open.items():
            assert each >= self.committed or 0 <= end <= self.flushed, (each, end, self.committed)

    @invariant()
    def memory_is_for_what_is_open(self) -> None:
        assert len(self.batches) == sum(not popped.is_closed for popped in self.held)

    def teardown(self) -> None:
        for popped in self.batches.take_all():
            self.batches.replaced(popped, self.log_end, is_redelivered=True)
        self.batches.commit_durable(self.log_end)
        assert self.committed == self.position
        assert self.batches.held_lanes == len(self.batches) == 0


PopMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestPopMachine = PopMachine.TestCase


def test_a_reset_forgets_the_queue_but_not_its_batches() -> None:
    commits: list[int] = []
    batches = PoppedBatches(lambda *place: commits.append(place[-1]))
    batches.add(batch(0, [0, 1], 2, 1), 10)
    batches.forget(LANE)
    assert batches.next_offset(LANE) is None
    batches.add(batch(0, [0], 1, 2), 10)
    assert batches.acknowledge(LANE, 0, 1, [0, 1])
    assert commits == []
    assert batches.acknowledge(LANE, 0, 2, [0])
    assert commits == [1]


def test_messages_in_flight_are_counted() -> None:
    batches = PoppedBatches(lambda *_: None)
    batches.add(batch(0, [0, 1, 2], 3, 1), 10)
    assert batches.in_flight == {("T", "G"): 3}
    batches.acknowledge(LANE, 0, 1, [0, 0])
    assert batches.in_flight == {("T", "G"): 2}
    [due] = batches.take_due(10)
    batches.replaced(due, 5, is_redelivered=False)
    assert batches.in_flight == {("T", "G"): 2}
    assert not batches.acknowledge(LANE, 0, 1, [1])
    batches.settled_elsewhere("T", "G", 2)
    assert batches.in_flight == {}


def test_everything_is_forgotten_with_the_role() -> None:
    batches = PoppedBatches(lambda *_: None)
    batches.add(batch(0, [0], 1, 1), 10)
    batches.clear()
    assert (len(batches), batches.held_lanes, batches.take_due(99), batches.in_flight) == (0, 0, [], {})
