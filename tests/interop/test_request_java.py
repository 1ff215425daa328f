"""Requests from our clients to Apache's Java client (two generations) and back, on both makes of brokers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.client.producer.request_reply import reply
from skylark.client.received_message import ReceivedMessage
from skylark.model.message import Message
from skylark.settings.client import ConsumeFrom, ProducerSettings, PushConsumerSettings
from tests.interop.client_driver import SCENARIOS_TIMEOUT_S, ClientDriver
from tests.interop.servers import Servers, create_topic
from tests.interop.versions import CLIENTS
from tests.support.names import fresh_name

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]

REQUESTS = 10
PATIENT = ProducerSettings(send_timeout_ms=30_000)
_ANSWERING = re.compile(r"^ANSWERING (\S+)$", re.MULTILINE)


@pytest.fixture(params=CLIENTS)
def java(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> ClientDriver:
    return ClientDriver(request.param, servers.name_server, tmp_path)


async def test_we_ask_and_java_answers(servers: Servers, java: ClientDriver) -> None:
    with java.running("answer") as process:
        await asyncio.to_thread(
            process.wait_until,
            lambda: _ANSWERING.search(process.log_text()) is not None,
            "an answering client",
            SCENARIOS_TIMEOUT_S,
        )
        found = _ANSWERING.search(process.log_text())
        assert found is not None
        async with AsyncProducer(
            fresh_name("OurQuestions"), namesrv=servers.name_server, settings=PATIENT
        ) as producer:
            replies = await asyncio.gather(
                *(
                    producer.request(Message(found[1], b"request-%d" % number), timeout_ms=60_000)
                    for number in range(REQUESTS)
                )
            )
    assert [each.body for each in replies] == [b"reply to request-%d" % number for number in range(REQUESTS)]
    assert {each.tags for each in replies} == {"TagA"}


async def test_java_asks_and_we_answer(servers: Servers, java: ClientDriver) -> None:
    topic = f"FromJava-{java.name}"
    create_topic(servers.broker, topic, 2)
    consumer = AsyncPushConsumer(
        f"OurAnswers-{java.name}",
        namesrv=servers.name_server,
        settings=PushConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET),
    )
    async with AsyncProducer(
        f"OurAnswers-{java.name}", namesrv=servers.name_server, settings=PATIENT
    ) as producer:

        @consumer.subscribe(topic)
        async def answer(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                await producer.send(reply(message, b"reply to " + message.body))

        async with consumer:
            assert await asyncio.to_thread(java.run, "ask") == {"ask": None}
