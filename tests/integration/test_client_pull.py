"""The pull consumer on our own servers: polling, iterating, seeking, committing, sharing queues."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark.admin.admin import AsyncAdmin
from skylark.admin.offsets import BEGIN, END
from skylark.broker.broker import Broker
from skylark.client.consumer.fetcher import Fetcher
from skylark.client.consumer.pull_consumer import AsyncPullConsumer
from skylark.client.consumer.pull_consumer import PullConsumer as BlockingPullConsumer
from skylark.client.consumer.pull_policy import PullStatus
from skylark.errors import AlreadyStarted, BadName, BrokerError, ClientClosed, ClientError, SettingsError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.settings.client import ClientSettings, ConsumeFrom, MessageModel, PullConsumerSettings
from skylark.testing import EmbeddedServers
from tests.support.broker import BrokerClient, running_cluster, until
from tests.support.fake_broker import fake_broker
from tests.unit.client.messages import record

TOPIC = "Orders"
GROUP = "Readers"
QUEUES = 4
CLIENT = ClientSettings(client_ip="127.0.0.1")
WAIT_MS = 60_000
ALL = [MessageQueue(TOPIC, "broker-a", n) for n in range(QUEUES)]


class Rig:
    """Servers, an admin, and a way to make consumers that end with the test."""

    def __init__(self, namesrv: str, broker: Broker, admin: AsyncAdmin, client: BrokerClient) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self.admin = admin
        self.client = client
        self.commits = count_commits(broker)

    async def send(self, count: int, *, queue_id: int | None = None, tag: str = "A") -> None:
        for number in range(count):
            at = number % QUEUES if queue_id is None else queue_id
            await self.client.send(TOPIC, b"%d" % number, at, properties={"TAGS": tag})

    @contextlib.asynccontextmanager
    async def consumer(self, group: str = GROUP, **changes: Any) -> AsyncIterator[AsyncPullConsumer]:
        async with AsyncPullConsumer(
            group, namesrv=self.namesrv, client=CLIENT, settings=fast(**changes)
        ) as consumer:
            yield consumer


def fast(**changes: Any) -> PullConsumerSettings:
    """Intervals of a hundredth, and everything from the first message on."""
    values = {
        "consume_from": ConsumeFrom.FIRST_OFFSET,
        "auto_commit_interval_ms": 50,
        "rebalance_interval_ms": 200,
        "rebalance_gap_ms": 10,
        "queues_check_interval_ms": 50,
        "pull_failure_delay_ms": 10,
        "start_failure_delay_ms": 30,
        "hold_ms": 200,
        "pull_timeout_ms": 30_000,
        **changes,
    }
    return PullConsumerSettings(**values)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with (
        running_cluster(tmp_path) as (name_server, broker),
        AsyncAdmin(namesrv=name_server.address) as admin,
        BrokerClient(broker.address) as client,
    ):
        await admin.topics.create(TOPIC, queues=QUEUES)
        await admin.groups.create(GROUP)
        yield Rig(name_server.address, broker, admin, client)


def count_commits(broker: Broker) -> list[object]:
    """Note every commit that reaches the broker."""
    commits: list[object] = []
    commit = broker.offsets.commit

    def noted(*args: Any, **options: Any) -> None:
        commits.append(args)
        commit(*args, **options)

    broker.offsets.commit = noted  # type: ignore[method-assign]
    return commits


async def poll_all(consumer: AsyncPullConsumer, count: int, timeout_s: float = 60) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(timeout_s):
        while len(bodies) < count:
            bodies += [message.body for message in await consumer.poll(500)]
    return bodies


# --- Plain pulls ---


async def test_sf_021_a_plain_pull_tells_all_four_outcomes_and_the_offsets(rig: Rig) -> None:
    await rig.send(6, queue_id=0)
    async with rig.consumer() as consumer:
        [queue, *_] = await consumer.queues(TOPIC)
        found = await consumer.pull(queue, "*", 0, 4)
        assert found.status is PullStatus.FOUND
        assert [message.body for message in found.messages] == [b"0", b"1", b"2", b"3"]
        assert (found.next_offset, found.min_offset, found.max_offset) == (4, 0, 6)
        nothing_new = await consumer.pull(queue, "*", 6, 4)
        unmatched = await consumer.pull(queue, "NoSuchTag", 0, 4)
        illegal = await consumer.pull(queue, "*", 100_000, 4)
        for pulled, status in (
            (nothing_new, PullStatus.NO_NEW_MSG),
            (unmatched, PullStatus.NO_MATCHED_MSG),
            (illegal, PullStatus.OFFSET_ILLEGAL),
        ):
            assert pulled.status is status
            assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (6, 0, 6)
            assert not pulled.messages
        for wrong in ((-1, 4), (0, 0)):
            with pytest.raises(ClientError):
                await consumer.pull(queue, "*", *wrong)
        with pytest.raises(SettingsError):
            await consumer.pull(queue, "||", 0, 4)


async def test_sf_021_a_pull_may_wait_at_the_broker(rig: Rig) -> None:
    async with rig.consumer(hold_ms=30_000, pull_timeout_ms=60_000) as consumer:
        [queue, *_] = await consumer.queues(TOPIC)
        waiting = asyncio.create_task(consumer.pull(queue, "*", 0, 4, hold=True))
        await until(lambda: rig.broker.long_polling.count > 0)
        await rig.send(1, queue_id=0)
        assert (await waiting).status is PullStatus.FOUND


async def test_sf_034_nothing_is_acknowledged_or_sent_back_unless_it_is_asked_for(rig: Rig) -> None:
    await rig.send(8)
    async with rig.consumer(auto_commit=False) as consumer:
        consumer.subscribe(TOPIC)
        assert len(await poll_all(consumer, 8)) == 8
        queue = consumer.assignment()[0]
        await consumer.pull(queue, "*", 0, 4)
        await asyncio.sleep(0.2)  # many intervals of committing, if it did
    assert rig.commits == []
    assert set((await rig.admin.offsets.committed(GROUP, TOPIC)).values()) == {None}
    with pytest.raises(ClientError):
        await rig.admin.topics.route(f"%DLQ%{GROUP}")
    assert not rig.broker.stats.send_backs


# --- Polling and committing ---


async def test_a_poll_without_messages_waits_and_is_empty(rig: Rig) -> None:
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC)
        assert await consumer.poll(20) == []
        await rig.send(1)
        assert [message.body for message in await consumer.poll(WAIT_MS)] == [b"0"]
        assert await consumer.poll(0) == []


async def test_all_queues_are_fetched_at_the_same_time(rig: Rig) -> None:
    """An idle queue that is held at the broker does not hold up another one's message."""
    async with rig.consumer(hold_ms=30_000, pull_timeout_ms=60_000) as consumer:
        consumer.subscribe(TOPIC)
        await until(lambda: rig.broker.long_polling.count == QUEUES)
        for queue_id in (3, 0, 2, 1):
            await rig.send(1, queue_id=queue_id)
            [message] = await consumer.poll(WAIT_MS)
            assert message.queue_id == queue_id


