"""A pull consumer's queue against a model: nothing is lost, doubled or committed too early."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.client.consumer.process_queue import MessageRows, PulledBatch, PulledQueue
from tests.unit.client.messages import QUEUE, received


class Polling(RuleBasedStateMachine):
    """Offsets 0, 1, 2, … of which some match; the user polls, iterates, seeks."""

    def __init__(self) -> None:
        super().__init__()
        self.held = PulledQueue(QUEUE)
        self.held.seek(0)
        self.fetched: list[int] = []  # offsets that were fetched and not handed out, in order
        self.seen: list[int] = []  # handed out since the last seek
        self.current: tuple[PulledBatch, int] | None = None

    @rule(matches=st.lists(st.booleans(), max_size=4))
    def fetch(self, matches: list[bool]) -> None:
        start = self.held.next_offset
        assert start is not None
        offsets = [start + n for n, matched in enumerate(matches) if matched]
        assert self.held.put(
            self.held.generation, MessageRows([received(n) for n in offsets]), start + len(matches)
        )
        self.fetched += offsets

    @rule()
    def late_answer(self) -> None:
        """An answer from before a seek changes nothing."""
        before = (self.held.next_offset, self.held.message_count)
        assert not self.held.put(self.held.generation - 1, MessageRows([received(7)]), 99)
        assert (self.held.next_offset, self.held.message_count) == before

    @precondition(lambda self: self.current is None and self.held.has_batch)
    @rule()
    def poll(self) -> None:
        self.held.finish()
        batch = self.held.take()
        self.held.hand_out_all(batch)
        self._saw([each.queue_offset for each in batch.messages])

    @precondition(lambda self: self.current is not None or self.held.has_batch)
    @rule()
    def iterate(self) -> None:
        if self.current is None:
            self.held.finish()
            self.current = (self.held.take(), 0)
        batch, index = self.current
        self.held.hand_out(batch, index)
        self._saw([batch.messages[index].queue_offset])
        self.current = (batch, index + 1) if index + 1 < len(batch.messages) else None

    def _saw(self, offsets: list[int]) -> None:
        assert offsets == self.fetched[: len(offsets)], "handed out in order, each once"
        del self.fetched[: len(offsets)]
        self.seen += offsets

    @rule(queue_offset=st.integers(0, 50))
    def seek(self, queue_offset: int) -> None:
        self.held.seek(queue_offset)
        self.fetched, self.seen, self.current = [], [], None

    @invariant()
    def positions_are_in_order(self) -> None:
        held = self.held
        assert held.done is not None
        assert held.position is not None
        assert held.next_offset is not None
        assert held.done <= held.position <= held.next_offset

    @invariant()
    def what_was_handed_out_and_no_more_is_before_the_position(self) -> None:
        assert self.held.position is not None
        assert all(seen < self.held.position for seen in self.seen)
        assert all(waiting >= self.held.position for waiting in self.fetched)

    @invariant()
    def who_was_given_everything_is_at_the_end(self) -> None:
        if not self.fetched:
            assert self.held.position == self.held.next_offset

    @invariant()
    def the_last_message_is_not_done_before_the_next_is_asked_for(self) -> None:
        assert self.held.done is not None
        if self.seen and self.fetched:
            assert self.held.done <= self.seen[-1]

    @invariant()
    def counts_are_right(self) -> None:
        in_hand = len(self.current[0].messages) - self.current[1] if self.current else 0
        assert self.held.message_count == len(self.fetched) - in_hand


Polling.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPolling = Polling.TestCase
