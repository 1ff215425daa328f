"""Order and broadcasts when the world changes: a slave takes over, a consumer crashes, a broker is away."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import RocketMQError, SendFailed
from skylark.model.message import Message
from skylark.namesrv.server import NameServer
from skylark.processes import free_ports
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ClientSettings, MessageModel, ProducerSettings
from tests.support.broker import running_broker, running_name_server, until
from tests.support.consumer import FAST_CLIENT, consumer_rig, eventually, fast, until_owned
from tests.support.replication import connected, in_step, running_master, running_slave

QUEUES = 2
ROUND = 30
"""Messages before and after an event."""
CLIENT = ClientSettings(client_ip="127.0.0.1", **FAST_CLIENT)


class Sequenced:
    """A listener that keeps what it was given, by queue: old messages may come again, new ones in order."""

    def __init__(self) -> None:
        self.bodies: dict[int, list[bytes]] = defaultdict(list)
        self.gaps: list[tuple[int, int, int]] = []
        self._next: dict[int, int] = defaultdict(int)

    def __call__(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            self.take(message.queue_id, message.queue_offset, bytes(message.body))

    def take(self, queue_id: int, queue_offset: int, body: bytes) -> None:
        expected = self._next[queue_id]
        if queue_offset > expected:
            self.gaps.append((queue_id, expected, queue_offset))
        if queue_offset >= expected:
            self.bodies[queue_id].append(body)
            self._next[queue_id] = queue_offset + 1


class Source:
    """Sends numbers to the queues in turn, each until it is acknowledged."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self._count = 0
        self.acknowledged: dict[int, list[bytes]] = defaultdict(list)

    async def send(self, count: int) -> None:
        for number in range(self._count, self._count + count):
            queue, body = MessageQueue("T", "broker-a", number % QUEUES), b"%d" % number
            await until(partial(self._is_stored, queue, body))
            self.acknowledged[queue.queue_id].append(body)
        self._count += count

    async def _is_stored(self, queue: MessageQueue, body: bytes) -> bool:
        with contextlib.suppress(RocketMQError):
            return (await self._producer.send(Message("T", body), queue=queue)).is_ok
        return False

    def was_delivered_to(self, received: Sequenced) -> bool:
        """Say whether all came in order. A send without an answer may have been stored, too: then twice."""
        return all(
            list(dict.fromkeys(received.bodies[queue_id])) == bodies
            for queue_id, bodies in self.acknowledged.items()
        )


@contextlib.asynccontextmanager
async def source_of(name_server: NameServer) -> AsyncIterator[Source]:
    settings = ProducerSettings(send_timeout_ms=5000)
    async with AsyncProducer("P", namesrv=name_server.address, settings=settings, client=CLIENT) as producer:
        yield Source(producer)


def consumer_of(
    name_server: NameServer, listener: Any, client: ClientSettings = CLIENT, **settings: Any
) -> AsyncPushConsumer:
    consumer = AsyncPushConsumer("G", namesrv=name_server.address, settings=fast(**settings), client=client)
    consumer.subscribe("T", "*", listener)
    return consumer


async def switch_over(directory: Path, name_server: NameServer, source: Source, *received: Sequenced) -> None:
    """Send to a synchronous master that is lost meanwhile and whose slave takes its place."""
    shared: dict[str, Any] = {"name_servers": name_server.address}
    async with contextlib.AsyncExitStack() as until_promoted:
        async with running_master(directory / "a", is_sync=True, **shared) as master:
            slave = await until_promoted.enter_async_context(
                running_slave(directory / "b", master.address, **shared)
            )
            await connected(master)
            async with AsyncAdmin(namesrv=name_server.address) as admin:
                await admin.topics.create("T", cluster="DefaultCluster", queues=QUEUES)
            await source.send(ROUND)
            await until(lambda: all(map(source.was_delivered_to, received)))
            await in_step(master, slave)
            await until(lambda: slave.topics.get("T") is not None)
            sending = asyncio.create_task(source.send(ROUND))
    async with running_master(directory / "b", **shared):
        async with asyncio.timeout(60):
            await sending
        await until(lambda: all(map(source.was_delivered_to, received)))


