"""Real Apache RocketMQ servers for the interop tests: a name server and a broker as context managers.

Both listen on free ports of 127.0.0.1 and keep everything they write below the directories given to them.
Entering starts the server and waits until it serves; leaving kills it, because a test that cares for an
orderly end calls `stop`.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tests.support.java import Classpath, GroupProcess, JavaFailed, jvm_command

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60
ANSWER_TIMEOUT_S = 20
NAME_SERVER_HEAP_MB = 256
BROKER_HEAP_MB = 512
LENGTHS = struct.Struct(">ii")  # of the frame without this field, of the header
UPDATE_BROKER_CONFIG = 25
GET_BROKER_CLUSTER_INFO = 106
# Below the range from which Linux and macOS take the ports of outgoing connections.
PORTS = range(20_000, 32_000)
# Apache's own start script opens these packages for its memory maps.
OPENED = ("java.base/jdk.internal.ref", "java.base/java.nio", "java.base/sun.nio.ch")
SERVER_OPTIONS = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
)
# A nearly full disk must not make the broker refuse messages or delete files while a test looks at them.
DISK_OPTIONS = (
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
)


class PortReservation:
    """Free ports at fixed distances from a base, held by bound sockets until `release`."""

    def __init__(self, *distances: int) -> None:
        for base in random.sample(PORTS, 200):
            self._sockets: list[socket.socket] = []
            try:
                for distance in distances:
                    self._hold(base + distance)
            except OSError:
                self.release()
                continue
            self.base = base
            return
        raise OSError(f"no free ports at distances {distances}")

    def _hold(self, port: int) -> None:
        held = socket.socket()
        self._sockets.append(held)
        held.bind(("", port))

    def release(self) -> None:
        """Free the ports for the server that was meant to have them."""
        while self._sockets:
            self._sockets.pop().close()


class _Server:
    """What the two servers share: a configuration file, a JVM, "boot success", an end."""

    main_class: str
    heap_mb: int
    options: tuple[str, ...] = SERVER_OPTIONS

    def __init__(self, classpath: Classpath, home: Path, ports: PortReservation) -> None:
        self._classpath = classpath
        self._home = home
        self._ports = ports
        self._process: GroupProcess | None = None
        self._starts = 0

    @property
    def port(self) -> int:
        return self._ports.base

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._ports.release()

    def start(self) -> None:
        """Start the JVM and wait until it serves; again after `stop` or `kill`. Raises JavaFailed."""
        assert self._process is None, "already running"
        (self._home / "conf").mkdir(parents=True, exist_ok=True)
        self._starts += 1
        name = f"{self.main_class.rpartition('.')[2]}-{self._starts}"
        configuration = self._home / "conf" / f"{name}.conf"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in self.configuration().items()))
        command = jvm_command(
            self._classpath,
            self.main_class,
            "-c",
            str(configuration),
            home=self._home,
            heap_mb=self.heap_mb,
            options=self.options,
        )
        self._ports.release()
        log = self._home / f"{name}.log"
        self._process = GroupProcess(command, log=log, env={"ROCKETMQ_HOME": str(self._home)})
        try:
            self._wait_until_serving(self._process)
        except BaseException:
            self.kill()
            raise

    def configuration(self) -> dict[str, str | int]:
        """The properties of the server's configuration file."""
        raise NotImplementedError

    def _wait_until_serving(self, process: GroupProcess) -> None:
        process.wait_until(lambda: "boot success" in process.log_text(), "boot success", START_TIMEOUT_S)

    def stop(self) -> None:
        """An orderly end by SIGTERM. Raises JavaFailed if SIGKILL was needed."""
        process, self._process = self._process, None
        assert process is not None, "not running"
        process.terminate(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()


class ApacheNameServer(_Server):
    """Apache's name server on a free port, at `address`."""

    main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
    heap_mb = NAME_SERVER_HEAP_MB

    def __init__(self, classpath: Classpath, home: Path) -> None:
        super().__init__(classpath, home, PortReservation(0))

    def configuration(self) -> dict[str, str | int]:
        return {"listenPort": self.port, "kvConfigPath": str(self._home / "kvConfig.json")}


class ApacheBroker(_Server):
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
        # The fast ("VIP") port lies two below the listening port; the replication port right above it.
        super().__init__(classpath, home, PortReservation(-2, 0, 1))
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

    def _wait_until_serving(self, process: GroupProcess) -> None:
        super()._wait_until_serving(process)
        process.wait_until(self._registered, "registration", START_TIMEOUT_S)

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

    def stop(self) -> None:
        """An orderly end; the store is then closed. Raises JavaFailed if the broker left its `abort` file."""
        super().stop()
        if (self.store_dir / "abort").exists():
            raise JavaFailed("the broker ended but left its store open (abort file)")


def ask(server: str, code: int, body: bytes = b"") -> bytes:
    """The body of a server's answer to a request without fields: as much protocol as waiting needs.

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
            return stream.read(frame_bytes - 4)[header_bytes:]