async def test_a_polled_batch_is_done_when_the_next_is_asked_for(rig: Rig) -> None:
    await rig.send(20, queue_id=0)
    async with rig.consumer(pull_batch_max=10) as consumer:
        consumer.assign([ALL[0]])
        assert len(await consumer.poll(WAIT_MS)) == 10
        await asyncio.sleep(0.2)
        assert await consumer.committed(ALL[0]) in (None, 0)
        assert len(await consumer.poll(WAIT_MS)) == 10
        await until(lambda: _committed(consumer, ALL[0], 10))
    # The end of the consumer does not make the last batch done, either.
    assert (await rig.admin.offsets.committed(GROUP, TOPIC))[ALL[0]] == 10
    async with rig.consumer() as consumer:
        consumer.assign([ALL[0]])
        assert [message.body for message in await consumer.poll(WAIT_MS)] == [
            b"%d" % n for n in range(10, 20)
        ]


async def _committed(consumer: AsyncPullConsumer, queue: MessageQueue, queue_offset: int) -> bool:
    return await consumer.committed(queue) == queue_offset


@pytest.mark.parametrize("wait", [True, False], ids=["waiting", "not waiting"])
async def test_a_commit_covers_all_that_was_handed_out(rig: Rig, wait: bool) -> None:
    await rig.send(12)
    async with rig.consumer(auto_commit=False) as consumer:
        consumer.subscribe(TOPIC)
        await poll_all(consumer, 12)
        await consumer.commit(wait=wait)
        await until(lambda: _all_committed(rig, 3))
        await consumer.commit({ALL[0]: 1})
        assert await consumer.committed(ALL[0]) == 1


@pytest.mark.parametrize("interval_ms", [10, 60_000], ids=["periodic commits", "commit at the end"])
async def test_automatic_commits_do_not_undo_an_explicit_one_in_mid_batch(rig: Rig, interval_ms: int) -> None:
    await rig.send(10, queue_id=0)
    async with rig.consumer(pull_batch_max=10, auto_commit_interval_ms=interval_ms) as consumer:
        consumer.assign([ALL[0]])
        assert len(await consumer.poll(WAIT_MS)) == 10
        await consumer.commit({ALL[0]: 7})
        after = len(rig.commits)
        if interval_ms == 10:  # the other queues show that automatic commits have run since
            consumer.assign(ALL)
            await until(lambda: len(rig.commits) >= after + QUEUES - 1)
    assert (await rig.admin.offsets.committed(GROUP, TOPIC))[ALL[0]] == 7
    async with rig.consumer() as consumer:
        consumer.assign([ALL[0]])
        assert [message.body for message in await consumer.poll(WAIT_MS)] == [b"7", b"8", b"9"]


