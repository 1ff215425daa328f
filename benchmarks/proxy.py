"""The gRPC port under the official Java client: sends and receive-ack cycles a second, beside Apache's proxy.

python -m benchmarks.proxy                   all cells on ours
python -m benchmarks.proxy --peer apache     and beside it, in turn, on Apache RocketMQ 5.3.3 in local mode
python -m benchmarks.proxy --cells idle      memory of idle clients

Cells: send-INFLIGHT, sends of one message of 1 KiB; cycles-BATCH, receive so many messages of a backlog, then
acknowledge each, by 4 workers; idle, memory for each of many clients with an open stream (only ours).
Server and client have a processor each. `server_cpu_us` is processor time of the server for each message.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks._common import report
from benchmarks.idle_grpc_clients import IdleClients
from benchmarks.peers.apache import MEASURED_HEAP_MB, POM, ApacheNameServer, measured_options
from benchmarks.peers.apache_proxy import PROXY_POM, ApacheLocalProxy
from benchmarks.peers.java import DRIVERS, JavaLoadDriver, driver_classpath
from skylark import Message, aio
from skylark.bench.machine import BROKER_CPU, CLIENT_CPU, ListeningProcess, can_pin, pinned, scratch
from skylark.bench.servers import SETTINGS, SkylarkServers
from skylark.processes import HOST, PortReservation, ProcessFailed, listens
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.requests.group import UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.offset import UpdateConsumerOffset
from skylark.remoting.blocking_connection import BlockingConnection
from tests.support.java import jars_of

CLIENT_POM = DRIVERS / "pom-grpc-client.xml"
QUEUES = 4
BODY_BYTES = 1024
BATCH = 32
WORKERS = 4
FILL_BATCH = 32
CONNECT_TIMEOUT_S = 1.0
SPARE_FILES = 500
"""Open files of server and driver besides those of clients."""
CYCLES_TIMEOUT_S = 300
EXPECTED_RATIO = 1.0
SENDS = {"send-1": 1, "send-64": 64}
CYCLES = {"cycles-1": 1, "cycles-32": BATCH}
IDLE = "idle"
CELLS = (*SENDS, *CYCLES, IDLE)
Figures = dict[str, float]


class GrpcServe(SkylarkServers):
    """`skylark serve` with a gRPC port."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, SETTINGS)
        self._grpc_port = PortReservation(0)
        self._ports = (*self._ports, self._grpc_port)

    @property
    def endpoints(self) -> str:
        return f"{HOST}:{self._grpc_port.base}"

    def arguments(self) -> list[str]:
        return [*super().arguments(), "--grpc-port", str(self._grpc_port.base)]

    def wait_until_serving(self) -> None:
        """The gRPC port is opened when the broker is registered."""
        self._running().wait_until(
            lambda: listens(self.endpoints, CONNECT_TIMEOUT_S), "gRPC port", self.start_timeout_s
        )


class Contestant:
    """A server with a client of its own. While it has no turn, both are stopped."""

    def __init__(self, name: str, *, namesrv: str, broker: str, endpoints: str, home: Path) -> None:
        self.name = name
        self.namesrv, self.broker, self.endpoints = namesrv, broker, endpoints
        self.process = ListeningProcess(endpoints)
        self._home = home
        self.driver: JavaLoadDriver | None = None

    def start_driver(self, stack: ExitStack) -> None:
        classpath = driver_classpath(CLIENT_POM, "GrpcLoad")
        with pinned(CLIENT_CPU):
            self.driver = stack.enter_context(
                JavaLoadDriver(classpath, "GrpcLoad", self.endpoints, self._home)
            )

    @contextmanager
    def turn(self, others: list[Contestant]) -> Iterator[None]:
        waiting = [other for other in others if other is not self]
        for other in waiting:
            other.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for other in waiting:
                other.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        self.process.signal(number)
        if self.driver is not None:
            self.driver.signal(number)

    def measure(self, cell: str, seconds: float, messages: int) -> Figures:
        """The figures of one round."""
        assert self.driver is not None
        topic = f"{cell}-{time.time_ns():X}"
        asyncio.run(prepare(self.namesrv, topic, messages if cell in CYCLES else 0))
        if cell in CYCLES:
            group = f"G-{topic}"
            begin_with_first(self.broker, topic, group)
            words: tuple[str | float, ...] = (
                "cycles", topic, group, messages, CYCLES[cell], WORKERS, CYCLES_TIMEOUT_S,
            )  # fmt: skip
        else:
            self.driver.call("first", topic, timeout_s=CYCLES_TIMEOUT_S)  # connects
            words = ("send", topic, SENDS[cell], BODY_BYTES, 1, min(seconds, 1.0), seconds)
        before = self.process.cpu_us() or 0.0
        found = self.driver.call(*words, timeout_s=seconds + CYCLES_TIMEOUT_S + 60)
        spent = (self.process.cpu_us() or 0.0) - before
        return {
            "messages_per_s": round(found["messages"] / found["seconds"], 1),
            "p50_us": found["p50_us"],
            "p99_us": found["p99_us"],
            "server_cpu_us": round(spent / found.get("sent", found["messages"]), 1),
        }


