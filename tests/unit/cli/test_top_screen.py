"""The screen of `skylark top`, and what keys do to it."""

from __future__ import annotations

import pytest
from rich.console import Console

from skylark.cli.output import Listing, Rate, Screen
from skylark.cli.top_screen import FOOT, TopScreen, shares

COLUMNS = ("topic", "messages", "in/s")
TOPICS = [(f"topic-{number:02}", number % 7, Rate(number / 2)) for number in range(30)]


def made(columns: int = 80) -> tuple[TopScreen, Screen]:
    screen = Screen()
    screen.out = Console(width=columns, height=24, force_terminal=True)
    top = TopScreen()
    top.head = "skylark top"
    top.show("Brokers", Listing(("broker", "in/s"), [("broker-a", Rate(1.0))]), "broker")
    top.show("Topics", Listing(COLUMNS, TOPICS), "in/s")
    return top, screen


def lines(top: TopScreen, screen: Screen, height: int = 24) -> list[str]:
    found = [line.plain for line in top.lines(screen, height)]
    assert len(found) == height
    return found


def topics(top: TopScreen, screen: Screen, height: int = 24) -> list[str]:
    return [line.split()[0] for line in lines(top, screen, height) if line.startswith("topic-")]


def test_the_screen_is_filled_and_ends_with_the_keys() -> None:
    top, screen = made()
    shown = lines(top, screen)
    assert shown[0] == "skylark top"
    assert shown[2:5] == ["Brokers 1-1 of 1, by broker ▲", "broker    in/s", "broker-a   1.0"]
    assert shown[6] == "Topics 1-15 of 30, by in/s ▼"
    assert shown[-1] == FOOT
    assert topics(top, screen)[0] == "topic-29"


def test_arrows_scroll_to_both_ends_and_not_beyond() -> None:
    top, screen = made()
    for key, first, last in [
        ("up", 29, 15),
        ("down", 28, 14),
        ("page down", 14, 0),
        ("page down", 14, 0),
        ("home", 29, 15),
        ("end", 14, 0),
        ("page up", 29, 15),
    ]:
        assert top.press(key)
        found = topics(top, screen)
        assert (found[0], found[-1]) == (f"topic-{first:02}", f"topic-{last:02}"), key


def test_left_and_right_choose_the_column_and_r_reverses() -> None:
    top, screen = made()
    lines(top, screen)
    top.press("right")
    assert "Topics 1-15 of 30, by topic ▲" in lines(top, screen)
    assert topics(top, screen)[:2] == ["topic-00", "topic-01"]
    top.press("r")
    assert "Topics 1-15 of 30, by topic ▼" in lines(top, screen)
    assert topics(top, screen)[:2] == ["topic-29", "topic-28"]
    top.press("left")
    top.press("left")
    assert topics(top, screen)[:4] == ["topic-06", "topic-13", "topic-20", "topic-27"], "equal ones in order"


def test_tab_chooses_the_table_that_keys_are_for() -> None:
    top, screen = made()
    lines(top, screen)
    top.press("tab")
    top.press("right")
    shown = lines(top, screen)
    assert shown[2] == "Brokers 1-1 of 1, by in/s ▼"
    assert shown[6] == "Topics 1-15 of 30, by in/s ▼"
    top.press("back tab")
    top.press("down")
    assert "Topics 2-16 of 30, by in/s ▼" in lines(top, screen)


def test_new_rows_keep_the_order_and_the_place() -> None:
    top, screen = made()
    top.press("right")
    lines(top, screen)
    top.press("down")
    top.show("Topics", Listing(COLUMNS, [("topic-zz", 0, Rate(99.0)), *TOPICS]), "in/s")
    assert "Topics 2-16 of 31, by topic ▲" in lines(top, screen)
    top.show("Topics", Listing(COLUMNS, TOPICS[:2]), "in/s")
    assert topics(top, screen) == ["topic-00", "topic-01"], "a place that is gone"


@pytest.mark.parametrize("height", [3, 8, 12, 60])
@pytest.mark.parametrize("columns", [30, 80, 120])
def test_any_size_is_filled_and_not_exceeded(columns: int, height: int) -> None:
    top, screen = made(columns)
    top.warnings = ["no answer from 127.0.0.1:10911: it is gone, and this sentence is rather long for a line"]
    assert max(map(len, lines(top, screen, height))) <= columns


def test_q_ends_and_other_keys_do_not() -> None:
    top, _ = made()
    assert top.press("x")
    assert not top.press("q")
    assert not TopScreen().press("q"), "without any table"


def test_lines_are_shared_by_need() -> None:
    assert shares([1, 100, 100], 21) == [1, 10, 10]
    assert shares([5, 2], 100) == [5, 2]
    assert shares([5, 5], 1) == [0, 1]
    assert shares([], 10) == []
