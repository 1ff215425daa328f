"""The push consumer against a broker that does as the test says: where queues begin, members, giving back."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.broker_requests import read_reset_body
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import MessageQueue, QueueOffsets, decode_body, encode_body
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import NotifyConsumerIdsChanged
from skylark.protocol.requests.offset import ResetConsumerClientOffset
from skylark.settings.client import ClientSettings, ConsumeFrom, PushConsumerSettings
from tests.support.consumer import (
    FAST_CLIENT,
    consumer_of,
    eventually,
    fast,
    pulls,
    until_count,
    until_owned,
    watch_calls,
)
from tests.support.fake_broker import BROKER, fake_broker, pull_reply
from tests.unit.client.messages import record

Messages = Sequence[ReceivedMessage]
DEFAULTS = PushConsumerSettings()
QUEUE = MessageQueue("T", BROKER, 0)
PULL = RequestCode.PULL_MESSAGE


# --- Where a queue begins ---


async def test_sf_003_a_new_group_at_the_end_of_an_aged_topic() -> None:
    async with fake_broker() as fake:
        await fake.put("T", *map(record, range(30)))
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend, consume_from=ConsumeFrom.LAST_OFFSET):
            await eventually(lambda: pulls(fake))
            assert pulls(fake)[0].fields["queueOffset"] == "30"
            await fake.put("T", record(30))
            await eventually(lambda: got)
        assert [message.queue_offset for message in got] == [30]


async def test_a_new_group_at_a_time() -> None:
    async with fake_broker() as fake:
        fake.answers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda command: command.reply(
            fields={"offset": "17"}
        )
        begin: dict[str, Any] = {"consume_from": ConsumeFrom.TIMESTAMP, "consume_timestamp": "20260102030405"}
        async with consumer_of(fake, print, **begin):
            await eventually(lambda: pulls(fake))
        [question] = fake.asked_for(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        moment = time.mktime(time.strptime("20260102030405", "%Y%m%d%H%M%S"))
        assert question.fields["timestamp"] == str(round(moment * 1000))
        assert question.fields["boundaryType"] == "LOWER"
        assert pulls(fake)[0].fields["queueOffset"] == "17"


async def test_sf_103_a_queue_waits_until_its_offset_is_known() -> None:
    async with fake_broker() as fake:
        broken = True

        def answer(command: RemotingCommand) -> RemotingCommand:
            if broken:
                return command.reply(ResponseCode.SYSTEM_ERROR, "not today")
            return fake._query_consumer_offset(command)

        fake.answers[RequestCode.QUERY_CONSUMER_OFFSET] = answer
        async with consumer_of(fake, print) as consumer:
            await eventually(lambda: len(fake.asked_for(RequestCode.QUERY_CONSUMER_OFFSET)) >= 3)
            assert consumer.queues() == []
            assert pulls(fake) == []
            broken = False
            await until_owned(consumer, "T", count=1)


# --- Members ---


async def test_sf_013_the_order_of_the_member_list_does_not_matter() -> None:
    async with fake_broker(queues={"T": 7}) as fake:
        one, two = (consumer_of(fake, print), consumer_of(fake, print))
        async with one, two:
            turn = 0

            def shuffled(command: RemotingCommand) -> RemotingCommand:
                nonlocal turn
                turn += 1
                fake.members.sort(reverse=bool(turn % 2))
                return fake._get_consumer_list_by_group(command)

            fake.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = shuffled

            def complete() -> bool:
                queues = [q.queue_id for c in (one, two) for q in c.queues()]
                return sorted(queues) == list(range(7)) and len(one.queues()) in (3, 4)

            await eventually(complete)
            turns = turn
            await eventually(lambda: turn > turns + 6)
            assert complete()


async def test_a_member_list_that_is_missing_leaves_things_as_they_are() -> None:
    async with fake_broker(queues={"T": 2}) as fake:
        async with consumer_of(fake, print) as consumer:
            await until_owned(consumer, "T", count=2)
            code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
            fake.answers[code] = lambda command: command.reply(ResponseCode.SYSTEM_ERROR, "no consumer")
            count = len(fake.asked_for(code))
            await eventually(lambda: len(fake.asked_for(code)) > count + 3)
            assert len(consumer.queues()) == 2


async def test_sf_104_rounds_at_the_same_time_take_a_queue_once() -> None:
    async with fake_broker(queues={"T": 4}) as fake:
        taken: list[MessageQueue] = []
        consumer = consumer_of(fake, print)
        await consumer.start()
        assert consumer._runtime is not None
        rebalancer, begin = consumer._runtime.rebalancer, consumer._runtime.fetch_loop.begin

        def counting(request: Any) -> None:
            taken.append(request.queue)
            begin(request)

        consumer._runtime.fetch_loop.begin = counting  # type: ignore[method-assign]
        await asyncio.gather(*(rebalancer.rebalance() for _ in range(5)))
        assert len(consumer._runtime.fetch_loop.requests) == 4
        assert len(taken) == len(set(taken))
        await consumer.stop()


async def test_a_notice_of_the_broker_is_a_round_at_once() -> None:
    async with fake_broker() as fake:
        async with consumer_of(fake, print, rebalance_interval_ms=60_000) as consumer:
            await until_owned(consumer, "T", count=1)
            assert consumer._runtime is not None
            fake.queues["%RETRY%G"] = 1
            await eventually(lambda: len(consumer.queues()) == 2)
            rounds = consumer._runtime.rebalancer.rounds
            for peer in fake.peers:
                peer.notify(NotifyConsumerIdsChanged("G"))
            await eventually(
                lambda: consumer._runtime is not None and consumer._runtime.rebalancer.rounds > rounds
            )


async def test_sf_105_rebalancing_only_hands_requests_over() -> None:
    async with fake_broker(queues={"T": 4}) as fake:
        async with consumer_of(fake, print, first_pull_delay_ms=1000) as consumer:
            assert consumer._runtime is not None
            await consumer._runtime.rebalancer.rebalance()
            assert len(consumer._runtime.fetch_loop.requests) == 4
            assert pulls(fake) == []
            await eventually(lambda: len(pulls(fake)) == 4)
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert sum(name.startswith("pull MessageQueue") for name in names) == 4


async def test_sf_105_under_load_only_the_tasks_of_queues_pull() -> None:
    async def answer(command: RemotingCommand) -> RemotingCommand:
        offset = int(command.fields["queueOffset"])
        return pull_reply(command, ResponseCode.SUCCESS, offset + 1, [record(offset)])

    async with fake_broker(queues={"T": 4, "%RETRY%G": 1}) as fake:
        fake.answers[PULL] = answer
        async with consumer_of(fake, lambda messages: None, pull_interval_ms=1) as consumer:
            calls = watch_calls(consumer, PULL)
            rebalancer = consumer._running().rebalancer
            for count in (1, 4, 2, 4):  # queues go and come
                fake.queues["T"] = count
                await until_owned(consumer, "T", count=count)
                rounds, asked = rebalancer.rounds, len(calls)
                await eventually(lambda: rebalancer.rounds > rounds + 1 and len(calls) > asked + 50)  # noqa: B023
    for call in calls:
        queue = MessageQueue(call.request.topic, BROKER, call.request.queue_id)
        assert call.task == f"pull {queue}"


async def test_sf_109_a_stop_ends_every_loop_and_refuses_new_ones(caplog: pytest.LogCaptureFixture) -> None:
    before = asyncio.all_tasks()
    async with fake_broker(queues={"T": 4}) as fake:
        paused = consumer_of(fake, print, paused_delay_ms=20)
        async with paused:
            await until_owned(paused, "T", count=4)
            paused.suspend()  # its requests now come back again and again after a delay
            await asyncio.sleep(0.05)
            assert paused._runtime is not None
            loop = paused._runtime.fetch_loop
            [request, *_] = loop.requests
        assert loop.requests == []
        count = len(fake.asked)
        request.process_queue = ProcessQueue(
            request.queue, now=time.monotonic()
        )  # nobody has dropped this one
        loop.begin(request)
        assert f"queue is not pulled because the consumer has stopped queue={request.queue}" in caplog.text
        assert loop.requests == []
        await asyncio.sleep(0.1)
        assert len(fake.asked) == count
        ours = {task for task in asyncio.all_tasks() - before if "skylark/client" in repr(task)}
        assert ours == set()


async def test_sf_113_a_topic_that_is_no_longer_subscribed_waits_and_goes() -> None:
    async with fake_broker(queues={"T": 1, "U": 1}) as fake:
        consumer = consumer_of(fake, print, hold_ms=20, rebalance_gap_ms=200)
        consumer.subscribe("U", "*", print)
        async with consumer:
            await until_owned(consumer, "T", "U")
            await eventually(lambda: pulls(fake))
            consumer.unsubscribe("T")
            await asyncio.sleep(0.05)
            count = len(pulls(fake))
            await until_owned(consumer, "T", count=0)
            assert len(pulls(fake)) == count
            await eventually(lambda: b'"topic":"T"' not in bytes(fake.asked_for(34)[-1].body))


# --- Giving back ---


async def test_sf_032_what_brokers_do_not_take_back_is_tried_here(caplog: pytest.LogCaptureFixture) -> None:
    assert DEFAULTS.local_retry_ms == 5000
    times: list[tuple[float, int]] = []
    committed: list[int] = []

    def listener(messages: Messages) -> None:
        times.append((time.monotonic(), messages[0].reconsume_times))
        committed.append(fake.offsets.get(("G", "T", 0), 0))
        if len(times) < 3:
            raise ValueError("again")

    async with fake_broker() as fake:
        refuse: Callable[[RemotingCommand], RemotingCommand] = lambda command: command.reply(1, "no")  # noqa: E731
        fake.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = refuse
        fake.answers[RequestCode.SEND_MESSAGE_V2] = refuse
        await fake.put("T", record(0))
        async with consumer_of(fake, listener, local_retry_ms=50):
            await eventually(lambda: len(times) == 3)
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 1)
        assert committed == [0, 0, 0]
        assert [number for _, number in times] == [0, 1, 2]
        assert times[1][0] - times[0][0] >= 0.05
        assert len(fake.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2


async def test_a_message_that_its_broker_refuses_goes_to_the_retry_topic() -> None:
    async with fake_broker(queues={"T": 1, "%RETRY%G": 1}) as fake:
        fake.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply(1, "no")

        def stored(command: RemotingCommand) -> RemotingCommand:
            return command.reply(fields={"msgId": "M", "queueId": "0", "queueOffset": "0"})

        fake.answers[RequestCode.SEND_MESSAGE_V2] = stored
        properties = {"UNIQ_KEY": "U", "KEYS": "k", "TRAN_MSG": "true"}
        await fake.put("T", record(0, b"body", properties, reconsume_times=2))

        def listener(messages: Messages) -> None:
            raise ValueError("again")

        async with consumer_of(fake, listener):
            await eventually(lambda: fake.asked_for(RequestCode.SEND_MESSAGE_V2))
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 1)
        [sent] = fake.asked_for(RequestCode.SEND_MESSAGE_V2)
        fields = sent.fields
        assert (fields["a"], fields["b"], fields["j"], fields["l"]) == (
            "CLIENT_INNER_PRODUCER",
            "%RETRY%G",
            "3",
            "16",
        )
        told = dict(piece.split("\x01") for piece in fields["i"].split("\x02") if piece)
        assert told == {
            "UNIQ_KEY": "U", "KEYS": "k", "ORIGIN_MESSAGE_ID": "U", "RETRY_TOPIC": "T", "DELAY": "5",
        }  # fmt: skip
        assert bytes(sent.body) == b"body"


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_for_the_retry_topic_names_its_topic_with_the_namespace(orderly: bool) -> None:
    async with fake_broker(queues={"ns%T": 1, "%RETRY%ns%G": 1}) as fake:
        fake.answers[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: command.reply(1, "no")
        await fake.put("ns%T", record(0, topic="ns%T", reconsume_times=1))
        topics: set[str] = set()

        def listener(messages: Messages) -> None:
            topics.update(message.topic for message in messages)
            raise ValueError("again")

        client = {"namespace": "ns"}
        async with consumer_of(fake, listener, client=client, orderly=orderly, reconsume_times_max=1):
            await eventually(lambda: fake.asked_for(RequestCode.SEND_MESSAGE_V2))
        sent = fake.asked_for(RequestCode.SEND_MESSAGE_V2)[0].fields
        assert sent["b"] == "%RETRY%ns%G"
        assert "RETRY_TOPIC\x01ns%T\x02" in sent["i"]
        assert topics == {"T"}


async def test_messages_that_take_too_long_are_given_back() -> None:
    assert DEFAULTS.consume_timeout_ms == 15 * 60_000
    async with fake_broker() as fake:
        release = threading.Event()
        await fake.put("T", record(0), record(1), record(2))

        def listener(messages: Messages) -> None:
            if messages[0].queue_offset == 0:
                release.wait(60)

        async with consumer_of(fake, listener, consume_timeout_ms=100) as consumer:
            await eventually(lambda: fake.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK))
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 3)
            [back] = fake.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert (back.fields["delayLevel"], back.fields["offset"]) == ("3", "0")
            release.set()
            await eventually(lambda: consumer.running_info().status_table["T"].consume_ok_tps > 0)
        assert len(fake.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


async def test_a_listener_chooses_the_delay() -> None:
    async with fake_broker() as fake:
        await fake.put("T", record(0), record(1))

        def listener(messages: Messages, context: Any) -> None:
            context.delay_level = 5 if messages[0].queue_offset == 0 else -1
            raise ValueError("later")

        async with consumer_of(fake, listener):
            await eventually(lambda: len(fake.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2)
        levels = {c.fields["offset"]: c.fields["delayLevel"] for c in fake.asked_for(36)}
        assert levels == {"0": "5", "1000": "-1"}


# --- Remote control, connections ---


async def test_a_broker_resets_the_offset() -> None:
    assert DEFAULTS.reset_wait_ms == 10_000
    async with fake_broker() as fake:
        await fake.put("T", *map(record, range(10)))
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend) as consumer:
            await eventually(lambda: len(got) == 10)
            body = encode_body(QueueOffsets({QUEUE: 4, MessageQueue("T", BROKER, 9): 1}))
            request = ResetConsumerClientOffset("T", "G", 0, is_force=True, body=body)
            fake.peers[0].notify(request)
            await eventually(lambda: len(got) == 16)
            await until_owned(consumer, "T", count=1)
        assert [message.queue_offset for message in got] == [*range(10), *range(4, 10)]


async def test_resets_that_two_brokers_ask_for_at_the_same_time_are_both_done() -> None:
    async with fake_broker(queues={"T": 2}) as fake:
        queues = [MessageQueue("T", BROKER, number) for number in range(2)]
        for queue in queues:
            await fake.put("T", *map(record, range(3)), queue_id=queue.queue_id)
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend, reset_wait_ms=200) as consumer:
            await eventually(lambda: len(got) == 6)
            first = asyncio.create_task(consumer.reset_offsets("T", {queues[0]: 0}))
            await eventually(lambda: queues[0] not in consumer.queues())
            await consumer.reset_offsets("T", {queues[1]: 0})
            await first
            await eventually(lambda: len(got) == 12, timeout_s=20)


async def test_a_reset_does_not_resume_who_was_suspended() -> None:
    async with fake_broker() as fake:
        await fake.put("T", record(0))
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend) as consumer:
            await eventually(lambda: len(got) == 1)
            consumer.suspend()
            await consumer.reset_offsets("T", {QUEUE: 0})
            assert consumer._running().fetch_loop.paused
            consumer.resume()
            await eventually(lambda: len(got) == 2)


async def test_a_lost_connection_is_made_again() -> None:
    async with fake_broker() as fake:
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend):
            await eventually(lambda: pulls(fake))
            for number in range(3):
                for peer in list(fake.peers):
                    peer.abort()
                await fake.put("T", record(number))
                await until_count(got, number + 1)
        heartbeats = fake.asked_for(RequestCode.HEART_BEAT)
        assert len(heartbeats) > 3  # the new connections were introduced


async def test_a_broker_that_is_away_does_not_keep_the_others_offsets_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_broker(queues={"T": 3}) as fake:
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend) as consumer:
            await until_owned(consumer, "T", count=3)
            assert consumer._runtime is not None
            store, table = consumer._runtime.offsets, consumer._runtime.offsets.table
            away = [MessageQueue("T", "away", number) for number in range(50)]
            for queue in (*away, QUEUE):
                table.update(queue, 7, increase_only=False)
            caplog.clear()
            await store.persist_all([*away, QUEUE])
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 7)
            told = [text for text in caplog.messages if "offsets not persisted" in text]
            assert len(told) == 1
            assert "queues=50" in told[0]


async def test_a_bad_body_fails_its_message_alone() -> None:
    async with fake_broker() as fake:
        good, bad = record(0, b"good"), bytearray(record(1, b"bad body"))
        at = bad.index(b"bad body")
        bad[at : at + 3] = b"BAD"
        await fake.put("T", good, bytes(bad), record(2, b"no zlib", sys_flag=1), record(3, b"fine"))
        seen: list[bytes] = []

        def listener(messages: Messages) -> None:
            seen.append(messages[0].body)

        async with consumer_of(fake, listener):
            await eventually(lambda: len(fake.asked_for(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2)
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 4)
        assert sorted(seen) == [b"fine", b"good"]


async def test_the_clock_may_jump(tmp_path: Path) -> None:
    """Durations are monotonic: a wall clock set back or forth changes neither pulls nor rounds."""

    class Jumping:
        now = 1_700_000_000_000

        def now_ms(self) -> int:
            self.now += 86_400_000 if self.now % 2 else -86_400_001
            return self.now

        def monotonic(self) -> float:
            return time.monotonic()

    async with fake_broker(queues={"T": 2}) as fake:
        got: list[ReceivedMessage] = []
        consumer = AsyncPushConsumer(
            "G", namesrv=fake.address, settings=fast(), client=ClientSettings(**FAST_CLIENT), clock=Jumping()
        )
        consumer.subscribe("T", "*", got.extend)
        async with consumer:
            await fake.put("T", record(0))
            await eventually(lambda: got)
            assert consumer._runtime is not None
            rounds = consumer._runtime.rebalancer.rounds
            await eventually(
                lambda: consumer._runtime is not None and consumer._runtime.rebalancer.rounds > rounds + 2
            )


def test_a_reset_body_in_all_its_forms() -> None:
    queue = MessageQueue("T", "b", 1)
    forms = [
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}',
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":5}}',
        b'{"offsetTable":[[{"brokerName":"b","queueId":1,"topic":"T"},5]]}',
        b'{"offsetTable":[{"brokerName":"b","queueId":1,"topic":"T","offset":5}]}',
    ]
    for form in forms:
        assert read_reset_body(form) == {queue: 5}
    assert decode_body(forms[0], QueueOffsets).offset_table == {queue: 5}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
