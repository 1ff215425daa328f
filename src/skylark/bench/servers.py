"""The servers of a benchmark: started for the run, or found at a name server."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from skylark.bench.load import BadLoad, Load, LoadFailed
from skylark.bench.load_client import LoadClient
from skylark.bench.load_target import LoadTarget, messages_that_fit
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, can_pin, pinned, scratch
from skylark.bench.results import Value
from skylark.errors import BrokerUnknown, RemotingError
from skylark.processes import GroupProcess
from skylark.protocol.bodies import MASTER_ID
from skylark.protocol.requests.admin import GetBrokerHaStatus
from skylark.protocol.requests.name_server import GetBrokerClusterInfo
from skylark.remoting.blocking_connection import BlockingConnection

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
SLAVE_TIMEOUT_S = 90
POLL_S = 0.02
NAME_SERVER = re.compile(r"name server on (\S+),")
BROKER = re.compile(r"broker \S+ on (\S+) ")

Settings = Mapping[str, str | int]

# The same for all brokers that are compared. Waiting in the send queue is no error here: rates are measured,
# not refusals.
SETTINGS: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "waitTimeMillsInSendQueue": 10_000,
}


@dataclass(frozen=True)
class Served:
    """Servers that run."""

    namesrv: str
    """Empty for a broker without a name server."""
    broker: str
    pid: int


@contextmanager
def own_servers(
    directory: Path,
    *,
    flush: str = "async",
    settings: Settings | None = None,
    cpu: int | None = None,
    is_needed_again: bool = False,
) -> Iterator[Served]:
    """A name server and a broker in one process; killed at the end, or ended in order if the directory is
    needed again. Raises ProcessFailed."""
    command = ["serve", "--data", str(directory / "data"), "--flush", flush]
    command += ["--namesrv-port", "0", "--broker-port", "0"]
    with _running(directory, command, settings, cpu) as process:
        served = Served(_said(process, NAME_SERVER), _said(process, BROKER), process.pid)
        process.wait_until(lambda: _is_registered(served), "registration", START_TIMEOUT_S, POLL_S)
        yield served
        if is_needed_again:
            process.terminate(STOP_TIMEOUT_S)


@contextmanager
def own_broker(
    directory: Path, *flags: str, settings: Settings | None = None, cpu: int | None = None
) -> Iterator[Served]:
    """A broker without a name server. Raises ProcessFailed."""
    command = ["broker", "--data", str(directory / "data"), "--port", "0", *flags]
    with _running(directory, command, settings, cpu) as process:
        yield Served("", _said(process, BROKER), process.pid)


@contextmanager
def _running(
    directory: Path, command: list[str], settings: Settings | None, cpu: int | None
) -> Iterator[GroupProcess]:
    directory.mkdir(parents=True, exist_ok=True)
    for key, value in {**SETTINGS, "metricsPromExporterPort": 0, **(settings or {})}.items():
        command += ["--set", f"{key}={value}"]
    with pinned(cpu):
        process = GroupProcess(
            [sys.executable, "-m", "skylark.cli.start", *command], log=directory / "server.log"
        )
    with process:
        yield process


def _said(process: GroupProcess, words: re.Pattern[str]) -> str:
    """What a server says of itself when it is ready."""
    process.wait_until(
        lambda: words.search(process.log_text()) is not None, "greeting", START_TIMEOUT_S, POLL_S
    )
    found = words.search(process.log_text())
    assert found is not None
    return found[1]


def _is_registered(served: Served) -> bool:
    try:
        with BlockingConnection(served.namesrv) as connection:
            table = connection.call(GetBrokerClusterInfo()).broker_addr_table
    except RemotingError:
        return False
    return any(served.broker in group.broker_addrs.values() for group in table.values())


def wait_for_slave(address: str) -> None:
    """Until a master's slave has all of its log. Raises LoadFailed."""
    deadline = time.monotonic() + SLAVE_TIMEOUT_S
    with BlockingConnection(address) as connection:
        while not any(slave.diff == 0 for slave in connection.call(GetBrokerHaStatus()).ha_connection_info):
            if time.monotonic() > deadline:
                raise LoadFailed(f"{address} got no slave within {SLAVE_TIMEOUT_S} s")
            time.sleep(0.1)


FLUSH_MODES = ("async", "sync")


@dataclass(frozen=True, kw_only=True)
class ServerChoice:
    """What a person says about servers. Raises BadLoad."""

    namesrv: str = ""
    """Empty: servers of our own."""
    broker: str = ""
    """The name of one broker; empty: the first."""
    flush: str = "async"
    """Of our own broker."""
    settings: dict[str, str | int] = field(default_factory=dict)
    """Of our own broker, by Apache's names."""
    pin: bool = True
    """Our own broker gets one processor, clients the others, where there are several."""

    def __post_init__(self) -> None:
        if self.flush not in FLUSH_MODES:
            raise BadLoad(f"flush is {self.flush!r}: {' or '.join(FLUSH_MODES)} is possible")
        if self.broker and not self.namesrv:
            raise BadLoad("a broker is chosen among those of a name server: say which name server")

    @property
    def is_own(self) -> bool:
        return not self.namesrv

    @property
    def client_cpu(self) -> int | None:
        return CLIENT_CPU if self.is_own and self.pin else None


@dataclass(frozen=True)
class BenchServers:
    """Servers that are ready."""

    place: ServerChoice
    served: Served
    client: LoadClient
    directory: Path | None
    """Of our own servers."""

    @property
    def name_server(self) -> str:
        """The first of them."""
        return self.served.namesrv.split(";")[0].strip()

    def target(self) -> LoadTarget:
        """Close it after use."""
        return LoadTarget(self.served.broker, self.client, cpu=self.place.client_cpu)

    def fitted(self, load: Load) -> Load:
        """The load, aimed at the broker, and ended where the disk of our own one would be full."""
        load = replace(load, address=self.served.broker)
        if self.directory is None:
            return load
        room = messages_that_fit(self.directory, load.body_bytes)
        return replace(load, messages_max=min(load.messages_max or room, room))

    def conditions(self, **more: Value) -> dict[str, Value]:
        """For the document."""
        own = self.place.is_own
        return {
            "servers": "our own, started for this run" if own else self.place.namesrv,
            "broker": self.served.broker,
            **({"flush": self.place.flush, "pinned": self.place.pin and can_pin()} if own else {}),
            **self.place.settings,
            "client": self.client.kind,
            **more,
        }


@contextmanager
def standing(place: ServerChoice) -> Iterator[BenchServers]:
    """The servers of a place. Raises ProcessFailed, RocketMQError."""
    client = LoadClient()
    if not place.is_own:
        yield BenchServers(place, _find(place), client, None)
        return
    with scratch() as directory:
        cpu = BROKER_CPU if place.pin else None
        with own_servers(directory, flush=place.flush, settings=place.settings, cpu=cpu) as served:
            yield BenchServers(place, served, client, directory)


def _find(place: ServerChoice) -> Served:
    """A master that the name servers know. Raises BrokerUnknown, RocketMQError."""
    with BlockingConnection(place.namesrv.split(";")[0].strip()) as connection:
        table = connection.call(GetBrokerClusterInfo()).broker_addr_table
    masters = {
        name: group.broker_addrs[MASTER_ID]
        for name, group in sorted(table.items())
        if MASTER_ID in group.broker_addrs
    }
    name = place.broker or next(iter(masters), "")
    if name not in masters:
        raise BrokerUnknown(name)
    return Served(place.namesrv, masters[name], 0)
