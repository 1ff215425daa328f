"""Controllers side by side with Apache's: the same requests get the same answers, and brokers change masters.

Apache's controller runs in its name server, as its own tests do it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheNameServer
from skylark.controller.controller import Controller
from skylark.controller.group import BrokerGroup
from skylark.errors import RocketMQError
from skylark.processes import PortReservation
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetControllerMetadata,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    RegisterBrokerToController,
)
from skylark.protocol.requests.name_server import BrokerHeartbeat, GetBrokerClusterInfo
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings.controller import ControllerSettings
from tests.interop.mqadmin import MqAdmin, admin_classpath
from tests.interop.servers import PATIENT
from tests.support.broker import running_name_server, until
from tests.support.controller import raw_reply

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.nightly]

C, N = "C1", "broker-a"
NOBODY = BrokerGroup(cluster=C, name=N, replicas={})
ADDRESSES = {1: "127.0.0.1:30911", 2: "127.0.0.1:30921", 3: "127.0.0.1:30931"}
LEADER_TIMEOUT_S = 120
Answer = tuple[str, int, str | None, Mapping[str, str], bytes]


class ApacheControllerHost(ApacheNameServer):
    """Apache's name server with a controller inside, at `controller`."""

    def __init__(self, home: Path) -> None:
        super().__init__(admin_classpath(), home)
        self._controller_port = PortReservation(0)
        self.controller = f"127.0.0.1:{self._controller_port.base}"

    def configuration(self) -> dict[str, str | int]:
        self._controller_port.release()
        return {
            **super().configuration(),
            "bindAddress": "127.0.0.1",
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{self.controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home / "controller"),
            "mappedFileSize": 1 << 20,
        }


@contextlib.asynccontextmanager
async def running_ours(directory: Path, **settings: Any) -> AsyncIterator[Controller]:
    controller = Controller(ControllerSettings(port=0, store_path=directory, **settings))
    try:
        await controller.start()
        yield controller
    finally:
        await controller.stop()


