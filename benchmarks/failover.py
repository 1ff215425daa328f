"""How long a broker name is without a master: killed, handed over, vanished; and the cost of a replica.

    python -m benchmarks.failover [--kills 20] [--hand-overs 5] [--seconds 5] [--peer apache]
    unshare --map-root-user --net python -m benchmarks.failover --vanish 5

One name server, one controller and two replicas on this machine, each a process of its own, and one producer
of Skylark. The peer is Apache's controller in its name server with its brokers. Prints JSON: milliseconds
from the kill to the first SEND_OK of another broker, or between two of them at a hand-over.

A machine that vanishes leaves its connections open and silent: each broker has a network namespace of its own
with a cable to a bridge, and the master's cable is pulled. Needs Linux, `ip`, `nsenter` and the right to make
namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from benchmarks.peers.apache import POM, ApacheBroker, ApacheController, MeasuredBroker
from benchmarks.peers.java import fetch_jars
from skylark.accelerator import is_compiled
from skylark.admin.admin import AsyncAdmin
from skylark.client.producer.producer import AsyncProducer
from skylark.errors import RocketMQError
from skylark.model.message import Message, format_host
from skylark.model.message_id import parse_offset_message_id
from skylark.processes import HOST, free_ports, python_command
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.torture.cluster import Process

TOPIC = "failover"
NAME = "broker-a"
APACHE_HEAP_MB = 1024
BODY = bytes(1024)
SEND_TIMEOUT_MS = 1000
PAUSE_S = 0.002
SETTLE_TIMEOUT_S = 60.0
CONCURRENCY = 64
WARM_UP_S = 3.0
BRIDGE = "switch"
HUB = "10.77.0.1"
REPLICAS = 2
BACK_S = 2.0


class Broker(Protocol):
    """A process that is killed and started again."""

    async def kill(self) -> None: ...

    async def start(self) -> None: ...


@dataclass(frozen=True)
class Machine:
    """Where processes run: the address they listen on, and what their commands begin with."""

    host: str = HOST
    prefix: tuple[str, ...] = ()


HERE = Machine()


class Cluster(ABC):
    """The processes of a group; brokers by address."""

    namesrv: str
    brokers: Mapping[str, Broker]

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def hand_over(self, admin: AsyncAdmin) -> None:
        """Move the master to another replica, with as little harm as this cluster can."""

    async def master(self, admin: AsyncAdmin, in_sync: int, *, other_than: str = "") -> str:
        """The address of the master, once so many slaves are members of its set. Raises TimeoutError."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                for address in self.brokers:
                    if address == other_than:
                        continue
                    try:
                        status = await admin.brokers.replication(address)
                    except RocketMQError:
                        continue
                    if status.master and status.in_sync_slave_nums >= in_sync:
                        return address
                await asyncio.sleep(0.05)


class SkylarkCluster(Cluster):
    """A name server and a controller on one machine, the brokers on others, which may be the same."""

    def __init__(self, directory: Path, brokers_on: Sequence[Machine], rest_on: Machine = HERE) -> None:
        self._directory = directory
        self.namesrv = f"{rest_on.host}:{free_ports()}"
        self._controller = f"{rest_on.host}:{free_ports()}"
        self._servers = [
            self._process("namesrv", rest_on, self.namesrv, {"kvConfigPath": str(directory / "kv.json")}),
            self._process(
                "controller",
                rest_on,
                self._controller,
                {"controllerStorePath": str(directory / "controller")},
            ),
        ]
        ports = [free_ports(-2, 1) for _ in brokers_on]
        self.brokers: dict[str, Process] = {
            f"{machine.host}:{port}": self._broker(machine, port)
            for machine, port in zip(brokers_on, ports, strict=True)
        }

    def _process(
        self, kind: str, machine: Machine, address: str, settings: dict[str, str], *more: str
    ) -> Process:
        port = int(address.rpartition(":")[2])
        given = {"listenPort": str(port), "bindAddress": machine.host, **settings}
        text = msgspec.json.encode(given).decode()
        command = [*machine.prefix, *python_command("skylark.torture.server", kind, text, *more)]
        log = self._directory / f"{kind}-{port}.log"
        return Process(kind, command, log, port if machine.host == HOST else None)

    def _broker(self, machine: Machine, port: int) -> Process:
        settings = {
            "namesrvAddr": self.namesrv,
            "brokerIP1": machine.host,
            "brokerIP2": machine.host,
            "store.path": str(self._directory / str(port)),
            "enableControllerMode": "true",
            "controllerAddr": self._controller,
            "metricsPromExporterPort": "0",
            "mappedFileSizeCommitLog": str(64 << 20),
        }
        disk = str(self._directory / f"{port}.disk")
        return self._process("broker", machine, f"{machine.host}:{port}", settings, disk)

    async def start(self) -> None:
        for process in (*self._servers, *self.brokers.values()):
            await process.start()

    async def stop(self) -> None:
        for process in (*self.brokers.values(), *self._servers):
            await process.kill()

    async def hand_over(self, admin: AsyncAdmin) -> None:
        await admin.brokers.hand_over(NAME)


