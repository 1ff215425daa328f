"""Lag and the group's offsets: what the listener measures and writes, and what the reader writes itself."""

from __future__ import annotations

import threading
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent

from skylark.pipelines.listener import LagListener, measure, offsets_of
from skylark.protocol.bodies import MessageQueue
from tests.pipelines.streams import Stream, until
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster


def test_the_listener_writes_the_last_batch_too(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic, group = fresh_name("lagging"), fresh_name("lag-group")
    cluster = shared_cluster
    cluster.create_topic(topic, 2)
    cluster.send(topic, [b"x" * 100] * 30, 0)
    options = cluster.options(topic, startingOffsets="earliest", maxRowsPerTrigger=10)
    listener = LagListener(cluster.namesrv, group, metrics_port=0, log_interval_s=0)
    spark.streams.addListener(listener)
    try:
        Stream(spark, tmp_path, options).run()
        queue = cluster.queue(topic, 0)
        until(lambda: cluster.wire.group_offset(group, queue) == 30, "the last offset")
        assert listener.flush()
        assert {lag.messages for lag in listener.lags} == {0}

        cluster.send(topic, [b"x" * 100] * 5, 0)
        listener.advance({queue: 30})
        assert listener.flush()
        (lag,) = [lag for lag in listener.lags if lag.queue == queue]
        assert lag.messages == 5
        assert lag.record_bytes > 5 * 100
        assert lag.seconds >= 0
        place = f'broker="broker-a",group="{group}",queue="0",topic="{topic}"'
        label = f"skylark_spark_lag_messages{{{place}}} 5.0"
        assert label in listener.gauges.text()
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.metrics_port}/metrics") as page:
            assert label.encode() in page.read()
    finally:
        listener.detach(spark)


def test_the_reader_writes_offsets_one_batch_behind_and_only_forward(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic, group = fresh_name("behind"), fresh_name("behind-group")
    cluster = shared_cluster
    cluster.create_topic(topic, 1)
    cluster.send(topic, [b"x"] * 30)
    options = cluster.options(topic, startingOffsets="earliest", maxRowsPerTrigger=10, groupId=group)
    stream = Stream(spark, tmp_path, options)
    stream.run()
    queue = cluster.queue(topic)
    assert cluster.wire.group_offset(group, queue) == 20
    cluster.wire.commit_offsets(group, {queue: 29})
    cluster.send(topic, [b"x"] * 5)
    stream.run()
    assert cluster.wire.group_offset(group, queue) == 30

    from_group = cluster.options(topic, startingOffsets="group", groupId=group)
    assert spark.read.format("rocketmq").options(**from_group).load().count() == 5


class Streams:
    """Stands for a Connect session, whose removal of a listener must not come before its last event."""

    def __init__(self) -> None:
        self.streams = self
        self.removed: list[LagListener] = []

    def removeListener(self, listener: LagListener) -> None:
        self.removed.append(listener)


def test_a_listener_leaves_when_the_end_of_every_query_was_told(shared_cluster: PipelineCluster) -> None:
    session: Any = Streams()
    listener = LagListener(shared_cluster.namesrv, "leaving")
    first, second, third = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    listener.onQueryTerminated(QueryTerminatedEvent(first, first, None, None))  # may overtake the start
    for query in (first, second):
        listener.onQueryStarted(QueryStartedEvent(query, query, None, "", set()))
    end = threading.Timer(0.2, listener.onQueryTerminated, [QueryTerminatedEvent(second, second, None, None)])
    end.start()
    listener.detach(session, 60)
    end.join()
    assert session.removed == [listener]

    listener = LagListener(shared_cluster.namesrv, "leaving")
    listener.onQueryStarted(QueryStartedEvent(third, third, None, "", set()))
    listener.detach(session, 0.01)
    assert listener not in session.removed


def test_a_broker_that_is_away_fails_nothing(cluster: PipelineCluster) -> None:
    cluster.create_topic("away", 1)
    listener = LagListener(cluster.namesrv, "g")
    cluster.servers.stop()
    listener.advance({cluster.queue("away"): 3})
    assert listener.flush(60)
    listener.close()
    assert listener.lags == []


def test_lag_of_queues_without_messages_is_zero(shared_cluster: PipelineCluster) -> None:
    topic = fresh_name("empty")
    shared_cluster.create_topic(topic, 2)
    queues = shared_cluster.wire.queues(topic)
    assert [lag.messages for lag in measure(shared_cluster.wire, dict.fromkeys(queues, 0), 0)] == [0, 0]


def test_progress_of_other_sources_is_ignored() -> None:
    assert offsets_of(None) == offsets_of("17") == offsets_of('{"a": 1}') == offsets_of("not json") == {}
    assert offsets_of('{"t": {"b": {"0": 7}}}') == {MessageQueue("t", "b", 0): 7}
