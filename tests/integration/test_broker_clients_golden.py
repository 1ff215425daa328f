"""Captured requests of clients, byte for byte, to our broker: its answers are those of Apache's broker.

A capture keeps only some exchanges of each kind, and the broker in it had a history. Before each question
ours is taught what the captured answer shows that broker to have known: messages in queues, offsets, members.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.broker.clients import ConnectedClient
from skylark.broker.filters.compiled_subscription import PARSE_FAILED_REMARK
from skylark.model import java
from skylark.model.message import PutMessage
from skylark.protocol.bodies import QueueOffsets, decode_body
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.settings.fields import FAST_PORT_DISTANCE
from tests.support.broker import consumer, running_broker
from tests.support.clock import ManualClock
from tests.unit.broker.tables import FakeChannel
from tests.unit.protocol.golden_frames import FRAMES, NOT_FRAMES, lines
from tests.unit.remoting.rig import HOST, RawClient

CODES = {
    *(Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.GET_CONSUMER_LIST_BY_GROUP, Code.CHECK_CLIENT_CONFIG),
    *(Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET),
    *(Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.SEARCH_OFFSET_BY_TIMESTAMP),
    *(Code.GET_EARLIEST_MSG_STORETIME, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.QUERY_CORRECTION_OFFSET),
    *(Code.CONSUMER_SEND_MSG_BACK, Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET),
}
PEERS = ("client->broker", "client->broker-vip", "slave->broker")
UNANSWERED = {"push-sql": 1}  # the recording ends before the answer
WITH_ACCESS_CONTROL = ("auth",)
# Resets by clients, and messages at places of Apache's log, have tests of their own.
ELSEWHERE = {"client-reset": {222, 223}, "retry-dlq": {36}}
# Times of messages, and what was found by such times, are those of the recording.
OF_THEIR_TIME = {Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_EARLIEST_MSG_STORETIME}
TABLES = {Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET}
BEFORE_MS = 1_794_700_000_000  # before the recording


def asked(scenario: str) -> list[dict[str, Any]]:
    """The questions of a capture that these handlers answer."""
    return [
        line
        for line in lines(scenario)
        if line["kind"] != "response"
        and line["peer"] in PEERS
        and line["header"]["code"] in CODES - ELSEWHERE.get(scenario, set())
    ]


def scenarios() -> list[str]:
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in FRAMES.glob("*.jsonl.gz"))
    return [name for name in names if name not in (*NOT_FRAMES, *WITH_ACCESS_CONTROL) and asked(name)]


def plain(value: Any) -> Any:
    """A document in which the order of lists does not matter: Java's is that of its hash tables."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return sorted(map(plain, value), key=repr) if isinstance(value, list) else value


