"""RocketMQ's official gRPC clients: their drivers, and the scenarios of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.peers.java import DRIVERS, jvm_command
from skylark.processes import GroupProcess
from tests.interop.grpc_servers import GrpcServers
from tests.support.foreign import cargo_binary, go_program, node_modules, virtualenv
from tests.support.java import compiled
from tests.support.names import fresh_name

HERE = Path(__file__).parent
TIMEOUT_S = 150
HEAP_MB = 256
CLIENT_POM = DRIVERS / "pom-grpc-client.xml"
JAVA = HERE / "java/grpc"
PYTHON = HERE / "grpc_python"
NODE = HERE / "grpc_node"
GO = HERE / "grpc_go"
RUST = HERE / "grpc_rust"
PRIORITY = "priority"
"""A scenario of clients and servers since 5.4."""
TOPIC_KINDS = {
    "fifo": "FIFO",
    "push-fifo": "FIFO",
    "delay": "DELAY",
    "transaction": "TRANSACTION",
    PRIORITY: "PRIORITY",
    "lite": "LITE",
    "lite-retry": "LITE",
    "lite-exclusive": "LITE",
}
LITE_SCENARIOS = tuple(name for name, kind in TOPIC_KINDS.items() if kind == "LITE")
SIMPLE = ("normal", "fifo", "delay", "transaction", "filter")
"""What every client can do."""


@dataclass(frozen=True)
class OfficialClient:
    """A client with a driver: ENDPOINTS SCENARIO TOPIC GROUP plain|tls [ACCESS_KEY SECRET]."""

    name: str
    tools: tuple[str, ...]
    """Programs that it needs."""
    scenarios: tuple[str, ...]
    command: Callable[..., list[str]]
    """Given a directory and the driver's words."""
    environment: Callable[[], Mapping[str, str]] = dict
    trust: str = ""
    """A variable with a file of certificates that it trusts; without one it trusts every server."""
    has_tls: bool = True

    @property
    def mark(self) -> pytest.MarkDecorator:
        """Names the tools; Apache's servers need those of Java."""
        return pytest.mark.interop("java", "mvn", *self.tools)

    def outcome(self, home: Path, *words: str, trusted: Path | None = None) -> str:
        """Run a scenario; the last line of the driver: PASS, or why not."""
        home.mkdir(exist_ok=True)
        environment = {"HOME": str(home), **self.environment()}
        if trusted is not None and self.trust:
            environment[self.trust] = str(trusted)
        with GroupProcess(
            self.command(home, *words), log=home / "driver.log", env=environment, directory=home
        ) as process:
            process.wait(TIMEOUT_S)
            text = process.log_text()
            verdicts = [line for line in text.splitlines() if line.startswith(("PASS", "FAIL"))]
            return verdicts[-1] if verdicts else text[-2000:]


def names_for(servers: GrpcServers, scenario: str, topic: str = "", queues: int = 4) -> tuple[str, str]:
    """Make a topic and a group as the scenario wants them."""
    kind = TOPIC_KINDS.get(scenario, "NORMAL")
    topic = servers.create_topic(topic or fresh_name(scenario.replace("-", "_")), kind, queues)
    attributes = {"lite_bind_topic": topic} if kind == "LITE" else {}
    if scenario == "lite-exclusive":
        attributes["lite_sub_model"] = "Exclusive"
    retries = 1 if scenario == "dead-letter" else 16
    return topic, servers.create_group(f"G_{topic}", is_ordered=kind == "FIFO", retries=retries, **attributes)


def _java(home: Path, *words: str) -> list[str]:
    classpath = compiled(CLIENT_POM, [JAVA / "GrpcDriver.java"])
    return jvm_command(classpath, "GrpcDriver", *words, home=home, heap_mb=HEAP_MB)


def _python(home: Path, *words: str) -> list[str]:
    return [str(virtualenv(PYTHON / "requirements.txt")), str(PYTHON / "driver.py"), *words]


def _node(home: Path, *words: str) -> list[str]:
    return ["node", str(NODE / "driver.js"), *words]


def _go(home: Path, *words: str) -> list[str]:
    return [str(go_program(GO)), *words]


def _rust(home: Path, *words: str) -> list[str]:
    return [str(cargo_binary(RUST)), *words]


CLIENTS = {
    client.name: client
    for client in (
        OfficialClient(
            "java", (), (*SIMPLE, "push", "push-fifo", "invisible", "dead-letter"), _java
        ),
        OfficialClient(
            "python", (), (*SIMPLE, "push", "invisible"), _python,
            trust="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        ),
        OfficialClient(
            "node", ("node", "npm"), (*SIMPLE, "push", "push-fifo", "invisible"), _node,
            environment=lambda: {"NODE_PATH": str(node_modules(NODE / "package.json"))},
            trust="GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
        ),
        OfficialClient("go", ("go",), (*SIMPLE, "push", "push-fifo", "invisible"), _go),
        OfficialClient("rust", ("cargo",), SIMPLE, _rust, has_tls=False),
    )
}  # fmt: skip
