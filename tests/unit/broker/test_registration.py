"""The broker makes itself known to name servers, which are there, away, late or deaf."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from skylark.broker.broker import Broker
from skylark.broker.registration import name_servers
from skylark.errors import BrokerError
from skylark.namesrv.server import NameServer
from skylark.processes import free_ports
from skylark.protocol.bodies import TopicConfig, TopicRouteData
from skylark.protocol.requests.name_server import GetRouteInfoByTopic, PutKvConfig
from tests.support.broker import (
    BrokerClient,
    broker_settings,
    running_broker,
    running_cluster,
    running_name_server,
    until,
)
from tests.support.raw_server import raw_server


def test_lists_of_name_servers() -> None:
    assert name_servers("") == []
    assert name_servers("a:1") == ["a:1"]
    assert name_servers(" a:1 ;; b:2;") == ["a:1", "b:2"]


async def route(name_server: NameServer, topic: str) -> TopicRouteData | None:
    async with BrokerClient(name_server.address) as client:
        try:
            return await client.ask(GetRouteInfoByTopic(topic))
        except BrokerError:
            return None


def addresses(found: TopicRouteData | None) -> list[str]:
    return [] if found is None else [data.broker_addrs[0] for data in found.broker_datas]


async def knows(name_server: NameServer, topic: str) -> bool:
    return await route(name_server, topic) is not None


async def test_built_in_and_new_topics_become_known(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, register_interval_ms=30_000) as (name_server, broker):
        await until(lambda: knows(name_server, "TBW102"))
        assert broker.registration.registered == {name_server.address}
        async with BrokerClient(broker.address) as client:
            await client.send("New", b"x")
        await until(lambda: knows(name_server, "New"))
        found = await route(name_server, "New")
        assert addresses(found) == [broker.address]
        assert found is not None
        [data] = found.queue_datas
        assert (data.broker_name, data.read_queue_nums, data.write_queue_nums, data.perm) == (
            "broker-a",
            4,
            4,
            6,
        )


async def test_settle_waits_until_a_new_topic_is_known(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path) as name_server,
        running_broker(
            tmp_path / "store", name_servers=name_server.address, register_interval_ms=30_000
        ) as broker,
    ):
        for topic in ("Early", "Late"):  # the first one perhaps before the broker is registered
            broker.topics.update(TopicConfig(topic_name=topic), now_ms=broker.clock.now_ms())
            await broker.registration.settle()
            assert await knows(name_server, topic)


async def test_settle_does_not_wait_for_an_unreachable_name_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.registration.SETTLE_TIMEOUT_S", 600)
    address = f"127.0.0.1:{free_ports()}"
    async with running_broker(tmp_path, name_servers=address) as broker:
        broker.topics.update(TopicConfig(topic_name="New"), now_ms=broker.clock.now_ms())
        async with asyncio.timeout(60):
            await broker.registration.settle()


async def test_a_broker_that_stops_says_goodbye(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        async with running_broker(tmp_path / "store", name_servers=name_server.address):
            await until(lambda: knows(name_server, "TBW102"))
        assert not await knows(name_server, "TBW102")


async def test_several_name_servers_all_hear_of_everything(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as first, running_name_server(tmp_path) as second:
        servers = f"{first.address};{second.address}"
        async with running_broker(tmp_path / "store", name_servers=servers) as broker:
            async with BrokerClient(broker.address) as client:
                await client.send("New", b"x")
            for server in (first, second):
                for topic in ("New", "TBW102"):
                    await until(partial(knows, server, topic))


async def test_a_name_server_that_is_away_does_not_hold_up_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.registration.RETRY_S", 0.02)
    async with running_name_server(tmp_path) as name_server, deaf_server() as deaf:
        servers = f"{deaf};{name_server.address}"
        async with running_broker(tmp_path / "store", name_servers=servers) as broker:
            await until(lambda: knows(name_server, "TBW102"))
            assert broker.registration.registered == {name_server.address}


@contextlib.asynccontextmanager
async def deaf_server() -> AsyncIterator[str]:
    """A server that takes everything and answers nothing."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass

    async with raw_server(listen) as server:
        yield server.address


async def test_a_name_server_that_comes_late_or_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skylark.broker.registration.RETRY_S", 0.02)
    port = free_ports()
    address = f"127.0.0.1:{port}"
    async with running_broker(tmp_path / "store", name_servers=address, register_interval_ms=50) as broker:
        assert await served(broker)
        await until(lambda: "cannot register with name server" in caplog.text)
        for _ in range(2):
            async with running_name_server(tmp_path, port=port) as name_server:
                await until(partial(knows, name_server, "TBW102"))
        assert await served(broker)


async def test_a_name_server_that_was_started_anew_hears_of_old_topics_with_the_first_new_one(
    tmp_path: Path,
) -> None:
    port = free_ports()
    async with running_name_server(tmp_path, port=port) as first:
        broker = Broker(
            broker_settings(tmp_path / "store", name_servers=first.address, register_interval_ms=30_000)
        )
        await broker.start()
        await until(lambda: knows(first, "TBW102"))
    try:
        async with running_name_server(tmp_path, port=port) as second:
            assert await served(broker)
            await until(lambda: knows(second, "T"))
            assert await knows(second, "TBW102")
    finally:
        await broker.stop()


async def served(broker: Broker) -> bool:
    async with BrokerClient(broker.address) as client:
        return (await client.send("T", b"x")).queue_offset >= 0


async def test_topics_that_the_name_server_holds_ordered_become_so(tmp_path: Path) -> None:
    async with running_name_server(tmp_path) as name_server:
        async with BrokerClient(name_server.address) as client:
            await client.ask(PutKvConfig("ORDER_TOPIC_CONFIG", "Ordered", "broker-a:4"))
        async with running_broker(
            tmp_path / "store", name_servers=name_server.address, register_interval_ms=20
        ) as broker:
            broker.topics.update(TopicConfig(topic_name="Ordered"), now_ms=broker.clock.now_ms())
            await until(lambda: broker.topics.is_ordered("Ordered"))


async def test_the_brokers_permission_is_what_name_servers_hear(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, permission=4) as (name_server, _):
        await until(lambda: knows(name_server, "BenchmarkTest"))
        found = await route(name_server, "BenchmarkTest")
        assert found is not None
        assert [data.perm for data in found.queue_datas] == [4]
