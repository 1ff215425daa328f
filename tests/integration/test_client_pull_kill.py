"""A pull consumer through the death of its broker, and through members that come and go under load."""

from __future__ import annotations

import asyncio
import collections
from pathlib import Path

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.errors import RocketMQError
from skylark.settings.client import ClientSettings, ConsumeFrom, PullConsumerSettings
from tests.support.broker import BrokerClient, running_cluster, until
from tests.support.skylark_servers import SkylarkServers

TOPIC = "Orders"
GROUP = "Readers"
QUEUES = 4
CLIENT = ClientSettings(client_ip="127.0.0.1", route_refresh_interval_ms=300, heartbeat_interval_ms=300)
SETTINGS = PullConsumerSettings(
    consume_from=ConsumeFrom.FIRST_OFFSET,
    auto_commit_interval_ms=50,
    rebalance_interval_ms=200,
    rebalance_gap_ms=10,
    pull_failure_delay_ms=50,
    hold_ms=500,
)


class Seen:
    """What was read: bodies, and how often each place of a queue."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self.places: collections.Counter[tuple[int, int]] = collections.Counter()

    @property
    def duplicates(self) -> int:
        return sum(self.places.values()) - len(self.places)

    async def read(self, consumer: AsyncPullConsumer) -> None:
        async for message in consumer:
            self.bodies.add(message.body)
            self.places[message.queue_id, message.queue_offset] += 1


async def send_all(address: str, bodies: list[bytes], *, timeout_s: float = 60) -> None:
    """Send each until it is taken: a broker may be away for a while."""
    async with asyncio.timeout(timeout_s), BrokerClient(address) as client:
        for number, body in enumerate(bodies):
            while True:
                try:
                    await client.send(TOPIC, body, number % QUEUES)
                except RocketMQError:
                    await asyncio.sleep(0.05)
                else:
                    break


@pytest.fixture
def servers(tmp_path: Path) -> SkylarkServers:
    return SkylarkServers(tmp_path, {})


async def test_nothing_is_lost_when_the_broker_is_killed(servers: SkylarkServers) -> None:
    bodies = [b"%d" % number for number in range(400)]
    seen = Seen()
    try:
        await asyncio.to_thread(servers.start)
        async with AsyncAdmin(namesrv=servers.name_server, client=CLIENT) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
        async with AsyncPullConsumer(
            GROUP, namesrv=servers.name_server, client=CLIENT, settings=SETTINGS
        ) as consumer:
            consumer.subscribe(TOPIC)
            reading = asyncio.create_task(seen.read(consumer))
            await send_all(servers.broker, bodies[:200])
            await until(lambda: len(seen.bodies) >= 100, timeout_s=60)
            await asyncio.to_thread(servers.kill)
            await asyncio.to_thread(servers.start)
            await send_all(servers.broker, bodies[200:])
            await until(lambda: set(bodies) <= seen.bodies, timeout_s=60)
        await reading
    finally:
        await asyncio.to_thread(servers.kill)
        servers.release_ports()
    # Positions are the consumer's own: a broker that dies makes it read nothing twice.
    assert seen.duplicates == 0


async def test_members_come_and_go_under_load(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(1000)]
    seen = Seen()
    async with (
        running_cluster(tmp_path) as (name_server, broker),
        AsyncAdmin(namesrv=name_server.address, client=CLIENT) as admin,
    ):
        await admin.topics.create(TOPIC, queues=QUEUES)
        sending = asyncio.create_task(send_all(broker.address, bodies))
        members: list[tuple[AsyncPullConsumer, asyncio.Task[None]]] = []

        async def join() -> None:
            consumer = AsyncPullConsumer(GROUP, namesrv=name_server.address, client=CLIENT, settings=SETTINGS)
            consumer.subscribe(TOPIC)
            await consumer.start()
            members.append((consumer, asyncio.create_task(seen.read(consumer))))

        async def leave() -> None:
            consumer, reading = members.pop(0)
            await consumer.stop()
            await reading

        await join()
        for number in range(10):
            before = len(seen.bodies)
            await (join() if number % 2 == 0 else leave())
            await until(lambda before=before: len(seen.bodies) > before or len(seen.bodies) == len(bodies))  # type: ignore[misc]
        await sending
        await until(lambda: set(bodies) <= seen.bodies, timeout_s=60)
        while members:
            await leave()
    # At most what members had fetched or not yet committed at ten changes.
    assert seen.duplicates <= 10 * QUEUES * SETTINGS.pull_batch_max
