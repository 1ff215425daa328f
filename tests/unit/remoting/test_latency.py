"""How long requests took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting import latency
from skylark.remoting.latency import ONEWAY, SUCCESS, UNKNOWN_CODE, RequestLatencies


def test_requests_are_counted_by_kind_and_time() -> None:
    times = iter((10.0, 10.0009, 10.0042, 12.5))
    latencies = RequestLatencies(lambda: next(times))
    latencies.count(310, 0, 10.0, 3)
    latencies.count(310, 0, 10.0)
    latencies.count(310, 0, 10.0)
    latencies.count(11, 0, 10.0, was_held=True, result=ONEWAY)
    at_once, held = latencies.table[310, 0, False, SUCCESS], latencies.table[11, 0, True, ONEWAY]
    assert len(latencies.table) == 2
    assert (at_once.counts[:3], at_once.count, at_once.sum) == ([4, 0, 1], 5, 4)
    assert (held.counts[8], held.count, held.sum) == (1, 1, 2500)


def test_a_clock_behind_the_loop_makes_no_time_of_its_own() -> None:
    latencies = RequestLatencies(lambda: 9.0)
    latencies.count(310, 0, 10.0)
    assert latencies.table[310, 0, False, SUCCESS].sum == 0


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "KINDS_MAX", 3)
    latencies = RequestLatencies(lambda: 0.0)
    for response_code in range(10):
        latencies.count(307, response_code, 0.0)
    latencies.count(307, 0, 0.0)
    assert len(latencies.table) == 4
    assert latencies.table[UNKNOWN_CODE, UNKNOWN_CODE, False, SUCCESS].count == 7
    assert latencies.table[307, 0, False, SUCCESS].count == 2


@given(st.lists(st.tuples(st.sampled_from((310, 11)), st.integers(-5_000, 5_000_000), st.integers(1, 9))))
def test_the_short_way_counts_as_the_long_one(answered: list[tuple[int, int, int]]) -> None:
    now_us = 0
    short, long = RequestLatencies(lambda: now_us / 1e6), RequestLatencies(lambda: now_us / 1e6)
    for code, now_us, times in answered:  # noqa: B007 (read by the clocks)
        short.count_successes(code, 0.0, times)
        long.count(code, 0, 0.0, times)
    assert {kind: (each.counts, each.sum) for kind, each in short.table.items()} == {
        kind: (each.counts, each.sum) for kind, each in long.table.items()
    }


def test_both_ways_count_in_one_place() -> None:
    latencies = RequestLatencies(lambda: 0.0)
    latencies.count(310, 0, 0.0)
    latencies.count_successes(310, 0.0, 2)
    assert {kind: each.count for kind, each in latencies.table.items()} == {(310, 0, False, SUCCESS): 3}
