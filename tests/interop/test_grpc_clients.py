"""RocketMQ's official gRPC clients, unchanged, with our servers, our proxy before Apache's, Apache's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.peers.java import jvm_command
from skylark.processes import GroupProcess
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PULL_SUBSCRIPTION, PullMessage
from skylark.remoting.blocking_connection import BlockingConnection
from tests.interop.grpc_servers import KINDS, SETTINGS, GrpcServers, ServeWithGrpc
from tests.support.foreign import virtualenv
from tests.support.java import compiled
from tests.support.names import fresh_name

HERE = Path(__file__).parent
JAVA = HERE / "java/grpc"
PYTHON = HERE / "grpc_python"
TIMEOUT_S = 150
HEAP_MB = 256
TOPIC_KINDS = {"fifo": "FIFO", "push-fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION"}
JAVA_SCENARIOS = (
    "normal", "fifo", "delay", "transaction", "push", "push-fifo", "filter", "invisible", "dead-letter",
)  # fmt: skip
PYTHON_SCENARIOS = ("normal", "fifo", "delay", "transaction", "push", "filter", "invisible")

pytestmark = [pytest.mark.nightly, pytest.mark.interop("java", "mvn"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=KINDS)
def grpc_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GrpcServers]:
    with GrpcServers(request.param, tmp_path_factory.mktemp("servers")) as running:
        yield running


def java_command(home: Path, *words: str) -> list[str]:
    classpath = compiled(JAVA / "pom-client.xml", [JAVA / "GrpcDriver.java"])
    return jvm_command(classpath, "GrpcDriver", *words, home=home, heap_mb=HEAP_MB)


def python_command(home: Path, *words: str) -> list[str]:
    return [str(virtualenv(PYTHON / "requirements.txt")), str(PYTHON / "driver.py"), *words]


def outcome(command: Sequence[str], home: Path) -> str:
    """The last line of a driver: PASS, or why not."""
    home.mkdir(exist_ok=True)
    with GroupProcess(command, log=home / "driver.log", env={"HOME": str(home)}) as process:
        process.wait(TIMEOUT_S)
        lines = [line for line in process.log_text().splitlines() if line.startswith(("PASS", "FAIL"))]
        return lines[-1] if lines else process.log_text()[-2000:]


def names_for(servers: GrpcServers, scenario: str) -> tuple[str, str]:
    """A topic and a group as the scenario wants them."""
    kind = TOPIC_KINDS.get(scenario, "NORMAL")
    topic = servers.create_topic(fresh_name(scenario.replace("-", "_")), kind)
    retries = 1 if scenario == "dead-letter" else 16
    return topic, servers.create_group(f"G_{topic}", is_ordered=kind == "FIFO", retries=retries)


@pytest.mark.parametrize("scenario", JAVA_SCENARIOS)
def test_java_client(grpc_servers: GrpcServers, scenario: str, tmp_path: Path) -> None:
    topic, group = names_for(grpc_servers, scenario)
    command = java_command(tmp_path, grpc_servers.endpoints, scenario, topic, group, "plain")
    assert outcome(command, tmp_path) == "PASS"
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


@pytest.mark.parametrize("scenario", PYTHON_SCENARIOS)
def test_python_client(grpc_servers: GrpcServers, scenario: str, tmp_path: Path) -> None:
    topic, group = names_for(grpc_servers, scenario)
    command = python_command(tmp_path, grpc_servers.endpoints, scenario, topic, group, "plain")
    assert outcome(command, tmp_path) == "PASS"


def test_java_client_with_its_default_tls(grpc_servers: GrpcServers, tmp_path: Path) -> None:
    topic, group = names_for(grpc_servers, "normal")
    command = java_command(tmp_path, grpc_servers.endpoints, "normal", topic, group, "tls")
    assert outcome(command, tmp_path) == "PASS"


def test_clients_reconnect_after_a_killed_broker(tmp_path: Path) -> None:
    with GrpcServers("skylark", tmp_path / "servers") as servers:
        topic, group = names_for(servers, "reconnect")
        command = java_command(tmp_path, servers.endpoints, "reconnect", topic, group, "plain")
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


def test_users_and_rights(tmp_path: Path) -> None:
    """`serve --secure`: a user of it is let in, one with a wrong secret is not."""
    with ServeWithGrpc(tmp_path / "servers", SETTINGS, ["--secure"]) as servers:
        secret = dict(
            line.split("=", 1)
            for line in (servers.home / "data/secure/admin.credentials").read_text().split()
        )
        environment = {
            "NAMESRV_ADDR": servers.name_server,
            "SKYLARK_TLS_ENABLED": "true",
            "SKYLARK_TLS_TRUSTED": str(servers.home / "data/secure/ca.pem"),
            "SKYLARK_CREDENTIALS_FILE": str(servers.home / "data/secure/admin.credentials"),
        }
        skylark = [sys.executable, "-m", "skylark"]
        subprocess.run([*skylark, "topic", "create", "secured"], check=True, env={**environment}, timeout=60)
        words = (servers.endpoints, "normal", "secured", "G_secured", "tls", secret["accessKey"])
        assert outcome(java_command(tmp_path, *words, secret["secretKey"]), tmp_path) == "PASS"
        wrong = (servers.endpoints, "refused", "secured", "G_secured", "tls", secret["accessKey"], "wrong")
        assert outcome(java_command(tmp_path, *wrong), tmp_path) == "PASS"
