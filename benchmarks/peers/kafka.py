"""Apache Kafka: one node that is broker and controller (KRaft), on free ports of the loopback."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.java import Classpath, jvm_command, run_tool
from skylark.processes import HOST, PortReservation, Server, listens

POM = Path(__file__).parent / "drivers" / "pom-kafka.xml"
VERSION = "4.3.1"
FORMAT_TIMEOUT_S = 60
FORMAT_HEAP_MB = 256
ANSWER_TIMEOUT_S = 5
# What Kafka's own start script gives its JVM.
OPTIONS = (
    "-server",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-XX:-UseSerialGC",
    "-XX:+UseG1GC",
    "-XX:TieredStopAtLevel=4",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
# One node cannot keep the three copies that these topics want.
SINGLE_NODE = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}


class KafkaServer(Server):
    """A node with its log below `home`. `settings` are properties of the server."""

    title = "kafka"

    def __init__(
        self, classpath: Classpath, home: Path, *, heap_mb: int, settings: Mapping[str, str | int]
    ) -> None:
        super().__init__(home, PortReservation(0, 1))
        self._classpath = classpath
        self._heap_mb = heap_mb
        self._settings = dict(settings)

    def configuration(self) -> dict[str, str | int]:
        """The properties of the server's configuration file."""
        broker, controller = self.address, f"{HOST}:{self.port + 1}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.home / "log"),
            **SINGLE_NODE,
            **self._settings,
        }

    def format(self) -> None:
        """Prepare an empty log directory, as has to be done once before the first start."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self._file()
        file.write_text("".join(f"{key}={value}\n" for key, value in self.configuration().items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ["format", "--cluster-id", cluster, "--config", str(file)]
        tool = jvm_command(
            self._classpath, "kafka.tools.StorageTool", *arguments, home=self.home, heap_mb=FORMAT_HEAP_MB
        )
        run_tool(tool, FORMAT_TIMEOUT_S)

    def command(self, start: int) -> list[str]:
        heap = f"-Xms{self._heap_mb}m"
        return jvm_command(
            self._classpath,
            "kafka.Kafka",
            str(self._file()),
            home=self.home,
            heap_mb=self._heap_mb,
            options=(heap, *OPTIONS),
        )

    def wait_until_serving(self) -> None:
        self._running().wait_until(
            lambda: listens(self.address, ANSWER_TIMEOUT_S), "connection", self.start_timeout_s
        )

    def _file(self) -> Path:
        return self.home / "server.properties"
