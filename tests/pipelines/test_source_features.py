"""What a batch query can ask of the source: filters, places to start and end, bodies decoded, ranges."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from skylark.errors import SettingsError
from skylark.model.message import SystemFlag
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import Planner, plan, read_range
from skylark.pipelines.pushdown import Restrictions
from skylark.pipelines.schema import RANGE_COLUMNS
from tests.pipelines.streams import WAIT_S
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import BROKER, PipelineCluster


@dataclass(frozen=True)
class Halves:
    """A topic to which no other test of the shared cluster writes, nor another attempt to fill it."""

    cluster: PipelineCluster
    topic: str

    def options(self, **more: object) -> dict[str, str]:
        return self.cluster.options(self.topic, **more)


@pytest.fixture(scope="module")
def halves(shared_cluster: PipelineCluster) -> Halves:
    """Two queues; the second half of each is stored at least a tenth of a second after the first."""
    topic = fresh_name("features")
    shared_cluster.create_topic(topic, 2)
    for half in range(2):
        for queue_id in range(2):
            shared_cluster.send(
                topic,
                [b'{"id": %d, "half": %d}' % (number, half) for number in range(20)],
                queue_id,
                properties={
                    "TAGS": f"Half{half}",
                    "KEYS": f"key{half}-{queue_id}-{{n}} all",
                    "UNIQ_KEY": "U{n}",
                },
            )
        time.sleep(0.1)
    return Halves(shared_cluster, topic)


def read(spark: SparkSession, halves: Halves, **options: object) -> DataFrame:
    return spark.read.format("rocketmq").options(**halves.options(**options)).load()


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row[0], row[1]) for row in frame.select("queueId", "queueOffset").collect())


def middle_ms(frame: DataFrame) -> int:
    """A time between the halves."""
    first = frame.where("tags = 'Half1'").agg(F.min(F.unix_millis("storeTimestamp"))).collect()[0][0]
    return int(first) - 20


def test_places_to_start_and_end(spark: SparkSession, halves: Halves) -> None:
    everything = read(spark, halves)
    second_half = [(queue_id, at) for queue_id in range(2) for at in range(20, 40)]
    time_ms = middle_ms(everything)
    fixed = f'{{"{halves.topic}": {{"{BROKER}": {{"0": 38, "1": -1}}}}}}'
    assert offsets(read(spark, halves, startingOffsets=time_ms)) == second_half
    assert offsets(read(spark, halves, endingOffsets=time_ms, startingOffsets="-30 rows")) == [
        (queue_id, at) for queue_id in range(2) for at in range(10, 20)
    ]
    assert offsets(read(spark, halves, startingOffsets=fixed)) == [(0, 38), (0, 39)]
    assert offsets(read(spark, halves, startingOffsets="latest")) == []
    assert offsets(
        read(spark, halves, assign=f'{{"{halves.topic}": {{"{BROKER}": [1]}}}}', startingOffsets="-1 rows")
    ) == [(1, 39)]


def test_tags_are_filtered_by_the_broker(spark: SparkSession, halves: Halves) -> None:
    frame = read(spark, halves, tags="Half0 || Half7")
    assert {row[0] for row in frame.select("tags").collect()} == {"Half0"}
    assert frame.count() == 40


@pytest.mark.parametrize(
    ("filters", "planned", "left"),
    [
        ([EqualTo(("queueId",), 1)], 40, 0),
        ([GreaterThanOrEqual(("queueOffset",), 10), LessThan(("queueOffset",), 12)], 4, 0),
        ([GreaterThan(("queueOffset",), 37), LessThanOrEqual(("queueOffset",), 38)], 2, 0),
        ([EqualTo(("queueOffset",), 7)], 2, 0),
        ([In(("queueOffset",), (7, 9))], 6, 1),
        ([In(("queueId",), (0, 5)), In(("brokerName",), (BROKER,))], 40, 0),
        ([EqualTo(("tags",), "Half1")], 80, 0),
        ([EqualTo(("topic",), "other")], 0, 0),
        ([EqualTo(("keys",), "key1-0-3 all")], 1, 1),
        ([EqualTo(("uniqKey",), "U4")], 4, 1),
        ([EqualTo(("msgId",), "no id")], 0, 1),
        ([EqualTo(("properties", "a"), "b"), IsNotNull(("tags",))], 80, 2),
    ],
)
def test_filters_narrow_what_is_planned(
    halves: Halves, filters: list[Filter], planned: int, left: int
) -> None:
    restrictions = Restrictions()
    assert len(restrictions.take(filters)) == left
    planner = Planner(load(SourceOptions, halves.options()), restrictions)
    assert sum(item.messages for item in planner.batch_ranges()) == planned


@pytest.mark.parametrize(
    ("option", "planned"),
    [
        ({"startingOffsets": {"0": 30, "1": 35}}, 5),
        ({"endingOffsets": {"0": 30, "1": 35}}, 35),
        ({"endingOffsets": {"0": 30}}, 40),  # of a queue that is not named everything is read
    ],
)
def test_filters_narrow_offsets_that_are_given_for_every_queue(
    halves: Halves, option: dict[str, dict[str, int]], planned: int
) -> None:
    given = {name: json.dumps({halves.topic: {BROKER: offsets}}) for name, offsets in option.items()}
    restrictions = Restrictions()
    restrictions.take([EqualTo(("queueId",), 1)])
    planner = Planner(load(SourceOptions, halves.options(**given)), restrictions)
    assert sum(item.messages for item in planner.batch_ranges()) == planned


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endingOffsets": '{"TOPIC": {"broker-a": {"7": 1}}}'}, "setting endingOffsets: no such queue"),
        ({"assign": '{"TOPIC": {"broker-b": [0]}}'}, "setting assign: no such queue"),
        ({"sql92": "size >"}, "setting sql92: .*unexpected end"),
    ],
)
def test_what_brokers_do_not_have_is_refused_while_planning(
    halves: Halves, options: dict[str, str], complaint: str
) -> None:
    given = {name: text.replace("TOPIC", halves.topic) for name, text in options.items()}
    with pytest.raises(SettingsError, match=complaint):
        plan(halves.options(**given))


def test_filters_of_a_query_are_handed_down(spark: SparkSession, halves: Halves) -> None:
    frame = read(spark, halves, pushdown="true")
    condition = "queueId in (0, 5) and queueOffset >= 18 and tags = 'Half0' and body is not null"
    assert offsets(frame.where(condition)) == [(0, 18), (0, 19)]
    assert offsets(frame.where("keys = 'key1-0-3 all'")) == [(0, 23)]


def test_more_of_a_unique_key_than_brokers_tell_are_all_read(
    spark: SparkSession, shared_cluster: PipelineCluster
) -> None:
    topic = fresh_name("repeated")
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, [b"x"] * 40, properties={"UNIQ_KEY": "same"})
    frame = spark.read.format("rocketmq").options(**shared_cluster.options(topic, pushdown="true")).load()
    assert frame.where("uniqKey = 'same'").count() == 40


def test_a_key_is_found_where_the_broker_has_no_index(spark: SparkSession, tmp_path: Path) -> None:
    with PipelineCluster(tmp_path, {"messageIndexEnable": "false"}) as cluster:
        cluster.create_topic("plain", 1)
        cluster.send("plain", [b"x"] * 3, properties={"KEYS": "key-{n}"})
        frame = spark.read.format("rocketmq").options(**cluster.options("plain", pushdown="true")).load()
        assert offsets(frame.where("keys = 'key-1'")) == [(0, 1)]


def test_times_and_ids_narrow_too(spark: SparkSession, halves: Halves) -> None:
    everything = read(spark, halves)
    time_ms = middle_ms(everything)
    condition = F.col("storeTimestamp") >= F.timestamp_millis(F.lit(time_ms))
    assert read(spark, halves, pushdown="true").where(condition).count() == 40
    message_id = everything.where("queueId = 1 and queueOffset = 5").select("msgId").collect()[0][0]
    found = read(spark, halves, pushdown="true").where(F.col("msgId") == message_id)
    assert offsets(found) == [(1, 5)]
    stored = {"path": halves.cluster.files_of(halves.topic), "topic": halves.topic, "pushdown": "true"}
    found = spark.read.format("rocketmq").options(**stored).load().where(F.col("msgId") == message_id)
    assert offsets(found) == [(1, 5)]


def test_tasks_are_split_and_packed(spark: SparkSession, halves: Halves) -> None:
    assert read(spark, halves).rdd.getNumPartitions() == 1
    assert read(spark, halves, maxRecordsPerPartition=10).rdd.getNumPartitions() == 8
    assert read(spark, halves, minPartitions=5).rdd.getNumPartitions() == 5


def test_json_with_a_schema_and_with_samples(spark: SparkSession, shared_cluster: PipelineCluster) -> None:
    topic = fresh_name("documents")
    shared_cluster.create_topic(topic, 1)
    good = [b'{"id": %d, "name": "n%d"}' % (number, number) for number in range(10)]
    shared_cluster.send(topic, [*good, b"poison", b'{"id": "text"}'])
    shared_cluster.send(topic, [b"\x00damaged"], sys_flag=int(SystemFlag.COMPRESSED))
    shared_cluster.send(
        topic, [zlib.compress(b'{"id": 99, "name": "z"}')], sys_flag=int(SystemFlag.COMPRESSED)
    )
    for schema in ("id BIGINT, name STRING", "auto"):
        options = shared_cluster.options(topic, decode="json", decodeSchema=schema)
        frame = spark.read.format("rocketmq").options(**options).load()
        rejects = [bytes(row[0]) for row in frame.where("rejects is not null").select("rejects").collect()]
        if schema == "auto":  # one id is text, so all are
            assert frame.select("value.id").schema[0].dataType.simpleString() == "string"
            assert rejects == [b"poison", b"\x00damaged"]
        else:
            assert rejects == [b"poison", b'{"id": "text"}', b"\x00damaged"]
            found = frame.where("value is not null").select("value.id").collect()
            assert [row[0] for row in found] == [*range(10), 99]


def test_json_without_a_member_that_must_be_there_is_rejected(
    spark: SparkSession, shared_cluster: PipelineCluster
) -> None:
    topic = fresh_name("members")
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, [b'{"id": 7}', b'{"name": "n"}'])
    options = shared_cluster.options(topic, decode="json", decodeSchema="id BIGINT NOT NULL, name STRING")
    frame = spark.read.format("rocketmq").options(**options).load().select("value", "rejects")
    assert [(row[0] and row[0]["id"], row[1] and bytes(row[1])) for row in frame.collect()] == [
        (7, None),
        (None, b'{"name": "n"}'),
    ]


def test_text(spark: SparkSession, halves: Halves) -> None:
    row = read(spark, halves, decode="text", bodyText="true").where("queueOffset = 0").collect()[0]
    assert row["value"] == row["bodyText"] == bytes(row["body"]).decode() == '{"id": 0, "half": 0}'
    assert row["rejects"] is None


def test_ranges_instead_of_rows(spark: SparkSession, halves: Halves) -> None:
    options = halves.options(mode="ranges", maxRecordsPerPartition=30)
    frame = spark.read.format("rocketmq").options(**options).load()
    assert frame.columns == list(RANGE_COLUMNS)
    rows = sorted(frame.collect(), key=lambda row: (row["queueId"], row["fromOffset"]))
    assert [(row["queueId"], row["fromOffset"], row["toOffset"]) for row in rows] == [
        (item.queue_id, item.from_offset, item.to_offset) for item in plan(options)
    ]
    assert sum(row["messages"] for row in rows) == 80
    assert all(row["bytes"] > 100 * row["messages"] for row in rows)
    read_again = [
        (value["queueId"], value["queueOffset"])
        for row in rows
        for batch in read_range(options, bytes(row["range"]), ["queueId", "queueOffset"])
        for value in batch.to_pylist()
    ]
    assert read_again == [(queue_id, at) for queue_id in range(2) for at in range(40)]


def test_an_unknown_topic_is_a_clear_error(spark: SparkSession, halves: Halves) -> None:
    wrong = halves.topic.replace("s-", "-")
    with pytest.raises(Exception, match=f"unknown topic '{wrong}'; did you mean {halves.topic}"):
        spark.read.format("rocketmq").options(**halves.cluster.options(wrong)).load().count()


def test_a_temporary_view(spark: SparkSession, halves: Halves) -> None:
    options = ", ".join(f"{name} '{value}'" for name, value in halves.options().items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW features_view USING rocketmq OPTIONS ({options})")
    assert spark.sql("select count(*) from features_view where tags = 'Half0'").collect()[0][0] == 40


def test_a_topic_as_a_table_of_the_catalog(spark: SparkSession, halves: Halves, tmp_path: Path) -> None:
    table = fresh_name("halves").replace("-", "_")
    pairs = ", ".join(f"{name} '{value}'" for name, value in halves.options(tags="Half1").items())
    spark.sql(f"CREATE TABLE {table} USING rocketmq OPTIONS ({pairs})")
    try:
        assert table in [each.name for each in spark.catalog.listTables()]
        found = spark.table(table).groupBy("queueId").agg(F.min("queueOffset"), F.count("*"))
        assert sorted(tuple(row) for row in found.collect()) == [(0, 20, 20), (1, 20, 20)]
        reader = spark.readStream.option("startingOffsets", "earliest")
        query = (
            reader.table(table)
            .writeStream.format("memory")
            .queryName(f"{table}_read")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        assert spark.table(f"{table}_read").count() == 40
        with pytest.raises(Exception, match="secretKey: a table would show it"):
            spark.sql(f"CREATE TABLE {table}_2 USING rocketmq OPTIONS ({pairs}, secretKey 'x')")
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_a_topic_as_a_view_in_sql(spark: SparkSession, halves: Halves) -> None:
    pairs = ", ".join(f"{name} '{value}'" for name, value in halves.options(tags="Half1").items())
    spark.sql(f"create or replace temp view halves using rocketmq options ({pairs})")
    found = spark.sql("select queueId, min(queueOffset), count(*) from halves group by queueId")
    assert sorted(tuple(row) for row in found.collect()) == [(0, 20, 20), (1, 20, 20)]
