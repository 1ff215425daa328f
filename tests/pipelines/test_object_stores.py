"""Tables in a real S3 server that fails: refused requests, lost replies, a killed server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.pipelines.lake.delta_log import DeltaLog
from skylark.pipelines.lake.location import open_files
from skylark.pipelines.lake.progress import CommitProgress
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake.table_reader import read_file, schema_of
from skylark.pipelines.lake.table_sink import WrittenFiles
from skylark.pipelines.schema import arrow_schema
from skylark.processes import python_command
from tests.pipelines.test_archive_log import NOON, archive, messages, table_writer, write
from tests.support.faulty_http import FaultyHttp
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.s3_server import BUCKET, SECRET_KEY, S3Server, use
from tests.support.spark_program import last_object, run

pytestmark = [pytest.mark.nightly, pytest.mark.interop("go")]
BOTH = pytest.mark.parametrize("kind", ["delta", "parquet"])
MANIFEST = {"delta": r"_delta_log/0+1\.json", "parquet": r"_skylark/batches/"}
"""The object whose put decides about batch 0."""
SESSION_TIMEOUT_S = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def proxy(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyHttp]:
    with FaultyHttp(tmp_path / "proxy", server.address) as running:
        use(monkeypatch, running.endpoint)
        yield running


@pytest.fixture
def uri(proxy: FaultyHttp) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}/raw orders"


def offsets(kind: str, uri: str) -> list[int]:
    """The rows that a reader finds, by offset."""
    log = open_log(kind, uri)
    schema = arrow_schema(schema_of(log))
    found: list[int] = []
    for file in log.files():
        for batch in read_file(log.store, file.path, file.partition, schema):
            assert set(batch.column("topic").to_pylist()) == {"orders"}
            found += batch.column("queueOffset").to_pylist()
    return sorted(found)


def test_small_files_are_created_once_and_read_back(uri: str, proxy: FaultyHttp) -> None:
    files = open_files(uri)
    assert files.create("a/one.json", b"1")
    assert not files.create("a/one.json", b"2")
    assert files.read("a/one.json") == b"1"
    assert [file.name for file in files.list()] == ["a/one.json"]
    files.move("a/one.json", "b/two.json")
    files.move("a/one.json", "b/two.json")  # again
    assert (files.exists("a/one.json"), files.exists("b/two.json")) == (False, True)
    files.delete("b/two.json")
    files.delete("b/two.json")
    with pytest.raises(FileNotFoundError, match=r"raw orders/b/two\.json"):
        files.read("b/two.json")


@pytest.mark.parametrize("kind", ["refuse", "drop", "lose"])
def test_a_create_succeeds_although_its_first_request_fails(uri: str, proxy: FaultyHttp, kind: str) -> None:
    proxy.fail("PUT", "one.json", kind)
    files = open_files(uri)
    assert files.create("one.json", b"mine")
    assert len(proxy.failed) == 1
    assert not files.create("one.json", b"theirs")


def test_a_large_file_is_written_in_parts(uri: str, proxy: FaultyHttp) -> None:
    with open_files(uri).output("large") as sink:
        for number in range(20):
            sink.write(bytes([number]) * (1 << 20))
    with open_files(uri).input("large") as source:
        assert source.read_at(2, (19 << 20) - 1) == bytes([18, 19])
        assert source.size() == 20 << 20
    assert sum("uploadId" in request for request in proxy.requests) >= 3


@BOTH
@pytest.mark.parametrize("fault", ["none", "refuse", "drop", "lose"])
def test_a_batch_is_in_the_table_once(uri: str, proxy: FaultyHttp, kind: str, fault: str) -> None:
    log: Any = archive(uri, kind)  # type: ignore[arg-type]
    files = write(log, "first", messages(0, 10))
    if fault != "none":
        proxy.fail("PUT", MANIFEST[kind], fault)
    progress = CommitProgress(BatchName("q", 0).application, 0, "archive", {}, "", 10, 10)
    assert log.add(BatchName("q", 0), files, progress)
    assert len(proxy.failed) == (fault != "none")
    assert not log.add(BatchName("q", 0), write(log, "second", messages(0, 10)))  # a replay
    assert log.add(BatchName("q", 1), write(log, "second-1", messages(10, 5)))
    assert offsets(kind, uri) == list(range(15))
    assert open_log(kind, uri).commits(progress.application) == [progress]
    assert len(log.sweep(0)) == 1


@BOTH
def test_a_batch_whose_server_is_killed_is_committed_by_the_next_attempt(
    uri: str, proxy: FaultyHttp, server: S3Server, kind: str
) -> None:
    log: Any = archive(uri, kind)  # type: ignore[arg-type]
    files = write(log, "first", messages(0, 10))
    server.kill()
    server.start()
    assert log.add(BatchName("q", 0), files)
    assert offsets(kind, uri) == list(range(10))


@BOTH
def test_files_of_a_batch_that_was_given_up_are_deleted(uri: str, proxy: FaultyHttp, kind: str) -> None:
    log: Any = archive(uri, kind)  # type: ignore[arg-type]
    written = WrittenFiles("q", msgspec.msgpack.encode(write(log, "run", messages(0, 2))))
    writer = table_writer(log)
    writer.abort([written], 0)
    assert log.sweep(0) == []
    assert offsets(kind, uri) == []


@BOTH
def test_upkeep_works_in_a_store(uri: str, proxy: FaultyHttp, kind: str) -> None:
    log: Any = archive(uri, kind)  # type: ignore[arg-type]
    old = messages(5, 5, at=NOON - timedelta(days=10))
    log.add(BatchName("q", 0), write(log, "n", messages(0, 3), old))
    log.add(BatchName("q", 1), write(log, "m", messages(3, 2)))
    assert log.keep_days(7, NOON) == 1
    assert offsets(kind, uri) == list(range(5))
    if isinstance(log, DeltaLog):
        assert log.compact() == {"removed": 2, "added": 1}
        assert offsets(kind, uri) == list(range(5))


@BOTH
def test_a_topic_is_archived_resumed_and_queried_in_a_store(
    shared_cluster: PipelineCluster, proxy: FaultyHttp, uri: str, tmp_path: Path, kind: str
) -> None:
    topic = f"S{uuid.uuid4().hex[:10]}"
    shared_cluster.create_topic(topic, 3)
    for fault in ("refuse", "drop", "lose"):
        proxy.fail("PUT", r"\.parquet", fault)
        proxy.fail("PUT", MANIFEST[kind], fault)
    arguments = [shared_cluster.namesrv, topic, f"{kind}:{uri}", str(tmp_path / "made")]
    command = python_command("tests.pipelines.lake_session", *arguments)
    found = last_object(run(command, tmp_path / "output.log", SESSION_TIMEOUT_S))
    assert len(proxy.failed) == 6
    assert found["written"] == [300, 150, 0, 30]
    rows = found["rows"]
    ends = {queue_id: sum(row[0] == queue_id for row in rows) for queue_id in range(3)}
    assert sum(ends.values()) == 480
    assert rows == [[queue_id, at] for queue_id, end in ends.items() for at in range(end)]
    assert (found["topics"], found["of_2020"], found["of_topic"]) == ([topic], 0, 480)
    assert_no_secret(tmp_path)


def assert_no_secret(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert SECRET_KEY.encode() not in path.read_bytes(), path
