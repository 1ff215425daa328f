"""Our push consumer with Apache's servers: the rows that touch the wire, side by side on one pair."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.listeners import ConsumeContext, ConsumeResult
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BrokerError
from skylark.model.message import Message
from skylark.protocol.requests.admin import UpdateBrokerConfig
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.protocol.requests.group import GetConsumerConnectionList, GetConsumeStats
from skylark.protocol.requests.offset import (
    InvokeBrokerToGetConsumerStatus,
    InvokeBrokerToResetOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from skylark.settings.client import ClientSettings, MessageModel, ProducerSettings
from tests.interop.client_driver import ClientDriver
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import ApacheServers, Servers, create_topic
from tests.support.broker import BrokerClient, until
from tests.support.consumer import (
    FAST_CLIENT,
    bodies,
    eventually,
    fast,
    until_count,
    until_owned,
    until_retrying,
    until_shared,
)
from tests.support.names import fresh_name

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(300)]
Messages = Sequence[ReceivedMessage]


class Pair:
    """Apache's pair, with a plain client of its broker. Every attempt has a topic and a group of its own."""

    def __init__(self, servers: ApacheServers, client: BrokerClient, name: str) -> None:
        self.servers = servers
        self.client = client
        self.topic = fresh_name(f"push_{name}"[:100])
        self.group = fresh_name(f"push_{name}_group"[:100])

    async def make_topic(self, queues: int = 4) -> None:
        await asyncio.to_thread(create_topic, self.servers.broker, self.topic, queues)

    async def send(
        self, *contents: bytes, queue_id: int | None = None, queues: int = 4, **members: Any
    ) -> None:
        for number, body in enumerate(contents):
            await self.client.send(
                self.topic, body, number % queues if queue_id is None else queue_id, **members
            )

    def consumer(
        self,
        listener: Callable[..., Any] | None,
        expression: str = "*",
        sql: str | None = None,
        **settings: Any,
    ) -> AsyncPushConsumer:
        client = {**FAST_CLIENT, **settings.pop("client", {})}
        consumer = AsyncPushConsumer(
            self.group,
            namesrv=self.servers.name_server,
            settings=fast(**settings),
            client=ClientSettings(**client),
        )
        consumer.subscribe(self.topic, expression, listener, sql=sql)
        return consumer

    async def committed(self, queue_id: int = 0) -> int:
        with contextlib.suppress(BrokerError):
            return await self.client.ask(QueryConsumerOffset(self.group, self.topic, queue_id))
        return -1

    async def until_committed(self, queue_offset: int, queue_id: int = 0) -> None:
        async def reached() -> bool:
            return await self.committed(queue_id) == queue_offset

        await until(reached)


@pytest.fixture
async def pair(apache: ApacheServers, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    async with BrokerClient(apache.broker) as client:
        yield Pair(apache, client, name.removeprefix("test_"))


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


async def test_sf_003_045_094_consume_stop_and_go_on(pair: Pair) -> None:
    await pair.make_topic()
    await pair.send(*numbered(100))
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend):
        await until_count(got, 100)
    assert bodies(got) == numbered(100)
    for queue_id in range(4):
        await pair.until_committed(25, queue_id)
    await pair.send(b"next", queue_id=0)
    got.clear()
    async with pair.consumer(got.extend):
        await until_count(got, 1)
    assert bodies(got) == [b"next"]


async def test_sf_008_088_members_share_the_queues(pair: Pair) -> None:
    await pair.make_topic(8)
    got: Counter[bytes] = Counter()

    async def listener(messages: Messages) -> None:
        got.update(message.body for message in messages)

    async with pair.consumer(listener) as one:
        await until_owned(one, pair.topic, count=8)
        async with pair.consumer(listener) as two:
            await until_shared([one, two], pair.topic, 8)
            await pair.send(*numbered(200), queues=8)
            await eventually(lambda: len(got) == 200)
            connection = await pair.client.ask(GetConsumerConnectionList(pair.group))
            assert {client.client_id for client in connection.connection_set} == {
                one.client_id,
                two.client_id,
            }
            assert connection.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
        await until_owned(one, pair.topic, count=8)


async def test_sf_022_tags(pair: Pair) -> None:
    await pair.make_topic(1)
    for tags in ("Aa", "BB", "Aa", "CC"):
        await pair.send(tags.encode(), queue_id=0, properties={"TAGS": tags})
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend, "Aa || DD", hold_ms=1000):
        await until_count(got, 2)
        await pair.until_committed(4)  # SF-129: what does not match is no lag
    assert bodies(got) == [b"Aa", b"Aa"]


