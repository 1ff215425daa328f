"""Brokers of one name in controller mode, inside a test.

async with running_replica(tmp_path / "a", controller=address) as a:
    await until(lambda: is_master(a))
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from skylark.broker.broker import Broker
from skylark.broker.replication.group_master import GroupReplication
from skylark.controller.controller import Controller
from skylark.protocol.requests.controller import ElectMaster
from skylark.settings.broker import GroupSettings
from skylark.settings.controller import ControllerSettings
from tests.support.broker import BrokerClient, running_broker, until
from tests.support.replication import replication

SMALL_FILES: dict[str, Any] = {"commit_log_file_bytes": 64 << 10, "message_bytes_max": 16 << 10}


@contextlib.asynccontextmanager
async def running_replica(
    directory: Path,
    *,
    controller: str,
    group: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Broker]:
    """Run a broker that takes its role from a controller."""
    values = {
        "enabled": True, "controllers": controller, "heartbeat_interval_ms": 100, "poll_interval_ms": 50,
        "heartbeat_timeout_ms": 10_000, "lease_ms": 9000, **(group or {}),
    }  # fmt: skip
    members = {"slave_read": True, "store": SMALL_FILES, **changes}
    async with running_broker(
        directory, group=GroupSettings(**values), replication=replication(**(settings or {})), **members
    ) as broker:
        yield broker


@contextlib.asynccontextmanager
async def running_controller(directory: Path, **changes: Any) -> AsyncIterator[Controller]:
    controller = Controller(ControllerSettings(port=0, store_path=directory, **changes))
    try:
        await controller.start()
        yield controller
    finally:
        await controller.stop()


@contextlib.asynccontextmanager
async def running_group(directory: Path, **changes: Any) -> AsyncIterator[tuple[Controller, Broker, Broker]]:
    """A controller, a master and a slave that is a member of the in-sync set."""
    async with (
        running_controller(directory / "controller") as controller,
        running_replica(directory / "a", controller=controller.address, **changes) as first,
    ):
        await until(lambda: is_master(first))
        async with running_replica(directory / "b", controller=controller.address, **changes) as second:
            await in_sync(first, second)
            yield controller, first, second


async def designate(controller: Controller, broker: Broker) -> None:
    async with BrokerClient(controller.address) as client:
        await client.ask(
            ElectMaster("DefaultCluster", broker.live.current.name, own_id(broker), designate_elect=True)
        )
    await until(lambda: is_master(broker))


def is_master(broker: Broker) -> bool:
    return not broker.role.is_slave


def sync_set(master: Broker) -> set[int]:
    """The ids that the controller has accepted."""
    assert isinstance(master.replication, GroupReplication)
    return set() if master.replication.state is None else set(master.replication.state.members)


def own_id(broker: Broker) -> int:
    assert broker.membership is not None
    return broker.membership.status.broker_id


async def in_sync(master: Broker, *slaves: Broker) -> None:
    """Wait until the controller counts these slaves."""
    await until(lambda: sync_set(master) >= {own_id(each) for each in slaves})


async def elected(*brokers: Broker) -> Broker:
    """Wait until one of these is the master."""
    await until(lambda: any(map(is_master, brokers)))
    return next(broker for broker in brokers if is_master(broker))
