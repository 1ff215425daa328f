"""How values are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import Exit

from skylark.cli.output import (
    Listing,
    Rate,
    Rates,
    Screen,
    Share,
    When,
    clean,
    counted,
    done,
    format_bytes,
    format_time,
    show,
)
from skylark.errors import ConnectFailed


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 30, "1.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_times() -> None:
    assert format_time(None) == "-"
    assert format_time(1_700_000_000_123).endswith(".123")
    assert format_time(1 << 62) == str(1 << 62)


def test_numbers_of_things() -> None:
    assert [counted(number, "file", "files") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_what_a_message_holds_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert clean("a\x1b[2Jb\tc\nd 订单") == "a·[2Jb·c·d 订单"
    Screen().cells(["x\ty", 1])
    Screen().line("[bold]not markup[/bold]")
    assert capsys.readouterr().out == "x·y\t1\n[bold]not markup[/bold]\n"


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
