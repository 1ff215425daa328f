"""Ranges read from a broker: whole whatever the pulls bring, and loss is told. No Spark here."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from skylark.errors import BrokerError, ConnectFailed, NoRoute, NotANameServer, SettingsError
from skylark.pipelines import broker_source
from skylark.pipelines.broker_source import BrokerSource
from skylark.pipelines.cluster_client import BULK_BYTES, BULK_MESSAGES, ClusterClient, masters
from skylark.pipelines.message_source import DataLost, LossPolicy, OffsetRange
from skylark.pipelines.offsets import choose_topics
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.planner import read_ranges
from skylark.pipelines.schema import arrow_schema, columns_schema
from skylark.protocol.requests.pull import PullMessage
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

COUNT = 3000
SCHEMA = arrow_schema(columns_schema(["queueOffset", "body", "tags"]))


@pytest.fixture(scope="module")
def cluster(shared_cluster: PipelineCluster) -> PipelineCluster:
    """A queue of messages of very different sizes, every third with a tag."""
    shared_cluster.create_topic("sizes", 1)
    rand = random.Random(5)
    for tag in ("A", "B", "C"):
        bodies = [bytes([number % 256]) * rand.choice([0, 10, 200, 6000]) for number in range(COUNT // 3)]
        shared_cluster.send("sizes", [body or b"-" for body in bodies], properties={"TAGS": tag})
    return shared_cluster


def read(cluster: PipelineCluster, wanted: OffsetRange, **options: object) -> list[tuple[int, bytes, str]]:
    loaded = load(SourceOptions, cluster.options(wanted.queue.topic, **options))
    return [
        (row["queueOffset"], row["body"], row["tags"])
        for batch in read_ranges(loaded, [wanted], SCHEMA)
        for row in batch.to_pylist()
    ]


def test_every_way_of_pulling_gives_the_same(cluster: PipelineCluster) -> None:
    queue = cluster.queue("sizes")
    whole = OffsetRange(queue, 0, COUNT)
    rows = read(cluster, whole)
    assert [row[0] for row in rows] == list(range(COUNT))
    assert read(cluster, whole, bulkPulls="false") == rows
    assert read(cluster, whole, batchBytes="1k") == rows
    part = OffsetRange(queue, 17, 2345)
    assert read(cluster, part) == rows[17:2345]
    assert read(cluster, part, tags="B || X") == [row for row in rows[17:2345] if row[2] == "B"]
    assert read(cluster, part, tags="none") == []
    assert read(cluster, part, sql92="TAGS = 'B' OR TAGS IS NULL") == [
        row for row in rows[17:2345] if row[2] == "B"
    ]
    with pytest.raises(BrokerError):
        read(cluster, part, sql92="TAGS = = 'B'")


def test_bulk_pulls_bring_more_and_others_do_not(cluster: PipelineCluster) -> None:
    queue, wire = cluster.queue("sizes"), cluster.wire
    stock = wire.ask_broker(queue, PullMessage.plain(queue, 0, messages_max=BULK_MESSAGES))
    assert stock.reply.next_begin_offset == 32
    many = wire.ask_broker(
        queue, PullMessage.plain(queue, 0, messages_max=BULK_MESSAGES, bulk_bytes=BULK_BYTES)
    )
    assert 32 < many.reply.next_begin_offset <= BULK_MESSAGES
    assert len(many.records) <= BULK_BYTES
    greedy = wire.ask_broker(queue, PullMessage.plain(queue, 0, messages_max=1 << 30, bulk_bytes=1 << 30))
    assert greedy.reply.next_begin_offset <= BULK_MESSAGES
    assert len(greedy.records) <= BULK_BYTES
    one = wire.ask_broker(queue, PullMessage.plain(queue, 0, messages_max=10, bulk_bytes=1))
    assert one.reply.next_begin_offset == 1


def test_messages_that_are_not_there_are_told(
    cluster: PipelineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_source, "MISSING_WAIT_S", 0.3)
    beyond = OffsetRange(cluster.queue("sizes"), COUNT - 5, COUNT + 10)
    with pytest.raises(DataLost, match="10 messages of sizes/broker-a/0 are lost, offsets 3000 to 3010"):
        read(cluster, beyond)
    assert len(read(cluster, beyond, failOnDataLoss="false")) == 5


def test_offsets_and_sizes(cluster: PipelineCluster) -> None:
    queue, wire = cluster.queue("sizes"), cluster.wire
    assert wire.min_offsets([queue]) == {queue: 0}
    assert wire.max_offsets([queue]) == {queue: COUNT}
    assert wire.offsets_by_time([queue], 0) == {queue: 0}
    assert wire.offsets_by_time([queue], 1 << 50) == {queue: COUNT}
    assert wire.group_offset("nobody", queue) is None
    wire.commit_offsets("somebody", {queue: 7})
    wire.advance_offsets("somebody", {queue: 5})
    assert wire.group_offset("somebody", queue) == 7
    origin = BrokerSource(load(SourceOptions, cluster.options("sizes")))
    whole = OffsetRange(queue, 0, COUNT)
    (size,) = origin.record_bytes([whole])
    assert 100 < size < 7000
    assert origin.end_within(whole, 100_000, size) == int(100_000 / size)
    with pytest.raises(NoRoute):
        wire.queues("unheard-of")


@pytest.fixture
def lonely(cluster: PipelineCluster) -> Iterator[ClusterClient]:
    """A list of name servers of which only the last one is there."""
    found = ClusterClient(f"127.0.0.1:1;{cluster.namesrv}", retry_timeout_s=5)
    yield found
    found.close()


def test_name_servers_that_are_away_are_passed_over(lonely: ClusterClient) -> None:
    assert "sizes" in lonely.topics()
    assert len(lonely.queues("sizes")) == 1


def test_topics_that_are_made_for_clusters_and_brokers_are_not_offered(cluster: PipelineCluster) -> None:
    origin = BrokerSource(load(SourceOptions, cluster.options("sizes")))
    for wanted in ("unheard-of", ".*"):
        try:
            offered = " ".join(choose_topics(wanted, origin))
        except SettingsError as error:
            offered = str(error)
        assert "sizes" in offered
        assert not {"broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "TBW102"} & set(
            re.split("[, ]+", offered)
        )


def test_a_broker_is_no_name_server(lonely: ClusterClient) -> None:
    broker = masters(lonely.route("sizes"))["broker-a"]
    wrong = ClusterClient(broker, retry_timeout_s=5)
    with pytest.raises(NotANameServer, match=f"{broker} is not a name server"):
        wrong.topics()
    wrong.close()


def test_a_server_that_cannot_be_reached_is_named(cluster: PipelineCluster) -> None:
    nobody = ClusterClient("127.0.0.1:1", retry_timeout_s=0)
    with pytest.raises(ConnectFailed, match=r"cannot connect to name server 127\.0\.0\.1:1: ") as failed:
        nobody.topics()
    assert "NAMESRV_ADDR" in failed.value.hint
    known = ClusterClient(cluster.namesrv, retry_timeout_s=0)
    route = known.route("sizes")
    route.broker_datas[0].broker_addrs[0] = "127.0.0.1:1"  # it is gone
    with pytest.raises(ConnectFailed, match=r"to broker broker-a at 127\.0\.0\.1:1: ") as failed:
        known.max_offsets(known.queues("sizes"))
    assert "--advertise HOST" in failed.value.hint
    known.close()


def test_losses_are_counted(cluster: PipelineCluster) -> None:
    losses = LossPolicy(load(SourceOptions, cluster.options("sizes", failOnDataLoss="false")))
    losses.aged_out(OffsetRange(cluster.queue("sizes"), 3, 10))
    assert losses.lost == 7


def test_large_messages_of_a_key_may_not_be_all_there_are(shared_cluster: PipelineCluster) -> None:
    topic = fresh_name("large")
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, [bytes(3 << 20)] * 4, properties={"KEYS": "large"})
    shared_cluster.send(topic, [b"x"] * 4, properties={"KEYS": "small"})
    origin = BrokerSource(load(SourceOptions, shared_cluster.options(topic)))
    assert origin.by_key(topic, "large", unique=False, maximum=32) is None
    found = origin.by_key(topic, "small", unique=False, maximum=32)
    assert found is not None and sorted(item.from_offset for item in found) == [4, 5, 6, 7]