class ApacheProcess:
    """A broker of Apache, started and ended in a thread."""

    def __init__(self, server: ApacheBroker) -> None:
        self._server = server

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.kill)


class ApacheCluster(Cluster):
    """Apache's controller inside its name server, and its brokers with the safe acknowledgements."""

    def __init__(self, directory: Path, replicas: int) -> None:
        classpath = fetch_jars(POM)
        self._controller = ApacheController(classpath, directory / "controller")
        self.namesrv = self._controller.address
        servers = [
            MeasuredBroker(
                classpath, directory / f"home-{number}", directory / f"store-{number}",
                name_server=self.namesrv, heap_mb=APACHE_HEAP_MB,
                settings={
                    "brokerId": -1, "brokerRole": "SLAVE", "enableControllerMode": "true",
                    "allAckInSyncStateSet": "true", "controllerAddr": self._controller.controller,
                    "mappedFileSizeCommitLog": 64 << 20,
                },
            )
            for number in range(replicas)
        ]  # fmt: skip
        self.brokers: dict[str, ApacheProcess] = {each.address: ApacheProcess(each) for each in servers}

    async def start(self) -> None:
        await asyncio.to_thread(self._controller.start)
        for broker in self.brokers.values():
            await broker.start()

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.kill()
        await asyncio.to_thread(self._controller.kill)

    async def hand_over(self, admin: AsyncAdmin) -> None:
        """Apache's brokers cannot hand over: an election moves the master."""
        replicas = (await admin.controllers.replicas(self._controller.controller, [NAME]))[NAME]
        others = [each for each in replicas.in_sync_replicas if each.broker_id != replicas.master_broker_id]
        cluster = ApacheBroker.cluster
        await admin.controllers.elect(self._controller.controller, NAME, others[0].broker_id, cluster=cluster)


