"""Which messages come from the table and which from the log: every one once, none left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import SettingsError
from skylark.pipelines.history import (
    LongMemory,
    TopicHistory,
    history_tasks,
    may_hold,
    read_history,
    split_at,
    wanted_rows,
)
from skylark.pipelines.lake.parquet_files import FileLayout, PartitionedFiles, TableFile, table_schema
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.offsets import Offsets, to_nested
from skylark.pipelines.schema import COLUMNS, arrow_schema, columns_schema, spark_schema, table_columns
from skylark.protocol.bodies import MessageQueue

QUEUES = [MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0), MessageQueue("pay", "a", 1)]
NAMES = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "body")
HOUR_US = 3_600_000_000

offsets = st.integers(0, 50)
ranges = st.lists(
    st.builds(
        lambda queue, at, count: OffsetRange(queue, at, at + count), st.sampled_from(QUEUES), offsets, offsets
    ),
    max_size=3,
    unique_by=lambda item: item.queue,
)


@given(ranges, st.dictionaries(st.sampled_from(QUEUES), offsets))
def test_a_range_is_divided_without_gap_or_overlap(items: list[OffsetRange], ends: Offsets) -> None:
    archived, rest = split_at(items, ends)

    def messages(found: list[OffsetRange]) -> list[tuple[MessageQueue, int]]:
        return [(item.queue, at) for item in found for at in range(item.from_offset, item.to_offset)]

    assert sorted(messages(archived) + messages(rest)) == sorted(messages(items))
    assert all(at < ends.get(queue, 0) for queue, at in messages(archived))
    assert all(at >= ends.get(queue, 0) for queue, at in messages(rest))


def batch(rows: list[tuple[MessageQueue, int]]) -> pa.RecordBatch:
    """Messages, one an hour by offset."""
    values = [
        {
            "topic": queue.topic,
            "brokerName": queue.broker_name,
            "queueId": queue.queue_id,
            "queueOffset": at,
            "storeTimestamp": at * HOUR_US,
            "body": b"%d" % at,
        }
        for queue, at in rows
    ]
    return pa.RecordBatch.from_pylist(values, table_columns(arrow_schema(columns_schema(NAMES))))


places = st.lists(st.tuples(st.sampled_from(QUEUES), offsets), unique=True, min_size=1, max_size=40)


@given(places, ranges)
def test_rows_are_chosen_by_the_bounds_of_their_queues(
    rows: list[tuple[MessageQueue, int]], items: list[OffsetRange]
) -> None:
    bounds = {item.queue: (item.from_offset, item.to_offset) for item in items}
    expected = [bounds.get(queue, (0, 0))[0] <= at < bounds.get(queue, (0, 0))[1] for queue, at in rows]
    assert np.array_equal(wanted_rows(batch(rows), bounds), expected)


def test_files_are_skipped_by_topic_queue_and_offset() -> None:
    file = TableFile(
        "f", 1, 1, {"topic": "orders"}, {"queueId": 0, "queueOffset": 10}, {"queueId": 1, "queueOffset": 19}
    )
    assert may_hold(file, OffsetRange(MessageQueue("orders", "a", 1), 19, 30))
    assert not may_hold(file, OffsetRange(MessageQueue("orders", "a", 1), 20, 30))
    assert not may_hold(file, OffsetRange(MessageQueue("orders", "a", 1), 0, 10))
    assert not may_hold(file, OffsetRange(MessageQueue("orders", "a", 2), 10, 20))
    assert not may_hold(file, OffsetRange(MessageQueue("pay", "a", 1), 10, 20))
    unknown = TableFile("f", 1, 1, {}, {}, {})
    assert may_hold(unknown, OffsetRange(MessageQueue("pay", "a", 1), 10, 20))


def test_each_file_is_in_one_task() -> None:
    files = [TableFile(str(n), 1, 10, {}, {"queueOffset": n}, {"queueOffset": n}) for n in range(10)]
    tasks = history_tasks(files, [OffsetRange(QUEUES[0], 2, 8), OffsetRange(QUEUES[1], 7, 9)], task_bytes=25)
    assert [[file.path for file in task.files] for task in tasks] == [["2", "3", "4"], ["5", "6", "7"], ["8"]]
    assert tasks[2].ranges == [OffsetRange(QUEUES[1], 7, 9)]


def archive(
    where: Path, kind: str, rows: list[tuple[MessageQueue, int]], job: str = "archive"
) -> TopicHistory:
    """A table with these messages, in two batches."""
    log = open_log(kind, where)
    layout = FileLayout(columns=NAMES, partition_by=("dt", "topic"), hive_names=kind == "parquet")
    log.prepare(table_schema(layout, arrow_schema(spark_schema(COLUMNS))), ("dt", "topic"))
    half = len(rows) // 2
    for number, part in enumerate([rows[:half], rows[half:]]):
        files = PartitionedFiles(log.written, f"run-{number}", layout)
        files.write(batch(part))
        ends: Offsets = {}
        for queue, at in rows[: half + number * len(rows)]:
            ends[queue] = max(ends.get(queue, 0), at + 1)
        name = BatchName("q", number)
        progress = CommitProgress(name.application, number, job, to_nested(ends), "")
        log.add(name, files.finish(), progress)
    return TopicHistory(kind, str(where))


ROWS = [(queue, at) for at in range(5, 15) for queue in QUEUES]


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_the_messages_of_ranges_are_read_from_a_table(tmp_path: Path, kind: str) -> None:
    history = archive(tmp_path, kind, ROWS)
    assert history.ends == dict.fromkeys(QUEUES, 15)
    assert history.first_offsets() == dict.fromkeys(QUEUES, 5)
    wanted = [OffsetRange(QUEUES[0], 0, 7), OffsetRange(QUEUES[2], 9, 12)]
    found = [
        (row["topic"], row["queueOffset"], row["body"])
        for task in history.tasks(wanted)
        for read in read_history(open_log(kind, tmp_path).store, task, ["topic", "queueOffset", "body"])
        for row in read.to_pylist()
    ]
    assert sorted(found) == [
        ("orders", 5, b"5"),
        ("orders", 6, b"6"),
        ("pay", 9, b"9"),
        ("pay", 10, b"10"),
        ("pay", 11, b"11"),
    ]
    history.check_columns(["body", "value"])
    with pytest.raises(SettingsError, match="has no column msgId; read others"):
        history.check_columns(["msgId"])


class ShortLog:
    """The positions of a log that has lost everything before offset 12 and ends at 20."""

    def min_offsets(self, queues: list[MessageQueue]) -> Offsets:
        return dict.fromkeys(queues, 12)

    def max_offsets(self, queues: list[MessageQueue]) -> Offsets:
        return dict.fromkeys(queues, 20)

    def offsets_by_time(self, queues: list[MessageQueue], timestamp_ms: int) -> Offsets:
        return dict.fromkeys(queues, max(12, timestamp_ms * 1000 // HOUR_US))

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        return 8


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_positions_reach_into_the_table(tmp_path: Path, kind: str) -> None:
    new = MessageQueue("orders", "c", 0)
    positions = LongMemory(ShortLog(), archive(tmp_path, kind, ROWS))  # type: ignore[arg-type]
    assert positions.min_offsets([QUEUES[0], new]) == {QUEUES[0]: 5, new: 12}
    eight = 8 * HOUR_US // 1000
    assert positions.offsets_by_time([QUEUES[0], new], eight) == {QUEUES[0]: 8, new: 12}
    assert positions.offsets_by_time([QUEUES[0]], 18 * HOUR_US // 1000) == {QUEUES[0]: 18}


def test_a_table_of_some_messages_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not an archive of whole topics; make one with"):
        _ = archive(tmp_path, "delta", ROWS, job="archive tags=Pay").ends
