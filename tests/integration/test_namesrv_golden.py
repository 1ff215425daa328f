"""Captured requests, byte for byte, to our name server: its answers are those of Apache's name server.

A capture keeps only some exchanges of each kind, so the server now and then knows what no kept request has
told it. Before each question the replay tells ours what the captured answer shows to be missing, and keeps
account of it: `learned`. What kept requests have told is not told again.
"""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.errors import BrokerError
from skylark.model import java
from skylark.protocol.bodies import DataVersion, QueueData, RegisterBrokerBody, TopicConfig, TopicConfigTable
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.name_server import (
    GetAllTopicListFromNameServer,
    GetRouteInfoByTopic,
    PutKvConfig,
    RegisterBroker,
)
from tests.integration.test_namesrv import Caller, running, until
from tests.unit.namesrv.registering import with_body
from tests.unit.protocol.golden_frames import FRAMES, NOT_FRAMES, lines
from tests.unit.remoting.rig import HOST, RawClient

# Written by brokers and by a script that asks what no client does: the order of these matters.
OF_BROKERS = ("broker-namesrv", "slave-namesrv", "binary-server-namesrv", "probe-namesrv")
CLUSTER = "DefaultCluster"
SECOND_RECORDING = 100_000  # serial numbers from here on are of another name server
UNKNOWABLE = {("wipeTopicCount", "55"), ("addTopicCount", "55")}  # topics, of which the kept answers name one
SET_LIKE = {"topicList", "brokerDatas", "queueDatas"}  # Java's order is that of its hash tables


def to_name_server(scenario: str) -> list[dict[str, Any]]:
    return [line for line in lines(scenario) if line["peer"].endswith("->namesrv")]


def scenarios() -> list[str]:
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in FRAMES.glob("*.jsonl.gz"))
    return [name for name in names if name not in (*NOT_FRAMES, *OF_BROKERS) and to_name_server(name)]


def body_of(line: dict[str, Any]) -> bytes:
    text = line.get("body_utf8")
    return text.encode() if text is not None else bytes.fromhex(line.get("body_hex", ""))


def plain(value: Any) -> Any:
    """A document in which the order of what has none does not matter."""
    if isinstance(value, dict):
        return {
            str(key): sorted(plain(item), key=repr) if key in SET_LIKE else plain(item)
            for key, item in value.items()
        }
    return [plain(item) for item in value] if isinstance(value, list) else value


