"""A broker name in controller mode: replicas of which a controller chooses the master, behind proxies."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Sequence

from skylark.admin.admin import AsyncAdmin
from skylark.errors import RocketMQError
from skylark.processes import HOST, free_ports
from skylark.settings.client import ClientSettings
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.torture.cluster import (
    CLIENT_HOST,
    SYNC_POLL_S,
    SYNC_TIMEOUT_S,
    BrokerSet,
    ClusterSettings,
    TortureNode,
    failure,
)
from skylark.torture.proxy import Proxy

ASK_TIMEOUT_S = 2.0
LINK_BYTES_PER_S = str(1 << 20)
"""So slow that a former master compares its log for about a second: consumers ask it meanwhile."""
BECAME_MASTER = "became the master epoch="


class ReplicaNode(TortureNode):
    """A broker that reaches its controller, and the other replicas it, through proxies."""

    def __init__(self, label: str, name: str, settings: ClusterSettings, controllers: Sequence[int]) -> None:
        """`controllers` are their ports. Raises OSError without free ports."""
        super().__init__(label, name, settings)
        self.fast_proxy = Proxy((HOST, self.port - FAST_PORT_DISTANCE), settings.chance)
        self.controller_proxies = [Proxy((HOST, port), settings.chance) for port in controllers]
        self._controller_fronts = [free_ports() for _ in controllers]
        self._be(
            {
                "brokerId": "-1",
                "brokerIP2": CLIENT_HOST,
                "enableControllerMode": "true",
                "controllerAddr": ";".join(f"{HOST}:{port}" for port in self._controller_fronts),
                "slaveTimeout": "3000",
                "haFlowControlEnable": "true",
                "maxHaTransferByteInSecond": LINK_BYTES_PER_S,
            }
        )

    async def open_network(self) -> None:
        await super().open_network()
        await self.fast_proxy.start(CLIENT_HOST, self.port - FAST_PORT_DISTANCE)
        for proxy, port in zip(self.controller_proxies, self._controller_fronts, strict=True):
            await proxy.start(HOST, port)

    async def close(self) -> None:
        await super().close()
        await self.fast_proxy.stop()
        for proxy in self.controller_proxies:
            await proxy.stop()

    async def lose_disk(self) -> None:
        """Kill it and delete its store. Raises ProcessFailed."""
        await self.process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def epochs(self) -> list[int]:
        """The epochs in which this broker was the master, by its log."""
        found = [line.partition(BECAME_MASTER)[2] for line in self.process.log.read_text().splitlines()]
        return [int(rest.split()[0]) for rest in found if rest]


class ReplicaGroup(BrokerSet):
    """The replicas of one name. `master` is what `see_roles` saw last."""

    def __init__(self, name: str, count: int, settings: ClusterSettings, controllers: Sequence[int]) -> None:
        """`controllers` are their ports. Raises OSError without free ports."""
        self._replicas = [
            ReplicaNode(f"{name}-{number}", name, settings, controllers) for number in range(count)
        ]
        super().__init__(name, self._replicas[0])
        self.master: ReplicaNode = self._replicas[0]
        self._controllers = ";".join(f"{HOST}:{port}" for port in controllers)
        self._seeing = asyncio.Lock()

    @property
    def nodes(self) -> Sequence[ReplicaNode]:
        return self._replicas

    @property
    def followers(self) -> list[ReplicaNode]:
        return [node for node in self._replicas if node is not self.master]

    async def see_roles(self) -> None:
        """Find the current master. Keeps the known one if no broker claims to be it."""
        client = ClientSettings(instance_name=f"roles-{self.name}")
        async with self._seeing, AsyncAdmin(namesrv=self.master.address, client=client) as admin:
            for node in (self.master, *self.followers):
                try:
                    async with asyncio.timeout(ASK_TIMEOUT_S):
                        status = await admin.brokers.replication(node.address)
                except (RocketMQError, TimeoutError):
                    continue
                if status.master:
                    self.master = node
                    return

    async def in_sync(self) -> None:
        """Wait until all replicas are members of the in-sync set. Raises ProcessFailed."""
        client = ClientSettings(instance_name=f"sync-{self.name}")
        deadline = asyncio.get_running_loop().time() + SYNC_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            await self.see_roles()
            async with AsyncAdmin(namesrv=self.master.address, client=client) as admin:
                try:
                    status = await admin.brokers.replication(self.master.address)
                except RocketMQError:
                    status = None
            if status is not None and status.master and status.in_sync_slave_nums == len(self.followers):
                return
            await asyncio.sleep(SYNC_POLL_S)
        raise failure(self.name, f"not in sync after {SYNC_TIMEOUT_S:g} s", self.master.process.log)

    async def has_other_members(self) -> bool:
        """Whether the controllers have another living member in the set; False if none of them says so."""
        client = ClientSettings(instance_name=f"set-{self.name}")
        async with AsyncAdmin(namesrv=self.master.address, client=client) as admin:
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    replicas = await admin.controllers.replicas(self._controllers, [self.name])
            except (RocketMQError, TimeoutError):
                return False
        group = replicas.get(self.name)
        members = [] if group is None else [each for each in group.in_sync_replicas if each.alive]
        return len(members) > 1

    def epochs_of_two(self) -> list[str]:
        """Epochs in which two brokers were the master, as sentences; there must be none."""
        return [
            f"{one.label} and {other.label} in epoch {epoch}"
            for one, other in itertools.combinations(self._replicas, 2)
            for epoch in sorted(set(one.epochs()) & set(other.epochs()))
        ]
