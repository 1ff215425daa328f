"""A master and slaves inside a test, and what must be true of their logs.

async with running_pair(tmp_path) as (master, slave):
    ...
    await in_step(master, slave)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from skylark.broker.broker import Broker
from skylark.model.message import encode_properties
from skylark.protocol.ha import FRAME_HEAD, REPORT
from skylark.protocol.requests.send import SendMessageV2
from skylark.settings import BrokerRole, ReplicationSettings
from skylark.store.message_store import MessageStore
from tests.support.broker import BrokerClient, running_broker, until

CHUNK_BYTES = 1 << 20


def replication(**changes: Any) -> ReplicationSettings:
    """Intervals of a hundredth of the real ones, changed as asked."""
    values = {
        "heartbeat_interval_ms": 50,
        "idle_timeout_ms": 20_000,
        "reconnect_interval_ms_max": 200,
        "metadata_interval_ms": 100,
        **changes,
    }
    return ReplicationSettings(**values)


@contextlib.asynccontextmanager
async def running_master(
    directory: Path, *, is_sync: bool = False, settings: Mapping[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Broker]:
    role = BrokerRole.SYNC_MASTER if is_sync else BrokerRole.ASYNC_MASTER
    async with running_broker(
        directory, role=role, replication=replication(**(settings or {})), **changes
    ) as broker:
        yield broker


@contextlib.asynccontextmanager
async def running_slave(
    directory: Path, master: str, *, settings: Mapping[str, Any] | None = None, **changes: Any
) -> AsyncIterator[Broker]:
    values = {"slave_of": master, **(settings or {})}
    async with running_broker(
        directory, replication=replication(**values), **{"slave_read": True, **changes}
    ) as broker:
        yield broker


@contextlib.asynccontextmanager
async def running_pair(
    directory: Path, *, is_sync: bool = False, **changes: Any
) -> AsyncIterator[tuple[Broker, Broker]]:
    """A master, and a slave that is connected and shows what it has."""
    async with (
        running_master(directory / "master", is_sync=is_sync, **changes) as master,
        running_slave(directory / "slave", master.address, **changes) as slave,
    ):
        await connected(master)
        await until(lambda: slave.role.slave.is_copy)
        yield master, slave


async def connected(master: Broker, slaves: int = 1) -> None:
    await until(lambda: len(master.replication.slaves()) == slaves)


async def in_step(master: Broker, *slaves: Broker) -> None:
    """Wait until slaves have, and show, the whole log; then it is the same, byte for byte."""
    for slave in slaves:
        await until(lambda slave=slave: has_all(master, slave) and slave.role.slave.is_copy)  # type: ignore[misc]
        await shown(slave)
        assert_same_log(master.store, slave.store)


async def shown(*slaves: Broker) -> None:
    """Wait until slaves show their readers what they have received."""
    for slave in slaves:
        follower = slave._slave
        await until(lambda follower=follower: follower is None or follower.publishing is None)  # type: ignore[misc]


def has_all(master: Broker, slave: Broker) -> bool:
    return (
        slave.store.appended_offset == master.store.appended_offset
        and slave.role.slave.position == master.store.appended_offset
    )


def assert_same_log(master: MessageStore, slave: MessageStore) -> None:
    """The slave's log is the master's, as far as it goes."""
    position, end = slave.log.min_offset, slave.appended_offset
    while position < end:
        ours = slave.read_log(position, CHUNK_BYTES)
        assert ours == master.read_log(position, len(ours)), f"logs differ behind {position}"
        position += len(ours)


class RawSlave:
    """A peer on the replication port that says what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def report(self, physical_offset: int) -> None:
        await self.send(REPORT.pack(physical_offset))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: where, and which bytes."""
        async with asyncio.timeout(60):
            physical_offset, body_bytes = FRAME_HEAD.unpack(await self._reader.readexactly(FRAME_HEAD.size))
            return physical_offset, await self._reader.readexactly(body_bytes)

    async def data(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat."""
        while True:
            physical_offset, body = await self.frame()
            if body:
                return physical_offset, body

    async def closed(self) -> None:
        """Wait until the master has hung up."""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass


@contextlib.asynccontextmanager
async def raw_slave(master: Broker) -> AsyncIterator[RawSlave]:
    reader, writer = await asyncio.open_connection("127.0.0.1", master.addresses.replica_port)
    try:
        yield RawSlave(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def send_code(client: BrokerClient, body: bytes, *, topic: str = "T", wait: bool = True) -> int:
    """Send one message; the code of the answer. Raises BrokerError for a refusal."""
    properties = encode_properties({} if wait else {"WAIT": "false"}).decode()
    request = SendMessageV2(
        producer_group="PG", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=1, flag=0, body=body, properties=properties,
    )  # fmt: skip
    return int((await client.ask(request)).code)
