"""The source in batch queries on a real session: what comes out is what was produced."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skylark.pipelines.schema import COLUMNS
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import BROKER, PipelineCluster
from tests.support.record_rows import rows_of


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


def digests(rows: list[dict[str, object]]) -> list[str]:
    """A hash of all columns of every row, sorted."""

    def text(value: object) -> str:
        return repr(sorted(value.items()) if isinstance(value, dict) else value)

    texts = [repr([(name, text(value)) for name, value in sorted(row.items())]) for row in rows]
    return sorted(hashlib.sha256(item.encode()).hexdigest() for item in texts)


def produced(cluster: PipelineCluster, topic: str) -> list[dict[str, object]]:
    """What the broker holds, pulled and decoded one record at a time, as Spark shows it."""
    rows: list[dict[str, object]] = []
    for queue in cluster.wire.queues(topic):
        at, end = 0, cluster.wire.max_offsets([queue])[queue]
        while at < end:
            records = bytes(cluster.wire.pull(queue, at).records)
            part = rows_of(records, queue.broker_name)
            at += len(part)
            rows += part
    for row in rows:
        del row["bodyText"]
        row["properties"] = dict(row["properties"])  # type: ignore[call-overload]
    return rows


def as_rows(frame: DataFrame) -> list[dict[str, object]]:
    """Rows of Spark in the same shape: times as microseconds."""
    frame = frame.withColumns(
        {name: F.unix_micros(name) for name in ("bornTimestamp", "storeTimestamp") if name in frame.columns}
    )
    rows = [row.asDict() for row in frame.collect()]
    return [{**row, "body": bytes(row["body"])} for row in rows]


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
        ("queueOffset BIGINT, colour STRING", "there is no column 'colour'"),
        ("queueOffset INT", "column 'queueOffset' is of type bigint, not int"),
        ("value STRING", "there is no column 'value'"),
        ("queueId INT NOT NULL, tags STRING NOT NULL", "column 'tags' may be null"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused_in_the_driver(
    spark: SparkSession, orders: Orders, schema: str, complaint: str
) -> None:
    with pytest.raises(AnalysisException, match=complaint):
        read(spark, orders.options(), schema).collect()


def test_found_without_registration(shared_cluster: PipelineCluster, orders: Orders) -> None:
    import pyspark_rocketmq
    from skylark.pipelines.source import RocketMQSource

    assert pyspark_rocketmq.DefaultSource is RocketMQSource
    assert Path(pyspark_rocketmq.__file__).name == "__init__.py"
