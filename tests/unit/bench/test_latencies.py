"""Latencies: percentiles against sorted lists, merging, the format of HdrHistogram's other tools."""

from __future__ import annotations

import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.bench.latencies import CURVE, DIGITS, HIGHEST_NS, LOWEST_NS, LatencyHistogram

NANOSECONDS = st.integers(1, HIGHEST_NS)
MANY = st.lists(NANOSECONDS, min_size=1, max_size=200)
FEW = settings(max_examples=30)
PERCENTS = st.sampled_from([1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0])


def of(values: list[int]) -> LatencyHistogram:
    return LatencyHistogram((value, 1) for value in values)


def tolerance(nanoseconds: int) -> float:
    """Three digits, and tenths of microseconds."""
    return nanoseconds / 1000 + 50


@FEW
@given(MANY, PERCENTS)
def test_a_percentile_is_the_value_in_the_sorted_list(values: list[int], percent: float) -> None:
    rank = max(int(percent * len(values) / 100 + 0.5), 1)
    expected = sorted(values)[rank - 1]
    assert abs(of(values).at_percent(percent) * 1000 - expected) <= tolerance(expected)


@FEW
@given(MANY)
def test_mean_maximum_and_count(values: list[int]) -> None:
    found = of(values).percentiles()
    mean = sum(values) / len(values)
    assert found.count == len(values)
    assert abs(found.max * 1000 - max(values)) <= tolerance(max(values))
    assert abs(found.mean * 1000 - mean) <= 2 * tolerance(round(mean)) + 1
    assert found.p50 <= found.p90 <= found.p99 <= found.p999 <= found.p9999
    assert found.p9999 * 1000 <= max(values) + tolerance(max(values))


@FEW
@given(MANY, MANY)
def test_merged_is_the_same_as_recorded_together(some: list[int], others: list[int]) -> None:
    merged = of(some)
    merged.add(of(others))
    assert merged.percentiles().p99 == of(some + others).percentiles().p99
    assert len(merged) == len(some) + len(others)


@FEW
@given(MANY)
def test_the_text_holds_everything(values: list[int]) -> None:
    latencies = of(values)
    again = LatencyHistogram.decode(latencies.encode())
    assert len(again) == len(latencies)
    assert [again.at_percent(percent) for percent in (50, 99, 100)] == [
        latencies.at_percent(percent) for percent in (50, 99, 100)
    ]


@FEW
@given(MANY)
def test_hdrhistogram_reads_our_text_and_we_read_its(values: list[int]) -> None:
    reference = HdrHistogram(LOWEST_NS, HIGHEST_NS, DIGITS)
    for value in values:
        reference.record_value(value)
    latencies = of(values)
    decoded = HdrHistogram.decode(latencies.encode())
    for percent in CURVE:
        assert decoded.get_value_at_percentile(percent) == reference.get_value_at_percentile(percent)
    assert latencies.curve() == [
        (percent, round(reference.get_value_at_percentile(percent) / 1000, 1)) for percent in CURVE
    ]
    again = LatencyHistogram.decode(reference.encode().decode())
    assert again.percentiles() == latencies.percentiles()


@pytest.mark.parametrize("text", ["", "AAAA", "HISTFAAAAA54", "not base64 at all"])
def test_a_text_that_is_no_histogram_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"histogram|base64|padding"):
        LatencyHistogram.decode(text)


@FEW
@given(MANY)
def test_the_curve_never_falls(values: list[int]) -> None:
    points = of(values).curve()
    assert points == sorted(points)
    assert points[0][0] == 0
    assert points[-1][0] > 99.99


def test_what_is_out_of_range_counts_as_its_end() -> None:
    latencies = of([-5, 0, HIGHEST_NS * 2])
    assert len(latencies) == 3
    assert latencies.at_percent(100) * 1000 == pytest.approx(HIGHEST_NS, rel=0.001)


def test_nothing_recorded_is_no_latency() -> None:
    empty = LatencyHistogram().percentiles()
    assert (empty.count, empty.p50, empty.p999, empty.max) == (0, 0.0, 0.0, 0.0)
    assert LatencyHistogram().curve() == []
