"""Our producer on Apache's servers: the rows of the mission that touch the wire."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skylark import aio
from skylark.client.producer.producer import Producer
from skylark.errors import SendFailed
from skylark.model.body import plain_body
from skylark.model.message import Message, StoredMessage
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.group import GetProducerConnectionList
from skylark.settings.client import ClientSettings, Compression, ProducerSettings
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import ApacheServers, create_topic
from tests.support.broker import BrokerClient, offset_id, until
from tests.support.names import fresh_name

pytestmark = pytest.mark.interop("java", "mvn")

PATIENT = ProducerSettings(send_timeout_ms=30_000)
WAIT_S = 60


async def stored(apache: ApacheServers, topic: str, queues: int = 4) -> list[StoredMessage]:
    async with BrokerClient(apache.broker) as client:
        found = []
        for queue_id in range(queues):
            found += await client.pull_all(topic, queue_id, group="reading")
        return found


async def until_stored(
    apache: ApacheServers, topic: str, number: int, queues: int = 4
) -> list[StoredMessage]:
    """Wait until a topic holds so many: Apache answers before its consume queues are written."""
    found: list[StoredMessage] = []

    async def holds() -> bool:
        found[:] = await stored(apache, topic, queues)
        return len(found) >= number

    await until(holds, timeout_s=WAIT_S)
    return found


async def test_sf_052_062_the_first_message_finds_its_way_and_makes_its_topic(
    apache: ApacheServers,
) -> None:
    topic = fresh_name("apache-first")

    def use() -> list[int]:
        with Producer("first", namesrv=apache.name_server, settings=PATIENT) as producer:
            return [producer.send(Message(topic, b"hello")).queue.queue_id for _ in range(8)]

    queue_ids = await asyncio.to_thread(use)
    assert Counter(queue_ids) == {0: 2, 1: 2, 2: 2, 3: 2}
    found = await until_stored(apache, topic, 8)
    assert {each.body for each in found} == {b"hello"}


async def test_sf_055_056_057_the_broker_knows_the_producer_by_group_and_id(apache: ApacheServers) -> None:
    client = ClientSettings(namespace="n", heartbeat_interval_ms=300)
    topic, group = fresh_name("apache-known"), fresh_name("known")
    create_topic(apache.broker, f"n%{topic}")
    async with aio.Producer(group, namesrv=apache.name_server, settings=PATIENT, client=client) as producer:
        await producer.send(Message(topic, b"x"))
        assert re.fullmatch(rf"[\d.]+@{os.getpid()}#\d+", producer.client_id)

        async def is_known() -> bool:
            async with BrokerClient(apache.broker) as asking:
                try:
                    found = await asking.ask(GetProducerConnectionList(f"n%{group}"))
                except Exception:  # noqa: BLE001 (until it has heard of the group, it refuses)
                    return False
            return [each.client_id for each in found.connection_set] == [producer.client_id]

        await until(is_known, timeout_s=WAIT_S)
    [found] = await until_stored(apache, f"n%{topic}", 1)
    assert found.properties["INSTANCE_ID"] == "n"


async def test_sf_063_064_many_messages_take_turns_over_all_queues(apache: ApacheServers) -> None:
    topic = fresh_name("apache-many")
    create_topic(apache.broker, topic, 8)
    async with aio.Producer("many", namesrv=apache.name_server, settings=PATIENT) as producer:
        assert len(await producer.queues(topic)) == 8
        futures = [await producer.submit(Message(topic, b"%d" % number)) for number in range(2000)]
        receipts = await asyncio.gather(*futures)
    counts = Counter(receipt.queue.queue_id for receipt in receipts)
    # A broker that is busy for a moment has a message sent again, to the queue whose turn it is then.
    assert all(abs(count - 250) <= 10 for count in counts.values()), counts
    assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 2000


@pytest.mark.parametrize("compression", list(Compression))
async def test_sf_068_bodies_come_out_as_they_went_in(
    apache: ApacheServers, compression: Compression
) -> None:
    topic = fresh_name(f"apache-bodies-{compression.value}")
    create_topic(apache.broker, topic, 1)
    bodies = [b"\0", bytes(100), os.urandom(4095), os.urandom(4096), b"word " * 800_000]
    settings = ProducerSettings(compression=compression, send_timeout_ms=30_000)
    async with aio.Producer("bodies", namesrv=apache.name_server, settings=settings) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))
    found = await until_stored(apache, topic, len(bodies), 1)
    assert [plain_body(each) for each in found] == bodies
    assert [bool(each.sys_flag & 1) for each in found] == [False, False, False, True, True]


async def test_sf_069_what_is_said_of_a_message_is_kept(apache: ApacheServers) -> None:
    topic = fresh_name("apache-said")
    create_topic(apache.broker, topic)
    async with aio.Producer("said", namesrv=apache.name_server, settings=PATIENT) as producer:
        receipt = await producer.send(
            Message(
                topic, b"x", tags="TagÄ", keys=["k1", "k2"], properties={"größe": "日本"}, flag=7,
                sharding_key="order-1001",
            )
        )  # fmt: skip
    [found] = await until_stored(apache, topic, 1)
    assert receipt.queue.queue_id == found.queue_id == 3
    assert (found.tags, found.keys, found.flag) == ("TagÄ", ["k1", "k2"], 7)
    assert found.properties["größe"] == "日本"
    assert found.properties["__SHARDINGKEY"] == "order-1001"
    assert (found.unique_key, offset_id(found)) == (receipt.message_id, receipt.offset_message_id)
    assert (found.queue_offset, found.topic) == (receipt.queue_offset, receipt.queue.topic)


async def test_batches_oneway_and_automatic_batches_arrive(apache: ApacheServers) -> None:
    topic = fresh_name("apache-batch")
    create_topic(apache.broker, topic)
    async with aio.Producer("batch", namesrv=apache.name_server, settings=PATIENT) as producer:
        receipts = await producer.send_batch([Message(topic, b"a%d" % n) for n in range(10)])
        await producer.send_oneway(Message(topic, b"b"))
    settings = ProducerSettings(batching=True, send_timeout_ms=30_000)
    async with aio.Producer("auto", namesrv=apache.name_server, settings=settings) as producer:
        gathered = await asyncio.gather(
            *(producer.send(Message(topic, b"c%d" % number)) for number in range(300))
        )
    found = {offset_id(each): each.body for each in await until_stored(apache, topic, 311)}
    assert [found[receipt.offset_message_id] for receipt in receipts] == [b"a%d" % n for n in range(10)]
    assert [found[receipt.offset_message_id] for receipt in gathered] == [b"c%d" % n for n in range(300)]
    assert b"b" in found.values()


async def test_delayed_messages_come_later(apache: ApacheServers) -> None:
    topic = fresh_name("apache-delay")
    create_topic(apache.broker, topic, 1)
    async with aio.Producer("delay", namesrv=apache.name_server, settings=PATIENT) as producer:
        await producer.send(Message(topic, b"level", delay_level=1))
        await producer.send(Message(topic, b"after", deliver_after=timedelta(seconds=2)))
        at = datetime.now(UTC) + timedelta(seconds=3)
        await producer.send(Message(topic, b"at", deliver_at=at))
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message(topic, b"never", deliver_after=timedelta(days=4)))
    assert raised.value.code == 13
    assert "delay time should not be bigger" in raised.value.remark
    found = await until_stored(apache, topic, 3, 1)
    assert {each.body for each in found} == {b"level", b"after", b"at"}
    late_ms = {each.body: each.store_timestamp - each.born_timestamp for each in found}
    assert late_ms[b"level"] >= 1000
    assert late_ms[b"after"] >= 2000
    [punctual] = [each for each in found if each.body == b"at"]
    assert punctual.store_timestamp >= at.timestamp() * 1000


async def test_a_queue_that_is_not_there_is_told_with_the_broker_s_words(apache: ApacheServers) -> None:
    topic = fresh_name("apache-queue")
    create_topic(apache.broker, topic, 1)
    async with aio.Producer("queue", namesrv=apache.name_server, settings=PATIENT) as producer:
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 99))
    assert raised.value.remark in str(raised.value)
    assert raised.value.remark


async def test_sf_056_traces_are_written_as_apache_s_tool_reads_them(
    apache: ApacheServers, tmp_path: Path
) -> None:
    topic = fresh_name("apache-traced")
    create_topic(apache.broker, topic, 1)
    settings = ProducerSettings(trace=True, trace_flush_ms=50, send_timeout_ms=30_000)
    async with aio.Producer("traced", namesrv=apache.name_server, settings=settings) as producer:
        receipt = await producer.send(Message(topic, b"x", keys=["k"]))

    async def is_told() -> bool:
        traces = await stored(apache, "RMQ_SYS_TRACE_TOPIC", 1)
        return any(receipt.message_id in each.keys for each in traces)

    await until(is_told, timeout_s=WAIT_S)
    tool = MqAdmin(admin_classpath(), apache.name_server, tmp_path)
    [shown] = await asyncio.to_thread(tool.run, ["queryMsgTraceById", "-i", receipt.message_id])
    assert "traced" in shown
    assert "success" in shown