async def test_order_is_kept_when_a_slave_takes_over(tmp_path: Path) -> None:
    got = Sequenced()
    async with running_name_server(tmp_path) as name_server, source_of(name_server) as source:
        async with consumer_of(name_server, got, orderly=True):
            await switch_over(tmp_path, name_server, source, got)
    assert got.gaps == []


async def test_every_member_hears_everything_when_a_slave_takes_over(tmp_path: Path) -> None:
    received = [Sequenced(), Sequenced()]
    async with running_name_server(tmp_path) as name_server, source_of(name_server) as source:
        async with contextlib.AsyncExitStack() as members:
            for number, got in enumerate(received):
                member = consumer_of(
                    name_server, got, replace(CLIENT, instance_name=f"member-{number}"),
                    model=MessageModel.BROADCASTING, offset_directory=tmp_path, orderly=True,
                )  # fmt: skip
                await members.enter_async_context(member)
            await switch_over(tmp_path, name_server, source, *received)
    assert [got.gaps for got in received] == [[], []]


CRASHING_MEMBER = """
import sys
from skylark import PushConsumer
from tests.support.consumer import fast

consumer = PushConsumer("G", namesrv=sys.argv[1], settings=fast(orderly=True))

@consumer.subscribe("T")
def handle(messages):
    for message in messages:
        print(message.queue_id, message.queue_offset, message.body.decode(), flush=True)

consumer.run()
"""


async def test_after_a_crash_another_goes_on_in_order_once_the_locks_have_ended(tmp_path: Path) -> None:
    got = Sequenced()
    async with consumer_rig(tmp_path, lock_expiry_ms=8000) as rig:
        await rig.topic("T", QUEUES)
        await rig.send("T", *(b"%d" % number for number in range(ROUND)))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CRASHING_MEMBER, rig.name_server.address, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                for _ in range(ROUND):
                    line = (await process.stdout.readline()).split()
                    got.take(int(line[0]), int(line[1]), line[2])
        finally:
            process.kill()
            await process.wait()
        # Nobody gave the locks back: they end by themselves.
        assert rig.broker.locks.has_any("G", now=asyncio.get_running_loop().time())
        await rig.send("T", *(b"%d" % number for number in range(ROUND, 2 * ROUND)))
        async with rig.consumer("G", "T", got, orderly=True) as successor:
            await until_owned(successor, "T", count=QUEUES)
            await eventually(lambda: sum(map(len, got.bodies.values())) == 2 * ROUND)
    assert got.gaps == []
    for queue_id, bodies in got.bodies.items():
        assert bodies == [b"%d" % number for number in range(2 * ROUND) if number % QUEUES == queue_id]


async def test_a_fixed_order_of_queues_keeps_keys_in_their_place_while_a_broker_is_away(
    tmp_path: Path,
) -> None:
    keys = [f"key {number}" for number in range(16)]
    async with contextlib.AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(running_name_server(tmp_path, order_messages=True))
        shared: dict[str, Any] = {"name_servers": name_server.address}
        port = free_ports(-2, 1)
        await stack.enter_async_context(running_broker(tmp_path / "a", **shared))
        admin = await stack.enter_async_context(AsyncAdmin(namesrv=name_server.address))
        settings = ProducerSettings(send_timeout_ms=3000)
        producer = await stack.enter_async_context(
            AsyncProducer("P", namesrv=name_server.address, settings=settings, client=CLIENT)
        )

        async def place(key: str) -> MessageQueue:
            return (await producer.send(Message("T", b"x", sharding_key=key))).queue

        async with running_broker(tmp_path / "b", name="broker-b", port=port, **shared):
            await admin.topics.create("T", cluster="DefaultCluster", queues=8, ordered=True)
            await admin.topics.set_order("T", "broker-a:2;broker-b:2")
            places = {key: await place(key) for key in keys}
        assert {(queue.broker_name, queue.queue_id) for queue in places.values()} == {
            ("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1),
        }  # fmt: skip
        for key in keys:
            if places[key].broker_name == "broker-a":
                assert await place(key) == places[key]
            else:
                with pytest.raises(SendFailed):
                    await place(key)
        async with running_broker(tmp_path / "b", name="broker-b", port=port, **shared):

            async def is_back() -> bool:
                with contextlib.suppress(SendFailed):
                    return {key: await place(key) for key in keys} == places
                return False

            await until(is_back)
