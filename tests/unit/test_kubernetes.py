"""The manifests for Kubernetes: valid, run commands that there are, and name what they refer to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from skylark.pipelines.jobs.pipeline_file import load_pipeline
from skylark.pipelines.jobs.session import SessionSettings
from skylark.settings.controller import ControllerSettings
from tests.unit.cli.test_reference import check_command

DIRECTORY = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSION = "1.31"
VALUES = {"INDEX": "1", "POD_IP": "10.0.0.1", "POD_NAME": "driver-1", "ETCD": "http://etcd:2379"}


def documents() -> list[dict[str, Any]]:
    return [
        document
        for path in sorted(DIRECTORY.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


ALL = {f"{each['kind']}/{each['metadata']['name']}": each for each in documents()}
SETS = [each for each in ALL.values() if each["kind"] == "StatefulSet"]


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_object_is_valid(name: str) -> None:
    kubernetes_validate.validate(ALL[name], VERSION, strict=True)


def values() -> dict[str, str]:
    return {**VALUES, **ALL["ConfigMap/controllers"]["data"]}


def arguments(container: dict[str, Any]) -> list[str]:
    known = values()
    return [re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], word) for word in container["args"]]


@pytest.mark.parametrize("item", SETS, ids=lambda item: str(item["metadata"]["name"]))
def test_containers_run_commands_and_what_they_refer_to_is_there(item: dict[str, Any]) -> None:
    name = item["metadata"]["name"]
    pod = item["spec"]["template"]
    [container] = pod["spec"]["containers"]
    check_command(["skylark", *arguments(container)])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            [action] = [each for each in ("httpGet", "tcpSocket") if each in container[probe]]
            assert container[probe][action]["port"] in ports
    service = ALL[f"Service/{item['spec']['serviceName']}"]
    assert {port["port"] for port in service["spec"]["ports"]} == set(ports.values())
    labels = pod["metadata"]["labels"]
    assert item["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert ALL[f"PodDisruptionBudget/{name}"]["spec"]["selector"]["matchLabels"] == labels
    claims = {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", ())}
    claims |= {volume["name"] for volume in pod["spec"].get("volumes", ())}
    assert {mount["name"] for mount in container.get("volumeMounts", ())} == claims


def test_every_controller_is_a_peer_and_brokers_know_all() -> None:
    data = values()
    replicas = ALL["StatefulSet/controller"]["spec"]["replicas"]
    settings = ControllerSettings(self_id="n1", peers=data["PEERS"])
    assert list(settings.peer_addresses) == [f"n{index}" for index in range(replicas)]
    assert list(settings.peer_addresses.values()) == data["CONTROLLERS"].split(";")


def test_the_spark_driver_submits_a_valid_pipeline_with_its_own_account_and_image(tmp_path: Path) -> None:
    pod = ALL["Deployment/orders-pipeline"]["spec"]["template"]["spec"]
    [driver] = pod["containers"]
    command = arguments(driver)
    check_command(command)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in driver["volumeMounts"]} == set(volumes)
    given = ALL[f"ConfigMap/{volumes['pipeline']['configMap']['name']}"]["data"]
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    pipeline = load_pipeline(tmp_path / Path(command[3]).name)
    settings = SessionSettings(master=pipeline.cluster.master, conf=pipeline.cluster.conf)
    assert all(driver["image"] in sentence for sentence in settings.needs())
    account = ALL[f"ServiceAccount/{pod['serviceAccountName']}"]["metadata"]["name"]
    assert pipeline.cluster.conf["spark.kubernetes.authenticate.serviceAccountName"] == account
    assert ALL[f"RoleBinding/{account}"]["subjects"][0]["name"] == account
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.lake"
    assert (
        pipeline.cluster.conf[f"{claim}.options.claimName"]
        == (volumes["lake"]["persistentVolumeClaim"]["claimName"])
    )
    [lake] = [mount for mount in driver["volumeMounts"] if mount["name"] == "lake"]
    assert pipeline.cluster.conf[f"{claim}.mount.path"] == lake["mountPath"]
