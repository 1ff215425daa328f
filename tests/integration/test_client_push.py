"""The push consumer against our own servers: what is consumed, by whom, from where, and how far it counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.client.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from skylark.client.offset_store import BrokerOffsetStore
from skylark.client.offset_table import OffsetTable
from skylark.client.push_consumer import PushConsumer
from skylark.client.received import ReceivedMessage
from skylark.client.sync_push import PushConsumer as BlockingPushConsumer
from skylark.errors import AlreadyStarted, BrokerError, ClientClosed, RemotingError, SettingsError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.heartbeat import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.protocol.requests.offset import InvokeBrokerToGetConsumerStatus
from skylark.protocol.stats_bodies import ConsumerRunningInfo
from skylark.settings import DELAY_LEVELS
from skylark.settings.client import ClientSettings
from skylark.settings.consumer import ConsumeFrom, MessageModel, PushConsumerSettings
from tests.support.broker import BrokerClient, running_broker
from tests.support.consumer import (
    ConsumerRig,
    bodies,
    consumer_rig,
    eventually,
    fast,
    until_count,
    until_owned,
    until_retrying,
    until_shared,
)

Messages = Sequence[ReceivedMessage]
DEFAULTS = PushConsumerSettings()


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


# --- Listeners ---


class Printing(MessageListenerConcurrently):
    """The article's listener."""

    def __init__(self) -> None:
        self.printed: list[bytes] = []

    def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeConcurrentlyStatus:
        self.printed += [message.body for message in messages]
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class InOrder(MessageListenerOrderly):
    def consume_message(self, messages: Messages, context: ConsumeContext) -> ConsumeOrderlyStatus:
        return ConsumeOrderlyStatus.SUCCESS


