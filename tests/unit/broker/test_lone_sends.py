"""A lone send under synchronous flush: the flush thread answers it, when it is on disk, and only then."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.broker import Broker
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import encode
from skylark.protocol.requests.send import SendMessageV2, SendReply
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings.store import FlushMode
from tests.support.broker import BrokerClient, consumer, running_broker, until
from tests.support.simulated_disk import Fault, Kind, SimulatedDisk

WAIT_S = 60


def send(body: bytes) -> SendMessageV2:
    return SendMessageV2("PG", "T", "TBW102", 4, 0, 0, 1, 0, "", body=body)


class Held:
    """A broker whose flushes wait until they are let through."""

    def __init__(self, broker: Broker, disk: SimulatedDisk) -> None:
        self.broker = broker
        self.disk = disk

    async def hold(self) -> threading.Event:
        # An answer may come before the loop has noted it.
        await until(lambda: len(self.broker.store.waiters) == 0)
        self.disk.hold_sync = threading.Event()
        return self.disk.hold_sync


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    disk = SimulatedDisk()
    disk.make_directory(tmp_path)
    store = {"flush_mode": FlushMode.SYNC, "sync_flush_timeout_ms": 60_000}
    async with running_broker(tmp_path, disk=disk, store=store) as broker:
        try:
            yield Held(broker, disk)
        finally:
            if disk.hold_sync is not None:
                disk.hold_sync.set()


class Sender(threading.Thread):
    """Sends one message over a connection of its own, beside the loop."""

    def __init__(self, address: str, body: bytes) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._body = body
        self.replies: list[SendReply] = []
        self.answered = threading.Event()

    def run(self) -> None:
        with BlockingConnection(self._address) as connection:
            self.replies.append(connection.call(send(self._body), timeout_s=WAIT_S).reply)
        self.answered.set()


async def test_it_is_answered_while_the_loop_is_busy_and_visible_by_then(held: Held) -> None:
    broker = held.broker
    async with BrokerClient(broker.address) as client:
        await client.send("T", b"first")
    let_through = await held.hold()
    sender = Sender(broker.address, b"second")
    sender.start()
    await until(lambda: len(broker.store.waiters) == 1)
    assert broker.store.max_offset("T", 0) == 1
    assert not sender.answered.is_set()
    let_through.set()
    # No turn of the loop comes in here.
    assert sender.answered.wait(WAIT_S)
    assert sender.replies[0].queue_offset == 1
    assert broker.store.max_offset("T", 0) == 2
    await until(lambda: len(broker.store.waiters) == 0)


async def test_who_waits_for_messages_hears_of_it(held: Held) -> None:
    async with BrokerClient(held.broker.address) as client, BrokerClient(held.broker.address) as reader:
        await client.send("T", b"first")
        waiting = asyncio.create_task(reader.pull("T", queue_offset=1, suspend_ms=WAIT_S * 1000))
        await until(lambda: held.broker.long_polling.count == 1)
        await client.send("T", b"second")
        assert [message.body for message in await waiting] == [b"second"]


async def test_answers_to_other_requests_meanwhile_are_whole(held: Held) -> None:
    async with BrokerClient(held.broker.address) as client:
        await client.send("T", b"first")
        for round_number in range(1, 6):
            let_through = await held.hold()
            waiting = asyncio.create_task(client.send("T", b"x"))
            await until(lambda: len(held.broker.store.waiters) == 1)
            await client.heartbeat(consumer())
            let_through.set()
            await client.heartbeat(consumer())
            assert (await waiting).queue_offset == round_number


async def test_many_at_once_are_all_answered(held: Held) -> None:
    async with BrokerClient(held.broker.address) as one, BrokerClient(held.broker.address) as other:
        replies = await asyncio.gather(*(client.send("T", b"x") for client in (one, other) * 50))
        assert sorted(reply.queue_offset for reply in replies) == list(range(100))


async def test_a_client_that_is_gone_meanwhile_does_no_harm(held: Held) -> None:
    broker = held.broker
    async with BrokerClient(broker.address) as client:
        await client.send("T", b"first")
        let_through = await held.hold()
        with socket.create_connection(("127.0.0.1", broker.port)) as leaving:
            leaving.sendall(b"".join(encode(send(b"second").to_command())))
            await until(lambda: len(broker.store.waiters) == 1)
        let_through.set()
        await until(lambda: len(broker.store.waiters) == 0)
        assert (await client.send("T", b"third")).queue_offset == 2


async def test_a_flush_that_fails_is_no_success(held: Held) -> None:
    async with BrokerClient(held.broker.address) as client:
        await client.send("T", b"first")
        held.disk.plan(Fault(Kind.SYNC, path_contains="commitlog"))
        assert (await client.ask(send(b"second"))).code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert held.broker.store.max_offset("T", 0) == 1
