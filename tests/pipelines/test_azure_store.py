"""Tables in Azure's blob store, as Microsoft's emulator serves it: a batch is committed once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
from collections.abc import Iterator
from datetime import UTC, datetime
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
from skylark.processes import PortReservation, Server, listens
from tests.pipelines.test_archive_log import archive, messages, write
from tests.pipelines.test_object_stores import offsets
from tests.support.foreign import node_modules
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

pytestmark = [pytest.mark.nightly, pytest.mark.interop("node")]
PACKAGE = Path(__file__).parent / "azurite" / "package.json"
ACCOUNT, CONTAINER = "devstoreaccount1", "lake"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's account and key are the same everywhere."""
VERSION = "2021-08-06"


class Azurite(Server):
    """The emulator with one container, in memory."""

    title = "azurite"

    def __init__(self, home: Path) -> None:
        super().__init__(home, PortReservation(0))
        self._program = node_modules(PACKAGE) / ".bin" / "azurite-blob"

    def command(self, start: int) -> list[str]:
        options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
        return [str(self._program), "--blobPort", str(self.port), *options]

    def wait_until_serving(self) -> None:
        self._running().wait_until(lambda: listens(self.address, 1), "listening", self.start_timeout_s)

    def create_container(self) -> None:
        """As obstore has no request for it: signed with the shared key."""
        date = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
        place = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{VERSION}\n{place}"
        signature = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers = {
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
            "Content-Length": "0",
        }
        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers=headers)
        assert connection.getresponse().status == http.HTTPStatus.CREATED
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with Azurite(tmp_path_factory.mktemp("azure")) as running:
        running.create_container()
        yield running


@pytest.fixture
def uri(server: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://{server.address}")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    return f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{fresh_name('raw')}"


def test_small_files_are_created_once_and_large_ones_written_in_parts(uri: str) -> None:
    files = open_files(uri)
    assert files.create("a/one.json", b"1")
    assert not files.create("a/one.json", b"2")
    assert files.read("a/one.json") == b"1"
    files.move("a/one.json", "b/two.json")
    assert [file.name for file in files.list()] == ["b/two.json"]
    files.delete("b/two.json")
    assert not files.exists("b/two.json")
    with files.output("large") as sink:
        for number in range(20):
            sink.write(bytes([number]) * (1 << 20))
    with files.input("large") as source:
        assert source.read_at(2, (19 << 20) - 1) == bytes([18, 19])


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_batch_is_in_the_table_once(uri: str, kind: str) -> None:
    log: Any = archive(uri, kind)  # type: ignore[arg-type]
    assert log.add(BatchName("q", 0), write(log, "first", messages(0, 10)))
    assert not log.add(BatchName("q", 0), write(log, "second", messages(0, 10)))  # a replay
    assert log.add(BatchName("q", 1), write(log, "third", messages(10, 5)))
    assert offsets(kind, uri) == list(range(15))
    assert len(log.sweep(0)) == 1


def test_the_lake_archives_a_topic(uri: str, shared_cluster: PipelineCluster) -> None:
    topic = fresh_name("azure")
    shared_cluster.create_topic(topic, 2)
    table = LakeTable(topics=(topic,), output=parse_output(f"delta:{uri}", partitionBy="dt"))
    rules = LakeRules(namesrv=shared_cluster.namesrv, group=topic, tables=[table])
    for queue_id in (0, 1):
        shared_cluster.send(topic, [b"%d" % number for number in range(20)], queue_id)
        assert LakeService([TableArchiver(rules, table, LocalEngine(), "one")]).run_once() == 20
    ends, _ = committed_offsets(open_table(table), rules.group)
    options = load(SourceOptions, shared_cluster.options(topic))
    found = compare(open_table(table), options, shared_cluster.wire.min_offsets(list(ends)), ends)
    assert (found.faults, found.in_table, found.compared) == ([], 40, 40)