async def _all_committed(rig: Rig, queue_offset: int) -> bool:
    return set((await rig.admin.offsets.committed(GROUP, TOPIC)).values()) == {queue_offset}


async def test_messages_that_do_not_match_do_not_count_as_lag(rig: Rig) -> None:
    await rig.send(8, tag="B")
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC, "A")
        await until(lambda: _all_committed(rig, 2))
        assert set((await consumer.lag()).values()) == {0}
        await rig.send(4, tag="A")
        messages = await poll_all(consumer, 4)
        assert len(messages) == 4


async def test_a_consumer_goes_on_when_its_broker_comes_back(tmp_path: Path) -> None:
    with EmbeddedServers() as servers:
        servers.create_topic(TOPIC)
        async with (
            AsyncPullConsumer(GROUP, namesrv=servers.namesrv, client=CLIENT, settings=fast()) as consumer,
            BrokerClient(servers.broker_address) as client,
        ):
            consumer.subscribe(TOPIC)
            await client.send(TOPIC, b"before")
            assert await poll_all(consumer, 1) == [b"before"]
            await asyncio.to_thread(servers.stop_broker)
            assert await consumer.poll(50) == []
            await asyncio.to_thread(servers.start_broker)
            await client.send(TOPIC, b"after")
            assert await poll_all(consumer, 1) == [b"after"]


# --- Iterating ---


async def test_messages_are_iterated_over_until_the_end(rig: Rig) -> None:
    await rig.send(30)
    seen: list[bytes] = []
    consumer = AsyncPullConsumer(GROUP, namesrv=rig.namesrv, client=CLIENT, settings=fast())
    consumer.subscribe(TOPIC)
    await consumer.start()

    async def read() -> None:
        async for message in consumer:
            seen.append(message.body)

    reading = asyncio.create_task(read())
    await until(lambda: len(seen) == 30)
    await consumer.stop()
    async with asyncio.timeout(60):
        await reading
    assert sorted(seen) == sorted(b"%d" % (n) for n in range(30))


async def test_a_commit_inside_a_loop_covers_the_message_in_hand_and_no_more(rig: Rig) -> None:
    await rig.send(10, queue_id=0)
    async with rig.consumer(auto_commit=False, pull_batch_max=10) as consumer:
        consumer.assign([ALL[0]])
        async for message in consumer:
            await consumer.commit()
            if message.body == b"3":
                break
        assert await consumer.committed(ALL[0]) == 4
        # What was fetched and not handed out comes next, whichever way it is asked for.
        assert [message.body for message in await consumer.poll(WAIT_MS)] == [b"%d" % n for n in range(4, 10)]


async def test_messages_are_chosen_by_an_sql92_condition(rig: Rig) -> None:
    for number in range(6):
        await rig.client.send(TOPIC, b"%d" % number, 0, properties={"price": str(number)})
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC, sql="price > 3")
        assert await poll_all(consumer, 2) == [b"4", b"5"]
    async with rig.consumer() as consumer:
        consumer.assign([ALL[0]], sql="price BETWEEN 1 AND 2")
        await consumer.seek_to_begin(ALL[0])
        assert await poll_all(consumer, 2) == [b"1", b"2"]


async def test_a_bad_condition_is_refused_at_the_start(rig: Rig) -> None:
    consumer = AsyncPullConsumer(GROUP, namesrv=rig.namesrv, client=CLIENT)
    consumer.subscribe(TOPIC, sql="price >")
    with pytest.raises(BrokerError) as caught:
        await consumer.start()
    assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    with pytest.raises(SettingsError):
        consumer.subscribe(TOPIC, sql=" ")
    with pytest.raises(SettingsError):
        consumer.subscribe(TOPIC, "||")


# --- Seeking and pausing ---


async def test_an_assigned_queue_can_be_sought_at_once(rig: Rig) -> None:
    await rig.send(10, queue_id=0)
    async with rig.consumer() as consumer:
        consumer.assign([ALL[0]])
        await consumer.seek(ALL[0], 8)
        assert [message.body for message in await consumer.poll(WAIT_MS)] == [b"8", b"9"]