class Load:
    """Sends one message after the other, and notes when and by which broker it was answered with SEND_OK."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self.acknowledged: list[tuple[float, str]] = []
        self.failures = 0

    async def run(self) -> None:
        while True:
            try:
                receipt = await self._producer.send(Message(TOPIC, BODY))
            except RocketMQError:
                self.failures += 1
            else:
                if receipt.is_ok:
                    address, _ = parse_offset_message_id(receipt.offset_message_id)
                    self.acknowledged.append((time.monotonic(), format_host(address)))
                else:
                    self.failures += 1
            await asyncio.sleep(PAUSE_S)

    async def next_after(self, since: float, *, other_than: str = "") -> float:
        """Seconds from a moment to the first acknowledgement after it, of another broker than this one."""
        position = len(self.acknowledged)
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                while position < len(self.acknowledged):
                    at, broker = self.acknowledged[position]
                    if at > since and broker != other_than:
                        return at - since
                    position += 1
                await asyncio.sleep(0.001)


def summary(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(each * 1000 for each in times_s)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"count": len(ordered), "p50_ms": statistics.median(ordered), "p99_ms": p99, "max_ms": ordered[-1]}


async def kill_masters(
    cluster: Cluster, admin: AsyncAdmin, load: Load, times: int, seconds: float
) -> list[float]:
    found: list[float] = []
    end = time.monotonic() + seconds
    while len(found) < times and time.monotonic() < end:
        master = await cluster.master(admin, 1)
        process = cluster.brokers[master]
        killing, began = asyncio.ensure_future(process.kill()), time.monotonic()
        found.append(await load.next_after(began, other_than=master))
        await killing
        await process.start()
    return found


async def hand_over(cluster: Cluster, admin: AsyncAdmin, load: Load, times: int) -> list[float]:
    found = []
    for _ in range(times):
        await cluster.master(admin, 1)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await cluster.hand_over(admin)
        await asyncio.sleep(1.0)
        times_s = [at for at, _ in load.acknowledged if at >= began - 0.1]
        found.append(max(after - before for before, after in itertools.pairwise(times_s)))
    return found


async def throughput(producer: AsyncProducer, seconds: float) -> dict[str, Any]:
    """Acknowledged messages per second with many senders, after some time to warm up."""
    count = 0
    failures: Counter[str] = Counter()
    start = time.monotonic() + WARM_UP_S
    end = start + seconds

    async def send() -> None:
        nonlocal count
        while (now := time.monotonic()) < end:
            try:
                await producer.send(Message(TOPIC, BODY))
            except RocketMQError as error:
                failures[type(error.__cause__ or error).__name__] += now >= start
            else:
                count += now >= start

    await asyncio.gather(*(send() for _ in range(CONCURRENCY)))
    return {"messages_per_s": count / seconds, "failures": dict(failures)}


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[tuple[AsyncAdmin, AsyncProducer]]:
    """Start a cluster, whose replicas all become members of the set, with a topic; yields its clients."""
    client = ClientSettings(instance_name=f"bench-{cluster.namesrv}")
    settings = ProducerSettings(retries=2, send_timeout_ms=SEND_TIMEOUT_MS)
    try:
        await cluster.start()
        async with AsyncAdmin(namesrv=cluster.namesrv, client=client) as admin:
            await cluster.master(admin, len(cluster.brokers) - 1)
            await asyncio.sleep(1.0)
            await admin.topics.create(TOPIC, queues=4)
            async with AsyncProducer(
                "P", namesrv=cluster.namesrv, settings=settings, client=client
            ) as producer:
                yield admin, producer
    finally:
        await cluster.stop()


async def with_cluster(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"replicas": len(cluster.brokers)}
    async with serving(cluster) as (admin, producer):
        if options.seconds:
            result |= await throughput(producer, options.seconds)
        if len(cluster.brokers) > 1:
            load = Load(producer)
            sending = asyncio.ensure_future(load.run())
            pauses = await hand_over(cluster, admin, load, options.hand_overs)
            result["hand_over_pause"] = summary(pauses)
            result["hand_over_failures"] = load.failures
            result["kill_to_send_ok"] = summary(
                await kill_masters(cluster, admin, load, options.kills, options.kill_seconds)
            )
            sending.cancel()
    return result


# --- Machines that vanish ---


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)  # noqa: S607


class Cable:
    """The network of a machine."""

    def __init__(self, number: int, holder: int) -> None:
        self.machine = Machine(f"10.77.0.{10 + number}", ("nsenter", "-t", str(holder), "-n"))
        here, self._there = f"port{number}", f"cable{number}"
        ip("link", "add", here, "type", "veth", "peer", "name", self._there)
        ip("link", "set", self._there, "netns", str(holder))
        ip("link", "set", here, "master", BRIDGE, "up")
        self._inside("link", "set", "lo", "up")
        self._inside("addr", "add", f"{self.machine.host}/24", "dev", self._there)
        self.plug("up")

    def plug(self, state: str) -> None:
        """`up` or `down`: packets are dropped without an answer."""
        self._inside("link", "set", self._there, state)

    def _inside(self, *words: str) -> None:
        subprocess.run([*self.machine.prefix, "ip", *words], check=True)


@contextmanager
def machines(count: int) -> Iterator[dict[str, Cable]]:
    """Machines on one bridge, by address. The namespace of this process must be new."""
    ip("link", "set", "lo", "up")
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", f"{HUB}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")
    with ExitStack() as stack:
        cables = []
        for number in range(count):
            holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])  # noqa: S607
            stack.callback(holder.wait)
            stack.callback(holder.kill)
            own = Path("/proc/self/ns/net").readlink()
            while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
                time.sleep(0.01)
            cables.append(Cable(number, holder.pid))
        yield {cable.machine.host: cable for cable in cables}


async def pull_cables(times: int, cables: dict[str, Cable], directory: Path) -> dict[str, Any]:
    cluster = SkylarkCluster(directory, [cable.machine for cable in cables.values()], Machine(HUB))
    found = []
    async with serving(cluster) as (admin, producer):
        load = Load(producer)
        sending = asyncio.ensure_future(load.run())
        await load.next_after(0.0)
        for _ in range(times):
            await asyncio.sleep(BACK_S)  # a former master that is back learns that it is one
            master = await cluster.master(admin, REPLICAS - 1)
            assert master == load.acknowledged[-1][1]
            cable = cables[master.rpartition(":")[0]]
            pulled = time.monotonic()
            cable.plug("down")
            found.append(await load.next_after(pulled, other_than=master))
            await cluster.master(admin, 0, other_than=master)
            await asyncio.sleep(BACK_S)
            cable.plug("up")
        sending.cancel()
    return {"vanished_to_send_ok": summary(found)}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"compiled_module": is_compiled}
    for name, replicas in (("alone", 1), ("two_replicas", REPLICAS)):
        if replicas == 1 and not options.seconds:
            continue
        with tempfile.TemporaryDirectory() as directory:
            cluster = (
                ApacheCluster(Path(directory), replicas)
                if options.peer == "apache"
                else SkylarkCluster(Path(directory), [HERE] * replicas)
            )
            results[name] = await with_cluster(cluster, options)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--kill-seconds", type=float, default=600.0, help="no more kills after so long")
    parser.add_argument("--hand-overs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of throughput, alone and with a replica")
    parser.add_argument("--peer", choices=["apache"], help="measure this cluster instead of Skylark's")
    parser.add_argument("--vanish", type=int, metavar="TIMES", help="measure only machines that vanish")
    options = parser.parse_args()
    if options.vanish:
        with tempfile.TemporaryDirectory() as directory, machines(REPLICAS) as cables:
            results = asyncio.run(pull_cables(options.vanish, cables, Path(directory)))
    else:
        results = asyncio.run(run(options))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
