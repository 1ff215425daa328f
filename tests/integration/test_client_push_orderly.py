"""Orderly consumption: order within a queue, locks, rests after failures, and members that come and go."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.listeners import (
    ConsumeContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    MessageListenerOrderly,
)
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import LockedQueues, LockRequest, MessageQueue, decode_body, encode_body
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import GetConsumerRunningInfo, LockBatchMq, UnlockBatchMq
from skylark.settings.client import ClientSettings, MessageModel, PushConsumerSettings
from tests.support.consumer import (
    FAST_CLIENT,
    consumer_rig,
    eventually,
    fast,
    until_count,
    until_owned,
    until_shared,
)
from tests.support.fake_broker import BROKER, FakeBroker, fake_broker
from tests.unit.client.messages import record

Messages = Sequence[ReceivedMessage]
DEFAULTS = PushConsumerSettings()


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def orderly_of(fake: FakeBroker, listener: Any, **settings: Any) -> AsyncPushConsumer:
    consumer = AsyncPushConsumer(
        "G",
        namesrv=fake.address,
        settings=fast(orderly=True, **settings),
        client=ClientSettings(**FAST_CLIENT),
    )
    consumer.subscribe("T", "*", listener)
    return consumer


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_sf_106_each_queue_in_order(tmp_path: Path, kind: str) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        seen: dict[int, list[int]] = defaultdict(list)
        inside: set[int] = set()

        def listener(messages: Messages) -> None:
            queue_id = messages[0].queue_id
            assert queue_id not in inside
            inside.add(queue_id)
            seen[queue_id] += [message.queue_offset for message in messages]
            inside.discard(queue_id)

        async def coroutine(messages: Messages) -> None:
            listener(messages)
            inside.add(messages[0].queue_id)
            await asyncio.sleep(0)
            inside.discard(messages[0].queue_id)

        handler = listener if kind == "function" else coroutine
        async with rig.consumer("G", "T", handler, orderly=True, batch_max=3):
            for queue_id in range(4):
                await rig.fill("T", queue_id, *numbered(2500))
            await eventually(lambda: sum(map(len, seen.values())) >= 10_000, timeout_s=60)
            for queue_id in range(4):
                await rig.until_committed("G", "T", 2500, queue_id)
        assert {
            queue_id: offsets == list(range(2500)) for queue_id, offsets in seen.items()
        } == dict.fromkeys(range(4), True)


async def test_a_failure_rests_the_queue_and_keeps_the_order(tmp_path: Path) -> None:
    assert DEFAULTS.suspend_ms == 1000
    assert PushConsumerSettings(orderly=True).attempts_max == 2**31 - 1
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        await rig.send("T", *numbered(6), queue_id=0)
        await rig.send("T", *numbered(6), queue_id=1)
        seen: list[tuple[int, int, int, float]] = []

        def listener(messages: Messages) -> ConsumeResult | None:
            [message] = messages
            seen.append((message.queue_id, message.queue_offset, message.reconsume_times, time.monotonic()))
            if (message.queue_id, message.queue_offset) == (0, 2) and message.reconsume_times < 3:
                return ConsumeResult.LATER
            return None

        async with rig.consumer("G", "T", listener, orderly=True, suspend_ms=50):
            await until_count(seen, 15)
            await rig.until_committed("G", "T", 6, 0)
        first = [(number, times) for queue_id, number, times, _ in seen if queue_id == 0]
        assert first == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 0), (4, 0), (5, 0)]
        assert [number for queue_id, number, _, _ in seen if queue_id == 1] == list(range(6))
        rested = [at for queue_id, number, _, at in seen if (queue_id, number) == (0, 2)]
        assert min(later - earlier for earlier, later in itertools.pairwise(rested)) >= 0.05


async def test_after_the_last_attempt_a_dead_letter_and_the_queue_goes_on(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(3))
        seen: list[int] = []

        def listener(messages: Messages) -> None:
            seen.append(messages[0].queue_offset)
            if messages[0].queue_offset == 1:
                raise ValueError("never")

        async with rig.consumer("G", "T", listener, orderly=True, reconsume_times_max=2):
            await eventually(lambda: rig.broker.store.max_offset("%DLQ%G", 0) == 1)
            await rig.until_committed("G", "T", 3)
        assert seen == [0, 1, 1, 1, 2]


class Committing(MessageListenerOrderly):
    """Commits itself: every third message is COMMIT, the first ROLLBACK of each is undone."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        queue_offset = messages[0].queue_offset
        self.seen.append(queue_offset)
        if queue_offset == 4 and self.seen.count(4) == 1:
            return ConsumeOrderlyStatus.ROLLBACK
        if queue_offset == 1 and self.seen.count(1) == 1:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.COMMIT if queue_offset % 3 == 2 else ConsumeOrderlyStatus.SUCCESS