async def test_seeking(rig: Rig) -> None:
    await rig.send(10, queue_id=0)
    async with rig.consumer() as consumer:
        consumer.assign([ALL[0]])
        assert len(await poll_all(consumer, 10)) == 10
        await consumer.seek(ALL[0], 8)
        assert await poll_all(consumer, 2) == [b"8", b"9"]
        await consumer.seek_to_begin(ALL[0])
        assert (await poll_all(consumer, 10))[0] == b"0"
        await consumer.seek_to_end(ALL[0])
        assert consumer.positions() == {ALL[0]: 10}
        assert await consumer.poll(50) == []
        middle = await rig.admin.messages.at(ALL[0], 5)
        assert middle is not None
        first_at = await consumer.offset_at(ALL[0], middle.store_timestamp)
        await consumer.seek_to_time(ALL[0], middle.store_timestamp)
        assert (await consumer.poll(WAIT_MS))[0].queue_offset == first_at
        with pytest.raises(ClientError, match="Seek offset illegal, seek offset = 11"):
            await consumer.seek(ALL[0], 11)
        with pytest.raises(ClientError, match="not in assigned list"):
            await consumer.seek(ALL[1], 0)


async def test_a_seek_drops_what_was_fetched_ahead(rig: Rig) -> None:
    await rig.send(100, queue_id=0)
    async with rig.consumer(pull_batch_max=10) as consumer:
        consumer.assign([ALL[0]])
        iterator = consumer.__aiter__()
        assert (await anext(iterator)).body == b"0"
        await until(lambda: consumer.held[ALL[0]].message_count >= 50)
        await consumer.seek(ALL[0], 95)
        rest = [(await anext(iterator)).body for _ in range(5)]
        assert rest == [b"95", b"96", b"97", b"98", b"99"]


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(rig: Rig) -> None:
    await rig.send(2, queue_id=0)
    await rig.send(2, queue_id=1)
    async with rig.consumer() as consumer:
        consumer.assign(ALL[:2])
        await until(lambda: len(consumer.assignment()) == 2)
        await until(lambda: all(held.message_count == 2 for held in consumer.held.values()))
        consumer.pause([ALL[0]])
        messages = await consumer.poll(WAIT_MS)
        assert {message.queue for message in messages} == {ALL[1]}
        assert await consumer.poll(100) == []
        consumer.resume([ALL[0]])
        assert {message.queue for message in await consumer.poll(WAIT_MS)} == {ALL[0]}
        with pytest.raises(ClientError, match="not in assigned list"):
            consumer.pause([ALL[3]])


@pytest.mark.parametrize(
    "limit",
    [{"queue_messages_max": 20}, {"messages_max": 20}, {"span_max": 20}],
    ids=lambda limit: next(iter(limit)),
)
async def test_fetching_ahead_has_limits(rig: Rig, limit: dict[str, Any]) -> None:
    await rig.send(200, queue_id=0)
    async with rig.consumer(pull_batch_max=10, **limit) as consumer:
        consumer.assign([ALL[0]])
        await until(lambda: consumer.held[ALL[0]].message_count > 20)
        await asyncio.sleep(0.1)
        assert consumer.held[ALL[0]].message_count <= 40
        assert len(await poll_all(consumer, 200)) == 200


async def test_fetching_ahead_is_limited_by_bytes(rig: Rig) -> None:
    for _ in range(8):
        await rig.client.send(TOPIC, bytes(600_000), 0)
    async with rig.consumer(pull_batch_max=1, queue_mib_max=1) as consumer:
        consumer.assign([ALL[0]])
        await until(lambda: consumer.held[ALL[0]].message_bytes > 2 << 20)
        await asyncio.sleep(0.1)
        assert consumer.held[ALL[0]].message_bytes <= 3 << 20
        assert len(await poll_all(consumer, 8)) == 8


# --- Sharing queues ---


async def test_members_share_the_queues_and_nobody_reads_twice(rig: Rig) -> None:
    async with rig.consumer() as first:
        first.subscribe(TOPIC)
        await until(lambda: len(first.assignment()) == QUEUES)
        async with rig.consumer() as second:
            second.subscribe(TOPIC)
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            assert set(first.assignment()) | set(second.assignment()) == set(ALL)
            await rig.send(8)
            bodies = await poll_all(first, 4) + await poll_all(second, 4)
            assert sorted(bodies) == [b"%d" % n for n in range(8)]
            assert await first.poll(0) == []
            assert await second.poll(0) == []
            await until(lambda: _all_committed(rig, 2))
        # What the one had goes to the other, and begins where it was left.
        await until(lambda: len(first.assignment()) == QUEUES)
        await rig.send(4)
        assert len(await poll_all(first, 4)) == 4
        assert await first.poll(100) == []


