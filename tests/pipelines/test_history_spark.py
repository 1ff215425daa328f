"""One query over an archive and a log whose beginning has expired: every message once, batch and stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skylark.pipelines.jobs import archive as job
from skylark.pipelines.jobs.endpoints import Input, parse_output
from skylark.pipelines.jobs.session import register
from skylark.pipelines.jobs.sql import query
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner
from tests.pipelines.streams import Stream
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.nightly
COUNT, ARCHIVED = 110, 100


def body(number: int) -> bytes:
    return b'{"number": %d, "text": "' % number + b"x" * 200_000 + b'"}'


@pytest.fixture(params=["delta", "parquet"])
def expired(
    request: pytest.FixtureRequest, spark: SparkSession, cluster: PipelineCluster, tmp_path: Path
) -> dict[str, str]:
    """Options of a source: messages 0 to 99 are archived, the first of them have expired, 10 are new."""
    register(spark)
    cluster.create_topic("aging", 1)
    bodies = [body(number) for number in range(COUNT)]
    cluster.send("aging", bodies[:50], properties={"TAGS": "old"})
    source = Input(namesrv=cluster.namesrv, topic="aging")
    output = parse_output(f"{request.param}:{tmp_path / 'lake'}")
    job.archive(spark, source, output, state=tmp_path / "state", once=True)
    cluster.send("aging", bodies[50:ARCHIVED], properties={"TAGS": "old"})
    job.archive(spark, source, output, state=tmp_path / "state", once=True)
    cluster.send("aging", bodies[ARCHIVED:], properties={"TAGS": "new"})
    cluster.servers.stop()
    min((Path(cluster.store_path) / "commitlog").iterdir()).unlink()
    cluster.servers.start()
    low = cluster.wire.min_offsets([cluster.queue("aging")])[cluster.queue("aging")]
    assert 1 < low < ARCHIVED
    return cluster.options("aging", history=str(output))


def test_a_batch_and_a_stream_read_every_message_once(
    spark: SparkSession, expired: dict[str, str], cluster: PipelineCluster, tmp_path: Path
) -> None:
    def offsets(**more: str) -> list[int]:
        rows = spark.read.format("rocketmq").options(**expired | more).load().select("queueOffset").collect()
        return sorted(row[0] for row in rows)

    assert offsets() == list(range(COUNT))
    assert offsets(startingOffsets='{"aging": {"broker-a": {"0": 30}}}') == list(range(30, COUNT))
    assert offsets(tags="new") == list(range(ARCHIVED, COUNT))
    assert offsets(tags="old", pushdown="true") == list(range(ARCHIVED))
    [first] = spark.read.format("rocketmq").options(**expired).load().where("queueOffset = 7").collect()
    assert (first.topic, first.brokerName, first.body) == ("aging", "broker-a", body(7))
    since = str(round(first.storeTimestamp.timestamp() * 1000))
    assert 0 < len(offsets(startingOffsets=since)) <= COUNT

    stream = Stream(
        spark, tmp_path / "copy", {**expired, "startingOffsets": "earliest", "maxRowsPerTrigger": "30"}
    )
    stream.run()
    assert [row[2] for row in stream.rows()] == list(range(COUNT))
    cluster.send("aging", [b"newest"])
    stream.run()
    assert [row[2] for row in stream.rows()] == list(range(COUNT + 1))
    assert stream.rows()[-1][3] == b"newest"


def test_a_view_covers_archive_and_log(
    spark: SparkSession, expired: dict[str, str], cluster: PipelineCluster
) -> None:
    source = Input(namesrv=cluster.namesrv, topic="aging", options={"history": expired["history"]})
    text = "select count(*), count(distinct queueOffset), sum(value.number), count(bodyText) from aging"
    [row] = query(spark, text, source=source, decode="json").collect()
    assert tuple(row) == (COUNT, COUNT, sum(range(COUNT)), COUNT)


def test_brokers_are_asked_only_for_what_the_table_lacks(expired: dict[str, str]) -> None:
    archived, rest = Planner(load(SourceOptions, expired)).batch()
    assert [(item.from_offset, item.to_offset) for item in archived] == [(0, ARCHIVED)]
    assert [(item.from_offset, item.to_offset) for item in rest] == [(ARCHIVED, COUNT)]
