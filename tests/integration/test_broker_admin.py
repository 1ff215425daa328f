"""Captured questions of tools, byte for byte, to our broker on Apache's store: it answers as Apache's did.

The store is the one that the captured broker left behind, some time after most captures: records and queue
entries are the same bytes, numbers that grow are not. Clients that were online then are played here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.broker.filters.compiled_subscription import parse_subscription
from skylark.broker.handlers.broker_admin import BrokerAdminHandlers
from skylark.broker.handlers.groups import GroupHandlers
from skylark.broker.handlers.message_queries import MessageQueryHandlers
from skylark.broker.handlers.relay import RelayHandlers
from skylark.broker.handlers.served_requests import codes_of
from skylark.broker.handlers.stats import StatsHandlers
from skylark.broker.handlers.topics import TopicHandlers
from skylark.broker.monitoring.stats import Counter, TopicCounter
from skylark.model import java
from skylark.model.record import decode_all
from skylark.protocol.codes import RequestCode as Code
from skylark.protocol.command import RemotingCommand
from skylark.settings.fields import FAST_PORT_DISTANCE
from tests.support.broker import BrokerClient, consumer, running_broker, subscription
from tests.support.store import golden_settings, unpack_golden
from tests.unit.protocol.golden_frames import FRAMES, NOT_FRAMES, lines
from tests.unit.remoting.rig import HOST, RawClient

FAMILIES = (
    BrokerAdminHandlers, GroupHandlers, MessageQueryHandlers, RelayHandlers, StatsHandlers, TopicHandlers,
)  # fmt: skip
OURS = {int(code) for code in codes_of(*FAMILIES)}
SPOKEN = {int(Code.HEART_BEAT), int(Code.UNREGISTER_CLIENT)}  # said again, so that clients are online
OTHER_BROKERS = ("auth", "client-reset")  # with settings and stores of their own
CONSUMER_ID = "192.0.2.2@3609#2347815445549"
# Members whose value is a map from names: what they are called says nothing.
MAPS = {
    "attributes", "configTable", "data", "forbiddenTable", "messageRequestModeMap", "offsetTable",
    "runtimeTable", "subscriptionGroupTable", "subscriptionTable", "topicConfigTable",
    "topicQueueMappingDetailMap", "topicQueueMappingInfoMap",
}  # fmt: skip
# Only we have it, for `skylark doctor`.
FOR_DOCTOR = {"differentSubscriptions", "metricsAddress"}
# RocketMQ measures it, we do not.
UNMEASURED = {
    "getMessageEntireTimeMax", "putLatency99", "putLatency999", "putMessageDistributeTime",
    "putMessageEntireTimeMax",
}  # fmt: skip


def to_broker(scenario: str) -> list[dict[str, Any]]:
    return [line for line in lines(scenario) if line["peer"].endswith(("->broker", "->broker-vip"))]


def asks_us(line: dict[str, Any]) -> bool:
    return line["direction"] == "request" and line["kind"] == "request" and line["header"]["code"] in OURS


def scenarios() -> list[str]:
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in FRAMES.glob("*.jsonl.gz"))
    return [
        name
        for name in names
        if name not in (*NOT_FRAMES, *OTHER_BROKERS) and any(map(asks_us, to_broker(name)))
    ]


def body_of(line: dict[str, Any]) -> bytes:
    text = line.get("body_utf8")
    return text.encode() if text is not None else bytes.fromhex(line.get("body_hex", ""))


def shape(value: Any, path: str = "", *, is_map: bool = False) -> set[str]:
    """The members of a document and their types, entries of maps and lists put together."""
    if isinstance(value, dict):
        found = {f"{path}{{}}"}
        for name, item in value.items():
            inner = isinstance(name, str) and name in MAPS
            # The lists of 317 hold maps from a group, those of modes maps from a topic.
            nested = is_map and path.endswith(("messageRequestModeMap", "forbiddenTable"))
            called = "*" if is_map or path.endswith("consumeStatsList[]") else str(name)
            found |= shape(item, f"{path}.{called}", is_map=inner or nested)
        return found
    if isinstance(value, list):
        return {f"{path}[]"}.union(*(shape(item, f"{path}[]") for item in value))
    return {f"{path}:{type(value).__name__}"}


@dataclass
class Replay:
    """One capture against one broker."""

    broker: Broker
    answered: int = 0
    connections: dict[tuple[int, str], RawClient] = field(default_factory=dict)

    async def run(self, captured: list[dict[str, Any]]) -> None:
        answers = {
            (line["conn"], line["header"]["opaque"]): line
            for line in captured
            if line["kind"] == "response" and line["direction"] == "response"
        }
        for question in captured:
            expected = answers.get((question["conn"], question["header"]["opaque"]))
            if question["direction"] != "request" or question["kind"] != "request" or expected is None:
                continue
            if question["header"]["code"] in OURS:
                self.learn(question, expected)
                compare(await self.ask(question), question, expected)
                self.answered += 1
            elif question["header"]["code"] in SPOKEN:
                await self.ask(question)

    def learn(self, question: dict[str, Any], expected: dict[str, Any]) -> None:
        """Forget what Apache's broker did not know yet, and know what it had been told before."""
        fields = question["header"].get("extFields", {})
        if expected["header"]["code"]:
            return
        if question["header"]["code"] == Code.UPDATE_AND_CREATE_TOPIC:
            self.broker.topics.delete(fields["topic"], now_ms=0)
        elif question["header"]["code"] == Code.VIEW_BROKER_STATS_DATA:
            topic, _, group = fields["statsKey"].partition("@")
            if group:
                self.broker.stats.group_gets.setdefault((topic, group), Counter())
            else:
                self.broker.stats.topic_puts.setdefault(topic, TopicCounter())
        elif question["header"]["code"] == Code.QUERY_CONSUME_QUEUE and "consumerGroup" in fields:
            pulled = parse_subscription(fields["topic"], "*", "TAG", now_ms=1)
            self.broker.consumers.compensate(
                fields["consumerGroup"], pulled, now=self.broker.clock.monotonic()
            )

    async def ask(self, question: dict[str, Any]) -> RemotingCommand:
        key = question["conn"], question["peer"]
        if key not in self.connections:
            distance = FAST_PORT_DISTANCE if question["peer"].endswith("vip") else 0
            opened = await asyncio.open_connection(HOST, self.broker.port - distance)
            self.connections[key] = RawClient(*opened)
        client = self.connections[key]
        await client.send(bytes.fromhex(question["frame_hex"]))
        while True:
            answer = await client.receive()
            if answer.is_response:
                return answer


