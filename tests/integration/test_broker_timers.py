"""Timed messages on a running broker: at their time, over restarts and kills, and by the hundred thousand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.broker.broker import Broker
from skylark.errors import TopicNotExist
from skylark.model.message import PutMessage, StoredMessage
from skylark.protocol.requests.admin import GetTimerMetrics
from skylark.protocol.requests.send import RecallMessage
from tests.integration.test_broker_kill import Process, listening
from tests.support.broker import BrokerClient, running_broker, until

MESSAGES = 40
PENDING = 100_000
DUE_SOON = 2000
LATE_MS_MAX = 1000 + 250
"""The precision, and what a busy machine may add; to half of the messages, at least."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def lateness_ms(message: StoredMessage) -> int:
    return message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"])


async def send_timed(client: BrokerClient, number: int, deliver_ms: int) -> str:
    properties = {"TIMER_DELIVER_MS": str(deliver_ms), "UNIQ_KEY": f"K{number}"}
    reply = await client.send("T", b"%d" % number, properties=properties)
    assert reply.recall_handle is not None
    return reply.recall_handle


async def all_delivered(client: BrokerClient, numbers: set[int]) -> list[StoredMessage]:
    async def are_there() -> bool:
        try:
            return {int(message.body) for message in await client.pull_all("T")} >= numbers
        except TopicNotExist:  # killed before it was saved; it comes back with the first message
            return False

    await until(are_there, timeout_s=90)
    return await client.pull_all("T")


async def test_timed_messages_come_in_time_over_a_restart(tmp_path: Path) -> None:
    start = now_ms()
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        handles = [await send_timed(client, number, start + 2500 + number * 50) for number in range(MESSAGES)]
        await until(lambda: broker.timers.waiting == MESSAGES)
        counts = (await client.ask(GetTimerMetrics())).timing_count
        assert counts["T"].count == MESSAGES
        reply = await client.ask(RecallMessage("T", handles[3], "PG"))
        assert reply.msg_id == "K3"
    wanted = set(range(MESSAGES)) - {3}
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        delivered = await all_delivered(client, wanted)
        assert sorted(int(message.body) for message in delivered) == sorted(wanted)
        assert all(lateness_ms(message) >= 0 for message in delivered)
        await until(lambda: broker.timers.waiting == 0)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    made.kill()


async def test_kills_lose_no_timed_message(process: Process) -> None:
    process.start()
    await listening(process)
    start = now_ms()
    async with BrokerClient(process.address) as client:
        for number in range(MESSAGES):
            await send_timed(client, number, start + 3000 + number * 50)
    for _ in range(2):
        process.kill()
        process.start()
        await listening(process)
    async with BrokerClient(process.address) as client:
        delivered = await all_delivered(client, set(range(MESSAGES)))
        assert all(lateness_ms(message) >= 0 for message in delivered)


def fill(broker: Broker, first: int, count: int, deliver_ms: int, step_ms: int) -> None:
    """Have the broker store many timed messages, as if they had been sent."""
    broker.topics.ensure_topic("T", 4, now_ms=now_ms())
    for start in range(first, first + count, 500):
        batch = []
        for number in range(start, min(start + 500, first + count)):
            message = PutMessage("T", 0, b"%d" % number)
            at = deliver_ms + (number - first) * step_ms
            broker.timers.admit(message, {"TIMER_DELIVER_MS": str(at), "UNIQ_KEY": f"K{number}"})
            batch.append(message)
        broker.store.append(batch)


@pytest.mark.nightly
async def test_a_hundred_thousand_wait_and_the_rest_is_in_time_over_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        fill(broker, DUE_SOON, PENDING, now_ms() + 3_600_000, 10)
        await until(lambda: broker.timers.waiting == PENDING, timeout_s=120)
        fill(broker, 0, DUE_SOON, now_ms() + 8000, 5)
    async with running_broker(tmp_path) as broker, BrokerClient(broker.address) as client:
        ready_ms = now_ms()
        assert broker.timers.waiting >= PENDING
        delivered = await all_delivered(client, set(range(DUE_SOON)))
        assert len(delivered) == DUE_SOON
        late = {int(message.properties["TIMER_DELIVER_MS"]): lateness_ms(message) for message in delivered}
        assert min(late.values()) >= 0
        while_up = sorted(ms for due, ms in late.items() if due >= ready_ms)
        assert while_up[len(while_up) // 2] <= LATE_MS_MAX, f"latest: {while_up[-5:]}"
        assert broker.timers.waiting == PENDING
