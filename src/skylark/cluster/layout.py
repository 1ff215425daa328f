"""Pure. The processes of a cluster on one machine: name servers, controllers, brokers, and etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from skylark.controller.etcd_member import ETCD_PORTS, MEMBERS
from skylark.errors import SettingsError
from skylark.settings.properties import write_properties

HOST = "127.0.0.1"
CLUSTER = "DefaultCluster"
BROKERS_MAX = 26
REPLICAS_MAX = 9
CONTROLLERS_MAX = 9
LOCAL_ETCD = "local"
BROKER_PORTS = (0, -2, 1)  # the broker's, the fast port, that for replicas

TakePorts = Callable[..., int]
"""Takes distances and returns a port that is free with the ports at these distances from it."""


class NodeKind(Enum):
    """What a process is. They start in this order and stop in the opposite one."""

    ETCD = "etcd"
    NAME_SERVER = "namesrv"
    CONTROLLER = "controller"
    BROKER = "broker"


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """How many there are of what. `etcd` is empty, `local`, or URLs of one that runs already."""

    brokers: int = 2
    replicas: int = 2
    controllers: int = 1
    etcd: str = ""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("--brokers", self.brokers, 1, BROKERS_MAX),
            ("--replicas", self.replicas, 1, REPLICAS_MAX),
            ("--controllers", self.controllers, 0, CONTROLLERS_MAX),
        ):
            if not low <= value <= high:
                raise SettingsError(name, f"{value} is out of range; use {low} to {high}")
        if self.replicas > 1 and not self.controllers:
            raise SettingsError("--controllers", "replicas need a controller; use 1, or 3 with --etcd")
        if self.controllers > 1 and not self.etcd:
            raise SettingsError(
                "--etcd", f"{self.controllers} controllers share their state in etcd; add --etcd"
            )


@dataclass(frozen=True)
class ClusterNode:
    """One process: its address, and its settings under RocketMQ's keys."""

    name: str
    kind: NodeKind
    port: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def properties(self) -> str:
        return write_properties(self.settings)


def broker_name(number: int) -> str:
    return f"broker-{chr(ord('a') + number)}"


def local_nodes(shape: ClusterShape, directory: Path, take_ports: TakePorts) -> list[ClusterNode]:
    """Return all processes of a cluster on this machine, in the order of their start."""
    nodes: list[ClusterNode] = []
    etcd = shape.etcd
    if etcd == LOCAL_ETCD:
        nodes += _etcd_members(MEMBERS if shape.controllers >= MEMBERS else 1, take_ports)
        etcd = ",".join(f"http://{node.address}" for node in nodes)
    names = ClusterNode("namesrv", NodeKind.NAME_SERVER, take_ports(0))
    home = directory / names.name
    settings = {
        "bindAddress": HOST,
        "listenPort": str(names.port),
        "kvConfigPath": str(home / "kvConfig.json"),
    }
    nodes.append(ClusterNode(names.name, names.kind, names.port, settings))
    controllers = list(_controllers(shape, directory, etcd, take_ports))
    addresses = ";".join(node.address for node in controllers)
    return [*nodes, *controllers, *_brokers(shape, directory, names.address, addresses, take_ports)]


def _etcd_members(count: int, take_ports: TakePorts) -> list[ClusterNode]:
    names = ["etcd"] if count == 1 else [f"etcd-{number}" for number in range(count)]
    return [ClusterNode(name, NodeKind.ETCD, take_ports(*ETCD_PORTS)) for name in names]


def _controllers(
    shape: ClusterShape, directory: Path, etcd: str, take_ports: TakePorts
) -> Iterator[ClusterNode]:
    ports = [take_ports(0) for _ in range(shape.controllers)]
    peers = ";".join(f"n{number}-{HOST}:{port}" for number, port in enumerate(ports))
    for number, port in enumerate(ports):
        name = f"controller-{number}"
        settings = {
            "bindAddress": HOST,
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": str(directory / name),
        }
        if etcd:
            settings |= {"controllerType": "etcd", "etcdEndpoints": etcd}
        yield ClusterNode(name, NodeKind.CONTROLLER, port, settings)


def _brokers(
    shape: ClusterShape, directory: Path, names: str, controllers: str, take_ports: TakePorts
) -> Iterator[ClusterNode]:
    for number in range(shape.brokers):
        for replica in range(1, shape.replicas + 1):
            broker = broker_name(number)
            name = f"{broker}-{replica}" if shape.replicas > 1 else broker
            port = take_ports(*BROKER_PORTS)
            settings = {
                "brokerClusterName": CLUSTER,
                "brokerName": broker,
                "namesrvAddr": names,
                "bindAddress": HOST,
                "brokerIP1": HOST,
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "metricsPromExporterPort": str(take_ports(0)),
                "storePathRootDir": str(directory / name / "store"),
            }
            if controllers:
                settings |= {"enableControllerMode": "true", "controllerAddr": controllers}
            yield ClusterNode(name, NodeKind.BROKER, port, settings)
