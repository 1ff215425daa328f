"""The checker sees each broken promise, and only those."""

from __future__ import annotations

import pytest

from skylark.torture.checker import Verdict, check
from skylark.torture.history import History, Outcome, Place, Queue, Receipt

QUEUE = Queue("broker-a", 0)


class Story:
    """A history told in order: `send` stores at the next offset, `receive` delivers."""

    def __init__(self) -> None:
        self.history = History()
        self._now_ns = 0

    def send(self, key: str = "k", outcome: Outcome = Outcome.OK, *, stored: bool = True) -> int:
        sequence = sum(send.key == key for send in self.history.sends.values())
        send = self.history.attempt(key, sequence)
        send.outcome = outcome
        if stored:
            place = Place(QUEUE, len(self.history.stored))
            self.history.stored[place] = send.number
            send.place = place if outcome is Outcome.OK else None
        return send.number

    def receive(self, number: int, queue_offset: int | None = None) -> None:
        self._now_ns += 1
        places = {stored: place for place, stored in self.history.stored.items()}
        place = places[number] if queue_offset is None else Place(QUEUE, queue_offset)
        self.history.receipts.append(Receipt(number, place, self._now_ns, "m"))

    def verdict(self, *, ordered: bool = False) -> Verdict:
        return check(self.history, ordered=ordered)

    def broken(self, *, ordered: bool = False) -> dict[str, int]:
        faults = self.verdict(ordered=ordered).faults
        return {name: finding.count for name, finding in faults.items() if finding.count}


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
    assert story.verdict().faults["lost"].examples == ("message 1, acknowledged at broker-a/0 offset 1",)


def test_messages_of_unknown_outcome_may_be_there_or_not(story: Story) -> None:
    story.send(outcome=Outcome.UNKNOWN, stored=False)
    story.receive(story.send(outcome=Outcome.UNKNOWN))
    assert story.broken() == {}
    assert story.verdict().recovered == 1


def test_what_had_failed_for_sure_or_was_never_sent_is_unexpected(story: Story) -> None:
    story.receive(story.send(outcome=Outcome.FAILED))
    story.receive(77, queue_offset=9)
    assert story.broken() == {"unexpected": 2}


def test_a_rolled_back_message_must_not_be_seen(story: Story) -> None:
    number = story.send()
    story.history.sends[number].rolled_back = True
    assert story.broken() == {}
    story.receive(number)
    assert story.broken() == {"rolled back but seen": 1}


def test_duplicates_are_counted_and_allowed(story: Story) -> None:
    number = story.send()
    for _ in range(3):
        story.receive(number)
    assert story.broken() == {}
    assert story.verdict().duplicated == 1


@pytest.mark.parametrize("seen_by", ["receipt", "acknowledgement"])
def test_a_place_that_had_two_messages_is_reuse(story: Story, seen_by: str) -> None:
    first, second = story.send(), story.send()
    story.receive(first)
    story.receive(second)
    if seen_by == "receipt":
        story.receive(second, queue_offset=0)
    else:
        story.history.sends[second].place = Place(QUEUE, 0)
    assert story.broken() == {"offset reused": 1}


def test_a_missing_offset_is_a_gap(story: Story) -> None:
    for _ in range(3):
        story.receive(story.send())
    del story.history.stored[Place(QUEUE, 1)]
    assert story.broken() == {"gap": 1}


def test_a_delayed_message_must_not_come_early(story: Story) -> None:
    number = story.send()
    story.history.sends[number].not_before_ns = 1000
    story.receive(number)
    assert story.broken() == {"early": 1}


def test_order_counts_for_first_deliveries_of_acknowledged_messages_of_a_key(story: Story) -> None:
    first, unsure, third = story.send(), story.send(outcome=Outcome.UNKNOWN), story.send()
    other = story.send("other")
    for number in (other, first, third, first, unsure):
        story.receive(number)
    assert story.broken(ordered=True) == {}
    fourth, fifth = story.send(), story.send()
    story.receive(fifth)
    story.receive(fourth)
    assert story.broken() == {}
    assert story.broken(ordered=True) == {"reordered": 1}


def test_committed_offsets_that_go_back_are_counted(story: Story) -> None:
    story.history.commits = [{QUEUE: 3}, {}, {QUEUE: 7}, {QUEUE: 5}, {QUEUE: 6}]
    verdict = story.verdict()
    assert verdict.commit_regressions == 1
    assert verdict.is_clean


def test_only_a_few_examples_are_kept(story: Story) -> None:
    for _ in range(30):
        story.send()
    finding = story.verdict().faults["lost"]
    assert (finding.count, len(finding.examples)) == (30, 10)
