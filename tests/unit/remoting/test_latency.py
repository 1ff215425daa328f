"""How long requests took."""

import pytest

from skylark.remoting import latency
from skylark.remoting.latency import ONEWAY, SUCCESS, UNKNOWN_CODE, Latencies


def test_requests_are_counted_by_kind_and_time() -> None:
    times = iter((10.0, 10.0009, 10.0042, 12.5))
    latencies = Latencies(lambda: next(times))
    latencies.count(310, 0, 10.0, 3)
    latencies.count(310, 0, 10.0)
    latencies.count(310, 0, 10.0)
    latencies.count(11, 0, 10.0, was_held=True, result=ONEWAY)
    at_once, held = latencies.table[310, 0, False, SUCCESS], latencies.table[11, 0, True, ONEWAY]
    assert len(latencies.table) == 2
    assert (at_once.counts[:3], at_once.count, at_once.sum) == ([4, 0, 1], 5, 4)
    assert (held.counts[8], held.count, held.sum) == (1, 1, 2500)


def test_a_clock_behind_the_loop_makes_no_time_of_its_own() -> None:
    latencies = Latencies(lambda: 9.0)
    latencies.count(310, 0, 10.0)
    assert latencies.table[310, 0, False, SUCCESS].sum == 0


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "KINDS_MAX", 3)
    latencies = Latencies(lambda: 0.0)
    for response_code in range(10):
        latencies.count(307, response_code, 0.0)
    latencies.count(307, 0, 0.0)
    assert len(latencies.table) == 4
    assert latencies.table[UNKNOWN_CODE, UNKNOWN_CODE, False, SUCCESS].count == 7
    assert latencies.table[307, 0, False, SUCCESS].count == 2