class Conversation:
    """Plays the brokers of one group, and keeps every answer."""

    def __init__(self, controller: str) -> None:
        self.controller = controller
        self.answers: list[Answer] = []
        self.pools = {broker_id: ConnectionPool() for broker_id in ADDRESSES}

    async def ask(self, step: str, request: Request[Any], broker_id: int = 1) -> RemotingCommand:
        reply = await raw_reply(self.pools[broker_id], self.controller, request)
        fields = {name: value.replace(self.controller, "CONTROLLER") for name, value in reply.fields.items()}
        self.answers.append((step, reply.code, reply.remark, fields, bytes(reply.body)))
        return reply

    async def beat(self, broker_id: int) -> None:
        beat = BrokerHeartbeat(C, ADDRESSES[broker_id], N, broker_id, 0, 0, 0, 60_000, broker_id)
        await self.ask(f"heartbeat {broker_id}", beat, broker_id)

    async def close(self) -> None:
        for pool in self.pools.values():
            await pool.close()

    async def hold(self) -> None:
        """The life of a group, with every refusal that its rules know."""
        await self._identities()
        await self._elections()
        await self._sets()
        await self._cleaning()
        await self._loss()

    async def _identities(self) -> None:
        await self.ask("metadata", GetControllerMetadata())
        await self.ask("no body", GetSyncStateData())
        await self.ask("next id", GetNextBrokerId(C, N))
        await self.ask("register early", RegisterBrokerToController(C, N, 1, ADDRESSES[1], invoke_time=1))
        await self.ask("unknown info", GetReplicaInfo(N))
        await self.ask("elect unknown", ElectMaster(C, N, 1, invoke_time=1))
        await self.ask("second first", ApplyBrokerId(C, N, 2, f"{ADDRESSES[2]};1"))
        for step in ("apply", "apply again"):
            await self.ask(step, ApplyBrokerId(C, N, 1, f"{ADDRESSES[1]};1"))
        await self.ask("apply as another", ApplyBrokerId(C, N, 1, "127.0.0.1:1;2"))
        await self.ask(
            "register unknown id", RegisterBrokerToController(C, N, 7, "127.0.0.1:1", invoke_time=1)
        )
        await self.ask("register", RegisterBrokerToController(C, N, 1, ADDRESSES[1], invoke_time=1))
        await self.ask("no master yet", GetReplicaInfo(N))
        await self.ask("empty heartbeat", BrokerHeartbeat(C, ADDRESSES[1], N))
        await self.beat(1)

    async def _elections(self) -> None:
        await self.ask("first election", ElectMaster(C, N, 1, invoke_time=1))
        await self.ask("next id of 2", GetNextBrokerId(C, N), 2)
        await self.ask("apply 2", ApplyBrokerId(C, N, 2, f"{ADDRESSES[2]};1"), 2)
        await self.ask("register 2", RegisterBrokerToController(C, N, 2, ADDRESSES[2], invoke_time=1), 2)
        await self.beat(2)
        await self.ask("still alive", ElectMaster(C, N, 2, invoke_time=1), 2)
        await self.ask("not in the set", ElectMaster(C, N, 2, designate_elect=True, invoke_time=1), 2)

    async def _sets(self) -> None:
        def alter(members: set[int], master: int = 1, epoch: int = 1, set_epoch: int = 1) -> Request[Any]:
            return AlterSyncStateSet(N, master, epoch, SyncStateSet.of(members, set_epoch), 1)

        await self.ask("apply 3", ApplyBrokerId(C, N, 3, f"{ADDRESSES[3]};1"), 3)
        await self.ask("unknown name", AlterSyncStateSet("x", 1, 1, SyncStateSet((1,), 1), 1))
        await self.ask("unchanged", alter({1}))
        await self.ask("by a slave", alter({1, 2}, master=2))
        await self.ask("old master epoch", alter({1, 2}, epoch=0))
        await self.ask("old set epoch", alter({1, 2}, set_epoch=0))
        await self.ask("unknown member", alter({1, 9}))
        await self.ask("dead member", alter({1, 3}))
        await self.ask("without the master", alter({2}))
        await self.ask("grown", alter({1, 2}))
        await self.ask("replicas", GetSyncStateData([N, "unknown"]))

    async def _cleaning(self) -> None:
        await self.ask("clean all", CleanBrokerData(C, N, invoke_time=1))
        await self.ask("clean a living one", CleanBrokerData(C, N, "2", invoke_time=1))
        await self.ask("clean unknown", CleanBrokerData(C, "x", "2", invoke_time=1))
        await self.ask("clean a dead one", CleanBrokerData(C, N, "3", invoke_time=1))
        await self.ask("designated", ElectMaster(C, N, 2, designate_elect=True, invoke_time=1), 2)
        await self.ask("after it", GetReplicaInfo(N))

    async def _loss(self) -> None:
        """Broker 1 joins the set of 2, which goes: 1 is elected. Then 1 goes, and 2 is not in the set."""
        await self.ask("joined", AlterSyncStateSet(N, 2, 2, SyncStateSet((1, 2), 3), 1), 2)
        await self.pools[2].close()
        await until(self._has_master(1), timeout_s=60)
        await self.ask("elected", GetReplicaInfo(N))
        self.pools[2] = ConnectionPool()
        await self.beat(2)
        await self.ask("outside", ElectMaster(C, N, 2, invoke_time=1), 2)

    def _has_master(self, broker_id: int) -> Any:
        async def holds() -> bool:
            reply = await raw_reply(self.pools[1], self.controller, GetReplicaInfo(N))
            return reply.fields.get("masterBrokerId") == str(broker_id)

        return holds


async def has_leader(controller: str) -> bool:
    """Apache's takes seconds to elect itself, and refuses for a while after that."""
    pool = ConnectionPool()
    try:
        metadata = await pool.call(controller, GetControllerMetadata())
        reply = await raw_reply(pool, controller, GetReplicaInfo("none"))
    except (RocketMQError, OSError):
        return False
    finally:
        await pool.close()
    return metadata.is_leader and reply.code == 2008


async def answers_of(controller: str) -> list[Answer]:
    conversation = Conversation(controller)
    try:
        await conversation.hold()
    finally:
        await conversation.close()
    return conversation.answers


