"""The checker sees each broken promise, and only those."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.torture.checker import TortureVerdict, check
from skylark.torture.history import (
    BrokerQueue,
    History,
    OffsetSample,
    QueuePosition,
    Receipt,
    Send,
    SendOutcome,
)

QUEUE = BrokerQueue("broker-a", 0)
SECOND_NS = 10**9


class Story:
    """A history told in order: `send` stores at the next offset, `receive` delivers."""

    def __init__(self) -> None:
        self.history = History()
        self._now_ns = 0

    def send(self, key: str = "k", outcome: SendOutcome = SendOutcome.OK, *, stored: bool = True) -> int:
        sequence = sum(send.key == key for send in self.history.sends.values())
        send = Send(len(self.history.sends), key, sequence, outcome)
        self.history.sends[send.number] = send
        if stored:
            place = QueuePosition(QUEUE, len(self.history.stored))
            self.history.stored.append((place, send.number))
            send.place = place if outcome is SendOutcome.OK else None
        return send.number

    def receive(self, number: int, queue_offset: int | None = None) -> None:
        self._now_ns += 1
        places = {stored: place for place, stored in self.history.stored}
        place = places[number] if queue_offset is None else QueuePosition(QUEUE, queue_offset)
        self.history.receipts.append(Receipt(number, place, self._now_ns, "m"))

    def commit(self, second: int, queue_offset: int) -> None:
        self.history.commits.append(OffsetSample(second * SECOND_NS, {QUEUE: queue_offset}))

    def verdict(self, *, ordered: bool = False, stored_once: bool = True) -> TortureVerdict:
        return check(self.history, ordered=ordered, stored_once=stored_once)

    def broken(self, *, ordered: bool = False, stored_once: bool = True) -> dict[str, int]:
        return broken(self.verdict(ordered=ordered, stored_once=stored_once))


def broken(verdict: TortureVerdict) -> dict[str, int]:
    return {name: finding.count for name, finding in verdict.faults.items() if finding.count}


@pytest.fixture
def story() -> Story:
    return Story()


def test_what_was_acknowledged_and_received_is_clean(story: Story) -> None:
    for _ in range(3):
        story.receive(story.send())
    verdict = story.verdict(ordered=True)
    assert verdict.is_clean
    assert (verdict.attempted, verdict.acknowledged, verdict.received, verdict.duplicated) == (3, 3, 3, 0)


def test_an_acknowledged_message_that_nobody_got_is_lost(story: Story) -> None:
    story.receive(story.send())
    story.send()
    assert story.broken() == {"lost": 1}
    story.send(stored=False)
    place = "broker-a/0 offset 1"
    assert story.verdict().faults["lost"].examples == (
        f"message 1, acknowledged at {place}, stored at {place} but never delivered",
        "message 2, acknowledged at an unknown offset",
    )


def test_messages_of_unknown_outcome_may_be_there_or_not(story: Story) -> None:
    story.send(outcome=SendOutcome.UNKNOWN, stored=False)
    story.receive(story.send(outcome=SendOutcome.UNKNOWN))
    assert story.broken() == {}
    assert story.verdict().recovered == 1


def test_what_had_failed_for_sure_or_was_never_sent_is_unexpected(story: Story) -> None:
    story.receive(story.send(outcome=SendOutcome.FAILED))
    story.receive(77, queue_offset=9)
    assert story.broken() == {"unexpected": 2}


def test_what_is_stored_is_looked_at_even_if_nobody_got_it(story: Story) -> None:
    story.send(outcome=SendOutcome.FAILED)
    assert story.broken() == {"unexpected": 1}


@pytest.mark.parametrize("outcome", [SendOutcome.OK, SendOutcome.UNKNOWN])
@pytest.mark.parametrize("seen_by", ["member", "queue"])
def test_a_rolled_back_message_must_not_be_seen(story: Story, outcome: SendOutcome, seen_by: str) -> None:
    number = story.send(outcome=outcome, stored=False)
    story.history.sends[number].rolled_back = True
    assert story.broken() == {}
    assert story.verdict().rolled_back == 1
    if seen_by == "member":
        story.receive(number, queue_offset=0)
    else:
        story.history.stored.append((QueuePosition(QUEUE, 0), number))
    assert story.broken() == {"rolled back but seen": 1}


def test_duplicates_are_counted_and_allowed(story: Story) -> None:
    number = story.send()
    for _ in range(3):
        story.receive(number)
    assert story.broken() == {}
    assert (story.verdict().duplicated, story.verdict().deliveries) == (1, 3)


def test_a_message_that_lies_in_two_places_is_stored_twice(story: Story) -> None:
    number = story.send()
    story.receive(number)
    story.history.stored.append((QueuePosition(QUEUE, 1), number))
    assert story.broken() == {"stored twice": 1}
    assert story.broken(stored_once=False) == {}


@pytest.mark.parametrize("seen_by", ["receipt", "acknowledgement"])
def test_a_place_that_had_two_messages_is_reuse(story: Story, seen_by: str) -> None:
    first, second = story.send(), story.send()
    story.receive(first)
    story.receive(second)
    if seen_by == "receipt":
        story.receive(second, queue_offset=0)
    else:
        story.history.sends[second].place = QueuePosition(QUEUE, 0)
    assert story.broken() == {"offset reused": 1}


def test_a_missing_offset_is_a_gap(story: Story) -> None:
    for _ in range(3):
        story.receive(story.send())
    del story.history.stored[1]
    assert story.broken() == {"gap": 1}


def test_an_acknowledged_message_that_was_consumed_and_is_gone_from_the_end_is_a_gap(story: Story) -> None:
    for _ in range(3):
        story.receive(story.send())
    story.history.stored.pop()
    assert story.broken() == {"gap": 1}
    assert story.verdict().faults["gap"].examples == ("broker-a/0 offset 2",)


def test_a_delayed_message_must_not_come_early(story: Story) -> None:
    number = story.send()
    story.history.sends[number].not_before_ns = 1000
    story.receive(number)
    assert story.broken() == {"early": 1}


def test_order_counts_for_first_deliveries_of_acknowledged_messages_of_a_key(story: Story) -> None:
    first, unsure, third = story.send(), story.send(outcome=SendOutcome.UNKNOWN), story.send()
    other = story.send("other")
    for number in (other, first, third, first, unsure):
        story.receive(number)
    assert story.broken(ordered=True) == {}
    fourth, fifth = story.send(), story.send()
    story.receive(fifth)
    story.receive(fourth)
    assert story.broken() == {}
    assert story.broken(ordered=True) == {"reordered": 1}


def test_committed_offsets_that_go_back_by_seconds_are_counted(story: Story) -> None:
    for second, queue_offset in enumerate([3, 7, 5, 6, 6, 9]):
        story.commit(second, queue_offset)
    verdict = story.verdict()
    assert verdict.commit_regressions == 1
    assert verdict.is_clean


def test_committed_offsets_that_go_back_by_more_are_a_fault(story: Story) -> None:
    for second in range(31):
        story.commit(second, 100 + second)
    story.commit(31, 200)
    story.commit(32, 150)  # as after a crash
    for second in range(33, 90):
        story.commit(second, 160)
    assert story.broken() == {}
    story.commit(90, 149)
    finding = story.verdict().faults["commit regress"]
    assert finding.examples == ("broker-a/0 offset 149 was committed at 90.0 s, long after 160",)


def test_time_in_which_nobody_could_look_does_not_count(story: Story) -> None:
    for second in range(5):
        story.commit(second, 100 + second)
    story.commit(100, 101)  # a crash just after the last look, and a long way back
    assert story.broken() == {}
    for second in range(101, 140):
        story.commit(second, 200)
    story.commit(300, 199)
    assert story.broken() == {"commit regress": 1}


def test_only_a_few_examples_are_kept(story: Story) -> None:
    for _ in range(30):
        story.send()
    finding = story.verdict().faults["lost"]
    assert (finding.count, len(finding.examples)) == (30, 10)


# --- Laws ---

QUEUES = [BrokerQueue(broker, queue_id) for broker in ("broker-a", "broker-b") for queue_id in range(2)]


def lawful(seed: int, outcomes: list[SendOutcome]) -> History:
    """A history of servers that keep every promise: some messages come twice, some unknown ones come."""
    chance = random.Random(seed)
    history = History()
    ends = dict.fromkeys(QUEUES, 0)
    for number, outcome in enumerate(outcomes):
        key = chance.randrange(len(QUEUES))
        send = history.sends[number] = Send(number, f"k{key}", number, outcome)
        if outcome is SendOutcome.FAILED or (outcome is SendOutcome.UNKNOWN and chance.random() < 0.5):
            continue
        place = QueuePosition(QUEUES[key], ends[QUEUES[key]])
        ends[QUEUES[key]] += 1
        history.stored.append((place, number))
        send.place = place if outcome is SendOutcome.OK else None
        for _ in range(chance.randint(1, 2)):
            history.receipts.append(Receipt(number, place, len(history.receipts), "m"))
        history.commits.append(OffsetSample(number * SECOND_NS, dict(ends)))
    return history


outcomes = st.lists(
    st.sampled_from([SendOutcome.OK, SendOutcome.OK, SendOutcome.UNKNOWN, SendOutcome.FAILED]), max_size=40
)


@given(st.integers(), outcomes)
def test_servers_that_keep_their_promises_are_clean(seed: int, outcomes: list[SendOutcome]) -> None:
    verdict = check(lawful(seed, outcomes), ordered=True)
    assert broken(verdict) == {}
    assert verdict.acknowledged == outcomes.count(SendOutcome.OK)
    assert verdict.commit_regressions == 0


@given(st.integers(), outcomes.filter(lambda each: SendOutcome.OK in each), st.data())
def test_an_acknowledged_message_that_is_dropped_is_always_lost(
    seed: int, outcomes: list[SendOutcome], data: st.DataObject
) -> None:
    history = lawful(seed, outcomes)
    dropped = data.draw(st.sampled_from([send for send in history.sends.values() if send.must_arrive]))
    history.receipts = [receipt for receipt in history.receipts if receipt.number != dropped.number]
    assert broken(check(history, ordered=True)) == {"lost": 1}
    history.stored = [(place, number) for place, number in history.stored if number != dropped.number]
    assert broken(check(history, ordered=True)) == {"lost": 1, "gap": 1}


@given(st.integers(), outcomes.filter(lambda each: SendOutcome.OK in each), st.data())
def test_a_place_that_is_given_out_again_is_always_seen(
    seed: int, outcomes: list[SendOutcome], data: st.DataObject
) -> None:
    history = lawful(seed, outcomes)
    victim = data.draw(st.sampled_from([send for send in history.sends.values() if send.must_arrive]))
    number = len(history.sends)
    history.sends[number] = Send(number, "other", 0, SendOutcome.OK, victim.place)
    assert victim.place is not None
    history.receipts.append(Receipt(number, victim.place, 0, "m"))
    assert broken(check(history)) == {"offset reused": 1}
