"""The source in streams: restarts, replays, servers that go away, queues that come, data that ages out."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from skylark.clock import SystemClock
from skylark.errors import SettingsError
from skylark.model.message import PutMessage
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.pipelines import planner
from skylark.pipelines.jobs.queries import plain_error
from skylark.pipelines.message_source import DataLost
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.schema import columns_schema
from skylark.pipelines.source import RocketMQSource, StreamReader
from skylark.protocol.requests.topic import DeleteTopicInBroker, UpdateAndCreateTopic
from skylark.settings import StoreSettings
from skylark.store.disk import RealDisk
from tests.pipelines.streams import WAIT_S, Stream, rows_done, until
from tests.support.directory import flip
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import SETTINGS, PipelineCluster
from tests.support.skylark_servers import SkylarkBroker
from tests.support.store import opened, put_all

MAGIC_AT = 4
"""Of a record, behind its size."""


def bodies(queue_id: int, first: int, end: int) -> list[bytes]:
    return [f"{queue_id}-{number}".encode() for number in range(first, end)]


def expected(topic: str, counts: dict[int, int]) -> list[tuple[str, int, int, bytes]]:
    return sorted(
        (topic, queue_id, number, f"{queue_id}-{number}".encode())
        for queue_id, count in counts.items()
        for number in range(count)
    )


def test_available_now_in_steps_restart_and_replay(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic = fresh_name("steps")
    cluster = shared_cluster
    cluster.create_topic(topic, 2)
    cluster.send(topic, bodies(0, 0, 50), 0)
    cluster.send(topic, bodies(1, 0, 10), 1)
    options = cluster.options(topic, startingOffsets="earliest", maxRowsPerTrigger=25)
    stream = Stream(spark, tmp_path, options)
    query = stream.run()
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(batches) == 60
    assert max(batches) <= 25
    assert stream.rows() == expected(topic, {0: 50, 1: 10})

    cluster.send(topic, bodies(1, 10, 30), 1)
    stream.run()
    assert stream.rows() == expected(topic, {0: 50, 1: 30})

    stream.replay_last_batch()
    cluster.send(topic, bodies(0, 50, 55), 0)
    stream.run()
    assert stream.rows() == expected(topic, {0: 55, 1: 30})


def test_a_failing_query_names_topic_queue_and_offset_in_one_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = fresh_name("damaged")
    settings = StoreSettings(path=tmp_path / "store")
    with opened(settings, RealDisk(), SystemClock()) as store:
        places = put_all(store, [PutMessage(topic, 1, b"body") for _ in range(50)])
    flip(next((settings.path / "commitlog").iterdir()), places[20].physical_offset + MAGIC_AT)
    stream = Stream(
        spark, tmp_path, {"path": str(settings.path), "topic": topic, "startingOffsets": "earliest"}
    )
    with pytest.raises(StreamingQueryException) as failed:
        stream.run()
    sentence = str(plain_error(failed.value))
    assert f"physical offset {places[20].physical_offset}" in sentence
    assert re.search(rf"topic {topic}, broker store, queue 1, from offset \d+", sentence)
    assert "\n" not in sentence


@pytest.mark.parametrize("trigger", [{"realTime": "5 seconds"}, {"continuous": "1 second"}])
def test_triggers_that_spark_does_not_offer_to_sources_in_python_are_refused(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """`docs/spark/state.md` says so; if Spark comes to offer them, the source and that page can change."""
    topic = fresh_name("realtime")
    shared_cluster.create_topic(topic, 1)
    frame = spark.readStream.format("rocketmq").options(**shared_cluster.options(topic)).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match=r"(?i)real.time|continuous"):
        writer.outputMode("update").trigger(**trigger).start().awaitTermination(WAIT_S)


def test_a_broker_restart_in_mid_query(spark: SparkSession, cluster: PipelineCluster, tmp_path: Path) -> None:
    cluster.create_topic("restart", 2)
    cluster.send("restart", bodies(0, 0, 20), 0)
    stream = Stream(
        spark, tmp_path, cluster.options("restart", startingOffsets="earliest", pollInterval="50ms")
    )
    query = stream.start(processingTime="100 milliseconds")
    try:
        until(lambda: rows_done(query) == 20, "the first rows")
        cluster.servers.stop()
        cluster.servers.start()
        cluster.send("restart", bodies(0, 20, 40), 0)
        cluster.send("restart", bodies(1, 0, 5), 1)
        until(lambda: rows_done(query) == 45, "the rows after the restart")
    finally:
        query.stop()
    assert stream.rows() == expected("restart", {0: 40, 1: 5})


def test_queues_and_topics_that_come_later(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    stem = fresh_name("grow")
    first, second = f"{stem}_a", f"{stem}_b"
    cluster = shared_cluster
    cluster.create_topic(first, 2)
    cluster.send(first, bodies(0, 0, 10), 0)
    options = cluster.options(
        f"{stem}_.*", startingOffsets="earliest", pollInterval="50ms", routeRefresh="200ms"
    )
    stream = Stream(spark, tmp_path, options)
    query = stream.start(processingTime="100 milliseconds")
    try:
        until(lambda: rows_done(query) == 10, "the first rows")
        cluster.create_topic(first, 8)
        for queue_id in range(2, 8):
            cluster.send(first, bodies(queue_id, 0, 5), queue_id)
        cluster.create_topic(second, 1)
        cluster.send(second, bodies(0, 0, 7), 0)
        until(lambda: rows_done(query) == 47, "rows of the new queues")
    finally:
        query.stop()
    counts = {0: 10, **dict.fromkeys(range(2, 8), 5)}
    assert stream.rows() == sorted(expected(first, counts) + expected(second, {0: 7}))


def test_retention_overtakes_a_slow_query(
    spark: SparkSession, cluster: PipelineCluster, tmp_path: Path
) -> None:
    """Files of the log are deleted between two runs: an error that counts, or knowingly skipped."""
    cluster.create_topic("aging", 1)
    big = [bytes([number % 251]) * 200_000 for number in range(100)]  # more than a file of 16 MiB
    cluster.send("aging", big[:1])
    options = cluster.options("aging", startingOffsets="earliest")
    stream = Stream(spark, tmp_path, options)
    stream.run()
    cluster.send("aging", big[1:])
    cluster.servers.stop()
    first = min((Path(cluster.store_path) / "commitlog").iterdir())
    first.unlink()
    cluster.servers.start()
    low = cluster.wire.min_offsets([cluster.queue("aging")])[cluster.queue("aging")]
    assert 1 < low < 100
    with pytest.raises(StreamingQueryException, match=rf"{low - 1} messages of aging/broker-a/0 are lost"):
        stream.run()
    skipping = Stream(spark, tmp_path, {**options, "failOnDataLoss": "false"})
    skipping.run()
    assert [row[2] for row in skipping.rows()] == [0, *range(low, 100)]


def test_rows_are_waited_for_but_not_for_ever(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic = fresh_name("patience")
    cluster = shared_cluster
    cluster.create_topic(topic, 1)
    cluster.send(topic, bodies(0, 0, 5))
    options = cluster.options(
        topic,
        startingOffsets="earliest",
        pollInterval="50ms",
        minRowsPerTrigger=10,
        maxTriggerDelay="1h",
    )
    stream = Stream(spark, tmp_path, options)
    query = stream.start(processingTime="50 milliseconds")
    try:
        until(lambda: query.lastProgress is not None, "progress")
        assert rows_done(query) == 0
        cluster.send(topic, bodies(0, 5, 12))
        until(lambda: rows_done(query) == 12, "a whole batch")
    finally:
        query.stop()
    hasty = Stream(
        spark, tmp_path / "hasty", {**options, "maxTriggerDelay": "100ms", "minRowsPerTrigger": "99"}
    )
    query = hasty.start(processingTime="50 milliseconds")
    try:
        until(lambda: rows_done(query) == 12, "a batch in spite of too few rows")
    finally:
        query.stop()


def test_store_files_while_they_are_written(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic = fresh_name("live")
    cluster = shared_cluster
    cluster.create_topic(topic, 1)
    cluster.send(topic, bodies(0, 0, 30))
    options = {
        "path": cluster.files_of(topic),
        "topic": topic,
        "startingOffsets": "earliest",
        "pollInterval": "50ms",
    }
    stream = Stream(spark, tmp_path, options)
    query = stream.start(processingTime="100 milliseconds")
    try:
        until(lambda: rows_done(query) == 30, "the first rows")
        cluster.send(topic, bodies(0, 30, 60))
        until(lambda: rows_done(query) == 60, "rows written meanwhile")
    finally:
        query.stop()
    assert stream.rows() == expected(topic, {0: 60})


def test_an_idle_query_rests_and_goes_nowhere(shared_cluster: PipelineCluster) -> None:
    """The process that answers for offsets, driven by hand: Spark would ask it without a pause."""
    topic = fresh_name("idle")
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, bodies(0, 0, 3))
    options = load(SourceOptions, shared_cluster.options(topic, pollInterval="100ms"))
    reader = StreamReader(options, columns_schema(["body"]))
    start = reader.initialOffset()
    assert start == reader.initialOffset() == {topic: {"broker-a": {"0": 3}}}
    limit = reader.getDefaultReadLimit()
    started = time.monotonic()
    assert all(reader.latestOffset(start, limit) is start for _ in range(5))
    assert time.monotonic() - started >= 0.4
    shared_cluster.send(topic, bodies(0, 3, 4))
    end = reader.latestOffset(start, limit)
    assert end == {topic: {"broker-a": {"0": 4}}}
    assert reader.reportLatestOffset() == end
    copied = pickle.loads(pickle.dumps(reader))  # noqa: S301  made to the left
    (partition,) = reader.partitions(start, end)
    rows = [value for batch in copied.read(partition) for value in batch.column(0).to_pylist()]
    assert rows == [b"0-3"]
    assert list(copied.read(InputPartition(None))) == []


def test_a_trigger_that_wants_everything_gets_it(shared_cluster: PipelineCluster) -> None:
    """Driven by hand: `once` asks for all that is there, other triggers for as much as the options say."""
    topic = fresh_name("everything")
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, bodies(0, 0, 9))
    options = shared_cluster.options(
        topic, startingOffsets="earliest", maxRowsPerTrigger=2, minRowsPerTrigger=50, maxTriggerDelay="1h"
    )
    reader = StreamReader(load(SourceOptions, options), columns_schema(["body"]))
    start = reader.initialOffset()

    def ends_at(limit: ReadLimit) -> int:
        return int(reader.latestOffset(start, limit)[topic]["broker-a"]["0"])

    assert ends_at(reader.getDefaultReadLimit()) == 0  # it waits for fifty
    assert ends_at(ReadAllAvailable()) == 9
    reader.prepareForTriggerAvailableNow()
    assert ends_at(reader.getDefaultReadLimit()) == 2
    shared_cluster.send(topic, bodies(0, 9, 12))
    assert ends_at(ReadAllAvailable()) == 9  # what came since is for the next run


def test_a_stream_with_an_end_is_refused() -> None:
    options = {"namesrv": "h:1", "topic": "t", "endingOffsets": "latest"}
    RocketMQSource(options).streamReader(columns_schema(["body"]))
    with pytest.raises(SettingsError, match="not supported for streams"):
        RocketMQSource({**options, "endingOffsets": "-1h"}).streamReader(columns_schema(["body"]))


def test_brokers_that_come_later(cluster: PipelineCluster, tmp_path: Path) -> None:
    """Driven by hand."""
    cluster.create_topic("wide", 1)
    cluster.send("wide", [b"here"])
    options = cluster.options("wide", startingOffsets="earliest", routeRefresh="50ms", pollInterval="10ms")
    reader = StreamReader(load(SourceOptions, options), columns_schema(["brokerName", "body"]))
    start = reader.initialOffset()
    assert start == {"wide": {"broker-a": {"0": 0}}}
    broker = SkylarkBroker(tmp_path / "second", cluster.namesrv, {**SETTINGS, "brokerName": "broker-b"})
    with PipelineCluster(tmp_path / "second", servers=broker) as second:
        second.wire.connection(broker.broker).call(
            UpdateAndCreateTopic("wide", AUTO_CREATE_TOPIC, 1, 1, 6, "SINGLE_TAG", order=False)
        )
        second.send("wide", [b"there"])
        end = start

        def is_seen() -> bool:
            nonlocal end
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            return "broker-b" in end["wide"]

        until(is_seen, "the new broker")
        rows = [
            tuple(row.values())
            for partition in reader.partitions(start, end)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
    assert sorted(rows) == [("broker-a", b"here"), ("broker-b", b"there")]


def test_a_topic_that_was_made_again_is_an_error_or_begins_anew(
    shared_cluster: PipelineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driven by hand. Without this the query would wait for offsets that it has already passed."""
    monkeypatch.setattr(planner, "SHORT_WAIT_S", 0.5)
    topic = fresh_name("anew")
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, bodies(0, 0, 9))
    stands = {topic: {"broker-a": {"0": 9}}}

    def reader(**more: object) -> StreamReader:
        options = shared_cluster.options(topic, pollInterval="10ms", **more)
        return StreamReader(load(SourceOptions, options), columns_schema(["body"]))

    def latest(query: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
        return query.latestOffset(start, query.getDefaultReadLimit())

    assert latest(reader(), stands) is stands
    shared_cluster.wire.connection(shared_cluster.servers.broker).call(DeleteTopicInBroker(topic))
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, bodies(0, 0, 4))
    with pytest.raises(
        DataLost, match=f"5 messages of {topic}/broker-a/0 are lost, offsets 4 to 9: .*created again"
    ):
        latest(reader(), stands)
    skipping = reader(failOnDataLoss="false")
    skipping.prepareForTriggerAvailableNow()
    anew = latest(skipping, stands)
    assert anew == {topic: {"broker-a": {"0": 0}}}
    assert skipping.partitions(stands, anew) == []
    end = latest(skipping, anew)
    (partition,) = skipping.partitions(anew, end)
    rows = [value for batch in skipping.read(partition) for value in batch.column(0).to_pylist()]
    assert rows == bodies(0, 0, 4)


def test_a_task_that_is_tried_again_reads_the_same(
    spark: SparkSession, shared_cluster: PipelineCluster
) -> None:
    topic = fresh_name("retried")

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for batch in batches:
            yield batch
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt fails after its rows")

    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, bodies(0, 0, 40))
    options = shared_cluster.options(topic, minPartitions=2)
    frame = spark.read.format("rocketmq").options(**options).schema("queueOffset BIGINT, body BINARY").load()
    rows = frame.mapInArrow(stumble, frame.schema).collect()
    assert sorted((row[0], bytes(row[1])) for row in rows) == [(at, f"0-{at}".encode()) for at in range(40)]
