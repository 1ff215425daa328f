"""The pulls of a push consumer from a broker that does as the test says: what it asks, what answers mean."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from skylark.client.consumer.pull_policy import PullStatus
from skylark.client.received_message import ReceivedMessage
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.settings.client import PushConsumerSettings
from tests.support.consumer import (
    consumer_of,
    eventually,
    pulls,
    until_count,
    until_owned,
)
from tests.support.fake_broker import BROKER, fake_broker, pull_reply
from tests.unit.client.messages import record
from tests.unit.protocol.golden_frames import captured

Messages = Sequence[ReceivedMessage]
DEFAULTS = PushConsumerSettings()
QUEUE = MessageQueue("T", BROKER, 0)
PULL = RequestCode.PULL_MESSAGE


# --- What is asked ---


async def test_sf_004_sf_116_the_fields_of_a_pull_are_java_s() -> None:
    """Golden: the same names as in captured pulls of a push consumer, and the values that the row names."""
    assert (DEFAULTS.pull_batch_max, DEFAULTS.hold_ms, DEFAULTS.pull_timeout_ms) == (32, 15_000, 30_000)
    async with fake_broker() as fake:
        async with consumer_of(fake, print):
            await eventually(lambda: pulls(fake))
        [golden, *_] = [frame for frame in captured("push-concurrent") if frame.code == PULL]
        fields = pulls(fake)[0].fields
        assert fields.keys() == golden.header["extFields"].keys()
        same = ("maxMsgNums", "maxMsgBytes", "suspendTimeoutMillis", "expressionType", "sysFlag", "bname")
        assert {name: fields[name] for name in same} == {
            name: golden.header["extFields"][name] for name in same
        }
        assert (fields["consumerGroup"], fields["topic"], fields["queueId"]) == ("G", "T", "0")
        assert not any(command.is_oneway for command in pulls(fake))


@pytest.mark.parametrize(
    ("scenario", "codes"),
    [
        ("push-concurrent", {14, 15, 34, 35, 38}),
        ("push-orderly", {14, 15, 34, 35, 38, 41, 42}),
        ("retry-dlq", {36}),
    ],
)
async def test_requests_have_java_s_fields(scenario: str, codes: set[int]) -> None:
    def listener(messages: Messages) -> None:
        if scenario == "retry-dlq":
            raise ValueError("back with it")

    async with fake_broker() as fake:
        await fake.put("T", record(0, properties={"UNIQ_KEY": "A" * 32}))
        consumer = consumer_of(fake, listener, orderly=scenario == "push-orderly")
        async with consumer:
            await eventually(lambda: codes - {35, 42} <= {command.code for command in fake.asked})
        for code in codes:
            golden = [
                frame for frame in captured(scenario) if frame.code == code and frame.kind != "response"
            ]
            names = [set(frame.header.get("extFields") or {}) for frame in golden]
            for command in fake.asked_for(code):
                assert set(command.fields) in names, (code, command.fields)
                kinds = {frame.kind for frame in golden}
                assert ("oneway" if command.is_oneway else "request") in kinds


async def test_sf_114_the_commit_flag_follows_the_offset_in_memory() -> None:
    async with fake_broker() as fake:
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend, hold_ms=50):
            await eventually(lambda: pulls(fake))
            first = pulls(fake)[0].fields
            assert (first["sysFlag"], first["commitOffset"]) == ("2", "-1")
            await fake.put("T", *map(record, range(5)))
            await eventually(lambda: pulls(fake)[-1].fields["commitOffset"] == "5")
            assert pulls(fake)[-1].fields["sysFlag"] == "3"


async def test_sf_115_the_subscription_goes_along_when_asked_to() -> None:
    assert DEFAULTS.post_subscription is False
    async with fake_broker() as fake:
        async with consumer_of(fake, print, "a || b", post_subscription=True):
            await eventually(lambda: pulls(fake))
        fields = pulls(fake)[0].fields
        assert (fields["sysFlag"], fields["subscription"], fields["expressionType"]) == ("6", "a || b", "TAG")


async def test_sf_117_a_suggested_slave_is_asked_and_left_again() -> None:
    async with fake_broker() as master, fake_broker() as slave:
        master.replicas = {1: slave.address}
        suggested = 1

        def answer(command: RemotingCommand) -> RemotingCommand:
            offset = int(command.fields["queueOffset"]) + 1
            records = [record(offset - 1)]
            return pull_reply(command, ResponseCode.SUCCESS, offset, records, suggested=suggested)

        master.answers[PULL] = answer
        slave.answers[PULL] = answer
        got: list[ReceivedMessage] = []
        async with consumer_of(master, got.extend, pull_interval_ms=5):
            await eventually(lambda: len(pulls(slave)) > 3)
            assert all(
                command.fields["sysFlag"] == "2" for command in pulls(slave)
            )  # a slave keeps no offsets
            suggested = 0
            count = len(pulls(master))
            await eventually(lambda: len(pulls(master)) > count + 3)
            suggested = 2  # such a replica does not exist: any other does
            count = len(pulls(master))
            await eventually(lambda: len(pulls(master)) > count + 3)
        offsets = [message.queue_offset for message in got]
        assert sorted(offsets) == list(range(len(offsets)))


async def test_sf_117_a_slave_that_dies_is_left_for_the_master_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It stays in the route and is still suggested; a retry after the usual delay would come too late."""

    def answer(command: RemotingCommand) -> RemotingCommand:
        offset = int(command.fields["queueOffset"])
        return pull_reply(command, ResponseCode.SUCCESS, offset + 1, [record(offset)], suggested=1)

    def routes() -> int:
        return sum(command.fields["topic"] == "T" for command in master.asked_for(105))

    got: list[ReceivedMessage] = []
    late: dict[str, Any] = {"pull_failure_delay_ms": 600_000, "rebalance_interval_ms": 600_000}
    quiet = {"route_refresh_interval_ms": 600_000, "heartbeat_interval_ms": 600_000}
    async with fake_broker() as master, contextlib.AsyncExitStack() as slave_s_life:
        slave = await slave_s_life.enter_async_context(fake_broker())
        master.replicas = {1: slave.address}
        master.answers[PULL] = slave.answers[PULL] = answer
        async with consumer_of(master, got.extend, pull_interval_ms=5, client=quiet, **late):
            await eventually(lambda: len(pulls(slave)) > 3)
            at_master, asked = len(pulls(master)), routes()
            await slave_s_life.aclose()
            await eventually(lambda: len(pulls(master)) > at_master + 3, timeout_s=20)
            await eventually(lambda: routes() > asked)
        assert len([text for text in caplog.messages if "replica failed" in text]) == 1
    offsets = sorted(message.queue_offset for message in got)
    assert offsets == list(range(len(offsets)))