async def prepare(namesrv: str, topic: str, messages: int) -> None:
    """Make a topic with a backlog."""
    async with aio.Admin(namesrv=namesrv) as admin:
        await admin.topics.create(topic, queues=QUEUES)
    if messages:
        async with aio.Producer("benchmark", namesrv=namesrv) as producer:
            for first in range(0, messages, FILL_BATCH):
                count = min(FILL_BATCH, messages - first)
                await producer.send_batch([Message(topic, bytes(BODY_BYTES))] * count)


def begin_with_first(broker: str, topic: str, group: str) -> None:
    """A new group would begin with what is sent after its first receive."""
    with BlockingConnection(broker) as connection:
        connection.call(UpdateAndCreateSubscriptionGroup(SubscriptionGroupConfig(group_name=group)))
        for queue_id in range(QUEUES):
            connection.call(UpdateConsumerOffset(group, topic, queue_id, 0))


# --- Servers ---


def start_ours(stack: ExitStack, directory: Path) -> Contestant:
    with pinned(BROKER_CPU):
        servers = stack.enter_context(GrpcServe(directory))
    return Contestant(
        "ours",
        namesrv=servers.name_server,
        broker=servers.broker,
        endpoints=servers.endpoints,
        home=directory / "client",
    )


def start_apache(stack: ExitStack, directory: Path) -> Contestant:
    with pinned(BROKER_CPU):
        name_server = stack.enter_context(ApacheNameServer(jars_of(POM), directory / "name-server"))
        broker = ApacheLocalProxy(
            jars_of(PROXY_POM),
            directory / "home",
            directory / "store",
            name_server=name_server.address,
            settings=SETTINGS,
        )
        broker.heap_mb, broker.options = MEASURED_HEAP_MB, measured_options(MEASURED_HEAP_MB)
        stack.enter_context(broker)
    return Contestant(
        "apache",
        namesrv=name_server.address,
        broker=broker.address,
        endpoints=broker.endpoints,
        home=directory / "client",
    )


# --- Cells ---


def compare(contestants: list[Contestant], cells: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds of the cells, the servers in turn."""
    for contestant in contestants:  # compilers of both JVMs
        with contestant.turn(contestants):
            for cell in cells:
                contestant.measure(cell, arguments.warm_up / len(cells), arguments.messages // 4)
    rounds: dict[str, dict[str, list[Figures]]] = {cell: {} for cell in cells}
    for _ in range(arguments.rounds):
        for cell in cells:
            for contestant in contestants:
                with contestant.turn(contestants):
                    figures = contestant.measure(cell, arguments.seconds, arguments.messages)
                rounds[cell].setdefault(contestant.name, []).append(figures)
                sys.stderr.write(f"{cell:10} {contestant.name:8} {figures}\n")
    return {cell: summary(by_name) for cell, by_name in rounds.items()}


def summary(by_name: dict[str, list[Figures]]) -> dict[str, Any]:
    """Medians of each, and the medians of the ratios of rounds side by side."""
    result: dict[str, Any] = {
        name: {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        for name, rounds in by_name.items()
    }
    if len(by_name) == 2:
        mine, peers = by_name.values()
        for key, title in (
            ("messages_per_s", "ratio"),
            ("p99_us", "p99_ratio"),
            ("server_cpu_us", "cpu_ratio"),
        ):
            ratios = sorted(one[key] / other[key] for one, other in zip(mine, peers, strict=True))
            result[title] = {
                "median": round(statistics.median(ratios), 2),
                "least": round(ratios[0], 2),
                "most": round(ratios[-1], 2),
            }
        result["ratio"]["expected_at_least"] = EXPECTED_RATIO
        result["p99_ratio"]["expected_at_most"] = 1.0
    return result


def idle(contestant: Contestant, count: int) -> dict[str, Any]:
    """Memory of a server before and after so many clients have connected; each stays connected."""
    topic = f"idle-{time.time_ns():X}"
    asyncio.run(prepare(contestant.namesrv, topic, 0))
    before = contestant.process.anonymous_mib() or 0.0
    with IdleClients(contestant.endpoints, topic, count):
        after = contestant.process.anonymous_mib() or 0.0
    return {
        "clients": count,
        "mib": round(after - before, 1),
        "kib_each": round((after - before) * 1024 / count, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--peer", choices=["apache"], help="measure another system beside it, and the ratio")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round of sends")
    parser.add_argument("--messages", type=int, default=20_000, help="of a round of cycles")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds of sends for JVMs to compile")
    parser.add_argument("--clients", type=int, default=10_000, help="that are idle, as far as files allow")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # inherited by the server
    cells = [cell for cell in arguments.cells if cell != IDLE]
    results: dict[str, Any] = {
        "conditions": {
            "server_cpus": "one" if can_pin() else "shared with the client",
            "rounds": arguments.rounds,
            "seconds": arguments.seconds,
            "messages": arguments.messages,
        }
    }
    try:
        with ExitStack() as stack:
            path = stack.enter_context(scratch())
            contestants = [start_ours(stack, path / "ours")]
            if IDLE in arguments.cells:
                results[IDLE] = idle(contestants[0], min(arguments.clients, files - SPARE_FILES))
            if arguments.peer and cells:
                contestants.append(start_apache(stack, path / "apache"))
            if cells:
                for contestant in contestants:
                    contestant.start_driver(stack)
                results |= compare(contestants, cells, arguments)
    except ProcessFailed as error:
        results["failed"] = str(error)
    report("proxy", results)
    if "failed" in results:
        sys.exit(f"benchmark: {results['failed']}")


if __name__ == "__main__":
    main()
