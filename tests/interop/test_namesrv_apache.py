"""Apache's brokers, Java client and admin tool with our name server."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.apache import ApacheBroker
from benchmarks.peers.java import Classpath
from skylark.errors import TopicNotExist
from skylark.model import java
from skylark.namesrv.kv_config import decode_tables
from skylark.protocol.requests.name_server import GetBrokerClusterInfo, GetRouteInfoByTopic
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import PATIENT
from tests.support.name_server import NameServerProcess
from tests.unit.namesrv.registering import addresses

pytestmark = pytest.mark.interop("java", "mvn")

SMALL = {"mappedFileSizeCommitLog": 1 << 20, "reviveQueueNum": 0, **PATIENT}
# The least period that a broker of RocketMQ takes between two registrations.
PERIOD_S = 10
WAIT_S = 60


@pytest.fixture(scope="module")
def admin_tool() -> Classpath:
    return admin_classpath()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServerProcess]:
    with NameServerProcess(tmp_path / "name-server") as server:
        yield server


def broker_on(
    classpath: Classpath, directory: Path, server: NameServerProcess, **settings: str | int
) -> ApacheBroker:
    return ApacheBroker(
        classpath,
        directory / "home",
        directory / "store",
        name_server=server.address,
        settings={**SMALL, **settings},
    )


def members(server: NameServerProcess) -> dict[str, dict[int, str]]:
    """What the server knows, by name and id."""
    with BlockingConnection(server.address) as connection:
        table = connection.call(GetBrokerClusterInfo(), timeout_s=WAIT_S).broker_addr_table
    return {name: data.broker_addrs for name, data in table.items()}


def known_at(server: NameServerProcess, topic: str) -> dict[str, dict[int, str]]:
    """The brokers that serve a topic; none if the server does not know it."""
    with BlockingConnection(server.address) as connection:
        try:
            return addresses(connection.call(GetRouteInfoByTopic(topic), timeout_s=WAIT_S))
        except TopicNotExist:
            return {}


def seconds_until(condition: Callable[[], bool], timeout_s: float) -> float:
    """How long a condition took. Fails after `timeout_s`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "too late"
        time.sleep(0.05)
    return time.monotonic() - started


def document(printed: str) -> Any:
    return java.loads(printed.encode())


@pytest.mark.nightly
def test_the_admin_tool_finds_an_apache_broker_and_its_topics(
    admin_tool: Classpath, name_server: NameServerProcess, tmp_path: Path
) -> None:
    admin = MqAdmin(admin_tool, name_server.address, tmp_path)
    with broker_on(admin_tool, tmp_path, name_server) as broker:
        assert members(name_server) == {"broker-a": {0: broker.address}}
        clusters, template, created, sent, topics, route, static, static_route, deleted, no_route = admin.run(
            ["clusterList"],
            ["topicRoute", "-t", "TBW102"],
            ["updateTopic", "-c", "DefaultCluster", "-t", "TopicA", "-r", "4", "-w", "4"],
            ["sendMessage", "-t", "TopicNew", "-p", "hello"],
            ["topicList"],
            ["topicRoute", "-t", "TopicA"],
            ["updateStaticTopic", "-t", "TopicStatic", "-qn", "2", "-b", "broker-a"],
            ["topicRoute", "-t", "TopicStatic"],
            ["deleteTopic", "-c", "DefaultCluster", "-t", "TopicA"],
            ["topicRoute", "-t", "TopicA"],
        )
        assert "success" in created
        assert "success" in deleted
        assert "written to file" in static
        row = next(line.split() for line in clusters.splitlines() if broker.address in line)
        assert row[:5] == ["DefaultCluster", "broker-a", "0", broker.address, "V5_3_3"]
        assert document(template) == route_of(broker.address, perm=7, queues=8)
        assert "SEND_OK" in sent, "a producer that has no route makes its topic through the template's"
        assert {"TopicA", "TopicNew", "TBW102", "broker-a", "DefaultCluster"} <= set(topics.split())
        assert document(route) == route_of(broker.address, perm=6, queues=4)
        mapping = document(static_route)["topicQueueMappingByBroker"]["broker-a"]
        assert (mapping["totalQueues"], mapping["currIdMap"]) == (2, {0: 0, 1: 1})
        assert "CODE: 17  DESC: No topic route info in name server for the topic: TopicA" in no_route


def route_of(address: str, *, perm: int, queues: int) -> dict[str, Any]:
    """A route as the tool prints it."""
    return {
        "brokerDatas": [
            {
                "brokerAddrs": {0: address},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": perm,
                "readQueueNums": queues,
                "topicSysFlag": 0,
                "writeQueueNums": queues,
            }
        ],
    }


