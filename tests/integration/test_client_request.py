"""Requests and replies by our clients on our own servers: who asks gets the answer to the own question."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.push_consumer import AsyncPushConsumer, PushConsumer
from skylark.client.producer.producer import AsyncProducer, Producer
from skylark.client.producer.request_reply import Reply, reply
from skylark.client.received_message import ReceivedMessage
from skylark.errors import BadMessage, ClientClosed, NoReply, NoRoute, SendFailed
from skylark.model.message import Message
from skylark.settings.client import ClientSettings, Compression, ProducerSettings
from tests.support.broker import BrokerClient, until
from tests.support.client_rig import QUICK, cluster
from tests.support.consumer import ConsumerRig, consumer_rig, fast

TOPIC = "questions"
PATIENT_MS = 30_000


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ConsumerRig]:
    async with consumer_rig(tmp_path, auto_create_topics=False) as running:
        await running.topic(TOPIC, 2)
        yield running


@contextlib.asynccontextmanager
async def answering(
    rig: ConsumerRig, answer: Callable[[ReceivedMessage], bytes], **settings: Any
) -> AsyncIterator[AsyncProducer]:
    """A consumer that replies to every message; the producer that it does so with."""
    async with AsyncProducer(
        "answerers", namesrv=rig.name_server.address, settings=ProducerSettings(**settings)
    ) as producer:

        async def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                await producer.send(
                    reply(message, answer(message), tags="answer", properties={"mood": "good"})
                )

        async with rig.consumer("G", TOPIC, listen):
            yield producer


async def test_a_request_gets_its_reply(rig: ConsumerRig) -> None:
    asked: list[ReceivedMessage] = []

    def answer(message: ReceivedMessage) -> bytes:
        asked.append(message)
        return b"answer to " + message.body

    async with answering(rig, answer), AsyncProducer("askers", namesrv=rig.name_server.address) as asker:
        bodies = [b"question %d" % number for number in range(20)]
        replies = await asyncio.gather(
            *(asker.request(Message(TOPIC, body, keys=["k"]), timeout_ms=PATIENT_MS) for body in bodies)
        )
        assert [each.body for each in replies] == [b"answer to " + body for body in bodies]
        first = replies[0]
        assert (first.topic, first.tags) == ("DefaultCluster_REPLY_TOPIC", "answer")
        assert first.properties["mood"] == "good"
        assert first.properties["MSG_TYPE"] == "reply"
        assert int(first.properties["ARRIVE_TIME"]) >= first.born_timestamp > 0
        assert first.store_host == rig.broker.address
        question = next(each for each in asked if each.body == bodies[0])
        assert question.wants_reply
        assert question.properties["REPLY_TO_CLIENT"] == asker.client_id
        assert question.properties["TTL"] == str(PATIENT_MS)
        assert question.properties["CORRELATION_ID"] == first.properties["CORRELATION_ID"]
        assert len({each.properties["CORRELATION_ID"] for each in replies}) == len(bodies)
        assert not asker.session.awaited_replies


async def test_producers_of_one_client_get_each_their_own(rig: ConsumerRig) -> None:
    """They share a session, and a broker pushes to the session. The replies are compressed."""
    shared = ClientSettings(instance_name="one")
    large = b"x" * 10_000
    async with (
        answering(
            rig, lambda message: message.body + large, compress_from_bytes=100, compression=Compression.ZLIB
        ),
        AsyncProducer("one", namesrv=rig.name_server.address, client=shared) as one,
        AsyncProducer("two", namesrv=rig.name_server.address, client=shared) as two,
    ):
        assert one.session is two.session
        replies = await asyncio.gather(
            *(each.request(Message(TOPIC, each.group.encode()), timeout_ms=PATIENT_MS) for each in (one, two))
        )
        assert [each.body for each in replies] == [b"one" + large, b"two" + large]


async def test_requests_in_a_namespace(rig: ConsumerRig) -> None:
    """Topics have it, the topic of replies has none: it is the cluster's."""
    await rig.topic(f"ns%{TOPIC}", 1)
    space = ClientSettings(namespace="ns")
    namesrv = rig.name_server.address
    async with (
        AsyncProducer("answerers", namesrv=namesrv, client=space) as answerer,
        AsyncProducer("askers", namesrv=namesrv, client=space) as asker,
    ):

        async def answer(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                await answerer.send(reply(message, message.topic.encode()))

        async with rig.consumer("G", TOPIC, answer, client={"namespace": "ns"}):
            got = await asker.request(Message(TOPIC, b"?"), timeout_ms=PATIENT_MS)
    assert (got.body, got.topic) == (TOPIC.encode(), "DefaultCluster_REPLY_TOPIC")


async def test_the_reply_goes_to_the_broker_that_had_the_request(tmp_path: Path) -> None:
    """The other broker has a topic for replies too, but has never heard of who asks."""
    got: list[ReceivedMessage] = []
    async with cluster(tmp_path, "broker-a", "broker-b") as servers:
        await servers.create_topic(TOPIC, 1, "broker-b")
        async with (
            AsyncProducer(
                "answerers", namesrv=servers.namesrv, settings=ProducerSettings(retries=0)
            ) as answerer,
            AsyncProducer("askers", namesrv=servers.namesrv) as asker,
        ):

            async def answer(messages: Sequence[ReceivedMessage]) -> None:
                got.extend(messages)
                for message in messages:
                    await answerer.send(reply(message, message.body))

            consumer = AsyncPushConsumer("G", namesrv=servers.namesrv, settings=fast(), client=QUICK)
            consumer.subscribe(TOPIC, listener=answer)
            async with consumer:
                for body in (b"1", b"2", b"3", b"4"):
                    answered = await asker.request(Message(TOPIC, body), timeout_ms=PATIENT_MS)
                    assert (answered.body, answered.broker_name) == (body, "broker-b")
    assert [message.reconsume_times for message in got] == [0] * 4


async def test_without_a_reply_the_error_says_so(rig: ConsumerRig) -> None:
    async with AsyncProducer("askers", namesrv=rig.name_server.address) as asker:
        with pytest.raises(NoReply) as caught:
            await asker.request(Message(TOPIC, b"anyone?"), timeout_ms=4000)
        error = caught.value
        assert str(error).startswith(
            f"send request message to <{TOPIC}> OK, but wait reply message timeout, 4000 ms."
        )
        async with BrokerClient(rig.broker.address) as client:
            [stored] = [m for queue in range(2) for m in await client.pull_all(TOPIC, queue)]
        assert stored.unique_key == error.message_id
        assert stored.properties["CORRELATION_ID"] == error.correlation_id
        assert not asker.session.awaited_replies


async def test_a_late_reply_and_one_for_nobody(rig: ConsumerRig) -> None:
    got: list[ReceivedMessage] = []
    async with (
        AsyncProducer("answerers", namesrv=rig.name_server.address) as answerer,
        rig.consumer("G", TOPIC, got.extend),
    ):
        async with AsyncProducer("askers", namesrv=rig.name_server.address) as asker:
            with pytest.raises(NoReply):
                await asker.request(Message(TOPIC, b"slow"), timeout_ms=4000)
            await until(lambda: len(got) == 1, timeout_s=60)
            assert (await answerer.send(reply(got[0], b"late"))).is_ok  # as by Java: taken and dropped
        with pytest.raises(SendFailed) as caught:
            await answerer.send(reply(got[0], b"too late"))
        assert (caught.value.code, len(caught.value.brokers)) == (1, 1)
        assert "not found" in caught.value.remark


async def test_what_cannot_be_asked_or_answered(rig: ConsumerRig) -> None:
    got: list[ReceivedMessage] = []
    async with (
        AsyncProducer("askers", namesrv=rig.name_server.address) as asker,
        rig.consumer("G", TOPIC, got.extend),
    ):
        with pytest.raises(BadMessage, match="must be positive, not 0"):
            await asker.request(Message(TOPIC, b"x"), timeout_ms=0)
        with pytest.raises(BadMessage, match="used by system"):
            await asker.request(Message(TOPIC, b"x", properties={"TTL": "1"}))
        await asker.send(Message(TOPIC, b"plain"))
        await until(lambda: len(got) == 1, timeout_s=60)
        assert not got[0].wants_reply
        with pytest.raises(BadMessage, match="not a request message"):
            reply(got[0], b"x")
        answer = Reply(
            topic="DefaultCluster_REPLY_TOPIC",
            body=b"x",
            broker_name="b",
            correlation_id="c",
            reply_to="d",
            ttl=None,
        )
        with pytest.raises(BadMessage, match="a reply cannot be batched"):
            await asker.send_batch([answer])
        with pytest.raises(BadMessage, match="a reply cannot be batched"):
            await asker.request(answer)
    with pytest.raises(ClientClosed):
        await asker.request(Message(TOPIC, b"x"))


async def test_who_waits_hears_of_the_stop(rig: ConsumerRig) -> None:
    asker = await AsyncProducer("askers", namesrv=rig.name_server.address).start()
    waiting = asyncio.create_task(asker.request(Message(TOPIC, b"x"), timeout_ms=PATIENT_MS))
    await until(lambda: bool(asker.session.awaited_replies) and not asker.sender.in_flight, timeout_s=60)
    await asker.stop()
    with pytest.raises(ClientClosed):
        await waiting


async def test_a_topic_without_a_route(rig: ConsumerRig) -> None:
    async with AsyncProducer("askers", namesrv=rig.name_server.address) as asker:
        with pytest.raises(NoRoute):
            await asker.request(Message("nowhere", b"x"), timeout_ms=PATIENT_MS)
        assert not asker.session.awaited_replies


def ask_blocking(namesrv: str) -> tuple[bytes, list[bytes]]:
    consumer = PushConsumer("G", namesrv=namesrv, settings=fast())
    with Producer("answerers", namesrv=namesrv) as answerer:

        @consumer.subscribe(TOPIC)
        def answer(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                answerer.send(reply(message, message.body.upper()))

        with consumer, Producer("askers", namesrv=namesrv) as asker:
            alone = asker.request(Message(TOPIC, b"alone"), timeout_ms=PATIENT_MS)
            futures = [
                asker.submit_request(Message(TOPIC, b"number %d" % number), timeout_ms=PATIENT_MS)
                for number in range(5)
            ]
            return alone.body, [future.result().body for future in futures]


async def test_blocking(rig: ConsumerRig) -> None:
    alone, many = await asyncio.to_thread(ask_blocking, rig.name_server.address)
    assert alone == b"ALONE"
    assert many == [b"NUMBER %d" % number for number in range(5)]
