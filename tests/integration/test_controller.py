"""A controller over sockets: the answers that Apache's was recorded to give, as a group lives."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark import health
from skylark.admin.admin import Admin
from skylark.controller.controller import Controller
from skylark.errors import BrokerError, SettingsError
from skylark.processes import free_ports
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.command import RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    GetControllerConfig,
    GetControllerMetadata,
    GetNextBrokerId,
    GetReplicaInfo,
    GetSyncStateData,
    GroupMaster,
    RegisterBrokerToController,
    UpdateControllerConfig,
)
from skylark.protocol.requests.name_server import BrokerHeartbeat
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings.controller import ControllerSettings
from tests.support.broker import until
from tests.support.certificates import make_files
from tests.support.controller import C, FakeBroker, N, raw_reply


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Controller]:
    controller = Controller(ControllerSettings(port=0, store_path=directory, **settings))
    try:
        await controller.start()
        yield controller
    finally:
        await controller.stop()


async def refusal(asked: Any) -> tuple[int, str]:
    with pytest.raises(BrokerError) as caught:
        await asked
    return caught.value.code, caught.value.remark


async def test_the_life_of_a_group(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as controller,
        FakeBroker(1, controller.address) as one,
        FakeBroker(2, controller.address) as two,
    ):
        assert await one.ask(GetNextBrokerId(C, N)) == 1
        register = RegisterBrokerToController(C, N, 1, one.address)
        assert await refusal(one.ask(register)) == (
            2010, "Broker-set: broker-a hasn't been registered in controller",
        )  # fmt: skip
        assert await refusal(one.ask(GetReplicaInfo(N))) == (2008, "Broker metadata is not existed")
        nobody = GroupMaster(None, None, 0, SyncStateSet())
        assert await one.join() == nobody
        assert await one.ask(GetReplicaInfo(N)) == nobody
        assert await one.elect() == GroupMaster(1, one.address, 1, SyncStateSet((1,), 1))
        await until(lambda: len(one.notices) == 1)
        first = GroupMaster(1, one.address, 1, SyncStateSet((1,), 1))
        assert await two.join() == first
        assert await two.elect() == first  # 2011
        assert await refusal(two.elect(designate_elect=True)) == (2012, "Failed to elect a new master")
        grown = await one.ask(AlterSyncStateSet(N, 1, 1, SyncStateSet((1, 2), 1)))
        assert grown == SyncStateSet((1, 2), 2)
        table = (await one.ask(GetSyncStateData([N, "unknown"]))).replicas_info_table
        assert [(each.broker_id, each.alive) for each in table[N].in_sync_replicas] == [(1, True), (2, True)]
        assert await refusal(one.ask(CleanBrokerData(C, N))) == (
            2009, "Broker broker-a is still alive, clean up failure",
        )  # fmt: skip
        await one.die()
        await until(lambda: two.notices != [])
        second = GroupMaster(2, two.address, 2, SyncStateSet((2,), 3))
        assert two.notices == [second]
        assert await two.ask(GetReplicaInfo(N)) == second


async def test_fields_of_refusals_are_apaches(tmp_path: Path) -> None:
    """Refusals carry the fields of the answer that would have been."""
    async with running(tmp_path) as controller, FakeBroker(1, controller.address) as one:

        async def reply(request: Request[Any]) -> RemotingCommand:
            return await raw_reply(one.pool, controller.address, request)

        names = {"clusterName": C, "brokerName": N}
        refused = await reply(ApplyBrokerId(C, N, 2, "a;1"))
        assert (refused.code, refused.fields) == (2014, names)
        refused = await reply(RegisterBrokerToController(C, N, 1, one.address))
        assert (refused.code, refused.fields) == (2010, names)
        refused = await reply(AlterSyncStateSet(N, 1, 1, SyncStateSet((1,), 1)))
        assert (refused.code, refused.fields) == (2013, {"newSyncStateSetEpoch": "0"})
        refused = await reply(ElectMaster(C, N, 1))
        assert (refused.code, refused.remark, refused.fields) == (2010, "Broker hasn't been registered", {})
        refused = await reply(GetSyncStateData())
        assert (refused.code, refused.remark) == (1, "not set any response code")
        refused = await reply(BrokerHeartbeat(C, one.address, N))
        assert (refused.code, refused.remark) == (2005, "Heart beat with empty brokerId")
        beat = await reply(BrokerHeartbeat(C, one.address, N, 1))
        assert (beat.code, beat.remark) == (0, "Heart beat success")
        metadata = await reply(GetControllerMetadata())
        assert metadata.fields == {
            "group": "controllers", "controllerLeaderId": "n0", "controllerLeaderAddress": controller.address,
            "isLeader": "true", "peers": f"n0:{controller.address};",
        }  # fmt: skip


async def test_a_silent_master_is_replaced(tmp_path: Path) -> None:
    """Its connection stays open, as that of a machine that vanished."""
    async with (
        running(tmp_path, scan_interval_ms=20) as controller,
        FakeBroker(1, controller.address) as one,
        FakeBroker(2, controller.address) as two,
    ):
        await one.join()
        await one.elect()
        await two.join()
        await one.ask(AlterSyncStateSet(N, 1, 1, SyncStateSet((1, 2), 1)))
        await one.beat(heartbeat_timeout_ms=50)
        await until(lambda: two.notices != [])
        assert two.notices[-1].master_broker_id == 2


async def test_a_group_without_a_candidate_waits_for_one(tmp_path: Path) -> None:
    async with (
        running(tmp_path, scan_interval_ms=20) as controller,
        FakeBroker(1, controller.address) as one,
        FakeBroker(2, controller.address) as two,
    ):
        await one.join()
        await one.elect()
        await two.join()
        await one.die()  # the set was {1}
        await until(lambda: controller.decisions.groups[N].master is None)
        group: GroupMaster = await two.ask(GetReplicaInfo(N))
        assert group == GroupMaster(None, None, 2, SyncStateSet((1,), 1))
        one.pool = ConnectionPool()
        await one.beat()
        await until(lambda: controller.decisions.groups[N].master == 1)
        assert controller.decisions.groups[N].master_epoch == 3


async def test_what_was_decided_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, FakeBroker(1, controller.address) as one:
        await one.join()
        await one.elect()
        before = dict(controller.decisions.groups)
    async with running(tmp_path) as controller, FakeBroker(2, controller.address) as two:
        assert controller.decisions.groups == before
        # Nobody has heard of the master yet, which does not mean that it is dead.
        assert (await two.join()).master_broker_id == 1
        assert (await two.elect()).master_broker_id == 1


async def test_metrics(tmp_path: Path) -> None:
    port = free_ports()
    async with (
        running(tmp_path, metrics_port=port) as controller,
        FakeBroker(1, controller.address) as one,
    ):
        await one.join()
        await one.elect()
        text = await asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
        )
        labels = '{broker_set="broker-a",cluster="C1"}'
        for line in (
            "rocketmq_controller_role 1.0",
            f"rocketmq_controller_active_broker_num{labels} 1.0",
            f"skylark_controller_master{labels} 1.0",
            f"skylark_controller_master_epoch{labels} 1.0",
            'rocketmq_controller_election_total{election_result="new_master_elected"} 1.0',
            'rocketmq_controller_request_total{request_type="CONTROLLER_ELECT_MASTER",response_code="0"} 1.0',
        ):
            assert line in text


async def test_metrics_need_their_token_and_tls(tmp_path: Path) -> None:
    files = make_files(tmp_path / "certificates")
    async with running(
        tmp_path, metrics_port=free_ports(), metrics_token="a long token", tls=files.server()
    ) as controller:
        url = f"https://{controller.monitor.address}/metrics"

        def fetch(authorization: str) -> str:
            asked = urllib.request.Request(url, headers={"Authorization": authorization})
            with urllib.request.urlopen(asked, timeout=30, context=files.client_context()) as reply:  # noqa: S310
                return str(reply.read().decode())

        assert "rocketmq_controller_role 1.0" in await asyncio.to_thread(fetch, "Bearer a long token")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(fetch, "Bearer wrong")


async def test_the_doctor_tells_of_a_controller_that_is_open_or_has_an_old_certificate(
    tmp_path: Path,
) -> None:
    files = make_files(tmp_path / "certificates")

    def checked(address: str) -> set[str]:
        with Admin(namesrv="127.0.0.1:1") as admin:
            return {each.name for each in health.controllers(admin, address)}

    async with running(tmp_path, host="0.0.0.0", tls=files.server()) as controller:  # noqa: S104
        address = f"127.0.0.1:{controller.port}"
        controller.decisions.peers = {"n0": address}
        assert f"access to controller {address}" in await asyncio.to_thread(checked, address)
        files.key.write_text("no key")

        async def is_told() -> bool:
            found = await asyncio.to_thread(checked, address)
            return f"certificate files of controller {address}" in found

        await until(is_told)


async def test_the_doctor_tells_who_is_missing(tmp_path: Path) -> None:
    def checked() -> dict[str, tuple[str, str]]:
        with Admin(namesrv="127.0.0.1:1") as admin:
            return {each.name: (each.state.value, each.found) for each in health.controllers(admin, address)}

    async with (
        running(tmp_path) as controller,
        FakeBroker(1, controller.address) as one,
        FakeBroker(2, controller.address) as two,
    ):
        address = controller.address
        await one.join()
        await one.elect()
        everything = await asyncio.to_thread(checked)
        assert everything["controllers"] == ("ok", f"{address} leads, 1 answer")
        assert everything["replicas of broker-a"] == ("ok", "all 1 in sync")
        await two.join()
        assert (await asyncio.to_thread(checked))["replicas of broker-a"] == ("note", "not in sync: 2")
        await one.die()
        await until(lambda: controller.decisions.groups[N].master is None)
        assert (await asyncio.to_thread(checked))["replicas of broker-a"] == ("FAULT", "has no master")
    [(name, (state, _))] = (await asyncio.to_thread(checked)).items()
    assert (name, state) == ("controllers", "FAULT")


async def test_a_directory_is_for_one_controller(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(SettingsError, match="another controller uses"):
            async with running(tmp_path):
                pass


async def test_a_register_that_is_older_than_the_logs_serves_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, FakeBroker(1, controller.address) as one:
        await one.join()
        await one.elect()
        await one.beat(epoch=7)
        code, remark = await refusal(one.ask(GetReplicaInfo(N)))
        assert code == 1
        assert "knows master epoch 1 of broker-a, but a broker has 7" in remark


async def test_settings_change_while_it_runs(tmp_path: Path) -> None:
    config = tmp_path / "controller.conf"
    async with running(tmp_path, config_path=config) as controller, FakeBroker(1, controller.address) as one:
        await one.ask(UpdateControllerConfig(b"enableElectUncleanMaster=true\n"))
        assert "enableElectUncleanMaster=true\n" in await one.ask(GetControllerConfig())
        assert "enableElectUncleanMaster=true\n" in config.read_text()
        for text, remark in (
            (b"configStorePath=/x", "Can not update config in black list."),
            (b"listenPort=1", "cannot be changed while the controller runs: listenPort"),
        ):
            assert await refusal(one.ask(UpdateControllerConfig(text))) == (16, remark)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"peers": "n0"}, "invalid peer 'n0'; use id-host:port"),
        ({"peers": "n0-x"}, "invalid address 'x'; use host:port"),
        ({"peers": "n1-127.0.0.1:1"}, "n0 is not in controllerDLegerPeers"),
    ],
)
def test_peers_are_checked(settings: dict[str, str], sentence: str) -> None:
    make: Callable[..., ControllerSettings] = ControllerSettings
    with pytest.raises(SettingsError, match=sentence):
        make(**settings)