async def test_sf_036_a_listener_that_commits_itself(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(8))
        listener = Committing()
        consumer = rig.consumer("G", "T")
        consumer.listen(listener)
        async with consumer:
            await eventually(lambda: listener.seen and listener.seen[-1] == 7)
            await rig.until_committed("G", "T", 6)
        assert listener.seen == [0, 1, 1, 2, 3, 4, 3, 4, 5, 6, 7]
        assert await rig.committed("G", "T") == 6


async def test_sf_036_commit_without_committing_oneself_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Old(MessageListenerOrderly):
        def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeOrderlyStatus:
            return (ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK)[messages[0].queue_offset % 2]

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(6))
        consumer = rig.consumer("G", "T")
        consumer.listen(Old())
        async with consumer:
            await rig.until_committed("G", "T", 6)
        told = sorted(text for text in caplog.messages if "is deprecated" in text)
        assert len(told) == 2
        assert "Old.consume_message returned COMMIT" in told[0]
        assert "returned ROLLBACK" in told[1]


# --- Locks ---


async def test_sf_102_a_queue_that_another_has_locked_is_not_pulled(tmp_path: Path) -> None:
    assert (DEFAULTS.lock_interval_ms, DEFAULTS.lock_expiry_ms, DEFAULTS.lock_retry_ms) == (
        20_000,
        30_000,
        500,
    )
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        await rig.send("T", *numbered(4))
        other = LockRequest("somebody@else", "G", [MessageQueue("T", "broker-a", 0)])
        locked = await rig.client.ask(LockBatchMq(other))
        assert len(locked.queues) == 1
        seen: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", seen.extend, orderly=True) as consumer:
            await until_owned(consumer, "T", count=1)
            await until_count(seen, 2)
            assert consumer._runtime is not None
            rounds = consumer._runtime.rebalancer.rounds
            await eventually(lambda: consumer._runtime and consumer._runtime.rebalancer.rounds > rounds + 2)
            assert {message.queue_id for message in seen} == {1}
            await rig.client.ask(UnlockBatchMq(other))
            await until_owned(consumer, "T", count=2)
            await until_count(seen, 4)


async def test_a_lost_lock_stops_pulling_and_consuming_until_it_is_back() -> None:
    async with fake_broker() as fake:
        refused = False

        def answer(command: RemotingCommand) -> RemotingCommand:
            wanted = decode_body(command.body, LockRequest).mq_set
            return command.reply(body=encode_body(LockedQueues([] if refused else wanted)))

        fake.answers[RequestCode.LOCK_BATCH_MQ] = answer
        seen: list[int] = []
        await fake.put("T", record(0))
        async with orderly_of(fake, lambda messages: seen.append(messages[0].queue_offset), hold_ms=20):
            await until_count(seen, 1)
            refused = True
            count = len(fake.asked_for(RequestCode.LOCK_BATCH_MQ))
            await eventually(lambda: len(fake.asked_for(RequestCode.LOCK_BATCH_MQ)) >= count + 2)
            await asyncio.sleep(0.05)
            pulls = len(fake.asked_for(RequestCode.PULL_MESSAGE))
            await fake.put("T", record(1))
            await asyncio.sleep(0.1)
            assert len(fake.asked_for(RequestCode.PULL_MESSAGE)) == pulls
            refused = False
            await until_count(seen, 2)
        assert seen == [0, 1]
        unlocked = fake.asked_for(RequestCode.UNLOCK_BATCH_MQ)
        assert decode_body(unlocked[-1].body, LockRequest).mq_set == [MessageQueue("T", BROKER, 0)]
        assert not unlocked[-1].is_oneway  # at the end, the broker's word is waited for


