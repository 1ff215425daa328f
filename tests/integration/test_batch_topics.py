"""Topics with `queue.type=BatchCQ` on our own servers: batches that are stored as one record each."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.broker.broker import Broker
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.consumer.simple_consumer import AsyncSimpleConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BrokerError
from skylark.model.message import Message, SystemFlag
from skylark.model.record import BatchElement, unwrap
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.send import SendMessageV2
from skylark.settings.client import (
    ClientSettings,
    ConsumeFrom,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    SimpleConsumerSettings,
)
from skylark.store.store_reader import StoreReader
from tests.support.broker import BrokerClient, running_cluster, running_name_server, until
from tests.support.replica_group import (
    designate,
    in_sync,
    is_master,
    running_controller,
    running_group,
    running_replica,
)
from tests.support.replication import in_step

TOPIC = "Batched"
PLAIN = "Plain"
GROUP = "Readers"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
CLIENT = ClientSettings(client_ip="127.0.0.1")
BATCH = 5
QUICK_RETRIES = {"delay_levels": "1s " * 18}
FROM_FIRST = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)


@contextlib.asynccontextmanager
async def cluster(path: Path) -> AsyncIterator[tuple[str, Broker]]:
    async with running_cluster(path, store=QUICK_RETRIES) as (name_server, broker):
        async with AsyncAdmin(namesrv=name_server.address) as admin:
            if broker.topics.get(TOPIC) is None:
                await admin.topics.create(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
                await admin.topics.create(PLAIN, queues=1)
                await admin.groups.create(GROUP)
        yield name_server.address, broker


def messages(first: int, count: int, topic: str = TOPIC) -> list[Message]:
    return [
        Message(topic, b"%d" % number, tags="A", keys=[f"k{number}"], properties={"n": str(number)})
        for number in range(first, first + count)
    ]


async def send(namesrv: str, batches: int, *, first: int = 0, topic: str = TOPIC) -> None:
    async with AsyncProducer("Senders", namesrv=namesrv, client=CLIENT) as producer:
        for number in range(first, first + batches * BATCH, BATCH):
            receipts = await producer.send_batch(messages(number, BATCH, topic))
            assert [receipt.queue_offset for receipt in receipts] == list(range(number, number + BATCH))


def pull_settings(**changes: int) -> PullConsumerSettings:
    return PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, hold_ms=200, **changes)  # type: ignore[arg-type]


async def poll(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.poll(500)
    return found


async def test_a_batch_is_one_record_and_is_received_as_messages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, broker):
        await send(namesrv, 3)
        queue = broker.store.queues[TOPIC, 0]
        assert queue.is_batched
        assert (queue.min_offset, queue.max_offset) == (0, 15)
        result = broker.store.get(TOPIC, 0, 0, 32)
        assert [len(unwrap(record)) for record in result.messages()] == [BATCH] * 3
        async with AsyncPullConsumer(
            GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
        ) as consumer:
            consumer.subscribe(TOPIC)
            found = await poll(consumer, 15)
    assert [message.queue_offset for message in found] == list(range(15))
    assert [message.body for message in found] == [b"%d" % number for number in range(15)]
    assert [message.properties["n"] for message in found] == [str(number) for number in range(15)]
    assert len({message.unique_key for message in found}) == 15


@pytest.mark.parametrize("start", [0, 3, 5, 11, 14])
async def test_a_start_inside_of_a_batch_skips_what_is_before(tmp_path: Path, start: int) -> None:
    async with cluster(tmp_path) as (namesrv, _):
        await send(namesrv, 3)
        async with AsyncPullConsumer(
            GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
        ) as consumer:
            consumer.assign([QUEUE])
            await consumer.seek(QUEUE, start)
            found = await poll(consumer, 15 - start)
            assert [message.queue_offset for message in found] == list(range(start, 15))


async def test_a_group_that_stops_inside_of_a_batch_goes_on_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, broker):
        await send(namesrv, 3)
        settings = pull_settings()
        async with AsyncPullConsumer(GROUP, namesrv=namesrv, client=CLIENT, settings=settings) as consumer:
            consumer.assign([QUEUE])
            await consumer.seek(QUEUE, 7)
            await consumer.commit({QUEUE: 7})
    async with cluster(tmp_path) as (namesrv, broker):
        received: list[ReceivedMessage] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            received.extend(messages)

        push = AsyncPushConsumer(GROUP, namesrv=namesrv, client=CLIENT)
        push.subscribe(TOPIC, "*", listen)
        async with push:
            await until(lambda: len(received) >= 8)
        await until(lambda: broker.offsets.query(TOPIC, GROUP, 0) == 15)
        assert sorted(message.queue_offset for message in received) == list(range(7, 15))


async def test_a_failed_member_alone_is_delivered_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, _):
        await send(namesrv, 1)
        times: list[tuple[bytes, int]] = []

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            (message,) = messages
            times.append((message.body, message.reconsume_times))
            if message.body == b"3" and message.reconsume_times == 0:
                raise ValueError("not this time")

        settings = PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
        push = AsyncPushConsumer(GROUP, namesrv=namesrv, client=CLIENT, settings=settings)
        push.subscribe(TOPIC, "*", listen)
        async with push:
            await until(lambda: len(times) >= BATCH + 1)
        assert sorted(times) == sorted([(b"%d" % n, 0) for n in range(BATCH)] + [(b"3", 1)])


async def test_popped_members_are_acknowledged_one_by_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, _):
        await send(namesrv, 2)
        async with AsyncSimpleConsumer(
            GROUP, namesrv=namesrv, client=CLIENT, settings=FROM_FIRST
        ) as consumer:
            consumer.subscribe(TOPIC)
            found: list[ReceivedMessage] = []
            async with asyncio.timeout(30):
                while len(found) < 10:
                    some = await consumer.receive(3)
                    assert len(some) <= 3
                    if some:
                        await consumer.ack(*some)
                    found += some
        assert [message.body for message in found] == [b"%d" % number for number in range(10)]


async def test_a_compressed_batch_is_stored_as_it_came(tmp_path: Path) -> None:
    body = b"".join(encoded(BatchElement(0, b"x" * 1000, b"n\x01%d\x02" % number)) for number in range(4))
    async with cluster(tmp_path) as (namesrv, broker), BrokerClient(broker.address) as client:
        await send_encoded(client, zlib.compress(body), SystemFlag.COMPRESSED | SystemFlag.ZLIB)
        assert broker.store.queues[TOPIC, 0].max_offset == 4
        assert broker.store.get(TOPIC, 0, 0, 32).bytes < 1000
        async with AsyncPullConsumer(
            GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
        ) as consumer:
            consumer.subscribe(TOPIC)
            found = await poll(consumer, 4)
        assert [(message.body, message.properties["n"]) for message in found] == [
            (b"x" * 1000, str(number)) for number in range(4)
        ]
        for wrong in (b"nothing compressed", zlib.compress(body + b"\1"), zlib.compress(bytes(5 << 20))):
            with pytest.raises(BrokerError) as refused:
                await send_encoded(client, wrong, SystemFlag.COMPRESSED | SystemFlag.ZLIB)
            assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
        assert broker.store.queues[TOPIC, 0].max_offset == 4


def encoded(element: BatchElement) -> bytes:
    head = (20 + len(element.body) + 2 + len(element.properties), 0, 0, element.flag, len(element.body))
    start = b"".join(number.to_bytes(4, "big") for number in head)
    return start + bytes(element.body) + len(element.properties).to_bytes(2, "big") + element.properties


async def send_encoded(client: BrokerClient, body: bytes, sys_flag: int) -> None:
    await client.ask(
        SendMessageV2(
            producer_group="Senders", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=0, sys_flag=sys_flag, born_timestamp=1, flag=0, properties="", reconsume_times=0,
            batch=True, body=body,
        )
    )  # fmt: skip


@pytest.mark.parametrize("name", ["INNER_NUM", "INNER_BASE"])
async def test_nobody_else_sets_the_numbers_of_a_batch(tmp_path: Path, name: str) -> None:
    async with cluster(tmp_path) as (_, broker), BrokerClient(broker.address) as client:
        with pytest.raises(BrokerError) as refused:
            await client.send(TOPIC, b"body", 0, properties={name: "9"})
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


async def test_lone_messages_lie_between_batches(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, broker), BrokerClient(broker.address) as client:
        await send(namesrv, 1)
        await client.send(TOPIC, b"5", 0)
        await send(namesrv, 1, first=6)
        bodies = [
            message.body
            for record in broker.store.get(TOPIC, 0, 0, 32).messages()
            for message in unwrap(record)
        ]
        assert bodies == [b"%d" % number for number in range(11)]
        assert broker.store.max_offset(TOPIC, 0) == 11


async def test_arrow_rows_are_those_of_a_plain_topic(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    columns = ("queueOffset", "tags", "keys", "properties", "body", "sysFlag")
    rows = []
    async with cluster(tmp_path) as (namesrv, _):
        for topic in (TOPIC, PLAIN):
            await send(namesrv, 3, topic=topic)
            found: list[dict[str, object]] = []
            queue = MessageQueue(topic, "broker-a", 0)
            async with AsyncPullConsumer(
                GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
            ) as consumer:
                consumer.assign([queue])
                await consumer.seek(queue, 7)
                async with asyncio.timeout(30):
                    while len(found) < 8:
                        found += (await consumer.poll_arrow(500, columns=columns)).to_pylist()
            for row in found:
                row["properties"] = {k: v for k, v in dict(row["properties"]).items() if k == "n"}  # type: ignore[call-overload]
            rows.append(found)
    assert rows[0] == rows[1]
    assert [row["queueOffset"] for row in rows[0]] == list(range(7, 15))


async def test_messages_that_the_producer_batches_are_few_records(tmp_path: Path) -> None:
    settings = ProducerSettings(batching=True, batch_delay_ms=50)
    async with cluster(tmp_path) as (namesrv, broker):
        async with AsyncProducer("Senders", namesrv=namesrv, client=CLIENT, settings=settings) as producer:
            receipts = await asyncio.gather(*map(producer.send, messages(0, 200)))
        assert sorted(receipt.queue_offset for receipt in receipts) == list(range(200))
        sent = {receipt.queue_offset: b"%d" % number for number, receipt in enumerate(receipts)}
        records = broker.store.get(TOPIC, 0, 0, 32).messages()
        assert len(unwrap(records[0])) > 1
        async with AsyncPullConsumer(
            GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
        ) as consumer:
            consumer.subscribe(TOPIC)
            found = await poll(consumer, 200)
    assert {message.queue_offset: message.body for message in found} == sent
    assert all(message.properties["n"] == message.body.decode() for message in found)


async def test_rows_of_a_table_are_stored_where_the_result_says(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    numbers = [str(number) for number in range(500)]
    rows = arrow.table({"value": numbers, "kind": [f"t{int(number) % 3}" for number in numbers]})
    async with cluster(tmp_path) as (namesrv, broker):
        async with AsyncProducer("Senders", namesrv=namesrv, client=CLIENT) as producer:
            sent = await producer.send_arrow(rows, TOPIC, body="value", keys="value", tags="kind")
        assert sent.is_ok
        assert len(broker.store.get(TOPIC, 0, 0, 1).messages()) == 1
        assert broker.store.max_offset(TOPIC, 0) == 500
        async with AsyncPullConsumer(
            GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
        ) as consumer:
            consumer.subscribe(TOPIC)
            found = {message.queue_offset: message for message in await poll(consumer, 500)}
    for each in sent.ranges:
        for queue_offset, row in enumerate(each.rows, each.queue_offset):
            message = found[queue_offset]
            assert (message.body, message.tags) == (b"%d" % row, f"t{row % 3}")
            assert message.keys == [str(row)]


async def test_the_store_can_be_read_after_the_broker_stopped(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (namesrv, broker):
        await send(namesrv, 4)
        path = broker.store.path
    reader = StoreReader(path)
    assert reader.problems == []
    assert reader.unsupported() == []
    assert [queue.count for queue in reader.queues(TOPIC)] == [20]
    for first, last in ((0, 20), (3, 18), (5, 10)):
        found = list(reader.messages(TOPIC, 0, first, last))
        assert [message.queue_offset for message in found] == list(range(first, last))
        assert [message.body for message in found] == [b"%d" % number for number in range(first, last)]


# --- Replicas ---


async def test_a_replica_has_the_same_queue_and_goes_on_as_the_master(tmp_path: Path) -> None:
    """The first message, which is no batch, reaches the replica before the attributes of the topic."""
    late = {"metadata_interval_ms": 60_000}
    async with running_name_server(tmp_path) as name_server:
        namesrv = name_server.address
        changes = {"name_servers": namesrv, "settings": late}
        async with running_group(tmp_path, **changes) as (controller, first, second):
            await until(lambda: bool(first.registration.registered and second.registration.registered))
            async with AsyncAdmin(namesrv=namesrv) as admin:
                await admin.topics.create(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
            async with AsyncProducer("Senders", namesrv=namesrv, client=CLIENT) as producer:
                await producer.send(messages(0, 1)[0])
                await producer.send_batch(messages(1, BATCH))
                await in_step(first, second)
                assert second.topics.get(TOPIC) is None
                assert not second.store.queues[TOPIC, 0].is_batched
                await designate(controller, second)
                await in_sync(second, first)
                assert second.store.queues[TOPIC, 0].is_batched
                await producer.send_batch(messages(1 + BATCH, BATCH))
                await in_step(second, first)
            sent = 1 + 2 * BATCH

            def are_equal() -> bool:
                entries = [broker.store.queues[TOPIC, 0].entries(0, sent) for broker in (first, second)]
                return entries[0] == entries[1]

            await until(are_equal)
            async with AsyncPullConsumer(
                GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
            ) as consumer:
                consumer.subscribe(TOPIC)
                found = await poll(consumer, sent)
    assert [message.body for message in found] == [b"%d" % number for number in range(sent)]
    assert [message.queue_offset for message in found] == list(range(sent))


async def test_a_replica_that_restarts_before_the_attributes_come_is_elected(tmp_path: Path) -> None:
    """All end together, as by a loss of power, and only the replica comes back."""
    late = {"metadata_interval_ms": 60_000}
    async with running_name_server(tmp_path) as name_server, contextlib.AsyncExitStack() as lost:
        namesrv = name_server.address
        changes: dict[str, Any] = {"name_servers": namesrv, "settings": late}
        async with running_controller(tmp_path / "controller") as controller:
            members = [
                await lost.enter_async_context(
                    running_replica(tmp_path / name, controller=controller.address, **changes)
                )
                for name in "ab"
            ]
            first, second = members
            await in_sync(first, second)
            await until(lambda: bool(first.registration.registered and second.registration.registered))
            async with AsyncAdmin(namesrv=namesrv) as admin:
                await admin.topics.create(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
            async with AsyncProducer("Senders", namesrv=namesrv, client=CLIENT) as producer:
                await producer.send(messages(0, 1)[0])
                await producer.send_batch(messages(1, BATCH))
                await in_step(first, second)
                assert second.topics.get(TOPIC) is None
        await lost.aclose()
        async with (
            running_controller(tmp_path / "controller") as controller,
            running_replica(tmp_path / "b", controller=controller.address, **changes) as second,
        ):
            await until(lambda: is_master(second))
            async with AsyncPullConsumer(
                GROUP, namesrv=namesrv, client=CLIENT, settings=pull_settings()
            ) as consumer:
                consumer.subscribe(TOPIC)
                found = await poll(consumer, 1 + BATCH)
    assert [message.body for message in found] == [b"%d" % number for number in range(1 + BATCH)]
