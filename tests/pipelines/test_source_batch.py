"""The source in batch queries on a real session: what comes out is what was produced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from skylark.pipelines.schema import COLUMNS
from tests.pipelines.rows import as_rows, digests, produced
from tests.pipelines.streams import Stream
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import BROKER, PipelineCluster


@dataclass(frozen=True)
class Orders:
    """A topic to which no other test of the shared cluster writes, nor another attempt to fill it."""

    cluster: PipelineCluster
    topic: str

    def options(self, **more: object) -> dict[str, str]:
        return self.cluster.options(self.topic, **more)

    def produced(self) -> list[dict[str, object]]:
        return produced(self.cluster, self.topic)


def read(spark: SparkSession, options: dict[str, str], schema: str | None = None) -> DataFrame:
    reader = spark.read.format("rocketmq").options(**options)
    return (reader.schema(schema) if schema else reader).load()


@pytest.fixture(scope="module")
def orders(shared_cluster: PipelineCluster) -> Orders:
    """Four queues with 100 messages in each."""
    topic = fresh_name("batch_orders")
    shared_cluster.create_topic(topic, 4)
    for queue_id in range(4):
        shared_cluster.send(
            topic,
            [f"order {queue_id} {number}".encode() * 5 for number in range(100)],
            queue_id,
            properties={"TAGS": f"Tag{queue_id % 2}", "KEYS": f"k{queue_id}-{{n}}", "a": "b", "ü": "ö"},
        )
    return Orders(shared_cluster, topic)


def test_all_columns_from_the_broker(spark: SparkSession, orders: Orders) -> None:
    frame = read(spark, orders.options())
    assert frame.columns == list(COLUMNS)
    rows = as_rows(frame)
    assert len(rows) == 400
    assert digests(rows) == digests(orders.produced())


def test_all_columns_from_store_files(spark: SparkSession, orders: Orders) -> None:
    options = {
        "path": orders.cluster.files_of(orders.topic),
        "topic": orders.topic,
        "brokerName": BROKER,
    }
    expected = orders.produced()
    assert digests(as_rows(read(spark, options))) == digests(expected)


def test_without_bulk_pulls(spark: SparkSession, orders: Orders) -> None:
    frame = read(spark, orders.options(bulkPulls="false", maxTasks=1))
    assert digests(as_rows(frame)) == digests(orders.produced())


def test_a_schema_prunes_columns(spark: SparkSession, orders: Orders) -> None:
    frame = read(spark, orders.options(), "queueOffset BIGINT, tags STRING")
    assert frame.columns == ["queueOffset", "tags"]
    assert frame.where("tags = 'Tag1'").count() == 200


def test_only_what_a_message_may_lack_may_be_null(spark: SparkSession, orders: Orders) -> None:
    frame = read(spark, orders.options())
    assert {field.name for field in frame.schema if field.nullable} == {"uniqKey", "tags", "keys"}
    given = "topic STRING, body BINARY NOT NULL, tags STRING"
    chosen = read(spark, orders.options(), given)
    assert [field.nullable for field in chosen.schema] == [True, False, True]
    bodies = sorted(bytes(row["body"]) for row in chosen.collect())
    assert bodies == sorted(bytes(row["body"]) for row in frame.select("body").collect())


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("queueOffset BIGINT, colour STRING", "unknown column 'colour'"),
        ("queueOffset INT", "column 'queueOffset' must be of type bigint, not int"),
        ("value STRING", "unknown column 'value'"),
        ("queueId INT NOT NULL, tags STRING NOT NULL", "column 'tags' may be null"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused_in_the_driver(
    spark: SparkSession, orders: Orders, schema: str, complaint: str
) -> None:
    with pytest.raises(AnalysisException, match=complaint):
        read(spark, orders.options(), schema).collect()


def test_found_without_registration(spark: SparkSession, orders: Orders) -> None:
    fresh = spark.newSession()  # what is registered is a session's own
    assert read(fresh, orders.options()).count() == 400


def test_all_columns_of_a_stream_that_is_replayed(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    """Three batches, the last of them twice: every row as it was produced, and once."""
    options = orders.options(startingOffsets="earliest", maxRowsPerTrigger=150)
    stream = Stream(spark, tmp_path, options, schema=None)
    stream.run()
    stream.replay_last_batch()
    stream.run()
    assert digests(as_rows(stream.written())) == digests(orders.produced())