@dataclass
class Replay:
    """One capture against one server."""

    server: Any
    knower: Caller  # speaks for brokers whose own words were not kept
    learned: set[str] = field(default_factory=set)
    answered: int = 0
    connections: dict[int, RawClient] = field(default_factory=dict)
    registrants: dict[str, int] = field(default_factory=dict)  # addresses, and the connections they came over
    versions: Any = field(default_factory=lambda: itertools.count(1_000))

    async def run(self, captured: list[dict[str, Any]]) -> None:
        answers = {
            (line["conn"], line["header"]["opaque"]): line for line in captured if line["kind"] == "response"
        }
        questions = [line for line in captured if line["kind"] == "request"]
        for number, question in enumerate(questions):
            expected = answers.get((question["conn"], question["header"]["opaque"]))
            if expected is None:
                continue
            await self.learn(question, expected)
            await self.ask(question, expected)
            if all(later["conn"] != question["conn"] for later in questions[number + 1 :]):
                await self.close(question["conn"])

    async def ask(self, question: dict[str, Any], expected: dict[str, Any]) -> None:
        number = question["conn"]
        if number not in self.connections:
            self.connections[number] = RawClient(*await asyncio.open_connection(HOST, self.server.port))
        client = self.connections[number]
        await client.send(bytes.fromhex(question["frame_hex"]))
        if question["header"]["code"] == Code.REGISTER_BROKER:
            self.registrants[question["header"]["extFields"]["brokerAddr"]] = number
        compare(await client.receive(), expected)
        self.answered += 1

    async def close(self, number: int) -> None:
        """End a connection where its capture ends; the server has then removed the brokers behind it."""
        await self.connections.pop(number).close()
        gone = {address for address, registrant in self.registrants.items() if registrant == number}

        async def is_gone() -> bool:
            return not gone & {
                address for members in (await self.knower.members()).values() for address in members.values()
            }

        await until(is_gone)

    # --- What the captured server knew ---

    async def learn(self, question: dict[str, Any], expected: dict[str, Any]) -> None:
        header, body = expected["header"], body_of(expected)
        if header["code"] != 0:
            return
        fields = header.get("extFields", {})
        match expected["request_code"]:
            case Code.GET_ROUTEINFO_BY_TOPIC:
                await self.learn_route(question["header"]["extFields"]["topic"], java.loads(body))
            case Code.GET_BROKER_CLUSTER_INFO:
                await self.learn_brokers(java.loads(body)["brokerAddrTable"].values())
            case Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER | Code.GET_TOPICS_BY_CLUSTER:
                known = (await self.knower.ask(GetAllTopicListFromNameServer())).topic_list
                for topic in set(java.loads(body)["topicList"]) - set(known):
                    await self.tell("broker-a", topic, {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6})
            case Code.REGISTER_BROKER:
                asked = question["header"]["extFields"]
                if (
                    b'"topicConfigTable":{' in body_of(question)
                    and body_of(question).count(b'"topicName"') == 1
                ):
                    await self.tell_broker(
                        asked["brokerName"],
                        int(asked["brokerId"]),
                        asked["brokerAddr"],
                        asked["haServerAddr"],
                    )
                if "masterAddr" in fields:
                    await self.tell_broker("broker-a", 0, fields["masterAddr"], fields["haServerAddr"])
                for key, value in java.loads(body)["table"].items() if body else ():
                    await self.tell_value("ORDER_TOPIC_CONFIG", key, value)
            case Code.GET_KV_CONFIG:
                asked = question["header"]["extFields"]
                await self.tell_value(asked["namespace"], asked["key"], fields["value"])

    async def learn_route(self, topic: str, route: dict[str, Any]) -> None:
        await self.learn_brokers(route["brokerDatas"])
        try:
            known = (await self.knower.ask(GetRouteInfoByTopic(topic))).queue_datas
        except BrokerError:
            known = []
        for queues in route["queueDatas"]:
            if msgspec.convert(queues, QueueData) not in known:
                await self.tell(queues["brokerName"], topic, queues)

    async def learn_brokers(self, brokers: Iterable[dict[str, Any]]) -> None:
        for broker in brokers:
            for broker_id, address in broker["brokerAddrs"].items():
                await self.tell_broker(broker["brokerName"], int(broker_id), address, address)

    async def tell_broker(self, name: str, broker_id: int, address: str, ha_address: str) -> None:
        if (await self.knower.members()).get(name, {}).get(broker_id) == address:
            return
        self.learned.add(name)
        await self.register(name, broker_id, address, ha_address, {})

    async def tell(self, name: str, topic: str, queues: dict[str, Any]) -> None:
        self.learned.add(topic)
        members = await self.knower.members()
        if name not in members:
            await self.tell_broker(name, 0, "127.0.0.2:20911", "127.0.0.2:20912")
            members = await self.knower.members()
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues["readQueueNums"],
            write_queue_nums=queues["writeQueueNums"],
            perm=queues["perm"],
        )
        await self.register(name, 0, members[name][0], "127.0.0.2:20912", {topic: config})

    async def tell_value(self, namespace: str, key: str, value: str) -> None:
        await self.knower.ask(PutKvConfig(namespace, key, value))

    async def register(
        self, name: str, broker_id: int, address: str, ha_address: str, configs: dict[str, TopicConfig]
    ) -> None:
        self.registrants.pop(address, None)
        version = DataVersion(counter=next(self.versions))
        table = TopicConfigTable(topic_config_table=configs, data_version=version)
        request = RegisterBroker(
            broker_name=name,
            broker_addr=address,
            cluster_name=CLUSTER,
            ha_server_addr=ha_address,
            broker_id=broker_id,
            enable_acting_master=False,
        )
        await self.knower.ask(with_body(request, RegisterBrokerBody(topic_config_serialize_wrapper=table)))


