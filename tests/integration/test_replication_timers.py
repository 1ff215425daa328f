"""Timed messages wait on the slave, too, and come from it when it is made master."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.broker import BrokerClient, until
from tests.support.replication import in_step, running_master, running_pair
from tests.support.store import bodies


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def send_timed(client: BrokerClient, body: bytes, after_s: int) -> int:
    """Send a message for a time; returns when that is."""
    due_ms = now_ms() + after_s * 1000
    await client.send("T", body, properties={"TIMER_DELIVER_MS": str(due_ms)})
    return due_ms


async def test_the_slaves_wheel_turns_with_the_masters(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(master.address) as client:
        await send_timed(client, b"soon", 1)
        await send_timed(client, b"later", 3600)
        await until(lambda: slave.timers.waiting == 2)
        await until(lambda: master.store.max_offset("T", 0) == 1)
        await until(lambda: slave.timers.waiting == 1)
        await in_step(master, slave)
        assert bodies(slave.store) == [b"soon"]  # the master's, and no other
        await until(lambda: slave.timers.metrics().timing_count["T"].count == 1)


async def test_a_promoted_slave_delivers_what_waits_and_not_what_was_delivered(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as (master, slave), BrokerClient(master.address) as client:
        await send_timed(client, b"delivered", 1)
        due_ms = await send_timed(client, b"waits", 8)
        await until(lambda: slave.timers.waiting == 2)
        await until(lambda: master.store.max_offset("T", 0) == 1)
        await until(lambda: slave.timers.waiting == 1)
        await in_step(master, slave)
    async with running_master(tmp_path / "slave") as promoted:
        assert promoted.timers.waiting == 1
        await until(lambda: promoted.store.max_offset("T", 0) == 2)
        assert bodies(promoted.store) == [b"delivered", b"waits"]
        assert now_ms() >= due_ms
