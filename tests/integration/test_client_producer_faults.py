"""Producers and brokers that hang, vanish, answer late or in part: what is told, and when, on both faces."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skylark import aio
from skylark.client.producer.producer import Producer, _ThreadSend
from skylark.client.producer.send_receipt import SendReceipt, SendStatus
from skylark.errors import BadMessage, ClientClosed, ConnectFailed, SendFailed, SendUnknown
from skylark.model.message import Message
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.settings.client import ClientSettings, ProducerSettings
from tests.support.black_hole import black_hole
from tests.support.broker import until
from tests.support.client_rig import QUICK, Cluster, cluster
from tests.support.fake_broker import Answer, FakeBroker, fake_broker

TOPIC = "T"
SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
FACES = pytest.mark.parametrize("face", ["asyncio", "blocking"])
MEBIBYTE = 1 << 20


def message(number: int = 0, **members: Any) -> Message:
    return Message(TOPIC, b"body %d" % number, **members)


def large(number: int = 0) -> Message:
    return Message(TOPIC, b"%d" % number * MEBIBYTE)


async def send(
    face: str, namesrv: str, sent: Message, timeout_ms: float | None = None, **options: Any
) -> Any:
    """Send one message with a producer of its own."""
    if face == "asyncio":
        async with aio.Producer("PG", namesrv=namesrv, **options) as producer:
            return await producer.send(sent, timeout_ms=timeout_ms)

    def use() -> SendReceipt:
        with Producer("PG", namesrv=namesrv, **options) as blocking:
            return blocking.send(sent, timeout_ms=timeout_ms)

    return await asyncio.to_thread(use)


def taken(command: RemotingCommand, code: int = 0) -> RemotingCommand:
    """The answer to a send."""
    return command.reply(code, fields={"msgId": "0" * 32, "queueId": "0", "queueOffset": "7"})


@pytest.fixture
async def fake() -> AsyncIterator[FakeBroker]:
    async with fake_broker() as running:
        running.answers[SEND] = taken
        yield running


# --- Nobody there, or nobody who answers ---


@pytest.fixture
async def half_gone(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two brokers, of which one's machine is off."""
    with black_hole() as nowhere:
        async with cluster(tmp_path, "broker-a", "broker-b") as rig:
            await rig.create_topic(TOPIC)
            rig.proxies["broker-a"].address = nowhere
            await rig.register("broker-a")
            yield rig


@FACES
async def test_connecting_to_a_broker_that_is_off_takes_an_attempt_and_not_all_the_time(
    half_gone: Cluster, face: str
) -> None:
    settings = ProducerSettings(attempt_timeout_ms=300, send_timeout_ms=2500)
    client = ClientSettings(connect_timeout_ms=60_000, stop_timeout_ms=100)
    for number in range(3):  # whichever broker comes first
        receipt = await send(face, half_gone.namesrv, message(number), settings=settings, client=client)
        assert receipt.queue.broker_name == "broker-b"


@FACES
async def test_what_never_left_is_not_maybe_stored(face: str, tmp_path: Path) -> None:
    with black_hole() as nowhere:
        async with cluster(tmp_path) as rig:
            await rig.create_topic(TOPIC)
            rig.proxies["broker-a"].address = nowhere
            await rig.register("broker-a")
            client = ClientSettings(connect_timeout_ms=60_000, stop_timeout_ms=100)
            with pytest.raises(SendFailed) as raised:
                await send(face, rig.namesrv, message(), timeout_ms=300, client=client)
    assert isinstance(raised.value.__cause__, ConnectFailed)
    assert not raised.value.maybe_stored
    assert "cannot connect to broker broker-a at" in str(raised.value)


@FACES
async def test_name_servers_that_hang_take_no_more_time_than_a_send_has(face: str, tmp_path: Path) -> None:
    async with cluster(tmp_path) as rig:
        rig.names.is_silent = True
        client = ClientSettings(request_timeout_ms=60_000, stop_timeout_ms=100)
        began = time.monotonic()
        with pytest.raises(SendFailed, match="no route in time"):
            await send(face, rig.namesrv, message(), timeout_ms=300, client=client)
        assert time.monotonic() - began < 30