async def test_sf_026_030_035_retries_and_dead_letters(pair: Pair) -> None:
    await pair.make_topic(1)
    seen: list[tuple[bytes, str, int]] = []

    def listener(messages: Messages, context: ConsumeContext) -> ConsumeResult | None:
        seen.extend((message.body, message.topic, message.reconsume_times) for message in messages)
        for number, message in enumerate(messages):
            if message.body == b"bad" or (message.body == b"once more" and not message.reconsume_times):
                return ConsumeResult.LATER
            context.done = number + 1
        return None

    async with pair.consumer(listener, reconsume_times_max=2, batch_max=8) as consumer:
        await until_retrying(consumer)
        await pair.send(b"good", b"bad", b"once more", queue_id=0)
        await eventually(lambda: (b"bad", pair.topic, 2) in seen)
        await eventually(lambda: (b"once more", pair.topic, 1) in seen)
        await pair.until_committed(3)

        async def buried() -> bool:
            with contextlib.suppress(BrokerError):
                dead = await pair.client.pull(f"%DLQ%{pair.group}", group=f"{pair.group}_dead")
                # What comes after a bad one in every batch may have to go with it.
                return b"bad" in [message.body for message in dead]
            return False

        await until(buried)
    times = sorted(number for body, _, number in seen if body == b"bad")
    assert times == [0, 1, 2]


async def test_sf_102_106_orderly(pair: Pair) -> None:
    await pair.make_topic(4)
    seen: dict[int, list[int]] = defaultdict(list)

    def listener(messages: Messages) -> ConsumeResult | None:
        [message] = messages
        if message.queue_offset == 20 and message.reconsume_times == 0:
            return ConsumeResult.LATER
        seen[message.queue_id].append(message.queue_offset)
        return None

    async with pair.consumer(listener, orderly=True) as one:
        await until_owned(one, pair.topic, count=4)
        await asyncio.gather(*(pair.send(*numbered(50), queue_id=queue_id) for queue_id in range(4)))
        await eventually(lambda: sum(map(len, seen.values())) == 200)
        assert all(offsets == list(range(50)) for offsets in seen.values())
        async with pair.consumer(listener, orderly=True) as two:
            await until_shared([one, two], pair.topic, 4)
            await asyncio.gather(*(pair.send(*numbered(10), queue_id=queue_id) for queue_id in range(4)))
            await eventually(lambda: sum(len(set(offsets)) for offsets in seen.values()) == 240)
    # A queue that moves may bring some once more: its old owner's last commit and the new one's question go
    # different ways through Apache's broker. The order stays.
    assert [list(dict.fromkeys(seen[queue_id])) for queue_id in range(4)] == [list(range(60))] * 4


async def test_sf_012_broadcasting(pair: Pair, tmp_path: Path) -> None:
    await pair.make_topic(4)
    await pair.send(*numbered(40))
    got: dict[str, list[ReceivedMessage]] = {"a": [], "b": []}
    settings: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
    async with (
        pair.consumer(got["a"].extend, client={"instance_name": "a"}, **settings),
        pair.consumer(got["b"].extend, client={"instance_name": "b"}, **settings),
    ):
        await eventually(lambda: all(len(messages) == 40 for messages in got.values()))
    assert all(bodies(messages) == numbered(40) for messages in got.values())
    assert len([*tmp_path.glob("*/*/offsets.json")]) == 2  # noqa: ASYNC240 (a few names, after all is done)


async def test_sql92(pair: Pair) -> None:
    await pair.client.ask(UpdateBrokerConfig(b"enablePropertyFilter=true"))
    await pair.make_topic(1)
    for number in range(10):
        await pair.send(b"%d" % number, queue_id=0, properties={"a": str(number)})
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend, sql="a is not null and a between 3 and 7"):
        await until_count(got, 5)
    assert bodies(got) == [b"3", b"4", b"5", b"6", b"7"]
    with pytest.raises(BrokerError):
        await pair.consumer(print, sql="a = 1 AND !").start()


async def test_sf_130_an_offset_beyond_the_end(pair: Pair) -> None:
    await pair.make_topic(1)
    await pair.send(*numbered(5), queue_id=0)
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend):
        await until_count(got, 5)
    await pair.until_committed(5)
    await pair.client.ask(UpdateConsumerOffset(pair.group, pair.topic, 0, 1000))
    got.clear()
    async with pair.consumer(got.extend):
        await pair.until_committed(5)
        await pair.send(b"new", queue_id=0)
        await eventually(lambda: b"new" in bodies(got))