async def test_sf_001_the_listener_s_kind_decides_how_to_consume(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T")
        for group, listener, orderly in (("G1", Printing(), "false"), ("G2", InOrder(), "true")):
            consumer = rig.consumer(group, "T")
            consumer.listen(listener)
            async with consumer:
                await until_owned(consumer, "T", count=4)
                request = GetConsumerRunningInfo(group, consumer.client_id)
                info = await rig.client.ask(request)
                assert info.properties["PROP_CONSUMEORDERLY"] == orderly
        consumer = rig.consumer("G3", "T")
        with pytest.raises(SettingsError, match="MessageListenerOrderly or a MessageListenerConcurrently"):
            consumer.listen("not a listener")  # type: ignore[type-var]
        with pytest.raises(SettingsError, match="messageListener is null: topic T"):
            await consumer.start()
        consumer.listen(Printing())
        consumer.subscribe("U", "*", InOrder())
        with pytest.raises(SettingsError, match="either orderly or concurrent"):
            await consumer.start()


async def test_sf_002_the_article_s_program_line_by_line(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("TopicTest")
        await rig.send("TopicTest", *numbered(10))
        await rig.send("TopicTest", *numbered(10), properties={"TAGS": "other"})

        def program() -> list[bytes]:
            consumer = BlockingPushConsumer(
                "please_rename_unique_group_name",
                namesrv=rig.name_server.address,
                settings=fast(consume_from=ConsumeFrom.FIRST_OFFSET),
            )
            consumer.subscribe("TopicTest", "*")
            listener = Printing()
            consumer.listen(listener)
            consumer.start()
            deadline = time.monotonic() + 20
            while len(listener.printed) < 20 and time.monotonic() < deadline:
                time.sleep(0.005)
            consumer.stop()
            return listener.printed

        printed = await asyncio.to_thread(program)
        assert sorted(printed) == sorted(numbered(10) * 2)


async def test_sf_003_a_new_group_may_begin_at_the_start(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T")
        await rig.send("T", *numbered(100))
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, consume_from=ConsumeFrom.FIRST_OFFSET):
            await eventually(lambda: len(got) == 100)
        assert bodies(got) == numbered(100)
        assert DEFAULTS.consume_from is ConsumeFrom.LAST_OFFSET


async def test_going_back_to_a_time(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend) as consumer:
            await rig.send("T", *numbered(5))
            await eventually(lambda: len(got) == 5)
            await asyncio.sleep(0.01)
            moment = round(time.time() * 1000)
            await asyncio.sleep(0.01)
            await rig.send("T", *numbered(3))
            await eventually(lambda: len(got) == 8)
            await consumer.reset_to_time(moment)
            await eventually(lambda: len(got) == 11)
            await rig.until_committed("G", "T", 8)
        assert [message.queue_offset for message in got] == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7]


# --- Assignment ---


async def test_sf_007_one_request_circulates_for_each_queue(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        consumer = rig.consumer("G", "T", print)
        async with consumer:
            assert consumer._parts is not None
            pulls = consumer._parts.pulls
            assert pulls.requests == []
            await until_owned(consumer, "T", count=4)
            await until_retrying(consumer)
            assert len(pulls.requests) == 5
            requests = {request.process_queue: request for request in pulls.requests}
            for queue, process_queue in consumer._parts.assignment.process_queues.items():
                request = requests[process_queue]
                assert (request.group, request.queue, request.next_offset) == ("G", queue, 0)


async def test_sf_008_members_and_queues_change(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        one, two = rig.consumer("G", "T", print), rig.consumer("G", "T", print)
        async with one:
            await until_owned(one, "T", count=4)
            async with two:
                await until_owned(one, "T", count=2)
                await until_owned(two, "T", count=2)
                await rig.topic("T", 8)
                await until_owned(one, "T", count=4)
                await until_owned(two, "T", count=4)
                mine = {queue for queue in one.queues() if queue.topic == "T"}
                theirs = {queue for queue in two.queues() if queue.topic == "T"}
                assert not mine & theirs
                assert {queue.queue_id for queue in mine | theirs} == set(range(8))
            await until_owned(one, "T", count=8)


async def test_sf_010_surplus_members_stay_idle(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        got: dict[int, list[ReceivedMessage]] = {number: [] for number in range(4)}
        members = [rig.consumer("G", "T", got[number].extend) for number in range(4)]
        for member in members:
            await member.start()

        def settled() -> bool:
            counts = [sum(queue.topic == "T" for queue in member.queues()) for member in members]
            return sorted(counts) == [0, 0, 1, 1]

        await eventually(settled)
        await rig.send("T", *numbered(1000))
        await eventually(lambda: sum(map(len, got.values())) >= 1000)
        assert settled()
        assert sorted(bool(messages) for messages in got.values()) == [False, False, True, True]
        for member in members:
            await member.stop()


async def test_sf_011_rounds_at_the_start_and_then_at_intervals(tmp_path: Path) -> None:
    assert (DEFAULTS.rebalance_interval_ms, DEFAULTS.rebalance_gap_ms) == (20_000, 1000)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G", "T", print, client={"heartbeat_interval_ms": 30_000})
        async with consumer:
            assert consumer._parts is not None
            assignment = consumer._parts.assignment
            await until_owned(consumer, "T", count=1)
            await until_retrying(consumer)
            rounds, started = assignment.rounds, time.monotonic()
            await eventually(lambda: assignment.rounds >= rounds + 3)
            assert time.monotonic() - started > 0.3  # three rounds of 200 ms, the first one begun


async def test_sf_012_031_089_broadcasting(tmp_path: Path) -> None:
    assert DEFAULTS.model is MessageModel.CLUSTERING
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 8)
        got: list[tuple[int, ReceivedMessage]] = []

        def listener(number: int) -> Any:
            def listen(messages: Messages) -> ConsumeResult:
                got.extend((number, message) for message in messages)
                return ConsumeResult.LATER

            return listen

        members = [
            rig.consumer(
                "G", "T", listener(number), model=MessageModel.BROADCASTING, offset_directory=tmp_path,
                client={"instance_name": f"member{number}"},
            )
            for number in range(3)
        ]  # fmt: skip
        for member in members:
            await member.start()
            await until_owned(member, "T", count=8)
        await rig.send("T", *numbered(100))
        await eventually(lambda: len(got) == 300)
        assert Counter(number for number, _ in got) == {0: 100, 1: 100, 2: 100}
        files = {member.client_id: tmp_path / member.client_id / "G" / "offsets.json" for member in members}
        for member in members:
            await member.stop()
        for path in files.values():
            text = path.read_text()
            assert '{"brokerName":"broker-a","queueId":0,"topic":"T"}:13' in text
        assert rig.broker.topics.get("%RETRY%G") is None or rig.broker.store.max_offset("%RETRY%G", 0) == 0


async def test_broadcasting_goes_on_where_its_file_says(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        broadcast: dict[str, Any] = {"model": MessageModel.BROADCASTING, "offset_directory": tmp_path}
        for start in (0, 50):
            await rig.send("T", *numbered(50))
            got: list[ReceivedMessage] = []
            async with rig.consumer("G", "T", got.extend, **broadcast) as consumer:
                await until_count(got, 50)
                assert consumer.client_id.endswith("@DEFAULT")
            assert [message.queue_offset for message in got] == list(range(start, start + 50))


async def test_sf_014_055_every_client_has_an_id_of_its_own(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        async with rig.consumer("G", "T", print) as one, rig.consumer("G", "T", print) as two:
            assert one.client_id != two.client_id
            for consumer in (one, two):
                assert re.fullmatch(r"[\d.]+@\d+#\d+", consumer.client_id)


async def test_sf_086_members_are_asked_of_any_broker(tmp_path: Path) -> None:
    """Both brokers know all members; with one of them gone rebalancing goes on."""
    async with consumer_rig(tmp_path) as rig, contextlib.AsyncExitStack() as stack:
        await rig.topic("T", 2)
        other = await stack.enter_async_context(
            running_broker(tmp_path / "second", name_servers=rig.name_server.address, name="broker-b")
        )
        async with BrokerClient(other.address) as client:
            await ConsumerRig(rig.name_server, other, client).topic("T", 2)
        async with rig.consumer("G", "T", print) as one, rig.consumer("G", "T", print) as two:
            await until_owned(one, "T", count=2)
            await until_owned(two, "T", count=2)

            def members(broker: Broker) -> list[str]:
                return sorted(client.client_id for client in broker.consumers.clients("G"))

            expected = sorted([one.client_id, two.client_id])
            await eventually(lambda: members(rig.broker) == members(other) == expected)
            await stack.aclose()
            async with rig.consumer("G", "T", print) as three:

                def owners() -> Counter[int]:
                    held = [queue for member in (one, two, three) for queue in member.queues()]
                    return Counter(q.queue_id for q in held if (q.topic, q.broker_name) == ("T", "broker-a"))

                await eventually(lambda: owners() == {0: 1, 1: 1} and members(rig.broker) != expected)


async def test_sf_087_091_three_queues_of_two_members(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 3)
        async with rig.consumer("G", "T", print) as one, rig.consumer("G", "T", print) as two:
            first, second = sorted((one, two), key=lambda consumer: consumer.client_id)
            await until_owned(first, "T", count=2)
            await until_owned(second, "T", count=1)
            await rig.topic("T", 4)
            await until_owned(second, "T", count=2)
            await until_owned(first, "T", count=2)


async def test_sf_088_each_group_gets_everything_once(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        got: dict[tuple[str, int], list[ReceivedMessage]] = {}
        members = []
        for group in ("G1", "G2"):
            for number in range(2):
                messages = got[group, number] = []
                members.append(rig.consumer(group, "T", messages.extend))
        for member in members:
            await member.start()
        for member in members:
            await until_owned(member, "T", count=2)
        await rig.send("T", *numbered(1000))
        for group in ("G1", "G2"):
            await eventually(lambda: len(got[group, 0]) + len(got[group, 1]) >= 1000)  # noqa: B023
            assert bodies(got[group, 0] + got[group, 1]) == numbered(1000)
        for member in members:
            await member.stop()


async def test_sf_097_a_topic_without_route_does_not_disturb_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("Good", 1)
        got: list[ReceivedMessage] = []
        consumer = rig.consumer("G", "Good", got.extend)
        consumer.subscribe("Unheard", "*", print)
        async with consumer:
            await rig.send("Good", b"x")
            await eventually(lambda: got)
            assert "topic is subscribed but does not exist topic=Unheard" in caplog.text
            warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert not [record for record in warned if "%RETRY%G" in record.getMessage()]
            await rig.topic("Unheard", 2)  # and it is consumed as soon as it exists
            await until_owned(consumer, "Unheard", count=2)


async def test_sf_098_a_strategy_that_raises_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = False

    def strategy(me: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if broken:
            raise ZeroDivisionError("no members today")
        return list(queues)

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, strategy=strategy) as consumer:
            await until_owned(consumer, "T", count=2)
            broken = True
            await eventually(lambda: "no members today" in caplog.text)
            await rig.send("T", *numbered(10))
            await eventually(lambda: len(got) == 10)
            assert len([queue for queue in consumer.queues() if queue.topic == "T"]) == 2


async def test_sf_099_a_queue_listener_hears_of_every_change(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        heard: list[tuple[str, int, int]] = []
        consumer = rig.consumer("G", "T", print)

        @consumer.on_queues_changed
        def listener(topic: str, every: Sequence[MessageQueue], mine: Sequence[MessageQueue]) -> None:
            heard.append((topic, len(every), len(mine)))
            raise RuntimeError("a listener that raises disturbs nothing")

        async with consumer:
            await eventually(lambda: ("T", 4, 4) in heard)
            await until_retrying(consumer)
            async with rig.consumer("G", "T", print):
                await eventually(lambda: ("T", 4, 2) in heard)
                assert consumer._parts is not None
                rounds = consumer._parts.assignment.rounds
                await eventually(
                    lambda: consumer._parts is not None and consumer._parts.assignment.rounds > rounds + 2
                )
                assert heard.count(("T", 4, 2)) == heard.count(("T", 4, 4)) == 1


async def test_sf_096_quiet_rounds_replace_nothing(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 8)
        members = [rig.consumer("G", "T", print) for _ in range(4)]
        for member in members:
            await member.start()
        await until_shared(members, "T", 8)
        parts = [member._parts for member in members]
        before = [dict(part.assignment.process_queues) for part in parts if part]
        rounds = [part.assignment.rounds for part in parts if part]
        for part, count in zip(parts, rounds, strict=True):
            assert part is not None
            assignment = part.assignment
            await eventually(lambda: assignment.rounds >= count + 2)  # noqa: B023
        for part, held in zip(parts, before, strict=True):
            assert part is not None
            now = part.assignment.process_queues
            assert all(now[queue] is held[queue] for queue in held if queue.topic == "T")
        for member in members:
            await member.stop()


async def test_sf_101_a_queue_that_is_not_pulled_is_taken_anew(tmp_path: Path) -> None:
    assert DEFAULTS.pull_idle_max_ms == 120_000
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend) as consumer:
            await until_owned(consumer, "T", count=1)
            assert consumer._parts is not None
            held = consumer._parts.assignment.process_queues
            queue = MessageQueue("T", "broker-a", 0)
            before = held[queue]
            consumer._parts.pulls.end(before)  # its pulling has died, and nobody knows
            before.last_pull_at -= 121
            await eventually(lambda: held.get(queue) not in (None, before))
            assert before.dropped
            await rig.send("T", b"x")
            await eventually(lambda: got)


# --- Filtering ---


async def test_sf_022_tags_with_the_same_hash_are_told_apart(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        for tags in ("Aa", "BB", "Aa", "CC"):
            await rig.send("T", tags.encode(), properties={"TAGS": tags})
        await rig.send("T", b"none")
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, "Aa || DD", hold_ms=150):
            await eventually(lambda: len(got) == 2)
            await rig.until_committed("G", "T", 5)
        assert bodies(got) == [b"Aa", b"Aa"]


async def test_sf_127_129_what_does_not_match_is_no_lag(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(200), properties={"TAGS": "other"})
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, "mine", hold_ms=150):
            await rig.until_committed("G", "T", 200)
        assert got == []


async def test_an_sql_expression_that_the_broker_refuses_ends_the_start(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G")
        consumer.subscribe("T", listener=print, sql="a = = 1")
        with pytest.raises(BrokerError):
            await consumer.start()
        with pytest.raises(AlreadyStarted, match="START_FAILED"):
            await consumer.start()
        assert rig.broker.consumers.clients("G") == []


# --- Consuming ---


async def test_sf_023_listeners_run_beside_each_other(tmp_path: Path) -> None:
    assert DEFAULTS.threads_max == 20
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        await rig.send("T", *numbered(20))
        together = threading.Barrier(20, timeout=20)
        done: list[ReceivedMessage] = []

        def listener(messages: Messages) -> None:
            together.wait()  # passes only if twenty calls run at once
            done.extend(messages)

        async with rig.consumer("G", "T", listener):
            await eventually(lambda: len(done) == 20)


async def test_sf_023_coroutines_run_beside_each_other(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 4)
        await rig.send("T", *numbered(25))
        running = most = 0
        done: list[ReceivedMessage] = []
        release = asyncio.Event()

        async def listener(messages: Messages) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 20:
                release.set()
            await release.wait()
            running -= 1
            done.extend(messages)

        async with rig.consumer("G", "T", listener):
            await eventually(lambda: len(done) == 25)
        assert most == 20


async def test_sf_026_035_a_failed_message_comes_again_until_it_succeeds(tmp_path: Path) -> None:
    assert DELAY_LEVELS.split()[2:5] == ["10s", "30s", "1m"]
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        deliveries: list[tuple[bytes, str, int]] = []

        def listener(messages: Messages) -> None:
            [message] = messages
            deliveries.append((message.body, message.topic, message.reconsume_times))
            if message.reconsume_times < 3:
                raise ValueError("not yet")

        async with rig.consumer("G", "T", listener) as consumer:
            await until_retrying(consumer)
            await rig.send("T", b"x")
            await eventually(lambda: len(deliveries) == 4)
            await rig.until_committed("G", "T", 1)  # SF-033: failures, too, leave the queue
        assert deliveries == [(b"x", "T", times) for times in range(4)]
        # One each waited in the queues of levels 3, 4 and 5.
        waited = [rig.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", level - 1) for level in range(1, 7)]
        assert waited == [0, 0, 1, 1, 1, 0]


async def test_sf_026_036_none_from_a_java_shaped_listener_is_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(MessageListenerConcurrently):
        def consume_message(self, messages: Messages, context: ConsumeContext) -> Any:
            times.append(messages[0].reconsume_times)
            return None if len(times) < 4 else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    times: list[int] = []
    assert [status.name for status in ConsumeConcurrentlyStatus] == ["CONSUME_SUCCESS", "RECONSUME_LATER"]
    assert {status.name for status in ConsumeOrderlyStatus} == {
        "SUCCESS", "SUSPEND_CURRENT_QUEUE_A_MOMENT", "COMMIT", "ROLLBACK",
    }  # fmt: skip
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G", "T")
        consumer.listen(Forgetful())
        async with consumer:
            await until_retrying(consumer)
            await rig.send("T", b"x")
            await eventually(lambda: len(times) == 4)
        assert times == [0, 1, 2, 3]
        warnings = [text for text in caplog.messages if "returned None" in text]
        assert len(warnings) == 1
        assert "Forgetful.consume_message" in warnings[0]


async def test_after_the_last_attempt_it_is_a_dead_letter(tmp_path: Path) -> None:
    assert DEFAULTS.attempts_max == 16
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        times: list[int] = []

        def listener(messages: Messages) -> ConsumeResult:
            times.append(messages[0].reconsume_times)
            return ConsumeResult.LATER

        async with rig.consumer("G", "T", listener, reconsume_times_max=2) as consumer:
            await until_retrying(consumer)
            await rig.send("T", b"bad")
            await eventually(lambda: rig.broker.store.max_offset("%DLQ%G", 0) == 1)
        assert times == [0, 1, 2]


async def test_sf_027_the_list_of_messages_cannot_be_changed(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        seen: list[Messages] = []
        async with rig.consumer("G", "T", seen.append, batch_max=8):
            await rig.send("T", *numbered(3))
            await eventually(lambda: sum(map(len, seen)) == 3)
            with pytest.raises(AttributeError):
                seen[0].clear()  # type: ignore[attr-defined]
            with pytest.raises(TypeError):
                seen[0][0].properties["x"] = "y"  # type: ignore[index]
            await rig.until_committed("G", "T", 3)


async def test_sf_030_038_only_the_rest_of_a_batch_comes_again(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(10))
        batches: list[tuple[int, list[tuple[str, int, bytes]]]] = []

        def listener(messages: Messages, context: ConsumeContext) -> None:
            batches.append((len(messages), [(m.topic, m.reconsume_times, m.body) for m in messages]))
            if len(messages) == 10:
                context.ack_index = 4

        async with rig.consumer("G", "T", listener, batch_max=10) as consumer:
            await eventually(lambda: sum(size for size, _ in batches[1:]) == 5)
            assert batches[0][0] == 10
            again = [message for _, messages in batches[1:] for message in messages]
            assert again == [("T", 1, body) for body in numbered(10)[5:]]
            status = consumer.running_info().status_table["T"]
            assert status.consume_failed_msgs == 5
            await rig.until_committed("G", "T", 10)


async def test_messages_done_before_an_exception_do_not_come_again(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(10))
        seen: list[tuple[bytes, int]] = []

        async def listener(messages: Messages, context: ConsumeContext) -> None:
            for number, message in enumerate(messages):
                if message.body == b"0007" and not message.reconsume_times:
                    raise RuntimeError("the eighth")
                seen.append((message.body, message.reconsume_times))
                context.done = number + 1

        async with rig.consumer("G", "T", listener, batch_max=10):
            await eventually(lambda: len(seen) == 10)
        assert sorted(seen) == [(body, int(number >= 7)) for number, body in enumerate(numbered(10))]


async def test_sf_037_111_running_info_tells_rates_and_queues(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        blocked = threading.Event()

        def listener(messages: Messages) -> ConsumeResult | None:
            if messages[0].body.startswith(b"wait"):
                blocked.wait(20)
            return ConsumeResult.LATER if messages[0].body == b"bad" else None

        async with rig.consumer("G", "T", listener) as consumer:
            await until_retrying(consumer)
            await rig.send("T", *[b"good"] * 30, queue_id=0)
            await rig.send("T", b"wait 1", b"wait 2", b"wait 3", queue_id=1)
            await rig.until_committed("G", "T", 30)
            try:

                async def info() -> ConsumerRunningInfo:
                    return await rig.client.ask(GetConsumerRunningInfo("G", consumer.client_id, True))

                first, second = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
                await eventually(lambda: len(consumer.running_info().mq_table) == 3)
                found = await info()
                assert found.mq_table[first].commit_offset == 30
                held = found.mq_table[second]
                assert (held.cached_msg_count, held.cached_msg_min_offset, held.cached_msg_max_offset) == (
                    3,
                    0,
                    2,
                )
                assert (held.droped, held.locked) == (False, False)
                assert abs(held.last_pull_timestamp - time.time() * 1000) < 60_000
                assert found.status_table["T"].consume_ok_tps > 0
                assert found.status_table["T"].pull_tps > 0
                properties = found.properties
                assert properties["consumeThreadMin"] == properties["consumeThreadMax"] == "20"
                assert properties["PROP_NAMESERVER_ADDR"] == f"{rig.name_server.address};"
                assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
                assert int(properties["PROP_THREADPOOL_CORE_SIZE"]) >= 3
                assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
                assert {data.topic for data in found.subscription_set} == {"T", "%RETRY%G"}
                assert found.jstack is not None
                assert "consume-G" in found.jstack
            finally:
                blocked.set()


async def test_sf_040_a_killed_consumer_s_finished_messages_come_again(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(6))
        await rig.commit("G", "T", 2)
        release = threading.Event()
        seen: list[int] = []

        def listener(messages: Messages) -> None:
            if messages[0].queue_offset == 2:
                release.wait(20)
            else:
                seen.append(messages[0].queue_offset)

        consumer = rig.consumer("G", "T", listener, stop_wait_ms=1)
        async with consumer:
            await eventually(lambda: sorted(seen) == [3, 4, 5])
            await asyncio.sleep(0.1)  # two persists
            assert await rig.committed("G", "T") == 2
        release.set()
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend):
            await eventually(lambda: len(got) == 4)
        assert [message.queue_offset for message in got] == [2, 3, 4, 5]


# --- Offsets ---


async def test_sf_041_084_an_offset_store_of_one_s_own(tmp_path: Path) -> None:
    class Mine:
        """Keeps offsets in a dictionary."""

        def __init__(self) -> None:
            self.table = OffsetTable()
            self.loaded = 0
            self.kept: dict[MessageQueue, int] = {}

        async def load(self) -> None:
            self.loaded += 1

        async def read(self, queue: MessageQueue) -> int | None:
            assert self.loaded
            return self.kept.get(queue)

        async def persist(self, queue: MessageQueue) -> None:
            queue_offset = self.table.get(queue)
            if queue_offset is not None:
                self.kept[queue] = queue_offset

        async def persist_all(self, queues: Any) -> None:
            self.kept |= self.table.keep(queues)

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(5))
        mine = Mine()
        for count in (5, 10):
            got: list[ReceivedMessage] = []
            async with rig.consumer("G", "T", got.extend, offset_store=mine):
                await until_count(got, 5)
            assert mine.kept[MessageQueue("T", "broker-a", 0)] == count
            await rig.send("T", *numbered(5))
        consumer = rig.consumer("G2", "T", print)
        async with consumer:
            assert consumer._parts is not None
            assert isinstance(consumer._parts.offsets, BrokerOffsetStore)


async def test_sf_043_the_table_in_memory_is_told(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, offset_persist_interval_ms=60_000) as consumer:
            await rig.send("T", *numbered(7))
            await eventually(lambda: len(got) == 7)
            queue = MessageQueue("T", "broker-a", 0)

            async def told() -> bool:
                status = await rig.client.ask(InvokeBrokerToGetConsumerStatus("T", "G", ""))
                return status.consumer_table.get(consumer.client_id) == {queue: 7}

            await eventually(told)


async def test_sf_045_094_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(50))
        slow: dict[str, Any] = {"offset_persist_interval_ms": 60_000, "offset_persist_first_ms": 60_000}
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, **slow):
            await eventually(lambda: len(got) == 50)
        assert await rig.committed("G", "T") == 50
        await rig.send("T", b"fifty-first")
        got.clear()
        async with rig.consumer("G", "T", got.extend, **slow):
            await eventually(lambda: got)
        assert bodies(got) == [b"fifty-first"]


async def test_sf_047_033_progress_is_kept_regularly(tmp_path: Path) -> None:
    assert (DEFAULTS.offset_persist_interval_ms, DEFAULTS.offset_persist_first_ms) == (5000, 10_000)
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        # Long polls carry the offset along; with a hold longer than the test only the timer does it.
        async with rig.consumer("G", "T", lambda messages: None):
            await rig.send("T", b"x")
            await rig.until_committed("G", "T", 1)
            await rig.send("T", b"x")
            await rig.until_committed("G", "T", 2)


async def test_sf_044_100_015_a_queue_that_moves_takes_its_offset_along(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        await rig.send("T", *numbered(20))
        slow: dict[str, Any] = {"offset_persist_interval_ms": 60_000, "offset_persist_first_ms": 60_000}
        first: list[ReceivedMessage] = []
        second: list[ReceivedMessage] = []
        one = rig.consumer("G", "T", first.extend, **slow)
        async with one:
            await eventually(lambda: len(first) == 20)
            two = rig.consumer("G", "T", second.extend, **slow)
            async with two:
                await until_owned(two, "T", count=1)
                await until_owned(one, "T", count=1)
                [moved] = [queue for queue in two.queues() if queue.topic == "T"]
                await rig.until_committed("G", "T", 10, moved.queue_id)
                assert one._parts is not None
                assert one._parts.offsets.table.get(moved) is None
                await rig.send("T", b"new", queue_id=moved.queue_id)
                await eventually(lambda: b"new" in bodies(second))
                # What the new owner has seen twice it took before the old one had let go.
                assert {message.queue for message in second} == {moved}


async def test_sf_015_025_028_results_for_a_lost_queue_do_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        release = threading.Event()
        first: list[ReceivedMessage] = []

        def slow(messages: Messages) -> None:
            first.extend(messages)
            release.wait(20)

        second: list[ReceivedMessage] = []
        one = rig.consumer("G", "T", slow, threads_max=1)
        two = rig.consumer("G", "T", second.extend)
        async with one:
            await until_owned(one, "T", count=2)
            await rig.send("T", *numbered(6))
            await eventually(lambda: first)
            async with two:
                await until_owned(one, "T", count=1)
                await until_owned(two, "T", count=1)
                [moved] = [queue for queue in two.queues() if queue.topic == "T"]
                await eventually(lambda: len(second) == 3)
                release.set()
                await eventually(lambda: len(first) == (4 if first[0].queue == moved else 3))
                if first[0].queue == moved:
                    await eventually(lambda: "given up meanwhile" in caplog.text)
        assert sorted(m.queue_offset for m in second) == [0, 1, 2]
        # Those of the lost queue that waited behind the slow call were never shown to the first listener.
        assert [m.queue_offset for m in first if m.queue == moved] in ([], [0])


# --- Life ---


async def test_sf_046_stopping(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G", "T", print)
        with pytest.raises(ClientClosed):
            consumer.suspend()
        await consumer.stop()
        await consumer.start()
        await until_owned(consumer, "T", count=1)
        with pytest.raises(AlreadyStarted, match="RUNNING"):
            await consumer.start()
        await consumer.stop()
        await consumer.stop()
        assert rig.broker.consumers.clients("G") == []
        with pytest.raises(AlreadyStarted, match="SHUTDOWN_ALREADY"):
            await consumer.start()
        with pytest.raises(ClientClosed):
            consumer.queues()


async def test_a_stop_lets_listeners_finish(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(3))
        begun, done = threading.Event(), []

        def listener(messages: Messages) -> None:
            begun.set()
            time.sleep(0.3)
            done.append(messages[0].queue_offset)

        consumer = rig.consumer("G", "T", listener, threads_max=1)
        await consumer.start()
        await eventually(begun.is_set)
        await consumer.stop()
        assert done == [0]
        assert await rig.committed("G", "T") == 1


async def test_a_listener_may_stop_its_consumer(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", b"stop")
        consumer = rig.consumer("G")
        stopped = asyncio.Event()

        @consumer.subscribe("T")
        async def listener(messages: Messages) -> None:
            await consumer.stop()
            stopped.set()

        await consumer.start()
        async with asyncio.timeout(10):
            await stopped.wait()

        def program() -> None:
            blocking = BlockingPushConsumer("G2", namesrv=rig.name_server.address, settings=fast())

            @blocking.subscribe("T")
            def stop(messages: Messages) -> None:
                blocking.stop()

            blocking.run()

        async with asyncio.timeout(10):
            await asyncio.to_thread(program)
        await rig.until_committed("G2", "T", 1)


async def test_sf_112_suspend_and_resume(tmp_path: Path) -> None:
    assert DEFAULTS.paused_delay_ms == 1000
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, hold_ms=20) as consumer:
            await until_owned(consumer, "T", count=1)
            consumer.suspend()
            await asyncio.sleep(0.1)
            await rig.send("T", b"x")
            await asyncio.sleep(0.1)
            assert got == []
            consumer.resume()
            await eventually(lambda: got)


async def test_subscribing_and_unsubscribing_while_running(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.topic("U", 2)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend) as consumer:
            await until_owned(consumer, "T")

            @consumer.subscribe("U", "a || b")
            def of_u(messages: Messages) -> None:
                got.extend(messages)

            await until_owned(consumer, "U", count=2)
            await rig.send("U", b"u", properties={"TAGS": "b"})
            await eventually(lambda: got)
            consumer.unsubscribe("T")
            await until_owned(consumer, "T", count=0)
            with pytest.raises(SettingsError):
                consumer.subscribe("bad topic!")
        assert bodies(got) == [b"u"]


async def test_a_namespace_is_on_the_wire_only(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("n%T", 1)
        await rig.send("n%T", b"x")
        seen: list[tuple[str, int]] = []

        def listener(messages: Messages) -> None:
            seen.extend((message.topic, message.reconsume_times) for message in messages)
            if not messages[0].reconsume_times:
                raise ValueError("once more")

        async with rig.consumer("G", "T", listener, client={"namespace": "n"}) as consumer:
            assert consumer.group == "n%G"
            await eventually(lambda: len(seen) == 2)
            await rig.until_committed("n%G", "n%T", 1)
        assert seen == [("T", 0), ("T", 1)]


async def test_middlewares_are_around_every_call(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        events: list[str] = []
        consumer = rig.consumer("G", "T", lambda messages: events.append("listener"))

        def layer(name: str) -> Any:
            def middleware(handle: Any) -> Any:
                def around(messages: Messages, context: ConsumeContext) -> Any:
                    events.append(f"{name} before {context.queue.topic}")
                    try:
                        return handle(messages, context)
                    finally:
                        events.append(f"{name} after")

                return around

            return middleware

        consumer.use(layer("outer"))
        consumer.use(layer("inner"))
        async with consumer:
            await rig.send("T", b"x")
            await eventually(lambda: len(events) == 5)
        assert events == ["outer before T", "inner before T", "listener", "inner after", "outer after"]


async def test_consuming_directly_on_a_tool_s_behalf(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []

        def listener(messages: Messages) -> None:
            got.extend(messages)
            if messages[0].body == b"bad":
                raise RuntimeError("cannot")

        async with rig.consumer("G", "T", listener, consume_from=ConsumeFrom.LAST_OFFSET) as consumer:
            await until_owned(consumer, "T", count=1)
            for body, result, remark in (
                (b"good", "CR_SUCCESS", None),
                (b"bad", "CR_THROW_EXCEPTION", "cannot"),
            ):
                sent = await rig.client.send("T", body, 0, properties={"UNIQ_KEY": body.decode()})
                await eventually(lambda: [m for m in got if m.body == body])  # noqa: B023
                count = len(got)
                answer = await rig.client.ask(
                    ConsumeMessageDirectly("G", consumer.client_id, sent.msg_id, topic="T")
                )
                assert answer.consume_result == result
                assert remark is None or remark in (answer.remark or "")
                assert len([m for m in got[count:] if m.message_id == body.decode()]) >= 1


async def test_no_name_server_is_an_error_at_the_start(tmp_path: Path) -> None:
    consumer = PushConsumer(
        "G", namesrv="127.0.0.1:1", settings=fast(), client=ClientSettings(connect_timeout_ms=500)
    )
    consumer.subscribe("T", "*", print)
    with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1"):
        await consumer.start()


async def test_a_hundred_topics_in_one_consumer(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        topics = [f"T{number:03}" for number in range(100)]
        for topic in topics:
            await rig.topic(topic, 1)
            await rig.send(topic, topic.encode())
        got: list[ReceivedMessage] = []
        consumer = rig.consumer("G")
        consumer.listen(got.extend)
        for topic in topics:
            consumer.subscribe(topic)
        async with consumer:
            await eventually(lambda: len(got) == 100, timeout_s=60)
        assert bodies(got) == [topic.encode() for topic in topics]


async def test_twenty_four_consumers_of_twenty_four_queues(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 24)
        got: list[ReceivedMessage] = []
        members = [rig.consumer("G", "T", got.extend) for _ in range(24)]
        await asyncio.gather(*(member.start() for member in members))
        for member in members:
            await until_owned(member, "T", count=1)
        await rig.send("T", *numbered(240))
        await eventually(lambda: len(got) >= 240)
        assert bodies(got) == numbered(240)
        await asyncio.gather(*(member.stop() for member in members))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