def compare(answer: RemotingCommand, question: dict[str, Any], expected: dict[str, Any]) -> None:
    header = expected["header"]
    code = question["header"]["code"]
    assert (answer.code, answer.opaque, answer.remark) == (
        header["code"],
        header["opaque"],
        header.get("remark"),
    ), question["header"]
    assert (answer.flag, answer.version, answer.language) == (1, header["version"], header["language"])
    assert answer.fields.keys() == header.get("extFields", {}).keys()
    ours, theirs = bytes(answer.body), body_of(expected)
    assert bool(ours) == bool(theirs), question["header"]
    match code:
        case Code.VIEW_MESSAGE_BY_ID:
            assert ours == theirs, "records are passed on as they are"
        case Code.QUERY_MESSAGE:
            known = int(header["extFields"]["indexLastUpdatePhyoffset"])
            assert records_up_to(known, ours) == theirs
        case Code.GET_BROKER_CONFIG:
            compare_configurations(ours.decode(), theirs.decode())
        case Code.GET_BROKER_RUNTIME_INFO:
            compare_runtime_infos(java.loads(ours)["table"], java.loads(theirs)["table"])
        case _ if ours:
            compare_documents(code, java.loads(ours), java.loads(theirs))


def records_up_to(physical_offset: int, records: bytes) -> bytes:
    """Those records that were there when the log ended soon after this offset."""
    sizes = [message.size for message in decode_all(records) if message.physical_offset <= physical_offset]
    return records[: sum(sizes)]


