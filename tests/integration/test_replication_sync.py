"""A synchronous master: what its answers promise, what readers see, and how many replicas it asks for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.broker.broker import Broker
from skylark.errors import BrokerError
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.settings import BrokerRole, FlushMode
from tests.support.broker import BrokerClient, broker_settings, until
from tests.support.replication import (
    connected,
    in_step,
    raw_slave,
    replication,
    running_master,
    running_pair,
    running_slave,
    send_code,
    shown,
)
from tests.support.store import bodies

OK = int(ResponseCode.SUCCESS)
PATIENT = {"ack_timeout_ms": 60_000}
HASTY = {"ack_timeout_ms": 2000}


async def test_sf_074_without_a_slave_the_answer_says_so_and_with_one_it_has_the_message(
    tmp_path: Path,
) -> None:
    async with (
        running_master(tmp_path / "master", is_sync=True) as master,
        BrokerClient(master.address) as client,
    ):
        assert await send_code(client, b"alone") == ResponseCode.SLAVE_NOT_AVAILABLE
        assert [each.body for each in await client.pull("T")] == [b"alone"]  # stored, and to be read
        async with running_slave(tmp_path / "slave", master.address) as slave:
            await connected(master)
            assert await send_code(client, b"together") == OK
            # Acknowledged: so the slave has it, now and not soon.
            await shown(slave)
            assert bodies(slave.store) == [b"alone", b"together"]
        await connected(master, 0)
        assert await send_code(client, b"alone again") == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_what_the_slave_has_not_is_not_seen_and_the_send_ends_in_time(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", is_sync=True, settings=HASTY) as master,
        BrokerClient(master.address) as client,
        raw_slave(master) as slave,
    ):
        await slave.report(0)
        await connected(master)
        sending = asyncio.ensure_future(send_code(client, b"late"))
        await slave.data()
        assert await client.ask(GetMaxOffset("T", 0)) == 0
        assert await client.pull("T") == []
        assert await sending == ResponseCode.FLUSH_SLAVE_TIMEOUT
        # Told to be stored, so it comes to light, although the slave still says nothing.
        await until(lambda: master.store.max_offset("T", 0) == 1)
        assert [each.body for each in await client.pull("T")] == [b"late"]


async def test_an_acknowledgement_answers_all_sends_before_it(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", is_sync=True, settings=PATIENT) as master,
        BrokerClient(master.address) as client,
        raw_slave(master) as slave,
    ):
        await slave.report(0)
        await connected(master)
        sends = [asyncio.ensure_future(send_code(client, b"%d" % n)) for n in range(20)]
        await until(lambda: master.replication.waiting > 0 and master.store.log.appended > 20 * 100)
        waiting = asyncio.ensure_future(client.pull("T", suspend_ms=60_000))
        received = 0
        while received < master.store.appended_offset:
            physical_offset, data = await slave.data()
            received = physical_offset + len(data)
        assert not any(send.done() for send in sends)
        assert not waiting.done()

        async def acknowledge() -> None:
            """What has come, and then what was appended since: a slow machine may still be at it."""
            behind = received
            while True:
                await slave.report(behind)
                physical_offset, data = await slave.data()
                behind = physical_offset + len(data)

        acknowledging = asyncio.create_task(acknowledge())
        assert set(await asyncio.gather(*sends)) == {OK}
        acknowledging.cancel()
        assert len(await waiting) > 0  # the long poll was woken by the slave
        assert master.store.max_offset("T", 0) == 20


async def test_who_does_not_want_to_wait_does_not_but_is_not_seen_earlier(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", is_sync=True, settings=PATIENT) as master,
        BrokerClient(master.address) as client,
        raw_slave(master) as slave,
    ):
        await slave.report(0)
        await connected(master)
        assert await send_code(client, b"WAIT=false", wait=False) == OK
        assert master.store.max_offset("T", 0) == 0
        physical_offset, data = await slave.data()
        await slave.report(physical_offset + len(data))
        await until(lambda: master.store.max_offset("T", 0) == 1)


async def test_sf_080_of_two_failures_the_slaves_is_told(tmp_path: Path) -> None:
    store = {"flush_mode": FlushMode.SYNC, "sync_flush_timeout_ms": 2000}
    async with (
        running_master(tmp_path / "master", is_sync=True, store=store, settings=HASTY) as master,
        BrokerClient(master.address) as client,
    ):
        assert await send_code(client, b"flushed") == ResponseCode.SLAVE_NOT_AVAILABLE
        with master.store.flusher.lock:  # the disk hangs
            assert await send_code(client, b"neither") == ResponseCode.SLAVE_NOT_AVAILABLE
            async with raw_slave(master) as stalled:
                await stalled.report(0)
                await connected(master)
                assert await send_code(client, b"neither") == ResponseCode.FLUSH_SLAVE_TIMEOUT
        async with running_slave(tmp_path / "slave", master.address) as slave:
            await connected(master)
            await in_step(master, slave)
            with master.store.flusher.lock:
                assert await send_code(client, b"replicated") == ResponseCode.FLUSH_DISK_TIMEOUT
                await shown(slave)
                assert bodies(slave.store)[-1] == b"replicated"
            assert await send_code(client, b"both") == OK


async def test_a_slave_that_is_too_far_behind_does_not_count(tmp_path: Path) -> None:
    settings = {**PATIENT, "lag_bytes_max": 1000}
    async with (
        running_master(tmp_path / "master", is_sync=True, settings=settings) as master,
        BrokerClient(master.address) as client,
        raw_slave(master) as slave,
    ):
        await slave.report(0)
        await connected(master)
        waiting = asyncio.ensure_future(send_code(client, b"small"))
        await until(lambda: master.replication.waiting == 1)
        assert await send_code(client, bytes(2000)) == ResponseCode.SLAVE_NOT_AVAILABLE
        await until(lambda: master.store.max_offset("T", 0) == 2)  # nobody is waited for
        [info] = master.replication.slaves()
        assert not info.in_sync
        await slave.report(await received_all(slave, master))
        assert await waiting == OK


async def received_all(slave: object, master: Broker) -> int:
    end = 0
    while end < master.store.appended_offset:
        physical_offset, data = await slave.data()  # type: ignore[attr-defined]
        end = physical_offset + len(data)
    return end


# --- How many ---


async def test_one_replica_asked_for_is_the_master_alone(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", is_sync=True, settings={"in_sync_replicas": 1}) as master,
        BrokerClient(master.address) as client,
    ):
        assert await send_code(client, b"alone") == OK


async def test_fewer_replicas_than_asked_for_refuse_before_anything_is_written(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", is_sync=True, settings={"in_sync_replicas": 3}) as master,
        running_slave(tmp_path / "slave", master.address) as slave,
        BrokerClient(master.address) as client,
    ):
        await connected(master)
        with pytest.raises(BrokerError, match="in-sync replicas not enough") as caught:
            await send_code(client, b"refused")
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        assert master.store.appended_offset == 0
        assert await send_code(client, b"without waiting", wait=False) == OK
        async with running_slave(tmp_path / "second", master.address) as second:
            await connected(master, 2)
            assert await send_code(client, b"three") == OK
            await shown(slave, second)
            assert bodies(slave.store) == bodies(second.store) == [b"without waiting", b"three"]


async def test_automatically_no_more_are_asked_for_than_there_are(tmp_path: Path) -> None:
    settings = {"in_sync_replicas": 3, "min_in_sync_replicas": 2, "auto_in_sync_replicas": True}
    async with (
        running_master(tmp_path / "master", is_sync=True, settings=settings) as master,
        BrokerClient(master.address) as client,
    ):
        with pytest.raises(BrokerError, match="in-sync replicas not enough"):
            await send_code(client, b"refused")
        async with running_slave(tmp_path / "slave", master.address) as slave:
            await connected(master)
            assert await send_code(client, b"two") == OK
            await shown(slave)
            assert bodies(slave.store) == [b"two"]


async def test_an_asynchronous_master_never_waits(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", settings=PATIENT) as master,
        BrokerClient(master.address) as client,
        raw_slave(master) as slave,
    ):
        await slave.report(0)
        await connected(master)
        assert await send_code(client, b"at once") == OK
        assert [each.body for each in await client.pull("T")] == [b"at once"]


async def test_a_stopping_master_answers_who_waits(tmp_path: Path) -> None:
    async with running_pair(tmp_path / "fine", is_sync=True) as (master, _):
        async with BrokerClient(master.address) as client:
            assert await send_code(client, b"x") == OK
    role, settings = BrokerRole.SYNC_MASTER, replication(**PATIENT)
    stopping = Broker(broker_settings(tmp_path / "master", role=role, replication=settings))
    await stopping.start()
    async with BrokerClient(stopping.address) as client, raw_slave(stopping) as slave:
        await slave.report(0)
        await connected(stopping)
        sending = asyncio.ensure_future(send_code(client, b"x"))
        await until(lambda: stopping.replication.waiting == 1)
        await stopping.stop()
        assert await sending == ResponseCode.FLUSH_SLAVE_TIMEOUT