def compare(answer: RemotingCommand, expected: dict[str, Any]) -> None:
    """Hold an answer against the captured one: header, fields, remark, and what the body means."""
    header = expected["header"]
    assert (answer.code, answer.opaque, answer.remark) == (
        header["code"],
        header["opaque"],
        header.get("remark"),
    ), expected
    assert (answer.flag, answer.version, answer.language) == (1, header["version"], header["language"])
    fields = header.get("extFields", {})
    assert answer.fields.keys() == fields.keys()
    known = {key: value for key, value in fields.items() if (key, value) not in UNKNOWABLE}
    assert answer.fields.items() >= known.items()
    body, captured = bytes(answer.body), body_of(expected)
    if expected["request_code"] == Code.GET_NAMESRV_CONFIG:
        compare_configurations(body.decode(), captured.decode())
        return
    assert bool(body) == bool(captured)
    if body:
        assert plain(java.loads(body)) == plain(java.loads(captured))
        assert (b'{"0":' in body, b"{0:" in body) == (b'{"0":' in captured, b"{0:" in captured)


def compare_configurations(text: str, captured: str) -> None:
    """Lines of the same form, sorted; what both servers have means the same where the machine has no say."""
    ours, theirs = (dict(line.split("=", 1) for line in part.splitlines()) for part in (text, captured))
    assert text.endswith("\n")
    assert text.splitlines() == sorted(text.splitlines())
    shared = ours.keys() & theirs.keys()
    assert len(shared) >= 12
    of_the_machine = {"listenPort", "bindAddress", "kvConfigPath", "configStorePath"}
    assert {key: ours[key] for key in shared - of_the_machine} == {
        key: theirs[key] for key in shared - of_the_machine
    }


async def replayed(captured: list[dict[str, Any]], directory: Path) -> Replay:
    """Replay a capture to a server of its own."""
    async with running(directory) as server, Caller(server) as knower:
        replay = Replay(server, knower)
        try:
            await replay.run(captured)
        finally:
            for client in replay.connections.values():
                await client.close()
    assert replay.answered == sum(line["kind"] == "response" for line in captured)
    return replay


async def test_a_broker_is_answered_as_captured(tmp_path: Path) -> None:
    replay = await replayed(to_name_server("broker-namesrv"), tmp_path)
    assert replay.learned == {"%RETRY%CG_pop", "TopicPop"}


async def test_a_broker_with_binary_headers_is_answered_as_captured(tmp_path: Path) -> None:
    replay = await replayed(to_name_server("binary-server-namesrv"), tmp_path)
    assert replay.learned == set()


async def test_a_slave_is_answered_as_captured(tmp_path: Path) -> None:
    replay = await replayed(to_name_server("slave-namesrv"), tmp_path)
    assert replay.learned == {"broker-a"}, "the master alone"


async def test_the_rules_are_those_that_a_script_has_found(tmp_path: Path) -> None:
    replay = await replayed(to_name_server("probe-namesrv"), tmp_path)
    assert not {topic for topic in replay.learned if topic.startswith("Z")}
    assert "broker-z" not in replay.learned


@pytest.mark.parametrize("scenario", scenarios())
async def test_clients_and_tools_are_answered_as_captured(tmp_path: Path, scenario: str) -> None:
    captured = to_name_server(scenario)
    first = [line for line in captured if line["n"] < SECOND_RECORDING]
    second = [line for line in captured if line["n"] >= SECOND_RECORDING]
    for part in (first, second):
        await replayed(part, tmp_path / str(len(part)))
