"""Files and log of an archive, without Spark: what is written, what belongs, what a repeated commit does."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from skylark.errors import SettingsError
from skylark.pipelines.lake.delta_log import DeltaLog
from skylark.pipelines.lake.file_store import DirectoryFiles
from skylark.pipelines.lake.parquet_files import (
    STATISTICS_COLUMNS,
    FileLayout,
    PartitionedFiles,
    directory,
    table_schema,
)
from skylark.pipelines.lake.parquet_log import ParquetLog
from skylark.pipelines.lake.table_commit import commit_batch, open_log
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake.table_sink import TableStreamWriter, WrittenFiles, read_options
from skylark.pipelines.schema import COLUMNS, arrow_schema, spark_schema

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEMA = arrow_schema(spark_schema(COLUMNS))
BOTH = pytest.mark.parametrize("layout_name", ["delta", "parquet"])


def layout(layout_name: str = "delta", **changes: Any) -> FileLayout:
    values: dict[str, Any] = {
        "columns": tuple(COLUMNS),
        "partition_by": ("dt", "topic"),
        "hive_names": layout_name == "parquet",
        **changes,
    }
    return FileLayout(**values)


def messages(
    first: int, count: int, *, topic: str = "orders", at: datetime = NOON, keys: list[str] | None = None
) -> pa.RecordBatch:
    """Messages of queue 0, one a second."""
    rows = [
        {
            "topic": topic,
            "brokerName": "broker-a",
            "queueId": 0,
            "queueOffset": number,
            "physicalOffset": number * 100,
            "msgId": f"id-{number}",
            "uniqKey": keys[number - first] if keys else f"key-{number}",
            "tags": "created",
            "keys": None,
            "body": b"body %d" % number,
            "properties": [("TAGS", "created")],
            "bornTimestamp": at + timedelta(seconds=number - first),
            "storeTimestamp": at + timedelta(seconds=number - first),
            "bornHost": "127.0.0.1:1",
            "storeHost": "127.0.0.1:2",
            "reconsumeTimes": 0,
            "sysFlag": 0,
            "flag": 0,
        }
        for number in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def archive(root: Path, layout_name: str, *, partition_by: tuple[str, ...] = ("dt", "topic")) -> Any:
    log = open_log(layout_name, root)
    log.prepare(log_schema(partition_by), partition_by)
    return log


def log_schema(partition_by: tuple[str, ...] = ("dt", "topic")) -> pa.Schema:
    return table_schema(layout(partition_by=partition_by), SCHEMA)


def write(log: Any, name: str, *batches: pa.RecordBatch, **changes: Any) -> list[Any]:
    layout_name = "parquet" if isinstance(log, ParquetLog) else "delta"
    files = PartitionedFiles(log.written, name, layout(layout_name, **changes))
    for batch in batches:
        files.write(batch)
    return files.finish()


def rows(log: Any) -> list[tuple[str, int]]:
    if isinstance(log, DeltaLog):
        table = DeltaTable(log.store.where).to_pyarrow_table()
    else:
        table = ds.dataset(log.store.where, format="parquet", partitioning="hive").to_table()
    pairs = zip(table.column("topic").to_pylist(), table.column("queueOffset").to_pylist(), strict=True)
    return sorted((str(topic), queue_offset) for topic, queue_offset in pairs)


@BOTH
def test_messages_come_back_with_all_columns(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    batch = messages(0, 50)
    assert log.add(BatchName("q", 0), write(log, "run-0", batch))
    if layout_name == "delta":
        table = DeltaTable(tmp_path).to_pyarrow_table()
    else:
        table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    expected = pa.Table.from_batches([batch]).drop_columns(["topic"])
    assert table.select(expected.column_names).sort_by("queueOffset").to_pylist() == expected.to_pylist()
    assert set(table.column("topic").to_pylist()) == {"orders"}
    assert {str(day) for day in table.column("dt").to_pylist()} == {"2026-11-15"}


@BOTH
def test_a_batch_is_committed_once(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    assert log.add(BatchName("q", 0), write(log, "first", messages(0, 10)))
    assert not log.add(BatchName("q", 0), write(log, "second", messages(0, 10)))  # a replay
    assert log.add(BatchName("q", 1), write(log, "second-1", messages(10, 5)))
    assert rows(log) == [("orders", number) for number in range(15)]


@BOTH
def test_the_sweep_removes_what_belongs_to_nothing(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    log.add(BatchName("q", 0), write(log, "kept", messages(0, 10)))
    orphans = write(log, "orphan", messages(0, 10))
    assert log.sweep(1) == []  # too young: its batch may still be running
    assert len(log.sweep(0, dry_run=True)) == 1
    assert len(log.sweep(0)) == 1
    assert not (log.written.root / orphans[0].path).exists()
    assert rows(log) == [("orders", number) for number in range(10)]


def visible(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*.parquet") if not path.is_relative_to(root / "_skylark")}


def test_a_parquet_batch_stopped_between_decision_and_move_is_completed(tmp_path: Path) -> None:
    log = archive(tmp_path / "table", "parquet")
    batches = messages(0, 10), messages(10, 10, topic="pay")
    decided = write(log, "first", *batches)
    for file in decided:  # as if the process ended after the manifest
        (log.written.root / file.path).rename(tmp_path / Path(file.path).name)
    log.add(BatchName("q", 0), decided)
    assert visible(log.store.root) == set()
    for file in decided:
        (tmp_path / Path(file.path).name).rename(log.written.root / file.path)
    assert not log.add(BatchName("q", 0), write(log, "second", *batches))
    assert len(rows(log)) == 20
    assert visible(log.store.root) == {Path(file.path).name for file in decided}


@BOTH
def test_days_and_topics_are_partitions(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    midnight = datetime(2026, 11, 15, 23, 59, 57, tzinfo=UTC)
    files = write(log, "n", messages(0, 6, at=midnight), messages(0, 2, topic="%RETRY%g"))
    assert sorted((file.partition["dt"], file.partition["topic"], file.rows) for file in files) == [
        ("2026-11-15", "%RETRY%g", 2),
        ("2026-11-15", "orders", 3),
        ("2026-11-16", "orders", 3),
    ]
    log.add(BatchName("q", 0), files)
    assert len(rows(log)) == 8
    assert {topic for topic, _ in rows(log)} == {"%RETRY%g", "orders"}


def test_row_groups_close_by_bytes_and_only_repeating_columns_have_dictionaries(tmp_path: Path) -> None:
    batches = [messages(first, 100) for first in range(0, 1000, 100)]
    size = batches[0].nbytes
    [file] = write(archive(tmp_path, "delta"), "n", *batches, row_group_bytes=3 * size - 3000)
    metadata = pq.read_metadata(tmp_path / file.path)
    assert metadata.num_row_groups in (4, 5)
    assert metadata.num_rows == 1000
    encodings = {
        metadata.row_group(0).column(index).path_in_schema: metadata.row_group(0).column(index).encodings
        for index in range(metadata.row_group(0).num_columns)
    }
    with_dictionary = {name for name, used in encodings.items() if "RLE_DICTIONARY" in used}
    assert with_dictionary == {"brokerName", "tags", "bornHost", "storeHost"}
    by_differences = {name for name, used in encodings.items() if "DELTA_BINARY_PACKED" in used}
    assert by_differences == set(STATISTICS_COLUMNS)


def test_a_column_named_like_a_number_may_be_text(tmp_path: Path) -> None:
    texts = pa.RecordBatch.from_pydict({"queueOffset": ["one", "two"]})
    files = PartitionedFiles(
        DirectoryFiles(tmp_path), "n", FileLayout(columns=("queueOffset",), partition_by=())
    )
    files.write(texts)
    [file] = files.finish()
    assert pq.read_table(tmp_path / file.path).column("queueOffset").to_pylist() == ["one", "two"]


def test_memory_is_bounded_however_many_topics_a_task_has(tmp_path: Path) -> None:
    size = messages(0, 100).nbytes
    files = PartitionedFiles(DirectoryFiles(tmp_path), "n", layout(row_group_bytes=3 * size))
    for first in range(0, 1000, 100):
        for topic in "abcdefghijkl":  # more than may be open at once
            files.write(messages(first, 100, topic=topic))
            assert files.waiting_bytes <= 7 * size
    done = files.finish()
    assert sum(file.rows for file in done) == 12_000
    assert sum(pq.read_metadata(tmp_path / file.path).num_rows for file in done) == 12_000


def test_delta_skips_files_by_their_minima_and_maxima(tmp_path: Path) -> None:
    log = archive(tmp_path, "delta")
    log.add(BatchName("q", 0), write(log, "a", messages(0, 10)))
    log.add(BatchName("q", 1), write(log, "b", messages(10, 10)))
    actions = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    bounds = sorted((row["min.queueOffset"], row["max.queueOffset"], row["num_records"]) for row in actions)
    assert bounds == [(0, 9, 10), (10, 19, 10)]
    found = DeltaTable(tmp_path).to_pyarrow_table(filters=[("queueOffset", "=", 12)])
    assert found.column("body").to_pylist() == [b"body 12"]


def test_compaction_joins_files_and_a_replay_is_still_known(tmp_path: Path) -> None:
    log = archive(tmp_path, "delta")
    for number in range(4):
        log.add(BatchName("q", number), write(log, f"run-{number}", messages(number * 10, 10)))
    assert log.compact() == {"removed": 4, "added": 1}
    assert not log.add(BatchName("q", 3), write(log, "again", messages(30, 10)))
    assert rows(log) == [("orders", number) for number in range(40)]


@BOTH
def test_retention_drops_old_days(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    log.add(BatchName("q", 0), write(log, "n", messages(0, 5), messages(5, 5, at=NOON - timedelta(days=10))))
    assert log.keep_days(7, NOON) == 1
    assert rows(log) == [("orders", number) for number in range(5)]


@BOTH
def test_another_shape_of_table_is_refused(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    with pytest.raises(SettingsError, match=r"partitions dt,topic instead of dt|other columns or partitions"):
        archive(tmp_path, layout_name, partition_by=("dt",))
    other = table_schema(layout(layout_name, columns=("topic", "queueId")), SCHEMA)
    differences = "an extra column body; .*; use its columns|other columns"
    with pytest.raises(SettingsError, match=differences):
        log.prepare(other, ("dt", "topic"))
    with pytest.raises(SettingsError, match=r"has no column colour; use|other columns"):
        log.prepare(log_schema().append(pa.field("colour", pa.string())), ("dt", "topic"))


@BOTH
def test_messages_that_were_sent_twice_are_archived_once(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)

    def commit(number: int, *batches: pa.RecordBatch) -> None:
        files = write(log, f"run-{number}", *batches, with_keys=True)
        commit_batch(log, BatchName("q", number), files, seen_keys_max=1000)

    commit(0, messages(0, 5))
    commit(1, messages(5, 3, keys=["key-1", "new", "new"]), messages(0, 1, topic="pay", keys=["key-4"]))
    assert rows(log) == [("orders", number) for number in [0, 1, 2, 3, 4, 6]]
    commit(1, messages(5, 3, keys=["key-1", "new", "new"]))  # a replay changes nothing
    commit(2, messages(8, 1))
    log.sweep(0)
    commit(3, messages(9, 1, keys=["key-8"]))  # the sweep has not taken the keys away
    assert rows(log) == [("orders", number) for number in [0, 1, 2, 3, 4, 6, 8]]


def test_keys_of_a_batch_that_did_not_reach_the_table_are_forgotten(tmp_path: Path) -> None:
    log = archive(tmp_path, "delta")

    class Stopped(DeltaLog):
        def add(self, batch: BatchName, files: Any, progress: Any = None) -> bool:
            raise KeyboardInterrupt

    files = write(log, "first", messages(0, 5), with_keys=True)
    with pytest.raises(KeyboardInterrupt):
        commit_batch(Stopped(tmp_path), BatchName("q", 0), files, seen_keys_max=1000)
    files = write(log, "second", messages(0, 5), with_keys=True)
    assert commit_batch(log, BatchName("q", 0), files, seen_keys_max=1000)
    assert len(rows(log)) == 5


def test_an_abandoned_task_leaves_nothing(tmp_path: Path) -> None:
    files = PartitionedFiles(DirectoryFiles(tmp_path), "n", layout(row_group_bytes=1))
    files.write(messages(0, 10))
    files.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_time_that_no_calendar_has_is_archived_like_any_other(tmp_path: Path) -> None:
    """Clients stamp messages themselves, some with microseconds where milliseconds belong."""
    log = archive(tmp_path, "delta")
    batch = messages(0, 3)
    odd = pa.array([0, (1 << 63) - 1000, 1_000_000], pa.int64()).view(SCHEMA.field("bornTimestamp").type)
    batch = batch.set_column(SCHEMA.get_field_index("bornTimestamp"), SCHEMA.field("bornTimestamp"), odd)
    [file] = write(log, "run", batch)
    assert file.minima["bornTimestamp"] == "1970-01-01T00:00:00.000000Z"
    assert "bornTimestamp" not in file.maxima
    assert file.maxima["storeTimestamp"] == "2026-11-15T12:00:02.000000Z"
    assert commit_batch(log, BatchName("q", 0), [file])
    found = DeltaTable(tmp_path).to_pyarrow_table()["bornTimestamp"].cast(pa.int64()).to_pylist()
    assert sorted(found) == [0, 1_000_000, (1 << 63) - 1000]


def table_writer(log: Any) -> TableStreamWriter:
    options = {"table": log.store.where, "layout": "parquet" if isinstance(log, ParquetLog) else "delta"}
    return TableStreamWriter(read_options(options), spark_schema(COLUMNS))


def test_a_parquet_commit_that_fails_after_its_decision_loses_nothing(tmp_path: Path) -> None:
    """Spark gives a batch up whose commit raised, and tries it again; by then it is decided."""
    log = archive(tmp_path, "parquet")
    written = [
        WrittenFiles("q", msgspec.msgpack.encode(write(log, f"run-{n}", messages(n, 1)))) for n in range(2)
    ]
    in_the_way = tmp_path / "dt=2026-11-15"
    in_the_way.write_text("")
    with pytest.raises(OSError, match="dt=2026-11-15"):
        table_writer(log).commit([*written], 0)
    table_writer(log).abort([*written], 0)
    in_the_way.unlink()
    table_writer(log).commit([*written], 0)
    assert rows(log) == [("orders", 0), ("orders", 1)]


def test_files_that_a_delta_table_names_stay_when_the_batch_is_given_up(tmp_path: Path) -> None:
    log = archive(tmp_path, "delta")
    written = WrittenFiles("q", msgspec.msgpack.encode(write(log, "run", messages(0, 2))))
    table_writer(log).commit([written], 0)  # and the answer is lost
    table_writer(log).abort([written], 0)
    assert rows(log) == [("orders", 0), ("orders", 1)]


@BOTH
def test_a_batch_that_was_given_up_leaves_nothing(tmp_path: Path, layout_name: str) -> None:
    log = archive(tmp_path, layout_name)
    files = write(log, "run", messages(0, 5))
    table_writer(log).abort([None, WrittenFiles("q", msgspec.msgpack.encode(files))], 0)
    assert list(tmp_path.rglob("run*.parquet")) == []


def test_directories_are_safe_names() -> None:
    assert directory({"topic": "%DLQ%g"}, hive_names=True) == "topic=%25DLQ%25g"
    assert directory({"topic": "%DLQ%g"}, hive_names=False) == "topic=~25DLQ~25g"
