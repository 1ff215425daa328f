"""Master and slave in one process: the log follows byte for byte, whatever each of them had before."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.model.message import PutMessage
from skylark.settings import FlushMode
from skylark.store.message_store import MessageStore
from tests.support.broker import BrokerClient, broker_settings, until
from tests.support.replication import (
    assert_same_log,
    connected,
    in_step,
    raw_slave,
    running_master,
    running_pair,
    running_slave,
)
from tests.support.store import bodies, message, put_all

SMALL_FILES: dict[str, Any] = {"commit_log_file_bytes": 64 << 10, "message_bytes_max": 16 << 10}
FILE_BYTES: int = SMALL_FILES["commit_log_file_bytes"]


async def send_many(master: Broker, count: int, *, body_bytes: int = 200, topic: str = "T") -> None:
    async with BrokerClient(master.address) as client:
        sends = (client.send(topic, b"%d " % n + bytes(body_bytes), n % 4) for n in range(count))
        await asyncio.gather(*sends)


def write_store(directory: Path, *runs: Sequence[PutMessage]) -> int:
    """Make a store of its own, with these messages; returns where its log ends."""
    store = MessageStore(broker_settings(directory, store=SMALL_FILES).store)
    store.open()
    for run in runs:
        put_all(store, run)
    end = store.appended_offset
    store.close()
    return end


def copy_log(source: Path, target: Path) -> None:
    """A store with the same log, as a slave has it."""
    stores = [MessageStore(broker_settings(path, store=SMALL_FILES).store) for path in (source, target)]
    for store in stores:
        store.open()
    first, second = stores
    while second.appended_offset < first.appended_offset:
        second.append_raw(second.appended_offset, first.read_log(second.appended_offset, 1 << 20))
    for store in stores:
        store.close()


def add_to(directory: Path, run: Sequence[PutMessage]) -> int:
    return write_store(directory, run)


def texts(prefix: str, count: int, size: int = 100) -> list[PutMessage]:
    return [message(body=f"{prefix} {n} ".encode() + bytes(size)) for n in range(count)]


# --- Following ---


async def test_the_slave_has_the_masters_log_and_queues(tmp_path: Path) -> None:
    async with running_pair(tmp_path, store=SMALL_FILES) as (master, slave):
        await send_many(master, 1000)
        await in_step(master, slave)
        assert master.store.appended_offset > 3 * FILE_BYTES
        for queue_id in range(4):
            assert slave.store.max_offset("T", queue_id) == master.store.max_offset("T", queue_id) == 250
        async with BrokerClient(slave.address) as client:
            await until(lambda: slave.topics.get("T") is not None)
            assert len(await client.pull_all("T", 2)) == 250


async def test_an_empty_slave_gets_everything_from_the_first_file_on(tmp_path: Path) -> None:
    """RocketMQ's master takes a report of 0 for its last file."""
    async with running_master(tmp_path / "master", store=SMALL_FILES) as master:
        await send_many(master, 1000)
        async with running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave:
            await in_step(master, slave)
            assert slave.store.log.min_offset == 0
            assert slave.store.max_offset("T", 0) == 250


async def test_an_empty_slave_begins_where_the_masters_log_begins(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master", store=SMALL_FILES) as master:
        await send_many(master, 1000)
        master.store.log.delete_file(0)
        master.store.housekeeper.clean_derived()
        async with running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave:
            await in_step(master, slave)
            assert slave.store.log.min_offset == master.store.log.min_offset == FILE_BYTES
            await send_many(master, 10)
            await in_step(master, slave)
            for queue_id in range(4):
                lowest = master.store.min_offset("T", queue_id)
                assert 0 < lowest == slave.store.min_offset("T", queue_id)
                assert bodies(slave.store, "T", queue_id) == bodies(master.store, "T", queue_id)


async def test_both_may_be_started_again_in_any_order(tmp_path: Path) -> None:
    async with running_pair(tmp_path, store=SMALL_FILES) as (master, slave):
        await send_many(master, 100)
        await in_step(master, slave)
        port = master.port
    async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}", store=SMALL_FILES) as slave:
        await until(lambda: "cannot connect" in slave.role.slave.last_error)
        assert not slave.role.slave.sees_master
        async with running_master(tmp_path / "master", store=SMALL_FILES, port=port) as master:
            await send_many(master, 300)
            await in_step(master, slave)
            assert slave.role.slave.last_error == ""


