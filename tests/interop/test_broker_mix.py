"""Our broker with Apache's name server, and Apache's broker with ours: what clients of such a mix see."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from skylark.errors import TopicNotExist
from skylark.protocol.bodies import QueueData
from skylark.protocol.requests.name_server import GetBrokerClusterInfo, GetRouteInfoByTopic
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.client_driver import ClientDriver
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import PATIENT, SETTINGS, create_topic
from tests.support.name_server import NameServerProcess
from tests.support.skylark_servers import SkylarkBroker

pytestmark = pytest.mark.interop("java", "mvn")

SCENARIOS = ("send_sync", "send_to_new_topic", "push_rebalance", "retry_to_dead_letters")
REGISTER_PERIOD_MS = 1000
TIMEOUT_S = 60


@pytest.fixture
def apache_name_server(tmp_path: Path) -> Iterator[ApacheNameServer]:
    with ApacheNameServer(admin_classpath(), tmp_path / "name-server") as server:
        yield server


def our_broker(directory: Path, name_server: str) -> SkylarkBroker:
    settings = {**SETTINGS, "registerNameServerPeriod": REGISTER_PERIOD_MS}
    return SkylarkBroker(directory / "broker", name_server, settings)


def members(name_server: str) -> dict[str, dict[int, str]]:
    """The brokers that a name server knows, by name and id."""
    with BlockingConnection(name_server) as connection:
        table = connection.call(GetBrokerClusterInfo(), timeout_s=TIMEOUT_S).broker_addr_table
    return {name: data.broker_addrs for name, data in table.items()}


def queues(name_server: str, topic: str) -> list[QueueData]:
    """The route to a topic; none if the name server knows none."""
    with BlockingConnection(name_server) as connection:
        try:
            return connection.call(GetRouteInfoByTopic(topic), timeout_s=TIMEOUT_S).queue_datas
        except TopicNotExist:
            return []


def await_that(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def test_our_broker_registers_its_topics_with_apaches_name_server(
    apache_name_server: ApacheNameServer, tmp_path: Path
) -> None:
    server = apache_name_server.address
    with our_broker(tmp_path, server) as broker:
        await_that(lambda: members(server) == {"broker-a": {0: broker.broker}}, "the broker")
        await_that(lambda: bool(queues(server, "TBW102")), "the template topic")
        create_topic(broker.broker, "Wide", 6)
        await_that(lambda: bool(queues(server, "Wide")), "a new topic")
        [wide] = queues(server, "Wide")
        assert (wide.broker_name, wide.read_queue_nums, wide.write_queue_nums) == ("broker-a", 6, 6)
        assert wide.perm == 6
        [template] = queues(server, "TBW102")
        assert (template.perm, template.read_queue_nums) == (7, 8)


@pytest.mark.nightly
def test_our_broker_leaves_apaches_name_server_when_it_stops_or_dies(
    apache_name_server: ApacheNameServer, tmp_path: Path
) -> None:
    server = apache_name_server.address
    with our_broker(tmp_path, server) as broker:
        create_topic(broker.broker, "Kept")
        await_that(lambda: bool(queues(server, "Kept")), "a new topic")
        assert broker.stop() == 0
        # It has said goodbye, to which Apache's name server attends in its own time.
        await_that(lambda: members(server) == {}, "the removal of a broker that has left")
        assert queues(server, "Kept") == []
        broker.start()
        await_that(lambda: bool(queues(server, "Kept")), "the topic after a restart")
        broker.kill()
        await_that(lambda: members(server) == {}, "the removal of a dead broker")
        assert queues(server, "Kept") == []


@pytest.mark.nightly
def test_our_broker_returns_to_a_name_server_that_was_away(
    apache_name_server: ApacheNameServer, tmp_path: Path
) -> None:
    server = apache_name_server.address
    with our_broker(tmp_path, server) as broker:
        create_topic(broker.broker, "Remembered")
        apache_name_server.kill()
        create_topic(broker.broker, "Meanwhile")
        apache_name_server.start()
        await_that(lambda: members(server) == {"broker-a": {0: broker.broker}}, "the broker")
        await_that(lambda: bool(queues(server, "Remembered")), "an old topic")
        await_that(lambda: bool(queues(server, "Meanwhile")), "a topic made in between")


@contextmanager
def our_broker_apaches_name_server(directory: Path) -> Iterator[str]:
    with (
        ApacheNameServer(admin_classpath(), directory / "name-server") as server,
        our_broker(directory, server.address) as broker,
    ):
        yield server.address
        assert "Traceback" not in broker.complaints()


@contextmanager
def our_name_server_apaches_broker(directory: Path) -> Iterator[str]:
    settings = {"mappedFileSizeCommitLog": 16 << 20, "reviveQueueNum": 0, **PATIENT, **SETTINGS}
    with (
        NameServerProcess(directory / "name-server") as server,
        ApacheBroker(
            admin_classpath(),
            directory / "home",
            directory / "store",
            name_server=server.address,
            settings=settings,
        ),
    ):
        yield server.address


@pytest.mark.nightly
@pytest.mark.parametrize("mix", [our_broker_apaches_name_server, our_name_server_apaches_broker])
def test_java_clients_send_and_receive_in_a_mix(
    mix: Callable[[Path], AbstractContextManager[str]], tmp_path: Path
) -> None:
    with mix(tmp_path) as name_server:
        driver = ClientDriver("5.3.3", name_server, tmp_path)
        assert driver.run("all", *SCENARIOS) == dict.fromkeys(SCENARIOS)
