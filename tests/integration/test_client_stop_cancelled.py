"""A stop that is cancelled, as by `asyncio.wait_for`, still leaves: no task goes on, and brokers know."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from typing import Protocol

import pytest

from skylark import aio
from skylark.errors import BrokerError
from skylark.model.message import Message
from skylark.settings.client import ConsumeFrom, PullConsumerSettings, PushConsumerSettings
from skylark.testing import EmbeddedServers
from tests.support.broker import until

TOPIC = "T"
TURNS = pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 13])


class Client(Protocol):
    async def stop(self) -> None: ...


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    """In a thread of their own: whatever runs on a test's loop is the client's."""
    with EmbeddedServers() as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
async def group(servers: EmbeddedServers) -> str:
    """A new group, and a message for it."""
    async with aio.Producer("PG", namesrv=servers.namesrv) as producer:
        await producer.send(Message(TOPIC, b"x"))
    return f"G-{uuid.uuid4().hex}"


async def cancelled_stop(client: Client, turns: int) -> None:
    """Begin to stop and cancel that after so many turns of the loop."""
    stopping = asyncio.create_task(client.stop())
    for _ in range(turns):
        await asyncio.sleep(0)
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping


async def nobody_is_left(servers: EmbeddedServers, group: str) -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not {task.get_name() for task in left}

    async def is_gone() -> bool:
        try:
            await admin.clients.consumers(group)
        except BrokerError:
            return True
        return False

    async with aio.Admin(namesrv=servers.namesrv) as admin:
        await until(is_gone, timeout_s=10)


@TURNS
async def test_a_push_consumer_whose_listener_hangs(servers: EmbeddedServers, group: str, turns: int) -> None:
    begun = asyncio.Event()
    settings = PushConsumerSettings(
        consume_from=ConsumeFrom.FIRST_OFFSET, first_pull_delay_ms=1, stop_wait_ms=60_000
    )
    consumer = aio.PushConsumer(group, namesrv=servers.namesrv, settings=settings)

    @consumer.subscribe(TOPIC)
    async def hang(messages: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    await consumer.start()
    await begun.wait()
    await cancelled_stop(consumer, turns)
    await nobody_is_left(servers, group)


@TURNS
async def test_a_pull_consumer(servers: EmbeddedServers, group: str, turns: int) -> None:
    settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, rebalance_gap_ms=10)
    consumer = aio.PullConsumer(group, namesrv=servers.namesrv, settings=settings)
    consumer.subscribe(TOPIC)
    await consumer.start()
    while not await consumer.poll():
        pass
    await cancelled_stop(consumer, turns)
    await nobody_is_left(servers, group)
