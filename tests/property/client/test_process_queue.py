"""The process queue against a dictionary: any sequence of puts, removals, takes and commits."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skylark.client.consumer.process_queue import NOTHING_HELD, ProcessQueue
from skylark.client.received_message import ReceivedMessage
from tests.unit.client.messages import QUEUE, received

OFFSETS = st.lists(st.integers(min_value=0, max_value=40), max_size=12)


class AgainstModel(RuleBasedStateMachine):
    """`held` and `taken` are what there should be; both are plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(QUEUE, now=0.0)
        self.held: dict[int, ReceivedMessage] = {}
        self.taken: dict[int, ReceivedMessage] = {}
        self.last = 0

    @rule(queue_offsets=OFFSETS)
    def put(self, queue_offsets: list[int]) -> None:
        fresh = [number for number in queue_offsets if number not in self.taken]
        messages = [received(number, b"x" * (number + 1)) for number in fresh]
        for message in messages:
            if message.queue_offset not in self.held:
                self.last = message.queue_offset
            self.held[message.queue_offset] = message
        self.queue.put(messages)

    @rule(queue_offsets=OFFSETS)
    def remove(self, queue_offsets: list[int]) -> None:
        messages = [received(number) for number in queue_offsets]
        if not self.held:
            expected = NOTHING_HELD
        else:
            for number in queue_offsets:
                self.held.pop(number, None)
            expected = min(self.held) if self.held else self.last + 1
        assert self.queue.remove(messages) == expected

    @rule(count=st.integers(min_value=1, max_value=8))
    def take(self, count: int) -> None:
        expected = sorted(self.held)[:count]
        got = self.queue.take(count)
        assert [message.queue_offset for message in got] == expected
        for number in expected:
            self.taken[number] = self.held.pop(number)

    @rule()
    def commit(self) -> None:
        assert self.queue.commit() == (max(self.taken) + 1 if self.taken else NOTHING_HELD)
        self.taken.clear()

    @rule()
    def rollback(self) -> None:
        self.queue.rollback()
        self.held |= self.taken
        self.taken.clear()

    @rule(random=st.randoms(use_true_random=False))
    def take_back(self, random: object) -> None:
        some = [message for message in self.taken.values() if random.random() < 0.5]  # type: ignore[attr-defined]
        self.queue.take_back(some)
        for message in some:
            self.held[message.queue_offset] = self.taken.pop(message.queue_offset)

    @invariant()
    def totals_agree(self) -> None:
        everything = [*self.held.values(), *self.taken.values()]
        assert self.queue.message_count == len(everything)
        assert self.queue.message_bytes == sum(len(message.body) for message in everything)
        assert self.queue.span == (max(self.held) - min(self.held) if self.held else 0)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