async def test_sf_101_a_pull_consumer_that_does_not_poll_keeps_its_queues(rig: Rig) -> None:
    await rig.send(100, queue_id=0)
    async with rig.consumer(queue_messages_max=10) as consumer:
        consumer.subscribe(TOPIC)
        await until(
            lambda: consumer.held.get(ALL[0]) is not None and consumer.held[ALL[0]].message_count > 10
        )
        held = dict(consumer.held)
        # Full, so that it is not pulled, for many rounds of sharing.
        await asyncio.sleep(1.0)
        assert all(consumer.held[queue] is part for queue, part in held.items())
        assert len(await poll_all(consumer, 100)) == 100


async def test_a_topic_that_comes_after_its_subscription(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async with rig.consumer(rebalance_interval_ms=60_000) as consumer:
        consumer.subscribe("Late")
        await until(lambda: "does not exist topic=Late" in caplog.text)
        await rig.admin.topics.create("Late", queues=1)
        await rig.client.send("Late", b"at last", 0)
        assert await poll_all(consumer, 1) == [b"at last"]
        assert caplog.text.count("does not exist topic=Late") == 1


async def test_a_topic_that_is_given_up(rig: Rig) -> None:
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC)
        await until(lambda: len(consumer.assignment()) == QUEUES)
        consumer.unsubscribe(TOPIC)
        await until(lambda: not consumer.assignment())
        consumer.unsubscribe("NeverHeardOf")


async def test_subscribing_and_assigning_exclude_each_other(rig: Rig) -> None:
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(ClientError, match="Subscribe and assign are mutually exclusive"):
            consumer.assign(ALL)
    async with rig.consumer() as consumer:
        consumer.assign(ALL[:1])
        with pytest.raises(ClientError, match="Subscribe and assign are mutually exclusive"):
            consumer.subscribe(TOPIC)
        await until(lambda: consumer.assignment() == ALL[:1])
        consumer.assign(ALL[1:3])
        await until(lambda: consumer.assignment() == ALL[1:3])


async def test_more_queues_are_noticed(rig: Rig) -> None:
    heard: list[tuple[str, int]] = []
    async with rig.consumer() as consumer:
        consumer.on_queues_changed(TOPIC, lambda topic, queues: heard.append((topic, len(queues))))
        consumer.subscribe(TOPIC)
        await until(lambda: len(consumer.assignment()) == QUEUES)
        await until(lambda: TOPIC in consumer._watch._known)  # seen once as it is
        await rig.admin.topics.update(TOPIC, read_queues=6, write_queues=6)
        await until(lambda: heard == [(TOPIC, 6)])
        await until(lambda: len(consumer.assignment()) == 6)


async def test_broadcasting_members_read_everything_and_keep_their_own_offsets(
    rig: Rig, tmp_path: Path
) -> None:
    await rig.send(8)

    @contextlib.asynccontextmanager
    async def member(name: str) -> AsyncIterator[AsyncPullConsumer]:
        settings = fast(model=MessageModel.BROADCASTING, offset_directory=tmp_path / "offsets")
        client = ClientSettings(client_ip="127.0.0.1", instance_name=name)
        async with AsyncPullConsumer(
            GROUP, namesrv=rig.namesrv, client=client, settings=settings
        ) as consumer:
            consumer.subscribe(TOPIC)
            yield consumer

    async with member("one") as first, member("two") as second:
        assert sorted(await poll_all(first, 8)) == sorted(await poll_all(second, 8))
        await first.commit()
    async with member("one") as first:
        await until(lambda: len(first.assignment()) == QUEUES)
        assert await first.poll(200) == []
        await rig.send(1)
        assert len(await poll_all(first, 1)) == 1
    assert set((await rig.admin.offsets.committed(GROUP, TOPIC)).values()) == {None}


@pytest.mark.parametrize(
    ("consume_from", "seen"),
    [(ConsumeFrom.LAST_OFFSET, [b"new"]), (ConsumeFrom.FIRST_OFFSET, [b"old", b"new"])],
)
async def test_where_a_new_group_begins(rig: Rig, consume_from: ConsumeFrom, seen: list[bytes]) -> None:
    await rig.client.send(TOPIC, b"old", 0)
    # A broker lets new groups begin at 0 as long as a young queue's first message is in memory.
    rig.broker.store.reader.hot.holds = lambda *_: False  # type: ignore[method-assign]
    async with rig.consumer("NewGroup", consume_from=consume_from) as consumer:
        consumer.assign([ALL[0]])
        await until(lambda: consumer.positions().get(ALL[0]) is not None)
        await rig.client.send(TOPIC, b"new", 0)
        assert await poll_all(consumer, len(seen)) == seen


