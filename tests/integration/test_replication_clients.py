"""Replicas under real clients: consumers go on at the slave, producers at other masters, and all return."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from skylark.broker.broker import Broker
from skylark.cli.main import app
from skylark.client.consumer.push_consumer import AsyncPushConsumer
from skylark.client.producer.producer import AsyncProducer
from skylark.client.received_message import ReceivedMessage
from skylark.model.message import Message
from skylark.processes import free_ports
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.settings.client import ClientSettings
from tests.support.broker import BrokerClient, running_broker, running_name_server, until
from tests.support.consumer import FAST_CLIENT, fast
from tests.support.replication import (
    connected,
    in_step,
    running_master,
    running_pair,
    running_slave,
    send_code,
)

QUEUES = 2
LONG_S = 60.0


async def make_topic(address: str) -> None:
    request = UpdateAndCreateTopic(
        topic="T", default_topic="TBW102", read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6,
        topic_filter_type="SINGLE_TAG", order=False, topic_sys_flag=0,
    )  # fmt: skip
    async with BrokerClient(address) as client:
        await client.ask(request)


async def send(producer: AsyncProducer, sent: set[bytes], count: int) -> set[str]:
    """Send so many new messages; the names of the brokers that took them."""
    brokers = set()
    for number in range(len(sent), len(sent) + count):
        body = b"%d" % number
        brokers.add((await producer.send(Message("T", body))).queue.broker_name)
        sent.add(body)
    return brokers


async def test_a_dead_master_stops_neither_consumers_nor_producers(tmp_path: Path) -> None:
    got: Counter[bytes] = Counter()
    sent: set[bytes] = set()

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        got.update(bytes(message.body) for message in messages)

    client = ClientSettings(client_ip="127.0.0.1", **FAST_CLIENT)
    async with running_name_server(tmp_path) as name_server:
        shared: dict[str, Any] = {"name_servers": name_server.address, "slave_read": True}
        consumer = AsyncPushConsumer("G", namesrv=name_server.address, settings=fast(), client=client)
        consumer.subscribe("T", listener=handle)
        port = free_ports(-2, 1)
        async with (
            running_broker(tmp_path / "other", name="broker-b", **shared) as other,
            running_slave(tmp_path / "slave", f"127.0.0.1:{port}", **shared) as slave,
            AsyncProducer("P", namesrv=name_server.address, client=client) as producer,
        ):
            await make_topic(other.address)
            async with running_master(tmp_path / "master", port=port, **shared) as master:
                await make_topic(master.address)
                await connected(master)
                while await send(producer, sent, 10) != {"broker-a", "broker-b"}:
                    pass
                await in_step(master, slave)
                await until(lambda: slave.topics.get("T") is not None)
            async with consumer:
                # What only the dead master took is read from its slave.
                await until(lambda: got.keys() >= sent, timeout_s=LONG_S)
                assert await send(producer, sent, 20) == {"broker-b"}
                await until(lambda: got.keys() >= sent, timeout_s=LONG_S)
                end = ends(slave)
                await until(lambda: progress(slave) == end)
                async with running_master(tmp_path / "master", port=port, **shared) as back:
                    while "broker-a" not in await send(producer, sent, 10):
                        pass
                    await until(lambda: got.keys() >= sent, timeout_s=LONG_S)
                    # The group's progress came home, too.
                    end = ends(back)
                    await until(lambda: progress(back) == end)
    assert got.keys() == sent


def ends(broker: Broker) -> int:
    return sum(broker.store.max_offset("T", queue_id) for queue_id in range(QUEUES))


def progress(broker: Broker) -> int:
    return sum(broker.offsets.committed("T", "G").values())


# --- The command ---


async def ha(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["broker", "ha", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


async def test_the_command_shows_both_sides(tmp_path: Path) -> None:
    async with running_pair(tmp_path, is_sync=True) as (master, slave):
        async with BrokerClient(master.address) as client:
            await send_code(client, b"x")
        await in_step(master, slave)
        end = str(master.store.appended_offset)
        rows = [line.split("\t") for line in (await ha(master.address)).splitlines()]
        facts = dict(row for row in rows if len(row) == 2)
        assert (facts["role"], facts["slaves"], facts["log ends at"]) == ("SYNC_MASTER", "1, 1 in sync", end)
        [row] = [row for row in rows if row[0].startswith("127.0.0.1:")]
        assert row[1:4] == ["yes", end, "0"]
        facts = dict(line.split("\t") for line in (await ha(slave.address)).splitlines())
        assert (facts["role"], facts["connected"], facts["behind"]) == ("SLAVE", "yes", "0")
        assert facts["master"] == master.address
        shown = json.loads(await ha(master.address, "--json"))
        assert (shown["master"], shown["slaves"][0]["lagBytes"], shown["logEnd"]) == (True, 0, int(end))
    result = await asyncio.to_thread(CliRunner().invoke, app, ["broker", "ha", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "cannot connect to 127.0.0.1:1" in result.output


def test_a_slave_by_flags_alone() -> None:
    flags = ["broker", "--slave-of", "10.0.0.1:10911", "--print-config"]
    shown = CliRunner().invoke(app, flags).output.splitlines()
    assert {"brokerId=1", "brokerRole=SLAVE", "forceMaster=false"} <= set(shown)
    assert any(line.startswith("slaveOf=10.0.0.1") for line in shown)
    shown = CliRunner().invoke(app, ["broker", "--force-master", "--print-config"]).output.splitlines()
    assert "forceMaster=true" in shown
