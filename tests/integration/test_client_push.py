"""The push consumer against our own servers: listeners of every kind, filters, retries, and its life."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.consumer.push_consumer import PushConsumer as BlockingPushConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.errors import AlreadyStarted, BrokerError, ClientClosed, RemotingError, SettingsError
from skylark.protocol.bodies import ConsumerRunningInfo, MessageQueue
from skylark.protocol.codes import RequestCode
from skylark.protocol.requests.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from skylark.settings import DELAY_LEVELS
from skylark.settings.client import ClientSettings, ConsumeFrom, PushConsumerSettings
from tests.support.consumer import (
    bodies,
    consumer_rig,
    eventually,
    fast,
    until_count,
    until_owned,
    until_retrying,
    watch_calls,
)

Messages = Sequence[ReceivedMessage]
DEFAULTS = PushConsumerSettings()


def numbered(count: int) -> list[bytes]:
    return [b"%04d" % number for number in range(count)]


# --- Listeners ---


class Printing(MessageListenerConcurrently):
    """Collects the bodies of messages."""

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
        with pytest.raises(SettingsError, match="MessageListenerOrderly or MessageListenerConcurrently"):
            consumer.listen("not a listener")  # type: ignore[type-var]
        with pytest.raises(SettingsError, match="messageListener is null: topic T"):
            await consumer.start()
        consumer.listen(Printing())
        consumer.subscribe("U", "*", InOrder())
        with pytest.raises(SettingsError, match="either orderly or concurrent"):
            await consumer.start()


async def test_sf_002_a_consumer_in_the_style_of_java_receives_each_message_once(tmp_path: Path) -> None:
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
            deadline = time.monotonic() + 60
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


async def test_sf_003_a_new_group_of_an_aged_topic(tmp_path: Path) -> None:
    """The first messages of the queue are deleted: the last offset is its end, the first one its minimum."""
    files = {"commit_log_file_bytes": 32 << 10, "consume_queue_file_bytes": 20 * 30}
    async with consumer_rig(tmp_path, store=files) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(300))
        store = rig.broker.store
        await asyncio.to_thread(store.housekeeper._delete_log_file, next(iter(store.log.files.starts)))
        await asyncio.to_thread(store.housekeeper.clean_derived)
        minimum = store.min_offset("T", 0)
        assert 0 < minimum < 300
        late: list[ReceivedMessage] = []
        early: list[ReceivedMessage] = []
        async with (
            rig.consumer("Late", "T", late.extend, consume_from=ConsumeFrom.LAST_OFFSET) as consumer,
            rig.consumer("Early", "T", early.extend, consume_from=ConsumeFrom.FIRST_OFFSET),
        ):
            await until_owned(consumer, "T", count=1)
            await until_count(early, 300 - minimum)
            await rig.send("T", b"new")
            await until_count(late, 1)
        assert [message.queue_offset for message in late] == [300]
        assert min(message.queue_offset for message in early) == minimum


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


async def test_an_sql_expression_chooses_messages(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path, sql_filters=True) as rig:
        await rig.topic("T", 1)
        for number in range(10):
            await rig.send("T", b"%d" % number, queue_id=0, properties={"a": str(number)})
        got: list[ReceivedMessage] = []
        consumer = rig.consumer("G")
        consumer.subscribe("T", listener=got.extend, sql="a is not null and a between 3 and 7")
        async with consumer:
            await until_count(got, 5)
        assert bodies(got) == [b"3", b"4", b"5", b"6", b"7"]


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
        together = threading.Barrier(20, timeout=60)
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


async def test_sf_030_sf_038_only_the_rest_of_a_batch_comes_again(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(10))
        batches: list[tuple[int, list[tuple[str, int, bytes]]]] = []
        counted = asyncio.Event()

        async def listener(messages: Messages, context: ConsumeContext) -> None:
            batches.append((len(messages), [(m.topic, m.reconsume_times, m.body) for m in messages]))
            if len(messages) == 10:
                context.ack_index = 4
            else:
                await counted.wait()

        async with rig.consumer("G", "T", listener, batch_max=10) as consumer:
            await eventually(lambda: sum(size for size, _ in batches[1:]) == 5)
            assert batches[0][0] == 10
            again = [message for _, messages in batches[1:] for message in messages]
            assert again == [("T", 1, body) for body in numbered(10)[5:]]
            status = consumer.running_info().status_table["T"]
            assert status.consume_failed_msgs == 5
            assert status.consume_ok_tps == pytest.approx(status.consume_failed_tps)
            counted.set()
            await rig.until_committed("G", "T", 10)


async def test_sf_030_later_sends_back_the_whole_batch(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        again: list[bytes] = []

        class Later(MessageListenerConcurrently):
            def consume_message(
                self, messages: Messages, context: ConsumeContext
            ) -> ConsumeConcurrentlyStatus:
                if not messages[0].reconsume_times:
                    context.ack_index = 4  # counts for a success only
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER
                again.extend(message.body for message in messages)
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer = rig.consumer("G", "T", batch_max=10)
        consumer.subscribe("T", "*", Later())
        async with consumer:
            await until_retrying(consumer)
            sent_back = watch_calls(consumer, RequestCode.CONSUMER_SEND_MSG_BACK)
            consumer.suspend()
            await asyncio.sleep(0.1)
            await rig.send("T", *numbered(10))  # one pull gets them all
            consumer.resume()
            await until_count(again, 10)
            assert sorted(again) == numbered(10)
            assert len(sent_back) == 10
            assert consumer.running_info().status_table["T"].consume_failed_msgs == 10


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


async def test_sf_111_running_info_tells_rates_and_queues(tmp_path: Path) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 2)
        blocked = threading.Event()

        def listener(messages: Messages) -> ConsumeResult | None:
            if messages[0].body.startswith(b"wait"):
                blocked.wait(60)
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
                # Threads come one after the other while messages wait.
                await eventually(
                    lambda: int(consumer.running_info().properties["PROP_THREADPOOL_CORE_SIZE"]) >= 3
                )
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
                assert properties["consumeTimeout"] == "15"  # minutes, as RocketMQ's tools expect
                assert properties["PROP_NAMESERVER_ADDR"] == f"{rig.name_server.address};"
                assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
                assert int(properties["PROP_THREADPOOL_CORE_SIZE"]) >= 3
                assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
                assert {data.topic for data in found.subscription_set} == {"T", "%RETRY%G"}
                assert found.jstack is not None
                assert "consume-G" in found.jstack
            finally:
                blocked.set()


async def test_sf_037_rates_are_near_those_that_were_driven(tmp_path: Path) -> None:
    """Two of three succeed at once; the third fails, and succeeds when it comes again."""
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        begun: list[float] = []
        counts = {"ok": 0, "failed": 0}

        async def listener(messages: Messages) -> ConsumeResult:
            begun.append(time.monotonic())
            is_bad = messages[0].body == b"bad" and not messages[0].reconsume_times
            counts["failed" if is_bad else "ok"] += 1
            return ConsumeResult.LATER if is_bad else ConsumeResult.SUCCESS

        async with rig.consumer("G", "T", listener) as consumer:
            await until_retrying(consumer)
            for _ in range(60):
                await rig.send("T", b"good", b"bad", b"good")
                await asyncio.sleep(0.02)
            await eventually(lambda: counts == {"ok": 180, "failed": 60})
            info = await rig.client.ask(GetConsumerRunningInfo("G", consumer.client_id))
            took_s = time.monotonic() - begun[0]
            status = info.status_table["T"]
            assert status.consume_ok_tps == pytest.approx(180 / took_s, rel=0.3)
            assert status.consume_failed_tps == pytest.approx(60 / took_s, rel=0.3)
            assert status.consume_failed_msgs == 60


async def test_sf_039_messages_finished_behind_an_unfinished_one_come_again(
    tmp_path: Path,
) -> None:
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.send("T", *numbered(6))
        await rig.commit("G", "T", 2)
        release = threading.Event()
        seen: list[int] = []

        def listener(messages: Messages) -> None:
            if messages[0].queue_offset == 2:
                release.wait(60)
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


async def test_sf_046_the_order_of_a_stop(tmp_path: Path) -> None:
    """Listeners first, then progress, then the brokers are told, then the queues are dropped."""
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        consumer = rig.consumer("G", "T", print)
        await consumer.start()
        await until_owned(consumer, "T", count=1)
        parts = consumer._runtime
        assert parts is not None
        calls: list[str] = []

        def traced(owner: object, name: str) -> None:
            original = getattr(owner, name)

            def wrapped(*arguments: Any) -> Any:
                calls.append(name)
                return original(*arguments)

            setattr(owner, name, wrapped)

        for owner, name in (
            (parts.queues, "release_all"), (parts.session, "leave"), (parts.offsets, "persist_all"),
            (parts.consumption.threads, "stop"), (parts.fetch_loop, "stop"),
        ):  # fmt: skip
            traced(owner, name)
        await consumer.stop()
        assert calls == ["stop", "stop", "persist_all", "leave", "release_all"]


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

        async with asyncio.timeout(60):
            await consumer.run()
        assert stopped.is_set() or await asyncio.wait_for(stopped.wait(), 60)

        def program() -> None:
            blocking = BlockingPushConsumer("G2", namesrv=rig.name_server.address, settings=fast())

            @blocking.subscribe("T")
            def stop(messages: Messages) -> None:
                blocking.stop()

            blocking.run()

        async with asyncio.timeout(60):
            await asyncio.to_thread(program)
        await rig.until_committed("G2", "T", 1)


async def test_sf_112_suspend_and_resume(tmp_path: Path) -> None:
    """Short holds: without the pause a pull would follow the other. The pause is checked every second."""
    assert DEFAULTS.paused_delay_ms == 1000
    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        got: list[ReceivedMessage] = []
        async with rig.consumer("G", "T", got.extend, hold_ms=20, paused_delay_ms=1000) as consumer:
            await until_owned(consumer, "T", count=1)
            pulls = watch_calls(consumer, RequestCode.PULL_MESSAGE)
            resumed_after: list[float] = []
            while len(resumed_after) < 3 and min(resumed_after, default=9.0) >= 1.5:  # a machine may pause
                await until_count(pulls, len(pulls) + 3)
                consumer.suspend()
                count, known = len(pulls), len(got)
                await asyncio.sleep(0.3)  # the pull under way comes to its end
                await eventually(lambda: rig.broker.long_polling.count == 0)
                await rig.send("T", b"x")
                await asyncio.sleep(1.2)  # at least one check
                assert (len(pulls), len(got)) == (count, known)
                resumed = time.monotonic()
                consumer.resume()
                await until_count(got, known + 1)
                resumed_after.append(pulls[count].at - resumed)
            assert min(resumed_after) < 1.5
        count = len(pulls)
        with pytest.raises(ClientClosed):
            consumer.resume()  # it is not RUNNING
        await asyncio.sleep(0.1)
        assert len(pulls) == count


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
    consumer = AsyncPushConsumer(
        "G", namesrv="127.0.0.1:1", settings=fast(), client=ClientSettings(connect_timeout_ms=500)
    )
    consumer.subscribe("T", "*", print)
    with pytest.raises(RemotingError, match=r"127\.0\.0\.1:1"):
        await consumer.start()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")


@pytest.mark.parametrize(("asked", "least", "most"), [(32, 1, 32), (400, 33, 400)])
async def test_our_brokers_give_as_many_in_a_pull_as_are_asked_for(
    tmp_path: Path, asked: int, least: int, most: int
) -> None:
    assert DEFAULTS.pull_batch_max == 32
    sizes: list[int] = []
    got: list[bytes] = []

    async def listener(messages: Messages) -> None:
        sizes.append(len(messages))
        got.extend(message.body for message in messages)

    async with consumer_rig(tmp_path) as rig:
        await rig.topic("T", 1)
        await rig.fill("T", 0, *numbered(1000))
        async with rig.consumer("G", "T", listener, pull_batch_max=asked, batch_max=1024):
            await until_count(got, 1000)
            await rig.until_committed("G", "T", 1000)
    assert got == numbered(1000)
    assert least <= max(sizes) <= most
