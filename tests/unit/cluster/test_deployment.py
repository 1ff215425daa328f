"""Files for several hosts: settings that load, replicas apart, units and services that run commands."""

import configparser
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from skylark.cli.main import app
from skylark.cluster.deployment import HostedNode, compose_file, hosted_nodes, systemd_files
from skylark.cluster.layout import ClusterShape, NodeKind
from skylark.errors import SettingsError
from skylark.settings import BrokerSettings
from skylark.settings.loader import load_settings
from tests.unit.cli.test_reference import check_command
from tests.unit.cluster.test_layout import TYPES

HOSTS = ["a", "b", "c"]
SHAPE = ClusterShape(brokers=3, replicas=2, controllers=3, etcd="http://a:2379,http://b:2379")


def loaded(node: HostedNode, directory: Path) -> Any:
    file = directory / "node.conf"
    file.write_text(node.properties())
    settings = load_settings(TYPES[node.kind], file=file)
    assert settings.warnings == ()
    return settings.settings


def test_replicas_of_a_name_are_on_different_hosts_and_ports_do_not_clash(tmp_path: Path) -> None:
    nodes = hosted_nodes(SHAPE, HOSTS)
    assert len(nodes) == 3 + 3 + 6
    places: dict[str, set[str]] = {}
    ports: set[tuple[str, int]] = set()
    for node in nodes:
        settings = loaded(node, tmp_path)
        if isinstance(settings, BrokerSettings):
            places.setdefault(settings.name, set()).add(node.host)
            assert settings.group.enabled
            taken = {settings.port, settings.port - 2, settings.port + 1, settings.metrics_port}
            assert not {(node.host, port) for port in taken} & ports
            ports |= {(node.host, port) for port in taken}
    assert {name: len(hosts) for name, hosts in places.items()} == {
        "broker-a": 2, "broker-b": 2, "broker-c": 2,
    }  # fmt: skip


def test_units_run_commands_with_the_settings_beside_them() -> None:
    files = systemd_files(hosted_nodes(SHAPE, HOSTS))
    units = [name for name in files if name.endswith(".service")]
    assert len(units) == 12
    for name in units:
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(files[name])
        command = unit["Service"]["ExecStart"].split()
        check_command(["skylark", *command[1:]])
        assert f"{Path(name).parent}/{Path(command[-1]).name}" in files


def test_a_compose_file_has_a_service_for_each_node() -> None:
    nodes = hosted_nodes(SHAPE, HOSTS)
    compose = yaml.safe_load(compose_file(nodes))
    assert set(compose["services"]) == {f"{node.host}-{node.name}" for node in nodes}
    aliases = [
        service["networks"]["default"]["aliases"][0]
        for service in compose["services"].values()
        if "networks" in service
    ]
    assert sorted(aliases) == HOSTS
    for service in compose["services"].values():
        check_command(["skylark", *service["command"]])
        if "network_mode" in service:
            assert service["network_mode"].removeprefix("service:") in compose["services"]
    assert set(compose["volumes"]) == set(HOSTS)


@pytest.mark.parametrize("hosts", [[], ["a", "a"], ["a"]])
def test_too_few_hosts_are_refused(hosts: list[str]) -> None:
    with pytest.raises(SettingsError):
        hosted_nodes(SHAPE, hosts)


@pytest.mark.parametrize("is_compose", [False, True])
def test_the_command_writes_them(tmp_path: Path, is_compose: bool) -> None:
    words = ["cluster", "render", "--hosts", "a,b", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*words, "--compose"] if is_compose else words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "compose.yaml").exists() == is_compose
    assert (tmp_path / "a" / "broker-a.conf").exists()
    assert (tmp_path / "b" / "skylark-broker-b.service").exists() != is_compose


def test_kinds_are_commands() -> None:
    for kind in set(NodeKind) - {NodeKind.ETCD}:
        check_command(["skylark", kind.value])
