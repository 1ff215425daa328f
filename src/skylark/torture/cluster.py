"""Processes under torture: started, killed, frozen, started again on the same ports; and their clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import IO

from skylark.errors import RocketMQError

HOST = "127.0.0.1"
CLIENT_HOST = "127.0.0.2"
"""Where clients find brokers: a second loopback address, on which the proxy listens."""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02
PORT_TRIES = 200
# Below the range from which Linux and macOS take the ports of outgoing connections.
PORTS = range(20_000, 32_000)

_given_out: set[int] = set()


class ProcessFailed(RocketMQError):
    """A process of the run did not come up, or ended by itself."""

    def __init__(self, name: str, reason: str, log: Path) -> None:
        super().__init__(name, reason, log)
        self.name, self.reason, self.log = name, reason, log

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}; its words are in {self.log}"


def free_ports(host: str, *distances: int) -> int:
    """A port that is free, and so are those at these distances; no call gives out any of them again.

    A server that was killed finds its port free, since no outgoing connection has taken it. Raises OSError.
    """
    for base in random.sample(PORTS, PORT_TRIES):
        wanted = {base, *(base + distance for distance in distances)}
        if wanted & _given_out:
            continue
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in wanted:
                held.enter_context(socket.socket()).bind((host, port))
            _given_out.update(wanted)
            return base
    raise OSError(f"no free ports at {host}")


class Process:
    """One process that is started, killed, frozen and started again. Its output goes to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = command
        """What the next start runs."""
        self.log = log
        self._environment = environment or {}
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start, and wait until it listens. Raises ProcessFailed."""
        self.spawn()
        if self._port is not None:
            await self._wait_ready(self._port)

    def spawn(self) -> None:
        """Start, and wait for nothing."""
        assert not self.is_running
        with self.log.open("ab") as out:
            self._process = self._spawn(out)

    def _spawn(self, out: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own command
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._environment},
        )

    async def _wait_ready(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_TIMEOUT_S
        while True:
            if not self.is_running:
                raise ProcessFailed(self.name, "it ended at its start", self.log)
            try:
                _, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                if loop.time() > deadline:
                    raise ProcessFailed(
                        self.name, f"not ready after {READY_TIMEOUT_S:g} s", self.log
                    ) from None
                await asyncio.sleep(POLL_S)
            else:
                writer.close()
                return

    def signal(self, number: Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it at once, as a crash does."""
        await self._end(Signals.SIGKILL)

    async def terminate(self) -> None:
        """Ask it to end, and wait until it has. Raises ProcessFailed if it does not."""
        await self._end(Signals.SIGTERM)

    async def _end(self, number: Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(Signals.SIGCONT)  # a frozen one hears nothing but this and a kill
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
            raise ProcessFailed(self.name, f"not ended after {STOP_TIMEOUT_S:g} s", self.log) from None


class FakeClock:
    """A clock for processes that libfaketime moves; it reads this file at every question for the time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let the time be so many seconds away from the true one."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}s\n")
        written.replace(self._file)  # never half a line

    def environment(self, library: Path) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def find_faketime() -> Path | None:
    """libfaketime, where Debian's package `faketime` puts it."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


def python_command(module: str, *arguments: str) -> list[str]:
    """A module of this installation as a program."""
    return [sys.executable, "-m", module, *arguments]
