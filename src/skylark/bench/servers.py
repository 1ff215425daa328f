"""The servers of a benchmark: started for the run, or found at a name server."""

from __future__ import annotations

import compileall
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import skylark
from skylark.bench.load import BadLoad, Load, LoadFailed
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget, messages_that_fit
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, can_pin, pinned, scratch
from skylark.bench.results import Cell, Document, Value, make_document
from skylark.errors import BrokerError, BrokerUnknown, NoPermission, NoRoute, RocketMQError
from skylark.processes import HOST, PortReservation, Server, listens, python_command
from skylark.protocol.bodies import MASTER_ID
from skylark.protocol.requests.admin import GetBrokerHaStatus
from skylark.protocol.requests.name_server import GetBrokerClusterInfo, GetRouteInfoByTopic
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import client_credentials
from skylark.settings.tls import client_tls_settings

Progress = Callable[[str, str], None]
"""Called with a cell's name and the words of a `Watch`."""

SLAVE_TIMEOUT_S = 90
SLAVE_POLL_S = 0.1
START_POLL_S = 0.02
ROUTE_TIMEOUT_S = 60
ROUTE_POLL_S = 0.05
CONNECT_TIMEOUT_S = 1.0
READY_MARK = "ready after"
BROKER_PORTS = (0, -2, 1)  # the broker's, the fast ("VIP") port, the port for slaves
FLUSH_MODES = ("async", "sync")

Settings = Mapping[str, str | int]

# The same for all compared brokers. A send may wait long in the queue: rates are measured, not rejections.
SETTINGS: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "waitTimeMillsInSendQueue": 10_000,
}


# --- Started servers ---


@cache
def _write_bytecode() -> None:
    """Compile all modules once, as pip does: with PYTHONDONTWRITEBYTECODE every start would compile them."""
    for directory in skylark.__path__:
        compileall.compile_dir(directory, quiet=2)


class SkylarkCommand(Server):
    """A `skylark` command that runs a broker, registered at the name server `name_server` if not empty."""

    title = "output"
    start_timeout_s = 60
    name_server = ""

    def __init__(self, directory: Path, settings: Settings, *more: PortReservation) -> None:
        super().__init__(directory, PortReservation(*BROKER_PORTS), *more)
        _write_bytecode()
        self._settings = {"metricsPromExporterPort": 0, **settings}

    @property
    def broker(self) -> str:
        """The broker's address."""
        return self.address

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """The command and its flags, without settings."""

    def command(self, start: int) -> list[str]:
        sets = [flag for key, value in self._settings.items() for flag in ("--set", f"{key}={value}")]
        return python_command("skylark", *self.arguments(), *sets)

    def wait_until_serving(self) -> None:
        self._running().wait_until(self._is_ready, "registration", self.start_timeout_s, START_POLL_S)

    def _is_ready(self) -> bool:
        if not self.name_server:
            return listens(self.broker, CONNECT_TIMEOUT_S)
        try:
            with BlockingConnection(self.name_server) as connection:
                table = connection.call(GetBrokerClusterInfo()).broker_addr_table
        except NoPermission:  # a name server with users: the broker tells when it is registered
            return READY_MARK in self._running().log_text()
        except RocketMQError:
            return False
        return any(self.broker in group.broker_addrs.values() for group in table.values())


