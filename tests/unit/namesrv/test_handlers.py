"""What the handlers answer, asked without a network."""

import inspect
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.auth.access_control import AccessControl
from skylark.errors import BrokerError, RemoteProtocolError, SettingsError, TopicNotExist
from skylark.namesrv.handlers import DECODE_BYTES_ON_LOOP, ROUTES, EncodedRoutes, NameServerState, SavedFile
from skylark.namesrv.kv_config import KvConfig, decode_tables, encode_tables
from skylark.namesrv.route_table import RouteTable
from skylark.protocol.bodies import DataVersion, QueueData, TopicRouteData
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests import name_server as requests
from skylark.settings import NameServerSettings
from skylark.settings.loader import to_properties
from tests.support.clock import ManualClock
from tests.unit.namesrv.registering import CLUSTER, V1, V2, addresses, registration, topics, with_body

# Request codes by who answers them, as RocketMQ numbers them.
NAME_SERVERS_CODES = "100-106 205 206 216 217 219 224 304 311-313 318 319 322 327 901 904 3001-3010"
BROKERS_CODES = (
    "10-15 17 18 21-23 25-38 41-43 45-47 50-54 60 61 200-204 207-215 222 223 225 300-303 305-310"
    " 314-317 320 321 323-325 328 329 343 345 351-355 361 370 400-402 513 902 903 906-908 1007"
    " 2001-2004 5001 200050-200056 200070-200079 200151"
)
CODES_WITHOUT_FIELDS = "106 206 304 311-313 318 319 3001-3010"
CLIENTS_CODES = "39 40 220 221 326"
ANNOUNCEMENTS_TO_BROKERS = "905 1008"
CONTROLLERS_CODES = "1001-1006 1009-1018"


def numbers(text: str) -> set[int]:
    """`1 3-5` is 1, 3, 4, 5; of a range only what exists."""
    known = {int(code) for code in RequestCode}
    ranges = [(part.partition("-")[0], part.rpartition("-")[2]) for part in text.split()]
    return {code for low, high in ranges for code in range(int(low), int(high) + 1) if code in known}


@dataclass(eq=False)
class Connection:
    """A connection that we can end."""

    is_closed: bool = False