async def test_sf_117_a_slave_that_refuses_is_left_for_the_master() -> None:
    async with fake_broker() as master, fake_broker() as slave:
        master.replicas = {1: slave.address}

        def answer(command: RemotingCommand) -> RemotingCommand:
            offset = int(command.fields["queueOffset"])
            return pull_reply(command, ResponseCode.SUCCESS, offset + 1, [record(offset)], suggested=1)

        master.answers[PULL] = answer
        slave.answers[PULL] = lambda command: command.reply(ResponseCode.NO_PERMISSION, "not here")
        async with consumer_of(master, lambda messages: None, pull_failure_delay_ms=600_000):
            await eventually(lambda: len(pulls(master)) > 3, timeout_s=20)
        assert len(pulls(slave)) == 1


# --- What answers mean ---


async def test_sf_006_a_pull_that_ends_empty_is_repeated_at_once() -> None:
    answered, pauses = [time.monotonic()], []

    async def answer(command: RemotingCommand) -> RemotingCommand:
        pauses.append(time.monotonic() - answered[-1])
        reply = await fake._pull_message(command)
        answered.append(time.monotonic())
        return reply

    async with fake_broker() as fake:
        fake.answers[PULL] = answer
        async with consumer_of(fake, print, hold_ms=50):
            await until_count(pauses, 12)
        assert all(command.fields["suspendTimeoutMillis"] == "50" for command in pulls(fake))
    assert sorted(pauses[1:])[5] < 0.1  # the median; the first pause is that of the start


