"""A table of Iceberg's own REST catalog in an S3 server: filled by the lake, read by others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from benchmarks.peers.java import jvm_command
from skylark.pipelines.history import TopicHistory
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.lake_service.engines import LocalEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import (
    TableArchiver,
    committed_offsets,
    maintain_table,
    open_table,
    query_name,
)
from skylark.pipelines.lake_service.verification import compare
from skylark.pipelines.options import SourceOptions, load
from skylark.processes import run
from tests.support import s3_server
from tests.support.faulty_http import FaultyHttp
from tests.support.iceberg_rest import IcebergRestServer, use_rest_catalog
from tests.support.java import compiled
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "go"), pytest.mark.timeout(600)]

SPARK_POM = Path(__file__).parent / "java" / "pom-iceberg-spark.xml"
SPARK_TIMEOUT_S = 300
SPARK_OPTIONS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs",
        "sun.security.action", "sun.util.calendar",
    )
]  # fmt: skip
"""As Spark starts its own programs."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRestServer]:
    home = tmp_path_factory.mktemp("iceberg")
    with s3_server.S3Server(home / "s3") as store, IcebergRestServer(home / "rest", store.endpoint) as server:
        with pytest.MonkeyPatch.context() as patch:
            s3_server.use(patch, store.endpoint)
            yield server


@pytest.fixture
def proxy(
    catalog: IcebergRestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyHttp]:
    """The catalog, with faults."""
    with FaultyHttp(tmp_path / "proxy", catalog.address) as running:
        use_rest_catalog(monkeypatch, running.endpoint)
        yield running


class RestLake:
    """A topic and its table."""

    def __init__(self, cluster: PipelineCluster) -> None:
        self.cluster, self.topic = cluster, fresh_name("rest")
        cluster.create_topic(self.topic, 2)
        self.name = f"raw.{self.topic.replace('-', '_')}"
        self.table = LakeTable(
            topics=(self.topic,), output=parse_output(f"iceberg:{self.name}", partitionBy="dt,topic")
        )
        self.rules = LakeRules(namesrv=cluster.namesrv, group=f"g-{self.topic}", tables=[self.table])
        self.sent = 0

    def send(self, count: int) -> None:
        self.cluster.send(self.topic, [b"%d" % number for number in range(count)], self.sent % 2)
        self.sent += count

    def archiver(self) -> TableArchiver:
        return TableArchiver(self.rules, self.table, LocalEngine(), "one")

    def check(self) -> None:
        log = open_table(self.table)
        ends, _ = committed_offsets(log, self.rules.group)
        options = load(SourceOptions, self.cluster.options(self.topic))
        found = compare(log, options, self.cluster.wire.min_offsets(list(ends)), ends)
        assert (found.faults, found.in_table, found.compared) == ([], self.sent, self.sent)


def test_a_topic_is_archived_read_and_maintained(shared_cluster: PipelineCluster, proxy: FaultyHttp) -> None:
    lake = RestLake(shared_cluster)
    for count in (10, 7, 20):
        lake.send(count)
        LakeService([lake.archiver()]).run_once()
    lake.check()
    store = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
    table = load_catalog("default", **store).load_table(lake.name)
    assert table.location().startswith(f"s3://{s3_server.BUCKET}/warehouse/")
    assert table.format_version == 2
    assert [field.name for field in table.spec().fields] == ["dt", "topic"]
    rows = table.scan(row_filter=f"topic = '{lake.topic}'").to_arrow()
    assert rows.num_rows == lake.sent
    with duckdb.connect() as connection:
        [(count, last)] = connection.execute("select count(*), max(queueOffset) from rows").fetchall()
    assert (count, last) == (lake.sent, max(rows["queueOffset"].to_pylist()))
    assert maintain_table(lake.table).joined == 3
    lake.check()
    ends = TopicHistory("iceberg", lake.name).ends
    assert sum(ends.values()) == lake.sent


def test_spark_with_icebergs_own_jar_reads_the_table(
    shared_cluster: PipelineCluster, proxy: FaultyHttp, catalog: IcebergRestServer, tmp_path: Path
) -> None:
    lake = RestLake(shared_cluster)
    for count in (10, 7, 20):
        lake.send(count)
        LakeService([lake.archiver()]).run_once()
    columns = "count(*), count(distinct queueId, queueOffset), min(cast(body as string))"
    query = f"select {columns} from lake.{lake.name} where topic = '{lake.topic}'"  # noqa: S608
    program = compiled(SPARK_POM, [SPARK_POM.parent / "ReadIceberg.java"])
    command = jvm_command(
        program, "ReadIceberg", catalog.endpoint, os.environ["AWS_ENDPOINT_URL"], query,
        home=tmp_path, heap_mb=1024, options=SPARK_OPTIONS,
    )  # fmt: skip
    log = tmp_path / "spark.log"
    run(command, log=log, timeout_s=SPARK_TIMEOUT_S)
    rows = [line.split("\t")[1:] for line in log.read_text().splitlines() if line.startswith("row\t")]
    assert rows == [[str(lake.sent), str(lake.sent), "0"]]


@pytest.mark.parametrize("fault", ["refuse", "drop", "lose"])
def test_a_commit_that_fails_is_done_once(
    shared_cluster: PipelineCluster, proxy: FaultyHttp, fault: str
) -> None:
    lake = RestLake(shared_cluster)
    lake.send(10)
    archiver = lake.archiver()
    archiver.turn()
    lake.send(5)
    proxy.fail("POST", f"/tables/{lake.name.partition('.')[2]}$", fault)
    for _ in range(2):  # the first turn may fail
        try:
            archiver.turn()
        except Exception as error:  # noqa: BLE001 - of the catalog's library
            archiver.failed(error)
    assert len(proxy.failed) == 1
    lake.check()
    assert open_table(lake.table).last_batch(BatchName(query_name(lake.rules.group), 0).application) == 1


def test_the_catalog_may_be_killed_between_two_batches(
    shared_cluster: PipelineCluster, proxy: FaultyHttp, catalog: IcebergRestServer
) -> None:
    lake = RestLake(shared_cluster)
    lake.send(10)
    archiver = lake.archiver()
    archiver.turn()
    catalog.kill()
    lake.send(10)
    with pytest.raises(Exception, match=r"Connection|refused|closed|reset"):
        archiver.turn()
    catalog.start()
    assert archiver.turn().messages == 10
    lake.check()