async def test_a_stop_amid_a_round_leaves_no_lock_behind() -> None:
    async with fake_broker(queues={"T": 3}) as fake:
        asked = asyncio.Event()

        async def slowly(command: RemotingCommand) -> RemotingCommand:
            asked.set()
            await asyncio.sleep(0.3)  # the queues are locked, and where to begin is not known yet
            return fake._query_consumer_offset(command)

        fake.answers[RequestCode.QUERY_CONSUMER_OFFSET] = slowly
        consumer = orderly_of(fake, print)
        await consumer.start()
        await asked.wait()
        await consumer.stop()
        locked = [queue for c in fake.asked_for(41) for queue in decode_body(c.body, LockRequest).mq_set]
        unlocked = [queue for c in fake.asked_for(42) for queue in decode_body(c.body, LockRequest).mq_set]
        assert set(locked) == set(unlocked) != set()


async def test_sf_110_the_first_pull_under_a_lock_asks_where_to_begin() -> None:
    """Between taking a queue and its first pull another member may have committed more."""
    async with fake_broker(offsets={("G", "T", 0): 3}) as fake:
        await fake.put("T", *map(record, range(10)))
        seen: list[int] = []
        consumer = orderly_of(
            fake,
            lambda messages: seen.append(messages[0].queue_offset),
            first_pull_delay_ms=300,
            offset_persist_first_ms=60_000,
        )
        async with consumer:
            assert consumer._runtime is not None
            fetch_loop = consumer._runtime.fetch_loop
            await eventually(lambda: fetch_loop.requests)
            [request] = fetch_loop.requests
            assert (request.next_offset, request.was_locked) == (3, False)
            fake.offsets["G", "T", 0] = 7
            await until_count(seen, 3)
            assert request.was_locked
        assert seen == [7, 8, 9]


async def test_a_queue_is_given_up_when_its_listener_is_done(tmp_path: Path) -> None:
    assert (DEFAULTS.give_up_wait_ms, DEFAULTS.unlock_delay_ms) == (500, 20_000)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        release = threading.Event()
        first: list[tuple[MessageQueue, int]] = []
        second: list[tuple[MessageQueue, int]] = []

        def slow(messages: Messages) -> None:
            first.append((messages[0].queue, messages[0].queue_offset))
            release.wait(60)

        one = rig.consumer("G", "T", slow, orderly=True)
        two = rig.consumer(
            "G",
            "T",
            lambda messages: second.append((messages[0].queue, messages[0].queue_offset)),
            orderly=True,
        )
        async with one:
            await until_owned(one, "T", count=2)
            await rig.send("T", *numbered(6))
            await until_count(first, 2)
            async with two:
                await asyncio.sleep(0.3)
                assert second == []  # both queues are in the hands of the first one's listener
                release.set()
                await until_shared([one, two], "T", 2)
                await eventually(lambda: {number for _, number in first + second} == {0, 1, 2})
                await eventually(lambda: len(set(first + second)) == 6)
        for queue in (MessageQueue("T", "broker-a", number) for number in range(2)):
            order = [number for held, number in first if held == queue]
            order += [number for held, number in second if held == queue]
            assert sorted(set(order)) == [0, 1, 2]
            assert order == sorted(order)


