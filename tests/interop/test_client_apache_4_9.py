"""Our clients with Apache's servers of the last generation: what people do most."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator

import pytest

from skylark import Message, ProducerSettings, aio
from skylark.client.consumer.listeners import ConsumeResult, Messages
from skylark.client.producer.producer import Producer as BlockingProducer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BrokerError
from skylark.protocol.requests.offset import QueryConsumerOffset
from skylark.settings.client import ClientSettings, ConsumeFrom, PullConsumerSettings
from tests.interop.servers import SETTINGS, ApacheServers, create_topic
from tests.interop.versions import OLDEST
from tests.support.broker import BrokerClient, until
from tests.support.consumer import FAST_CLIENT, bodies, eventually, fast, until_count, until_retrying
from tests.support.names import fresh_name

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "mvn"), pytest.mark.timeout(300)]

PATIENT = ProducerSettings(send_timeout_ms=30_000)
WAIT_S = 90


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheServers]:
    directory = tmp_path_factory.mktemp("apache-4.9")
    with ApacheServers(directory, SETTINGS, OLDEST) as running:
        yield running


@pytest.fixture
async def client(old: ApacheServers) -> AsyncIterator[BrokerClient]:
    async with BrokerClient(old.broker) as connected:
        yield connected


def consumer(old: ApacheServers, topic: str, listener: object, *, orderly: bool = False) -> aio.PushConsumer:
    made = aio.PushConsumer(
        f"{topic}-group",
        namesrv=old.name_server,
        settings=fast(orderly=orderly),
        client=ClientSettings(**FAST_CLIENT),
    )
    made.subscribe(topic, "*", listener)  # type: ignore[arg-type]
    return made


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


async def test_what_is_sent_in_every_way_is_pushed(old: ApacheServers, client: BrokerClient) -> None:
    topic = fresh_name("old-send")
    create_topic(old.broker, topic)
    got: list[ReceivedMessage] = []

    def send_blocking() -> None:
        with BlockingProducer("old-blocking", namesrv=old.name_server, settings=PATIENT) as producer:
            producer.send(Message(topic, b"blocking", tags="t", keys=["k"], properties={"a": "1"}))
            producer.send_oneway(Message(topic, b"oneway"))

    async def all_committed() -> bool:
        done = 0
        for queue_id in range(4):
            with contextlib.suppress(BrokerError):
                done += await client.ask(QueryConsumerOffset(f"{topic}-group", topic, queue_id))
        return done == 24

    async with consumer(old, topic, got.extend):
        async with aio.Producer("old-producer", namesrv=old.name_server, settings=PATIENT) as producer:
            receipt = await producer.send(Message(topic, b"one"))
            assert receipt.is_ok
            batch = await producer.send_batch([Message(topic, body) for body in numbered(20)])
            assert len({each.message_id for each in batch}) == 20
            large = bytes(number % 251 for number in range(100_000))
            await producer.send(Message(topic, large))
        await asyncio.to_thread(send_blocking)
        await until_count(got, 24, timeout_s=WAIT_S)
        await until(all_committed, timeout_s=WAIT_S)
    assert bodies(got) == sorted([b"one", large, b"blocking", b"oneway", *numbered(20)])
    [found] = [message for message in got if message.body == b"blocking"]
    assert (found.tags, found.keys, found.properties["a"]) == ("t", ["k"], "1")
    assert receipt.message_id in {message.message_id for message in got}


async def test_messages_are_gathered_into_batches(old: ApacheServers) -> None:
    topic = fresh_name("old-gathered")
    create_topic(old.broker, topic, 1)
    got: list[ReceivedMessage] = []
    settings = ProducerSettings(batching=True, send_timeout_ms=30_000)
    async with (
        consumer(old, topic, got.extend),
        aio.Producer("old-gathering", namesrv=old.name_server, settings=settings) as producer,
    ):
        receipts = await asyncio.gather(*(producer.send(Message(topic, body)) for body in numbered(100)))
        await until_count(got, 100, timeout_s=WAIT_S)
    assert bodies(got) == numbered(100)
    # Brokers of 4.9 write the batch's own id behind that of each of its messages, where it counts.
    stored = b"".join(message.properties_text for message in got)
    assert all(receipt.message_id.encode() in stored for receipt in receipts)


async def test_orderly_consumption_keeps_the_order_through_a_failure(old: ApacheServers) -> None:
    topic = fresh_name("old-orderly")
    create_topic(old.broker, topic, 2)
    seen: dict[str, list[int]] = defaultdict(list)

    def listener(messages: Messages) -> ConsumeResult | None:
        [message] = messages
        if message.body == b"5" and not message.reconsume_times:
            return ConsumeResult.LATER
        seen[message.properties["__SHARDINGKEY"]].append(int(message.body))
        return None

    async with (
        consumer(old, topic, listener, orderly=True),
        aio.Producer("old-ordered", namesrv=old.name_server, settings=PATIENT) as producer,
    ):
        for number in range(20):
            for key in ("a", "b"):
                await producer.send(Message(topic, b"%d" % number, sharding_key=key))
        await eventually(lambda: sum(map(len, seen.values())) == 40, timeout_s=WAIT_S)
    assert seen == {"a": list(range(20)), "b": list(range(20))}


async def test_a_failure_is_tried_again(old: ApacheServers) -> None:
    topic = fresh_name("old-retry")
    create_topic(old.broker, topic, 1)
    seen: list[tuple[bytes, int]] = []

    def listener(messages: Messages) -> ConsumeResult:
        seen.extend((message.body, message.reconsume_times) for message in messages)
        return ConsumeResult.SUCCESS if messages[0].reconsume_times else ConsumeResult.LATER

    async with consumer(old, topic, listener) as consuming:
        await until_retrying(consuming)
        async with aio.Producer("old-retrying", namesrv=old.name_server, settings=PATIENT) as producer:
            await producer.send(Message(topic, b"x"))
        await eventually(lambda: (b"x", 1) in seen, timeout_s=WAIT_S)
    assert set(seen) == {(b"x", 0), (b"x", 1)}


async def test_a_delayed_message_comes_later(old: ApacheServers) -> None:
    topic = fresh_name("old-delay")
    create_topic(old.broker, topic, 1)
    got: list[tuple[ReceivedMessage, float]] = []

    def listener(messages: Messages) -> None:
        got.extend((message, time.time() * 1000) for message in messages)

    async with (
        consumer(old, topic, listener),
        aio.Producer("old-delaying", namesrv=old.name_server, settings=PATIENT) as producer,
    ):
        await producer.send(Message(topic, b"later", delay_level=2))
        await eventually(lambda: got, timeout_s=WAIT_S)
    [(message, came_ms)] = got
    assert message.body == b"later"
    assert came_ms - message.born_timestamp >= 1900  # two seconds, by clocks of one millisecond


async def test_pulling(old: ApacheServers, client: BrokerClient) -> None:
    topic, group = fresh_name("old-pull"), fresh_name("old-pulling")
    create_topic(old.broker, topic, 2)
    for number, body in enumerate(numbered(50)):
        await client.send(topic, body, number % 2)
    # What asks our own brokers for more than 32 at a time, these do not know.
    settings = PullConsumerSettings(
        consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False, pull_batch_max=100
    )
    found: list[ReceivedMessage] = []
    async with aio.PullConsumer(group, namesrv=old.name_server, settings=settings) as pulling:
        pulling.subscribe(topic)

        async def all_polled() -> bool:
            found.extend(await pulling.poll(timeout_ms=500))
            return len({message.body for message in found}) >= 50

        await until(all_polled, timeout_s=WAIT_S)
        await pulling.commit()
        asked = [QueryConsumerOffset(group, topic, queue_id) for queue_id in range(2)]
        assert [await client.ask(each) for each in asked] == [25, 25], "what was answered is kept"
    assert {message.body for message in found} == set(numbered(50))