async def test_sf_043_sf_111_tools_ask_a_consumer_through_its_broker(pair: Pair) -> None:
    await pair.make_topic(1)
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend) as consumer:
        sent = await pair.client.send(pair.topic, b"x", 0, properties={"UNIQ_KEY": "U"})
        await until_count(got, 1)
        info = await pair.client.ask(GetConsumerRunningInfo(pair.group, consumer.client_id))
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert any(queue.topic == pair.topic for queue in info.mq_table)
        answer = await pair.client.ask(
            ConsumeMessageDirectly(pair.group, consumer.client_id, sent.msg_id, topic=pair.topic)
        )
        assert answer.consume_result == "CR_SUCCESS"
        await until_count(got, 2)
        status = await pair.client.ask(InvokeBrokerToGetConsumerStatus(pair.topic, pair.group, ""))
        assert {queue.topic for queue in status.consumer_table[consumer.client_id]} == {pair.topic}


async def test_an_offset_reset_reaches_a_running_consumer(pair: Pair) -> None:
    await pair.make_topic(1)
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend, hold_ms=500):
        await pair.send(*numbered(10), queue_id=0)
        await until_count(got, 10)
        await pair.until_committed(10)
        await pair.client.ask(
            InvokeBrokerToResetOffset(pair.topic, pair.group, 0, is_force=True, queue_id=0, queue_offset=4)
        )
        await until_count(got, 16)
        assert [message.queue_offset for message in got][10:16] == list(range(4, 10))


async def test_sf_044_sf_100_a_queue_that_moves_takes_its_offset_along(pair: Pair) -> None:
    await pair.make_topic(2)
    slow: dict[str, Any] = {"offset_persist_interval_ms": 60_000, "offset_persist_first_ms": 60_000}
    first: list[ReceivedMessage] = []
    second: list[ReceivedMessage] = []
    async with pair.consumer(first.extend, **slow) as one:
        await pair.send(*numbered(20), queues=2)
        await until_count(first, 20)
        async with pair.consumer(second.extend, **slow) as two:
            await until_shared([one, two], pair.topic, 2)
            [moved] = [queue for queue in two.queues() if queue.topic == pair.topic]
            await pair.until_committed(10, moved.queue_id)
            await pair.send(b"new", queue_id=moved.queue_id)
            await eventually(lambda: b"new" in bodies(second))


async def test_sf_068_115_compressed_bodies_and_posted_subscriptions(pair: Pair) -> None:
    await pair.make_topic(1)
    async with AsyncProducer(
        fresh_name("push_producers"),
        namesrv=pair.servers.name_server,
        settings=ProducerSettings(send_timeout_ms=30_000),
    ) as producer:
        contents = [bytes(number % 251 for number in range(size)) for size in (4095, 4096, 100_000)]
        for body in contents:
            await producer.send(Message(pair.topic, body, tags="mine"))
        await producer.send(Message(pair.topic, b"other", tags="other"))
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend, "mine", post_subscription=True, hold_ms=1000):
        await until_count(got, 3)
        await pair.until_committed(4)
    assert sorted(message.body for message in got) == sorted(contents)


async def test_sf_031_broadcasting_tries_nothing_again(pair: Pair, tmp_path: Path) -> None:
    await pair.make_topic(1)
    await pair.send(*numbered(5), queue_id=0)
    seen: list[int] = []

    def listener(messages: Messages) -> ConsumeResult:
        seen.append(messages[0].queue_offset)
        return ConsumeResult.LATER

    settings: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
    async with pair.consumer(listener, **settings) as consumer:
        await until_count(seen, 5)
        path = tmp_path / consumer.client_id / pair.group / "offsets.json"
    assert ":5" in path.read_text()
    assert sorted(seen) == [0, 1, 2, 3, 4]


async def test_apache_s_tool_shows_our_consumer(pair: Pair, tmp_path: Path) -> None:
    await pair.make_topic(2)
    got: list[ReceivedMessage] = []
    async with pair.consumer(got.extend, "a || b") as consumer:
        await pair.send(*numbered(6), queues=2, properties={"TAGS": "a"})
        await until_count(got, 6)
        for queue_id in range(2):
            await pair.until_committed(3, queue_id)
        tool = MqAdmin(admin_classpath(), pair.servers.name_server, tmp_path)
        connection, status, progress = await asyncio.to_thread(
            tool.run,
            ["consumerConnection", "-g", pair.group],
            ["consumerStatus", "-g", pair.group, "-i", consumer.client_id, "-s"],
            ["consumerProgress", "-g", pair.group],
        )
        assert consumer.client_id in connection
        assert "PYTHON" in connection
        assert "a || b" in connection
        assert "CONSUME_PASSIVELY" in connection
        assert "PROP_CONSUMEORDERLY" in status
        assert f"consume-{pair.group}" in status  # the stacks of its threads
        assert pair.topic in status
        assert "Consume Diff Total: 0" in progress