class SkylarkServers(SkylarkCommand):
    """`skylark serve`: a name server and a broker in one process, all files below `directory`."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._name_server_port = PortReservation(0)
        self.name_server = f"{HOST}:{self._name_server_port.base}"
        super().__init__(directory, settings, self._name_server_port)

    def arguments(self) -> Sequence[str]:
        ports = ["--namesrv-port", str(self._name_server_port.base), "--broker-port", str(self.port)]
        return ["serve", "--data", str(self.home / "data"), *ports]


class SkylarkBroker(SkylarkCommand):
    """`skylark broker` without a name server."""

    def __init__(self, directory: Path, settings: Settings, *flags: str) -> None:
        super().__init__(directory, settings)
        self._flags = flags

    def arguments(self) -> Sequence[str]:
        return ["broker", "--data", str(self.home / "data"), "--port", str(self.port), *self._flags]


@dataclass(frozen=True)
class Served:
    """Addresses of running servers."""

    namesrv: str
    """Empty for a broker without a name server."""
    broker: str
    pid: int
    """0 for servers that were not started here."""


@contextmanager
def own_servers(
    directory: Path,
    *,
    flush: str = "async",
    settings: Settings | None = None,
    cpu: int | None = None,
    is_needed_again: bool = False,
) -> Iterator[Served]:
    """A name server and a broker in one process, killed at the end, or stopped if the files are needed again.

    Raises ProcessFailed.
    """
    flush_type = {"flushDiskType": f"{flush.upper()}_FLUSH"}
    servers = SkylarkServers(directory, {**SETTINGS, **flush_type, **(settings or {})})
    with _pinned_server(servers, cpu):
        yield Served(servers.name_server, servers.broker, servers.pid)
        if is_needed_again:
            servers.stop()


@contextmanager
def own_broker(
    directory: Path, *flags: str, settings: Settings | None = None, cpu: int | None = None
) -> Iterator[Served]:
    """A broker without a name server. Raises ProcessFailed."""
    broker = SkylarkBroker(directory, {**SETTINGS, **(settings or {})}, *flags)
    with _pinned_server(broker, cpu):
        yield Served("", broker.broker, broker.pid)


@contextmanager
def _pinned_server(server: SkylarkCommand, cpu: int | None) -> Iterator[None]:
    with ExitStack() as stack:
        with pinned(cpu):  # the process inherits the processors of this one
            stack.enter_context(server)
        yield


def wait_for_slave(address: str) -> None:
    """Wait until a slave of this master has its whole log. Raises LoadFailed."""
    deadline = time.monotonic() + SLAVE_TIMEOUT_S
    with BlockingConnection(address) as connection:
        while not any(slave.diff == 0 for slave in connection.call(GetBrokerHaStatus()).ha_connection_info):
            if time.monotonic() > deadline:
                raise LoadFailed(f"no slave of {address} in sync within {SLAVE_TIMEOUT_S} s")
            time.sleep(SLAVE_POLL_S)


# --- The servers of a run ---


@dataclass(frozen=True, kw_only=True)
class ServerChoice:
    """Which servers to measure. Raises BadLoad."""

    namesrv: str = ""
    """Addresses of running name servers; empty: start servers."""
    broker: str = ""
    """Name of the broker; empty: the first."""
    flush: str = "async"
    """Flush mode of the started broker."""
    settings: dict[str, str | int] = field(default_factory=dict)
    """Settings of the started broker, by Apache's names."""
    pin: bool = True
    """Give the started broker one processor and clients the others."""

    def __post_init__(self) -> None:
        if self.flush not in FLUSH_MODES:
            raise BadLoad(f"invalid flush mode {self.flush!r}; choose {' or '.join(FLUSH_MODES)}")
        if self.broker and not self.namesrv:
            raise BadLoad(f"broker {self.broker!r} needs a name server: give its address")

    @property
    def is_own(self) -> bool:
        return not self.namesrv

    @property
    def client_cpu(self) -> int | None:
        return CLIENT_CPU if self.is_own and self.pin else None


