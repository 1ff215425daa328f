"""Limits of a batch and the ranges of its tasks: complete, disjoint, within what was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.planner import (
    TASK_BYTES,
    TaskLimits,
    end_of,
    limit_bytes,
    limit_rows,
    merged,
    ranges_between,
    tasks_of,
)
from skylark.protocol.bodies import MessageQueue

SIZES = st.lists(st.integers(1, 600), min_size=1, max_size=12)


def ranges_of(sizes: list[int]) -> list[OffsetRange]:
    return [
        OffsetRange(MessageQueue("t", f"b{number % 3}", number), 100, 100 + size)
        for number, size in enumerate(sizes)
    ]


def messages(ranges: list[OffsetRange]) -> set[tuple[MessageQueue, int]]:
    found = [(item.queue, at) for item in ranges for at in range(item.from_offset, item.to_offset)]
    assert len(found) == len(set(found)), "a message is there twice"
    return set(found)


@given(
    SIZES,
    st.integers(1, 200),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 700)),
    st.integers(1, 20),
)
def test_tasks_hold_every_message_once(
    sizes: list[int], record_bytes: int, partitions: int | None, records: int | None, tasks_max: int
) -> None:
    ranges = ranges_of(sizes)
    limits = TaskLimits(partitions, records, tasks_max)
    tasks = tasks_of(ranges, [float(record_bytes * 1000)] * len(ranges), limits)
    assert messages([item for task in tasks for item in task]) == messages(ranges)
    assert all(tasks)
    total = sum(sizes)
    if records is not None:
        assert max(sum(item.messages for item in task) for task in tasks) <= records
    if partitions is not None:
        assert len(tasks) >= min(partitions, total) * 2 // 3  # rows are not divisible
    if partitions is None and records is None:
        assert len(tasks) <= tasks_max + 1


def test_small_queues_are_packed_and_a_large_one_is_split() -> None:
    ranges = ranges_of([3] * 10)
    assert tasks_of(ranges, [100.0] * 10, TaskLimits()) == [ranges]
    (large,) = ranges_of([1_000_000])
    tasks = tasks_of([large], [20_000.0], TaskLimits(max_tasks=16))
    assert len(tasks) == 16
    assert max(item.messages for task in tasks for item in task) < 70_000
    assert 20_000 * 62_500 > TASK_BYTES


@pytest.mark.parametrize(
    ("megabytes", "at_once", "count"),
    [
        (60, None, 1),
        (70, None, 2),
        (190, None, 2),
        (380, None, 4),
        (1500, None, 8),
        (100_000, None, 16),
        (190, 2, 2),
        (190, 8, 3),
        (60, 2, 1),
        (380, 2, 2),
        (600, 2, 2),
        (2500, 2, 4),
        (600, 3, 3),
        (600, 32, 10),
    ],
)
def test_no_task_is_left_over_for_a_last_round(megabytes: int, at_once: int | None, count: int) -> None:
    limits = TaskLimits(tasks_at_once=at_once)
    assert limits.count(megabytes << 20) == count
    tasks = tasks_of(ranges_of([megabytes * 1024 // 4] * 4), [1024.0] * 4, limits)
    assert len(tasks) == count
    assert sum(item.messages for task in tasks for item in task) == megabytes * 1024


@given(SIZES, st.integers(1, 4000))
def test_rows_are_limited_in_proportion(sizes: list[int], rows_max: int) -> None:
    ranges = ranges_of(sizes)
    kept = limit_rows(ranges, rows_max)
    taken = sum(item.messages for item in kept)
    assert taken == min(rows_max, sum(sizes))
    assert messages(kept) <= messages(ranges)
    assert all(item.from_offset == 100 for item in kept)


@given(SIZES, st.integers(1, 400_000))
def test_bytes_are_limited_and_there_is_always_progress(sizes: list[int], bytes_max: int) -> None:
    ranges = ranges_of(sizes)
    record_bytes = [float(50 + number) for number in range(len(ranges))]

    def end_within(item: OffsetRange, share: int, size: float) -> int:
        return min(item.to_offset, item.from_offset + int(share / size))

    kept = limit_bytes(ranges, record_bytes, bytes_max, end_within)
    by_queue = {item.queue: size for item, size in zip(ranges, record_bytes, strict=True)}
    assert kept
    taken = sum(item.messages * by_queue[item.queue] for item in kept)
    assert taken <= bytes_max or sum(item.messages for item in kept) == 1


def test_new_queues_begin_at_their_beginning_and_missing_ones_stay() -> None:
    old, new, gone = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
    start = {old: 5, gone: 9}
    ranges = ranges_between(start, {old: 7, new: 3})
    assert ranges == [OffsetRange(old, 5, 7), OffsetRange(new, 0, 3)]
    assert end_of(start, ranges) == {old: 7, new: 3, gone: 9}


def test_offsets_that_went_back_are_not_read_again() -> None:
    queue = MessageQueue("t", "a", 0)
    assert ranges_between({queue: 9}, {queue: 4}) == []


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [([(3, 4), (4, 5)], [(3, 5)]), ([(8, 9), (3, 4), (3, 4)], [(3, 4), (8, 9)]), ([], [])],
)
def test_ranges_are_merged(pieces: list[tuple[int, int]], whole: list[tuple[int, int]]) -> None:
    queue = MessageQueue("t", "a", 0)
    assert merged([OffsetRange(queue, *piece) for piece in pieces]) == [
        OffsetRange(queue, *item) for item in whole
    ]
