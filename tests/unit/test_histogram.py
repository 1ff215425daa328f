"""Values sorted into ranges."""

from hypothesis import given
from hypothesis import strategies as st

from skylark.histogram import Histogram

BOUNDS = (10, 100, 1_000)


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 5))))
def test_every_value_is_in_the_range_that_ends_at_or_above_it(values: list[tuple[int, int]]) -> None:
    histogram = Histogram(BOUNDS)
    for value, times in values:
        histogram.add(value, times)
    for number, bound in enumerate(BOUNDS):
        assert sum(histogram.counts[: number + 1]) == sum(times for value, times in values if value <= bound)
    assert histogram.count == sum(times for _, times in values)
    assert histogram.sum == sum(value * times for value, times in values)
