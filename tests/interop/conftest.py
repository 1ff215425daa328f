"""What the interop tests share: servers of both makes, and the Java driver of the store tests."""

from collections.abc import Iterator

import pytest

from benchmarks.peers.apache import ApacheNameServer
from benchmarks.peers.java import Classpath
from tests.interop.servers import KINDS, SETTINGS, ApacheServers, Servers, make_servers
from tests.interop.store_driver import StoreDriver, driver_classpath
from tests.interop.versions import SERVERS


@pytest.fixture(scope="session", params=SERVERS)
def classpath(request: pytest.FixtureRequest) -> Classpath:
    """A release of Apache RocketMQ, and the store driver."""
    return driver_classpath(request.param)


@pytest.fixture(scope="session")
def name_server(classpath: Classpath, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNameServer]:
    """A running name server. Brokers share one name, so only one may be registered at a time."""
    with ApacheNameServer(classpath, tmp_path_factory.mktemp("name-server")) as server:
        yield server


@pytest.fixture(scope="session")
def driver(
    classpath: Classpath, name_server: ApacheNameServer, tmp_path_factory: pytest.TempPathFactory
) -> StoreDriver:
    """Stock Java clients of the name server."""
    return StoreDriver(classpath, name_server.address, tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Whose servers."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def servers(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A name server and a broker for the clients of one module. They had nothing to complain about."""
    with make_servers(kind, tmp_path_factory.mktemp("servers")) as running:
        yield running
        assert running.complaints() == ""


@pytest.fixture(scope="session", params=SERVERS)
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheServers]:
    """Apache's name server and broker, one pair for the tests of our clients: each has its own topics."""
    settings = {**SETTINGS, "traceTopicEnable": "true"}
    directory = tmp_path_factory.mktemp("apache")
    with ApacheServers(directory, settings, request.param) as running:
        yield running