@dataclass(frozen=True)
class BenchServers:
    """Running servers and the client that loads them."""

    choice: ServerChoice
    served: Served
    client: LoadClient
    directory: Path | None
    """Directory of the started servers."""

    @property
    def name_server(self) -> str:
        """The first name server."""
        return self.served.namesrv.split(";")[0].strip()

    def target(self) -> LoadTarget:
        """The broker, to be closed after use."""
        return LoadTarget(self.served.broker, self.client, cpu=self.choice.client_cpu)

    def fitted(self, load: Load) -> Load:
        """The load for this broker, limited to what fits on the disk of a started one."""
        load = replace(load, address=self.served.broker)
        if self.directory is None:
            return load
        room = messages_that_fit(self.directory, load.body_bytes)
        return replace(load, messages_max=min(load.messages_max or room, room))

    def with_topic(self, load: Load) -> Load:
        """Create the load's topic and wait for its route; returns the load with the queues that it has.

        Raises NoRoute, RocketMQError.
        """
        with self.target() as target:
            return replace(load, queues=create_topics(target, self.name_server, load))

    def conditions(self, **more: Value) -> dict[str, Value]:
        """Conditions for the result document."""
        own = self.choice.is_own
        return {
            "servers": "started for this run" if own else self.choice.namesrv,
            "broker": self.served.broker,
            **({"flush": self.choice.flush, "pinned": self.choice.pin and can_pin()} if own else {}),
            **self.choice.settings,
            "client": self.client.kind,
            **more,
        }


@contextmanager
def running_servers(choice: ServerChoice) -> Iterator[BenchServers]:
    """The chosen servers, started if need be. Raises ProcessFailed, RocketMQError.

    Credentials and TLS for running servers are those of the environment.
    """
    if not choice.is_own:
        mine = ClientSettings()
        client = LoadClient(client_credentials(mine), client_tls_settings(mine))
        yield BenchServers(choice, _find(choice, client), client, None)
        return
    client = LoadClient()
    with scratch() as directory:
        cpu = BROKER_CPU if choice.pin else None
        with own_servers(directory, flush=choice.flush, settings=choice.settings, cpu=cpu) as served:
            yield BenchServers(choice, served, client, directory)


def _find(choice: ServerChoice, client: LoadClient) -> Served:
    """A registered master. Raises BrokerUnknown, RocketMQError."""
    with client.connection(choice.namesrv.split(";")[0].strip()) as connection:
        table = connection.call(GetBrokerClusterInfo()).broker_addr_table
    masters = {
        name: group.broker_addrs[MASTER_ID]
        for name, group in sorted(table.items())
        if MASTER_ID in group.broker_addrs
    }
    name = choice.broker or next(iter(masters), "")
    if name not in masters:
        raise BrokerUnknown(name)
    return Served(choice.namesrv, masters[name], 0)


def create_topics(target: LoadTarget, namesrv: str, load: Load) -> int:
    """Create the load's topics and wait until the name server knows them; returns the queues of the last.

    Raises NoRoute, RocketMQError.
    """
    target.create(load)
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    with target.client.connection(namesrv) as connection:
        while True:
            try:
                connection.call(GetRouteInfoByTopic(load.topic_names[0]))
                route = connection.call(GetRouteInfoByTopic(load.topic_names[-1]))
            except BrokerError:
                if time.monotonic() > deadline:
                    raise NoRoute(load.topic_names[-1]) from None
                time.sleep(ROUTE_POLL_S)
            else:
                return max(queues.write_queue_nums for queues in route.queue_datas)


def measure_loads(
    benchmark: str, choice: ServerChoice, loads: Mapping[str, Load], progress: Progress, *, backlog: int = 0
) -> Document:
    """Run named loads one after the other on one broker; fills in their addresses.

    With a backlog, this many messages are stored before each. Raises LoadFailed, RocketMQError.
    """
    cells: list[Cell] = []
    with running_servers(choice) as servers, servers.target() as target:
        for name, load in loads.items():
            fitted = servers.fitted(load)
            if backlog:
                target.fill(fitted, backlog)
            cells.append(target.measure(name, fitted, partial(progress, name)))
        first = next(iter(loads.values()))
        conditions = servers.conditions(seconds=first.seconds, warm_up_s=first.warm_up_s)
        return make_document(benchmark, conditions, cells)
