"""The source against Apache's own broker and the files that it writes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.pipelines.rows import as_rows, digests, produced
from tests.pipelines.streams import Stream, rows_done, until
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

pytestmark = pytest.mark.interop("java", "mvn")
TOPIC = "apache_orders"


@pytest.fixture(scope="module")
def apache(apache_cluster: PipelineCluster) -> PipelineCluster:
    """Two queues of 100 messages; the second half of each is stored later than the first."""
    apache_cluster.create_topic(TOPIC, 2)
    for half in range(2):
        for queue_id in range(2):
            apache_cluster.send(
                TOPIC,
                [f"{queue_id}-{half * 50 + number}".encode() for number in range(50)],
                queue_id,
                properties={"TAGS": f"Half{half}", "KEYS": "k{n}", "size": "{n}"},
                in_flight_max=1,  # Apache's broker does not keep the order of what comes together
            )
        time.sleep(0.2)
    return apache_cluster


def test_batches_filters_times_and_files(spark: SparkSession, apache: PipelineCluster) -> None:
    def read(**options: str) -> list[tuple[int, int, bytes]]:
        frame = spark.read.format("rocketmq").options(**options, topic=TOPIC).load()
        return sorted(
            (row[0], row[1], bytes(row[2]))
            for row in frame.select("queueId", "queueOffset", "body").collect()
        )

    namesrv = apache.namesrv
    everything = [(queue_id, at, f"{queue_id}-{at}".encode()) for queue_id in range(2) for at in range(100)]
    assert read(namesrv=namesrv) == everything
    assert read(namesrv=namesrv, bulkPulls="false") == everything
    assert read(namesrv=namesrv, tags="Half1") == [row for row in everything if row[1] >= 50]
    assert read(namesrv=namesrv, sql92="size > 47") == [row for row in everything if row[1] % 50 > 47]
    frame = spark.read.format("rocketmq").options(namesrv=namesrv, topic=TOPIC, tags="Half1").load()
    first_ms = frame.agg(F.min(F.unix_millis("storeTimestamp"))).collect()[0][0]
    assert read(namesrv=namesrv, startingOffsets=str(first_ms - 50)) == [
        row for row in everything if row[1] >= 50
    ]
    assert read(namesrv=namesrv, startingOffsets="-0s") == []
    until(lambda: read(path=apache.store_path) == everything, "the files")


@pytest.mark.nightly
def test_a_stream_and_its_group(spark: SparkSession, apache: PipelineCluster, tmp_path: Path) -> None:
    group = fresh_name("spark-group")
    options = apache.options(TOPIC, startingOffsets="earliest", maxRowsPerTrigger=60, groupId=group)
    stream = Stream(spark, tmp_path, options)
    stream.run()
    assert len(stream.rows()) == len(set(stream.rows())) == 200
    committed = {queue: apache.wire.group_offset(group, queue) for queue in apache.wire.queues(TOPIC)}
    assert sum(value or 0 for value in committed.values()) == 180


@pytest.mark.nightly
def test_a_stream_while_queues_come_and_the_broker_restarts(
    spark: SparkSession, apache: PipelineCluster, tmp_path: Path
) -> None:
    """At the end its last batch is replayed, and every column of every row is as it was produced."""
    topic = fresh_name("apache_grow")
    apache.create_topic(topic, 2)
    apache.send(topic, [b"first"] * 20, 0, properties={"TAGS": "A", "KEYS": "k{n}", "a": "b"})
    options = apache.options(topic, startingOffsets="earliest", pollInterval="50ms", routeRefresh="200ms")
    stream = Stream(spark, tmp_path, options, schema=None)
    query = stream.start(processingTime="100 milliseconds")
    try:
        until(lambda: rows_done(query) == 20, "the first rows")
        apache.create_topic(topic, 8)
        for queue_id in range(2, 8):
            apache.send(topic, [b"new queue"] * 5, queue_id)
        until(lambda: rows_done(query) == 50, "rows of the new queues")
        apache.servers.stop()
        apache.servers.start()
        apache.send(topic, [b"after the restart"] * 10, 7)
        until(lambda: rows_done(query) == 60, "rows after the restart")
    finally:
        query.stop()
    stream.replay_last_batch()
    stream.run()
    assert digests(as_rows(stream.written())) == digests(produced(apache, topic))
