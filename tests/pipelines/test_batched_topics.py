"""Topics whose queues hold batches (BatchCQ), written and read by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipelines.streams import Stream
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

ROWS = 5000
Row = tuple[str, int, int, bytes]


@pytest.fixture(scope="module")
def topic(spark: SparkSession, shared_cluster: PipelineCluster) -> str:
    """A topic with rows of Spark, so that every batch of the sink is one record."""
    name = fresh_name("batched")
    shared_cluster.create_topic(name, 2, attributes="+queue.type=BatchCQ")
    rows = spark.range(0, ROWS, 1, 2).selectExpr(
        "cast(id as string) as body", "concat('Tag', id % 3) as tags"
    )
    rows.write.format("rocketmq").mode("append").options(**shared_cluster.options(name)).save()
    return name


def origins(cluster: PipelineCluster, topic: str) -> dict[str, dict[str, str]]:
    files = {"path": cluster.files_of(topic), "topic": topic}
    return {"broker": cluster.options(topic), "files": files}


def check(topic: str, found: list[Row]) -> None:
    """Every row is there once, and the offsets of each queue have no gaps."""
    assert sorted(int(body) for *_, body in found) == list(range(ROWS))
    assert {name for name, *_ in found} == {topic}
    for queue_id in {row[1] for row in found}:
        offsets = sorted(row[2] for row in found if row[1] == queue_id)
        assert offsets == list(range(len(offsets)))


@pytest.mark.parametrize("origin", ["broker", "files"])
def test_a_query_reads_the_messages_inside_of_batches(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, origin: str
) -> None:
    options = origins(shared_cluster, topic)[origin]
    frame = spark.read.format("rocketmq").options(**options).load()
    found = frame.selectExpr("topic", "queueId", "queueOffset", "body", "tags", "uniqKey").collect()
    check(topic, [(row.topic, row.queueId, row.queueOffset, bytes(row.body)) for row in found])
    assert all(row.tags == f"Tag{int(row.body) % 3}" for row in found)
    assert len({row.uniqKey for row in found}) == ROWS
    batched = Path(shared_cluster.store_path) / "batchconsumequeue" / topic
    assert list(batched.rglob("*")), "the sink's batches were not stored as one record each"


@pytest.mark.parametrize("origin", ["broker", "files"])
def test_a_stream_that_stops_inside_of_batches_resumes_there(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, origin: str, tmp_path: Path
) -> None:
    options = origins(shared_cluster, topic)[origin]
    stream = Stream(spark, tmp_path, {**options, "startingOffsets": "earliest", "maxRowsPerTrigger": "1717"})
    query = stream.run()
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) > 1
    assert max(batches) <= 1717
    check(topic, stream.rows())
