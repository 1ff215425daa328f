"""What a producer does when things go wrong, pile up or end; and that what goes in comes out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark import aio
from skylark.client.producer.batches import split_into_batches
from skylark.client.producer.producer import Producer
from skylark.client.producer.queue_selectors import by_hash, by_random
from skylark.client.producer.send_hooks import SendContext, SendHook
from skylark.client.producer.send_receipt import SendReceipt
from skylark.errors import (
    BadMessage,
    BrokerError,
    BrokerSystemError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    MessageTooLarge,
    SendFailed,
    SendUnknown,
)
from skylark.model.body import plain_body
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.connection import Connection
from skylark.settings.client import ClientSettings, Compression, ProducerSettings
from tests.support.broker import offset_id, running_cluster, until
from tests.support.client_rig import QUICK, Cluster, cluster
from tests.support.raw_server import raw_server

TOPIC = "orders"
SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
IMPATIENT = replace(QUICK, request_timeout_ms=2000, stop_timeout_ms=300)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One broker with a topic of four queues."""
    async with cluster(tmp_path) as rig:
        await rig.create_topic(TOPIC)
        yield rig


def message(number: int = 0, **members: Any) -> Message:
    return Message(TOPIC, b"body %d" % number, **members)


async def in_thread(rig: Cluster, work: Callable[[Producer], Any], **options: Any) -> Any:
    """Let a thread use a blocking producer; the servers need this loop."""

    def use() -> Any:
        with Producer("PG", namesrv=rig.namesrv, **options) as producer:
            return work(producer)

    return await asyncio.to_thread(use)


# --- Failures ---


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_a_broker_that_refuses_is_tried_again_and_what_it_said_is_told(
    tmp_path: Path, face: str
) -> None:
    async with cluster(tmp_path, accept_sends_from_ms=1 << 62) as rig:
        await rig.create_topic(TOPIC)
        with pytest.raises(SendFailed) as raised:
            if face == "blocking":
                await in_thread(rig, lambda producer: producer.send(message()))
            else:
                async with aio.Producer("PG", namesrv=rig.namesrv) as producer:
                    await producer.send(message())
        assert len(rig.proxies["broker-a"].asked(SEND)) == 3
    error = raised.value
    assert isinstance(error.__cause__, BrokerSystemError)
    assert (error.code, error.brokers, error.maybe_stored) == (1, ("broker-a",) * 3, False)
    assert error.remark
    assert error.remark in str(error)


