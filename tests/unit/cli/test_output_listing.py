"""What a command found: as lines, as JSON, as rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import Exit

from skylark.cli.output import Listing, Rate, Rates, Share, When, done, show
from skylark.errors import ConnectFailed

ROWS = [("a", 1, When(None), Rate(2.5), True, ("x", "y")), ("b", 2, When(1000), Rate(None), False, ())]
COLUMNS = ("name", "count", "last stored", "in/s", "good", "all")


def test_a_listing_is_lines_with_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    show(Listing(COLUMNS, ROWS, [("topic", "orders"), ("ok", True)]), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "topic\torders",
        "ok\tyes",
        "name\tcount\tlast stored\tin/s\tgood\tall",
        "a\t1\t-\t2.5\tyes\tx y",
    ]


def test_a_listing_is_json_with_members_that_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    show(Listing(COLUMNS[:4], [row[:4] for row in ROWS]), as_json=True)
    assert capsys.readouterr().out == (
        '[{"name":"a","count":1,"last_stored":null,"in_per_s":2.5},'
        '{"name":"b","count":2,"last_stored":1000,"in_per_s":null}]\n'
    )


def test_facts_and_failures_are_in_the_document() -> None:
    failures = {"h:1": ConnectFailed("h:1", "refused")}
    listing = Listing(("x",), [(Share(0.25),)], [("topic", "orders")], failures, items="queues")
    assert listing.document() == {
        "topic": "orders",
        "queues": [{"x": 0.25}],
        "failures": {"h:1": "cannot connect to h:1: refused"},
    }


def test_who_did_not_answer_is_told_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as ended:
        show(Listing(("x",), [(1,)], failures={"h:1": ConnectFailed("h:1", "refused")}), as_json=False)
    assert ended.value.exit_code == 1
    assert "no answer from h:1: cannot connect to h:1: refused" in capsys.readouterr().err


def test_json_has_the_same_shape_whoever_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit) as ended:
        show(Listing(("x",), [(1,)], failures={"h:1": ConnectFailed("h:1", "refused")}), as_json=True)
    assert ended.value.exit_code == 1
    printed = capsys.readouterr()
    assert printed.out == '[{"x":1}]\n'
    assert "no answer from h:1" in printed.err


def test_what_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    done("topic orders is made", {"topic": "orders", "at": When(5)}, as_json=False)
    done("topic orders is made", {"topic": "orders", "at": When(5)}, as_json=True)
    assert capsys.readouterr().out == 'topic orders is made\n{"topic":"orders","at":5}\n'


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 10**9)), min_size=2, max_size=8))
def test_a_rate_is_growth_over_time(looks: list[tuple[float, int]]) -> None:
    rates = Rates()
    now = 0.0
    last: tuple[float, int] | None = None
    for step, count in looks:
        now += step
        rate = rates.per_s("counter", count, now).per_s
        if last is None:
            assert rate is None
        else:
            assert rate == pytest.approx(max(0, count - last[1]) / (now - last[0]))
        last = (now, count)


def test_counters_are_apart_and_no_time_has_no_rate() -> None:
    rates = Rates()
    rates.per_s("a", 10, 1.0)
    assert rates.per_s("b", 10, 1.0).per_s is None
    assert rates.per_s("a", 20, 1.0).per_s is None
