"""Parts of the server that need no connection: the log of rejected connections and the rate limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.remoting.server import REJECTIONS_LOG_INTERVAL_S, RefusedConnections, RequestRate, TokenBucket


def test_one_line_for_all_of_a_while(caplog: pytest.LogCaptureFixture) -> None:
    refused = RefusedConnections()
    for number in range(500):
        refused.add(f"10.0.0.1:{number}", "2 are open", 100 + number / 1000)
    assert [record.getMessage() for record in caplog.records] == [
        "connections refused count=1 last=10.0.0.1:0 reason=2 are open"
    ]
    refused.add("10.0.0.2:1", "2 are open", 100 + REJECTIONS_LOG_INTERVAL_S)
    assert caplog.records[-1].getMessage() == (
        "connections refused count=500 last=10.0.0.2:1 reason=2 are open"
    )
    assert len(caplog.records) == 2


def test_a_burst_then_the_rate() -> None:
    rate = RequestRate(per_second=10, burst=5)
    bucket = TokenBucket(rate, 100.0)
    assert bucket.take(3, rate, 100.0) == 3
    assert bucket.take(3, rate, 100.0) == 2
    assert bucket.take(1, rate, 100.05) == 0
    assert bucket.take(9, rate, 100.25) == 2
    assert bucket.take(9, rate, 999.0) == 5


def test_parts_of_a_token_add_up() -> None:
    rate = RequestRate(per_second=1, burst=1)
    bucket = TokenBucket(rate, 0.0)
    assert bucket.take(1, rate, 0.0) == 1
    assert [bucket.take(1, rate, step / 4) for step in range(1, 9)] == [0, 0, 0, 1, 0, 0, 0, 1]


def test_the_rate_may_change() -> None:
    slow, fast = RequestRate(1, 10), RequestRate(1000, 100)
    bucket = TokenBucket(slow, 0.0)
    assert bucket.take(10, slow, 0.0) == 10
    assert bucket.take(100, fast, 1.0) == 100
    bucket.take(1, fast, 2.0)
    assert bucket.take(1000, slow, 2.0) == 10


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    rate = RequestRate(1000, 1)
    bucket = TokenBucket(rate, 5.0)
    assert bucket.take(1, rate, 5.0) == 1
    assert bucket.take(1, rate, 4.0) == 0
    assert bucket.take(1, rate, 4.0) == 0


@given(
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), min_size=1, max_size=50),
)
def test_never_more_than_burst_and_rate_allow(
    per_second: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    rate = RequestRate(per_second, burst)
    bucket = TokenBucket(rate, 0.0)
    now_ms = taken = 0
    for pause_ms, wanted in steps:
        now_ms += pause_ms
        got = bucket.take(wanted, rate, now_ms / 1000)
        assert 0 <= got <= wanted
        taken += got
    assert taken <= burst + now_ms * per_second / 1000 + 1e-6


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 300))
def test_who_keeps_to_the_rate_is_never_refused(per_second: int, burst: int, requests: int) -> None:
    rate = RequestRate(per_second, burst)
    bucket = TokenBucket(rate, 0.0)
    assert all(bucket.take(1, rate, 1.000001 * number / per_second) == 1 for number in range(requests))
