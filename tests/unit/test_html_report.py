"""Charts: bars, lines by value and by place, axes by powers of ten."""

from __future__ import annotations

import re

import pytest

from skylark.html_report import Chart, HtmlReport, Section, render

POINTS = re.compile(r'<polyline points="([^"]*)"')
LABELS = re.compile(r'text-anchor="middle">([^<]*)<')
TICKS = re.compile(r'text-anchor="end">([^<]*)<')


def drawn(rows: list[list[object]], chart: Chart) -> str:
    return render(HtmlReport("r", "now", [Section("s", "S", ["x", "y", "who"], rows, chart)]))


def places(page: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in found.split()]  # type: ignore[misc]
        for found in POINTS.findall(page)
    ]


def test_numbers_stand_where_their_value_is() -> None:
    (line,) = places(drawn([[0, 1, "a"], [1, 2, "a"], [10, 3, "a"]], Chart("x", "y", kind="lines")))
    first, second, last = (x for x, _ in line)
    assert second - first == pytest.approx((last - first) / 10, abs=0.2)
    heights = [y for _, y in line]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)


def test_texts_stand_evenly_and_every_series_has_its_line() -> None:
    rows: list[list[object]] = [["50", 1, "a"], ["99", 2, "a"], ["99.9", 3, "a"], ["50", 2, "b"]]
    one, other = places(drawn(rows, Chart("x", "y", series="who", kind="lines")))
    first, second, last = (x for x, _ in one)
    assert second - first == pytest.approx(last - second, abs=0.2)
    assert other == [(first, one[1][1])]


def test_a_logarithmic_axis_has_powers_of_ten() -> None:
    chart = Chart("x", "y", kind="lines", is_logarithmic=True)
    page = drawn([[0, 10, ""], [1, 100, ""], [2, 1000, ""]], chart)
    assert TICKS.findall(page)[1:] == ["10", "100", "1,000"]
    heights = [y for _, y in places(page)[0]]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_nothing_and_one_thing_can_be_drawn(logarithmic: bool) -> None:
    chart = Chart("x", "y", kind="lines", is_logarithmic=logarithmic)
    assert len(places(drawn([[5, 0, ""]], chart))) == 1
    assert "Nothing to show." in drawn([], chart)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0, 0], "0 1"),
        ([1, 1], "0 1"),
        ([3, 2], "0 1 2 3"),
        ([250, 240], "0 50 100 150 200 250"),
        ([990, 7], "0 200 400 600 800 1,000"),
        ([0.7, 0.31], "0 0.2 0.4 0.6 0.8"),
    ],
    ids=str,
)
def test_an_axis_has_round_numbers_and_parts_only_where_values_have(values: list[float], ticks: str) -> None:
    page = drawn([["one", values[0], ""], ["two", values[1], ""]], Chart("x", "y"))
    assert TICKS.findall(page)[1:] == ticks.split()


def test_bars_are_labelled() -> None:
    page = drawn([["one", 5, ""], ["two", 2500, ""]], Chart("x", "y", unit="per s"))
    assert LABELS.findall(page) == ["one", "two"]
    assert TICKS.findall(page)[0] == "per s"
    assert TICKS.findall(page)[-1] == "2,500"


def test_a_long_table_is_folded_only_below_a_chart_that_tells_it() -> None:
    rows: list[list[object]] = [[number, number, "a"] for number in range(100)]
    assert "<details><summary>100 rows" in drawn(rows, Chart("x", "y"))
    alone = render(HtmlReport("r", "now", [Section("s", "S", ["x", "y", "who"], rows)]))
    assert "<details open><summary>100 rows" in alone
    assert "<details" not in render(HtmlReport("r", "now", [Section("s", "S", ["x", "y", "who"], rows[:5])]))
