"""Batches of a Parquet table in a store without rename: committed once, wherever a writer ends."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.pipelines.lake.parquet_files import FileLayout, PartitionedFiles, TableFile
from skylark.pipelines.lake.parquet_log import ParquetLog
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_log import BatchName
from tests.support.simulated_objects import Killed, SimulatedObjects

PARTS = ("a", "b", "c")
LAYOUT = FileLayout(columns=("part", "number"), partition_by=("part",), hive_names=True)
SCHEMA = pa.schema([("part", pa.string()), ("number", pa.int64())])
REQUESTS_OF_A_BATCH = 2 + len(PARTS) * 3
"""The table's shape, a put for each file, the manifest, a copy and a deletion for each file."""


def write(log: ParquetLog, name: str, first: int) -> list[TableFile]:
    files = PartitionedFiles(log.written, name, LAYOUT)
    for number, part in enumerate(PARTS):
        row = {"part": part, "number": first + number}
        files.write(pa.RecordBatch.from_pylist([row], SCHEMA))
    return files.finish()


def attempt(store: SimulatedObjects, name: str, number: int) -> None:
    """As a restarted pipeline does it: a batch that may have been committed is written under another name."""
    log = ParquetLog(store)
    log.prepare(SCHEMA, ("part",))
    batch = BatchName("query", number)
    progress = CommitProgress(batch.application, number, "archive", {}, "")
    log.add(batch, write(log, f"{name}-{number}", 10 * number), progress)


def numbers(store: SimulatedObjects) -> list[int]:
    """What a reader of plain Parquet files finds."""
    found: list[int] = []
    for file in store.list():
        if not file.name.startswith("_skylark/"):
            found += pq.read_table(store.input(file.name))["number"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("stop_at", range(1, REQUESTS_OF_A_BATCH + 1))
def test_a_batch_is_visible_once_wherever_its_writer_ends(stop_at: int, is_done_first: bool) -> None:
    objects: dict[str, bytes] = {}
    with pytest.raises(Killed):
        attempt(SimulatedObjects(objects, stop_at=stop_at, is_done_first=is_done_first), "first", 0)
    assert set(numbers(SimulatedObjects(objects))) <= {0, 1, 2}
    attempt(SimulatedObjects(objects), "second", 0)
    attempt(SimulatedObjects(objects), "second", 1)
    assert numbers(SimulatedObjects(objects)) == [0, 1, 2, 10, 11, 12]
    log = ParquetLog(SimulatedObjects(objects))
    log.sweep(0)
    assert list(log.written.list()) == []
    assert [entry.batch for entry in log.commits(BatchName("query", 0).application)] == [0, 1]


def test_the_number_of_requests_is_the_one_that_the_test_above_covers() -> None:
    store = SimulatedObjects()
    attempt(store, "first", 0)
    assert len(store.requests) == REQUESTS_OF_A_BATCH


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=6))
def test_any_number_of_failed_attempts_leaves_one_batch(ends: list[tuple[int, bool]]) -> None:
    objects: dict[str, bytes] = {}
    for number, (stop_at, is_done_first) in enumerate(ends):
        try:
            attempt(
                SimulatedObjects(objects, stop_at=stop_at, is_done_first=is_done_first), f"try{number}", 0
            )
        except Killed:
            pass
    attempt(SimulatedObjects(objects), "last", 0)
    assert numbers(SimulatedObjects(objects)) == [0, 1, 2]


def test_the_second_of_two_writers_completes_the_batch_of_the_first() -> None:
    objects: dict[str, bytes] = {}
    first, second = ParquetLog(SimulatedObjects(objects)), ParquetLog(SimulatedObjects(objects))
    first.prepare(SCHEMA, ("part",))
    mine, theirs = write(first, "first", 0), write(second, "second", 100)
    assert first.add(BatchName("query", 0), mine)
    assert not second.add(BatchName("query", 0), theirs)
    assert numbers(SimulatedObjects(objects)) == [0, 1, 2]
    assert sorted(second.sweep(0)) == sorted(file.path for file in theirs)
