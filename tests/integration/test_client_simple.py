"""The simple consumer: receive, acknowledge, change the invisible time; blocking and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylark import ConsumeFrom, SimpleConsumer, SimpleConsumerSettings, aio
from skylark.admin.leases import receipt_of
from skylark.broker.broker import Broker
from skylark.errors import AlreadyStarted, ClientClosed, ClientError
from skylark.model import names
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from tests.support.broker import BrokerClient, running_broker, running_name_server, until
from tests.support.popping import quick_pops

FIRST = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, wait_ms=2000)


@contextlib.asynccontextmanager
async def cluster(
    directory: Path, brokers: int = 1, **changes: Any
) -> AsyncIterator[tuple[str, list[Broker]]]:
    async with contextlib.AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server(directory))
        started = [
            await stack.enter_async_context(
                running_broker(
                    directory / f"store{number}",
                    name_servers=name_server.address,
                    name=f"broker-{number}",
                    **quick_pops(**changes),
                )
            )
            for number in range(brokers)
        ]
        for broker in started:
            async with BrokerClient(broker.address) as client:
                await client.ask(
                    UpdateAndCreateTopic("T", "TBW102", 4, 4, 6, "SINGLE_TAG", topic_sys_flag=0, order=False)
                )
            await broker.registration.settle()
        yield name_server.address, started


async def send(broker: Broker, count: int, **properties: str) -> None:
    async with BrokerClient(broker.address) as client:
        for number in range(count):
            await client.send("T", b"%d" % number, number % 4, properties=properties)


async def test_messages_are_received_acknowledged_and_not_seen_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (address, [broker]):
        await send(broker, 40, UNIQ_KEY="k", TAGS="a")
        async with aio.SimpleConsumer("G", namesrv=address, settings=FIRST) as consumer:
            consumer.subscribe("T", "a || b")
            end = broker.store.appended_offset
            seen: list[tuple[int, int]] = []
            while len(seen) < 40:
                messages = await consumer.receive()
                assert all(message.topic == "T" for message in messages)
                seen += [(message.queue_id, message.queue_offset) for message in messages]
                await consumer.ack(*messages)
            assert len(set(seen)) == 40
            assert await consumer.receive(wait_ms=0) == []
            assert broker.store.appended_offset == end
            assert broker.consumers.connection("G").consume_type == "CONSUME_POP"


async def test_a_message_comes_again_until_it_is_a_dead_letter(tmp_path: Path) -> None:
    settings = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, attempts_max=2)
    async with cluster(tmp_path) as (address, [broker]):
        await send(broker, 1)
        async with aio.SimpleConsumer("G", namesrv=address, settings=settings) as consumer:
            consumer.subscribe("T")
            for attempt in range(2):
                [message] = await consumer.receive(invisible_ms=60_000)
                assert message.reconsume_times == attempt
                await consumer.change_invisible_duration(message, 0)
            queue = names.dead_letter_topic("G")
            consume = asyncio.create_task(consumer.receive(wait_ms=20_000))
            await until(
                lambda: (queue, 0) in broker.store.queues and broker.store.queues[queue, 0].max_offset == 1
            )
            consume.cancel()


async def test_more_time_keeps_a_message_hidden(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (address, [broker]):
        await send(broker, 1)
        async with aio.SimpleConsumer("G", namesrv=address, settings=FIRST) as consumer:
            consumer.subscribe("T")
            [message] = await consumer.receive(invisible_ms=1000)
            await consumer.change_invisible_duration(message, 60_000)
            assert await consumer.receive(wait_ms=2500) == []
            await consumer.ack(message)
            assert broker.pops.batches.in_flight == {}


async def test_messages_of_several_brokers_and_topics_arrive_while_it_waits(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as (address, brokers):
        async with aio.SimpleConsumer("G", namesrv=address, settings=FIRST) as consumer:
            consumer.subscribe("T")
            for broker in brokers:
                waiting = asyncio.create_task(consumer.receive(wait_ms=30_000))
                await until(lambda: sum(each.held_notifications.count for each in brokers) == 2)
                await send(broker, 1)
                messages = await waiting
                assert [message.broker_name for message in messages] == [broker.live.current.name]
                await consumer.ack(*messages)
        await until(lambda: sum(each.held_notifications.count for each in brokers) == 0)


async def test_calls_that_wait_share_one_request_for_each_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as (address, brokers):
        async with aio.SimpleConsumer("G", namesrv=address, settings=FIRST) as consumer:
            consumer.subscribe("T")
            for _ in range(3):
                assert await consumer.receive(wait_ms=50) == []
            waiting = [asyncio.create_task(consumer.receive(wait_ms=30_000)) for _ in range(5)]
            await until(lambda: [each.held_notifications.count for each in brokers] == [1, 1])
            await send(brokers[1], 1)
            done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [len(await each) for each in done] == [1]
            for each in left:
                each.cancel()


async def test_leases_of_an_admin_wait_at_all_brokers(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as (address, brokers), aio.Admin(namesrv=address) as admin:
        group = SubscriptionGroupConfig(group_name="G")
        for broker in brokers:
            broker.groups.update(group, now_ms=broker.clock.now_ms())
        receiving = asyncio.create_task(admin.leases.receive("G", "T", wait_ms=30_000))
        await until(lambda: all(broker.held_notifications.count == 1 for broker in brokers))
        await send(brokers[1], 1)
        [message] = await receiving
        assert message.body == b"0"
        assert [broker.held_notifications.count for broker in brokers] == [1, 0]
        hidden = await admin.leases.hide("G", receipt_of(message), 60_000)
        await admin.leases.ack("G", hidden)
        await until(lambda: brokers[1].offsets.committed("T", "G").get(0) == 1)


async def test_the_order_of_a_queue_is_kept(tmp_path: Path) -> None:
    settings = SimpleConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True)
    async with cluster(tmp_path) as (address, [broker]):
        async with BrokerClient(broker.address) as client:
            for number in range(3):
                await client.send("T", b"%d" % number)
        async with aio.SimpleConsumer("G", namesrv=address, settings=settings) as consumer:
            consumer.subscribe("T")
            first = await consumer.receive(2)
            assert [message.body for message in first] == [b"0", b"1"]
            assert await consumer.receive(2, wait_ms=0) == []
            await consumer.change_invisible_duration(first[0], 0)
            await consumer.change_invisible_duration(first[1], 0)
            again = await consumer.receive(2)
            assert [(message.body, message.reconsume_times) for message in again] == [(b"0", 1), (b"1", 1)]
            await consumer.ack(*again)
            assert [message.body for message in await consumer.receive()] == [b"2"]


async def test_mistakes_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (address, [broker]):
        await send(broker, 1)
        consumer = aio.SimpleConsumer("G", namesrv=address, settings=FIRST)
        with pytest.raises(ClientClosed):
            await consumer.receive()
        async with consumer:
            with pytest.raises(AlreadyStarted):
                await consumer.start()
            with pytest.raises(ClientError, match="nothing is subscribed"):
                await consumer.receive()
            consumer.subscribe("T")
            with pytest.raises(ClientError, match="messages_max is 33; use 1 to 32"):
                await consumer.receive(33)
            [message] = await consumer.receive()
            message.handle = None
            with pytest.raises(ClientError, match="no receipt"):
                await consumer.ack(message)


async def test_the_blocking_consumer_does_the_same(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (address, [broker]):
        await send(broker, 10)

        def consume() -> int:
            with SimpleConsumer("G", namesrv=address, settings=FIRST) as consumer:
                consumer.subscribe("T")
                seen = 0
                while seen < 10:
                    messages = consumer.receive(4)
                    consumer.change_invisible_duration(messages[0], 60_000)
                    consumer.ack(*messages)
                    seen += len(messages)
                return seen + len(consumer.receive(wait_ms=0))

        assert await asyncio.to_thread(consume) == 10