@contextlib.asynccontextmanager
async def moody_broker() -> AsyncIterator[tuple[str, list[int]]]:
    """A broker that refuses the first message; its address, and how many sends came on each connection."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        codec: Connection[None] = Connection()
        number = len(asked)
        asked.append(0)
        while data := await reader.read(1 << 16):
            for command in codec.receive(data):
                assert isinstance(command, RemotingCommand)
                asked[number] += command.code == SEND
                sends_away = command.code == SEND and sum(asked) == 1
                fields = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"}
                answer = command.reply(1500 if sends_away else 0, fields=fields)
                writer.write(b"".join(encode(answer)))

    async with raw_server(serve) as server:
        yield server.address, asked


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_a_broker_that_says_go_away_is_asked_on_a_new_connection(one: Cluster, face: str) -> None:
    async with moody_broker() as (address, asked):
        one.proxies["broker-a"].address = address
        await one.register("broker-a")
        if face == "blocking":
            receipt = await in_thread(one, lambda producer: producer.send(message()))
        else:
            async with aio.Producer("PG", namesrv=one.namesrv) as producer:
                receipt = await producer.send(message())
        assert receipt.queue_offset == 7
        assert sorted(sends for sends in asked if sends) == [1, 1]


async def test_a_queue_that_the_caller_chose_is_tried_once(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        with pytest.raises(SendFailed, match="99") as raised:
            await producer.send(message(), queue=MessageQueue(TOPIC, "broker-a", 99))
    assert raised.value.brokers == ("broker-a",)


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_a_connection_that_is_lost_costs_one_attempt(one: Cluster, face: str) -> None:
    hook = Watcher()
    proxy = one.proxies["broker-a"]
    loop = asyncio.get_running_loop()

    def use(producer: Producer) -> list[SendReceipt]:
        producer.add_hook(hook)
        first = producer.send(message(1))
        loop.call_soon_threadsafe(proxy.cut)
        return [first, *(producer.send(message(number)) for number in range(2, 200))]

    if face == "blocking":
        receipts = await in_thread(one, use)
    else:
        async with aio.Producer("PG", namesrv=one.namesrv) as producer:
            producer.add_hook(hook)
            receipts = [await producer.send(message(1))]
            loop.call_soon(proxy.cut)
            receipts += [await producer.send(message(number)) for number in range(2, 200)]
    assert len(receipts) == 199
    assert all(receipt.is_ok for receipt in receipts)
    assert all(isinstance(error, ConnectionLost) for error in hook.errors)
    assert proxy.connections >= 2


async def test_a_name_server_that_is_away_is_passed_over(one: Cluster) -> None:
    for namesrv in (f"127.0.0.1:1;{one.namesrv}", f"{one.namesrv};127.0.0.1:1"):
        for _ in range(3):
            async with aio.Producer("PG", namesrv=namesrv) as producer:
                assert (await producer.send(message())).is_ok


async def test_without_any_name_server_the_address_is_named() -> None:
    async with aio.Producer("PG", namesrv="127.0.0.1:1") as producer:
        with pytest.raises(ConnectFailed, match=r"name server 127\.0\.0\.1:1"):
            await producer.send(message())


def library_frames(error: BaseException) -> int:
    """The frames of a traceback that are not the caller's."""
    frames = traceback.extract_tb(error.__traceback__)
    return sum(1 for frame in frames if "/skylark/" in frame.filename or "/asyncio/" in frame.filename)


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_an_address_that_cannot_be_reached_is_named_with_a_hint(one: Cluster, face: str) -> None:
    address = one.proxies["broker-a"].address
    one.proxies["broker-a"].shut()
    with pytest.raises(SendFailed) as raised:
        if face == "blocking":
            await in_thread(one, lambda producer: producer.send(message()))
        else:
            async with aio.Producer("PG", namesrv=one.namesrv) as producer:
                await producer.send(message())
    assert address in str(raised.value)
    assert f"cannot connect to broker broker-a at {address}" in str(raised.value)
    cause = raised.value.__cause__
    assert isinstance(cause, ConnectFailed)
    assert "--advertise" in cause.hint
    assert f"hint: {cause.hint}" in cause.__notes__
    assert library_frames(raised.value) <= 2
    assert library_frames(cause) == 0
    assert raised.value.brokers == ("broker-a",) * 3
    assert not raised.value.maybe_stored


