"""Apache RocketMQ's name server and broker, on free ports of the loopback.

They keep everything they write below the directories given to them.
"""

from __future__ import annotations

import socket
import struct
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.java import Classpath, jvm_command
from skylark.processes import PortReservation, ProcessFailed, Server

POM = Path(__file__).parent / "drivers" / "pom-5.3.3.xml"
"""Version 5.3.3: name server, broker, client and tools."""
ANSWER_TIMEOUT_S = 5
NAME_SERVER_HEAP_MB = 256
BROKER_HEAP_MB = 512
MEASURED_HEAP_MB = 2048
BROKER_PORTS = (0, -2, 1)  # the broker's, the fast ("VIP") port, that for replicas
LENGTHS = struct.Struct(">ii")  # of the frame without this field, of the header
UPDATE_BROKER_CONFIG = 25
GET_BROKER_CLUSTER_INFO = 106
GET_CONTROLLER_METADATA = 1005
# Apache's own start script opens these packages for its memory maps.
OPENED = ("java.base/jdk.internal.ref", "java.base/java.nio", "java.base/sun.nio.ch")
SERVER_OPTIONS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
)
# A nearly full disk must not make the broker refuse messages or delete files while somebody looks at them.
DISK_OPTIONS = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
)


class _JavaServer(Server):
    """What the two servers share: a configuration file, a JVM, "boot success"."""

    main_class: str
    heap_mb: int
    options: tuple[str, ...] = SERVER_OPTIONS

    def __init__(self, classpath: Classpath, home: Path, ports: PortReservation) -> None:
        super().__init__(home, ports)
        self.title = self.main_class.rpartition(".")[2]
        self._classpath = classpath

    @abstractmethod
    def configuration(self) -> dict[str, str | int]:
        """The properties of the server's configuration file."""

    def command(self, start: int) -> list[str]:
        file = self.home / "conf" / f"{self.title}-{start}.conf"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{key}={value}\n" for key, value in self.configuration().items()))
        return jvm_command(
            self._classpath,
            self.main_class,
            "-c",
            str(file),
            home=self.home,
            heap_mb=self.heap_mb,
            options=self.options,
        )

    def environment(self) -> Mapping[str, str]:
        return {"ROCKETMQ_HOME": str(self.home)}

    def wait_until_serving(self) -> None:
        process = self._running()
        process.wait_until(lambda: "boot success" in process.log_text(), "boot success", self.start_timeout_s)


class ApacheNameServer(_JavaServer):
    """Apache's name server on a free port, at `address`."""

    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
    heap_mb = NAME_SERVER_HEAP_MB
    distances: tuple[int, ...] = (0,)

    def __init__(self, classpath: Classpath, home: Path) -> None:
        super().__init__(classpath, home, PortReservation(*self.distances))

    def configuration(self) -> dict[str, str | int]:
        return {"listenPort": self.port, "kvConfigPath": str(self.home / "kvConfig.json")}


class ApacheController(ApacheNameServer):
    """Apache's name server with a controller inside, alone in its group, at `controller`."""

    distances = (0, 1)

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.port + 1}"

    def configuration(self) -> dict[str, str | int]:
        return {
            **super().configuration(),
            "bindAddress": "127.0.0.1",
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home / "controller"),
            "mappedFileSize": 1 << 20,
        }

    def wait_until_serving(self) -> None:
        super().wait_until_serving()
        self._running().wait_until(self._leads, "leadership of the controller", self.start_timeout_s)

    def _leads(self) -> bool:
        try:
            header, _ = exchange(self.controller, GET_CONTROLLER_METADATA)
            return bool(header["extFields"]["isLeader"] == "true")
        except OSError:
            return False


