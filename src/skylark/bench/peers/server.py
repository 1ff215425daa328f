"""A server as a process: started, stopped, killed and started again on ports and directories that stay.

Entering starts it and waits until it serves; leaving kills it, because who cares for an orderly end calls
`stop`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Self

from skylark.bench.peers.ports import PortReservation
from skylark.bench.peers.process import GroupProcess

STOP_TIMEOUT_S = 60
HOST = "127.0.0.1"


class Server(ABC):
    """What all servers share. The ports are chosen with the object; the first reservation is the address."""

    title: str
    """What its logs are called."""
    start_timeout_s: float = 90

    def __init__(self, home: Path, *ports: PortReservation) -> None:
        self.home = home
        self._ports = ports
        self._process: GroupProcess | None = None
        self._starts = 0

    @property
    def port(self) -> int:
        return self._ports[0].base

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @abstractmethod
    def command(self, start: int) -> list[str]:
        """The command line of a start, the first being 1. May write files below `home`."""

    def environment(self) -> Mapping[str, str]:
        """Variables beside those of this process."""
        return {}

    @abstractmethod
    def wait_until_serving(self) -> None:
        """Return when clients may come. Raises ProcessFailed."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.release_ports()

    def start(self) -> None:
        """Start and wait until it serves; again after `stop` or `kill`. Raises ProcessFailed."""
        self.launch()
        try:
            self.wait_until_serving()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> GroupProcess:
        """Start the process and do not wait."""
        assert self._process is None, "already running"
        self.home.mkdir(parents=True, exist_ok=True)
        self._starts += 1
        command = self.command(self._starts)
        self.release_ports()
        log = self.home / f"{self.title}-{self._starts}.log"
        self._process = GroupProcess(command, log=log, env=self.environment())
        return self._process

    def release_ports(self) -> None:
        for ports in self._ports:
            ports.release()

    def stop(self) -> int:
        """An orderly end by SIGTERM; the exit code. Raises ProcessFailed if SIGKILL was needed."""
        process, self._process = self._running(), None
        return process.terminate(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def signal(self, number: Signals) -> None:
        """Give the server's group a signal; nothing if it does not run."""
        if self._process is not None:
            self._process.signal(number)

    def _running(self) -> GroupProcess:
        assert self._process is not None, "not running"
        return self._process