async def test_a_cancelled_send_is_said_to_be_unknown(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    async with aio.Producer("PG", namesrv=one.namesrv, client=IMPATIENT) as producer:
        sending = asyncio.ensure_future(producer.send(message()))
        await until(lambda: len(one.proxies["broker-a"].asked(SEND)) == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError) as raised:
            await sending
        assert "whether the message is stored is unknown" in "".join(raised.value.__notes__)
        one.proxies["broker-a"].cut()
    assert len(await one.stored(TOPIC)) == 1


async def test_a_send_within_a_timeout_of_the_caller_ends_in_time(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv, client=IMPATIENT) as producer:
        await producer.send(message(), timeout_ms=60_000)  # now route and connection take no time any more
        one.proxies["broker-a"].is_silent = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.send(message())
        with pytest.raises(SendFailed) as raised:
            await producer.send(message(), timeout_ms=1000)
        assert raised.value.maybe_stored
        one.proxies["broker-a"].cut()


async def test_a_blocking_send_ends_in_time(one: Cluster) -> None:
    def use(producer: Producer) -> None:
        producer.send(message(), timeout_ms=60_000)
        one.proxies["broker-a"].is_silent = True
        with pytest.raises(SendFailed) as raised:
            producer.send(message(), timeout_ms=1000)
        assert raised.value.maybe_stored

    await in_thread(one, use, client=IMPATIENT)


# --- In flight, and the end ---


async def test_not_more_than_allowed_is_in_flight(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    settings = ProducerSettings(in_flight_max=3, send_timeout_ms=20_000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings, client=IMPATIENT) as producer:
        for number in range(3):
            await producer.submit(message(number))
        waiting = asyncio.ensure_future(producer.submit(message(3)))
        await until(lambda: len(one.proxies["broker-a"].asked(SEND)) == 3)
        assert not waiting.done()
        assert producer.sender.in_flight == 3
        with pytest.raises(SendFailed, match="no room in flight in time: 3 sends of 18 bytes"):
            await producer.send(message(4), timeout_ms=30)
        one.proxies["broker-a"].is_silent = False
        one.proxies["broker-a"].cut()  # they are sent again
        receipt = await (await waiting)
        assert receipt.is_ok


async def test_bytes_in_flight_are_limited_too(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    settings = ProducerSettings(in_flight_bytes_max=1 << 20, compress_from_bytes=1 << 30)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings, client=IMPATIENT) as producer:
        await producer.submit(Message(TOPIC, bytes([1]) * (2 << 20)))  # alone it may be larger
        with pytest.raises(SendFailed, match="no room"):
            await producer.submit(message(), timeout_ms=30)
        one.proxies["broker-a"].cut()


async def test_a_thousand_senders_share_the_room(one: Cluster) -> None:
    settings = ProducerSettings(in_flight_max=7)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        receipts = await asyncio.gather(*(producer.send(message(number)) for number in range(1000)))
    assert len({receipt.message_id for receipt in receipts}) == 1000
    assert len(await one.stored(TOPIC)) == 1000


async def test_stopping_waits_for_what_is_in_flight(one: Cluster) -> None:
    producer = await aio.Producer("PG", namesrv=one.namesrv).start()
    futures = [await producer.submit(message(number)) for number in range(500)]
    await producer.stop()
    assert all(future.done() and future.result().is_ok for future in futures)


async def test_what_has_no_answer_at_the_end_is_unknown(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    producer = await aio.Producer("PG", namesrv=one.namesrv, client=IMPATIENT).start()
    future = await producer.submit(message())
    await until(lambda: len(one.proxies["broker-a"].asked(SEND)) == 1)
    await producer.stop()
    with pytest.raises(SendUnknown):
        await future


async def test_the_blocking_producer_waits_for_its_futures(one: Cluster) -> None:
    def use() -> list[SendReceipt]:
        with Producer("PG", namesrv=one.namesrv, settings=ProducerSettings(in_flight_max=50)) as producer:
            futures = [producer.submit(message(number)) for number in range(2000)]
        return [future.result(timeout=0) for future in futures]

    receipts = await asyncio.to_thread(use)
    assert len({receipt.message_id for receipt in receipts}) == 2000
    assert len(await one.stored(TOPIC)) == 2000


async def test_many_threads_send_at_once_and_each_gets_its_own_receipt(one: Cluster) -> None:
    def use(producer: Producer) -> dict[str, bytes]:
        sent: dict[str, bytes] = {}

        def send(thread: int) -> None:
            for number in range(100):
                body = b"thread %d message %d" % (thread, number)
                sent[producer.send(Message(TOPIC, body)).message_id] = body

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sent

    sent = await in_thread(one, use)
    stored = {each.properties["UNIQ_KEY"]: each.body for each in await one.stored(TOPIC)}
    assert len(sent) == 800
    assert stored == sent


async def test_two_blocking_producers_share_a_loop_and_the_last_one_ends_it(one: Cluster) -> None:
    def use() -> None:
        def loops() -> int:
            return sum(thread.name == "skylark-client" for thread in threading.enumerate())

        with Producer("PG1", namesrv=one.namesrv) as first:
            with Producer("PG2", namesrv=one.namesrv) as second:
                assert loops() == 1
                assert first.send(message()).is_ok
                assert second.send(message()).is_ok
            assert first.send(message()).is_ok
        assert loops() == 0

    await asyncio.to_thread(use)


FORKS = """
import os, sys
from skylark import Message, Producer
from skylark.errors import ForkedClient

with Producer("PG", namesrv=sys.argv[1]) as producer:
    producer.send(Message("orders", b"parent"))
    child = os.fork()
    if not child:
        for use in (lambda: producer.send(Message("orders", b"x")), producer.stop,
                    lambda: producer.submit(Message("orders", b"x")), lambda: producer.queues("orders")):
            try:
                use()
            except ForkedClient as error:
                print(error, flush=True)
        with Producer("PG", namesrv=sys.argv[1]) as own:
            own.send(Message("orders", b"child"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    producer.send(Message("orders", b"parent again"))
"""


ASYNCIO_FORKS = """
import asyncio, os, sys
from skylark import Message, aio
from skylark.errors import ForkedClient

async def main():
    async with aio.Producer("PG", namesrv=sys.argv[1]) as producer:
        await producer.send(Message("orders", b"parent"))
        child = os.fork()
        if not child:
            for use in (producer.send, producer.submit, producer.send_oneway):
                try:
                    await use(Message("orders", b"x"))
                except ForkedClient as error:
                    print(error, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        await producer.send(Message("orders", b"parent again"))

asyncio.run(main())
"""


async def test_in_a_fork_an_asyncio_producer_says_so(one: Cluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", ASYNCIO_FORKS, one.namesrv,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert output.decode().count("create and start clients after the fork") == 3
    assert {each.body for each in await one.stored(TOPIC)} == {b"parent", b"parent again"}


async def test_in_a_fork_a_producer_says_so_and_a_new_one_works(one: Cluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", FORKS, one.namesrv,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    lines = output.decode().splitlines()
    assert len(lines) == 4
    assert all("create and start clients after the fork" in line for line in lines)
    assert {each.body for each in await one.stored(TOPIC)} == {b"parent", b"child", b"parent again"}


# --- Batches ---


async def test_messages_for_one_queue_are_gathered_and_each_has_its_receipt(one: Cluster) -> None:
    assert (ProducerSettings().batch_delay_ms, ProducerSettings().batch_bytes_max) == (10, 32 << 10)
    settings = ProducerSettings(batching=True)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        receipts = await asyncio.gather(*(producer.send(message(number)) for number in range(500)))
    proxy = one.proxies["broker-a"]
    assert 1 <= len(proxy.asked(BATCH)) + len(proxy.asked(SEND)) < 50
    places = {(receipt.queue, receipt.queue_offset) for receipt in receipts}
    assert len(places) == 500
    assert len({receipt.message_id for receipt in receipts}) == 500
    stored = {offset_id(each): each.body for each in await one.stored(TOPIC)}
    assert [stored[receipt.offset_message_id] for receipt in receipts] == [
        b"body %d" % number for number in range(500)
    ]


async def test_what_cannot_wait_in_a_batch_is_sent_alone(one: Cluster) -> None:
    settings = ProducerSettings(batching=True, batch_delay_ms=30_000, compress_from_bytes=1 << 30)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        await producer.send(message(delay_level=1))
        await producer.send(Message(TOPIC, bytes([1]) * (32 << 10)))
        await producer.send(message(), timeout_ms=3000)
        await producer.send(message(), selector=by_random)
        gathered = await producer.submit(message(5))
        await producer.flush()
        assert (await gathered).is_ok
    assert one.proxies["broker-a"].asked(BATCH) == []
    assert len(one.proxies["broker-a"].asked(SEND)) == 5


async def test_a_batch_that_fails_fails_each_of_its_messages(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    settings = ProducerSettings(batching=True, send_timeout_ms=100)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings, client=IMPATIENT) as producer:
        results = await asyncio.gather(
            *(producer.send(message(number)) for number in range(5)), return_exceptions=True
        )
        one.proxies["broker-a"].cut()
    assert [type(result) for result in results] == [SendFailed] * 5


async def test_gathered_messages_keep_what_is_said_of_them(one: Cluster) -> None:
    sent = [
        message(
            number, tags=f"tag {number}", keys=(f"k{number}", "x"), properties={"n": str(number)}, flag=number
        )
        for number in range(20)
    ]
    sent += [message(20), Message(TOPIC, b"not waited for", wait_for_store=False)]
    settings = ProducerSettings(batching=True, send_timeout_ms=60_000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        receipts = await asyncio.gather(*(producer.send(each) for each in sent))
    assert len(one.proxies["broker-a"].asked(BATCH)) == 1
    stored = {offset_id(each): each for each in await one.stored(TOPIC)}
    for wanted, receipt in zip(sent, receipts, strict=True):
        found = stored[receipt.offset_message_id]
        assert (found.body, found.tags, found.keys) == (wanted.body, wanted.tags, list(wanted.keys))
        assert (found.properties.get("n"), found.flag) == (wanted.properties.get("n"), wanted.flag)
        assert found.properties["WAIT"] == ("true" if wanted.wait_for_store else "false")


async def test_a_bad_message_is_refused_and_the_batch_that_gathers_goes_on(one: Cluster) -> None:
    settings = ProducerSettings(batching=True, batch_delay_ms=30_000, send_timeout_ms=60_000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        first = await producer.submit(message(1))
        for bad in (
            Message(TOPIC, b""),
            Message(TOPIC, "text"),  # type: ignore[arg-type]
            message(tags="a\x02b"),
            message(properties={"KEYS": "reserved"}),
            message(properties={"lone": "\ud800"}),
            message(flag=1 << 40),
        ):
            with pytest.raises(BadMessage):
                await producer.submit(bad)
        second = await producer.submit(message(2))
        await producer.flush()
        assert (await first).is_ok
        assert (await second).is_ok
    assert len(one.proxies["broker-a"].asked(BATCH)) == 1
    assert {each.body for each in await one.stored(TOPIC)} == {b"body 1", b"body 2"}


async def test_gathering_waits_for_room_too(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    settings = ProducerSettings(batching=True, batch_bytes_max=1000, in_flight_max=2, send_timeout_ms=60_000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:

        async def submit_many() -> list[asyncio.Future[SendReceipt]]:
            return [await producer.submit(message(number)) for number in range(100)]

        submitting = asyncio.ensure_future(submit_many())
        await until(lambda: len(one.proxies["broker-a"].asked(BATCH)) == 2)
        assert not submitting.done()
        assert producer.sender.in_flight == 2
        one.proxies["broker-a"].is_silent = False
        one.proxies["broker-a"].cut()  # what was gathered is sent again
        receipts = await asyncio.gather(*await submitting)
    assert all(receipt.is_ok for receipt in receipts)
    assert {each.body for each in await one.stored(TOPIC)} == {b"body %d" % number for number in range(100)}


class Outcomes:
    """Receives what becomes of posted messages."""

    def __init__(self) -> None:
        self.found: list[tuple[Message, SendReceipt | Exception]] = []

    def take(self, message: Message, outcome: SendReceipt | Exception) -> None:
        self.found.append((message, outcome))


@pytest.mark.parametrize("batching", [False, True])
async def test_a_posted_message_is_passed_to_its_function_with_its_receipt(
    one: Cluster, batching: bool
) -> None:
    outcomes = Outcomes()
    settings = ProducerSettings(batching=batching, send_timeout_ms=60_000)
    sent = [message(number) for number in range(200)]
    sent += [message(200, sharding_key="s"), message(201, delay_level=1), message(202, tags="t")]
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        for each in sent:
            assert producer.post(each, outcomes.take)
        await producer.drain()
        for bad in (Message(TOPIC, b""), message(tags="a\x02b"), "text"):
            with pytest.raises(BadMessage):
                producer.post(bad, outcomes.take)  # type: ignore[arg-type]
    assert len(outcomes.found) == len(sent), "the end of the producer waits for them"
    assert {id(each) for each, _ in outcomes.found} == {id(each) for each in sent}
    stored = {offset_id(each): each.body for each in await one.stored(TOPIC)}
    for each, receipt in outcomes.found:
        assert isinstance(receipt, SendReceipt)
        assert each.delay_level or stored[receipt.offset_message_id] == each.body
    proxy = one.proxies["broker-a"]
    assert len(proxy.asked(SEND)) == (2 if batching else len(sent))


async def test_errors_are_passed_to_the_functions_of_posted_messages(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    outcomes = Outcomes()
    settings = ProducerSettings(batching=True, send_timeout_ms=100)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings, client=IMPATIENT) as producer:
        for number in range(5):
            assert producer.post(message(number), outcomes.take)
        await until(lambda: len(outcomes.found) == 5)
        one.proxies["broker-a"].cut()
    assert [type(outcome) for _, outcome in outcomes.found] == [SendFailed] * 5
    with pytest.raises(ClientClosed):
        producer.post(message(), outcomes.take)


async def test_a_function_that_fails_does_not_keep_others_from_their_outcomes(
    one: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = Outcomes()

    def fail(message: Message, outcome: SendReceipt | Exception) -> None:
        raise ValueError("of the function")

    settings = ProducerSettings(batching=True)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        for number in range(6):
            assert producer.post(message(number), fail if number % 2 else outcomes.take)
    assert len(outcomes.found) == 3
    assert caplog.text.count("function of a posted message failed") == 3


async def test_too_many_posted_messages_are_not_taken_until_there_is_room(one: Cluster) -> None:
    one.proxies["broker-a"].is_silent = True
    outcomes = Outcomes()
    settings = ProducerSettings(batching=True, batch_bytes_max=1000, in_flight_max=2, send_timeout_ms=60_000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        taken = 0
        while producer.post(message(taken), outcomes.take):
            taken += 1
        draining = asyncio.ensure_future(producer.drain())
        await until(lambda: len(one.proxies["broker-a"].asked(BATCH)) == 2)
        assert (producer.sender.in_flight, draining.done(), outcomes.found) == (2, False, [])
        one.proxies["broker-a"].is_silent = False
        one.proxies["broker-a"].cut()
        await draining
        assert producer.post(message(taken), outcomes.take)
    assert {each.body for each in await one.stored(TOPIC)} == {b"body %d" % n for n in range(taken + 1)}
    assert len(outcomes.found) == taken + 1


async def test_hooks_see_what_was_gathered_and_may_add_to_it(one: Cluster) -> None:
    class Adding(SendHook):
        seen: list[list[bytes]] = []  # noqa: RUF012 (of this one test)

        def before(self, context: SendContext) -> None:
            context.add_property("colour", "green")

        def after(self, context: SendContext) -> None:
            assert context.unique_keys == [receipt.message_id for receipt in context.receipts]
            self.seen.append([each.body for each in context.messages])

    settings = ProducerSettings(batching=True, send_timeout_ms=60_000)
    async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
        producer.add_hook(Adding())
        await asyncio.gather(*(producer.send(message(number, tags="a")) for number in range(3)))
    assert Adding.seen == [[b"body 0", b"body 1", b"body 2"]]
    stored = await one.stored(TOPIC)
    assert [(each.properties["colour"], each.tags) for each in stored] == [("green", "a")] * 3


async def test_blocking_threads_are_batched_together(one: Cluster) -> None:
    def use(producer: Producer) -> list[SendReceipt]:
        futures = [producer.submit(message(number)) for number in range(200)]
        return [future.result(timeout=60) for future in futures] + [producer.send(message())]

    receipts = await in_thread(one, use, settings=ProducerSettings(batching=True))
    assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 201
    assert one.proxies["broker-a"].asked(BATCH)


async def test_a_large_batch_is_refused_and_its_parts_are_not(one: Cluster) -> None:
    messages = [Message(TOPIC, bytes([number % 256 or 1]) * 100_000) for number in range(60)]
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        with pytest.raises(BadMessage, match="use split_into_batches"):
            await producer.send_batch(messages)
        batches = list(split_into_batches(messages))
        assert len(batches) > 1
        receipts = [receipt for batch in batches for receipt in await producer.send_batch(batch)]
    assert len(receipts) == 60
    assert [each for batch in batches for each in batch] == messages


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (Message("other", b"x"), "should be the same"),
        (Message(TOPIC, b"x", wait_for_store=False), "waitStoreMsgOK"),
        (Message(TOPIC, b"x", delay_level=1), "TimeDelayLevel is not supported for batching"),
    ],
)
async def test_what_is_no_batch_is_refused(one: Cluster, second: Message, reason: str) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        with pytest.raises(BadMessage, match=reason):
            await producer.send_batch([message(), second])
        with pytest.raises(BadMessage, match="at least one"):
            await producer.send_batch([])
    assert one.names.requests == []


# --- Where messages go ---


@pytest.mark.parametrize(("key", "queue_id"), [("order-1001", 3), ("order-1002", 0), ("order-1003", 1)])
async def test_a_sharding_key_goes_where_java_sends_it(one: Cluster, key: str, queue_id: int) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        receipts = [
            await producer.send(message(sharding_key=key)),
            await producer.send(message(), selector=by_hash, argument=key),
        ]
    assert [receipt.queue.queue_id for receipt in receipts] == [queue_id] * 2
    stored = await one.stored(TOPIC)
    assert [each.properties.get("__SHARDINGKEY") for each in stored] == [key, None]


async def test_a_selector_sees_the_queues_and_must_choose_one(one: Cluster) -> None:
    seen: list[Any] = []

    def last(queues: Any, chosen_for: Message, argument: Any) -> Any:
        seen.append((len(queues), chosen_for, argument))
        return queues[-1]

    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        receipt = await producer.send(message(), selector=last, argument=7)
        await producer.send_oneway(message(), selector=last, argument=8)
        with pytest.raises(BadMessage, match="select message queue return null"):
            await producer.send(message(), selector=lambda *_: None)
        with pytest.raises(BadMessage, match="select message queue threw exception"):
            await producer.send(message(), selector=lambda *_: 1 // 0)  # type: ignore[arg-type]
        with pytest.raises(BadMessage, match="not a writable queue of the topic"):
            await producer.send(message(), selector=lambda *_: MessageQueue(TOPIC, "elsewhere", 0))
        with pytest.raises(BadMessage, match="not equal mq's topic"):
            await producer.send(message(), queue=MessageQueue("other", "broker-a", 0))
    assert receipt.queue.queue_id == 3
    assert seen == [(4, message(), 7), (4, message(), 8)]


async def test_a_timed_message_can_be_taken_back(one: Cluster) -> None:
    soon = timedelta(seconds=3)
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        kept = await producer.send(message(1, deliver_after=soon))
        taken = await producer.send(message(2, deliver_at=datetime.now(UTC) + soon))
        assert kept.recall_handle is not None
        assert taken.recall_handle is not None
        assert await producer.recall(TOPIC, taken.recall_handle) == taken.message_id
        with pytest.raises(BadMessage, match="invalid recall handle 'nonsense'"):
            await producer.recall(TOPIC, "nonsense")
        with pytest.raises(BrokerError, match="topic not match"):
            await producer.recall("TBW102", taken.recall_handle)
        late = await producer.send(message(3, deliver_after=soon))

    async def all_came() -> bool:
        return len(await one.stored(TOPIC)) >= 2

    await until(all_came)
    assert {each.body for each in await one.stored(TOPIC)} == {b"body 1", b"body 3"}
    assert late.recall_handle != kept.recall_handle


async def test_an_unknown_broker_is_told(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        with pytest.raises(Exception, match=r"The broker\[elsewhere\] not exist"):
            await producer.send(message(), queue=MessageQueue(TOPIC, "elsewhere", 0))


async def test_the_fast_port_is_used_only_when_asked_for(tmp_path: Path) -> None:
    assert not ClientSettings().vip_channel
    async with running_cluster(tmp_path) as (name_server, broker):
        client = ClientSettings(vip_channel=True)
        async with aio.Producer("PG", namesrv=name_server.address, client=client) as producer:
            assert (await producer.send(Message("T", b"x"))).is_ok
            host, _, port = broker.address.rpartition(":")
            assert producer.session.pool.open_connection(f"{host}:{int(port) - 2}") is not None


async def test_a_oneway_message_arrives_without_an_answer(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        for number in range(10):
            await producer.send_oneway(message(number))
    await in_thread(one, lambda producer: producer.send_oneway(message(10)))

    async def arrived() -> bool:
        return len(await one.stored(TOPIC)) == 11

    await until(arrived)
    sent = one.proxies["broker-a"].asked(SEND)
    assert len(sent) == 11
    assert all(command.is_oneway for command in sent)


# --- What goes in comes out ---

BODIES = {
    "zeros": bytes(1000),
    "a NUL in the middle": b"before\x00after",
    "4 KiB less one": os.urandom(4095),
    "4 KiB": os.urandom(4096),
    "4 KiB and one": os.urandom(4097),
    "4 MiB": os.urandom(1 << 10) * (4 << 10),
    "one byte": b"\x00",
}


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_bodies_come_out_as_they_went_in(one: Cluster, compression: Compression, face: str) -> None:
    settings = ProducerSettings(compression=compression, send_timeout_ms=20_000)
    queue = MessageQueue(TOPIC, "broker-a", 0)
    messages = [Message(TOPIC, body, keys=[name.replace(" ", "-")]) for name, body in BODIES.items()]
    if face == "blocking":
        await in_thread(
            one, lambda producer: [producer.send(m, queue=queue) for m in messages], settings=settings
        )
    else:
        async with aio.Producer("PG", namesrv=one.namesrv, settings=settings) as producer:
            for each in messages:
                await producer.send(each, queue=queue)
    assert [plain_body(each) for each in await one.stored(TOPIC)] == list(BODIES.values())


async def test_text_of_all_kinds_comes_out_as_it_went_in(one: Cluster) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        await producer.send(
            Message(
                TOPIC, b"x", tags='naïve "tag" 日本 %d', keys=["clé", "键"], properties={"größe": "1 %s\\"}
            )
        )
    [stored] = await one.stored(TOPIC)
    assert stored.tags == 'naïve "tag" 日本 %d'
    assert stored.keys == ["clé", "键"]
    assert stored.properties["größe"] == "1 %s\\"


async def test_a_message_can_be_made_of_json(one: Cluster) -> None:
    value = {"id": 42, "items": ["a", None, 1.5]}
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        await producer.send(Message.json(TOPIC, value, tags="created"))
    [stored] = await one.stored(TOPIC)
    assert msgspec.json.decode(stored.body) == value
    assert stored.tags == "created"


@pytest.mark.parametrize(
    ("bad", "error", "reason"),
    [
        (Message(TOPIC, b""), BadMessage, "body length is zero"),
        (Message(TOPIC, "text"), BadMessage, "must be bytes"),  # type: ignore[arg-type]
        (Message(TOPIC, bytes((4 << 20) + 1)), MessageTooLarge, "4194305 bytes is larger"),
        (Message("a b", b"x"), Exception, "illegal characters"),
        (Message("", b"x"), Exception, "blank"),
        (Message("x" * 128, b"x"), Exception, "longer than topic max length"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), Exception, "is forbidden"),
        (Message(TOPIC, b"x", properties={"KEYS": "1"}), BadMessage, "The Property<KEYS> is used by system"),
        (Message(TOPIC, b"x", properties={"a": " "}), BadMessage, "null or blank"),
        (Message(TOPIC, b"x", properties={"a": "x" * 32_767}), BadMessage, "the limit is 32767"),
        (Message(TOPIC, b"x", tags="a\x01b"), BadMessage, "must not contain"),
        (Message(TOPIC, b"x", properties={"a": 1}), BadMessage, "must be strings"),  # type: ignore[dict-item]
        (Message(TOPIC, b"x", delay_level=-1), BadMessage, "use 1 to 18"),
        (Message(TOPIC, b"x", delay_level=30), BadMessage, "use 1 to 18"),
        (Message(TOPIC, b"x", tags="a || b"), BadMessage, "one tag"),
        (Message(TOPIC, b"x", flag=1 << 31), BadMessage, "32 bits"),
        (Message(TOPIC, b"x", deliver_at=datetime(2030, 1, 1)), BadMessage, "no time zone"),
        (Message(TOPIC, b"x", deliver_after=timedelta(-1)), BadMessage, "negative"),
        (Message(TOPIC, b"x", delay_level=1, deliver_at=datetime.now(UTC)), BadMessage, "only one of"),
        (Message(TOPIC, b"x", tags="\ud800"), BadMessage, "UTF-8"),
        (Message(TOPIC, b"x", tags=["a"]), BadMessage, r"tags must be str \| None, not \['a'\]"),  # type: ignore[arg-type]
        (Message(TOPIC, b"x", keys=[42]), BadMessage, r"keys must be a string .* not \[42\]"),  # type: ignore[list-item]
        (Message(TOPIC, b"x", sharding_key=42), BadMessage, "sharding_key must be .* not 42"),  # type: ignore[arg-type]
        (Message(TOPIC, b"x", deliver_after=5), BadMessage, "must be datetime.timedelta"),  # type: ignore[arg-type]
        (Message(TOPIC, b"x", properties=["a"]), BadMessage, "must be Mapping"),  # type: ignore[arg-type]
    ],
)
async def test_what_no_broker_would_take_is_refused_before_the_network(
    one: Cluster, bad: Message, error: type[Exception], reason: str
) -> None:
    async with aio.Producer("PG", namesrv=one.namesrv) as producer:
        with pytest.raises(error, match=reason):
            await producer.send(bad)
    assert one.proxies["broker-a"].asked(SEND) == []


# --- Hooks ---


class Watcher(SendHook):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.errors: list[BaseException] = []

    def before(self, context: SendContext) -> None:
        context.notes["watched"] = True
        self.seen.append(("before", len(context.messages), context.attempt))

    def after(self, context: SendContext) -> None:
        assert context.notes["watched"]
        if context.error is not None:
            self.errors.append(context.error)
        self.seen.append(("after", len(context.receipts), context.attempt))


class Forbidding(SendHook):
    """Refuses messages with a tag."""

    def check(self, context: SendContext) -> None:
        if context.messages[0].tags == "secret":
            raise PermissionError("secrets are not sent")

    def before(self, context: SendContext) -> None:
        raise RuntimeError("a hook that fails is logged")


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_hooks_see_every_attempt_and_may_forbid_it(one: Cluster, face: str) -> None:
    watcher = Watcher()

    def use(producer: Producer) -> None:
        producer.add_hook(Forbidding())
        producer.add_hook(watcher)
        producer.send(message())
        producer.send_batch([message(1), message(2)])
        producer.send_oneway(message())
        with pytest.raises(PermissionError):
            producer.send(message(tags="secret"))

    if face == "blocking":
        await in_thread(one, use)
    else:
        async with aio.Producer("PG", namesrv=one.namesrv) as producer:
            producer.add_hook(Forbidding())
            producer.add_hook(watcher)
            await producer.send(message())
            await producer.send_batch([message(1), message(2)])
            await producer.send_oneway(message())
            with pytest.raises(PermissionError):
                await producer.send(message(tags="secret"))
    assert watcher.seen == [
        ("before", 1, 1), ("after", 1, 1),
        ("before", 2, 1), ("after", 2, 1),
        ("before", 1, 1), ("after", 0, 1),
    ]  # fmt: skip
    assert len(one.proxies["broker-a"].asked(SEND)) == 2


async def test_a_stopped_producer_has_no_id(one: Cluster) -> None:
    producer = await aio.Producer("PG", namesrv=one.namesrv).start()
    await producer.send(message())
    await producer.stop()
    with pytest.raises(ClientClosed):
        _ = producer.client_id