async def test_a_namespace_is_on_the_wire_and_not_in_the_program(rig: Rig) -> None:
    await rig.client.send(f"ns%{TOPIC}", b"inside", 0)
    await rig.send(1)
    client = ClientSettings(client_ip="127.0.0.1", namespace="ns")
    async with AsyncPullConsumer(GROUP, namesrv=rig.namesrv, client=client, settings=fast()) as consumer:
        consumer.subscribe(TOPIC)
        [message] = await consumer.poll(WAIT_MS)
        assert (message.topic, message.body) == (TOPIC, b"inside")
        assert consumer.group == f"ns%{GROUP}"
        assert await consumer.poll(100) == []
        assert {queue.topic for queue in await consumer.queues(TOPIC)} == {f"ns%{TOPIC}"}


# --- Brokers' words ---


@pytest.mark.parametrize("server_side", [True, False], ids=["by the next pull", "by word to the client"])
async def test_a_reset_moves_a_running_consumer(tmp_path: Path, server_side: bool) -> None:
    async with (
        running_cluster(tmp_path, server_side_reset=server_side) as (name_server, broker),
        AsyncAdmin(namesrv=name_server.address) as admin,
        BrokerClient(broker.address) as client,
    ):
        await admin.topics.create(TOPIC, queues=1)
        await admin.groups.create(GROUP)
        for number in range(5):
            await client.send(TOPIC, b"%d" % number, 0)
        async with AsyncPullConsumer(
            GROUP, namesrv=name_server.address, client=CLIENT, settings=fast()
        ) as consumer:
            consumer.subscribe(TOPIC)
            assert len(await poll_all(consumer, 5)) == 5
            await consumer.commit()
            await admin.offsets.reset(GROUP, TOPIC, BEGIN)
            assert await poll_all(consumer, 5) == [b"%d" % n for n in range(5)]
            await consumer.commit()
            await admin.offsets.reset(GROUP, TOPIC, END)
            await client.send(TOPIC, b"last", 0)
            assert await poll_all(consumer, 1) == [b"last"]


async def test_a_reset_after_a_seek_is_not_told_to_an_abandoned_pull(rig: Rig) -> None:
    await rig.send(5, queue_id=0)
    async with rig.consumer(hold_ms=300, auto_commit=False) as consumer:
        consumer.assign([ALL[0]])
        assert len(await poll_all(consumer, 5)) == 5
        await until(lambda: rig.broker.long_polling.count == 1)
        await consumer.seek(ALL[0], 5)
        await until(lambda: rig.broker.long_polling.count == 2)
        await rig.admin.offsets.reset(GROUP, TOPIC, BEGIN)
        assert await poll_all(consumer, 5) == [b"%d" % n for n in range(5)]


async def test_tools_see_the_inside_of_a_consumer(rig: Rig) -> None:
    await rig.send(4)
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC, "A || B")
        await poll_all(consumer, 4)
        members = await rig.admin.clients.consumers(GROUP)
        assert [client.client_id for client in members.clients] == [consumer.client_id]
        assert consumer.client_id.endswith("@STREAM")
        assert members.consume_type == "CONSUME_ACTIVELY"
        assert members.subscriptions[TOPIC].sub_string == "A || B"
        info = await rig.admin.clients.running_info(GROUP, consumer.client_id)
        assert set(info.mq_table) == set(ALL)
        positions = await rig.admin.clients.positions(GROUP, TOPIC)
        assert positions == {consumer.client_id: dict.fromkeys(ALL, 1)}


# --- The consumer itself ---


async def test_a_consumer_is_started_once_and_used_between(rig: Rig) -> None:
    consumer = AsyncPullConsumer(GROUP, namesrv=rig.namesrv, client=CLIENT)
    with pytest.raises(ClientClosed):
        await consumer.poll(0)
    await consumer.start()
    with pytest.raises(AlreadyStarted):
        await consumer.start()
    await consumer.stop()
    await consumer.stop()
    with pytest.raises(ClientClosed):
        await consumer.poll(0)
    with pytest.raises(ClientClosed):
        await consumer.seek(ALL[0], 0)
    with pytest.raises(BadName):
        AsyncPullConsumer("not a group", namesrv=rig.namesrv)


