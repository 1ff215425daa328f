"""Single messages of an archive and a log whose beginning has expired, by the command line and a consumer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from skylark import PullConsumer
from skylark.cli.main import app
from skylark.errors import ClientError
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake_service.engines import LocalEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import TableArchiver
from tests.support.pipeline_cluster import PipelineCluster

COUNT, ARCHIVED = 110, 100
BODY = b"x" * 200_000


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCluster]:
    """100 messages are archived, the first of them have expired, 10 are new."""
    home = tmp_path_factory.mktemp("aged")
    with PipelineCluster(home / "cluster") as cluster:
        cluster.create_topic("aging", 1)
        table = LakeTable(topics=("aging",), output=parse_output(f"delta:{home / 'lake'}"))
        lake = LakeService(
            [TableArchiver(LakeRules(namesrv=cluster.namesrv, tables=[table]), table, LocalEngine(), "one")]
        )
        for first in (0, ARCHIVED // 2):
            bodies = [b"%d " % number + BODY for number in range(first, first + ARCHIVED // 2)]
            cluster.send("aging", bodies, properties={"TAGS": "old", "KEYS": "k{n}"})
            lake.run_once()
        bodies = [b"%d " % number + BODY for number in range(ARCHIVED, COUNT)]
        cluster.send("aging", bodies, properties={"TAGS": "new"})
        cluster.servers.stop()
        min((Path(cluster.store_path) / "commitlog").iterdir()).unlink()
        cluster.servers.start()
        low = cluster.wire.min_offsets([cluster.queue("aging")])[cluster.queue("aging")]
        assert 1 < low < ARCHIVED
        yield cluster


def skylark(cluster: PipelineCluster, *words: str) -> Result:
    return CliRunner().invoke(app, ["message", *words, "--namesrv", cluster.namesrv, "--json"])


def listed(cluster: PipelineCluster, *words: str) -> list[int]:
    found = skylark(cluster, "list", "aging", *words)
    assert found.exit_code == 0, found.output
    return [json.loads(line)["offset"] for line in found.stdout.splitlines()]


def test_a_list_covers_archive_and_log(aged: PipelineCluster) -> None:
    assert listed(aged)[0] > 0
    assert listed(aged, "--history", "lake") == list(range(COUNT))
    assert listed(aged, "--history", "lake", "--limit", "3") == [0, 1, 2]
    assert listed(aged, "--history", "lake", "--tags", "old") == list(range(ARCHIVED))
    assert listed(aged, "--history", "lake", "--tags", "new || other") == list(range(ARCHIVED, COUNT))
    lines = skylark(aged, "list", "aging", "--history", "lake").stdout.splitlines()
    times = [json.loads(line)["stored_ms"] for line in lines]
    span = ["--since", str(times[7]), "--until", str(times[105])]
    wanted = [number for number, at in enumerate(times) if times[7] <= at < times[105]]
    assert listed(aged, "--history", "lake", *span) == wanted


def test_a_message_of_the_archive_is_shown_like_one_of_the_log(aged: PipelineCluster) -> None:
    gone = skylark(aged, "at", "aging", "broker-a:0", "7")
    assert gone.exit_code != 0
    found = json.loads(skylark(aged, "at", "aging", "broker-a:0", "7", "--history", "lake").stdout)
    assert (found["offset"], found["tags"], found["keys"]) == (7, "old", ["k7"])
    assert found["body"] == f"7 {BODY.decode()}"
    kept = ["at", "aging", "broker-a:0", str(ARCHIVED - 1)]
    from_log = json.loads(skylark(aged, *kept).stdout)
    lines = skylark(aged, "list", "aging", "--history", "lake", "--limit", str(ARCHIVED)).stdout.splitlines()
    from_table = json.loads(lines[-1])
    unrecorded = ("size", "body_crc")
    assert {name: value for name, value in from_table.items() if name not in unrecorded} == {
        name: value for name, value in from_log.items() if name not in unrecorded
    }


def test_a_topic_without_a_lake_is_refused_with_a_reason(aged: PipelineCluster) -> None:
    aged.create_topic("loose", 1)
    found = skylark(aged, "list", "loose", "--history", "lake")
    assert (found.exit_code, "no lake archives topic loose" in found.output) == (2, True)


def test_a_consumer_that_seeks_to_an_archived_offset_learns_where_it_is(aged: PipelineCluster) -> None:
    queue = aged.queue("aging")
    with PullConsumer(namesrv=aged.namesrv, group="late") as consumer:
        consumer.assign([queue])
        with pytest.raises(ClientError, match=r"min offset = \d+.*; older messages are archived in delta:/"):
            consumer.seek(queue, 0)
        with pytest.raises(ClientError, match=r"max offset = 110$"):
            consumer.seek(queue, COUNT + 1)