def compare_documents(code: int, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    mine, captured = shape(ours), shape(theirs)
    # Apache's tables hold entries that ours have not, and the other way round: only entries may differ.
    assert {path for path in mine ^ captured if "*" not in path and "[]." not in path} == set()
    assert mine <= captured or captured <= mine, mine ^ captured
    if code == Code.QUERY_CONSUME_QUEUE:
        assert ours["queueData"] == theirs["queueData"]
    if code == Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER:
        assert set(ours["topicList"]) == set(theirs["topicList"])


def compare_configurations(text: str, captured: str) -> None:
    """Lines of the same form, sorted; the keys are Apache's, and most values too."""
    ours, theirs = (dict(line.split("=", 1) for line in part.splitlines()) for part in (text, captured))
    assert text.splitlines() == sorted(text.splitlines())
    shared = ours.keys() & theirs.keys()
    assert len(shared) >= 70
    different = {key for key in shared if ours[key] != theirs[key]}
    of_the_machine = {"listenPort", "haListenPort", "namesrvAddr", "storePathRootDir", "storePathCommitLog"}
    of_the_test = {
        "brokerIP1", "brokerIP2", "flushConsumerOffsetInterval", "flushDelayOffsetInterval",
        "flushIntervalCommitLog", "metricsPromExporterPort", "registerBrokerTimeoutMills",
        "registerNameServerPeriod", "traceTopicEnable", "transactionCheckInterval", "transactionCheckMax",
        "mappedFileSizeTimerLog",
    }  # fmt: skip
    on_purpose = {
        "allAckInSyncStateSet", "brokerHeartbeatInterval", "controllerHeartBeatTimeoutMills",
        "enablePopBufferMerge", "haTransferBatchSize", "inSyncReplicas", "reviveInterval",
        "sendHeartbeatTimeoutMillis", "syncBrokerMetadataPeriod",
    }  # fmt: skip
    assert different <= of_the_machine | of_the_test | on_purpose


def compare_runtime_infos(ours: dict[str, str], theirs: dict[str, str]) -> None:
    def names(table: dict[str, str]) -> set[str]:
        return {
            name
            for name in table
            if not name.startswith(("scheduleMessageOffset_", "commitLogDiskRatio_", "replication"))
        }

    assert names(theirs) - names(ours) == UNMEASURED
    assert names(ours) - names(theirs) == FOR_DOCTOR
    assert all(isinstance(value, str) for value in ours.values())
    assert {name for name in theirs if name.startswith("scheduleMessageOffset_")} <= ours.keys()


@pytest.fixture(scope="module")
def left_behind(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Apache's store, without the large file of its timers."""
    root = unpack_golden(golden, "clean", tmp_path_factory.mktemp("apache"))
    (root / "timerwheel").unlink()
    return root


@contextlib.asynccontextmanager
async def on_apaches_store(golden: Path, left_behind: Path, directory: Path) -> AsyncIterator[Broker]:
    root = directory / "store"
    await asyncio.to_thread(shutil.copytree, left_behind, root)
    layout = dataclasses.asdict(golden_settings(golden, root))
    kept = {"clean_first_delay_ms": 10**9, "flush_interval_ms": 10}
    async with running_broker(
        root,
        store={**layout, **kept},
        name="broker-a",
        cluster="DefaultCluster",
        trace_topic=True,
        metrics_port=0,
    ) as broker:
        yield broker


@contextlib.asynccontextmanager
async def clients_online(broker: Broker) -> AsyncIterator[None]:
    """The consumer and the producer that ran beside the captured tools."""
    tags = subscription("TopicTest", "TagA || TagB")
    tags.tags_set, tags.code_set = ["TagA", "TagB"], [2598919, 2598920]
    async with (
        BrokerClient(broker.address, CONSUMER_ID) as consuming,
        BrokerClient(broker.address, "192.0.2.2@3609#2349556036017") as producing,
    ):
        answers = {
            line["request_code"]: body_of(line)
            for scenario in ("admin-consumerStatus", "admin-queryMsgById")
            for line in to_broker(scenario)
            if line["kind"] == "response" and line["direction"] == "request"
        }
        consuming.on_request = lambda command: (
            command.reply(remark="not set any response code", body=answers[command.code])
            if command.code in answers
            else None
        )
        await consuming.heartbeat(consumer("CG_admin", [tags, "%RETRY%CG_admin"]))
        await producing.heartbeat(producers=["PG_online", "CLIENT_INNER_PRODUCER"])
        yield


@pytest.mark.parametrize("scenario", scenarios())
async def test_tools_are_answered_as_captured(
    golden: Path, left_behind: Path, tmp_path: Path, scenario: str
) -> None:
    captured = to_broker(scenario)
    async with (
        on_apaches_store(golden, left_behind, tmp_path) as broker,
        contextlib.AsyncExitStack() as stack,
    ):
        if scenario.startswith("admin"):
            await stack.enter_async_context(clients_online(broker))
        replay = Replay(broker)
        try:
            await replay.run(captured)
        finally:
            for client in replay.connections.values():
                await client.close()
    assert replay.answered == sum(
        line["kind"] == "response" and line["direction"] == "response" and line["request_code"] in OURS
        for line in captured
    )


def test_nearly_all_of_administration_was_captured() -> None:
    """What no capture holds is tested by hand, in `tests/unit/broker/handlers`."""
    asked = {line["header"]["code"] for name in scenarios() for line in to_broker(name) if asks_us(line)}
    assert {Code(code).name for code in OURS - asked} == {
        "CHECK_ROCKSDB_CQ_WRITE_PROGRESS",
        "EXPORT_ROCKSDB_CONFIG_TO_JSON",
        "POP_ROLLBACK",
        "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
        "RESET_MASTER_FLUSH_OFFSET",
        "SET_COMMITLOG_READ_MODE",
        "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
        "UPDATE_AND_CREATE_TOPIC_LIST",
        "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
    }