async def test_sf_024_with_a_fast_listener_the_next_pull_leaves_at_once() -> None:
    asked: list[float] = []

    def answer(command: RemotingCommand) -> RemotingCommand:
        asked.append(time.monotonic())
        offset = int(command.fields["queueOffset"])
        return pull_reply(command, ResponseCode.SUCCESS, offset + 1, [record(offset)])

    async def listener(messages: Messages) -> None:
        pass

    async with fake_broker() as fake:
        fake.answers[PULL] = answer
        async with consumer_of(fake, listener):
            await eventually(lambda: len(asked) >= 200)
    # Each from one question to the next, so the way there and back as well; a busy machine delays some.
    waits = sorted(later - earlier for earlier, later in itertools.pairwise(asked))
    assert waits[len(waits) // 2] < 0.010
    assert waits[len(waits) * 9 // 10] < 0.100


async def test_sf_108_every_status_has_its_consequence() -> None:
    """Each status and each kind of error once; then what the next pull asks for, and how soon."""
    assert (DEFAULTS.pull_failure_delay_ms, DEFAULTS.broker_busy_delay_ms) == (1000, 20)
    answers: list[tuple[int, int, list[bytes]]] = [
        (ResponseCode.SUCCESS, 3, [record(0), record(1), record(2)]),
        (ResponseCode.PULL_NOT_FOUND, 7, []),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, 12, []),
        (ResponseCode.FLOW_CONTROL, 0, []),
        (ResponseCode.SUBSCRIPTION_NOT_LATEST, 0, []),
        (ResponseCode.SYSTEM_ERROR, 0, []),
        (ResponseCode.PULL_OFFSET_MOVED, 20, []),
    ]
    asked_at: list[float] = []
    answered_at: list[float] = []

    async def answer(command: RemotingCommand) -> RemotingCommand | None:
        asked_at.append(time.monotonic())
        if len(asked_at) == 2:  # else messages under way would hold the offset back
            await until_count(got, 3)
            await asyncio.sleep(0.05)
        if command.fields["topic"] != "T" or len(asked_at) > len(answers):
            return None
        code, next_offset, records = answers[len(asked_at) - 1]
        answered_at.append(time.monotonic())
        if code in {status.value for status in PullStatus}:
            return pull_reply(command, code, next_offset, records)
        return command.reply(code, "as the test wants")

    got: list[ReceivedMessage] = []
    async with fake_broker() as fake:
        fake.answers[PULL] = answer
        async with consumer_of(fake, got.extend, pull_failure_delay_ms=2000, broker_busy_delay_ms=20):
            await eventually(lambda: len(asked_at) == 6)
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 12)
            await eventually(lambda: len(asked_at) == len(answers) + 1)
            assert fake.offsets["G", "T", 0] == 20
        asked = [int(command.fields["queueOffset"]) for command in pulls(fake)]
        assert asked == [0, 3, 7, 12, 12, 12, 12, 20]
        assert len(got) == 3
    found, none, unmatched, busy, outdated, failed, moved = (
        later - earlier for earlier, later in zip(answered_at, asked_at[1:], strict=True)
    )
    assert max(found, none, unmatched) < 1.5  # at once, on a machine that pauses for a second
    assert 0.02 <= busy < 1.5
    assert min(outdated, failed) >= 2
    assert moved < 15


async def test_sf_130_an_offset_outside_the_queue_is_corrected_within_fifteen_seconds() -> None:
    async with fake_broker(offsets={("G", "T", 0): 1000}) as fake:
        await fake.put("T", *map(record, range(5)))

        def answer(command: RemotingCommand) -> Any:
            end = len(fake.records["T", 0])
            if int(command.fields["queueOffset"]) > end:
                return pull_reply(command, ResponseCode.PULL_OFFSET_MOVED, end, max_offset=end)
            return fake._pull_message(command)

        fake.answers[PULL] = answer
        got: list[ReceivedMessage] = []
        # The next regular round is far away: the correction itself must cause one.
        fake.queues["%RETRY%G"] = 1
        rarely: dict[str, Any] = {"rebalance_interval_ms": 600_000}
        async with consumer_of(fake, got.extend, client={"heartbeat_interval_ms": 600_000}, **rarely):
            await eventually(lambda: fake.offsets["G", "T", 0] == 5, timeout_s=15)
            await fake.put("T", record(5))
            await eventually(lambda: got, timeout_s=15)
        assert [message.queue_offset for message in got] == [5]


async def test_sf_083_a_consumer_that_lags_goes_on_at_the_new_minimum() -> None:
    async with fake_broker(offsets={("G", "T", 0): 2}) as fake:
        await fake.put("T", *map(record, range(20)))

        def answer(command: RemotingCommand) -> Any:
            if int(command.fields["queueOffset"]) < 10:
                return pull_reply(command, ResponseCode.PULL_OFFSET_MOVED, 10, min_offset=10, max_offset=20)
            return fake._pull_message(command)

        fake.answers[PULL] = answer
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend):
            await eventually(lambda: len(got) == 10)
        assert [message.queue_offset for message in got] == list(range(10, 20))


