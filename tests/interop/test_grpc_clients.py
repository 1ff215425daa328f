"""RocketMQ's official gRPC clients, unchanged, with our servers, our proxy before Apache's, Apache's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.grpc_clients import CLIENTS, LITE_SCENARIOS, PRIORITY, TIMEOUT_S, names_for
from tests.interop.grpc_servers import (
    KINDS,
    LIGHT_QUEUES,
    LITE_KINDS,
    SETTINGS,
    GrpcServers,
    ServeWithGrpc,
)
from tests.support.foreign import BUILD_TIMEOUT_S

SCENARIOS = [
    pytest.param(client.name, scenario, marks=client.mark, id=f"{client.name}-{scenario}")
    for client in CLIENTS.values()
    for scenario in client.scenarios
]
TLS_CLIENTS = [pytest.param(name, marks=CLIENTS[name].mark) for name in ("java", "go")]
"""They use TLS by default, and trust every server."""
SIGNING_CLIENTS = [
    pytest.param(client.name, "tls" if client.has_tls else "plain", marks=client.mark, id=client.name)
    for client in CLIENTS.values()
]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.interop("java", "mvn"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + TIMEOUT_S),
]


@pytest.fixture(scope="module", params=KINDS)
def grpc_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcServers]:
    with GrpcServers(request.param, tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.mark.parametrize(("client", "scenario"), SCENARIOS)
def test_client(grpc_servers: GrpcServers, client: str, scenario: str, tmp_path: Path) -> None:
    topic, group = names_for(grpc_servers, scenario)
    words = (grpc_servers.endpoints, scenario, topic, group, "plain")
    assert CLIENTS[client].outcome(tmp_path, *words) == "PASS"
    if scenario == "dead-letter":
        assert dead_letters(grpc_servers.broker, group) == 1


def dead_letters(broker: str, group: str) -> int:
    """How many messages a group has given up."""
    request = PullMessage(
        consumer_group="TOOLS_CONSUMER", topic=f"%DLQ%{group}", queue_id=0, queue_offset=0, max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION, commit_offset=0, suspend_timeout_ms=0, sub_version=0, subscription="*",
    )  # fmt: skip
    with BlockingConnection(broker) as connection:
        result = connection.call(request)
    return 0 if result.code != ResponseCode.SUCCESS else int(result.reply.max_offset)


def test_java_client_sends_and_receives_by_priority(tmp_path: Path) -> None:
    """With our servers: Apache's of 5.3.3 have no priorities."""
    with GrpcServers("skylark", tmp_path / "servers") as servers:
        words = (servers.endpoints, PRIORITY, *names_for(servers, PRIORITY), "plain")
        assert CLIENTS["java"].outcome(tmp_path / "client", *words) == "PASS"


@pytest.fixture(scope="module", params=LITE_KINDS)
def lite_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcServers]:
    settings = {**SETTINGS, **LIGHT_QUEUES}
    with GrpcServers(request.param, tmp_path_factory.mktemp("servers"), settings) as running:
        yield running


@pytest.mark.parametrize("scenario", LITE_SCENARIOS)
def test_java_client_uses_lite_topics(lite_servers: GrpcServers, scenario: str, tmp_path: Path) -> None:
    words = (lite_servers.endpoints, scenario, *names_for(lite_servers, scenario), "plain")
    assert CLIENTS["java"].outcome(tmp_path, *words) == "PASS"


@pytest.mark.parametrize("client", TLS_CLIENTS)
def test_client_with_its_default_tls(grpc_servers: GrpcServers, client: str, tmp_path: Path) -> None:
    topic, group = names_for(grpc_servers, "normal")
    words = (grpc_servers.endpoints, "normal", topic, group, "tls")
    assert CLIENTS[client].outcome(tmp_path, *words) == "PASS"


def test_clients_reconnect_after_a_killed_broker(tmp_path: Path) -> None:
    with GrpcServers("skylark", tmp_path / "servers") as servers:
        topic, group = names_for(servers, "reconnect")
        command = CLIENTS["java"].command(tmp_path, servers.endpoints, "reconnect", topic, group, "plain")
        path = tmp_path / "driver.log"
        with (
            path.open("w") as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log) as process,
        ):
            try:
                _until_ready(process, path)
                servers.kill()
                servers.start()
                process.communicate(b"\n", TIMEOUT_S)
            finally:
                process.kill()
        assert path.read_text().splitlines()[-1] == "PASS"


def _until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + TIMEOUT_S
    while "READY" not in log.read_text():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServeWithGrpc]:
    """`serve --secure` with a topic for each client. The gRPC port takes "tls" or "plain" text only."""
    environment = {"SKYLARK_PROXY_TLS_MODE": "disabled"} if request.param == "plain" else {}
    directory = tmp_path_factory.mktemp("secured")
    with ServeWithGrpc(directory, SETTINGS, ["--secure"], environment) as servers:
        files = servers.home / "data/secure"
        environment = {
            "NAMESRV_ADDR": servers.name_server,
            "SKYLARK_TLS_ENABLED": "true",
            "SKYLARK_TLS_TRUSTED": str(files / "ca.pem"),
            "SKYLARK_CREDENTIALS_FILE": str(files / "admin.credentials"),
        }
        skylark = [sys.executable, "-m", "skylark"]
        for client in CLIENTS:
            command = [*skylark, "topic", "create", f"secured_{client}"]
            subprocess.run(command, check=True, env=environment, timeout=60)
        yield servers


@pytest.mark.parametrize(("client", "secured"), SIGNING_CLIENTS, indirect=["secured"])
def test_users_and_rights(secured: ServeWithGrpc, client: str, tmp_path: Path) -> None:
    """A user of `serve --secure` is let in, one with a wrong secret is not."""
    files = secured.home / "data/secure"
    pairs = (line.split("=", 1) for line in (files / "admin.credentials").read_text().split())
    secret = dict(pairs)
    for scenario, secret_key in (("normal", secret["secretKey"]), ("refused", "wrong")):
        way = "tls" if CLIENTS[client].has_tls else "plain"
        names = (f"secured_{client}", f"G_{client}", way, secret["accessKey"], secret_key)
        found = CLIENTS[client].outcome(
            tmp_path, secured.endpoints, scenario, *names, trusted=files / "ca.pem"
        )
        assert (scenario, found) == (scenario, "PASS")
