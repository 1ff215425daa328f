"""The brokers of a run: single masters, or masters with a slave that can take over."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skylark.admin.admin import Admin
from skylark.errors import RocketMQError
from skylark.settings.client import ClientSettings
from skylark.torture.child import Knob
from skylark.torture.cluster import CLIENT_HOST, HOST, Process, ProcessFailed, free_ports, python_command
from skylark.torture.proxy import Proxy

SYNC_TIMEOUT_S = 120.0
SYNC_POLL_S = 0.1
TOPIC = "torture"
METADATA_TIME = "replicationMetadataTimestamp"
# A tenth of the usual times, so that a run of minutes sees what else takes an hour.
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
    # Longer than any fault: what a slave has not acknowledged is not seen before a slave has it.
    "slaveTimeout": 20_000,
    "slaveReadEnable": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all brokers of a run have in common."""

    directory: Path
    namesrv: str
    flush: str
    environment: Mapping[str, str]
    chance: random.Random


class Node:
    """One broker process with its disk and its ports. Clients and slaves reach it through proxies."""

    def __init__(self, label: str, name: str, around: Surroundings) -> None:
        """Raises OSError without free ports."""
        self._around = around
        self._name = name
        self.port = free_ports(HOST, -2, 1)
        self.directory = around.directory / label
        self.disk_delay_ms = Knob(around.directory / f"{label}.disk")
        log = around.directory / f"{label}.log"
        self.process = Process(label, [], log, self.port, around.environment)
        self.proxy = Proxy((HOST, self.port), around.chance)
        self.link_proxy = Proxy((HOST, self.port + 1), around.chance)
        """Between this master and its slave."""

    @property
    def label(self) -> str:
        return self.process.name

    @property
    def address(self) -> str:
        """The true one, past the proxy."""
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
        """From its next start on."""
        role = "SYNC_MASTER" if sync else "ASYNC_MASTER"
        self._be({"brokerRole": role, "forceMaster": str(by_force).lower()})

    def be_slave(self, master: Node) -> None:
        """From its next start on: its log comes through the proxy, its metadata past it."""
        link = f"{CLIENT_HOST}:{master.port + 1}"
        self._be({"brokerId": "1", "slaveOf": master.address, "haMasterAddress": link})

    def _be(self, role: Mapping[str, str]) -> None:
        around = self._around
        settings = {
            "brokerName": self._name,
            "namesrvAddr": around.namesrv,
            "listenPort": self.port,
            "bindAddress": HOST,
            "brokerIP1": CLIENT_HOST,
            "store.path": self.directory,
            "flushDiskType": f"{around.flush.upper()}_FLUSH",
            **SETTINGS,
            **role,
        }
        text = msgspec.json.encode({key: str(value) for key, value in settings.items()}).decode()
        self.process.command = python_command(
            "skylark.torture.server", "broker", text, str(self.disk_delay_ms.file)
        )


class Pair:
    """A broker's name: its master, and its slave where there is one."""

    def __init__(self, name: str, around: Surroundings, *, with_slave: bool) -> None:
        """Raises OSError without free ports."""
        self.name = name
        self.master = Node(f"{name}-0" if with_slave else name, name, around)
        self.slave = Node(f"{name}-1", name, around) if with_slave else None
        self.master.be_master(sync=with_slave)
        if self.slave is not None:
            self.slave.be_slave(self.master)

    @property
    def nodes(self) -> list[Node]:
        return [self.master] if self.slave is None else [self.master, self.slave]

    async def start(self) -> None:
        """Raises ProcessFailed, OSError."""
        for node in self.nodes:
            await node.open_network()
            await node.process.start()

    async def in_sync(self) -> None:
        """Wait until the slave has all that the master had once they were linked, offsets of groups included.

        Raises ProcessFailed.

        From then on the master shows nothing to readers that the slave has not, until their link breaks:
        what it appended before they were linked, it may have shown.
        """
        assert self.slave is not None
        deadline = asyncio.get_running_loop().time() + SYNC_TIMEOUT_S
        link, wanted, heard = "", 0, ""
        client = ClientSettings(instance_name=f"sync-{self.name}")
        async with Admin(namesrv=self.master.address, client=client) as admin:
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
        raise ProcessFailed(
            self.slave.label,
            f"it has not what its master has after {SYNC_TIMEOUT_S:g} s",
            self.slave.process.log,
        )

    async def promote(self, *, disk_is_lost: bool) -> None:
        """As docs/howto/replicate.md has it: the master is gone, its slave is started as the master.

        The old master follows it then, with an empty disk or with the one it had. Raises ProcessFailed.
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
