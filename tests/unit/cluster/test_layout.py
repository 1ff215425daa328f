"""Which processes a cluster has, and that their settings are settings."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from skylark.cluster.layout import ClusterShape, NodeKind, local_nodes
from skylark.errors import SettingsError
from skylark.settings import BrokerSettings, NameServerSettings
from skylark.settings.controller import ControllerSettings, RegisterKind
from skylark.settings.loader import load_settings

TYPES: dict[NodeKind, type[Any]] = {
    NodeKind.NAME_SERVER: NameServerSettings,
    NodeKind.CONTROLLER: ControllerSettings,
    NodeKind.BROKER: BrokerSettings,
}


def test_every_node_has_its_name_its_ports_and_settings_that_load(tmp_path: Path) -> None:
    ports = count(20_000, 10)
    shape = ClusterShape(brokers=2, replicas=2, controllers=3, etcd="local")
    nodes = local_nodes(shape, tmp_path, lambda *_: next(ports))
    assert [node.name for node in nodes] == [
        "etcd-0", "etcd-1", "etcd-2", "namesrv", "controller-0", "controller-1", "controller-2",
        "broker-a-1", "broker-a-2", "broker-b-1", "broker-b-2",
    ]  # fmt: skip
    assert len({node.port for node in nodes}) == len(nodes)
    etcds, others = nodes[:3], nodes[3:]
    for node in others:
        file = tmp_path / "node.conf"
        file.write_text(node.properties())
        loaded = load_settings(TYPES[node.kind], file=file)
        assert loaded.warnings == ()
        settings = loaded.settings
        if isinstance(settings, ControllerSettings):
            assert settings.register is RegisterKind.ETCD
            assert settings.etcd.addresses == [f"http://{each.address}" for each in etcds]
            assert settings.peer_addresses[settings.self_id] == node.address
        if isinstance(settings, BrokerSettings):
            assert settings.group.enabled
            assert settings.group.controllers == ";".join(each.address for each in others[1:4])
            assert settings.port == node.port


def test_one_controller_has_one_etcd(tmp_path: Path) -> None:
    ports = count(20_000, 10)
    nodes = local_nodes(ClusterShape(etcd="local"), tmp_path, lambda *_: next(ports))
    assert [node.name for node in nodes if node.kind is NodeKind.ETCD] == ["etcd"]


def test_a_cluster_without_replicas_needs_no_controller(tmp_path: Path) -> None:
    ports = count(20_000, 10)
    nodes = local_nodes(ClusterShape(brokers=1, replicas=1, controllers=0), tmp_path, lambda *_: next(ports))
    assert [node.name for node in nodes] == ["namesrv", "broker-a"]
    assert "enableControllerMode" not in nodes[1].settings


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ({"brokers": 0}, "setting --brokers: 0 is out of range; use 1 to 26"),
        ({"controllers": 0}, "setting --controllers: replicas need a controller; use 1, or 3 with --etcd"),
        ({"controllers": 3}, "setting --etcd: 3 controllers share their state in etcd; add --etcd"),
    ],
)
def test_what_cannot_be(shape: dict[str, int], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ClusterShape(**shape)  # type: ignore[arg-type]
    assert str(caught.value) == sentence
