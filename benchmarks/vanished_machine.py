"""How long a broker name is without a master whose machine vanishes: its connections stay open and silent.

    unshare --map-root-user --net python -m benchmarks.vanished_machine [--times 5]

Each broker has a network namespace of its own with a cable to a bridge, and the cable is pulled. Name server,
controller and producer are on the other side. Prints JSON: milliseconds from the pull to the first SEND_OK
of the other broker. Needs Linux, `ip`, `nsenter` and the right to make namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.failover import SEND_TIMEOUT_MS, TOPIC, Load, Machine, SkylarkCluster, summary
from skylark.admin.admin import AsyncAdmin
from skylark.client.producer.producer import AsyncProducer
from skylark.settings.client import ClientSettings, ProducerSettings

BRIDGE = "switch"
HUB = "10.77.0.1"
REPLICAS = 2
BACK_S = 2.0


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


async def run(times: int, cables: dict[str, Cable], directory: Path) -> dict[str, object]:
    cluster = SkylarkCluster(directory, [cable.machine for cable in cables.values()], Machine(HUB))
    client = ClientSettings(instance_name="vanished")
    settings = ProducerSettings(retries=2, send_timeout_ms=SEND_TIMEOUT_MS)
    found = []
    try:
        await cluster.start()
        async with AsyncAdmin(namesrv=cluster.namesrv, client=client) as admin:
            await cluster.master(admin, REPLICAS - 1)
            await asyncio.sleep(1.0)
            await admin.topics.create(TOPIC, queues=4)
            async with AsyncProducer(
                "P", namesrv=cluster.namesrv, settings=settings, client=client
            ) as producer:
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
    finally:
        await cluster.stop()
    return {"vanished_to_send_ok": summary(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, machines(REPLICAS) as cables:
        print(json.dumps(asyncio.run(run(options.times, cables, Path(directory))), indent=2))


if __name__ == "__main__":
    main()
