"""Charts: bars, lines by value and by place, axes by powers of ten."""

from __future__ import annotations

import re

import pytest

from skylark.html_report import Chart, HtmlReport, Section, Total, Verdict, drawing, heading, render

POINTS = re.compile(r'<polyline points="([^"]*)"')
LABELS = re.compile(r'text-anchor="middle">([^<]*)<')
TICKS = re.compile(r'text-anchor="end">([^<]*)<')


def drawn(rows: list[list[object]], chart: Chart) -> str:
    return drawing(Section("s", "S", ["x", "y", "who"], rows, chart))


def rendered(rows: list[list[object]], chart: Chart | None, **more: object) -> str:
    section = Section("s", "S", ["x", "y", "who"], rows, chart, **more)  # type: ignore[arg-type]
    return render(HtmlReport("r", "now", [section]))


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
    assert TICKS.findall(page) == ["10", "100", "1,000"]
    heights = [y for _, y in places(page)[0]]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_nothing_and_one_thing_can_be_drawn(logarithmic: bool) -> None:
    chart = Chart("x", "y", kind="lines", is_logarithmic=logarithmic)
    assert len(places(drawn([[5, 0, ""]], chart))) == 1
    assert "Nothing to show." in rendered([], chart)


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
    assert TICKS.findall(page) == ticks.split()


def test_bars_are_labelled() -> None:
    page = drawn([["one", 5, ""], ["two", 2500, ""]], Chart("x", "y", unit="per s"))
    assert LABELS.findall(page) == ["one", "two"]
    assert ">per s</text>" in page
    assert TICKS.findall(page)[-1] == "2,500"


def test_a_long_table_is_folded_only_below_a_chart_that_tells_it() -> None:
    rows: list[list[object]] = [[number, number, "a"] for number in range(100)]
    assert "<details><summary>100 rows" in rendered(rows, Chart("x", "y"))
    alone = render(HtmlReport("r", "now", [Section("s", "S", ["x", "y", "who"], rows)]))
    assert "<details open><summary>100 rows" in alone
    assert "<details" not in render(HtmlReport("r", "now", [Section("s", "S", ["x", "y", "who"], rows[:5])]))


def test_a_page_has_a_chart_for_each_width_and_one_legend() -> None:
    page = rendered([["one", 5, "<a>"], ["two", 2, "b"]], Chart("x", "y", series="who"))
    assert re.findall(r'<svg viewBox="0 0 (\d+) \d+" class="(\w+)"', page) == [
        ("900", "broad"),
        ("340", "narrow"),
    ]
    assert re.findall(r"</i>([^<]*)</span>", page) == ["&lt;a&gt;", "b"]


def test_a_verdict_and_totals_stand_before_the_sections() -> None:
    verdict = Verdict(False, "One <thing>", ["Look & see."])
    page = render(HtmlReport("r", "now", [Section("s", "S", ["x"], [[1]])], verdict, [Total("lag", "12")]))
    places = [
        page.index(text) for text in ("look", "! One &lt;thing&gt;", "Look &amp; see.", ">12</b>", 'id="s"')
    ]
    assert places[1:] == sorted(places[1:])


def test_a_table_may_have_a_total_and_be_folded() -> None:
    page = rendered(
        [["2026-11-17 10:00:00", 5, None], ["b", 2, 1]], None, total=["Total", 7, 1], is_folded=True
    )
    assert '<tfoot><tr><td class="time">Total</td><td class="number">7</td><td class="number">1</td>' in page
    assert "<summary>2 rows</summary>" in page


def test_times_of_one_day_are_written_without_it() -> None:
    rows: list[list[object]] = [["2026-11-17 10:00:00", 1, ""], ["2026-11-17 10:00:01", 2, ""]]
    assert LABELS.findall(drawn(rows, Chart("x", "y"))) == ["10:00:00", "10:00:01"]
    rows[1][0] = "2026-11-18 10:00:00"
    assert LABELS.findall(drawn(rows, Chart("x", "y"))) == [row[0] for row in rows]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("meanBytes", "Mean bytes"),
        ("queueId", "Queue"),
        ("brokerName", "Broker"),
        ("topic", "Topic"),
        ("p99", "p99"),
        ("µs", "µs"),
        ("per s", "per s"),
    ],
)
def test_headings_are_words(name: str, shown: str) -> None:
    assert heading(name) == shown


def test_a_label_may_be_of_several_columns() -> None:
    rows: list[list[object]] = [["a", 0, 5], ["a", 1, 6]]
    page = drawing(Section("s", "S", ["broker", "queue", "n"], rows, Chart(("broker", "queue"), "n")))
    assert LABELS.findall(page) == ["a/0", "a/1"]