async def test_order_is_kept_through_rebalances_and_restarts(tmp_path: Path) -> None:
    """Members come, go and are started again while messages flow: no queue ever steps back but by repeats."""
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        seen: list[tuple[int, int]] = []
        fresh: dict[int, int] = defaultdict(lambda: -1)
        faults: list[tuple[int, int, int]] = []

        def listener(messages: Messages) -> None:
            for message in messages:
                last = fresh[message.queue_id]
                if message.queue_offset > last + 1:
                    faults.append((message.queue_id, last, message.queue_offset))
                fresh[message.queue_id] = max(last, message.queue_offset)
                seen.append((message.queue_id, message.queue_offset))

        async def feed() -> None:
            for number in range(400):
                await rig.send("T", b"%d" % number, queue_id=number % 4)
                await asyncio.sleep(0.002)

        feeding = asyncio.create_task(feed())
        members: list[AsyncPushConsumer] = []
        for _ in range(5):
            members.append(await rig.consumer("G", "T", listener, orderly=True).start())
            await asyncio.sleep(0.1)
            if len(members) > 2:
                await members.pop(0).stop()
        await feeding
        await eventually(lambda: len(set(seen)) == 400)
        for member in members:
            await member.stop()
        assert faults == []
        assert len(seen) - len(set(seen)) <= 400


async def test_broadcasting_in_order_takes_no_locks(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        await rig.send("T", *numbered(100))
        seen: dict[int, list[int]] = defaultdict(list)
        consumer = rig.consumer(
            "G", "T", lambda messages: seen[messages[0].queue_id].append(messages[0].queue_offset),
            orderly=True, model=MessageModel.BROADCASTING, offset_directory=tmp_path,
        )  # fmt: skip
        async with consumer:
            await eventually(lambda: sum(map(len, seen.values())) == 100)
            assert consumer._runtime is not None
            assert consumer._runtime.locks is None
        assert seen == {0: list(range(50)), 1: list(range(50))}


async def test_sf_111_running_info_has_the_attributes_of_a_process_queue(tmp_path: Path) -> None:
    """Code 307 under load: the listener has a message, more are cached, most are still at the broker."""
    total, body = 60, bytes(150_000)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        started_ms = time.time() * 1000
        await rig.send("T", *[body] * total)
        blocked, taken = threading.Event(), []

        def listener(messages: Messages) -> None:
            taken.append(messages[0].queue_offset)
            if len(taken) == 2:
                blocked.wait(60)

        async with rig.consumer("G", "T", listener, orderly=True, queue_messages_max=12) as consumer:
            try:
                queue = MessageQueue("T", "broker-a", 0)
                await until_owned(consumer, "T", count=1)
                await eventually(lambda: consumer.running_info().mq_table[queue].cached_msg_count > 10)
                info = await rig.client.ask(GetConsumerRunningInfo("G", consumer.client_id))
                held = info.mq_table[queue]
                assert taken == [0, 1]
                assert held.commit_offset == 1
                assert (held.transaction_msg_min_offset, held.transaction_msg_max_offset) == (1, 1)
                assert (held.transaction_msg_count, held.cached_msg_min_offset) == (1, 2)
                assert held.cached_msg_max_offset == 1 + held.cached_msg_count
                cached = (held.cached_msg_count + held.transaction_msg_count) * len(body)
                assert held.cached_msg_size_in_mi_b == cached >> 20 == 1
                assert held.accumulated_msg_count == total - held.cached_msg_max_offset
                assert (held.locked, held.droped, held.try_unlock_times) == (True, False, 0)
                now_ms = time.time() * 1000
                for moment in (
                    held.last_lock_timestamp,
                    held.last_consume_timestamp,
                    held.last_pull_timestamp,
                ):
                    assert started_ms - 1000 <= moment <= now_ms + 1000
            finally:
                blocked.set()
            await until_count(taken, total)
            idle = (await rig.client.ask(GetConsumerRunningInfo("G", consumer.client_id))).mq_table[queue]
            assert idle.last_consume_timestamp >= held.last_consume_timestamp
            assert idle.accumulated_msg_count == 1  # the end of the queue is one behind its last message


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
