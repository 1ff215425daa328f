"""Ratios, spreads and verdicts, and how they are shown."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.compare.cells import LOADED, ONE_TOPIC_SHARE, P99, PER_S, choose
from benchmarks.compare.figures import (
    Comparison,
    NotRun,
    Outcome,
    Row,
    Spread,
    SystemFacts,
    losses,
    ratio,
    rows_of,
    spread,
)
from benchmarks.compare.tables import cells_of, loss_lines, missing_lines, page
from skylark.bench.machine import describe

POSITIVE = st.floats(min_value=0.001, max_value=1e9)


@given(st.lists(POSITIVE, min_size=1, max_size=9))
def test_a_spread_holds_its_median(values: list[float]) -> None:
    found = spread(values)
    assert found.low <= found.median <= found.high
    assert found.rounds == len(values)
    assert found.low == pytest.approx(min(values), rel=1e-3)


@given(POSITIVE, POSITIVE)
def test_a_ratio_above_one_means_better_whatever_is_measured(ours: float, theirs: float) -> None:
    rate, time = ratio(PER_S, ours, theirs), ratio(P99, ours, theirs)
    assert rate is not None
    assert time is not None
    assert (rate > 1) == (ours > theirs)
    assert (time > 1) == (ours < theirs)
    assert rate * time == pytest.approx(1)


def test_nothing_has_no_ratio() -> None:
    assert ratio(PER_S, 5.0, 0.0) is None
    assert ratio(P99, 0.0, 5.0) is None


def outcome(
    system: str, number: int, rate: float, wrong: str = "", cell: str = "send-async-64-1KiB"
) -> Outcome:
    return Outcome(
        cell=cell, system=system, round=number, figures={"messages": rate}, wrong=[wrong] if wrong else []
    )


def test_ratios_are_those_of_pairs_of_a_round() -> None:
    outcomes = [outcome("ours", 1, 200), outcome("apache", 1, 100)]
    outcomes += [outcome("ours", 2, 20), outcome("apache", 2, 5)]  # something else ran: both were slow
    outcomes += [outcome("ours", 3, 300), outcome("apache", 3, 100)]
    (row,) = rows_of(choose(["send-async-64-1KiB"], ["apache"]), ["apache"], outcomes)
    assert row.ratio == Spread(3.0, 2.0, 4.0, 3)
    assert row.ours == Spread(200, 20, 300, 3)
    assert (row.bar, row.reached, row.verdict) == (1.5, True, "ahead")


def test_void_and_missing_rounds_do_not_count() -> None:
    outcomes = [outcome("ours", 1, 100), outcome("apache", 1, 900, "3 of 4 acknowledged")]
    outcomes += [outcome("ours", 2, 100), outcome("apache", 2, 100)]
    outcomes += [outcome("ours", 3, 500)]
    (row,) = rows_of(choose(["send-async-64-1KiB"], ["apache"]), ["apache"], outcomes)
    assert row.ratio == Spread(1.0, 1.0, 1.0, 1)
    assert row.theirs == Spread(100, 100, 100, 1)
    assert row.ours is not None
    assert row.ours.rounds == 3
    assert (row.verdict, row.reached) == ("even", False)


def test_a_peer_without_a_good_round_has_a_row_without_ratio() -> None:
    outcomes = [outcome("ours", 1, 100), outcome("apache", 1, 0, "does not start")]
    (row,) = rows_of(choose(["send-async-64-1KiB"], ["apache"]), ["apache"], outcomes)
    assert (row.ratio, row.theirs, row.verdict, row.reached) == (None, None, "", None)
    assert cells_of(row)[3:] == ["-", "-", "-", "1.5", "-"]


def test_bars_are_for_apache_and_ours_alone_has_no_peer() -> None:
    memory = {LOADED.name: 40.0}
    outcomes = [
        Outcome(cell="memory", system=system, round=1, figures=memory)
        for system in ("ours", "apache", "kafka")
    ]
    outcomes.append(Outcome(cell="spark", system="ours", round=1, figures={"rows/s, read from files": 7.0}))
    rows = rows_of(choose(["memory", "spark"], ["apache", "kafka"]), ["apache", "kafka"], outcomes)
    assert [(row.cell, row.peer, row.bar) for row in rows] == [
        ("memory", "apache", 4.0),
        ("memory", "kafka", None),
        ("spark", "", None),
    ]


def test_a_floor_is_for_our_own_figure_whatever_the_peer_does() -> None:
    shares = {"ours": 0.75, "apache": 0.5}
    outcomes = [
        Outcome(cell="topics-10000", system=system, round=1, figures={ONE_TOPIC_SHARE.name: share})
        for system, share in shares.items()
    ]
    (found,) = rows_of(choose(["topics-10000"], ["apache"]), ["apache"], outcomes)
    assert (found.floor, found.verdict, found.reached) == (0.8, "ahead", False)
    assert loss_lines([found]) == [
        "topics-10000, share of the rate with 1 topic: 0.75 against 0.5 of apache, 1.50 (bar ours 0.8)"
    ]
    assert msgspec.structs.replace(found, ours=Spread(0.85, 0.85, 0.85, 1)).reached is True


def row(low: float, median: float, high: float, bar: float | None = None) -> Row:
    return Row(
        cell="latency-5000", metric="p99.9", unit="µs", peer="apache", ours=Spread(1234.5, 1000, 2000, 3),
        theirs=Spread(0.1234, 0.1, 0.2, 3), ratio=Spread(median, low, high, 3), bar=bar,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given_row", "verdict", "is_loss"),
    [
        (row(1.1, 1.2, 1.3), "ahead", False),
        (row(0.9, 1.2, 1.3), "even", False),
        (row(0.7, 0.8, 0.9), "behind", True),
        (row(1.1, 1.2, 1.3, bar=1.5), "ahead", True),
        (row(0.9, 1.0, 1.3, bar=1.0), "even", False),
    ],
)
def test_verdicts_and_losses(given_row: Row, verdict: str, is_loss: bool) -> None:
    assert given_row.verdict == verdict
    assert losses([given_row]) == ([given_row] if is_loss else [])
    assert bool(loss_lines([given_row])) is is_loss


def test_the_page_and_the_json_hold_what_is_missing_too() -> None:
    rows = [row(0.7, 0.8, 0.9, bar=1.0)]
    comparison = Comparison(
        made_at="2030-01-01 00:00:00+00:00",
        skylark="1",
        machine=describe(),
        conditions={"rounds": 3, "heap_mb": 2048},
        systems=[
            SystemFacts("ours", "Skylark 1", "async", "thin client"),
            SystemFacts("apache", "Apache RocketMQ 5.3.3", "heap <2048>", "thin client"),
        ],
        rows=rows,
        not_run=[NotRun("start", "nats", "Go (go) is not installed")],
        outcomes=[outcome("ours", 1, 1.0)],
    )
    html = page(comparison)
    for words in (
        "Ours and Apache RocketMQ 5.3.3",
        "below the bar",
        "Go (go) is not installed",
        "&lt;2048&gt;",
    ):
        assert words in html
    assert missing_lines(comparison) == ["start, nats: Go (go) is not installed"]
    assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison
