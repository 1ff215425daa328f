"""Child processes: free ports, process groups with a log and time limits, servers that can be restarted.

A group ends with its parent, even when the parent is killed.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Any, Self

from skylark.errors import RocketMQError

HOST = "127.0.0.1"
# Below the range from which Linux and macOS take the ports of outgoing connections.
PORTS = range(20_000, 32_000)
PORT_TRIES = 200
KILL_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
POLL_S = 0.05
LOG_TAIL_LINES = 40
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GUARD = ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$0"')
"""A shell whose standard input closes when this process ends, however it ends; it then kills the group."""

_given_out: set[int] = set()


class ProcessFailed(RocketMQError):
    """A process failed or exceeded its time limit; the text includes the end of its log."""


# --- Ports ---


class PortReservation:
    """Free ports at fixed distances from a base, held by bound sockets until `release`.

    A process never reserves a port twice, so a killed server finds its port free. Raises OSError.
    """

    def __init__(self, *distances: int) -> None:
        for base in random.sample(PORTS, PORT_TRIES):
            ports = {base + distance for distance in distances}
            if ports & _given_out:
                continue
            self._sockets: list[socket.socket] = []
            try:
                for port in ports:
                    self._hold(port)
            except OSError:
                self.release()
                continue
            _given_out.update(ports)
            self.base = base
            return
        raise OSError(f"no free ports at distances {distances} from a base in {PORTS[0]}-{PORTS[-1]}")

    def _hold(self, port: int) -> None:
        held = socket.socket()
        self._sockets.append(held)
        held.bind(("", port))

    def release(self) -> None:
        """Free the ports for the server that will bind them."""
        while self._sockets:
            self._sockets.pop().close()


def free_ports(*distances: int) -> int:
    """A free port, with free ports at these distances from it. Raises OSError."""
    ports = PortReservation(0, *distances)
    ports.release()
    return ports.base


def listens(address: str, timeout_s: float) -> bool:
    """Whether HOST:PORT accepts connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError:
        return False
    return True


# --- Processes ---


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of a module of this installation."""
    return [sys.executable, "-m", module, *arguments]


def run(command: Sequence[str], *, log: Path, timeout_s: float, directory: Path | None = None) -> None:
    """Run a command to its end with its output in `log`. Raises ProcessFailed."""
    with GroupProcess(command, log=log, directory=directory) as process:
        code = process.wait(timeout_s)
        if code != 0:
            raise ProcessFailed(f"{_name(command)} ended with code {code}\n{process.log_tail()}")


def spawn(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process in a new process group; `options` are those of Popen.

    A signal such as Ctrl-C that arrives meanwhile is delivered afterwards: no process is left behind.
    """
    heard: list[int] = []
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in INTERRUPTIONS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        process = subprocess.Popen(command, start_new_session=True, **options)  # noqa: S603 - the caller's command
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        with process:
            os.killpg(process.pid, signal.SIGKILL)
        signal.raise_signal(heard[0])
    return process


def _name(command: Sequence[str]) -> str:
    return Path(command[0]).name


class GroupProcess:
    """A process in its own group with its output in a log file. Leaving the context kills the group."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.log = log
        self._command = command
        with log.open("ab") as output:
            self._process = spawn(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                cwd=directory,
            )
        self._guard: subprocess.Popen[Any] | None = None
        try:
            self._guard = spawn([*GUARD, str(self.pid)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> GroupProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Return the exit code. Kills the group and raises ProcessFailed after `timeout_s`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(
                f"{_name(self._command)} killed after {timeout_s:g} s\n{self.log_tail()}"
            ) from None
        self._dismiss_guard()
        return code

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float, poll_s: float = POLL_S
    ) -> None:
        """Poll until `condition` holds. Raises ProcessFailed if the process ends or the time passes first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.running:
                raise ProcessFailed(
                    f"{_name(self._command)} ended before {what}, code {self._process.returncode}\n"
                    f"{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{_name(self._command)}: no {what} within {timeout_s:g} s\n{self.log_tail()}"
                )
            time.sleep(poll_s)

    def terminate(self, timeout_s: float) -> int:
        """Send SIGTERM, return the exit code. Kills the group and raises ProcessFailed after `timeout_s`."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL to the group and wait for the process. Does nothing if it has ended."""
        self.signal(signal.SIGKILL)
        self._dismiss_guard()
        self._process.wait(KILL_TIMEOUT_S)

    def _dismiss_guard(self) -> None:
        # Before the system reuses the group's number.
        guard, self._guard = self._guard, None
        if guard is not None:
            with guard:  # waits, and closes its pipe
                guard.kill()

    def signal(self, number: Signals) -> None:
        """Send a signal to the group. Does nothing if the process has ended."""
        if self.running:
            os.killpg(self._process.pid, number)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def log_tail(self) -> str:
        """The last lines of the log, for error messages."""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])


# --- Servers ---


class Server(ABC):
    """A server process that can be stopped, killed and restarted on the same ports and directory.

    Entering the context starts it and waits until it serves; leaving kills it. `stop` ends it in order.
    """

    title: str
    """Prefix of its log files."""
    start_timeout_s: float = 90

    def __init__(self, home: Path, *ports: PortReservation) -> None:
        """The base of the first reservation is the server's port."""
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
        """Variables in addition to those of this process."""
        return {}

    @abstractmethod
    def wait_until_serving(self) -> None:
        """Return when clients can connect. Raises ProcessFailed."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.release_ports()

    def start(self) -> None:
        """Start, or restart after `stop` or `kill`, and wait until it serves. Raises ProcessFailed."""
        self.launch()
        try:
            self.wait_until_serving()
        except BaseException:
            self.kill()
            raise

    def launch(self) -> GroupProcess:
        """Start the process without waiting."""
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
        """Send SIGTERM and return the exit code. Raises ProcessFailed if SIGKILL was needed."""
        process, self._process = self._running(), None
        return process.terminate(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Send SIGKILL, as in a crash. Does nothing if it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def signal(self, number: Signals) -> None:
        """Send a signal to the server's group. Does nothing if it is not running."""
        if self._process is not None:
            self._process.signal(number)

    def _running(self) -> GroupProcess:
        assert self._process is not None, "not running"
        return self._process