async def test_a_master_that_is_back_is_asked_for_metadata_at_once(tmp_path: Path) -> None:
    """Not when the interval is over: a promotion before that would take groups back as far."""
    rarely = {"metadata_interval_ms": 3_600_000}
    async with running_master(tmp_path / "master") as master:
        port = master.port
    async with running_slave(tmp_path / "slave", f"127.0.0.1:{port}", settings=rarely) as slave:
        for topic in ("T1", "T2"):
            async with running_master(
                tmp_path / "master"
            ) as master:  # elsewhere: the slave knows nothing of it
                await send_many(master, 10, topic=topic)
            async with running_master(tmp_path / "master", port=port):
                await until(lambda topic=topic: slave.topics.get(topic) is not None)  # type: ignore[misc]


@pytest.mark.parametrize("turns", range(8))
async def test_a_slave_that_comes_while_its_master_stops_is_not_forgotten(tmp_path: Path, turns: int) -> None:
    """In whichever turn of the loop: it hears that nobody is there, and the connection is closed."""
    async with running_master(tmp_path) as master:
        with socket.create_connection(("127.0.0.1", master.addresses.replica_port), 20) as slave:
            for _ in range(turns):
                await asyncio.sleep(0)
            master.replication.stop()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(slave.recv, 1) == b""


async def test_a_slave_that_stops_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_master(tmp_path / "master", store=SMALL_FILES) as master:
        for _ in range(3):
            await send_many(master, 200)
            async with running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave:
                await in_step(master, slave)
                received = slave.role.slave.received_bytes
        assert received < master.store.appended_offset
        assert slave.role.slave.divergence == ""


async def test_records_larger_than_a_frame_arrive_in_pieces(tmp_path: Path) -> None:
    async with running_pair(tmp_path, settings={"batch_bytes": 100}) as (master, slave):
        await send_many(master, 20, body_bytes=5000)
        await in_step(master, slave)
        assert slave.store.max_offset("T", 0) == 5


async def test_two_slaves_follow_one_master(tmp_path: Path) -> None:
    async with (
        running_pair(tmp_path) as (master, slave),
        running_slave(tmp_path / "second", master.address) as second,
    ):
        await connected(master, 2)
        await send_many(master, 100)
        await in_step(master, slave, second)


async def test_a_slave_that_flushes_acknowledges_what_is_on_its_disk(tmp_path: Path) -> None:
    store = {"flush_mode": FlushMode.SYNC}
    async with (
        running_master(tmp_path / "master", is_sync=True, settings={"ack_timeout_ms": 60_000}) as master,
        running_slave(tmp_path / "slave", master.address, store=store) as slave,
    ):
        await connected(master)
        async with BrokerClient(master.address) as client:
            await client.send("T", b"first")
            before = master.store.appended_offset
            with slave.store.flusher.lock:
                sending = asyncio.ensure_future(client.send("T", b"second"))
                await until(lambda: slave.store.appended_offset > before)
                [info] = master.replication.slaves()
                assert info.diff > 0
                assert not sending.done()
            await sending
        await until(lambda: slave.store.flushed_offset == master.store.appended_offset)


# --- Logs that differ ---


async def test_a_diverged_tail_is_cut_at_the_first_record_that_differs(tmp_path: Path) -> None:
    write_store(tmp_path / "master", texts("common", 50))
    copy_log(tmp_path / "master", tmp_path / "slave")
    common = add_to(tmp_path / "slave", [])
    own = add_to(tmp_path / "slave", texts("lost", 7))
    add_to(tmp_path / "master", texts("other", 20))
    async with (
        running_master(tmp_path / "master", store=SMALL_FILES) as master,
        running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave,
    ):
        await in_step(master, slave)
        assert bodies(slave.store) == bodies(master.store)
        report = (
            f"truncated at {common}, where the master's log differs: "
            f"7 records of {own - common} bytes discarded"
        )
        assert slave.role.slave.divergence == report
        await send_many(master, 20, topic="U")
        await in_step(master, slave)
    async with running_slave(tmp_path / "slave", "127.0.0.1:1", store=SMALL_FILES) as slave:
        assert (len(bodies(slave.store)), len(bodies(slave.store, "U"))) == (70, 5)


