"""Our servers as a process of their own, by the command of the users, for tests with other people's clients.

Ports are chosen with the object and stay the same over restarts. Leaving the context kills the process,
because a test that cares for an orderly end calls `stop`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.apache import GET_BROKER_CLUSTER_INFO, PortReservation, ask
from tests.support.java import GroupProcess

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
BROKER_PORTS = (-2, 0, 1)  # the fast port, the broker's, that for replicas
SMALL_STORE = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}


class _Command:
    """A `skylark` command that runs a broker: start, orderly stop, crash, restart."""

    name_server: str
    directory: Path

    def __init__(self, settings: Mapping[str, str | int]) -> None:
        self._settings = {**SMALL_STORE, "metricsPromExporterPort": 0, **settings}
        self._ports = PortReservation(*BROKER_PORTS)
        self._process: GroupProcess | None = None
        self._starts = 0

    @property
    def broker(self) -> str:
        """The broker's address."""
        return f"127.0.0.1:{self._ports.base}"

    def arguments(self) -> Sequence[str]:
        """The command and its flags, without settings."""
        raise NotImplementedError

    def release_ports(self) -> None:
        self._ports.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.release_ports()

    def start(self) -> None:
        """Start and wait until the name server knows the broker; again after `stop` or `kill`."""
        assert self._process is None, "already running"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        sets = [flag for key, value in self._settings.items() for flag in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "skylark.cli.main", *self.arguments(), *sets]
        self.release_ports()
        self._process = GroupProcess(command, log=self.directory / f"output-{self._starts}.log")
        try:
            self._process.wait_until(self._registered, "registration", START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def _registered(self) -> bool:
        try:
            return self.broker.encode() in ask(self.name_server, GET_BROKER_CLUSTER_INFO)
        except OSError:
            return False

    def stop(self) -> int:
        """An orderly end by SIGTERM; the exit code. Raises JavaFailed if SIGKILL was needed."""
        process, self._process = self._process, None
        assert process is not None, "not running"
        return process.terminate(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def complaints(self) -> str:
        """What the servers have written beside their greeting, over all starts."""
        lines = [
            line
            for number in range(1, self._starts + 1)
            for line in (self.directory / f"output-{number}.log").read_text(errors="replace").splitlines()
        ]
        greeting = ("skylark ", "store ", "metrics ", "try: skylark ", "     skylark ")
        return "\n".join(line for line in lines if not line.startswith(greeting))


class SkylarkServers(_Command):
    """`skylark serve`: a name server and a broker, everything they write below `directory`."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int]) -> None:
        super().__init__(settings)
        self.directory = directory
        self._name_server_port = PortReservation(0)
        self.name_server = f"127.0.0.1:{self._name_server_port.base}"

    def release_ports(self) -> None:
        super().release_ports()
        self._name_server_port.release()

    def arguments(self) -> Sequence[str]:
        ports = ["--namesrv-port", str(self._name_server_port.base), "--broker-port", str(self._ports.base)]
        return ["serve", "--data", str(self.directory / "data"), *ports]


class SkylarkBroker(_Command):
    """`skylark broker` with somebody else's name server."""

    def __init__(self, directory: Path, name_server: str, settings: Mapping[str, str | int]) -> None:
        super().__init__(settings)
        self.directory = directory
        self.name_server = name_server

    def arguments(self) -> Sequence[str]:
        flags = ["--namesrv", self.name_server, "--port", str(self._ports.base)]
        return ["broker", "--data", str(self.directory / "data"), *flags]
