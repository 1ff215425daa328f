"""Producers outlive their servers: killed and started again under load, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark import aio
from skylark.client.producer.producer import Producer
from skylark.client.producer.send_receipt import SendReceipt
from skylark.model.message import Message
from skylark.settings.client import ClientSettings, ProducerSettings
from tests.support.broker import BrokerClient
from tests.support.skylark_servers import SkylarkServers

TOPIC = "orders"
ROUNDS = 2
# Long enough for a server to come back: then no send fails at all.
PATIENT = ProducerSettings(send_timeout_ms=60_000, attempt_timeout_ms=1000, retries=1000)
QUICK = ClientSettings(route_refresh_interval_ms=300, heartbeat_interval_ms=300, request_timeout_ms=3000)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SkylarkServers]:
    with SkylarkServers(tmp_path, {}) as running:
        yield running


async def stored_places(servers: SkylarkServers) -> dict[tuple[int, int], bytes]:
    async with BrokerClient(servers.broker) as client:
        return {
            (queue_id, each.queue_offset): each.body
            for queue_id in range(4)
            for each in await client.pull_all(TOPIC, queue_id)
        }


async def kill_and_restart(servers: SkylarkServers, receipts: dict[bytes, SendReceipt]) -> None:
    """Kill both servers in the middle of sending, several times; each time sending must go on afterwards."""
    for _ in range(ROUNDS):
        before = len(receipts)
        async with asyncio.timeout(60):
            while len(receipts) < before + 200:  # noqa: ASYNC110 (other tasks and threads fill it)
                await asyncio.sleep(0.01)
        servers.kill()
        await asyncio.to_thread(servers.start)
    before = len(receipts)
    async with asyncio.timeout(60):
        while len(receipts) < before + 200:  # noqa: ASYNC110 (as above)
            await asyncio.sleep(0.01)


async def test_asyncio_sends_go_on_after_a_kill(servers: SkylarkServers) -> None:
    receipts: dict[bytes, SendReceipt] = {}
    ending = asyncio.Event()

    async with aio.Producer("PG", namesrv=servers.name_server, settings=PATIENT, client=QUICK) as producer:

        async def send(worker: int) -> None:
            number = 0
            while not ending.is_set():
                number += 1
                body = b"%d-%d" % (worker, number)
                receipts[body] = await producer.send(Message(TOPIC, body))

        workers = [asyncio.ensure_future(send(worker)) for worker in range(8)]
        await kill_and_restart(servers, receipts)
        ending.set()
        await asyncio.gather(*workers)
    stored = await stored_places(servers)
    for body, receipt in receipts.items():
        assert stored[receipt.queue.queue_id, receipt.queue_offset] == body


async def test_blocking_sends_go_on_after_a_kill(servers: SkylarkServers) -> None:
    receipts: dict[bytes, SendReceipt] = {}
    ending = threading.Event()

    def use() -> None:
        with Producer("PG", namesrv=servers.name_server, settings=PATIENT, client=QUICK) as producer:

            def send(worker: int) -> None:
                number = 0
                while not ending.is_set():
                    number += 1
                    body = b"%d-%d" % (worker, number)
                    receipts[body] = producer.send(Message(TOPIC, body))

            threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    using = asyncio.ensure_future(asyncio.to_thread(use))
    await kill_and_restart(servers, receipts)
    ending.set()
    async with asyncio.timeout(60):
        await using
    stored = await stored_places(servers)
    for body, receipt in receipts.items():
        assert stored[receipt.queue.queue_id, receipt.queue_offset] == body
