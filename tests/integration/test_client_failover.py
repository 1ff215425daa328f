"""Producers and consumers notice at once that another broker is the master."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from skylark import Message, Producer, aio
from skylark.client.producer.send_receipt import SendReceipt
from skylark.namesrv.server import NameServer
from skylark.protocol.bodies import RegisterBrokerBody, TopicConfigTable, encode_body
from skylark.protocol.requests.name_server import RegisterBroker
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings.client import ClientSettings, ProducerSettings
from tests.support.broker import running_broker, running_name_server, until
from tests.support.replica_group import designate, running_group

NEVER = ClientSettings(route_refresh_interval_ms=3_600_000)
"""Only a lost connection makes these clients ask for routes."""


async def register_slave(name_server: NameServer, pool: ConnectionPool) -> None:
    """A replica that lives: its master is gone, and another will be elected."""
    body = RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigTable())
    request = RegisterBroker(
        broker_name="broker-a",
        broker_addr="127.0.0.1:1",
        cluster_name="DefaultCluster",
        ha_server_addr="127.0.0.1:2",
        broker_id=2,
        body=encode_body(body),
    )
    await pool.call(name_server.address, request)


@pytest.mark.parametrize("kind", ["asyncio", "blocking"])
async def test_a_send_waits_for_the_next_master(tmp_path: Path, kind: str) -> None:
    pool = ConnectionPool()
    patient = ProducerSettings(send_timeout_ms=60_000)

    async with running_name_server(tmp_path) as names:
        if kind == "asyncio":
            one = aio.Producer("PG", namesrv=names.address, client=NEVER, settings=patient)
            await one.start()
            send: Callable[[bytes], Awaitable[SendReceipt]] = lambda body: one.send(Message("t", body))  # noqa: E731
        else:
            other = Producer("PG", namesrv=names.address, client=NEVER, settings=patient)
            await asyncio.to_thread(other.start)
            send = lambda body: asyncio.to_thread(other.send, Message("t", body))  # noqa: E731
        try:
            async with running_broker(tmp_path / "one", name_servers=names.address):
                await send(b"before")
                await register_slave(names, pool)
            sending = asyncio.ensure_future(send(b"meanwhile"))
            await asyncio.sleep(0.3)
            assert not sending.done()  # there is no master
            async with running_broker(tmp_path / "two", name_servers=names.address):
                assert (await sending).is_ok
                assert (await send(b"after")).is_ok
        finally:
            await pool.close()
            await (one.stop() if kind == "asyncio" else asyncio.to_thread(other.stop))


async def test_a_consumer_goes_on_at_the_next_master(tmp_path: Path) -> None:
    """Its route is refreshed every hour; the lost connection makes it ask."""
    pool = ConnectionPool()
    seen: list[bytes] = []
    async with (
        running_name_server(tmp_path) as names,
        aio.Producer(
            "PG", namesrv=names.address, settings=ProducerSettings(send_timeout_ms=60_000)
        ) as producer,
    ):
        consumer = aio.PushConsumer("CG", namesrv=names.address, client=NEVER)
        consumer.subscribe("t")
        consumer.listen(lambda messages: seen.extend(each.body for each in messages))
        try:
            async with running_broker(tmp_path / "one", name_servers=names.address):
                await producer.send(Message("t", b"one"))
                await consumer.start()
                await register_slave(names, pool)
            async with running_broker(tmp_path / "two", name_servers=names.address):
                for number in range(16):
                    await producer.send(Message("t", b"%d" % number))
                await until(lambda: len({*seen} - {b"one"}) >= 8)  # the stores are no replicas
        finally:
            await consumer.stop()
            await pool.close()


async def test_a_refusal_of_the_former_master_makes_a_consumer_ask_for_the_next_one(tmp_path: Path) -> None:
    """The former master lives and keeps the connection: only its answers say that it is none any more."""
    seen: list[bytes] = []
    async with running_name_server(tmp_path) as names:
        changes: dict[str, Any] = {"name_servers": names.address, "slave_read": False}
        async with (
            running_group(tmp_path, **changes) as (controller, first, second),
            aio.Producer("PG", namesrv=names.address, client=NEVER) as producer,
        ):
            await until(lambda: bool(first.registration.registered and second.registration.registered))
            await producer.send(Message("t", b"one"))
            consumer = aio.PushConsumer("CG", namesrv=names.address, client=NEVER)
            consumer.subscribe("t")
            consumer.listen(lambda messages: seen.extend(each.body for each in messages))
            async with consumer:
                await until(lambda: b"one" in seen)
                await designate(controller, second)
                assert (await producer.send(Message("t", b"two"))).is_ok
                await until(lambda: b"two" in seen)
