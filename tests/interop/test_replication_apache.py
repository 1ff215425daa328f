"""Replication between the two: Apache's slave follows our master, our slave follows Apache's master.

The brokers of ours run in this process, Apache's are real Java. Logs are compared byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.apache import ApacheBroker
from skylark.broker.broker import Broker
from skylark.errors import RocketMQError
from skylark.model.message import StoredMessage
from skylark.protocol.bodies import SubscriptionGroupConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.admin import GetBrokerHaStatus
from skylark.protocol.requests.group import GetSubscriptionGroupConfig, UpdateAndCreateSubscriptionGroup
from skylark.protocol.requests.name_server import GetBrokerClusterInfo
from skylark.protocol.requests.offset import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from skylark.protocol.requests.send import SendMessageV2
from skylark.protocol.requests.topic import GetTopicConfig
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.settings import ClientTlsSettings, TlsMode
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import PATIENT
from tests.support.broker import BrokerClient, running_name_server, until
from tests.support.certificates import make_files
from tests.support.replication import connected, running_master, running_slave, send_code

pytestmark = pytest.mark.interop("java", "mvn")

FILE_BYTES = 1 << 20
STORE = {"commit_log_file_bytes": FILE_BYTES, "message_bytes_max": 64 << 10}
APACHE_SETTINGS: dict[str, str | int] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 1024,
    "maxIndexNum": 8192,
    "reviveQueueNum": 0,
    "slaveReadEnable": "true",
    **PATIENT,
}
JAVA_TIMEOUT_S = 120
METADATA_TIMEOUT_S = 150
"""Apache's slave asks for metadata a minute after its start."""


@contextlib.asynccontextmanager
async def running_apache(
    directory: Path, name_server: str, settings: Mapping[str, str | int]
) -> AsyncIterator[ApacheBroker]:
    """Apache's broker; waiting for its JVM does not hold up ours."""
    broker = ApacheBroker(
        admin_classpath(),
        directory / "home",
        directory / "store",
        name_server=name_server,
        settings={**APACHE_SETTINGS, **settings},
    )
    try:
        await asyncio.to_thread(broker.start)
        yield broker
    finally:
        await asyncio.to_thread(broker.kill)


async def send_many(client: BrokerClient, count: int, *, start: int = 0) -> None:
    for first in range(start, start + count, 50):
        sends = [
            client.send("T", b"%d " % n + bytes(1500), n % 4, properties={"KEYS": f"k{n}", "TAGS": "a"})
            for n in range(first, min(first + 50, start + count))
        ]
        await asyncio.gather(*sends)


def log_bytes(directory: Path, end: int) -> bytes:
    """A commit log as it lies in files, up to `end`; it begins at 0."""
    data = b"".join(path.read_bytes() for path in sorted((directory / "commitlog").iterdir()))
    assert len(data) >= end
    return data[:end]


async def behind(client: BrokerClient) -> int | None:
    """By how many bytes the master's slave is behind; None without one."""
    status = await client.ask(GetBrokerHaStatus())
    return status.ha_connection_info[0].diff if status.ha_connection_info else None


async def caught_up(client: BrokerClient) -> None:
    async def is_caught_up() -> bool:
        return await behind(client) == 0

    await until(is_caught_up, timeout_s=JAVA_TIMEOUT_S)


