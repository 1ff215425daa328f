"""Our admin and our pull consumer on Apache's own servers, with one of Apache's consumers connected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from skylark.admin.admin import Admin
from skylark.admin.offsets import BEGIN, END
from skylark.admin.results import Group, Topic
from skylark.client.pull_consumer import PullConsumer
from skylark.client.pulling import PullStatus
from skylark.errors import BrokerError, ClientError, NoRoute
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.remoting.blocking import BlockingConnection
from skylark.settings.client import ClientSettings
from skylark.settings.consumer import ConsumeFrom
from skylark.settings.pull_consumer import PullConsumerSettings
from tests.interop.admin_script import (
    CLUSTER,
    GROUP,
    LIVE_CONSUMERS,
    LIVE_PRODUCERS,
    LIVE_TOPIC,
    MESSAGES,
    QUEUES,
    TOPIC,
    prepare,
    unique_key,
)
from tests.interop.client_driver import ClientDriver
from tests.interop.servers import Servers, make_servers
from tests.support.broker import until

pytestmark = pytest.mark.interop("java", "mvn")

BROKER = "broker-a"
ALL = [MessageQueue(TOPIC, BROKER, n) for n in range(QUEUES)]
CLIENT = ClientSettings(client_ip="127.0.0.1")


@dataclass(frozen=True)
class Apache:
    """The pair, the ids of Java clients that are connected, and the ids of stored messages."""

    servers: Servers
    consumer: str
    producer: str
    sent: list[str]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    with make_servers("apache", tmp_path_factory.mktemp("apache")) as servers:
        driver = ClientDriver("5.3.3", servers.name_server, tmp_path_factory.mktemp("live"))
        with driver.live() as (consumer, producer):
            sent = [reply.msg_id for reply in prepare(servers.broker)]
            yield Apache(servers, consumer, producer, sent)


@pytest.fixture
async def admin(apache: Apache) -> AsyncIterator[Admin]:
    async with Admin(namesrv=apache.servers.name_server, client=CLIENT, timeout_ms=20_000) as running:
        yield running


async def test_brokers(admin: Admin, apache: Apache) -> None:
    [node] = await admin.brokers.nodes(cluster=CLUSTER)
    assert (node.name, node.address, node.is_master) == (BROKER, apache.servers.broker, True)
    assert await admin.brokers.replicas(CLUSTER, BROKER) == {0: apache.servers.broker}
    summary = await admin.brokers.summary()
    assert summary.brokers[0].version == "V5_3_3"
    assert not summary.failures
    assert (await admin.brokers.runtime(BROKER))["brokerVersionDesc"] == "V5_3_3"
    assert (await admin.brokers.consume_stats(BROKER)).total_diff >= 0
    assert (await admin.brokers.replication(BROKER)).master
    assert (await admin.brokers.stats(BROKER, "TOPIC_PUT_NUMS", TOPIC)).stats_day.sum >= 0
    await admin.brokers.update_config({"waitTimeMillsInSendQueue": "444"}, broker=BROKER)
    assert (await admin.brokers.config(BROKER))["waitTimeMillsInSendQueue"] == "444"
    assert (await admin.brokers.config_version(BROKER)).counter >= 1
    with pytest.raises(BrokerError, match="black list"):
        await admin.brokers.update_config({"brokerConfigPath": "elsewhere"}, broker=BROKER)
    await admin.brokers.clean_queues()
    await admin.brokers.clean_topics()
    await admin.brokers.delete_expired_log()
    assert "configTable" in await admin.brokers.cold_reads(BROKER)


async def test_name_servers(admin: Admin) -> None:
    await admin.name_servers.put("space", "key", "value")
    assert await admin.name_servers.get("space", "key") == "value"
    assert await admin.name_servers.table("space") == {"key": "value"}
    await admin.name_servers.delete("space", "key")
    assert await admin.name_servers.get("space", "key") is None
    await admin.name_servers.update_config({"orderMessageEnable": "false"})
    [config] = (await admin.name_servers.config()).values()
    assert config["orderMessageEnable"] == "false"
    assert all(count > 0 for count in (await admin.brokers.wipe_write_permission(BROKER)).values())
    assert (await admin.topics.route(TOPIC)).brokers[0].permission == 4
    await admin.brokers.add_write_permission(BROKER)
    assert (await admin.topics.route(TOPIC)).brokers[0].permission == 6


async def test_topics(admin: Admin) -> None:
    topics = admin.topics
    await topics.create("Made", read_queues=6, write_queues=5, attributes={"message.type": "FIFO"})
    await until(lambda: _has_route(admin, "Made"))
    [made] = (await topics.config("Made")).answers.values()
    assert made == Topic("Made", 6, 5, 6, False, {"message.type": "FIFO"})
    await topics.update("Made", permission=4, write_queues=6)
    [made] = (await topics.config("Made")).answers.values()
    assert (made.permission, made.write_queues, made.attributes) == (4, 6, {"message.type": "FIFO"})
    await topics.create_all([Topic("ListedA", 2, 2, 6, False, {}), Topic("ListedB", 3, 3, 6, False, {})])
    assert {"Made", "ListedA", "ListedB"} <= {topic.name for topic in await topics.on_broker(BROKER)}
    assert {TOPIC, "TBW102"} <= set(await topics.names())
    assert TOPIC in await topics.names(cluster=CLUSTER)
    assert {"TBW102", BROKER} <= set(await topics.system())
    await topics.set_order("Made", "broker-a:1")
    assert await topics.order("Made") == "broker-a:1"
    await topics.set_order("Made", None)
    assert await topics.order("Made") is None
    await topics.delete("Made")
    with pytest.raises(NoRoute):
        await topics.route("Made")


async def _has_route(admin: Admin, topic: str) -> bool:
    try:
        await admin.topics.route(topic)
    except NoRoute:
        return False
    return True


async def test_groups(admin: Admin) -> None:
    groups = admin.groups
    await groups.create(Group("MadeGroup", retries_max=7, retry_queues=2, broadcast_enabled=False))
    [made] = (await groups.config("MadeGroup")).answers.values()
    assert (made.retries_max, made.retry_queues, made.broadcast_enabled) == (7, 2, False)
    await groups.update("MadeGroup", retries_max=8)
    [made] = (await groups.config("MadeGroup")).answers.values()
    assert (made.retries_max, made.retry_queues) == (8, 2)
    await groups.create_all([Group("ListedGroupA"), Group("ListedGroupB")])
    assert {"MadeGroup", "ListedGroupA", "ListedGroupB", GROUP} <= set(await groups.names())
    await groups.set_request_mode(GROUP, TOPIC, "PULL")
    await groups.delete("MadeGroup")
    assert "MadeGroup" not in await groups.names()


async def test_offsets(admin: Admin) -> None:
    stats = await admin.topics.stats(TOPIC)
    ends = {part.queue: part.end for part in stats.queues}
    assert set(ends) == set(ALL)
    assert stats.messages >= MESSAGES
    assert GROUP in await admin.topics.groups(TOPIC)
    assert await admin.groups.topics(GROUP) == [TOPIC]
    progress = await admin.groups.progress(GROUP, TOPIC)
    assert [part.committed for part in progress.queues] == [1] * QUEUES
    assert progress.lag == sum(ends.values()) - QUEUES
    assert len(await admin.groups.time_spans(GROUP, TOPIC)) == QUEUES
    assert await admin.offsets.begin(ALL[0]) == 0
    assert await admin.offsets.end(ALL[0]) == ends[ALL[0]]
    assert await admin.offsets.at_time(ALL[0], 0) == 0
    assert (await admin.offsets.earliest_time_ms(ALL[0]) or 0) > 0
    # A group without members, reset by its broker; then cloned, then moved in one queue.
    skipped = await admin.offsets.skip(GROUP, TOPIC)
    assert skipped.offsets == ends
    assert (await admin.groups.progress(GROUP, TOPIC)).lag == 0
    await admin.offsets.reset(GROUP, TOPIC, BEGIN)
    assert await admin.offsets.committed(GROUP, TOPIC) == dict.fromkeys(ALL, 0)
    await admin.offsets.reset_queue(GROUP, ALL[2], 1)
    assert (await admin.offsets.committed(GROUP, TOPIC))[ALL[2]] == 1
    assert await admin.offsets.clone(GROUP, "Cloned") == [TOPIC]
    assert (await admin.offsets.committed("Cloned", TOPIC))[ALL[2]] == 1


async def test_messages(admin: Admin, apache: Apache) -> None:
    message = await admin.messages.get(TOPIC, apache.sent[5])
    assert (message.body, message.tags, message.keys) == (b"body 5", "TagB", ["key-5", "all"])
    assert message.queue == ALL[1]
    by_key = await admin.messages.get(TOPIC, unique_key(6))
    assert by_key.offset_message_id == apache.sent[6]
    found = await admin.messages.by_key(TOPIC, "all")
    assert {part.unique_key for part in found.messages} == {unique_key(n) for n in range(MESSAGES)}
    at = await admin.messages.at(ALL[3], 1)
    assert at is not None
    assert at.offset_message_id == apache.sent[7]
    everything = (await admin.messages.between(TOPIC)).messages
    assert {part.body for part in everything} >= {f"body {n}".encode() for n in range(MESSAGES)}
    tagged = (await admin.messages.between(TOPIC, expression="TagA")).messages
    assert {part.tags for part in tagged} == {"TagA"}
    units = await admin.messages.units(ALL[0], 0, 2)
    assert len(units.queue_data) == 2
    states = {track.group for track in await admin.messages.track(message)}
    assert GROUP in states
    with pytest.raises(ClientError):
        await admin.messages.get(TOPIC, unique_key(999))


async def test_a_java_consumer_answers_through_its_broker(admin: Admin, apache: Apache) -> None:
    consumers = await admin.clients.consumers(LIVE_CONSUMERS)
    [client] = consumers.clients
    assert (client.client_id, client.language) == (apache.consumer, "JAVA")
    assert LIVE_TOPIC in consumers.subscriptions
    producers = await admin.clients.producers(LIVE_PRODUCERS)
    assert [client.client_id for client in producers.clients] == [apache.producer]
    assert LIVE_PRODUCERS in await admin.clients.all_producers(BROKER)
    info = await admin.clients.running_info(LIVE_CONSUMERS, apache.consumer)
    assert info.properties["messageModel"] == "CLUSTERING"
    assert {queue.topic for queue in info.mq_table} >= {LIVE_TOPIC}
    positions = await admin.clients.positions(LIVE_CONSUMERS, LIVE_TOPIC)
    assert set(positions) == {apache.consumer}
    subscription = await admin.groups.subscription(LIVE_CONSUMERS, LIVE_TOPIC)
    assert subscription is not None
    message = await admin.messages.get(TOPIC, apache.sent[4])
    result = await admin.clients.consume_directly(LIVE_CONSUMERS, apache.consumer, message)
    assert result.consume_result == "CR_SUCCESS"
    reset = await admin.offsets.reset(LIVE_CONSUMERS, LIVE_TOPIC, END)
    assert {queue.topic for queue in reset.offsets} == {LIVE_TOPIC}
    with pytest.raises(BrokerError) as caught:
        await admin.clients.consumers(GROUP)
    assert caught.value.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_dead_letters_are_sent_again(admin: Admin, apache: Apache) -> None:
    message = await admin.messages.get(TOPIC, apache.sent[3])
    give_up = ConsumerSendMsgBack(
        GROUP,
        message.physical_offset,
        -1,
        origin_msg_id=apache.sent[3],
        origin_topic=TOPIC,
        max_reconsume_times=16,
    )

    def bury() -> None:
        with BlockingConnection(apache.servers.broker) as connection:
            connection.call(give_up, timeout_s=20)

    await asyncio.to_thread(bury)
    await until(lambda: _has_letters(admin), timeout_s=60)
    [letter] = await admin.dead_letters.find(GROUP)
    assert (letter.topic, letter.message.body) == (TOPIC, b"body 3")
    report = await admin.dead_letters.resend(GROUP)
    assert report.done == 1
    retried = (await admin.messages.between(f"%RETRY%{GROUP}")).messages
    assert [part.body for part in retried] == [b"body 3"]
    assert await admin.dead_letters.find(GROUP) == []


async def _has_letters(admin: Admin) -> bool:
    return bool(await admin.dead_letters.find(GROUP))


# --- The pull consumer ---


def settings(**changes: object) -> PullConsumerSettings:
    values = {
        "consume_from": ConsumeFrom.FIRST_OFFSET,
        "auto_commit_interval_ms": 100,
        "rebalance_gap_ms": 50,
    }
    return PullConsumerSettings(**{**values, **changes})  # type: ignore[arg-type]


async def test_sf_021_034_a_plain_pull_on_apache(apache: Apache, admin: Admin) -> None:
    end = await admin.offsets.end(ALL[0])
    async with PullConsumer("PlainPuller", namesrv=apache.servers.name_server, client=CLIENT) as consumer:
        assert await consumer.queues(TOPIC) == ALL
        found = await consumer.pull(ALL[0], "*", 0, 1)
        assert (found.status, found.next_offset, found.min_offset) == (PullStatus.FOUND, 1, 0)
        assert found.messages[0].body == b"body 0"
        assert (await consumer.pull(ALL[0], "*", end, 4)).status is PullStatus.NO_NEW_MSG
        assert (await consumer.pull(ALL[0], "NoSuchTag", 0, 4)).status is PullStatus.NO_MATCHED_MSG
        illegal = await consumer.pull(ALL[0], "*", 100_000, 4)
        assert (illegal.status, illegal.next_offset) == (PullStatus.OFFSET_ILLEGAL, end)
    assert (await admin.groups.progress("PlainPuller")).queues == ()


async def test_a_pull_consumer_of_ours_on_apache(apache: Apache, admin: Admin) -> None:
    async with PullConsumer(
        "LitePuller", namesrv=apache.servers.name_server, client=CLIENT, settings=settings()
    ) as consumer:
        consumer.subscribe(TOPIC)
        stats = await admin.topics.stats(TOPIC)
        seen: list[bytes] = []
        started = time.monotonic()
        while len(seen) < stats.messages:
            assert time.monotonic() - started < 60
            seen += [message.body for message in await consumer.poll(1000)]
        assert {f"body {n}".encode() for n in range(MESSAGES)} <= set(seen)
        await consumer.commit()
        assert set((await consumer.lag()).values()) == {0}
        assert (await admin.groups.progress("LitePuller", TOPIC)).lag == 0
        await consumer.seek(ALL[0], 1)
        assert (await consumer.poll(30_000))[0].queue_offset == 1
        members = await admin.clients.consumers("LitePuller")
        assert [client.language for client in members.clients] == ["PYTHON"]
        assert members.consume_type == "CONSUME_ACTIVELY"
        info = await admin.clients.running_info("LitePuller", consumer.client_id)
        assert set(info.mq_table) == set(ALL)
        await admin.offsets.reset("LitePuller", TOPIC, BEGIN)
        again: set[bytes] = set()
        while not {f"body {n}".encode() for n in range(MESSAGES)} <= again:
            assert time.monotonic() - started < 120
            again |= {message.body for message in await consumer.poll(1000)}