@FACES
async def test_text_that_is_no_unicode_is_the_messages_fault(fake: FakeBroker, face: str) -> None:
    with pytest.raises(BadMessage, match="UTF-8"):
        await send(face, fake.address, message(keys="\ud800"))
    assert not fake.asked_for(SEND)


# --- Stored, but not as safely as asked ---


@FACES
@pytest.mark.parametrize("then", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR])
async def test_a_message_that_is_stored_is_not_said_to_have_failed(
    fake: FakeBroker, face: str, then: ResponseCode
) -> None:
    codes = iter([ResponseCode.FLUSH_DISK_TIMEOUT])
    fake.answers[SEND] = lambda command: taken(command, next(codes, then))
    receipt = await send(face, fake.address, message(), settings=ProducerSettings(retry_when_not_stored=True))
    assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(fake.asked_for(SEND)) > 1


# --- Room in flight ---


class Gate:
    """Holds answers back until so many sends have come; then it is open."""

    def __init__(self, fake: FakeBroker, sends: int) -> None:
        self._fake = fake
        self._sends = sends
        self._opened = asyncio.Event()
        fake.answers[SEND] = fake.answers[BATCH] = self._answer

    async def _answer(self, command: RemotingCommand) -> Answer:
        if len(self._fake.asked_for(SEND)) >= self._sends:
            self.open()
        await self._opened.wait()
        return taken(command)

    def open(self) -> None:
        self._opened.set()


async def test_a_large_message_that_has_landed_makes_room_for_many(fake: FakeBroker) -> None:
    settings = ProducerSettings(
        in_flight_bytes_max=MEBIBYTE, compress_from_bytes=1 << 30, send_timeout_ms=20_000
    )
    first = Gate(fake, 1 << 30)
    async with aio.Producer("PG", namesrv=fake.address, settings=settings) as producer:
        await producer.submit(large())
        small = [asyncio.create_task(producer.send(message(number))) for number in range(20)]
        await until(lambda: len(fake.asked_for(SEND)) == 1)
        Gate(fake, 21)  # answers when all are on their way together
        first.open()
        assert len(await asyncio.gather(*small)) == 20


async def test_who_waits_for_room_is_not_overtaken(fake: FakeBroker) -> None:
    settings = ProducerSettings(
        in_flight_bytes_max=MEBIBYTE, compress_from_bytes=1 << 30, send_timeout_ms=20_000
    )
    gate = Gate(fake, 1 << 30)
    async with aio.Producer("PG", namesrv=fake.address, settings=settings) as producer:
        await producer.submit(message(1))
        await until(lambda: len(fake.asked_for(SEND)) == 1)
        waiting = asyncio.create_task(producer.submit(large()))
        await until(lambda: producer.sender.is_crowded)
        later = asyncio.create_task(producer.submit(message(2)))
        abandoned = asyncio.create_task(producer.submit(message(3)))
        await asyncio.sleep(0)
        abandoned.cancel()
        gate.open()
        await asyncio.gather(await waiting, await later)
        assert not producer.sender.is_crowded
    assert [len(command.body) for command in fake.asked_for(SEND)] == [6, MEBIBYTE, 6]


async def test_who_waits_for_room_at_the_end_hears_of_it(fake: FakeBroker) -> None:
    settings = ProducerSettings(in_flight_max=1, send_timeout_ms=60_000)
    Gate(fake, 1 << 30)
    producer = await aio.Producer(
        "PG", namesrv=fake.address, settings=settings, client=replace(QUICK, stop_timeout_ms=50)
    ).start()
    sends = [asyncio.create_task(producer.send(message(number))) for number in range(5)]
    await until(lambda: len(fake.asked_for(SEND)) == 1)
    await producer.stop()
    async with asyncio.timeout(60):
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(result) for result in results] == [SendUnknown, *[ClientClosed] * 4]


