"""Pure. Files for a cluster on several hosts: settings and units of systemd, or a compose file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skylark.cluster.layout import CLUSTER, ClusterShape, NodeKind, broker_name
from skylark.errors import SettingsError
from skylark.settings.properties import write_properties

NAME_SERVERS_MAX = 3
NAME_SERVER_PORT = 9876
CONTROLLER_PORT = 9878
BROKER_PORT = 10911
PORT_DISTANCE = 10
BROKER_METRICS_PORT = 5557
CONTROLLER_METRICS_PORT = 5590
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - the hosts reach each other
DATA = "/var/lib/skylark"
SETTINGS = "/etc/skylark"

UNIT = """\
[Unit]
Description=Skylark {name}
After=network-online.target
Wants=network-online.target

[Service]
User=skylark
ExecStart=/opt/skylark/bin/skylark {kind} -c {settings}/{name}.conf
StateDirectory=skylark
TimeoutStopSec=60
Restart=always
RestartSec=1
LimitNOFILE=655350
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class HostedNode:
    """One process on one host."""

    host: str
    name: str
    kind: NodeKind
    settings: Mapping[str, str]

    def properties(self) -> str:
        return write_properties(self.settings)


def hosted_nodes(shape: ClusterShape, hosts: Sequence[str]) -> list[HostedNode]:
    """Spread a cluster over hosts: replicas of a name on different ones. Raises SettingsError."""
    if len(set(hosts)) != len(hosts) or not hosts:
        raise SettingsError("--hosts", f"{','.join(hosts)!r} does not name each host once")
    for what, number in (("replicas of a name", shape.replicas), ("controllers", shape.controllers)):
        if number > len(hosts):
            raise SettingsError("--hosts", f"{number} {what} need {number} hosts, there are {len(hosts)}")
    names = hosts[:NAME_SERVERS_MAX]
    return [
        *(_name_server(host) for host in names),
        *_controllers(shape, hosts[: shape.controllers]),
        *_brokers(shape, hosts, ";".join(f"{host}:{NAME_SERVER_PORT}" for host in names)),
    ]


def _name_server(host: str) -> HostedNode:
    settings = {
        "bindAddress": ANY_ADDRESS,
        "listenPort": str(NAME_SERVER_PORT),
        "kvConfigPath": f"{DATA}/namesrv/kvConfig.json",
    }
    return HostedNode(host, "namesrv", NodeKind.NAME_SERVER, settings)


def _controllers(shape: ClusterShape, hosts: Sequence[str]) -> Iterator[HostedNode]:
    peers = ";".join(f"n{number}-{host}:{CONTROLLER_PORT}" for number, host in enumerate(hosts))
    for number, host in enumerate(hosts):
        settings = {
            "bindAddress": ANY_ADDRESS,
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": f"{DATA}/controller",
            "metricsPromExporterPort": str(CONTROLLER_METRICS_PORT),
        }
        if shape.etcd:
            settings |= {"controllerType": "etcd", "etcdEndpoints": shape.etcd}
        yield HostedNode(host, "controller", NodeKind.CONTROLLER, settings)


def _brokers(shape: ClusterShape, hosts: Sequence[str], names: str) -> Iterator[HostedNode]:
    on_host = dict.fromkeys(hosts, 0)
    controllers = ";".join(f"{host}:{CONTROLLER_PORT}" for host in hosts[: shape.controllers])
    for number in range(shape.brokers):
        for replica in range(shape.replicas):
            host = hosts[(number + replica) % len(hosts)]
            port = BROKER_PORT + PORT_DISTANCE * on_host[host]
            broker = broker_name(number)
            settings = {
                "brokerClusterName": CLUSTER,
                "brokerName": broker,
                "bindAddress": ANY_ADDRESS,
                "brokerIP1": host,
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "metricsPromExporterPort": str(BROKER_METRICS_PORT + on_host[host]),
                "namesrvAddr": names,
                "storePathRootDir": f"{DATA}/{broker}",
            }
            if controllers:
                settings |= {"enableControllerMode": "true", "controllerAddr": controllers}
            on_host[host] += 1
            yield HostedNode(host, broker, NodeKind.BROKER, settings)


def systemd_files(nodes: Sequence[HostedNode]) -> dict[str, str]:
    """Return a folder for each host: settings for /etc/skylark and units for systemd."""
    files: dict[str, str] = {}
    for node in nodes:
        files[f"{node.host}/{node.name}.conf"] = node.properties()
        files[f"{node.host}/skylark-{node.name}.service"] = UNIT.format(
            name=node.name, kind=node.kind.value, settings=SETTINGS
        )
    return files


def compose_file(nodes: Sequence[HostedNode]) -> str:
    """Return a compose file. The nodes of a host share a network, under the name of the host."""
    lines = ["services:"]
    first: dict[str, str] = {}
    for node in nodes:
        service = f"{node.host}-{node.name}"
        lines += [
            f"  {service}:",
            "    image: ${SKYLARK_IMAGE:-skylark:latest}",
            f"    command: [{node.kind.value}, -c, {SETTINGS}/{node.name}.conf]",
            "    restart: always",
            "    volumes:",
            f"      - ./{node.host}:{SETTINGS}:ro",
            f"      - {node.host}:{DATA}",
        ]
        if node.host in first:
            lines.append(f'    network_mode: "service:{first[node.host]}"')
        else:
            first[node.host] = service
            lines += ["    networks:", "      default:", f"        aliases: [{node.host}]"]
    lines += ["volumes:", *(f"  {host}: {{}}" for host in first), ""]
    return "\n".join(lines)
