"""The processes of a torture run: restartable servers, brokers and their slaves, a movable clock."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import msgspec

from skylark.admin.admin import AsyncAdmin
from skylark.errors import RocketMQError
from skylark.processes import HOST, GroupProcess, ProcessFailed, free_ports, listens, python_command
from skylark.settings.client import ClientSettings
from skylark.torture.child import Knob
from skylark.torture.proxy import Proxy

CLIENT_HOST = "127.0.0.2"
"""Where clients reach brokers: a second loopback address, on which the proxy listens."""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02
CONNECT_TIMEOUT_S = 1.0


def failure(name: str, reason: str, log: Path) -> ProcessFailed:
    return ProcessFailed(f"{name}: {reason}; see {log}")


class Process:
    """A process of the run that is killed, frozen and restarted; its output goes to one log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        port: int | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        self.name = name
        self.command = command
        """The command of the next start."""
        self.log = log
        self.clock = clock
        """Its wall clock; None: the true time."""
        self._port = port
        self._process: GroupProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start, and wait until it listens. Raises ProcessFailed."""
        self.spawn()
        if self._port is not None:
            await asyncio.to_thread(self._wait_ready, f"{HOST}:{self._port}")

    def spawn(self) -> None:
        """Start without waiting."""
        assert not self.is_running
        self._process = GroupProcess(
            self.command, log=self.log, env={} if self.clock is None else self.clock.environment
        )

    def _wait_ready(self, address: str) -> None:
        assert self._process is not None
        try:
            self._process.wait_until(
                lambda: listens(address, CONNECT_TIMEOUT_S), "listening", READY_TIMEOUT_S, POLL_S
            )
        except ProcessFailed:
            reason = f"not ready after {READY_TIMEOUT_S:g} s" if self.is_running else "ended at startup"
            self._process.kill()
            raise failure(self.name, reason, self.log) from None

    def signal(self, number: Signals) -> None:
        assert self._process is not None
        self._process.signal(number)

    async def kill(self) -> None:
        """Send SIGKILL, as in a crash, and wait."""
        await self._end(Signals.SIGKILL)

    async def terminate(self) -> None:
        """Send SIGTERM and wait. Kills it and raises ProcessFailed if it does not end."""
        await self._end(Signals.SIGTERM)

    async def _end(self, number: Signals) -> None:
        if self._process is None:
            return
        self._process.signal(number)
        self._process.signal(Signals.SIGCONT)  # a frozen process receives nothing but this and SIGKILL
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except ProcessFailed:
            raise failure(self.name, f"not ended after {STOP_TIMEOUT_S:g} s", self.log) from None


class FakeClock:
    """The wall clock of a process under libfaketime, which reads this file at every call."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self._library = library
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the offset from the true time."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+d}s\n")
        written.replace(self._file)  # atomically

    @property
    def environment(self) -> dict[str, str]:
        """Of the process."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def find_faketime() -> Path | None:
    """libfaketime, as Debian's package `libfaketime` installs it; None if absent."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


