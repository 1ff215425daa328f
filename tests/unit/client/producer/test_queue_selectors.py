"""Which queue a message goes to."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.producer.queue_selectors import (
    LatencyTable,
    RoundRobin,
    avoid_ms,
    by_hash,
    by_random,
    hash_index,
)
from skylark.model.java import java_hash
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(4)]
MESSAGE = Message("t", b"x")


@pytest.mark.parametrize(
    ("argument", "index"),
    [("order-1001", 3), ("order-1002", 0), ("order-1003", 1), ("", 0), (7, 3), (-7, 3), (True, 3), (False, 1),
     (1 << 32, 1), ((1 << 32) + 5, 0)],
)  # fmt: skip
def test_a_hash_is_java_s(argument: object, index: int) -> None:
    assert hash_index(argument, 4) == index


@given(st.text(), st.integers(1, 1000))
def test_by_hash_is_the_truncated_remainder(text: str, number: int) -> None:
    queues = [MessageQueue("t", "a", each) for each in range(number)]
    remainder = abs(java_hash(text)) % number
    assert by_hash(queues, MESSAGE, text).queue_id == remainder


def test_by_random_reaches_all_queues() -> None:
    assert {by_random(QUEUES, MESSAGE, None) for _ in range(1000)} == set(QUEUES)


@given(st.integers(0, (1 << 31) - 1), st.integers(1, 20), st.integers(1, 200))
def test_queues_take_turns_from_any_start(start: int, number: int, sends: int) -> None:
    queues = [MessageQueue("t", "a", each) for each in range(number)]
    robin = RoundRobin(start)
    counts = Counter(robin.next(queues) for _ in range(sends))
    if start + sends < 1 << 31:
        assert max(counts.values()) - min(counts.get(queue, 0) for queue in queues) <= 1


def test_two_robins_start_at_different_places() -> None:
    assert len({RoundRobin().next(QUEUES) for _ in range(200)}) > 1


def test_the_broker_that_has_just_failed_is_avoided_if_there_is_another() -> None:
    robin = RoundRobin(0)
    assert {robin.avoiding(QUEUES, "a", None, 0).broker_name for _ in range(100)} == {"b"}
    assert {robin.avoiding(QUEUES[:4], "a", None, 0).broker_name for _ in range(100)} == {"a"}
    chosen = [robin.avoiding(QUEUES, None, None, 0) for _ in range(16)]
    assert set(Counter(chosen).values()) == {2}


def test_with_the_table_unavailable_brokers_are_avoided_before_unreachable_ones() -> None:
    table = LatencyTable()
    robin = RoundRobin(0)
    table.failed("a", 0.0, is_reachable=True)
    assert {robin.avoiding(QUEUES, None, table, 1.0).broker_name for _ in range(50)} == {"b"}
    table.failed("b", 0.0, is_reachable=False)
    assert {robin.avoiding(QUEUES, None, table, 1.0).broker_name for _ in range(50)} == {"a"}
    assert {robin.avoiding(QUEUES, "a", table, 1.0).broker_name for _ in range(200)} == {"a", "b"}
    assert {robin.avoiding(QUEUES, None, table, 11.0).broker_name for _ in range(200)} == {"a", "b"}


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (600, 2000), (1800, 5000), (3000, 6000),
     (5000, 10_000), (10_000, 10_000), (14_999, 10_000), (15_000, 30_000), (99_999, 30_000)],
)  # fmt: skip
def test_the_slower_the_longer(latency_ms: int, avoided_ms: int) -> None:
    assert avoid_ms(latency_ms) == avoided_ms


def test_sf_065_a_broker_that_failed_is_avoided_for_ten_seconds_and_then_used_again() -> None:
    table = LatencyTable()
    assert table.is_available("a", 0)
    assert table.is_reachable("a")
    table.failed("a", 100.0, is_reachable=False)
    assert not table.is_available("a", 109.9)
    assert table.is_available("a", 110.0)
    assert not table.is_reachable("a")
    assert table.is_available("b", 100.0)


def test_a_good_answer_makes_it_reachable_but_does_not_shorten_the_time() -> None:
    table = LatencyTable()
    table.failed("a", 100.0, is_reachable=False)
    table.answered("a", 10, 101.0)
    assert table.is_reachable("a")
    assert not table.is_available("a", 102.0)
    table.answered("a", 20_000, 103.0)
    assert not table.is_available("a", 132.9)
    assert table.is_available("a", 133.0)