async def test_sf_096_a_java_member_and_ours_share_a_group(servers: Servers, tmp_path: Path) -> None:
    """Both compute the same split: every queue has one owner, and every message is consumed once."""
    driver = ClientDriver("5.3.3", servers.name_server, tmp_path)
    topic, group = f"Live-{driver.name}", f"LiveConsumer-{driver.name}"
    with contextlib.ExitStack() as stack:
        java_id, _ = await asyncio.to_thread(stack.enter_context, driver.live())
        got: list[ReceivedMessage] = []
        consumer = AsyncPushConsumer(
            group, namesrv=servers.name_server, settings=fast(), client=ClientSettings(**FAST_CLIENT)
        )
        consumer.subscribe(topic, "TagA || TagB", got.extend)
        async with consumer, BrokerClient(servers.broker) as client:

            async def shared() -> bool:
                info = await client.ask(GetConsumerRunningInfo(group, java_id))
                theirs = {queue.queue_id for queue in info.mq_table if queue.topic == topic}
                ours = {queue.queue_id for queue in consumer.queues() if queue.topic == topic}
                return len(theirs) == len(ours) == 2 and theirs | ours == set(range(4))

            await until(shared)
            ours = {queue.queue_id for queue in consumer.queues() if queue.topic == topic}
            for number in range(40):
                await client.send(topic, b"%d" % number, number % 4, properties={"TAGS": "TagB"})
            # What was sent before may come again with the queues that moved.
            await eventually(lambda: sum(message.body.isdigit() for message in got) == 20)
            assert {message.queue_id for message in got} == ours

            async def consumed() -> bool:
                stats = await client.ask(GetConsumeStats(group, topic))
                return all(
                    entry.broker_offset == entry.consumer_offset for entry in stats.offset_table.values()
                )

            await until(consumed)
            assert sum(message.body.isdigit() for message in got) == 20


async def test_sf_029_membership_changes_under_load_lose_nothing(pair: Pair) -> None:
    await pair.make_topic(8)
    got: Counter[bytes] = Counter()

    async def listener(messages: Messages) -> None:
        await asyncio.sleep(0.001)
        got.update(message.body for message in messages)

    sent = set(numbered(800))

    async def feed() -> None:
        for number, body in enumerate(sorted(sent)):
            await pair.send(body, queue_id=number % 8)
            await asyncio.sleep(0.002)

    feeding = asyncio.create_task(feed())
    async with contextlib.AsyncExitStack() as stack:
        members: list[AsyncPushConsumer] = []
        for change in range(10):
            if change % 3 == 2:
                await members.pop(0).stop()
            else:
                members.append(await stack.enter_async_context(pair.consumer(listener)))
            await asyncio.sleep(0.2)
        await feeding
        await eventually(lambda: got.keys() >= sent)


@pytest.mark.nightly
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_broker_that_is_killed_and_started_again(tmp_path: Path, orderly: bool) -> None:
    with ApacheServers(tmp_path, {}) as servers:
        async with BrokerClient(servers.broker) as client:
            pair = Pair(servers, client, "killed")
            await pair.make_topic(4)
            got: Counter[bytes] = Counter()
            order: dict[int, list[int]] = defaultdict(list)

            def listener(messages: Messages) -> None:
                got.update(message.body for message in messages)
                for message in messages:
                    order[message.queue_id].append(message.queue_offset)

            sent = set(numbered(300))
            async with pair.consumer(listener, orderly=orderly) as consumer:
                await until_owned(consumer, pair.topic, count=4)
                await pair.send(*sorted(sent)[:200])
                await eventually(lambda: len(got) == 200)
                await asyncio.to_thread(servers.kill)
                await asyncio.to_thread(servers.start)
                client.hang_up()
                await pair.send(*sorted(sent)[200:])
                await eventually(lambda: got.keys() >= sent, timeout_s=90)
            for offsets in order.values() if orderly else ():
                fresh = [number for place, number in enumerate(offsets) if number not in offsets[:place]]
                assert fresh == sorted(fresh)


async def test_a_pull_for_more_than_apache_s_brokers_give_brings_what_they_give(pair: Pair) -> None:
    await pair.make_topic(1)
    await pair.send(*numbered(100), queue_id=0)
    sizes: list[int] = []

    async def listener(messages: Messages) -> None:
        sizes.append(len(messages))

    async with pair.consumer(listener, pull_batch_max=1024, batch_max=1024):
        await eventually(lambda: sum(sizes) == 100)
        await pair.until_committed(100)
    assert max(sizes) <= 32
