"""A store with lite topics: one broker is killed, the other goes on with its directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from skylark.model.lite_topic import light_queue_of
from skylark.protocol.bodies import ConsumerOffsetTable, SubscriptionGroupConfig, decode_body
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.lite import GetBrokerLiteInfo, GetLiteGroupInfo, GetLiteTopicInfo
from tests.interop.grpc_servers import LIGHT_QUEUES
from tests.interop.servers import PATIENT, create_topic
from tests.interop.versions import POMS
from tests.support.broker import BrokerClient, until
from tests.support.java import jars_of
from tests.support.lite_consumer import GROUP, PARENT, LiteConsumer
from tests.support.skylark_servers import SMALL_STORE, SkylarkBroker

pytestmark = [
    pytest.mark.interop("java", "mvn"),
    pytest.mark.timeout(600),
    pytest.mark.nightly,  # tests/integration/test_broker_lite.py tries the same on ours
]

SETTINGS: dict[str, str | int] = {**SMALL_STORE, "flushConsumerOffsetInterval": 200}
WAIT_S = 120


async def begin(address: str, store: Path) -> None:
    """Send to two lite topics, and consume one of them in part."""
    create_topic(address, PARENT, 2, attributes="+message.type=LITE")
    async with BrokerClient(address) as client, asyncio.timeout(WAIT_S):
        config = SubscriptionGroupConfig(group_name=GROUP, attributes={"+lite.bind.topic": PARENT})
        await client.ask(UpdateAndCreateSubscriptionGroup(config))
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        await send(client, "one", "a", "b")
        assert await consumer.take(2) == ["a", "b"]
        await send(client, "one", "c")
        await send(client, "two", "d")
        names = [light_queue_of(PARENT, each) for each in ("one", "two")]
        await until(lambda: committed(store, names[0]) == 2)


async def resume(address: str) -> None:
    """Consume the rest, and send more."""
    async with BrokerClient(address) as client, asyncio.timeout(WAIT_S):
        consumer = LiteConsumer(client)
        await consumer.subscribe("one", "two")
        assert sorted(await consumer.take(2)) == ["c", "d"]
        await send(client, "one", "e")
        assert await consumer.take(1) == ["e"]
        one = await client.ask(GetLiteTopicInfo(PARENT, "one"))
        assert (one.topic_offset.min_offset, one.topic_offset.max_offset) == (0, 4)
        assert (await client.ask(GetLiteGroupInfo(GROUP, "one"))).total_lag_count == 0
        info = await client.ask(GetBrokerLiteInfo())
        assert (info.topic_meta, info.group_meta) == ({PARENT: -1}, {PARENT: [GROUP]})


async def send(client: BrokerClient, lite_topic: str, *bodies: str) -> None:
    for number, body in enumerate(bodies):
        await client.send(PARENT, body.encode(), number % 2, properties={"__LITE_TOPIC": lite_topic})


def committed(store: Path, light_queue: str) -> int | None:
    """The committed offset in the file that RocketMQ reads where light queues are enabled."""
    try:
        data = (store / "config" / "lmqConsumerOffset.json").read_bytes()
    except FileNotFoundError:
        return None
    return decode_body(data, ConsumerOffsetTable).offset_table.get(f"{light_queue}@{GROUP}", {}).get(0)


@pytest.mark.parametrize("first", ["apache", "skylark"])
async def test_the_other_broker_goes_on_after_a_kill(first: str, tmp_path: Path) -> None:
    classpath = jars_of(POMS["5.5.0"])
    with ApacheNameServer(classpath, tmp_path / "names") as name_server:
        ours = SkylarkBroker(tmp_path / "ours", name_server.address, SETTINGS)
        store = ours.home / "data"
        settings = {**SETTINGS, **PATIENT, **LIGHT_QUEUES}
        apache = ApacheBroker(
            classpath, tmp_path / "apache", store, name_server=name_server.address, settings=settings
        )
        before, after = (apache, ours) if first == "apache" else (ours, apache)
        with before:
            await begin(before.address, store)
            before.kill()
        with after:
            await resume(after.address)
