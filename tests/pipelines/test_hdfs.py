"""Tables in Hadoop's file system, served by its own name node and data node: a batch is committed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake.location import open_files
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake_service.engines import LocalEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import TableArchiver, committed_offsets, open_table
from skylark.pipelines.lake_service.verification import compare
from skylark.pipelines.options import SourceOptions, load
from skylark.processes import PortReservation, Server, free_ports
from tests.pipelines.test_archive_log import archive, messages, write
from tests.pipelines.test_object_stores import offsets
from tests.support.java import jars_of
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java")]
POM = Path(__file__).parent / "java" / "pom-hadoop.xml"


class Hdfs(Server):
    """A name node and a data node in one process."""

    title = "hdfs"

    def __init__(self, home: Path) -> None:
        super().__init__(home, PortReservation(0))
        self._jars = jars_of(POM)
        self._ready = home / "ready.json"

    def command(self, start: int) -> list[str]:
        places = [f"-Dhadoop.log.dir={self.home}/logs", f"-Dtest.build.data={self.home}/data"]
        ports = ["-nnport", str(self.port), "-httpport", str(free_ports())]
        program = "org.apache.hadoop.test.MiniDFSClusterManager"
        return [
            "java", "-Xmx512m", "-cp", str(self._jars), *places, program,
            "-datanodes", "1", "-format", *ports, "-writeDetails", str(self._ready),
        ]  # fmt: skip

    def wait_until_serving(self) -> None:
        self._running().wait_until(self._ready.exists, "formatted and serving", 180)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


@pytest.fixture
def uri(server: Hdfs) -> str:
    return f"hdfs://{server.address}/{fresh_name('raw')}"


def test_files_are_created_once_replaced_moved_and_listed(uri: str) -> None:
    files = open_files(uri)
    assert list(files.list()) == []
    assert files.create("a/one.json", b"1")
    assert not files.create("a/one.json", b"2")
    assert files.read("a/one.json") == b"1"
    files.replace("a/one.json", b"3")
    files.move("a/one.json", "b/two.json")
    files.move("a/one.json", "b/two.json")  # an earlier attempt has moved it
    assert [file.name for file in files.list()] == ["b/two.json"]
    assert [file.name for file in files.below("b").list()] == ["two.json"]
    assert files.read("b/two.json") == b"3"
    files.delete("b/two.json")
    files.delete("b/two.json")
    assert not files.exists("b/two.json")
    with files.output("large") as sink:
        for number in range(20):
            sink.write(bytes([number]) * (1 << 20))
    with files.input("large") as source:
        assert source.size() == 20 << 20
        assert source.read_at(2, (19 << 20) - 1) == bytes([18, 19])
    with pytest.raises(FileNotFoundError):
        files.read("none")


def test_a_name_node_that_is_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = "<property><name>dfs.client.failover.max.attempts</name><value>1</value></property>"
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{attempts}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    address = f"127.0.0.1:{free_ports()}"
    with pytest.raises(OSError, match=f"hdfs://{address}/raw/one"):
        open_files(f"hdfs://{address}/raw").read("one")


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_batch_is_in_the_table_once(uri: str, kind: str) -> None:
    log: Any = archive(uri, kind)  # type: ignore[arg-type]
    assert log.add(BatchName("q", 0), write(log, "first", messages(0, 10)))
    assert not log.add(BatchName("q", 0), write(log, "second", messages(0, 10)))  # a replay
    assert log.add(BatchName("q", 1), write(log, "third", messages(10, 5)))
    assert offsets(kind, uri) == list(range(15))
    assert len(log.sweep(0)) == 1


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_the_lake_archives_a_topic(uri: str, kind: str, shared_cluster: PipelineCluster) -> None:
    topic = fresh_name("hdfs")
    shared_cluster.create_topic(topic, 2)
    table = LakeTable(topics=(topic,), output=parse_output(f"{kind}:{uri}", partitionBy="dt"))
    rules = LakeRules(namesrv=shared_cluster.namesrv, group=topic, tables=[table])
    for queue_id in (0, 1):
        shared_cluster.send(topic, [b"%d" % number for number in range(20)], queue_id)
        assert LakeService([TableArchiver(rules, table, LocalEngine(), "one")]).run_once() == 20
    ends, _ = committed_offsets(open_table(table), rules.group)
    options = load(SourceOptions, shared_cluster.options(topic))
    found = compare(open_table(table), options, shared_cluster.wire.min_offsets(list(ends)), ends)
    assert (found.faults, found.in_table, found.compared) == ([], 40, 40)
