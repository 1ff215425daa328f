"""Warnings that repeat."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from skylark.cli import repeated_warnings
from skylark.cli.repeated_warnings import DIFFERENT_MAX, INTERVAL_S, RepeatedWarnings


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class Rig:
    """A logger whose warnings go through the handler, at a time of our choice."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.out = Lines()
        self.handler = RepeatedWarnings(self.out, lambda: self.now_s)
        self.log = logging.Logger("skylark.test", logging.DEBUG)
        self.log.addHandler(self.handler)

    def take(self) -> list[str]:
        lines, self.out.lines = self.out.lines, []
        return lines


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.handler.close()


def test_the_first_is_logged_at_once_and_the_others_once_a_minute(rig: Rig) -> None:
    for _ in range(5):
        rig.log.warning("cannot reach %s", "h:1")
        rig.now_s += 1
    assert rig.take() == ["cannot reach h:1"]
    rig.now_s += INTERVAL_S
    rig.log.warning("cannot reach %s", "h:1")
    assert rig.take() == ["cannot reach h:1 (repeated 4 times)"]
    rig.now_s += INTERVAL_S
    rig.log.warning("something else")
    assert rig.take() == ["cannot reach h:1 (repeated once)", "something else"]


def test_after_a_quiet_minute_it_is_news_again(rig: Rig) -> None:
    for _ in range(2):
        rig.log.warning("cannot reach %s", "h:1")
        assert rig.take() == ["cannot reach h:1"]
        rig.now_s += INTERVAL_S


def test_names_make_a_difference_and_numbers_do_not(rig: Rig) -> None:
    rig.log.warning("lost peer=%s count=%d", "h:1", 1)
    rig.log.warning("lost peer=%s count=%d", "h:2", 1)
    rig.log.warning("lost peer=%s count=%d", "h:1", 2)
    rig.log.error("lost peer=%s count=%d", "h:1", 3)
    assert rig.take() == ["lost peer=h:1 count=1", "lost peer=h:2 count=1", "lost peer=h:1 count=3"]
    rig.handler.close()
    assert rig.take() == ["lost peer=h:1 count=2 (repeated once)"], "at exit, with the last number"


def test_a_flood_of_different_names_is_counted_too(rig: Rig) -> None:
    for number in range(1000):
        rig.log.warning("closed peer=%s", f"10.0.0.1:{number}")
    assert len(rig.take()) == DIFFERENT_MAX + 1
    rig.now_s += INTERVAL_S
    rig.log.info("only to look")
    assert rig.take() == ["only to look"]
    rig.log.warning("another")
    assert rig.take()[0] == f"closed peer=10.0.0.1:999 (repeated {999 - DIFFERENT_MAX} times)"


def test_information_is_never_held_back(rig: Rig) -> None:
    for _ in range(3):
        rig.log.info("flushed")
    assert rig.take() == ["flushed"] * 3


def test_a_traceback_is_logged_once(rig: Rig) -> None:
    for _ in range(3):
        try:
            int("no number")
        except ValueError:
            rig.log.exception("task failed")
    rig.handler.close()
    first, rest = rig.take()
    assert "Traceback" in first
    assert rest == "task failed (repeated 2 times)"


def test_the_count_is_told_without_another_warning(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_warnings, "INTERVAL_S", 0.01)
    for _ in range(3):
        rig.log.warning("full")
    rig.now_s += 1
    timer = rig.handler._timer
    assert timer is not None
    timer.join(10)
    assert rig.take() == ["full", "full (repeated 2 times)"]
