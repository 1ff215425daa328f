"""What a report says without Spark: lengths of time buckets, gaps, the verdict, the totals."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.pipelines.jobs.consumer_groups import GroupStanding
from skylark.pipelines.jobs.report import BUCKETS_MAX, OTHERS, SERIES_MAX, _fewer_series, _filled, bucket_ms
from skylark.pipelines.jobs.report_overview import Figures, format_bytes, format_ms, overview

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("span_ms", "length_ms"),
    [
        (0, 50),
        (2_200, 50),
        (10_000, 200),
        (59_999, 1000),
        (60_000, 2000),
        (3_600_000, 300_000),
        (DAY_MS, 1_800_000),
        (30 * DAY_MS, DAY_MS),
        (300 * DAY_MS, 6 * DAY_MS),
    ],
)
def test_traffic_is_shown_by_seconds_or_minutes_according_to_the_span(span_ms: int, length_ms: int) -> None:
    assert bucket_ms(span_ms) == length_ms
    assert span_ms / length_ms < BUCKETS_MAX


def test_times_without_messages_are_gaps() -> None:
    rows: list[list[Any]] = [["2026-11-17 10:00:58", "a", 5], ["2026-11-17 10:01:02", "b", 7]]
    assert _filled(rows, 2000, [0]) == [
        ["2026-11-17 10:00:58", "a", 5],
        ["2026-11-17 10:00:58", "b", 0],
        ["2026-11-17 10:01:00", "a", 0],
        ["2026-11-17 10:01:00", "b", 0],
        ["2026-11-17 10:01:02", "a", 0],
        ["2026-11-17 10:01:02", "b", 7],
    ]
    rows = [["2026-11-17 10:00:00.050", "a", 5], ["2026-11-17 10:00:00.150", "a", 7]]
    assert _filled(rows, 50, [0])[1] == ["2026-11-17 10:00:00.100", "a", 0]
    assert _filled([], 50, [0]) == []


def test_of_many_topics_the_smaller_ones_are_added_up() -> None:
    rows = [["t", f"topic{number}", number, 1] for number in range(1, 21)]
    fewer = _fewer_series(rows)
    assert len(fewer) == SERIES_MAX
    assert [row for row in fewer if row[1] == OTHERS] == [["t", OTHERS, sum(range(1, 14)), 13]]
    assert _fewer_series(rows[:SERIES_MAX]) == rows[:SERIES_MAX]


def standing(**more: int) -> GroupStanding:
    zeros = dict.fromkeys(("lag", "retries_waiting", "dead_letters", "dead_letters_waiting"), 0)
    return GroupStanding(group="billing", **{**zeros, **more})


def verdict(**figures: Any) -> tuple[bool, list[str]]:
    found = overview(Figures(topics=["orders"], **{"messages": 3000, **figures})).verdict
    assert found is not None
    return found.is_good, [found.title, *found.sentences]


def test_the_verdict_says_what_waits() -> None:
    assert verdict(messages=0) == (False, ["No messages", "The topics hold no messages in this range."])
    assert verdict() == (
        True,
        ["3,000 messages, none sent twice", "No consumer group is known for these topics."],
    )
    told = ["Everything was consumed", "billing consumed all 3,000 messages; nothing waits."]
    assert verdict(standings=[standing()]) == (True, told)
    resent = "There were 8 retries and 2 dead letters, which were sent again."
    assert verdict(standings=[standing(dead_letters=2)], retries=8, dead_letters=2) == (True, [*told, resent])
    assert verdict(standings=[standing(lag=1200)]) == (
        False,
        ["One thing to look at", "Group billing is 1,200 messages behind."],
    )
    is_good, sentences = verdict(
        standings=[standing(retries_waiting=1, dead_letters_waiting=2)], duplicates=3
    )
    assert (is_good, sentences[0], len(sentences)) == (False, "3 things to look at", 4)


def test_totals_are_readable() -> None:
    rows = [["orders", f"broker-{name}", queue, 1500] for name in "ab" for queue in (0, 1)]
    figures = Figures(topics=["orders"], messages=3000, body_bytes=4_500_000, span_ms=90_000, queue_rows=rows)
    found = {total.name: total.value for total in overview(figures).totals}
    assert found["messages"] == "3,000"
    assert found["of bodies"] == "4.3 MiB"
    assert found["from first to last"] == "90.0 s"
    assert found["queues on 2 brokers"] == "4"
    assert [format_bytes(size) for size in (0, 1023, 1024, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 TiB",
    ]
    assert [format_ms(ms) for ms in (9_999, 10_000, 120_000, 7_200_000, 2 * DAY_MS)] == [
        *("9,999 ms", "10.0 s", "2.0 min", "2.0 h", "2.0 days")
    ]
