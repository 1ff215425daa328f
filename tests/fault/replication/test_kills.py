"""A synchronous master and its slave, killed under load: nothing that was promised is ever lost.

SKYLARK_KILL_ROUNDS says how often; a few times by default, 50 in the slow run.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.fault.replication.cluster import Node, assert_same_log, nodes, pair_up
from tests.fault.replication.ledger import Ledger, load

ROUNDS = int(os.environ.get("SKYLARK_KILL_ROUNDS", "2"))
SLOW_ROUNDS = 50


async def fail_over(master: Node, slave: Node, ledger: Ledger, life: int, pick: random.Random) -> None:
    """Kill the master under load, promote its slave, and let the old master follow the new one."""
    await pair_up(master)
    async with load(master.address, ledger, life):
        await asyncio.sleep(pick.uniform(0.0, 0.4))
        master.stop()
    end = await assert_same_log(master, slave)
    slave.stop(pick.choice([signal.SIGKILL, signal.SIGTERM]))
    await slave.start_master()
    stored = await ledger.check(slave.address)
    assert stored >= len(ledger.promised)
    await master.start_slave(slave.address)
    print(f"life {life}: {stored} messages, {len(ledger.promised)} promised, log of {end} bytes")  # noqa: T201


async def kill_masters(directory: Path, rounds: int) -> None:
    pick = random.Random(8)
    ledger = Ledger()
    async with nodes(directory) as (first, second):
        await first.start_master()
        await second.start_slave(first.address)
        master, slave = first, second
        for life in range(rounds):
            await fail_over(master, slave, ledger, life, pick)
            master, slave = slave, master
        await pair_up(master)
        await assert_same_log(master, slave)
        await ledger.check(slave.address)
        assert len(ledger.promised) >= 50 * rounds


async def test_masters_are_killed_and_slaves_take_their_place(tmp_path: Path) -> None:
    await kill_masters(tmp_path, ROUNDS)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_fifty_masters_are_killed(tmp_path: Path) -> None:
    await kill_masters(tmp_path, SLOW_ROUNDS)


async def test_a_killed_slave_comes_back_and_may_then_be_master(tmp_path: Path) -> None:
    ledger, pick = Ledger(), random.Random(9)
    async with nodes(tmp_path) as (master, slave):
        await master.start_master(slaveTimeout=500)
        await slave.start_slave(master.address)
        for life in range(ROUNDS):
            await pair_up(master)
            async with load(master.address, ledger, life):
                slave.stop()
                await asyncio.sleep(pick.uniform(0.0, 0.3))
                await slave.start_slave(master.address)
            await pair_up(master)
            await assert_same_log(master, slave)
        assert ledger.others > 0  # while it was away, nothing was promised
        master.stop()
        slave.stop()
        await slave.start_master()
        await ledger.check(slave.address)


async def test_both_are_killed_at_once(tmp_path: Path) -> None:
    ledger, pick = Ledger(), random.Random(10)
    async with nodes(tmp_path) as (master, slave):
        for life in range(ROUNDS):
            await master.start_master()
            await slave.start_slave(master.address)
            await pair_up(master)
            if life:
                await ledger.check(master.address)
                await ledger.check(slave.address)
            async with load(master.address, ledger, life):
                await asyncio.sleep(pick.uniform(0.0, 0.4))
                for node in pick.sample([master, slave], 2):
                    node.stop()
        await slave.start_master()  # either may go on
        await ledger.check(slave.address)
