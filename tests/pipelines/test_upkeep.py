"""Tables whose small files are joined and ordered, whose old files go, and from which a key is deleted."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from skylark.cli.main import app
from skylark.errors import SettingsError
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake.erasure import erase
from skylark.pipelines.lake.parquet_files import PartitionedFiles, TableFile
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake.table_reader import read_file, schema_of
from skylark.pipelines.lake.upkeep import UpkeepRules, maintain, small_files
from skylark.pipelines.lake_service.rules import LakeTable
from skylark.pipelines.schema import arrow_schema, table_columns
from tests.pipelines.test_archive_log import NOON, layout, log_schema, messages
from tests.pipelines.test_iceberg_log import use_catalog
from tests.support.pipeline_cluster import PipelineCluster


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "iceberg":
        use_catalog(tmp_path, monkeypatch)
    made = open_log(request.param, "raw.orders" if request.param == "iceberg" else tmp_path / "table")
    made.prepare(log_schema(), ("dt", "topic"))
    return made


def its_layout(log: Any) -> Any:
    return layout(keeps_partitions="Iceberg" in type(log).__name__)


def add(log: Any, number: int, *batches: Any) -> None:
    files = PartitionedFiles(log.written, f"batch-{number}", its_layout(log))
    for batch in batches:
        files.write(batch)
    log.add(BatchName("q", number), files.finish())


def rows(log: Any) -> list[tuple[str, int]]:
    schema = table_columns(arrow_schema(schema_of(log)))
    return [
        (row["topic"], row["queueOffset"])
        for file in log.files()
        for batch in read_file(log.store, file.path, file.partition, schema)
        for row in batch.to_pylist()
    ]


def test_small_files_are_joined_in_the_order_of_queue_and_offset(log: Any) -> None:
    for number, first in enumerate((20, 0, 10)):
        add(log, number, messages(first, 10))
    add(log, 3, messages(0, 5, topic="pay"))
    before = sorted(rows(log))
    report = maintain(log, its_layout(log), UpkeepRules(), NOON)
    assert (report.joined, report.made) == (3, 1)
    assert sorted(rows(log)) == before
    [file] = [file for file in log.files() if file.partition["topic"] == "orders"]
    with log.store.input(file.path) as source:
        offsets = pq.read_table(source, columns=["queueOffset"])["queueOffset"].to_pylist()
    assert offsets == sorted(offsets)
    assert (file.minima["queueOffset"], file.maxima["queueOffset"]) == (min(offsets), max(offsets))
    again = maintain(log, its_layout(log), UpkeepRules(vacuum_hours=0), NOON + timedelta(days=365 * 20))
    assert (again.joined, again.made) == (0, 0)
    assert again.deleted > 0  # the small files, of which no version is left
    assert sorted(rows(log)) == before


def test_memory_limits_what_is_joined_at_once(log: Any) -> None:
    for number in range(6):
        add(log, number, messages(number * 10, 10))
    report = maintain(log, its_layout(log), UpkeepRules(memory_bytes=messages(0, 10).nbytes * 3 // 2), NOON)
    assert (report.joined, report.made) == (6, 3)
    assert len(rows(log)) == 60
    assert small_files(log.files(), UpkeepRules().target_bytes) == []  # the next time reads none of them


def test_an_orphan_goes_and_an_old_day_too(log: Any) -> None:
    add(log, 0, messages(0, 5), messages(5, 5, at=NOON - timedelta(days=40)))
    orphan = PartitionedFiles(log.written, "orphan", its_layout(log))
    orphan.write(messages(0, 5))
    [left] = orphan.finish()
    report = maintain(log, its_layout(log), UpkeepRules(keep_days=30, vacuum_hours=0), NOON)
    assert report.expired == 1
    assert not log.written.exists(left.path)
    assert len(rows(log)) == 5


def test_files_that_are_large_enough_are_left_alone() -> None:
    def file(size: int, topic: str = "a") -> TableFile:
        return TableFile(f"{topic}{size}", 1, size, {"topic": topic}, {}, {})

    found = small_files([file(10), file(49), file(50), file(5, "b"), file(400)], 100)
    assert [[each.size for each in group] for group in found] == [[10, 49]]


def test_parquet_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="use a Delta or Iceberg table"):
        LakeTable(topics=("a",), output=parse_output(f"parquet:{tmp_path}"), maintain_s=1.0)


def test_a_key_is_deleted_from_the_table(log: Any) -> None:
    add(log, 0, messages(0, 5, keys=["a", "b", "a", "c", "d"]), messages(0, 3, topic="pay", keys=["a"] * 3))
    add(log, 1, messages(5, 2, keys=["a", "a"]))
    assert erase(log, "orders", "a") == (4, 2)
    assert sorted(rows(log)) == [
        ("orders", 1),
        ("orders", 3),
        ("orders", 4),
        *[("pay", at) for at in range(3)],
    ]
    assert erase(log, "orders", "a") == (0, 0)


def test_forget_tells_what_is_still_in_the_log(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("forgotten", 1)
    shared_cluster.send("forgotten", [b"1", b"2"], properties={"KEYS": "customer-{n} everybody"})
    place = ["-n", shared_cluster.namesrv, "-t", "forgotten"]
    words = ["lake", "run", *place, "--to", f"delta:{tmp_path}/lake", "--group", "forgetful", "--once"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    table = f"delta:{tmp_path}/lake"
    done = CliRunner().invoke(
        app, ["spark", "forget", *place, "--key", "customer-1", "--archive", table, "--vacuum"]
    )
    report = json.loads(done.output)
    assert (report["rows"], report["files"]) == (1, 1)
    [left] = report["in_log"]
    assert (left["queue_id"], left["queue_offset"]) == (0, 1)
    assert left["until_ms"] > 1_700_000_000_000
    assert rows(open_log("delta", tmp_path / "lake")) == [("forgotten", 0)]
    files = [path for path in (tmp_path / "lake").rglob("*.parquet") if "_delta_log" not in path.parts]
    assert len(files) == 1
