"""Requests of our pull consumer and our admin have Java's fields, and its values where those are fixed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from skylark.admin.admin import Admin
from skylark.admin.offsets import END
from skylark.client.consumer.pull_consumer import PullConsumer
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import PREFIX_BYTES, Buffer, Encoding, RemotingCommand, decode_header
from skylark.protocol.request import Request
from skylark.protocol.requests.pull import PullMessage
from skylark.settings.client import ClientSettings, ConsumeFrom, PullConsumerSettings
from skylark.testing import EmbeddedServers
from tests.support.broker import BrokerClient
from tests.unit.protocol.golden_frames import lines

TOPIC = "TopicTest"
STREAM_FIELD = "ReqT"
"""What Java's stream clients add to everything; no broker reads it."""
FIXED = {"sysFlag", "maxMsgNums", "maxMsgBytes", "suspendTimeoutMillis", "commitOffset", "expressionType",
         "boundaryType", "committed", "subVersion"}  # fmt: skip


def java_fields(scenario: str, code: Code) -> list[dict[str, str]]:
    """The ext fields of all requests of a code that a Java client sent in a captured scenario."""
    return [
        line["header"].get("extFields") or {}
        for line in lines(scenario)
        if line["header"]["code"] == code and line["direction"] == "request" and line["kind"] != "response"
    ]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[RemotingCommand]:
    """All requests that are made from now on; pulls as their frames, which templates make."""
    commands: list[RemotingCommand] = []
    to_command, frame = Request.to_command, PullMessage.frame

    def noted(self: Request[Any], *, oneway: bool = False) -> RemotingCommand:
        command = to_command(self, oneway=oneway)
        if not isinstance(self, PullMessage):
            commands.append(command)
        return command

    def framed(self: PullMessage, opaque: int) -> list[Buffer]:
        parts = frame(self, opaque)
        commands.append(decode_header(Encoding.JSON, memoryview(b"".join(parts))[PREFIX_BYTES:]))
        return parts

    monkeypatch.setattr(Request, "to_command", noted)
    monkeypatch.setattr(PullMessage, "frame", framed)
    return commands


@pytest.fixture
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers() as running:
        running.create_topic(TOPIC)

        async def send() -> None:
            async with BrokerClient(running.broker_address) as client:
                for number in range(8):
                    await client.send(
                        TOPIC, b"%d" % number, number % 4, properties={"TAGS": "TagA", "KEYS": "k"}
                    )

        asyncio.run(send())
        yield running


def assert_as_java(sent: list[RemotingCommand], scenario: str, codes: list[Code]) -> None:
    for code in codes:
        ours = [command.fields for command in sent if command.code == code]
        assert ours, f"{code.name} was not sent"
        java = java_fields(scenario, code)
        assert java, f"{code.name} is not in {scenario}"
        names = {frozenset(fields) - {STREAM_FIELD} for fields in java}
        for fields in ours:
            assert frozenset(fields) in names, f"{code.name}: {sorted(fields)}"
            for name in FIXED & fields.keys() - _varying(java):
                assert fields[name] == java[0][name], f"{code.name} {name}"


def _varying(java: list[dict[str, str]]) -> set[str]:
    return {name for name in java[0] if len({fields.get(name) for fields in java}) > 1}


def test_the_requests_of_a_pull_consumer(servers: EmbeddedServers, sent: list[RemotingCommand]) -> None:
    settings = PullConsumerSettings(consume_from=ConsumeFrom.FIRST_OFFSET)
    client = ClientSettings(client_ip="127.0.0.1")
    with PullConsumer("CG_lite", namesrv=servers.namesrv, settings=settings, client=client) as consumer:
        consumer.subscribe(TOPIC, "TagA")
        seen = 0
        while seen < 8:
            seen += len(consumer.poll(10_000))
        consumer.commit(wait=False)
        queue = consumer.assignment()[0]
        consumer.seek(queue, 0)
        consumer.seek_to_time(queue, 1_794_718_857_061)
    assert_as_java(
        sent,
        "lite-pull",
        [
            Code.LITE_PULL_MESSAGE,
            Code.QUERY_CONSUMER_OFFSET,
            Code.UPDATE_CONSUMER_OFFSET,
            Code.GET_MIN_OFFSET,
            Code.GET_MAX_OFFSET,
            Code.SEARCH_OFFSET_BY_TIMESTAMP,
            Code.GET_CONSUMER_LIST_BY_GROUP,
            Code.GET_ROUTEINFO_BY_TOPIC,
            Code.UNREGISTER_CLIENT,
        ],
    )


def test_the_requests_of_plain_pulls(servers: EmbeddedServers, sent: list[RemotingCommand]) -> None:
    with PullConsumer("CG_pull", namesrv=servers.namesrv) as consumer:
        [queue, *_] = consumer.queues(TOPIC)
        consumer.pull(queue, "*", 0, 4)
    assert_as_java(sent, "pull", [Code.PULL_MESSAGE])


ADMIN: list[tuple[str, list[Code]]] = [
    ("admin-topicStatus", [Code.GET_TOPIC_STATS_INFO]),
    ("admin-updateTopic", [Code.UPDATE_AND_CREATE_TOPIC]),
    ("admin-deleteTopic", [Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV]),
    ("admin-deleteSubGroup", [Code.DELETE_SUBSCRIPTIONGROUP]),
    ("admin-consumerProgress", [Code.GET_CONSUME_STATS]),
    ("admin-queryMsgByKey", [Code.QUERY_MESSAGE]),
    ("admin-updateKvConfig", [Code.PUT_KV_CONFIG]),
    ("admin-deleteKvConfig", [Code.DELETE_KV_CONFIG]),
    ("admin-wipeWritePerm", [Code.WIPE_WRITE_PERM_OF_BROKER]),
    ("admin-addWritePerm", [Code.ADD_WRITE_PERM_OF_BROKER]),
    ("admin-skipAccumulatedMessage", [Code.INVOKE_BROKER_TO_RESET_OFFSET]),
    ("admin-brokerConsumeStats", [Code.GET_BROKER_CONSUME_STATS]),
    ("admin-queryCq", [Code.QUERY_CONSUME_QUEUE]),
]


def test_the_requests_of_an_admin(servers: EmbeddedServers, sent: list[RemotingCommand]) -> None:
    with Admin(namesrv=servers.namesrv) as admin:
        admin.topics.create("Made")
        admin.topics.stats(TOPIC)
        admin.groups.create("G")
        admin.groups.progress("G")
        admin.messages.by_key(TOPIC, "k")
        admin.messages.units(admin.topics.queues(TOPIC)[0], 0, 2)
        admin.name_servers.put("n", "k", "v")
        admin.name_servers.delete("n", "k")
        admin.brokers.wipe_write_permission("broker-a")
        admin.brokers.add_write_permission("broker-a")
        admin.brokers.consume_stats("broker-a")
        admin.offsets.reset("G", TOPIC, END)
        admin.groups.delete("G", cluster="DefaultCluster")
        admin.topics.delete("Made", cluster="DefaultCluster")
    for scenario, codes in ADMIN:
        assert_as_java(sent, scenario, codes)
