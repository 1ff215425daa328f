"""Brokers as processes, a master and a slave that change places, and a network between them that can fail."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skylark.errors import RocketMQError
from skylark.processes import free_ports
from skylark.protocol.requests.admin import GetBrokerHaStatus, GetBrokerRuntimeInfo
from tests.support.broker import BrokerClient, until

TIMEOUT_S = 60.0
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 65_536,
    "metricsPromExporterPort": 0,
    "haReconnectIntervalMax": 200,
    "slaveMetadataSyncPeriod": 100,
    "slaveReadEnable": "true",
    # Long: what a reader has seen must not depend on how busy the machine is.
    "slaveTimeout": 60_000,
}


class Node:
    """A store directory and a port; run as master or as slave, killed, run again."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.port = free_ports(-2, 1)
        self.address = f"127.0.0.1:{self.port}"
        self.replica_port = self.port + 1
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start_master(self, **settings: Any) -> None:
        await self._start(**{"brokerRole": "SYNC_MASTER", **settings})

    async def start_slave(self, master: str, **settings: Any) -> None:
        await self._start("--slave-of", master, **settings)

    async def _start(self, *flags: str, **settings: Any) -> None:
        self._spawn(flags, {**SETTINGS, **settings})
        await until(self._listens, timeout_s=TIMEOUT_S)

    def _spawn(self, flags: Sequence[str], settings: Mapping[str, Any]) -> None:
        assert self._process is None, "already running"
        program = [sys.executable, "-m", "skylark", "broker", f"--data={self.directory}/data"]
        sets = [f"--set={key}={value}" for key, value in settings.items()]
        command = [*program, "--port", str(self.port), *flags, *sets]
        with (self.directory / "output.log").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    async def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.output()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it by a signal; nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(30)

    def output(self) -> str:
        return (self.directory / "output.log").read_text(errors="replace")

    async def runtime(self) -> dict[str, str]:
        async with BrokerClient(self.address, "asking@1") as client:
            return dict((await client.ask(GetBrokerRuntimeInfo())).table)

    async def log_end(self) -> int:
        return int((await self.runtime())["commitLogMaxOffset"])

    async def has_slave_in_step(self) -> bool:
        """Whether a slave has all of this master's log."""
        try:
            async with BrokerClient(self.address, "asking@1") as client:
                status = await client.ask(GetBrokerHaStatus())
        except RocketMQError:
            return False
        return any(info.diff == 0 for info in status.ha_connection_info)

    def log_bytes(self, end: int) -> bytes:
        """The log as it lies in files, up to `end`."""
        data = b"".join(path.read_bytes() for path in sorted((self.directory / "data/commitlog").iterdir()))
        return data[:end]


@contextlib.asynccontextmanager
async def nodes(directory: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes, neither running; killed in the end."""
    both = (Node(directory / "a"), Node(directory / "b"))
    try:
        yield both
    finally:
        for node in both:
            node.stop()


async def pair_up(master: Node) -> None:
    """Wait until the slave has all that its master has."""
    await until(master.has_slave_in_step, timeout_s=TIMEOUT_S)


async def assert_same_log(master: Node, slave: Node) -> int:
    """The slave, which runs, has what the master has or had, byte for byte; returns up to where."""
    end = await slave.log_end()
    assert slave.log_bytes(end) == master.log_bytes(end), "the slave's log is not its master's"
    return end


class Network:
    """A way between slave and master that can be cut, stalled and slow. Bytes are never changed."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.is_cut = False
        self.bytes_per_s: int | None = None
        self._server: asyncio.Server | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.cut()
        self._passing.set()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break what is open, and whatever is opened from now on."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def heal(self) -> None:
        self.is_cut = False
        self._passing.set()

    def stall(self) -> None:
        """Keep all open, and let nothing pass."""
        self._passing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._writers |= {writer, back}
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass(reader, back))
                    tasks.create_task(self._pass(there, writer))
            finally:
                self._writers -= {writer, back}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(16 << 10):
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def network(target_port: int) -> AsyncIterator[Network]:
    made = Network(target_port)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
