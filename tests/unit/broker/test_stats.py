"""Counters: what they grew by in the last minute, hour and day, and what a day began with."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.broker.stats import STEP_S, BrokerStats, Counter, Growth

MIDNIGHT_MS = int(datetime(2026, 11, 15).timestamp() * 1000)
NOON_MS = MIDNIGHT_MS - 12 * 3_600_000


def stepped(counter: Counter, steps: int, *, start: float = 0.0, count: int = 1) -> float:
    """Count and step, every 10 s; returns the time of the last step."""
    now = start
    for _ in range(steps):
        counter.add(count, count * 100)
        now += STEP_S
        counter.step(now)
    return now


def test_before_the_first_step_all_that_was_counted_is_of_the_last_minute() -> None:
    counter = Counter()
    counter.add(3, 300)
    assert counter.last_minute(5.0) == Growth(3, 0.0, 3.0)
    assert counter.rate_within(5.0, 10.0) is None


def test_the_last_minute_is_what_came_since_six_steps() -> None:
    counter = Counter()
    now = stepped(counter, 100, count=2)
    assert counter.last_minute(now) == Growth(12, 0.2, 2.0)
    assert counter.last_minute(now, bytes_wanted=True) == Growth(1200, 20.0, 200.0)
    assert counter.rate(now) == 0.2


def test_nothing_new_is_no_growth() -> None:
    counter = Counter()
    now = stepped(counter, 10)
    for _ in range(7):
        now += STEP_S
        counter.step(now)
    assert counter.last_minute(now) == Growth(0, 0.0, 0.0)
    assert counter.last_hour(now).sum == 10


def test_an_hour_and_a_day_reach_further_back() -> None:
    counter = Counter()
    now = stepped(counter, 25 * 360)
    hour, day = counter.last_hour(now), counter.last_day(now)
    assert 360 <= hour.sum <= 360 + 60
    assert 24 * 360 <= day.sum <= 25 * 360
    assert hour.per_second == pytest.approx(0.1, rel=0.01)
    assert day.per_second == pytest.approx(0.1, rel=0.01)


@given(st.lists(st.integers(0, 5), max_size=60), st.sampled_from([10.0, 60.0, 600.0]))
def test_a_rate_is_of_a_window_that_is_long_enough(counts: list[int], window_s: float) -> None:
    counter, now, log = Counter(), 0.0, [(-STEP_S, 0)]
    for count in counts:
        counter.add(count, 0)
        counter.step(now)
        log.append((now, counter.count))
        now += STEP_S
    rate = counter.rate_within(now, window_s)
    candidates = [(counter.count - before) / (now - at) for at, before in log if now - at >= window_s]
    assert rate is None or any(rate == pytest.approx(candidate) for candidate in candidates)
    assert counts == [] or window_s > 60 or (rate is None) == (not candidates)


def test_calls_have_a_rate_of_their_own() -> None:
    counter = Counter()
    now = stepped(counter, 10, count=32)
    assert counter.rate_within(now, 10.0) == 3.2
    assert counter.rate_within(now, 10.0, of_calls=True) == 0.1


def test_a_new_day_begins_with_the_totals_of_then() -> None:
    stats = BrokerStats()
    stats.puts.add(5, 0)
    stats.step(0.0, NOON_MS)
    assert (stats.this_morning.puts, stats.yesterday_morning.puts) == (0, 0)
    stats.gets.add(2, 0)
    stats.step(10.0, MIDNIGHT_MS)
    assert (stats.this_morning, stats.yesterday_morning.puts) == ((5, 2), 0)
    stats.puts.add(1, 0)
    stats.step(20.0, MIDNIGHT_MS + 10_000)
    assert stats.this_morning == (5, 2)
    stats.step(30.0, MIDNIGHT_MS + 86_400_000)
    assert (stats.this_morning, stats.yesterday_morning) == ((6, 2), (5, 2))


def test_what_is_gone_is_forgotten() -> None:
    stats = BrokerStats()
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        stats.count_gets(topic, group, 1, 1)
        stats.count_send_back(topic, group)
    stats.forget_topic("T")
    assert stats.group_gets.keys() == stats.send_backs.keys() == {("U", "G")}
    stats.forget_group("G")
    assert stats.group_gets == stats.send_backs == {}
    assert stats.gets.count == 3, "totals stay"