async def test_both_controllers_answer_alike(tmp_path: Path) -> None:
    apache = ApacheControllerHost(tmp_path / "apache")
    await asyncio.to_thread(apache.start)
    try:
        await until(lambda: has_leader(apache.controller), timeout_s=LEADER_TIMEOUT_S)
        theirs = await answers_of(apache.controller)
    finally:
        await asyncio.to_thread(apache.kill)
        apache.release_ports()
    async with running_ours(tmp_path / "ours") as controller:
        ours = await answers_of(controller.address)
    assert len(ours) > 40
    for mine, apaches in zip(ours, theirs, strict=True):
        assert mine == apaches


def apache_broker(directory: Path, name_server: str, controller: str) -> ApacheBroker:
    settings: dict[str, str | int] = {
        "brokerId": -1,
        "brokerRole": "SLAVE",
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "allAckInSyncStateSet": "true",
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20 * 10_000,
        "maxHashSlotNum": 1024,
        "maxIndexNum": 8192,
        "reviveQueueNum": 0,
        **PATIENT,
    }
    return ApacheBroker(
        admin_classpath(), directory / "home", directory / "store", name_server=name_server, settings=settings
    )


async def test_brokers_of_apache_change_their_master_under_our_controller(tmp_path: Path) -> None:
    async with (
        running_name_server(tmp_path / "names") as names,
        running_ours(tmp_path / "controller") as controller,
    ):
        one = apache_broker(tmp_path / "one", names.address, controller.address)
        two = apache_broker(tmp_path / "two", names.address, controller.address)

        def group() -> BrokerGroup:
            return controller.decisions.groups.get("broker-a", NOBODY)

        try:
            await asyncio.to_thread(one.start)
            await until(lambda: group().master == 1, timeout_s=120)
            await asyncio.to_thread(two.launch)
            await until(lambda: group().members == {1, 2}, timeout_s=120)
            await _administer(tmp_path, names.address, controller)
            master = group().master
            first, second = (one, two) if master == 1 else (two, one)
            await asyncio.to_thread(first.kill)
            await until(
                lambda: group().master not in (None, master),
                timeout_s=60,
            )
            pool = ConnectionPool()

            async def is_routed() -> bool:
                info = await pool.call(names.address, GetBrokerClusterInfo())
                data = info.broker_addr_table.get("broker-a")
                return data is not None and data.broker_addrs.get(0) == second.address

            await until(is_routed, timeout_s=60)
            await pool.close()
        finally:
            for broker in (one, two):
                await asyncio.to_thread(broker.kill)
                broker.release_ports()


async def _administer(directory: Path, name_server: str, controller: Controller) -> None:
    """Apache's tool against our controller."""
    address = controller.address
    admin = MqAdmin(admin_classpath(), name_server, directory)
    commands = (
        ["getControllerMetaData", "-a", address],
        ["getSyncStateSet", "-a", address, "-b", "broker-a"],
        ["getBrokerEpoch", "-b", "broker-a"],
        ["getControllerConfig", "-a", address],
        ["updateControllerConfig", "-a", address, "-k", "enableElectUncleanMaster", "-v", "true"],
        ["electMaster", "-a", address, "-b", "2", "-bn", "broker-a", "-c", "DefaultCluster"],
        ["cleanBrokerMetadata", "-a", address, "-bn", "broker-a", "-b", "1", "-c", "DefaultCluster"],
    )
    metadata, replicas, epochs, config, updated, elected, cleaned = await asyncio.to_thread(
        admin.run, *commands
    )
    assert f"#ControllerLeaderAddress\t{address}" in metadata
    for broker_id in (1, 2):
        assert f"InSyncReplica:\tReplicaIdentity{{brokerName='broker-a', brokerId={broker_id}," in replicas
    assert "Epoch" in epochs
    assert "enableElectUncleanMaster" in config
    assert "update controller config success" in updated
    assert controller.decisions.settings.elect_unclean
    assert "#BrokerMasterAddr\t" in elected
    assert "still alive, clean up failure" in cleaned
    await admin_off(controller)


async def admin_off(controller: Controller) -> None:
    await controller.decisions.update_settings({"enableElectUncleanMaster": "false"})
    await until(lambda: controller.decisions.groups["broker-a"].members == {1, 2}, timeout_s=120)