async def test_gathering_in_threads_waits_for_room(fake: FakeBroker) -> None:
    Gate(fake, 1 << 30)
    settings = ProducerSettings(batching=True, in_flight_max=5, send_timeout_ms=60_000)

    def use() -> list[concurrent.futures.Future[SendReceipt]]:
        client = ClientSettings(stop_timeout_ms=50)
        with Producer("PG", namesrv=fake.address, settings=settings, client=client) as producer:
            futures = [producer.submit(message(number)) for number in range(5)]
            with pytest.raises(SendFailed, match="no room"):
                producer.submit(message(5), timeout_ms=100)
        return futures

    for future in await asyncio.to_thread(use):
        assert isinstance(future.exception(timeout=0), SendFailed | SendUnknown)


# --- The end ---


def late(fake: FakeBroker) -> Callable[[], None]:
    """Have the next sends answered only when what is returned is called."""
    gate = Gate(fake, 1 << 30)
    return gate.open


async def test_an_answer_after_the_end_disturbs_nobody_who_shares_the_connection(fake: FakeBroker) -> None:
    client = ClientSettings(instance_name="shared", stop_timeout_ms=50)
    answer = late(fake)
    loop = asyncio.get_running_loop()

    def use() -> BaseException | None:
        with Producer("PG-2", namesrv=fake.address, client=client) as other:
            with Producer("PG-1", namesrv=fake.address, client=client) as producer:
                future = producer.submit(message())
                while not fake.asked_for(SEND):
                    time.sleep(0.005)
            peers = list(fake.peers)
            loop.call_soon_threadsafe(answer)
            assert other.submit(message(2)).result(20).is_ok
            assert fake.peers == peers, "the connection was closed"
        return future.exception(timeout=0)

    assert isinstance(await asyncio.to_thread(use), SendUnknown)


async def test_what_is_unknown_at_the_end_is_not_sent_again(fake: FakeBroker) -> None:
    client = ClientSettings(instance_name="shared", stop_timeout_ms=50)
    late(fake)
    async with aio.Producer("PG-2", namesrv=fake.address, client=client) as other:
        async with aio.Producer("PG-1", namesrv=fake.address, client=client) as producer:
            future = await producer.submit(message(1))
            await until(lambda: bool(fake.asked_for(SEND)))
        assert isinstance(future.exception(), SendUnknown)
        fake.answers[SEND] = taken
        for peer in list(fake.peers):
            peer.abort()
        assert (await other.send(message(2))).is_ok
        await until(lambda: all(task.get_name() != "retry" for task in asyncio.all_tasks()))
    assert [bytes(command.body) for command in fake.asked_for(SEND)].count(b"body 1") == 1


def test_a_future_may_be_cancelled_at_any_moment() -> None:
    class Racing(concurrent.futures.Future[SendReceipt]):
        """Cancelled by another thread right after it was looked at."""

        def cancelled(self) -> bool:
            return False

    def flight() -> _ThreadSend:
        made = _ThreadSend.__new__(_ThreadSend)
        made.outcome = Racing()
        made.outcome.cancel()
        return made

    receipt = SendReceipt(SendStatus.OK, "id", "offset id", MessageQueue(TOPIC, "broker-a", 0), 0)
    flight().deliver([receipt])
    flight().fail(ClientClosed("producer"))


@pytest.mark.parametrize("trace", [False, True])
async def test_a_stop_that_is_cancelled_leaves_nothing_behind(fake: FakeBroker, trace: bool) -> None:
    late(fake)
    before = asyncio.all_tasks()
    settings = ProducerSettings(trace=trace, trace_flush_ms=10)
    producer = await aio.Producer("PG", namesrv=fake.address, settings=settings, client=QUICK).start()
    future = await producer.submit(message())
    await until(lambda: bool(fake.asked_for(SEND)))
    stopping = asyncio.create_task(producer.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await stopping
    assert isinstance(future.exception(), SendUnknown)
    await until(lambda: not fake.peers)
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not left & {"heartbeat", "refresh routes", "trace", "retry"}