class ApacheBroker(_JavaServer):
    """Apache's broker (`broker-a`, id 0) on `store_dir`, which it may find empty, closed or crashed.

    The ports are chosen with the object, so that `address` may be written into a store before the broker
    opens it, and stay the same over restarts. `settings` are properties of `broker.conf`.
    """

    main_class = "org.apache.rocketmq.broker.BrokerStartup"
    heap_mb = BROKER_HEAP_MB
    options = (*SERVER_OPTIONS, *DISK_OPTIONS, "-XX:MaxDirectMemorySize=512m")
    cluster = "DefaultCluster"
    name = "broker-a"

    def __init__(
        self,
        classpath: Classpath,
        home: Path,
        store_dir: Path,
        *,
        name_server: str,
        settings: Mapping[str, str | int],
    ) -> None:
        super().__init__(classpath, home, PortReservation(*BROKER_PORTS))
        self.store_dir = store_dir
        self._name_server = name_server
        self._settings = dict(settings)

    def configuration(self) -> dict[str, str | int]:
        return {
            "brokerClusterName": self.cluster,
            "brokerName": self.name,
            "brokerId": 0,
            "namesrvAddr": self._name_server,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "storePathRootDir": str(self.store_dir),
            "storePathCommitLog": str(self.store_dir / "commitlog"),
            "cleanFileForciblyEnable": "false",
            **self._settings,
        }

    def wait_until_serving(self) -> None:
        super().wait_until_serving()
        self._running().wait_until(self._registered, "registration", self.start_timeout_s)

    def _registered(self) -> bool:
        """Whether the name server knows the broker; asks it to register if not.

        A broker that starts faster than its connection to the name server comes up registers only ten seconds
        later, on its timer. A change of its permission, to what it is already, makes it register at once.
        """
        try:
            if self.address.encode() in ask(self._name_server, GET_BROKER_CLUSTER_INFO):
                return True
            ask(self.address, UPDATE_BROKER_CONFIG, b"brokerPermission=6")
        except OSError:
            pass  # a server under load may be late; the caller's limit decides
        return False

    def stop(self) -> int:
        """An orderly end; the store is then closed. Raises ProcessFailed if it left its `abort` file."""
        code = super().stop()
        if (self.store_dir / "abort").exists():
            raise ProcessFailed("the broker ended but left its store open (abort file)")
        return code


class MeasuredBroker(ApacheBroker):
    """With the collector and both compilers of Apache's start script, and a heap of a fixed size."""

    def __init__(
        self,
        classpath: Classpath,
        home: Path,
        store_dir: Path,
        *,
        name_server: str,
        settings: Mapping[str, str | int],
        heap_mb: int = MEASURED_HEAP_MB,
    ) -> None:
        super().__init__(classpath, home, store_dir, name_server=name_server, settings=settings)
        self.heap_mb = heap_mb
        self.options = measured_options(heap_mb)


def measured_options(heap_mb: int) -> tuple[str, ...]:
    """Options of the JVM of a server that is measured."""
    return (
        *SERVER_OPTIONS,
        *DISK_OPTIONS,
        f"-Xms{heap_mb}m",
        "-XX:-UseSerialGC",
        "-XX:+UseG1GC",
        "-XX:G1HeapRegionSize=16m",
        "-XX:G1ReservePercent=25",
        "-XX:InitiatingHeapOccupancyPercent=30",
        "-XX:TieredStopAtLevel=4",
        "-XX:MaxDirectMemorySize=1g",
    )


def ask(server: str, code: int, body: bytes = b"") -> bytes:
    """The body of a server's answer to a request. Raises as `exchange`."""
    return exchange(server, code, body)[1]


def exchange(server: str, code: int, body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """Header and body of a server's answer to a request without fields: as much protocol as waiting needs.

    Raises OSError when the server cannot be reached or hangs up.
    """
    host, _, port = server.rpartition(":")
    header = msgspec.json.encode({"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 479})
    with socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S) as connection:
        connection.sendall(LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body)
        with connection.makefile("rb") as stream:
            lengths = stream.read(LENGTHS.size)
            if len(lengths) < LENGTHS.size:
                raise ConnectionError(f"{server} hung up")
            frame_bytes, header_bytes = LENGTHS.unpack(lengths)
            answer = stream.read(frame_bytes - 4)
            return msgspec.json.decode(answer[:header_bytes]), answer[header_bytes:]
