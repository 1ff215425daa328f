"""The process queue against a dictionary: any sequence of puts, removals, takes and commits."""

from __future__ import annotations

from itertools import chain

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.client.consumer.process_queue import NOTHING_HELD, ProcessQueue
from skylark.client.received_message import PulledMessages, ReceivedMessage, decode_pull
from tests.unit.client.messages import QUEUE, received, record

OFFSETS = st.lists(st.integers(min_value=0, max_value=40), max_size=12)


def body(queue_offset: int) -> bytes:
    """Neighbours have the same size, most of them."""
    return b"x" * (queue_offset // 10 + 1)


class AgainstModel(RuleBasedStateMachine):
    """`held` and `taken` are what there should be; both are plain dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(QUEUE, now=0.0)
        self.held: dict[int, ReceivedMessage] = {}
        self.taken: dict[int, ReceivedMessage] = {}
        self.last = 0
        self.pulls: list[PulledMessages] = []

    @rule(queue_offsets=OFFSETS)
    def put(self, queue_offsets: list[int]) -> None:
        fresh = [number for number in queue_offsets if number not in self.taken]
        messages = [received(number, body(number)) for number in fresh]
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

    @rule(count=st.integers(min_value=1, max_value=9), gap=st.integers(min_value=0, max_value=2))
    def put_pull(self, count: int, gap: int) -> None:
        """Behind all others, as the reply to a pull; `finish_pull` removes it by one call."""
        first = max((self.last, *self.held, *self.taken)) + 1 + gap
        offsets = range(first, first + count)
        pulled = decode_pull(b"".join(record(number, body(number)) for number in offsets), QUEUE)
        self.queue.put(pulled)
        self.pulls.append(pulled)
        self.held |= {message.queue_offset: message for message in pulled}
        self.last = offsets[-1]

    @precondition(lambda self: self.pulls)
    @rule(number=st.integers(min_value=0, max_value=9), count=st.integers(min_value=1, max_value=2))
    def finish_pull(self, number: int, count: int) -> None:
        expected, batches = NOTHING_HELD, []
        for _ in range(min(count, len(self.pulls))):
            batches.append(self.pulls.pop(number % len(self.pulls)))
        if self.held:
            for message in chain.from_iterable(batches):
                self.held.pop(message.queue_offset, None)
            expected = min(self.held) if self.held else self.last + 1
        assert self.queue.remove(*batches) == expected

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
