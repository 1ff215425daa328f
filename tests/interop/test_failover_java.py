"""Apache's Java client, unchanged, at a broker name whose master is killed: it goes on at the next one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.failover import HERE, SkylarkCluster
from skylark.admin.admin import AsyncAdmin
from tests.interop.client_driver import SCENARIOS_TIMEOUT_S, ClientDriver
from tests.interop.verdict import results
from tests.interop.versions import CLIENTS

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.nightly, pytest.mark.timeout(600)]

PREPARED = "resume_with_a_new_client"


@pytest.mark.parametrize("version", CLIENTS)
async def test_producer_and_consumer_go_on_at_the_next_master(version: str, tmp_path: Path) -> None:
    cluster = SkylarkCluster(tmp_path, [HERE] * 2)
    driver = ClientDriver(version, cluster.namesrv, tmp_path)
    try:
        await cluster.start()
        async with AsyncAdmin(namesrv=cluster.namesrv) as admin:
            master = await cluster.master(admin, 1)
            assert await asyncio.to_thread(driver.run, "all", PREPARED) == {PREPARED: None}
            with driver.running("resume") as process:
                await asyncio.to_thread(
                    process.wait_until, lambda: "RESTART NOW" in process.log_text(), "clients at work",
                    SCENARIOS_TIMEOUT_S,
                )  # fmt: skip
                await cluster.brokers[master].kill()
                assert await asyncio.to_thread(results, process, SCENARIOS_TIMEOUT_S) == {"resume": None}
            assert await cluster.master(admin, 0) != master
    finally:
        await cluster.stop()