def test_defaults_are_those_of_the_java_client() -> None:
    settings = PullConsumerSettings()
    assert (settings.pull_batch_max, settings.messages_max, settings.queue_messages_max) == (10, 10_000, 1000)
    assert (settings.queue_mib_max, settings.span_max) == (100, 2000)
    assert (settings.auto_commit, settings.auto_commit_interval_ms) == (True, 5000)
    assert (settings.poll_timeout_ms, settings.hold_ms, settings.pull_timeout_ms) == (5000, 20_000, 30_000)
    assert (settings.plain_pull_timeout_ms, settings.queues_check_interval_ms) == (10_000, 30_000)
    assert settings.consume_from is ConsumeFrom.LAST_OFFSET
    with pytest.raises(SettingsError, match="less than hold_ms"):
        PullConsumerSettings(hold_ms=10, pull_timeout_ms=9)


async def test_an_error_of_the_network_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.send(4)
    fetch, failures = Fetcher.fetch, iter(range(3))

    async def failing(self: Fetcher, *args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise ClientError("as if the network had failed")
        return await fetch(self, *args, **options)

    monkeypatch.setattr(Fetcher, "fetch", failing)
    async with rig.consumer() as consumer:
        consumer.subscribe(TOPIC)
        assert len(await poll_all(consumer, 4)) == 4


# --- In real time ---


@pytest.mark.nightly
async def test_sf_101_real_time(rig: Rig) -> None:
    """Two minutes without a pull make a push consumer give its queues up; a pull consumer keeps them."""
    await rig.send(2000, queue_id=0)
    settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET, queue_messages_max=10)
    async with AsyncPullConsumer(GROUP, namesrv=rig.namesrv, client=CLIENT, settings=settings) as consumer:
        consumer.subscribe(TOPIC)
        await until(lambda: len(consumer.assignment()) == QUEUES)
        held = dict(consumer.held)
        await asyncio.sleep(130)
        assert all(consumer.held[queue] is part for queue, part in held.items())
        assert len(await poll_all(consumer, 2000)) == 2000


@pytest.mark.nightly
async def test_defaults_in_real_time(rig: Rig) -> None:
    """What is done is committed within five seconds; an idle pull is held for twenty and then repeated."""
    async with AsyncPullConsumer(GROUP, namesrv=rig.namesrv, client=CLIENT) as consumer:
        consumer.assign([ALL[0]])
        await until(lambda: consumer.positions().get(ALL[0]) is not None)
        await rig.send(1, queue_id=0)
        assert len(await poll_all(consumer, 1)) == 1
        assert await consumer.poll(0) == []
        await until(lambda: _committed(consumer, ALL[0], 1), timeout_s=30)
        await asyncio.sleep(25)
        assert rig.broker.long_polling.count == 1
        await rig.send(1, queue_id=0)
        assert len(await poll_all(consumer, 1, timeout_s=30)) == 1


# --- The blocking face ---


@pytest.fixture
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as running:
        running.create_topic(TOPIC)
        yield running


def send_blocking(servers: EmbeddedServers, count: int) -> None:
    async def send() -> None:
        async with BrokerClient(servers.broker_address) as client:
            for number in range(count):
                await client.send(TOPIC, b"%d" % number, number % QUEUES)

    asyncio.run(send())


def test_the_blocking_face_polls_iterates_seeks_and_commits(servers: EmbeddedServers) -> None:
    send_blocking(servers, 40)
    consumer = BlockingPullConsumer(GROUP, namesrv=servers.namesrv, client=CLIENT, settings=fast())
    consumer.subscribe(TOPIC)
    with pytest.raises(ClientClosed):
        consumer.poll(0)
    with consumer:
        seen = []
        for message in consumer:
            seen.append(message.body)
            consumer.commit()
            if len(seen) == 5:
                break
        while len(seen) < 40:
            seen += [message.body for message in consumer.poll(WAIT_MS)]
        assert sorted(seen) == sorted(b"%d" % n for n in range(40))
        assert len(consumer.assignment()) == QUEUES
        assert set(consumer.positions().values()) == {10}
        assert set(consumer.lag().values()) == {0}
        consumer.commit()
        assert consumer.committed(ALL[0]) == 10
        consumer.seek(ALL[0], 9)
        assert [message.queue_offset for message in consumer.poll(WAIT_MS)] == [9]
        consumer.seek_to_begin(ALL[0])
        assert consumer.poll(WAIT_MS)[0].queue_offset == 0
        consumer.seek_to_end(ALL[0])
        consumer.pause(ALL[:1])
        consumer.resume(ALL[:1])
        assert consumer.queues(TOPIC) == ALL
        pulled = consumer.pull(ALL[1], "*", 0, 2)
        assert len(pulled.messages) == 2
        consumer.seek_to_time(ALL[1], pulled.messages[0].store_timestamp)
        assert consumer.offset_at(ALL[1], 0) == 0
        assert consumer.client_id.endswith("@STREAM")
    with pytest.raises(ClientClosed):
        consumer.poll(0)