@pytest.mark.nightly
def test_the_admin_tool_changes_configurations_and_permissions(
    admin_tool: Classpath, name_server: NameServerProcess, tmp_path: Path
) -> None:
    admin = MqAdmin(admin_tool, name_server.address, tmp_path)
    with broker_on(admin_tool, tmp_path, name_server) as broker:
        update = ["updateNamesrvConfig", "-k"]
        printed = admin.run(
            ["updateKvConfig", "-s", "ns1", "-k", "k1", "-v", "v1"],
            ["updateKvConfig", "-s", "ns1", "-k", "k2", "-v", "v2"],
            ["deleteKvConfig", "-s", "ns1", "-k", "k1"],
            ["updateTopic", "-b", broker.address, "-t", "TopicOrder", "-r", "4", "-w", "4", "-o", "true"],
            ["updateOrderConf", "-m", "get", "-t", "TopicOrder"],
            [*update, "orderMessageEnable", "-v", "true"],
            [*update, "kvConfigPath", "-v", "elsewhere"],
            ["getNamesrvConfig"],
            ["wipeWritePerm", "-b", "broker-a"],
            ["topicRoute", "-t", "TopicOrder"],
            ["addWritePerm", "-b", "broker-a"],
            ["topicRoute", "-t", "TopicOrder"],
        )
        _, _, _, _, order, _, refused, config, wiped, read_only, added, writable = printed
        assert decode_tables((name_server.directory / "kvConfig.json").read_bytes()) == {
            "ORDER_TOPIC_CONFIG": {"TopicOrder": "broker-a:4"},
            "ns1": {"k2": "v2"},
        }
        assert "orderConf=[broker-a:4]" in order
        assert "CODE: 16  DESC: Can not update config in black list." in refused
        lines = dict(line.split("=", 1) for line in config.splitlines() if "  =  " in line)
        values = {key.strip(): value.strip() for key, value in lines.items()}
        assert values["orderMessageEnable"] == "true"
        assert values["kvConfigPath"] == str(name_server.directory / "kvConfig.json")
        assert (
            f"orderMessageEnable={values['orderMessageEnable']}\n"
            in (name_server.directory / "namesrv.conf").read_text()
        )
        assert document(read_only)["orderTopicConf"] == "broker-a:4"
        assert document(read_only)["queueDatas"][0]["perm"] == 4
        assert document(writable)["queueDatas"][0]["perm"] == 6
        counts = [int(text.rsplit(", ", 1)[1]) for text in (wiped, added)]
        assert counts[0] == counts[1] > 10


@pytest.mark.nightly
def test_an_apache_broker_that_dies_or_stops_is_gone_at_once(
    admin_tool: Classpath, name_server: NameServerProcess, tmp_path: Path
) -> None:
    with broker_on(admin_tool, tmp_path, name_server) as broker:
        broker.kill()
        seconds_until(lambda: members(name_server) == {}, WAIT_S)
        broker.start()
        assert members(name_server) == {"broker-a": {0: broker.address}}
        broker.stop()
        seconds_until(lambda: members(name_server) == {}, WAIT_S)


@pytest.mark.nightly
def test_sf_063_apache_brokers_register_with_every_name_server(
    admin_tool: Classpath, name_server: NameServerProcess, tmp_path: Path
) -> None:
    with NameServerProcess(tmp_path / "other-name-server") as other:
        both = {"namesrvAddr": f"{name_server.address};{other.address}"}
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        with (
            broker_on(admin_tool, tmp_path / "a", name_server, **both) as a,
            broker_on(admin_tool, tmp_path / "b", name_server, brokerName="broker-b", **both) as b,
        ):
            expected = {"broker-a": {0: a.address}, "broker-b": {0: b.address}}
            seconds_until(lambda: members(name_server) == members(other) == expected, WAIT_S)
            admin = MqAdmin(admin_tool, name_server.address, tmp_path)
            _, allocated = admin.run(
                ["updateTopic", "-c", "DefaultCluster", "-t", "TopicWide", "-r", "4", "-w", "4"],
                ["allocateMQ", "-t", "TopicWide", "-i", "consumer"],
            )
            queues = document(allocated)["result"]["consumer"]
            assert sorted((queue["brokerName"], queue["queueId"]) for queue in queues) == [
                (name, queue_id) for name in ("broker-a", "broker-b") for queue_id in range(4)
            ]
            seconds_until(lambda: known_at(other, "TopicWide") == expected, WAIT_S)
            assert other.stop() == 0
            b.kill()
            seconds_until(lambda: members(name_server) == {"broker-a": {0: a.address}}, WAIT_S)


def frozen_and_thawed(broker: ApacheBroker, server: NameServerProcess, timeout_s: float) -> None:
    """Freeze a broker until it is removed, after `timeout_s`; thaw it, and see it come back."""
    process = broker._process
    assert process is not None
    here = {"broker-a": {0: broker.address}}
    seconds_until(lambda: known_at(server, "TBW102") == here, WAIT_S)
    process.signal(signal.SIGSTOP)
    try:
        took = seconds_until(lambda: members(server) == {}, timeout_s + WAIT_S)
    finally:
        process.signal(signal.SIGCONT)
    # It was last heard of a period before it froze, or a little more on a busy machine.
    assert took > timeout_s - PERIOD_S - 4
    seconds_until(lambda: members(server) == here, WAIT_S)


@pytest.mark.nightly
def test_sf_051_a_frozen_apache_broker_is_removed_and_returns(admin_tool: Classpath, tmp_path: Path) -> None:
    with NameServerProcess(
        tmp_path / "name-server", broker_timeout_ms=15_000, scan_interval_ms=500
    ) as server:
        with broker_on(admin_tool, tmp_path, server, registerNameServerPeriod=PERIOD_S * 1000) as broker:
            frozen_and_thawed(broker, server, 15)


@pytest.mark.nightly
def test_sf_051_a_frozen_apache_broker_is_removed_after_two_minutes(
    admin_tool: Classpath, name_server: NameServerProcess, tmp_path: Path
) -> None:
    with broker_on(admin_tool, tmp_path, name_server, registerNameServerPeriod=PERIOD_S * 1000) as broker:
        frozen_and_thawed(broker, name_server, 120)
