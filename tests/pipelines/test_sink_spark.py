"""The sink in a real session: batch and stream, at least once, and the same keys when rows come again."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skylark.errors import RocketMQError
from skylark.model.message import StoredMessage
from skylark.pipelines.dedup import SeenKeys
from skylark.pipelines.jobs import queries
from skylark.pipelines.sink import StreamSink, each_batch
from skylark.pipelines.source import RocketMQSource, register
from tests.pipelines.messages import stored
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELIVERY_TIMEOUT_S = 120
TIMER_PRECISION_MS = 1000


@pytest.fixture
def topic() -> str:
    return f"T{uuid.uuid4().hex[:10]}"


def write(df: DataFrame, cluster: PipelineCluster, **options: str) -> None:
    df.write.format("rocketmq").mode("append").options(namesrv=cluster.namesrv, **options).save()


def test_a_batch_of_rows_becomes_messages(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    shared_cluster.create_topic(topic)
    df = spark.range(0, 3000, 1, 3).selectExpr(
        "cast(id as string) as body",
        "concat('tag', id % 3) as tags",
        "array(concat('k', id), 'all') as keys",
        "map('number', cast(id as string)) as properties",
    )
    write(df, shared_cluster, topic=topic)
    messages = stored(shared_cluster, topic)
    assert sorted(int(message.body) for message in messages) == list(range(3000))
    for message in messages:
        number = int(message.body)
        assert message.tags == f"tag{number % 3}"
        assert message.keys == [f"k{number}", "all"]
        assert message.properties["number"] == str(number)
    assert len({message.unique_key for message in messages}) == 3000


def test_rows_with_wrong_columns_are_refused_and_nothing_is_sent(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    shared_cluster.create_topic(topic)
    df = spark.range(10).selectExpr("id as body")
    with pytest.raises(Exception, match="the column is bigint; the sink needs binary or string"):
        write(df, shared_cluster, topic=topic)
    with pytest.raises(Exception, match="unknown column"):
        write(spark.range(10).selectExpr("'x' as body", "id"), shared_cluster, topic=topic)
    assert stored(shared_cluster, topic) == []


def test_a_null_body_fails_the_job_and_names_the_row(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    shared_cluster.create_topic(topic)
    df = spark.range(0, 5, 1, 1).selectExpr("case when id = 3 then null else 'x' end as body")
    with pytest.raises(Exception, match="row 3 has an empty body"):
        write(df, shared_cluster, topic=topic)


def failing_once(df: DataFrame, mark: Path) -> DataFrame:
    """Rows whose second partition fails once, after half of them."""
    path = str(mark)

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        from pathlib import Path as P

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if context.partitionId() == 1 and number == 1 and not P(path).exists():
                P(path).touch()
                raise RuntimeError("once")

    return df.mapInArrow(step, df.schema)


def test_a_task_that_is_tried_again_sends_rows_with_the_same_keys(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    shared_cluster.create_topic(topic)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        df = spark.range(0, 4000, 1, 2).selectExpr("cast(id as string) as body")
        write(failing_once(df, tmp_path / "failed"), shared_cluster, topic=topic, exactlyOnce="keys")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert (tmp_path / "failed").exists()
    check_once_by_key(stored(shared_cluster, topic), range(4000))


def check_once_by_key(messages: list[StoredMessage], numbers: range) -> int:
    """Every row is there, and once after dropping known keys; returns how many were dropped."""
    assert {int(message.body) for message in messages} == set(numbers)
    with SeenKeys(1_000_000) as seen:
        kept = [int(message.body) for message in messages if seen.add(message.unique_key or "")]
    assert sorted(kept) == list(numbers)
    queues = {(message.unique_key, message.queue_id) for message in messages}
    assert len(queues) == len(kept)  # the second copy lies in the queue of the first
    return len(messages) - len(kept)


class Copy:
    """A stream from one topic to another, resumable, with keys that last."""

    def __init__(self, spark: SparkSession, cluster: PipelineCluster, topic: str, directory: Path) -> None:
        self._spark, self._cluster, self._topic, self._directory = spark, cluster, topic, directory
        self.source = f"{topic}_in"
        self.commits = directory / "checkpoints" / "copy" / "commits"
        cluster.create_topic(self.source, 2)
        cluster.create_topic(topic)

    def run(self) -> None:
        options = self._cluster.options(self.source, startingOffsets="earliest")
        df = self._spark.readStream.format("rocketmq").options(**options).load()
        writer = df.writeStream.format("rocketmq").options(
            namesrv=self._cluster.namesrv, topic=self._topic, exactlyOnce="keys"
        )
        queries.run("copy", {"copy": writer}, state=self._directory, once=True, trigger="1s")


def test_a_replayed_batch_of_a_stream_has_the_same_keys(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    copy = Copy(spark, shared_cluster, topic, tmp_path)
    shared_cluster.send(copy.source, [b"%d" % number for number in range(500)], 0)
    shared_cluster.send(copy.source, [b"%d" % number for number in range(500, 1000)], 1)
    copy.run()
    assert check_once_by_key(stored(shared_cluster, topic), range(1000)) == 0
    last = max(copy.commits.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (copy.commits / f".{last.name}.crc").unlink(missing_ok=True)
    shared_cluster.send(copy.source, [b"%d" % number for number in range(1000, 1200)], 0)
    copy.run()
    assert check_once_by_key(stored(shared_cluster, topic), range(1200)) == 1000


def stopping_source(mark: str) -> type[RocketMQSource]:
    """A sink that fails once, with all rows sent and nothing committed; made here to travel by value."""

    class StoppingSink(StreamSink):
        def commit(self, messages: Any, batchId: int) -> None:
            from pathlib import Path as P

            if not P(mark).exists():
                P(mark).touch()
                raise RuntimeError("stopped before the commit")

    class StoppingSource(RocketMQSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return StoppingSink(dict(self.options), schema, overwrite)

    return StoppingSource


def test_a_batch_that_was_sent_and_not_committed_has_the_same_keys(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    copy = Copy(spark, shared_cluster, topic, tmp_path)
    shared_cluster.send(copy.source, [b"%d" % number for number in range(300)], 0)
    spark.dataSource.register(stopping_source(str(tmp_path / "stopped")))
    try:
        with pytest.raises(RocketMQError, match="stopped before the commit"):
            copy.run()
        assert not list(copy.commits.glob("[0-9]*"))
        copy.run()
    finally:
        register(spark)
    assert check_once_by_key(stored(shared_cluster, topic), range(300)) == 300


def test_ordered_rows_stay_in_order(spark: SparkSession, shared_cluster: PipelineCluster, topic: str) -> None:
    shared_cluster.create_topic(topic)
    df = spark.range(0, 2000, 1, 1).selectExpr(
        "cast(id as string) body", "cast(id % 9 as string) shardingKey"
    )
    write(df, shared_cluster, topic=topic)
    by_key: dict[int, list[int]] = {}
    for message in stored(shared_cluster, topic):
        by_key.setdefault(int(message.body) % 9, []).append(int(message.body))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 2000


def test_the_topic_may_come_from_the_row(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    names = [f"{topic}a", f"{topic}b"]
    for name in names:
        shared_cluster.create_topic(name)
    df = spark.range(100).selectExpr(f"if(id % 2 = 0, '{names[0]}', '{names[1]}') topic", "'x' body")
    write(df, shared_cluster)
    assert Counter(len(stored(shared_cluster, name)) for name in names) == {50: 2}


@pytest.mark.parametrize("type_name", ["timestamp", pytest.param("bigint", marks=pytest.mark.nightly)])
def test_rows_are_delivered_when_they_say(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, type_name: str
) -> None:
    shared_cluster.create_topic(topic)
    due_ms = {number: time.time_ns() // 1_000_000 + 4000 + 1500 * number for number in range(3)}
    rows = spark.createDataFrame(
        [(str(number), moment) for number, moment in due_ms.items()], "body string, ms bigint"
    )
    deliver_at = "ms" if type_name == "bigint" else "timestamp_millis(ms)"
    df = rows.selectExpr("body", f"{deliver_at} as deliverAt", "concat('k', body) as keys")
    write(
        df.unionByName(rows.selectExpr("concat('now', body) as body"), allowMissingColumns=True),
        shared_cluster,
        topic=topic,
    )
    deadline = time.monotonic() + DELIVERY_TIMEOUT_S
    while len(messages := stored(shared_cluster, topic)) < 2 * len(due_ms):
        assert time.monotonic() < deadline, [message.body for message in messages]
        time.sleep(0.2)
    timed = {int(message.body): message for message in messages if not message.body.startswith(b"now")}
    assert sorted(timed) == sorted(due_ms)
    for number, message in timed.items():
        assert message.store_timestamp >= due_ms[number] - TIMER_PRECISION_MS
        assert (message.topic, message.keys) == (topic, [f"k{number}"])


def test_updates_of_aggregates_go_out_batch_by_batch(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    source = f"{topic}_in"
    shared_cluster.create_topic(source, 1)
    shared_cluster.create_topic(topic, 1)
    options = shared_cluster.options(source, startingOffsets="earliest", maxRowsPerTrigger=10)

    def run() -> None:
        df = spark.readStream.format("rocketmq").options(**options).load()
        totals = (
            df.groupBy("tags").count().selectExpr("concat(tags, ' ', count) as body", "tags as shardingKey")
        )
        writer = totals.writeStream.outputMode("update").foreachBatch(
            each_batch("totals", namesrv=shared_cluster.namesrv, topic=topic, exactlyOnce="keys")
        )
        queries.run("totals", {"totals": writer}, state=tmp_path, once=True, trigger="1s")

    shared_cluster.send(source, [b"x"] * 10, properties={"TAGS": "a"})
    shared_cluster.send(source, [b"x"] * 10, properties={"TAGS": "b"})
    run()
    shared_cluster.send(source, [b"x"] * 10, properties={"TAGS": "a"})
    run()
    assert [message.body for message in stored(shared_cluster, topic)] == [b"a 10", b"b 10", b"a 20"]