async def test_sf_017_sf_020_a_pull_that_fails_is_repeated_later_and_disturbs_no_other() -> None:
    """A hundred queues need no thread; one gets nonsense, no record, no answer, and a fault of our own."""
    threads, delay_s = set(threading.enumerate()), 0.2
    failed_at: list[float] = []
    asked_at: list[float] = []
    broken = True

    def answer(command: RemotingCommand) -> Any:
        if command.fields["queueId"] != "7":
            return fake._pull_message(command)
        asked_at.append(time.monotonic())
        if len(asked_at) == 1:
            return command.reply(fields={"nonsense": "1"})
        if len(asked_at) == 2:
            return pull_reply(command, ResponseCode.SUCCESS, 9, [b"no record at all, far from it"])
        return fake._pull_message(command) if len(asked_at) > 3 else None  # never answered: a timeout

    async def faulty(address: str, request: Any, **options: Any) -> Any:
        if broken and request.code == PULL and request.queue_id == 7 and len(asked_at) == 3:
            failed_at.append(time.monotonic())
            raise RuntimeError("a fault that is no RocketMQError")
        return await call(address, request, **options)

    got: list[ReceivedMessage] = []

    async def listener(messages: Messages) -> None:
        got.extend(messages)

    limits: dict[str, Any] = {"pull_timeout_ms": 300, "hold_ms": 50, "pull_failure_delay_ms": delay_s * 1000}
    async with fake_broker(queues={"T": 100}) as fake:
        fake.answers[PULL] = answer
        async with consumer_of(fake, listener, **limits) as consumer:
            session = consumer._running().session
            call, session.call = session.call, faulty  # type: ignore[method-assign]
            for queue_id in range(100):
                await fake.put("T", record(0), queue_id=queue_id)
            await until_count(failed_at, 2)
            await until_count(got, 99)
            assert set(threading.enumerate()) <= threads
            broken = False
            await until_count(got, 100)
    assert {message.queue_id for message in got} == set(range(100))
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert min(gaps[:3]) >= delay_s
    assert failed_at[1] - failed_at[0] >= delay_s


async def test_sf_118_a_filter_class_is_pulled_from_a_filter_server(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker() as fake, fake_broker() as filter_server:
        consumer = consumer_of(fake, print, post_subscription=True)
        got: list[ReceivedMessage] = []
        consumer.subscribe("T", listener=got.extend, filter_class="com.example.Filter")
        async with consumer:
            await eventually(lambda: f"broker at {fake.address} has no filter server" in caplog.text)
            assert pulls(fake) == []
            heartbeat = bytes(fake.asked_for(RequestCode.HEART_BEAT)[0].body)
            assert b'"classFilterMode":true' in heartbeat
            assert b'"subString":"com.example.Filter"' in heartbeat
            fake.filter_servers = {fake.address: [filter_server.address]}
            await filter_server.put("T", record(0, properties={"TAGS": "whatever"}))
            await until_count(got, 1)
        assert pulls(fake) == []
        fields = pulls(filter_server)[0].fields
        assert fields["sysFlag"] == "10"  # class filter, suspend; the subscription is not sent along
        assert "subscription" not in fields


async def test_sf_128_an_interval_between_pulls() -> None:
    assert DEFAULTS.pull_interval_ms == 0
    times: list[float] = []

    def answer(command: RemotingCommand) -> RemotingCommand:
        times.append(time.monotonic())
        offset = int(command.fields["queueOffset"])
        return pull_reply(command, ResponseCode.SUCCESS, offset + 1, [record(offset)])

    async with fake_broker() as fake:
        fake.answers[PULL] = answer
        async with consumer_of(fake, lambda messages: None, pull_interval_ms=50):
            await eventually(lambda: len(times) >= 5)
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 0.05


async def test_sf_129_a_found_answer_without_matches_goes_on_at_once() -> None:
    async with fake_broker() as fake:
        await fake.put("T", *(record(n, properties={"TAGS": "BB"}) for n in range(100)))
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend, "Aa", hold_ms=30):
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == 100)
        assert got == []