async def test_more_is_compared_when_nothing_is_common(tmp_path: Path) -> None:
    write_store(tmp_path / "master", texts("common", 300))
    copy_log(tmp_path / "master", tmp_path / "slave")
    add_to(tmp_path / "slave", texts("lost", 250))
    add_to(tmp_path / "master", texts("other", 280))
    async with (
        running_master(tmp_path / "master", store=SMALL_FILES) as master,
        running_slave(
            tmp_path / "slave", master.address, store=SMALL_FILES, settings={"overlap_bytes": 500}
        ) as slave,
    ):
        await in_step(master, slave)
        assert "250 records" in slave.role.slave.divergence
        assert bodies(slave.store) == bodies(master.store)


async def test_a_master_that_lost_its_end_makes_the_slave_forget_it_too(tmp_path: Path) -> None:
    write_store(tmp_path / "master", texts("common", 100))
    copy_log(tmp_path / "master", tmp_path / "slave")
    add_to(tmp_path / "slave", texts("lost", 40))
    async with (
        running_master(tmp_path / "master", store=SMALL_FILES) as master,
        running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave,
    ):
        await connected(master)
        await in_step(master, slave)  # also if it writes nothing more
        assert "40 records" in slave.role.slave.divergence


@pytest.mark.parametrize("count", [1, 500])
async def test_another_masters_log_is_never_cut(tmp_path: Path, count: int) -> None:
    end = write_store(tmp_path / "slave", texts("mine", count))
    write_store(tmp_path / "master", texts("strange", 2 * count))
    async with (
        running_master(tmp_path / "master", store=SMALL_FILES) as master,
        running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave,
    ):
        await until(lambda: "Nothing is deleted" in slave.role.slave.last_error)
        assert slave.store.appended_offset == end
        assert len(bodies(slave.store)) == count


async def test_an_empty_master_erases_nothing(tmp_path: Path) -> None:
    end = write_store(tmp_path / "slave", texts("mine", 10))
    async with (
        running_master(tmp_path / "master", store=SMALL_FILES) as master,
        running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave,
    ):
        await until(lambda: "its log is empty" in slave.role.slave.last_error)
        assert slave.store.appended_offset == end


async def test_a_gap_is_told_and_not_bridged(tmp_path: Path) -> None:
    write_store(tmp_path / "slave", texts("first", 10))
    copy_log(tmp_path / "slave", tmp_path / "master")
    add_to(tmp_path / "master", texts("more", 1000))
    async with running_master(tmp_path / "master", store=SMALL_FILES) as master:
        master.store.log.delete_file(0)
        async with running_slave(tmp_path / "slave", master.address, store=SMALL_FILES) as slave:
            await until(lambda: "what lies between is gone" in slave.role.slave.last_error)


async def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    async with (
        running_master(tmp_path / "master", store=SMALL_FILES) as master,
        running_slave(tmp_path / "slave", master.address) as slave,
    ):
        await until(lambda: f"set mappedFileSizeCommitLog={FILE_BYTES}" in slave.role.slave.last_error)


# --- Pace ---


async def test_catching_up_keeps_to_the_rate(tmp_path: Path) -> None:
    rate = {"flow_control": True, "bytes_per_s_max": 1 << 20, "batch_bytes": 16 << 10}
    async with running_master(tmp_path / "master", settings=rate) as master:
        await send_many(master, 600, body_bytes=1000)
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with raw_slave(master) as slave:
            await slave.report(0)
            received = 0
            while received < master.store.appended_offset:
                received += len((await slave.data())[1])
        burst = rate["bytes_per_s_max"] / 20
        assert loop.time() - started > (received - burst) / rate["bytes_per_s_max"] * 0.9


async def test_a_slave_whose_disk_does_not_keep_up_stops_reading(tmp_path: Path) -> None:
    store = {"unflushed_bytes_max": 1 << 20, "commit_log_file_bytes": 16 << 20}
    async with running_master(tmp_path / "master") as master:
        await send_many(master, 800, body_bytes=8000)
        async with running_slave(tmp_path / "slave", master.address, store=store) as slave:
            with slave.store.flusher.lock:
                await until(lambda: slave.store.appended_offset > 1 << 20)
                stopped_at = slave.store.appended_offset
                await asyncio.sleep(0.3)
                assert slave.store.appended_offset - stopped_at <= 512 << 10
                assert slave.store.appended_offset < master.store.appended_offset
            await in_step(master, slave)
        assert_same_log(master.store, slave.store)
