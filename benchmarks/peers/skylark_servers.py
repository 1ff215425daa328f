"""Our own servers as a process, by the command that users type."""

from __future__ import annotations

import compileall
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import skylark
from benchmarks.peers.apache import BROKER_PORTS, GET_BROKER_CLUSTER_INFO, ask
from skylark.processes import PortReservation, Server


@cache
def write_bytecode() -> None:
    """Let our bytecode lie beside the sources, as that of an installed program does: pip writes it.

    Where writing it is switched off (PYTHONDONTWRITEBYTECODE), every start would compile all modules anew.
    """
    for directory in skylark.__path__:
        compileall.compile_dir(directory, quiet=2)


class SkylarkCommand(Server):
    """A `skylark` command that runs a broker. Its name server's address is `name_server`."""

    title = "output"
    start_timeout_s = 30
    name_server: str

    def __init__(self, directory: Path, settings: Mapping[str, str | int], *more: PortReservation) -> None:
        super().__init__(directory, PortReservation(*BROKER_PORTS), *more)
        write_bytecode()
        self._settings = {"metricsPromExporterPort": 0, **settings}

    @property
    def broker(self) -> str:
        """The broker's address."""
        return self.address

    @abstractmethod
    def arguments(self) -> Sequence[str]:
        """The command and its flags, without settings."""

    def command(self, start: int) -> list[str]:
        sets = [flag for key, value in self._settings.items() for flag in ("--set", f"{key}={value}")]
        return [sys.executable, "-m", "skylark.cli.start", *self.arguments(), *sets]

    def wait_until_serving(self) -> None:
        self._running().wait_until(self._registered, "registration", self.start_timeout_s)

    def _registered(self) -> bool:
        try:
            return self.broker.encode() in ask(self.name_server, GET_BROKER_CLUSTER_INFO)
        except OSError:
            return False


class SkylarkServers(SkylarkCommand):
    """`skylark serve`: a name server and a broker, everything they write below `directory`."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int]) -> None:
        self._name_server_port = PortReservation(0)
        self.name_server = f"127.0.0.1:{self._name_server_port.base}"
        super().__init__(directory, settings, self._name_server_port)

    def arguments(self) -> Sequence[str]:
        ports = ["--namesrv-port", str(self._name_server_port.base), "--broker-port", str(self.port)]
        return ["serve", "--data", str(self.home / "data"), *ports]