@pytest.mark.parametrize(
    "with_metadata", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["log", "log and metadata"]
)
async def test_apaches_slave_follows_our_master(tmp_path: Path, with_metadata: bool) -> None:
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address, "store": STORE, "slave_read": True}
        async with (
            running_master(tmp_path / "ours", is_sync=True, settings=APACHES_PACE, **shared) as master,
            BrokerClient(master.address) as client,
        ):
            assert await send_code(client, b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE
            await send_many(client, 200)
            slave: dict[str, str | int] = {"brokerId": 1, "brokerRole": "SLAVE"}
            async with running_apache(tmp_path / "apache", name_server.address, slave) as apache:
                await until(lambda: len(master.replication.slaves()) == 1, timeout_s=JAVA_TIMEOUT_S)
                await caught_up(client)
                await send_many(client, 1500, start=200)
                assert {await send_code(client, b"%d" % n) for n in range(20)} == {ResponseCode.SUCCESS}
                await caught_up(client)
                end = master.store.appended_offset
                assert end > 2 * FILE_BYTES
                assert log_bytes(apache.store_dir, end) == log_bytes(tmp_path / "ours", end)
                if with_metadata:
                    await check_metadata(client, apache)
            await connected(master, 0)
            assert await send_code(client, b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE


APACHES_PACE = {"heartbeat_interval_ms": 5000, "idle_timeout_ms": 20_000}


@pytest.mark.nightly
@pytest.mark.parametrize("allowed", ["127.0.0.1", "10.0.0.0/8"])
async def test_apaches_slave_needs_an_allowed_address_when_tls_is_enforced(
    tmp_path: Path, allowed: str
) -> None:
    """It has no TLS on its link."""
    files = make_files(tmp_path / "certificates")
    tls = files.server(mode=TlsMode.ENFORCING, trusted=files.authority)
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address, "store": STORE, "tls": tls}
        shared["tls_client"] = ClientTlsSettings(enabled=False)
        settings = {**APACHES_PACE, "allowed_addresses": allowed}
        slave: dict[str, str | int] = {"brokerId": 1, "brokerRole": "SLAVE"}
        async with (
            running_master(tmp_path / "ours", settings=settings, **shared) as master,
            running_apache(tmp_path / "apache", name_server.address, slave) as apache,
        ):
            pool = ConnectionPool(tls=ClientTls(files.client()))
            for number in range(50):
                body = b"%d" % number * 1000
                await pool.call(master.address, SendMessageV2("g", "T", "TBW102", 4, 0, 0, 0, 0, body=body))
            await pool.close()
            if allowed.startswith("10."):
                refusal = "plain text, but TLS is required"
                await until(lambda: refusal in master.replication.last_error, timeout_s=JAVA_TIMEOUT_S)
                assert master.replication.slaves() == []
                return
            await until(lambda: len(master.replication.slaves()) == 1, timeout_s=JAVA_TIMEOUT_S)
            end = master.store.appended_offset

            def is_equal() -> bool:
                directory = apache.store_dir / "commitlog"
                found = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
                return found[:end] == log_bytes(tmp_path / "ours", end)

            await until(is_equal, timeout_s=JAVA_TIMEOUT_S)


async def check_metadata(client: BrokerClient, apache: ApacheBroker) -> None:
    """Topics, groups and offsets arrive at Apache's slave, which then serves pulls."""
    await client.ask(
        UpdateAndCreateSubscriptionGroup(SubscriptionGroupConfig(group_name="CG", retry_max_times=3))
    )
    await client.ask(UpdateConsumerOffset("CG", "T", 0, 7))
    async with BrokerClient(apache.address) as at_slave:

        async def has_all() -> bool:
            try:
                group = await at_slave.ask(GetSubscriptionGroupConfig("CG"))
                topic = await at_slave.ask(GetTopicConfig("T"))
                offset = await at_slave.ask(QueryConsumerOffset("CG", "T", 0))
            except RocketMQError:
                return False
            return (group.retry_max_times, topic.read_queue_nums, offset) == (3, 4, 7)

        await until(has_all, timeout_s=METADATA_TIMEOUT_S)
        assert await at_slave.ask(GetMaxOffset("T", 1)) == await client.ask(GetMaxOffset("T", 1)) == 425
        messages = await at_slave.pull("T", 1, 0)
        assert [bytes(each.body)[:2] for each in messages[:3]] == [b"1 ", b"5 ", b"9 "]


async def test_our_slave_follows_apaches_master_and_takes_its_place(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        replicas: dict[str, str | int] = {
            "brokerRole": "SYNC_MASTER", "totalReplicas": 2, "inSyncReplicas": 2,
        }  # fmt: skip
        shared: dict[str, Any] = {"name_servers": name_server.address, "store": STORE}
        async with running_apache(tmp_path / "apache", name_server.address, replicas) as apache:
            async with BrokerClient(apache.address) as client:
                await fill_apache(client)
                async with running_slave(tmp_path / "ours", apache.address, **shared) as slave:
                    await until(lambda: slave.role.slave.sees_master, timeout_s=JAVA_TIMEOUT_S)
                    await caught_up(client)
                    # Acknowledged by our slave: Apache's master waits for one.
                    assert {await send_code(client, b"%d" % n) for n in range(20)} == {ResponseCode.SUCCESS}
                    await caught_up(client)
                    await until(lambda: follows(slave), timeout_s=JAVA_TIMEOUT_S)
                    end = slave.store.appended_offset
                    assert end > 2 * FILE_BYTES
                    assert slave.store.log.min_offset == 0
                    assert log_bytes(tmp_path / "ours", end) == log_bytes(apache.store_dir, end)
                    stored = await client.pull_all("T", 1)
                    assert await pulled(slave, len(stored)) == stored
                    await asyncio.to_thread(apache.kill)
                    await until(lambda: not slave.role.slave.sees_master)
                    assert await pulled(slave, len(stored)) == stored
        await forgotten(name_server.address)
        async with (
            running_master(tmp_path / "ours", **shared) as promoted,
            BrokerClient(promoted.address) as client,
        ):
            assert await client.pull_all("T", 1) == stored
            assert (await client.send("T", b"after", 1)).queue_offset == len(stored)


def follows(slave: Broker) -> bool:
    return (
        slave.topics.get("T") is not None
        and slave.groups.get("CG") is not None
        and slave.offsets.query("T", "CG", 0) == 7
        and slave.role.slave.metadata_ms > 0
    )


async def fill_apache(client: BrokerClient) -> None:
    """Several files of messages, without waiting: there is no slave yet."""
    group = SubscriptionGroupConfig(group_name="CG", retry_max_times=3)
    await client.ask(UpdateAndCreateSubscriptionGroup(group))
    for first in range(0, 1500, 50):
        sends = [
            client.send("T", b"%d " % n + bytes(1500), n % 4, properties={"WAIT": "false"})
            for n in range(first, first + 50)
        ]
        await asyncio.gather(*sends)
    await client.ask(UpdateConsumerOffset("CG", "T", 0, 7))


async def pulled(slave: Broker, count: int) -> list[StoredMessage]:
    async with BrokerClient(slave.address) as client:
        messages: list[StoredMessage] = []
        while len(messages) < count:
            messages += await client.pull("T", 1, len(messages))
        return messages


async def forgotten(name_server: str) -> None:
    """Wait until a name server knows no master any more."""
    async with BrokerClient(name_server) as client:

        async def is_forgotten() -> bool:
            members = (await client.ask(GetBrokerClusterInfo())).broker_addr_table.get("broker-a")
            return members is None or 0 not in members.broker_addrs

        await until(is_forgotten)