class Desk:
    """Handlers with everything they need, and one connection to ask over."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.executor = ThreadPoolExecutor(1)
        self.connection = Connection()
        self.settings = NameServerSettings(
            kv_config_path=directory / "kvConfig.json", config_path=directory / "namesrv.conf"
        )
        kv = KvConfig(entries_max=100, chars_max=1000)
        access = AccessControl(self.settings.auth, directory, self.clock, cluster="C")
        self.state = NameServerState(
            settings=self.settings,
            clock=self.clock,
            routes=RouteTable(self.settings),
            kv_config=kv,
            kv_file=SavedFile(
                directory / "kvConfig.json", self.executor, snapshot=kv.snapshot, encode=encode_tables
            ),
            config_file=SavedFile(
                directory / "namesrv.conf",
                self.executor,
                snapshot=lambda: to_properties(self.state.settings),
                encode=str.encode,
            ),
            users=access.administration,
            user_files=(
                self._user_file(access.users_path, access.store.users_snapshot),
                self._user_file(access.acls_path, access.store.acls_snapshot),
            ),
            decoder=self.executor,
            started_at=0,
        )

    def _user_file(
        self, path: Path, snapshot: Callable[[], Callable[[], bytes]]
    ) -> SavedFile[Callable[[], bytes]]:
        return SavedFile(path, self.executor, snapshot=snapshot, encode=lambda encode: encode())

    async def ask(self, request: Request[Any], **changes: Any) -> RemotingCommand:
        command = request.to_command()
        for name, value in changes.items():
            setattr(command, name, value)
        answer = ROUTES[RequestCode(command.code)](self.state, self.connection, command)
        return await answer if inspect.isawaitable(answer) else answer

    async def register(self, *names: str, **fields: Any) -> RemotingCommand:
        return await self.ask(with_body(registration(**fields), topics(*(names or ("t1", "t2")))))

    def change(self, **changes: Any) -> None:
        self.state.settings = replace(self.state.settings, **changes)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    with desk.executor:
        yield desk


def test_every_request_code_is_served_or_listed_as_unsupported() -> None:
    served = numbers(NAME_SERVERS_CODES)
    unsupported = numbers(
        " ".join([BROKERS_CODES, CLIENTS_CODES, ANNOUNCEMENTS_TO_BROKERS, CONTROLLERS_CODES])
    )
    assert {int(code) for code in ROUTES} == served
    assert served.isdisjoint(unsupported)
    assert served | unsupported == {int(code) for code in RequestCode}


# --- Registration ---


async def test_the_checksum_of_a_registration_is_checked(desk: Desk) -> None:
    request = with_body(registration(), topics("t1", "t2"))
    answer = await desk.ask(msgspec.structs.replace(request, body_crc32=1))
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert desk.state.routes.topics().topic_list == []
    checksum = zlib.crc32(request.body) & 0x7FFFFFFF
    assert (await desk.ask(msgspec.structs.replace(request, body_crc32=checksum))).code == 0
    assert desk.state.routes.topics().topic_list == ["t1", "t2"]


def compressed(*names: str, with_mappings: bool) -> bytes:
    """A compressed table; brokers before RocketMQ 5 know neither attributes nor mappings."""
    texts = [f"{name} 4 8 6 SINGLE_TAG{' {}' if with_mappings else ''}".encode() for name in names]
    version = b'{"counter":1,"timestamp":0}'
    parts = [struct.pack(">i", len(version)), version, struct.pack(">i", len(texts))]
    for text in [*texts, b"[]"]:
        parts += [struct.pack(">i", len(text)), text]
    return zlib.compress(b"".join(parts) + (bytes(4) if with_mappings else b""), 9)


@pytest.mark.parametrize(("version", "with_mappings"), [(399, False), (479, True)])
async def test_compressed_registrations_of_both_ages_are_read(
    desk: Desk, version: int, with_mappings: bool
) -> None:
    body = compressed("t1", "t2", with_mappings=with_mappings)
    request = msgspec.structs.replace(
        registration(), body=body, compressed=True, body_crc32=zlib.crc32(body) & 0x7FFFFFFF
    )
    assert (await desk.ask(request, version=version)).code == 0
    [queues] = desk.state.routes.route("t2").queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 8, 6)


async def test_the_tables_of_rocketmq_4_are_read(desk: Desk) -> None:
    topic = {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
    }
    wrapper = {
        "dataVersion": {"counter": 1, "timestamp": 7},
        "topicConfigTable": {
            name: {**topic, "topicName": name, "writeQueueNums": 4} for name in ("t1", "t2")
        },
    }
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
    assert (await desk.ask(msgspec.structs.replace(registration(), body=body), version=399)).code == 0
    assert desk.state.routes.topics().topic_list == ["t1", "t2"]
    question = requests.QueryDataVersion("broker-a", "10.0.0.1:10911", CLUSTER, 0, body=DataVersion(0, 7, 1))
    assert (await desk.ask(question)).fields == {"changed": "false"}


async def test_a_broker_without_topics_may_register(desk: Desk) -> None:
    assert (await desk.ask(registration())).code == 0
    assert list(desk.state.routes.cluster_info().broker_addr_table) == ["broker-a"]


async def test_a_large_registration_is_read_off_the_loop(desk: Desk) -> None:
    names = [f"topic-{number:05}" for number in range(2000)]
    request = with_body(registration(), topics(*names))
    assert len(request.body) > DECODE_BYTES_ON_LOOP
    command = request.to_command()
    answer = ROUTES[RequestCode.REGISTER_BROKER](desk.state, desk.connection, command)
    assert inspect.isawaitable(answer)
    assert desk.state.routes.topics().topic_list == []
    assert (await answer).code == 0
    assert desk.state.routes.topics().topic_list == names
    assert desk.connection in desk.state.broker_peers


async def test_a_broker_that_hung_up_meanwhile_is_not_registered(desk: Desk) -> None:
    request = with_body(registration(), topics(*(f"topic-{number:05}" for number in range(2000))))
    answer = ROUTES[RequestCode.REGISTER_BROKER](desk.state, desk.connection, request.to_command())
    assert inspect.isawaitable(answer)
    desk.connection.is_closed = True
    assert (await answer).code == 1
    assert desk.state.routes.cluster_info().broker_addr_table == {}
    assert not desk.state.broker_peers


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"topicConfigSerializeWrapper":{"topicConfigTable":[]}}'])
@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registration_without_sense_is_refused(desk: Desk, body: bytes, compressed: bool) -> None:
    request = msgspec.structs.replace(registration(), body=body, compressed=compressed)
    with pytest.raises(RemoteProtocolError):
        await desk.ask(request)
    assert desk.state.routes.cluster_info().broker_addr_table == {}


async def test_a_bomb_is_refused(desk: Desk) -> None:
    bomb = zlib.compress(bytes(80 << 20), 9)
    with pytest.raises(RemoteProtocolError, match="inflates to more than"):
        await desk.ask(msgspec.structs.replace(registration(), body=bomb, compressed=True))


async def test_topics_are_dropped_with_a_registration_if_set(desk: Desk) -> None:
    await desk.register("t1", "t2")
    desk.change(delete_absent_topics=True)
    await desk.register("t2", "t3")
    assert desk.state.routes.topics().topic_list == ["t2", "t3"]


async def test_brokers_are_told_the_ordered_topics(desk: Desk) -> None:
    assert not (await desk.register()).body
    await desk.ask(requests.PutKvConfig("ORDER_TOPIC_CONFIG", "t1", "broker-a:4"))
    assert (await desk.register()).body == b'{"table":{"t1":"broker-a:4"}}'
    desk.change(return_order_config=False)
    assert not (await desk.register()).body


async def test_the_data_version_is_compared_and_a_sign_of_life(desk: Desk) -> None:
    fields = ("broker-a", "10.0.0.1:10911", CLUSTER, 0)
    answer = await desk.ask(requests.QueryDataVersion(*fields, body=V1))
    assert (answer.fields, answer.body) == ({"changed": "true"}, b"")
    await desk.register()
    answer = await desk.ask(requests.QueryDataVersion(*fields, body=V1))
    assert (answer.fields, answer.body) == (
        {"changed": "false"},
        b'{"counter":1,"stateVersion":0,"timestamp":0}',
    )
    desk.clock.advance(100_000)
    answer = await desk.ask(requests.QueryDataVersion(*fields, body=V2))
    assert answer.fields == {"changed": "true"}
    assert desk.state.routes.expire(desk.clock.monotonic() + 100) == []


async def test_a_heartbeat_is_a_sign_of_life(desk: Desk) -> None:
    await desk.register()
    desk.clock.advance(100_000)
    assert (await desk.ask(requests.BrokerHeartbeat(CLUSTER, "10.0.0.1:10911", "broker-a"))).code == 0
    assert desk.state.routes.expire(desk.clock.monotonic() + 100) == []


async def test_unregistering_is_always_a_success(desk: Desk) -> None:
    await desk.register()
    request = requests.UnregisterBroker("broker-a", "10.0.0.1:10911", CLUSTER, 0)
    assert (await desk.ask(request)).code == 0
    assert (await desk.ask(request)).code == 0
    assert desk.state.routes.cluster_info().broker_addr_table == {}


# --- Routes ---


async def test_a_route_is_written_as_the_client_reads_it(desk: Desk) -> None:
    await desk.register(name="broker-ü")
    request = requests.GetRouteInfoByTopic("t1")
    legacy = (await desk.ask(request, version=400)).body
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-\xc3\xbc"' in bytes(legacy)
    standard = (await desk.ask(request, version=401)).body
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-\\u00fc"' in bytes(standard)
    asked = await desk.ask(requests.GetRouteInfoByTopic("t1", accept_standard_json_only=True), version=317)
    assert asked.body == standard
    assert json.loads(bytes(standard))["filterServerTable"] == {}


async def test_a_zone_sees_its_own_brokers(desk: Desk) -> None:
    await desk.register(zone_name="z1")
    await desk.register(name="broker-b", address="10.0.0.2:10911")

    async def names(**fields: Any) -> list[str]:
        request = requests.GetRouteInfoByTopic("t1", **fields)
        return sorted(addresses(request.parse(await desk.ask(request))))

    assert await names(zone_name="z1", zone_mode=True) == ["broker-a"]
    assert await names(zone_name="z1", zone_mode=False) == ["broker-a", "broker-b"]
    assert await names(zone_name=" ", zone_mode=True) == ["broker-a", "broker-b"]
    answer = await desk.ask(requests.GetRouteInfoByTopic("t1", zone_name="z1", zone_mode=True))
    assert b'{0:"' in bytes(answer.body), "always written the old way"


async def test_a_route_follows_every_change(desk: Desk) -> None:
    request = requests.GetRouteInfoByTopic("t1")

    async def route() -> TopicRouteData:
        return request.parse(await desk.ask(request))

    await desk.register()
    assert list(addresses(await route())) == ["broker-a"]
    await desk.register(name="broker-b", address="10.0.0.2:10911")
    assert list(addresses(await route())) == ["broker-a", "broker-b"]
    await desk.ask(requests.WipeWritePermOfBroker("broker-a"))
    assert [queues.perm for queues in (await route()).queue_datas] == [4, 6]
    await desk.ask(requests.PutKvConfig("ORDER_TOPIC_CONFIG", "t1", "broker-a:4"))
    assert (await route()).order_topic_conf is None
    desk.change(order_messages=True)
    assert (await route()).order_topic_conf == "broker-a:4"
    await desk.ask(requests.PutKvConfig("ORDER_TOPIC_CONFIG", "t1", "broker-a:8"))
    assert (await route()).order_topic_conf == "broker-a:8"
    await desk.ask(requests.DeleteTopicInNamesrv("t1"))
    with pytest.raises(TopicNotExist):
        await route()


def test_the_cache_of_routes_is_bounded_and_forgets_with_its_stamp() -> None:
    cache = EncodedRoutes(bytes_max=10)
    cache.put(1, "t1", True, b"12345")
    cache.put(1, "t1", False, b"1234")
    assert (cache.get(1, "t1", True), cache.get(1, "t1", False)) == (b"12345", b"1234")
    assert cache.get(2, "t1", True) is None
    cache.put(1, "t2", True, b"12")
    assert (cache.get(1, "t1", True), cache.get(1, "t2", True)) == (None, b"12")
    cache.put(2, "t3", True, b"1")
    assert (cache.get(2, "t2", True), cache.get(2, "t3", True)) == (None, b"1")


async def test_a_server_may_wait_for_brokers_before_it_gives_routes(desk: Desk) -> None:
    desk.change(wait_for_service=True)
    await desk.register()
    desk.clock.advance(44_999)
    answer = await desk.ask(requests.GetRouteInfoByTopic("t1"))
    assert (answer.code, answer.remark) == (1, "name server not ready")
    desk.clock.advance(1)
    assert (await desk.ask(requests.GetRouteInfoByTopic("t1"))).code == 0


async def test_a_single_topic_is_registered(desk: Desk) -> None:
    await desk.register()
    route = TopicRouteData(queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=1)])
    assert (await desk.ask(requests.RegisterTopicInNamesrv("t9", body=route))).code == 0
    assert desk.state.routes.topics().topic_list == ["t1", "t2", "t9"]


async def test_lists_of_topics_can_be_switched_off(desk: Desk) -> None:
    desk.change(all_topic_list=False)
    every = requests.GetAllTopicListFromNameServer()
    others = [
        requests.GetTopicsByCluster(CLUSTER),
        requests.GetSystemTopicListFromNs(),
        requests.GetUnitTopicList(),
        requests.GetHasUnitSubTopicList(),
        requests.GetHasUnitSubUnUnitTopicList(),
    ]
    assert (await desk.ask(every)).remark == "disable"
    assert [(await desk.ask(request)).code for request in others] == [0] * 5
    desk.change(all_topic_list=True, topic_list=False)
    assert (await desk.ask(every)).code == 0
    assert [(answer.code, answer.remark) for answer in [await desk.ask(request) for request in others]] == [
        (1, "disable")
    ] * 5


# --- Key-value configuration, the server's own configuration ---


async def test_a_value_is_on_the_disk_when_it_is_acknowledged(desk: Desk) -> None:
    path = desk.settings.kv_config_path
    await desk.ask(requests.PutKvConfig("ns", "k", "v"))
    assert decode_tables(path.read_bytes()) == {"ns": {"k": "v"}}
    await desk.ask(requests.DeleteKvConfig("ns", "k"))
    assert decode_tables(path.read_bytes()) == {"ns": {}}
    assert (await desk.ask(requests.GetKvListByNamespace("ns"))).body == b'{"table":{}}'


async def test_a_disk_that_refuses_is_told(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.settings.kv_config_path.mkdir()
    answer = await desk.ask(requests.PutKvConfig("ns", "k", "v"))
    assert answer.code == 1
    assert (answer.remark or "").startswith("changed, but not written: ")
    assert [record.message.split()[0:3] for record in caplog.records] == [["file", "not", "written"]]
    assert (await desk.ask(requests.GetKvConfig("ns", "k"))).fields == {"value": "v"}


async def test_a_change_of_the_configuration_works_and_is_kept(desk: Desk) -> None:
    assert (await desk.ask(requests.UpdateNamesrvConfig(b"enableTopicList=false\n"))).code == 0
    assert not desk.state.settings.topic_list
    answer = await desk.ask(requests.GetNamesrvConfig())
    assert b"\nenableTopicList=false\n" in bytes(answer.body)
    assert desk.settings.config_path is not None
    assert desk.settings.config_path.read_bytes() == answer.body


async def test_a_change_without_a_file_works_until_the_end(desk: Desk) -> None:
    desk.state.config_file = None
    assert (await desk.ask(requests.UpdateNamesrvConfig(b"enableTopicList=false\n"))).code == 0
    assert not desk.state.settings.topic_list


@pytest.mark.parametrize(
    "line", ["waitSecondsForService=-1", "orderMessageEnable=yes", "scanNotActiveBrokerInterval=x"]
)
async def test_a_bad_value_changes_nothing(desk: Desk, line: str) -> None:
    before = desk.state.settings
    with pytest.raises(SettingsError, match=line.partition("=")[0]):
        await desk.ask(requests.UpdateNamesrvConfig(f"enableTopicList=false\n{line}\n".encode()))
    assert desk.state.settings is before


@pytest.mark.parametrize("key", ["kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome"])
async def test_keys_of_the_black_list_are_refused_as_rocketmq_does(desk: Desk, key: str) -> None:
    answer = await desk.ask(requests.UpdateNamesrvConfig(f"enableTopicList=false\n{key}=x\n".encode()))
    assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
    assert desk.state.settings is desk.settings


@pytest.mark.parametrize("key", ["listenPort", "topicsMax", "serverWorkerThreads", "nonsense"])
async def test_keys_that_cannot_change_are_refused(desk: Desk, key: str) -> None:
    answer = await desk.ask(requests.UpdateNamesrvConfig(f"enableTopicList=false\n{key}=1\n".encode()))
    assert (answer.code, answer.remark) == (16, f"cannot be changed while the name server runs: {key}")
    assert desk.state.settings is desk.settings


async def test_the_defaults_are_rocketmqs(desk: Desk) -> None:
    desk.state.settings = NameServerSettings()
    text = bytes((await desk.ask(requests.GetNamesrvConfig())).body).decode()
    values = dict(line.split("=", 1) for line in text.splitlines())
    captured = {
        "deleteTopicWithBrokerRegistration": "false",
        "enableAllTopicList": "true",
        "enableTopicList": "true",
        "listenPort": "9876",
        "needWaitForService": "false",
        "orderMessageEnable": "false",
        "returnOrderTopicConfigToBroker": "true",
        "scanNotActiveBrokerInterval": "5000",
        "serverChannelMaxIdleTimeSeconds": "120",
        "waitSecondsForService": "45",
    }
    assert values.items() >= captured.items()
    assert values["bindAddress"] == "127.0.0.1", "safer than RocketMQ's 0.0.0.0"


@pytest.mark.parametrize("code", sorted(ROUTES.keys() - numbers(CODES_WITHOUT_FIELDS)))
async def test_requests_without_sense_are_refused(desk: Desk, code: RequestCode) -> None:
    command = RemotingCommand(code=code, fields={"brokerId": "x"}, body=b"[")
    with pytest.raises((RemoteProtocolError, BrokerError)):
        answer = ROUTES[code](desk.state, desk.connection, command)
        if inspect.isawaitable(answer):
            await answer