def test_stopping_ends_a_loop_in_another_thread(servers: EmbeddedServers) -> None:
    send_blocking(servers, 4)
    consumer = BlockingPullConsumer(GROUP, namesrv=servers.namesrv, client=CLIENT, settings=fast())
    consumer.subscribe(TOPIC)
    consumer.start()
    seen: list[bytes] = []
    got_all = threading.Event()

    def read() -> None:
        for message in consumer:
            seen.append(message.body)
            if len(seen) == 4:
                got_all.set()

    reading = threading.Thread(target=read)
    reading.start()
    assert got_all.wait(60)
    consumer.stop()
    reading.join(60)
    assert not reading.is_alive()


# --- Brokers that are not ours ---


def refuse_lite_pulls(command: RemotingCommand) -> RemotingCommand:
    """As brokers before 5.0 do."""
    remark = f" request type {command.code} not supported"
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


async def test_brokers_before_5_0_are_pulled_by_the_code_that_they_know() -> None:
    async with fake_broker() as fake:
        fake.answers[RequestCode.LITE_PULL_MESSAGE] = refuse_lite_pulls
        await fake.put("T", *(record(number, b"%d" % number) for number in range(40)))
        async with AsyncPullConsumer(GROUP, namesrv=fake.address, client=CLIENT, settings=fast()) as consumer:
            consumer.assign([MessageQueue("T", "broker-a", 0)])
            found = await poll_all(consumer, 40)
        assert found == [b"%d" % number for number in range(40)]
        assert len(fake.asked_for(RequestCode.LITE_PULL_MESSAGE)) == 1


async def test_commits_of_one_queue_do_not_overtake_each_other() -> None:
    """A broker that works with many threads may apply the later of two first: it is not told both at once."""
    applied: list[int] = []

    async def slowly_at_first(command: RemotingCommand) -> RemotingCommand:
        if len(fake.asked_for(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1:
            await until(lambda: called)
            await asyncio.sleep(0.1)  # the next one comes meanwhile, if it does
        applied.append(int(command.fields["commitOffset"]))
        return command.reply()

    called = False
    async with fake_broker() as fake:
        fake.answers[RequestCode.LITE_PULL_MESSAGE] = refuse_lite_pulls
        fake.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = slowly_at_first
        await fake.put("T", *(record(number, b"%d" % number) for number in range(20)))
        settings = fast(auto_commit_interval_ms=10, pull_batch_max=10)
        async with AsyncPullConsumer(
            GROUP, namesrv=fake.address, client=CLIENT, settings=settings
        ) as consumer:
            consumer.assign([MessageQueue("T", "broker-a", 0)])
            await poll_all(consumer, 20)  # the first ten are done, and soon committed
            await until(lambda: fake.asked_for(RequestCode.UPDATE_CONSUMER_OFFSET) != [])
            committing = asyncio.create_task(consumer.commit())
            called = True
            await committing
            await until(lambda: len(applied) >= 2)
            assert applied[-1] == 20
            assert applied == sorted(applied)


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_commit_that_is_under_way_ends_before_the_consumer_does(auto_commit: bool) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def when_allowed(command: RemotingCommand) -> RemotingCommand:
        asked.set()
        await may_answer.wait()
        return command.reply()

    async with fake_broker() as fake:
        fake.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = when_allowed
        settings = fast(auto_commit=auto_commit, auto_commit_interval_ms=60_000, commit_timeout_ms=60_000)
        async with AsyncPullConsumer(
            GROUP, namesrv=fake.address, client=CLIENT, settings=settings
        ) as consumer:
            committing = asyncio.create_task(consumer.commit({MessageQueue("T", "broker-a", 0): 7}))
            await asked.wait()
            stopping = asyncio.create_task(consumer.stop())
            await asyncio.sleep(0.05)  # it would end meanwhile, if it did not wait
            assert not stopping.done()
            may_answer.set()
            await stopping
            await committing


async def test_what_is_done_of_queues_that_were_just_given_up_is_committed_at_the_end() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    async with fake_broker() as fake:
        fake.answers[RequestCode.LITE_PULL_MESSAGE] = refuse_lite_pulls
        await fake.put("T", *(record(number, b"%d" % number) for number in range(5)))
        settings = fast(auto_commit_interval_ms=60_000)
        async with AsyncPullConsumer(
            GROUP, namesrv=fake.address, client=CLIENT, settings=settings
        ) as consumer:
            consumer.assign([queue])
            await poll_all(consumer, 5)
            assert await consumer.poll(10) == []  # so the five are done
            consumer.assign([])
        assert fake.offsets == {(GROUP, "T", 0): 5}
