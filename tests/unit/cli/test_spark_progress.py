"""The progress of Spark commands, without Spark."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from skylark.cli.output import Screen
from skylark.cli.spark_progress import SparkProgress
from skylark.pipelines.jobs.queries import QueryProgress
from tests.support.screen import screen_of


class Rig:
    """A progress at a time of our choice, on a terminal of some width or in a file."""

    def __init__(self, columns: int = 80, *, is_terminal: bool = True) -> None:
        self.now_s = 100.0
        self.columns = columns
        self.out = io.StringIO()
        self.screen = Screen()
        self.screen.err = Console(file=self.out, force_terminal=is_terminal, width=columns, height=10)
        self.progress = SparkProgress(self.screen, lambda: self.now_s)

    def shown(self) -> list[str]:
        """The lines on the screen."""
        return screen_of(self.out.getvalue().replace("\n", "\r\n").encode(), self.columns, 10)

    def lines(self) -> list[str]:
        return [line.plain for line in self.progress.lines(self.columns)]


def batch(number: int, messages: int, behind: int | None, query: str = "archive") -> QueryProgress:
    return QueryProgress(
        query=query, batch=number, messages=messages, messages_per_second=messages / 2, behind=behind
    )


def test_it_says_what_is_waited_for_and_for_how_long() -> None:
    rig = Rig()
    rig.progress.say("starting Spark, about 10 s")
    assert rig.lines() == ["⠋ starting Spark, about 10 s (0 s)"]
    rig.now_s += 4.2
    assert rig.lines() == ["⠹ starting Spark, about 10 s (4 s)"]


@pytest.mark.parametrize("columns", [80, 120])
def test_batches_are_a_bar_with_messages_rate_and_lag(columns: int) -> None:
    rig = Rig(columns)
    rig.progress.watch(batch(0, 1000, 3000))
    rig.progress.watch(batch(1, 1000, 2000))
    [line] = rig.lines()
    assert line.startswith("⠋ archive: batch 1 ━")
    assert line.endswith("─ 2,000 messages, 500/s, 2,000 behind")
    assert line.count("━") - line.count("─") in (0, 1), "half is done"
    assert len(line) < columns
    rig.progress.watch(batch(2, 2000, 0))
    [line] = rig.lines()
    assert "─" not in line
    assert line.endswith("4,000 messages, 1,000/s, up to date")


def test_without_a_known_end_there_is_no_bar() -> None:
    rig = Rig()
    rig.progress.watch(batch(0, 1000, None))
    assert rig.lines() == ["⠋ archive: batch 0 1,000 messages, 500/s"]


def test_each_query_has_a_line() -> None:
    rig = Rig()
    rig.progress.watch(batch(0, 10, 0, "orders"))
    rig.progress.watch(batch(3, 10, 0, "rejects"))
    assert [line.split(":")[0][2:] for line in rig.lines()] == ["orders", "rejects"]


def test_a_batch_job_shows_its_tasks() -> None:
    rig = Rig()
    rig.progress.say("Spark is ready")
    rig.now_s += 3
    rig.progress.tasks(1, 4)
    [line] = rig.lines()
    assert line.startswith("⠋ Spark is ready: ━━━━━━━━━━─")
    assert line.endswith("─ 1 of 4 tasks, 3 s")
    rig.progress.tasks(0, 0)
    assert "tasks" not in rig.lines()[0]


@pytest.mark.parametrize("columns", [20, 40, 60, 80])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    rig = Rig(columns)
    rig.progress.say("starting Spark on spark://cluster.example.org:7077, about 10 s")
    assert len(rig.lines()[0]) < columns
    rig.progress.watch(batch(1000, 123_456_789, 987_654_321, "a_pipeline_with_a_long_name"))
    assert len(rig.lines()[0]) < columns


def test_nothing_stays_on_the_terminal() -> None:
    rig = Rig()
    with rig.progress:
        rig.progress.say("starting Spark, about 10 s")
        rig.progress._live.refresh()  # type: ignore[union-attr]
        assert rig.shown()[0].endswith("starting Spark, about 10 s (0 s)")
        for number in range(3):
            rig.progress.watch(batch(number, 10, 0, f"query-{number}"))
            rig.progress._live.refresh()  # type: ignore[union-attr]
        assert [line[:10] for line in rig.shown()[:4]] == ["⠋ query-0:", "⠋ query-1:", "⠋ query-2:", ""]
    assert rig.shown() == [""] * 10


def test_elsewhere_it_is_a_line_now_and_then() -> None:
    rig = Rig(is_terminal=False)
    with rig.progress:
        rig.progress.say("starting Spark, about 10 s")
        for number in range(5):
            rig.now_s += 1
            rig.progress.watch(batch(number, 100, 400 - number * 100))
    assert rig.out.getvalue().splitlines() == [
        "starting Spark, about 10 s",
        "archive: batch 0, 100 messages, 50/s, 400 behind",
        "archive: batch 2, 300 messages, 50/s, 200 behind",
        "archive: batch 4, 500 messages, 50/s, up to date",
    ]
