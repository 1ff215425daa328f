"""Rates of a consumer, over the last minute or as long as it runs."""

from __future__ import annotations

from skylark.client.consumer.consume_rates import SAMPLE_INTERVAL_MS, ConsumeRates


def test_sf_037_rates_over_the_last_minute() -> None:
    stats = ConsumeRates()
    assert stats.status("T", 0.0).consume_ok_tps == 0
    now = 0.0
    for _ in range(30):
        for _ in range(10):
            now += 1
            stats.pulled("T", 32, 4.0, now)
            stats.ran("T", 30, 2, 8, 80.0, now)
        stats.take_sample(now)
    status = stats.status("T", now)
    assert round(status.pull_tps) == 32
    assert round(status.consume_ok_tps) == 30
    assert round(status.consume_failed_tps) == 2
    assert (status.pull_rt, status.consume_rt) == (4.0, 10.0)
    assert status.consume_failed_msgs == 600
    assert SAMPLE_INTERVAL_MS == 10_000


def test_times_of_the_hour_where_the_minute_has_none() -> None:
    stats = ConsumeRates()
    stats.ran("T", 1, 0, 1, 7.0, 1.0)
    for now in range(10, 200, 10):
        stats.take_sample(float(now))
    status = stats.status("T", 200.0)
    assert (status.consume_ok_tps, status.consume_rt) == (0.0, 7.0)
