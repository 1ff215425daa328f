"""Loads: their limits, their shares, when frames are due, and what differing counts are called."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.bench.latencies import LatencyHistogram
from skylark.bench.load import IN_FLIGHT_MAX, BadLoad, Counted, Load, discrepancies
from skylark.bench.transaction import OpenLoopSchedule

LOAD = Load(address="127.0.0.1:10911")
COUNTED = Counted(
    seconds=2.0, sent=10, acknowledged=10, refused=0, refusal_code=0, unexpected=0, unsent=0, answers=8,
    records=0, client_cpu_us=4.0, latencies=LatencyHistogram([(1000, 8)]), series=[(1.0, 4), (2.0, 8)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topics": 0}, "invalid topics 0; choose 1 to 10000"),
        ({"body_bytes": (4 << 20) + 1}, "invalid body_bytes 4194305"),
        ({"in_flight": 0}, "invalid in_flight 0"),
        ({"in_flight": IN_FLIGHT_MAX + 1}, "invalid in_flight"),
        ({"processes": 2, "in_flight": 1}, "invalid in_flight 1; choose 2 to"),
        ({"seconds": 0}, "seconds must be positive"),
        ({"rate": -1.0}, "rate -1.0: seconds must be positive, the others not negative"),
        ({"is_stamped": True, "body_bytes": 7}, "at least 8"),
    ],
)
def test_a_load_that_cannot_be_made_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadLoad, match=words):
        replace(LOAD, **changes)


@given(
    processes=st.integers(1, 8),
    in_flight=st.integers(8, 1000),
    rate=st.floats(0, 1e6),
    messages_max=st.integers(0, 10_000),
)
def test_shares_are_the_whole_load(processes: int, in_flight: int, rate: float, messages_max: int) -> None:
    load = replace(LOAD, processes=processes, in_flight=in_flight, rate=rate, messages_max=messages_max)
    shares = load.shares()
    assert len(shares) == processes
    assert sum(share.in_flight for share in shares) == in_flight
    assert math.isclose(sum(share.rate for share in shares), rate, abs_tol=1e-6)
    assert messages_max <= sum(share.messages_max for share in shares) < messages_max + processes


def test_names_and_frames() -> None:
    assert LOAD.topic_names == ["BenchmarkTest"]
    assert replace(LOAD, topic="t", topics=3).topic_names == ["t-0", "t-1", "t-2"]
    batches = replace(LOAD, batch=32, rate=640.0, messages_max=33)
    assert (batches.frames_per_s, batches.frames_max) == (20.0, 2)


@given(rate=st.floats(0.1, 1e6), numbers=st.lists(st.integers(0, 10**6), min_size=2, max_size=20))
def test_an_open_loop_is_evenly_spaced_and_never_waits(rate: float, numbers: list[int]) -> None:
    pace = OpenLoopSchedule(start=100.0, rate=rate)
    for number in numbers:
        assert pace.due(number) == pytest.approx(100.0 + number / rate)
    assert [pace.due(n) for n in sorted(numbers)] == sorted(pace.due(n) for n in numbers)


@given(rate=st.floats(0.1, 1e5), seconds=st.floats(0, 100))
def test_as_many_are_due_as_lie_before_the_moment(rate: float, seconds: float) -> None:
    pace = OpenLoopSchedule(start=8.0, rate=rate)
    moment = 8.0 + seconds
    count = pace.count_until(moment)
    assert count == 0 or pace.due(count - 1) < moment
    assert pace.due(count) >= moment


def test_a_closed_loop_is_always_due() -> None:
    assert OpenLoopSchedule(start=5.0, rate=0.0).due(10) < 0


def test_several_clients_are_one() -> None:
    slow = replace(
        COUNTED, seconds=3.0, latencies=LatencyHistogram([(5000, 2)]), series=[(1.1, 1)], refusal_code=2
    )
    both = Counted.together([COUNTED, slow])
    assert (both.seconds, both.sent, both.answers, both.client_cpu_us) == (3.0, 20, 16, 8.0)
    assert (len(both.latencies), both.latencies.at_percent(100)) == (10, 5.0)
    assert both.series == [(1.1, 5)]
    assert both.refusal_code == 2


@pytest.mark.parametrize(
    ("changes", "stored", "words"),
    [
        ({}, 10, []),
        ({}, 9, ["9 messages stored, expected 10"]),
        ({"acknowledged": 9}, 10, ["9 of 10 acknowledged"]),
        ({"refused": 3, "refusal_code": 2}, 10, ["3 refused, the last with code 2"]),
        ({"unexpected": 1}, 10, ["1 unexpected replies, or replies with wrong records"]),
        ({"unsent": 7}, 10, ["rate not reached: 7 messages were due and not sent"]),
    ],
)
def test_every_difference_is_a_sentence(changes: dict[str, Any], stored: int, words: list[str]) -> None:
    assert discrepancies(replace(COUNTED, **changes), 10, stored) == words