@dataclass
class Replay:
    """One capture against one broker."""

    broker: Broker
    captured: list[dict[str, Any]]
    connections: dict[int, RawClient] = field(default_factory=dict)
    notices: dict[int, list[str]] = field(default_factory=dict)

    async def run(self, questions: list[dict[str, Any]]) -> int:
        """Ask all questions; return how many were answered."""
        try:
            return await self._run(questions)
        finally:
            for client in self.connections.values():
                await client.close()

    async def _run(self, questions: list[dict[str, Any]]) -> int:
        answers = {
            (line["conn"], line["header"]["opaque"]): line
            for line in self.captured
            if line["kind"] == "response" and line["request_code"] in CODES
        }
        compared = 0
        for question in questions:
            expected = answers.get((question["conn"], question["header"]["opaque"]))
            self.learn(question, expected)
            client = await self.connection(question)
            await client.send(bytes.fromhex(question["frame_hex"]))
            if question["kind"] == "request":
                answer = await self.answer(question["conn"], client)
                if expected is not None:
                    self.compare(question, answer, expected)
                    compared += 1
        return compared

    async def connection(self, question: dict[str, Any]) -> RawClient:
        number = question["conn"]
        if number not in self.connections:
            port = self.broker.port - (FAST_PORT_DISTANCE if question["peer"].endswith("vip") else 0)
            self.connections[number] = RawClient(*await asyncio.open_connection(HOST, port))
        return self.connections[number]

    async def answer(self, number: int, client: RawClient) -> RemotingCommand:
        async with asyncio.timeout(60):
            while not (command := await client.receive()).is_response:
                assert (command.code, command.is_oneway) == (Code.NOTIFY_CONSUMER_IDS_CHANGED, True)
                self.notices.setdefault(number, []).append(command.fields["consumerGroup"])
        return command

    # --- What the captured broker knew ---

    def learn(self, question: dict[str, Any], expected: dict[str, Any] | None) -> None:
        fields = question["header"].get("extFields") or {}
        if expected is None:
            return
        code = expected["header"]["code"]
        if question["header"]["code"] == Code.UPDATE_CONSUMER_OFFSET:
            if code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                self.broker.groups.find(fields["consumerGroup"], now_ms=1)
            return
        if code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
            return
        told = expected["header"].get("extFields") or {}
        match question["header"]["code"]:
            case Code.GET_MAX_OFFSET:
                self.learn_messages(fields["topic"], int(fields["queueId"]), int(told["offset"]))
            case Code.QUERY_CONSUMER_OFFSET:
                self.learn_offset(fields, int(told["offset"]))
            case Code.GET_CONSUMER_LIST_BY_GROUP if code == ResponseCode.SUCCESS:
                self.learn_members(fields["consumerGroup"], java.loads(body_of(expected))["consumerIdList"])
            case Code.INVOKE_BROKER_TO_RESET_OFFSET:
                self.learn_reset(fields, expected)
            case Code.QUERY_CORRECTION_OFFSET:
                for queue_id, queue_offset in java.loads(body_of(expected))["correctionOffsets"].items():
                    self.broker.offsets.commit(fields["topic"], "Slowest", queue_id, queue_offset, now_ms=1)

    def learn_messages(self, topic: str, queue_id: int, count: int) -> None:
        if count == 0:
            return
        self.broker.topics.ensure_topic(topic, 4, now_ms=1)
        missing = count - self.broker.store.max_offset(topic, queue_id)
        self.broker.store.append([PutMessage(topic, queue_id, b"x") for _ in range(missing)])

    def learn_offset(self, fields: dict[str, str], queue_offset: int) -> None:
        topic, group, queue_id = fields["topic"], fields["consumerGroup"], int(fields["queueId"])
        if queue_offset == 0:
            self.learn_messages(topic, queue_id, 1)
        elif self.broker.offsets.query(topic, group, queue_id) != queue_offset:
            self.broker.offsets.commit(topic, group, queue_id, queue_offset, now_ms=1)

    def learn_members(self, group: str, client_ids: list[str]) -> None:
        known = {client.client_id for client in self.broker.consumers.clients(group)}
        for client_id in set(client_ids) - known:
            member = ConnectedClient(FakeChannel(), client_id, "JAVA", 479)
            now = self.broker.clock.monotonic()
            self.broker.consumers.register(member, consumer(group), notify=False, now=now)

    def learn_reset(self, fields: dict[str, str], expected: dict[str, Any]) -> None:
        self.broker.groups.find(fields["group"], now_ms=1)
        if expected["header"]["code"] != 0:
            return
        for queue, queue_offset in decode_body(body_of(expected), QueueOffsets).offset_table.items():
            self.learn_messages(queue.topic, queue.queue_id, queue_offset)

    # --- Comparing ---

    def compare(self, question: dict[str, Any], answer: RemotingCommand, expected: dict[str, Any]) -> None:
        header, code = expected["header"], question["header"]["code"]
        remark = answer.remark
        if expected["serialize"] == "ROCKETMQ":
            remark = remark or None  # such a header cannot tell an empty text from none
        if (header.get("remark") or "").startswith("org.apache.rocketmq.filter.parser."):
            assert (remark or "").startswith(PARSE_FAILED_REMARK)  # our parser tells of it in other words
            remark = header["remark"]
        assert (answer.code, answer.opaque, remark) == (
            header["code"],
            header["opaque"],
            header.get("remark"),
        ), question
        assert (answer.flag, answer.version, answer.language) == (1, header["version"], header["language"])
        fields = header.get("extFields") or {}
        if code in OF_THEIR_TIME:
            assert answer.fields.keys() == fields.keys()
        else:
            assert answer.fields == fields
        body, theirs = bytes(answer.body), body_of(expected)
        if code in TABLES:
            assert java.loads(body).keys() == java.loads(theirs).keys()
        else:
            assert plain(java.loads(body) if body else None) == plain(java.loads(theirs) if theirs else None)

    def captured_notices(self) -> dict[int, list[str]]:
        """The notices that came between a question and its answer, by connection."""
        found: dict[int, list[str]] = {}
        for line in self.captured:
            if line["kind"] == "oneway" and line["header"]["code"] == Code.NOTIFY_CONSUMER_IDS_CHANGED:
                found.setdefault(line["conn"], []).append(line["header"]["extFields"]["consumerGroup"])
        return found


def body_of(line: dict[str, Any]) -> bytes:
    text = line.get("body_utf8")
    return text.encode() if text is not None else bytes.fromhex(line.get("body_hex", ""))


@pytest.mark.parametrize("scenario", scenarios())
async def test_clients_are_answered_as_captured(tmp_path: Path, scenario: str) -> None:
    questions = asked(scenario)
    async with running_broker(tmp_path, clock=ManualClock(BEFORE_MS)) as broker:
        broker.topics.ensure_topic("TopicTest", 4, now_ms=1)
        replay = Replay(broker, list(lines(scenario)))
        compared = await replay.run(questions)
    requests = sum(question["kind"] == "request" for question in questions)
    assert compared == requests - UNANSWERED.get(scenario, 0)


async def test_members_hear_of_each_other_as_captured(tmp_path: Path) -> None:
    """Of this capture nothing was left out: who is told, and that it is before the answer."""
    questions = asked("probe-members")
    async with running_broker(tmp_path, clock=ManualClock(BEFORE_MS)) as broker:
        broker.topics.ensure_topic("TopicTest", 4, now_ms=1)
        replay = Replay(broker, list(lines("probe-members")))
        await replay.run([each for each in questions if each["header"]["code"] != Code.UNREGISTER_CLIENT])
    assert replay.notices == replay.captured_notices()


def test_the_captures_hold_what_is_asked() -> None:
    codes = {question["header"]["code"] for scenario in scenarios() for question in asked(scenario)}
    assert codes == CODES