async def test_sf_127_a_found_answer_that_is_empty_after_filtering_is_followed_at_once() -> None:
    """The interval between pulls is for those that brought messages. Each answer takes 30 ms."""
    total, answered, pauses = 100, list[float](), list[float]()

    async def answer(command: RemotingCommand) -> RemotingCommand:
        if answered:
            pauses.append(time.monotonic() - answered[-1])
        if int(command.fields["queueOffset"]) < total:
            await asyncio.sleep(0.03)
        reply = await fake._pull_message(command)
        answered.append(time.monotonic())
        return reply

    async with fake_broker() as fake:
        fake.answers[PULL] = answer
        await fake.put("T", *(record(n, properties={"TAGS": "BB"}) for n in range(total)))
        got: list[ReceivedMessage] = []
        async with consumer_of(fake, got.extend, "Aa", hold_ms=200, pull_interval_ms=60_000) as consumer:
            await eventually(lambda: fake.offsets.get(("G", "T", 0)) == total)
            status = consumer.running_info().status_table["T"]
        assert [int(command.fields["queueOffset"]) for command in pulls(fake)][:5] == [0, 32, 64, 96, 100]
    assert got == []
    assert max(pauses[:4]) < 5
    assert 30 <= status.pull_rt < 5000
    assert status.pull_tps == 0


# --- Flow control ---


async def endless(command: RemotingCommand) -> RemotingCommand:
    offset = int(command.fields["queueOffset"])
    return pull_reply(
        command, ResponseCode.SUCCESS, offset + 10, [record(offset + n, bytes(200_000)) for n in range(10)]
    )


@pytest.mark.parametrize(
    ("limit", "reason", "messages"),
    [
        ({"queue_messages_max": 55}, "too many messages", 60),
        ({"queue_mib_max": 1}, "too many bytes", 20),
        ({"span_max": 32}, "too far behind", 40),
    ],
    ids=["count", "size", "span"],
)
async def test_sf_019_each_threshold_pauses_pulling(
    limit: dict[str, Any], reason: str, messages: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert DEFAULTS.flow_control_delay_ms == 50
    release = threading.Event()

    def listener(received: Messages) -> None:
        release.wait(60)

    async with fake_broker() as fake:
        fake.answers[PULL] = endless
        async with consumer_of(fake, listener, threads_max=2, flow_control_delay_ms=20, **limit) as consumer:
            await eventually(lambda: reason in caplog.text)
            assert consumer._runtime is not None
            [held] = consumer._runtime.queues.process_queues.values()
            assert held.message_count == messages
            [request] = consumer._runtime.fetch_loop.requests
            waits, count = request.waits, len(pulls(fake))
            await eventually(lambda: request.waits > waits + 3)
            assert len(pulls(fake)) == count
            release.set()
            await eventually(lambda: len(pulls(fake)) > count + 5)
    told = [text for text in caplog.messages if "queue is not pulled because" in text]
    assert len(told) <= 1 + request.waits // 1000


async def test_sf_107_every_thousandth_wait_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    async with fake_broker() as fake:
        fake.answers[PULL] = endless
        limits: dict[str, Any] = {"threads_max": 1, "flow_control_delay_ms": 1, "queue_messages_max": 5}
        async with consumer_of(fake, lambda messages: release.wait(60), **limits) as consumer:
            await until_owned(consumer, "T", count=1)
            [request] = consumer._running().fetch_loop.requests
            await eventually(lambda: request.waits > 2002)
            release.set()
    told = [text.partition("waits=")[2] for text in caplog.messages if "queue is not pulled because" in text]
    assert told[:3] == ["1", "1001", "2001"]


async def test_sf_018_the_request_of_a_dropped_queue_disappears_without_traffic() -> None:
    async with fake_broker() as fake:
        release = threading.Event()
        fake.answers[PULL] = endless
        async with consumer_of(
            fake, lambda messages: release.wait(60), queue_messages_max=5, threads_max=1
        ) as consumer:
            await eventually(lambda: len(pulls(fake)) == 1)
            runtime = consumer._running()
            runtime.rebalancer.paused = True  # else the queue is taken anew
            [held] = runtime.queues.process_queues.values()
            [request] = runtime.fetch_loop.requests
            waits = request.waits
            await eventually(lambda: request.waits > waits + 1)  # it is pending, and comes back for room
            held.dropped = True
            release.set()
            await eventually(lambda: not runtime.fetch_loop.requests)
            await asyncio.sleep(0.1)
            assert len(pulls(fake)) == 1
            runtime.rebalancer.paused = False
            await eventually(lambda: len(pulls(fake)) > 1)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "skylark.client")
