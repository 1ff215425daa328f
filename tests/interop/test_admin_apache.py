"""Our admin and our pull consumer on Apache's own servers, with one of Apache's consumers connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.admin.offsets import BEGIN, END
from skylark.admin.results import Group, Topic
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.client.consumer.pull_policy import PullStatus
from skylark.errors import BrokerError, ClientError, NoRoute
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.send import ConsumerSendMsgBack
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings.client import ClientSettings, ConsumeFrom, PullConsumerSettings
from tests.interop.admin_script import (
    CLUSTER,
    GROUP,
    LIVE,
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
from tests.interop.servers import ApacheServers
from tests.support.broker import until
from tests.support.names import fresh_name

pytestmark = pytest.mark.interop("java", "mvn")

BROKER = "broker-a"
ALL = [MessageQueue(TOPIC, BROKER, n) for n in range(QUEUES)]
CLIENT = ClientSettings(client_ip="127.0.0.1")
WAIT_S = 120
"""Idle pulls are held for 20 seconds, and only their answers tell of a reset."""


@dataclass(frozen=True)
class Apache:
    """The pair, the ids of Java clients that are connected, and the ids of stored messages."""

    servers: ApacheServers
    consumer: str
    producer: str
    sent: list[str]


@pytest.fixture(scope="module")
def apache(apache: ApacheServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    driver = ClientDriver("5.3.3", apache.name_server, tmp_path_factory.mktemp("live"), LIVE)
    with driver.live() as (consumer, producer):
        sent = [reply.msg_id for reply in prepare(apache.broker)]
        yield Apache(apache, consumer, producer, sent)


@pytest.fixture
async def admin(apache: Apache) -> AsyncIterator[AsyncAdmin]:
    async with AsyncAdmin(namesrv=apache.servers.name_server, client=CLIENT, timeout_ms=20_000) as running:
        yield running


async def test_brokers(admin: AsyncAdmin, apache: Apache) -> None:
    [node] = await admin.brokers.nodes(cluster=CLUSTER)
    assert (node.name, node.address, node.is_master) == (BROKER, apache.servers.broker, True)
    assert await admin.brokers.replicas(CLUSTER, BROKER) == {0: apache.servers.broker}
    summary = await admin.brokers.summary()
    assert summary.brokers[0].version == apache.servers.version
    assert not summary.failures
    assert (await admin.brokers.runtime(BROKER))["brokerVersionDesc"] == apache.servers.version
    assert (await admin.brokers.consume_stats(BROKER)).total_diff >= 0
    assert (await admin.brokers.replication(BROKER)).master
    assert (await admin.brokers.stats(BROKER, "TOPIC_PUT_NUMS", TOPIC)).stats_day.sum >= 0
    await admin.brokers.update_config({"waitTimeMillsInSendQueue": "44444"}, broker=BROKER)
    assert (await admin.brokers.config(BROKER))["waitTimeMillsInSendQueue"] == "44444"
    assert (await admin.brokers.config_version(BROKER)).counter >= 1
    with pytest.raises(BrokerError, match="black list"):
        await admin.brokers.update_config({"brokerConfigPath": "elsewhere"}, broker=BROKER)
    await admin.brokers.clean_queues()
    await admin.brokers.clean_topics()
    await admin.brokers.delete_expired_log()
    assert "configTable" in await admin.brokers.cold_reads(BROKER)


async def test_name_servers(admin: AsyncAdmin) -> None:
    await admin.name_servers.put("space", "key", "value")
    assert await admin.name_servers.get("space", "key") == "value"
    assert await admin.name_servers.table("space") == {"key": "value"}
    await admin.name_servers.delete("space", "key")
    assert await admin.name_servers.get("space", "key") is None
    await admin.name_servers.update_config({"orderMessageEnable": "false"})
    [config] = (await admin.name_servers.config()).values()
    assert config["orderMessageEnable"] == "false"
    try:
        assert all(count > 0 for count in (await admin.brokers.wipe_write_permission(BROKER)).values())
        assert (await admin.topics.route(TOPIC)).brokers[0].permission == 4
    finally:
        await admin.brokers.add_write_permission(BROKER)
    assert (await admin.topics.route(TOPIC)).brokers[0].permission == 6


async def test_topics(admin: AsyncAdmin) -> None:
    topics = admin.topics
    name, others = fresh_name("Made"), [fresh_name("Listed"), fresh_name("Listed")]
    await topics.create(name, read_queues=6, write_queues=5, attributes={"message.type": "FIFO"})
    await until(lambda: _has_route(admin, name))
    [made] = (await topics.config(name)).answers.values()
    assert made == Topic(name, 6, 5, 6, False, {"message.type": "FIFO"})
    await topics.update(name, permission=4, write_queues=6)
    [made] = (await topics.config(name)).answers.values()
    assert (made.permission, made.write_queues, made.attributes) == (4, 6, {"message.type": "FIFO"})
    await topics.create_all([Topic(other, 2, 2, 6, False, {}) for other in others])
    assert {name, *others} <= {topic.name for topic in await topics.on_broker(BROKER)}
    assert {TOPIC, "TBW102"} <= set(await topics.names())
    assert TOPIC in await topics.names(cluster=CLUSTER)
    assert {"TBW102", BROKER} <= set(await topics.system())
    await topics.set_order(name, "broker-a:1")
    assert await topics.order(name) == "broker-a:1"
    await topics.set_order(name, None)
    assert await topics.order(name) is None
    await topics.delete(name)

    async def is_gone() -> bool:  # a registration that was under way may bring it back for a moment
        return not await _has_route(admin, name)

    await until(is_gone)


async def _has_route(admin: AsyncAdmin, topic: str) -> bool:
    try:
        await admin.topics.route(topic)
    except NoRoute:
        return False
    return True


async def test_groups(admin: AsyncAdmin) -> None:
    groups = admin.groups
    name, others = fresh_name("MadeGroup"), [fresh_name("ListedGroup"), fresh_name("ListedGroup")]
    await groups.create(Group(name, retries_max=7, retry_queues=2, broadcast_enabled=False))
    [made] = (await groups.config(name)).answers.values()
    assert (made.retries_max, made.retry_queues, made.broadcast_enabled) == (7, 2, False)
    await groups.update(name, retries_max=8)
    [made] = (await groups.config(name)).answers.values()
    assert (made.retries_max, made.retry_queues) == (8, 2)
    await groups.create_all([Group(other) for other in others])
    assert {name, *others, GROUP} <= set(await groups.names())
    await groups.set_request_mode(GROUP, TOPIC, "PULL")
    await groups.delete(name)
    assert name not in await groups.names()


async def test_offsets(admin: AsyncAdmin) -> None:
    group, clone = fresh_name(GROUP), fresh_name("Cloned")
    for name in (group, clone):
        await admin.groups.create(Group(name))
    await admin.offsets.commit(group, dict.fromkeys(ALL, 1))
    stats = await admin.topics.stats(TOPIC)
    ends = {part.queue: part.end for part in stats.queues}
    assert set(ends) == set(ALL)
    assert stats.messages >= MESSAGES
    assert group in await admin.topics.groups(TOPIC)
    assert await admin.groups.topics(group) == [TOPIC]
    progress = await admin.groups.progress(group, TOPIC)
    assert [part.committed for part in progress.queues] == [1] * QUEUES
    assert progress.lag == sum(ends.values()) - QUEUES
    assert len(await admin.groups.time_spans(group, TOPIC)) == QUEUES
    assert await admin.offsets.begin(ALL[0]) == 0
    assert await admin.offsets.end(ALL[0]) == ends[ALL[0]]
    assert await admin.offsets.at_time(ALL[0], 0) == 0
    assert (await admin.offsets.earliest_time_ms(ALL[0]) or 0) > 0
    # A group without members, reset by its broker; then cloned, then moved in one queue.
    skipped = await admin.offsets.skip(group, TOPIC)
    assert skipped.offsets == ends
    assert (await admin.groups.progress(group, TOPIC)).lag == 0
    await admin.offsets.reset(group, TOPIC, BEGIN)
    assert await admin.offsets.committed(group, TOPIC) == dict.fromkeys(ALL, 0)
    await admin.offsets.reset_queue(group, ALL[2], 1)
    assert (await admin.offsets.committed(group, TOPIC))[ALL[2]] == 1
    assert await admin.offsets.clone(group, clone) == [TOPIC]
    assert (await admin.offsets.committed(clone, TOPIC))[ALL[2]] == 1


async def test_messages(admin: AsyncAdmin, apache: Apache) -> None:
    async def are_indexed() -> bool:
        return len((await admin.messages.by_key(TOPIC, "all")).messages) == MESSAGES

    await until(are_indexed)
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


async def test_a_java_consumer_answers_through_its_broker(admin: AsyncAdmin, apache: Apache) -> None:
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


async def test_dead_letters_are_sent_again(admin: AsyncAdmin, apache: Apache) -> None:
    group = fresh_name("Burying")
    await admin.groups.create(Group(group))
    message = await admin.messages.get(TOPIC, apache.sent[3])
    give_up = ConsumerSendMsgBack(
        group,
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

    async def has_letters() -> bool:
        return bool(await admin.dead_letters.find(group))

    await until(has_letters)
    [letter] = await admin.dead_letters.find(group)
    assert (letter.topic, letter.message.body) == (TOPIC, b"body 3")
    report = await admin.dead_letters.resend(group)
    assert report.done == 1

    async def is_retried() -> bool:
        found = (await admin.messages.between(f"%RETRY%{group}")).messages
        return [part.body for part in found] == [b"body 3"]

    await until(is_retried)
    assert await admin.dead_letters.find(group) == []


# --- The pull consumer ---


def settings(**changes: object) -> PullConsumerSettings:
    values = {
        "consume_from": ConsumeFrom.FIRST_OFFSET,
        "auto_commit_interval_ms": 100,
        "rebalance_gap_ms": 50,
    }
    return PullConsumerSettings(**{**values, **changes})  # type: ignore[arg-type]


async def test_sf_021_034_a_plain_pull_on_apache(apache: Apache, admin: AsyncAdmin) -> None:
    end = await admin.offsets.end(ALL[0])
    group = fresh_name("PlainPuller")
    async with AsyncPullConsumer(group, namesrv=apache.servers.name_server, client=CLIENT) as consumer:
        assert await consumer.queues(TOPIC) == ALL
        found = await consumer.pull(ALL[0], "*", 0, 1)
        assert (found.status, found.next_offset, found.min_offset) == (PullStatus.FOUND, 1, 0)
        assert found.messages[0].body == b"body 0"
        assert (await consumer.pull(ALL[0], "*", end, 4)).status is PullStatus.NO_NEW_MSG
        assert (await consumer.pull(ALL[0], "NoSuchTag", 0, 4)).status is PullStatus.NO_MATCHED_MSG
        illegal = await consumer.pull(ALL[0], "*", 100_000, 4)
        assert (illegal.status, illegal.next_offset) == (PullStatus.OFFSET_ILLEGAL, end)
    assert (await admin.groups.progress(group)).queues == ()


async def read_until(consumer: AsyncPullConsumer, wanted: set[bytes]) -> None:
    """Poll until all of these have come, whatever comes beside."""
    seen: set[bytes] = set()
    async with asyncio.timeout(WAIT_S):
        while not wanted <= seen:
            seen |= {message.body for message in await consumer.poll(1000)}


async def test_a_pull_consumer_of_ours_on_apache(apache: Apache, admin: AsyncAdmin) -> None:
    group, bodies = fresh_name("LitePuller"), {f"body {n}".encode() for n in range(MESSAGES)}

    async def has_read_all() -> bool:
        return (await admin.groups.progress(group, TOPIC)).lag == 0

    async with AsyncPullConsumer(
        group, namesrv=apache.servers.name_server, client=CLIENT, settings=settings()
    ) as consumer:
        consumer.subscribe(TOPIC)
        await read_until(consumer, bodies)
        await consumer.commit()
        assert set((await consumer.lag()).values()) == {0}
        await until(has_read_all)
        await consumer.seek(ALL[0], 1)
        assert (await consumer.poll(WAIT_S * 1000))[0].queue_offset == 1
        members = await admin.clients.consumers(group)
        assert [client.language for client in members.clients] == ["PYTHON"]
        assert members.consume_type == "CONSUME_ACTIVELY"
        info = await admin.clients.running_info(group, consumer.client_id)
        assert set(info.mq_table) == set(ALL)
        await admin.offsets.reset(group, TOPIC, BEGIN)
        await read_until(consumer, bodies)
