"""Our own servers as processes of a run: ports that nobody else has, files that are thrown away."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skylark.bench.load import LoadFailed
from skylark.bench.peers.process import GroupProcess
from skylark.bench.processes import pinned
from skylark.errors import RemotingError
from skylark.protocol.requests.admin import GetBrokerHaStatus
from skylark.protocol.requests.route import GetBrokerClusterInfo
from skylark.remoting.blocking import BlockingConnection

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
