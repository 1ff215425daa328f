"""`skylark controller` asks a controller in a name server's process; access control of a controller."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skylark.cli.main import app
from skylark.errors import BrokerError, NoPermission
from skylark.processes import GroupProcess, PortReservation, python_command
from skylark.protocol.bodies import AclInfo, Policy, PolicyEntry, SyncStateSet, UserInfo
from skylark.protocol.requests.admin import AuthCreateAcl, AuthCreateUser, AuthDeleteUser
from skylark.protocol.requests.controller import (
    AlterSyncStateSet,
    GetControllerConfig,
    GetControllerMetadata,
    GetReplicaInfo,
)
from skylark.protocol.signature import Signer
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings.auth import AuthSettings
from skylark.settings.credentials import Credentials
from tests.integration.test_controller import running
from tests.support.broker import until
from tests.support.controller import C, FakeBroker, N


async def skylark(*words: str) -> Any:
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


async def test_a_controller_in_a_name_server_is_administered(tmp_path: Path) -> None:
    ports = PortReservation(0, 1)
    controller = f"127.0.0.1:{ports.base + 1}"
    config = tmp_path / "namesrv.conf"
    config.write_text(
        f"listenPort={ports.base}\nkvConfigPath={tmp_path}/kv.json\nenableControllerInNamesrv=true\n"
        f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-{controller}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={tmp_path}/controller\nscanNotActiveBrokerInterval=50\n"
    )
    ports.release()
    common = ("--controller", controller, "--namesrv", f"127.0.0.1:{ports.base}", "--json")
    with GroupProcess(
        python_command("skylark", "namesrv", "-c", str(config)), log=tmp_path / "log"
    ) as process:
        await asyncio.to_thread(
            process.wait_until, lambda: "ready after" in process.log_text(), "name server to serve", 60
        )
        assert f"controller on {controller}" in process.log_text()
        async with FakeBroker(1, controller) as one, FakeBroker(2, controller) as two:
            await one.join()
            await one.elect()
            await two.join()
            await one.ask(AlterSyncStateSet(N, 1, 1, SyncStateSet((1, 2), 1)))
            rows = await skylark("controller", "status", *common)
            assert [(row["broker"], row["role"]) for row in rows] == [
                ("(controller)", "leads"), (N, "master"), (N, "in sync"),
            ]  # fmt: skip
            elected = await skylark("controller", "elect", N, "2", "--cluster", C, *common)
            assert elected == {"broker": N, "master": 2, "epoch": 2}
            await until(lambda: one.notices[-1].master_broker_id == 2)
            await skylark("controller", "set", "enableElectUncleanMaster=true", *common)
            rows = await skylark("controller", "config", "--like", "unclean", *common)
            assert [(row["key"], row["value"]) for row in rows] == [("enableElectUncleanMaster", "true")]
            await one.die()
            await skylark("controller", "clean", N, "1", "--cluster", C, "--yes", *common)
            rows = await skylark("controller", "status", N, *common)
            assert [row["id"] for row in rows[1:]] == [2]


async def test_only_users_may_ask_a_controller_with_access_control(tmp_path: Path) -> None:
    inner = '{"accessKey":"inner","secretKey":"inner-secret"}'
    auth = AuthSettings(
        enabled=True,
        authorization=True,
        first_user='{"username":"admin","password":"admin-secret"}',
        inner_credentials=inner,
    )
    async with running(tmp_path, auth=auth) as controller:
        stranger = ConnectionPool()
        broker = ConnectionPool(signer=Signer(Credentials("inner", "inner-secret")))
        try:
            with pytest.raises(BrokerError) as caught:
                await stranger.call(controller.address, GetReplicaInfo(N))
            assert caught.value.code == 16
            assert (await broker.call(controller.address, GetControllerMetadata())).is_leader
        finally:
            await stranger.close()
            await broker.close()


async def test_users_of_a_controller_are_administered_and_kept(tmp_path: Path) -> None:
    auth = AuthSettings(
        enabled=True, authorization=True, first_user='{"username":"admin","password":"admin-secret"}'
    )
    operator = UserInfo(username="operator", password="operator-secret", user_type="Normal")
    entry = PolicyEntry(resource="Cluster:*", actions=["Get"], decision="Allow")
    acl = AclInfo(subject="User:operator", policies=[Policy(entries=[entry])])
    pools = [
        ConnectionPool(signer=Signer(Credentials(name, f"{name}-secret"))) for name in ("admin", "operator")
    ]
    admin, asking = pools
    try:
        async with running(tmp_path, auth=auth) as controller:
            await admin.call(controller.address, AuthCreateUser("operator", body=operator))
            with pytest.raises(NoPermission):
                await asking.call(controller.address, GetControllerConfig())
            await admin.call(controller.address, AuthCreateAcl("User:operator", body=acl))
            assert await asking.call(controller.address, GetControllerConfig())
            with pytest.raises(NoPermission):
                await asking.call(controller.address, AuthDeleteUser("operator"))
        async with running(tmp_path, auth=auth) as controller:
            assert await asking.call(controller.address, GetControllerConfig())
            assert stat.S_IMODE((tmp_path / "authUsers.json").stat().st_mode) == 0o600
    finally:
        for pool in pools:
            await pool.close()
