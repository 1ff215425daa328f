"""How long a broker name is without a master: killed, handed over; and what an in-sync replica costs.

    python -m benchmarks.failover [--kills 20] [--hand-overs 5] [--seconds 5]

One name server, one controller and two replicas, each a process of its own, on this machine. Prints JSON:
milliseconds from the kill, or between two acknowledged messages at a hand-over, to the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from skylark.admin.admin import AsyncAdmin
from skylark.client.producer.producer import AsyncProducer
from skylark.errors import RocketMQError
from skylark.model.message import Message
from skylark.processes import HOST, free_ports, python_command
from skylark.settings.client import ClientSettings, ProducerSettings
from skylark.torture.cluster import Process

TOPIC = "failover"
BODY = bytes(1024)
SEND_TIMEOUT_MS = 1000
PAUSE_S = 0.002
SETTLE_TIMEOUT_S = 60.0
CONCURRENCY = 64


class Cluster:
    """The processes; `brokers` by port."""

    def __init__(self, directory: Path, replicas: int) -> None:
        self.namesrv = f"{HOST}:{free_ports()}"
        self._controller = f"{HOST}:{free_ports()}"
        self._directory = directory
        self._servers = [
            self._process("namesrv", self.namesrv, {"kvConfigPath": str(directory / "kv.json")}),
            self._process(
                "controller", self._controller, {"controllerStorePath": str(directory / "controller")}
            ),
        ]
        self.brokers = {port: self._broker(port) for port in (free_ports(-2, 1) for _ in range(replicas))}

    def _process(self, kind: str, address: str, settings: dict[str, str], *more: str) -> Process:
        port = int(address.rpartition(":")[2])
        given = {"listenPort": str(port), "bindAddress": HOST, **settings}
        text = msgspec.json.encode(given).decode()
        command = python_command("skylark.torture.server", kind, text, *more)
        return Process(kind, command, self._directory / f"{kind}-{port}.log", port)

    def _broker(self, port: int) -> Process:
        settings = {
            "namesrvAddr": self.namesrv,
            "store.path": str(self._directory / str(port)),
            "enableControllerMode": "true",
            "controllerAddr": self._controller,
            "metricsPromExporterPort": "0",
            "mappedFileSizeCommitLog": str(64 << 20),
        }
        return self._process("broker", f"{HOST}:{port}", settings, str(self._directory / f"{port}.disk"))

    async def start(self) -> None:
        for process in (*self._servers, *self.brokers.values()):
            await process.start()

    async def stop(self) -> None:
        for process in (*self.brokers.values(), *self._servers):
            await process.kill()

    async def master(self, admin: AsyncAdmin, in_sync: int) -> int:
        """The port of the master, once so many slaves are members of its set. Raises TimeoutError."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                for port in self.brokers:
                    try:
                        status = await admin.brokers.replication(f"{HOST}:{port}")
                    except RocketMQError:
                        continue
                    if status.master and status.in_sync_slave_nums >= in_sync:
                        return port
                await asyncio.sleep(0.05)


class Load:
    """Sends one message after the other, and notes when each was acknowledged."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer
        self.acknowledged: list[float] = []
        self.failures = 0

    async def run(self) -> None:
        while True:
            try:
                await self._producer.send(Message(TOPIC, BODY))
            except RocketMQError:
                self.failures += 1
            else:
                self.acknowledged.append(time.monotonic())
            await asyncio.sleep(PAUSE_S)

    async def next_after(self, since: float) -> float:
        """Seconds from a moment to the first acknowledgement after it."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while not self.acknowledged or self.acknowledged[-1] <= since:  # noqa: ASYNC110 (a measurement)
                await asyncio.sleep(0.001)
        return next(at for at in self.acknowledged if at > since) - since


def summary(times_s: list[float]) -> dict[str, float]:
    ordered = sorted(each * 1000 for each in times_s)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"count": len(ordered), "p50_ms": statistics.median(ordered), "p99_ms": p99, "max_ms": ordered[-1]}


async def kill_masters(cluster: Cluster, admin: AsyncAdmin, load: Load, times: int) -> list[float]:
    found = []
    for _ in range(times):
        port = await cluster.master(admin, 1)
        process = cluster.brokers[port]
        await process.kill()
        # Counted from when the process is gone: no acknowledgement of it can come after that.
        found.append(await load.next_after(time.monotonic()))
        await process.start()
    return found


async def hand_over(cluster: Cluster, admin: AsyncAdmin, load: Load, times: int) -> list[float]:
    found = []
    for _ in range(times):
        await cluster.master(admin, 1)
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await admin.brokers.hand_over("broker-a")
        await asyncio.sleep(1.0)
        times_s = [at for at in load.acknowledged if at >= began - 0.1]
        found.append(max(after - before for before, after in itertools.pairwise(times_s)))
    return found


async def throughput(producer: AsyncProducer, seconds: float) -> float:
    """Acknowledged messages per second with many senders."""
    count, end = 0, time.monotonic() + seconds

    async def send() -> None:
        nonlocal count
        while time.monotonic() < end:
            await producer.send(Message(TOPIC, BODY))
            count += 1

    await asyncio.gather(*(send() for _ in range(CONCURRENCY)))
    return count / seconds


async def with_cluster(directory: Path, replicas: int, options: argparse.Namespace) -> dict[str, Any]:
    cluster = Cluster(directory, replicas)
    client = ClientSettings(instance_name=f"bench-{replicas}")
    settings = ProducerSettings(retries=2, send_timeout_ms=SEND_TIMEOUT_MS)
    result: dict[str, Any] = {"replicas": replicas}
    try:
        await cluster.start()
        async with AsyncAdmin(namesrv=cluster.namesrv, client=client) as admin:
            await cluster.master(admin, replicas - 1)
            await asyncio.sleep(1.0)
            await admin.topics.create(TOPIC, queues=4)
            async with AsyncProducer(
                "P", namesrv=cluster.namesrv, settings=settings, client=client
            ) as producer:
                result["messages_per_s"] = round(await throughput(producer, options.seconds))
                if replicas > 1:
                    load = Load(producer)
                    sending = asyncio.ensure_future(load.run())
                    pauses = await hand_over(cluster, admin, load, options.hand_overs)
                    result["hand_over_pause"] = summary(pauses)
                    result["hand_over_failures"] = load.failures
                    result["kill_to_send_ok"] = summary(
                        await kill_masters(cluster, admin, load, options.kills)
                    )
                    sending.cancel()
    finally:
        await cluster.stop()
    return result


async def run(options: argparse.Namespace) -> dict[str, Any]:
    results = []
    for replicas in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            results.append(await with_cluster(Path(directory), replicas, options))
    share = results[1]["messages_per_s"] / results[0]["messages_per_s"]
    return {"alone": results[0], "two_replicas": results[1], "throughput_share": round(share, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hand-overs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
