"""A network that is cut, stalled or slow, and a slave's disk that is full: promises hold, and all heals."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from tests.fault.replication.cluster import (
    TIMEOUT_S,
    Network,
    Node,
    assert_same_log,
    network,
    nodes,
    pair_up,
)
from tests.fault.replication.ledger import Ledger, load
from tests.support.broker import until

NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


async def start(master: Node, slave: Node, between: Network) -> None:
    await master.start_master(slaveTimeout=500)
    await slave.start_slave(master.address, haMasterAddress=between.address, haHousekeepingInterval=1000)
    await pair_up(master)


async def take_over(slave: Node, ledger: Ledger) -> None:
    """The master is dead: all that it promised must be here."""
    slave.stop()
    await slave.start_master()
    await ledger.check(slave.address)


async def test_a_network_that_is_cut_again_and_again(tmp_path: Path) -> None:
    ledger = Ledger()
    async with nodes(tmp_path) as (master, slave), network(master.replica_port) as between:
        await start(master, slave, between)
        async with load(master.address, ledger, 0):
            for _ in range(4):
                between.cut()
                await asyncio.sleep(0.2)
                between.heal()
                await asyncio.sleep(0.3)
        await pair_up(master)
        await assert_same_log(master, slave)
        await ledger.check(master.address)
        async with load(master.address, ledger, 1):
            between.cut()
            await asyncio.sleep(0.3)
            master.stop()
        await assert_same_log(master, slave)
        # Readers saw what was answered with a failure after the cut: only promises count.
        ledger.seen.clear()
        await take_over(slave, ledger)


async def test_a_network_that_stalls_is_noticed(tmp_path: Path) -> None:
    ledger = Ledger()
    async with nodes(tmp_path) as (master, slave), network(master.replica_port) as between:
        await start(master, slave, between)
        async with load(master.address, ledger, 0):
            between.stall()

            async def is_noticed() -> bool:
                return "silent" in (await slave.runtime())["replicationLastError"]

            await until(is_noticed, timeout_s=TIMEOUT_S)
            assert ledger.others > 0
            between.heal()
        await pair_up(master)
        await assert_same_log(master, slave)
        await ledger.check(slave.address)


async def test_a_slow_network_loses_nothing(tmp_path: Path) -> None:
    ledger = Ledger()
    async with nodes(tmp_path) as (master, slave), network(master.replica_port) as between:
        await start(master, slave, between)
        between.bytes_per_s = 500_000
        async with load(master.address, ledger, 0):
            await asyncio.sleep(0.5)
            master.stop()
        between.bytes_per_s = None
        await assert_same_log(master, slave)
        ledger.seen.clear()
        await take_over(slave, ledger)


async def test_a_slave_whose_disk_is_full_goes_on_when_there_is_room(tmp_path: Path) -> None:
    ledger = Ledger()
    async with nodes(tmp_path) as (master, slave):
        await master.start_master(slaveTimeout=500)
        await slave.start_slave(master.address)
        await pair_up(master)
        async with load(master.address, ledger, 0):
            # Writes beyond this size fail from now on, as on a full disk.
            resource.prlimit(slave.pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))

            async def is_noticed() -> bool:
                return "full" in (await slave.runtime())["replicationLastError"].lower()

            await until(is_noticed, timeout_s=TIMEOUT_S)
            await assert_same_log(master, slave)
            resource.prlimit(slave.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
        await pair_up(master)
        await assert_same_log(master, slave)
        await ledger.check(slave.address)
        master.stop()
        ledger.seen.clear()
        await take_over(slave, ledger)