SYNC_TIMEOUT_S = 120.0
SYNC_POLL_S = 0.1
TOPIC = "torture"
METADATA_TIME = "replicationMetadataTimestamp"
# A tenth of the default intervals: minutes show what would take an hour.
SETTINGS: Mapping[str, object] = {
    "flushConsumerOffsetInterval": 500,
    "registerNameServerPeriod": 3000,
    "clientScanInterval": 1000,
    "rocketmq.broker.rebalance.lockMaxLiveTime": 6000,
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "metricsPromExporterPort": 0,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
    "slaveMetadataSyncPeriod": 1000,
    "haReconnectIntervalMax": 500,
    # Longer than any fault: messages stay invisible until a slave has acknowledged them.
    "slaveTimeout": 20_000,
    "slaveReadEnable": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings common to all brokers of a run."""

    directory: Path
    namesrv: str
    flush: str
    faketime: Path | None
    """The library that moves clocks; None: they keep the true time."""
    secure: Mapping[str, str]
    """Settings of TLS and users."""
    chance: random.Random

    def clock(self, label: str) -> FakeClock | None:
        """The clock of a server, which can be moved if this machine has the library."""
        library = self.faketime
        return None if library is None else FakeClock(self.directory / f"{label}.clock", library)


class TortureNode:
    """A broker process with its disk and ports. Clients and slaves reach it through proxies."""

    def __init__(self, label: str, name: str, settings: ClusterSettings) -> None:
        """Raises OSError without free ports."""
        self._settings = settings
        self._name = name
        self.port = free_ports(-2, 1)
        self.directory = settings.directory / label
        self.disk_delay_ms = Knob(settings.directory / f"{label}.disk")
        log = settings.directory / f"{label}.log"
        self.process = Process(label, [], log, self.port, settings.clock(label))
        self.proxy = Proxy((HOST, self.port), settings.chance)
        self.link_proxy = Proxy((HOST, self.port + 1), settings.chance)
        """The replication link of this master."""

    @property
    def label(self) -> str:
        return self.process.name

    @property
    def address(self) -> str:
        """The real address, bypassing the proxy."""
        return f"{HOST}:{self.port}"

    async def open_network(self) -> None:
        """Raises OSError."""
        await self.proxy.start(CLIENT_HOST, self.port)
        await self.link_proxy.start(CLIENT_HOST, self.port + 1)

    async def close(self) -> None:
        await self.process.kill()
        await self.proxy.stop()
        await self.link_proxy.stop()
        self.disk_delay_ms.close()

    def be_master(self, *, sync: bool, by_force: bool = False) -> None:
        """Takes effect at the next start."""
        role = "SYNC_MASTER" if sync else "ASYNC_MASTER"
        self._be({"brokerRole": role, "forceMaster": str(by_force).lower()})

    def be_slave(self, master: TortureNode) -> None:
        """Takes effect at the next start. The log passes the proxy, metadata bypasses it."""
        link = f"{CLIENT_HOST}:{master.port + 1}"
        self._be({"brokerId": "1", "slaveOf": master.address, "haMasterAddress": link})

    def _be(self, role: Mapping[str, str]) -> None:
        broker = {
            "brokerName": self._name,
            "namesrvAddr": self._settings.namesrv,
            "listenPort": self.port,
            "bindAddress": HOST,
            "brokerIP1": CLIENT_HOST,
            "store.path": self.directory,
            "flushDiskType": f"{self._settings.flush.upper()}_FLUSH",
            **SETTINGS,
            **self._settings.secure,
            **role,
        }
        text = msgspec.json.encode({key: str(value) for key, value in broker.items()}).decode()
        self.process.command = python_command(
            "skylark.torture.server", "broker", text, str(self.disk_delay_ms.file)
        )


class BrokerSet:
    """A broker name, its master and its other brokers."""

    def __init__(self, name: str, master: TortureNode) -> None:
        self.name = name
        self.master = master

    @property
    def nodes(self) -> Sequence[TortureNode]:
        return [self.master]

    async def start(self) -> None:
        """Raises ProcessFailed, OSError."""
        for node in self.nodes:
            await node.open_network()
            await node.process.start()

    async def see_roles(self) -> None:
        """Find out who is the master, if others may become it."""

    async def in_sync(self) -> None:
        """Wait until the other brokers have what the master has. Raises ProcessFailed."""


class BrokerPair(BrokerSet):
    """A master and, in some modes, its slave. Roles change only by `promote`."""

    def __init__(self, name: str, settings: ClusterSettings, *, with_slave: bool) -> None:
        """Raises OSError without free ports."""
        super().__init__(name, TortureNode(f"{name}-0" if with_slave else name, name, settings))
        self.slave = TortureNode(f"{name}-1", name, settings) if with_slave else None
        self.master.be_master(sync=with_slave)
        if self.slave is not None:
            self.slave.be_slave(self.master)

    @property
    def nodes(self) -> list[TortureNode]:
        return [self.master] if self.slave is None else [self.master, self.slave]

    async def in_sync(self) -> None:
        """Wait until the slave has what the master had when they connected, with offsets of groups.

        From then on the master shows readers only what the slave has, until their link breaks; earlier
        messages may be visible already. Raises ProcessFailed.
        """
        if self.slave is None:
            return
        deadline = asyncio.get_running_loop().time() + SYNC_TIMEOUT_S
        link, wanted, heard = "", 0, ""
        client = ClientSettings(instance_name=f"sync-{self.name}")
        async with AsyncAdmin(namesrv=self.master.address, client=client) as admin:
            while asyncio.get_running_loop().time() < deadline:
                try:
                    status = await admin.brokers.replication(self.master.address)
                    topics = await admin.topics.on_broker(self.slave.address)
                    metadata = (await admin.brokers.runtime(self.slave.address))[METADATA_TIME]
                except RocketMQError:
                    await asyncio.sleep(SYNC_POLL_S)
                    continue
                slaves = {str(slave.addr): slave.slave_ack_offset for slave in status.ha_connection_info}
                if link not in slaves:
                    link, wanted = next(iter(slaves), ""), status.master_commit_log_max_offset
                    heard = metadata
                is_known = metadata != heard and any(topic.name == TOPIC for topic in topics)
                if slaves.get(link, -1) >= wanted and is_known:
                    return
                await asyncio.sleep(SYNC_POLL_S)
        raise failure(
            self.slave.label,
            f"not in sync with its master after {SYNC_TIMEOUT_S:g} s",
            self.slave.process.log,
        )

    async def promote(self, *, disk_is_lost: bool) -> None:
        """Start the slave as the master, after the master was killed (see docs/howto/replicate.md).

        The old master then follows it, with an empty disk or with its own. Raises ProcessFailed.
        """
        assert self.slave is not None
        old, new = self.master, self.slave
        assert not old.process.is_running
        if disk_is_lost:
            shutil.rmtree(old.directory)
        await new.process.terminate()
        new.be_master(sync=True, by_force=True)
        await new.process.start()
        self.master, self.slave = new, old
        old.be_slave(new)
        await old.process.start()
