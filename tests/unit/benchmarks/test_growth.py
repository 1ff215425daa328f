"""Growth: its points, tables and charts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.growth import POINTS, TITLES, GrowthOptions, growth_of
from skylark.bench.results import Cell, make_cell


def cell(dimension: str, point: int, cost_us: float | None) -> Cell:
    return make_cell(
        f"{dimension} {point}",
        1000,
        0.5,
        server_cpu_us=cost_us,
        anonymous_mib=50.0,
        settings={"dimension": dimension, "point": point},
    )


CELLS = [cell("topics", 1, 10.0), cell("topics", 10_000, 12.5), cell("log", 0, 10.0), cell("log", 4096, 9.5)]


def test_every_dimension_has_a_title_and_rising_points() -> None:
    assert POINTS.keys() == TITLES.keys()
    assert all(list(points) == sorted(set(points)) for points in POINTS.values())


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.0001])
def test_scaled_points_begin_at_the_same_place_and_never_repeat(scale: float) -> None:
    wanted = GrowthOptions(directory=Path(), scale=scale)
    for dimension, whole in POINTS.items():
        points = wanted.points(dimension)
        assert points[0] == whole[0]
        assert len(set(points)) == len(points)
        assert all(0 <= point <= max(whole) for point in points)


def test_growth_is_the_last_point_over_the_first() -> None:
    assert growth_of(CELLS) == {"topics": 1.25, "log": 0.95}
    assert growth_of([cell("topics", 1, None)]) == {}


@pytest.mark.parametrize("end", [0, -1])
def test_growth_is_not_told_of_ends_that_were_not_measured(end: int) -> None:
    cells = [cell("topics", 1, 10.0), cell("topics", 100, 11.0), cell("topics", 10_000, 12.0)]
    cells[end] = msgspec.structs.replace(cells[end], wrong=["3 refused"])
    assert growth_of(cells) == {}
    cells[end] = cell("topics", 1, None)
    assert growth_of(cells) == {}
