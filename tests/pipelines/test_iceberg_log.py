"""Batches of an Iceberg table in a real catalog: committed once, read by others, hidden partitions."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from skylark.errors import SettingsError
from skylark.pipelines.history import TopicHistory
from skylark.pipelines.lake.iceberg_log import IcebergLog, parse_name
from skylark.pipelines.lake.parquet_files import PartitionedFiles, TableFile
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake.table_reader import read_file, schema_of
from skylark.pipelines.schema import arrow_schema
from skylark.protocol.bodies import MessageQueue
from tests.pipelines.test_archive_log import NOON, layout, log_schema, messages

APPLICATION = BatchName("q", 0).application


def use_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pyiceberg use a catalog of SQLite in this directory."""
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it reads the environment once


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergLog:
    """A new table in a catalog of SQLite."""
    use_catalog(tmp_path, monkeypatch)
    made = IcebergLog("raw.orders")
    made.prepare(log_schema(), ("dt", "topic"))
    return made


def write(log: IcebergLog, name: str, *batches: Any) -> list[TableFile]:
    files = PartitionedFiles(log.written, name, layout(keeps_partitions=True))
    for batch in batches:
        files.write(batch)
    return files.finish()


def progress(number: int, end: int) -> CommitProgress:
    return CommitProgress(APPLICATION, number, "archive", {"orders": {"broker-a": {"0": end}}}, "", end, end)


def offsets() -> list[int]:
    """As pyiceberg reads the table."""
    table = load_catalog("default").load_table("raw.orders").scan().to_arrow()
    return sorted(table["queueOffset"].to_pylist())


def test_a_batch_is_committed_once_and_named_by_its_snapshot(log: IcebergLog) -> None:
    assert log.add(BatchName("q", 0), write(log, "first", messages(0, 10)), progress(0, 10))
    assert not log.add(BatchName("q", 0), write(log, "second", messages(0, 10)))  # a replay
    assert log.add(BatchName("q", 1), write(log, "third", messages(10, 5)), progress(1, 15))
    assert offsets() == list(range(15))
    assert (log.last_batch(APPLICATION), log.last_batch("other")) == (1, None)
    assert log.commits(APPLICATION) == [progress(0, 10), progress(1, 15)]
    assert log.progress() == [progress(1, 15)]
    table = load_catalog("default").load_table("raw.orders")
    assert table.format_version == 2
    snapshots = [snapshot.summary.additional_properties for snapshot in table.snapshots() if snapshot.summary]
    assert [summary["skylark-batch"] for summary in snapshots] == ["0", "1"]
    assert log.facts().rows == 15
    assert len(log.sweep(0)) == 1
    assert offsets() == list(range(15))


def test_the_slower_of_two_writers_of_a_batch_adds_nothing(
    log: IcebergLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = IcebergLog("raw.orders")
    files = write(other, "theirs", messages(0, 10))
    commit = IcebergLog._commit

    def late(self: IcebergLog, *arguments: Any) -> None:
        """The other commits after this one has read the table and before it commits."""
        stale = self._table()
        monkeypatch.setattr(self, "_table", lambda: stale)
        assert other.add(BatchName("q", 0), files, progress(0, 10))
        try:
            commit(self, *arguments)
        finally:
            monkeypatch.setattr(self, "_table", other._table)

    monkeypatch.setattr(log, "_commit", late.__get__(log))
    mine = write(log, "mine", messages(0, 10))
    log.add(BatchName("q", 0), mine)
    assert offsets() == list(range(10))


def test_a_commit_whose_reply_is_lost_is_found_again(
    log: IcebergLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = IcebergLog._commit

    def lossy(self: IcebergLog, *arguments: Any) -> None:
        commit(self, *arguments)
        raise ConnectionError("reply lost")

    monkeypatch.setattr(log, "_commit", lossy.__get__(log))
    assert log.add(BatchName("q", 0), write(log, "first", messages(0, 10)))
    monkeypatch.undo()
    assert log.has(BatchName("q", 0))


def test_partitions_are_hidden_and_files_are_skipped(log: IcebergLog, tmp_path: Path) -> None:
    old = messages(5, 5, at=NOON - timedelta(days=10))
    log.add(BatchName("q", 0), write(log, "first", messages(0, 5), old, messages(0, 3, topic="pay")))
    table = load_catalog("default").load_table("raw.orders")
    assert "dt" not in table.schema().column_names
    assert [field.name for field in table.spec().fields] == ["dt", "topic"]
    scan = table.scan(row_filter="topic == 'orders' and storeTimestamp > '2026-11-14T00:00:00+00:00'")
    assert [task.file.record_count for task in scan.plan_files()] == [5]
    assert sorted((file.partition["dt"], file.partition["topic"], file.rows) for file in log.files()) == [
        ("2026-11-05", "orders", 5),
        ("2026-11-15", "orders", 5),
        ("2026-11-15", "pay", 3),
    ]
    assert log.keep_days(7, NOON) == 1
    assert offsets() == [0, 0, 1, 1, 2, 2, 3, 4]


def test_our_reader_finds_what_was_written(log: IcebergLog) -> None:
    batch = messages(0, 20)
    log.add(BatchName("q", 0), write(log, "first", batch))
    schema = arrow_schema(schema_of(log))
    [file] = log.files()
    [read] = read_file(log.store, file.path, file.partition, schema)
    assert read.select(batch.schema.names).to_pylist() == batch.to_pylist()


def test_a_table_is_the_history_of_a_topic(log: IcebergLog) -> None:
    log.add(BatchName("q", 0), write(log, "first", messages(3, 7)), progress(0, 10))
    history, queue = TopicHistory("iceberg", "raw.orders"), MessageQueue("orders", "broker-a", 0)
    assert (history.ends, history.first_offsets()) == ({queue: 10}, {queue: 3})


def test_another_shape_of_table_is_refused(log: IcebergLog) -> None:
    with pytest.raises(SettingsError, match="partitions dt,topic instead of dt; use its columns"):
        log.prepare(log_schema(("dt",)), ("dt",))


@pytest.mark.parametrize("where", ["orders", "a/b/c.d", "/c.d", "", "catalog/"])
def test_names_of_tables_are_checked(where: str) -> None:
    with pytest.raises(SettingsError, match="use iceberg:"):
        parse_name(where)
    assert parse_name("raw.orders") == ("default", "raw.orders")
    assert parse_name("prod/a.b.orders") == ("prod", "a.b.orders")
