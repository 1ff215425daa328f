"""The controllers of a run and the etcd that keeps their state, behind proxies."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from skylark.controller.etcd_member import ETCD_PORTS, MEMBERS, PROGRAM, EtcdMember
from skylark.processes import HOST, free_ports, python_command
from skylark.torture.cluster import CLIENT_HOST, ClusterSettings, Process
from skylark.torture.proxy import Proxy


class EtcdNode:
    """A member of etcd. The other members reach it through a proxy."""

    def __init__(
        self, member: EtcdMember, members: Sequence[EtcdMember], directory: Path, chance: random.Random
    ) -> None:
        """`members` are all of its cluster, itself included."""
        self.port = member.port
        self._peer_port = member.peer_port
        self.peer_proxy = Proxy((HOST, member.peer_port), chance)
        command = member.command(PROGRAM, directory / member.name, members)
        self.process = Process(member.name, command, directory / f"{member.name}.log", member.port)

    async def start(self) -> None:
        """Raises ProcessFailed, OSError."""
        await self.peer_proxy.start(CLIENT_HOST, self._peer_port)
        await self.process.start()

    async def close(self) -> None:
        await self.process.kill()
        await self.peer_proxy.stop()


def etcd_nodes(directory: Path, chance: random.Random) -> list[EtcdNode]:
    """The members of one cluster. Raises OSError without free ports."""
    names = [f"etcd-{number}" for number in range(MEMBERS)]
    members = [EtcdMember(name, free_ports(*ETCD_PORTS), peer_host=CLIENT_HOST) for name in names]
    return [EtcdNode(member, members, directory, chance) for member in members]


class ControllerNode:
    """A controller. It reaches each member of etcd through a proxy of its own."""

    def __init__(
        self, number: int, ports: Sequence[int], etcd: Sequence[EtcdNode], settings: ClusterSettings
    ) -> None:
        """`ports` are those of all controllers; without members of etcd it keeps its state in a file.

        Raises OSError without free ports.
        """
        name = "controller" if len(ports) == 1 else f"controller-{number}"
        self.register_proxies = [Proxy((HOST, each.port), settings.chance) for each in etcd]
        self._fronts = [free_ports() for _ in etcd]
        values: dict[str, str] = {
            "bindAddress": HOST,
            "controllerDLegerPeers": ";".join(f"n{at}-{HOST}:{port}" for at, port in enumerate(ports)),
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": str(settings.directory / name),
            **settings.secure,
            **self._register(),
        }
        command = python_command("skylark.torture.server", "controller", msgspec.json.encode(values).decode())
        log = settings.directory / f"{name}.log"
        self.process = Process(name, command, log, ports[number], settings.clock(name))

    def _register(self) -> Mapping[str, str]:
        if not self._fronts:
            return {}
        endpoints = ",".join(f"http://{HOST}:{port}" for port in self._fronts)
        return {"controllerType": "etcd", "etcdEndpoints": endpoints}

    async def start(self) -> None:
        """Raises ProcessFailed, OSError."""
        for proxy, port in zip(self.register_proxies, self._fronts, strict=True):
            await proxy.start(HOST, port)
        await self.process.start()

    async def close(self) -> None:
        await self.process.kill()
        for proxy in self.register_proxies:
            await proxy.stop()
