"""Controllers on a real etcd: one leads, another takes over, and nobody writes without the leader's token."""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.broker import Broker
from skylark.controller.controller import Controller
from skylark.controller.etcd import EtcdGateway, EtcdRegister
from skylark.controller.group import BrokerGroup
from skylark.controller.register import Leader, NotLeading, RegisterUnavailable, StaleGroup
from skylark.errors import BrokerError, SettingsError
from skylark.protocol.bodies import SyncStateSet
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.controller import AlterSyncStateSet, GetControllerMetadata, GetReplicaInfo
from skylark.settings.controller import ControllerSettings, EtcdSettings, RegisterKind
from tests.support.broker import BrokerClient, until
from tests.support.certificates import make_files
from tests.support.controller import FakeBroker
from tests.support.etcd import EtcdServer, running_etcd, running_etcd_members
from tests.support.replica_group import in_sync, is_master, running_replica, sync_set
from tests.support.replication import send_code
from tests.unit.controller.groups import NAME, make_group

ONE = make_group(1, 2, master=1, epoch=1, members={1, 2}, set_epoch=2)
TWO = make_group(1, 2, master=2, epoch=2, members={2}, set_epoch=3)

pytestmark = pytest.mark.xdist_group("etcd")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    yield from running_etcd(tmp_path_factory.mktemp("etcd"))


@pytest.fixture
def settings(etcd: EtcdServer, request: pytest.FixtureRequest) -> EtcdSettings:
    """A lease that a busy machine does not outlast between two requests."""
    return EtcdSettings(endpoints=etcd.url, prefix=f"/{request.node.name}/", timeout_ms=30_000, lease_s=30)


@asynccontextmanager
async def register(settings: EtcdSettings, name: str) -> AsyncIterator[EtcdRegister]:
    made = EtcdRegister(settings)
    try:
        await made.start(Leader(name, f"{name}:1"), lambda: None)
        yield made
    finally:
        await made.close()


async def put(leader: EtcdRegister, group: BrokerGroup) -> None:
    """Put a document as soon as it leads: a short lease may run out at any moment."""

    async def is_put() -> bool:
        try:
            await leader.put(NAME, group)
        except (NotLeading, RegisterUnavailable):
            return False
        return True

    await until(is_put)


async def test_one_leads_and_the_next_takes_over(settings: EtcdSettings) -> None:
    async with register(settings, "a") as first:
        assert first.is_leading
        await first.put(NAME, ONE)
        async with register(settings, "b") as second:
            assert not second.is_leading
            assert second.leader == Leader("a", "a:1")
            with pytest.raises(NotLeading):
                await second.put(NAME, TWO)
            await first.close()
            await until(lambda: second.is_leading)
            assert second.groups == {NAME: ONE}
            await second.put(NAME, TWO)
            await second.put(NAME, None)
            assert second.groups == {}


async def test_a_leader_that_was_paused_past_its_lease_cannot_write(settings: EtcdSettings) -> None:
    lasting = replace(settings, lease_s=60)  # it does not notice by itself in time
    async with register(lasting, "paused") as first, register(lasting, "next") as second:
        await first.put(NAME, ONE)
        await first._tasks.close()  # it renews nothing and watches nothing, like a paused process
        gateway = EtcdGateway(settings)
        await gateway.call("/v3/lease/revoke", {"ID": first._lease})
        await gateway.close()
        await until(lambda: second.is_leading)
        assert first.is_leading  # as far as it knows
        with pytest.raises(NotLeading, match="another controller leads"):
            await first.put(NAME, TWO)
        assert not first.is_leading
        assert second.groups == {NAME: ONE}
        await second.put(NAME, TWO)
        with pytest.raises(NotLeading):
            await first.confirm()


async def test_a_document_that_somebody_changed_is_read_again(settings: EtcdSettings) -> None:
    async with register(settings, "a") as leader:
        await leader.put(NAME, ONE)
        known = leader._revisions[NAME]
        await leader.put(NAME, TWO)
        leader._keep(NAME, None)
        leader._groups[NAME], leader._revisions[NAME] = ONE, known
        with pytest.raises(StaleGroup):
            await leader.put(NAME, ONE)
        assert leader.groups == {NAME: TWO}
        await leader.put(NAME, ONE)


async def test_an_answer_that_is_lost(settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write happened. Nothing is answered from memory until everything has been read again."""
    async with register(settings, "a") as leader:
        call = EtcdGateway.call

        async def lost(gateway: EtcdGateway, path: str, body: Any) -> dict[str, Any]:
            answer = await call(gateway, path, body)
            if path.endswith("txn"):
                raise RegisterUnavailable("lost")
            return answer

        monkeypatch.setattr(EtcdGateway, "call", lost)
        with pytest.raises(RegisterUnavailable):
            await leader.put(NAME, ONE)
        assert not leader.is_leading
        monkeypatch.undo()
        await until(lambda: leader.is_leading)
        assert leader.groups == {NAME: ONE}
        await leader.put(NAME, TWO)


async def test_an_etcd_that_stands_still(etcd: EtcdServer, settings: EtcdSettings) -> None:
    """The leader stops before its lease can expire, and leads again when etcd goes on."""
    quick = replace(settings, timeout_ms=1000, lease_s=2)
    async with register(quick, "a") as leader:
        await put(leader, ONE)
        etcd.signal(signal.SIGSTOP)
        try:
            with pytest.raises((NotLeading, RegisterUnavailable)):
                await leader.put(NAME, TWO)
            await until(lambda: not leader.is_leading)
        finally:
            etcd.signal(signal.SIGCONT)
        await until(lambda: leader.is_leading)
        assert leader.groups[NAME] in (ONE, TWO)  # the write may have happened


async def test_an_etcd_that_is_killed_keeps_everything(etcd: EtcdServer, settings: EtcdSettings) -> None:
    async with register(replace(settings, lease_s=2), "a") as leader:
        await put(leader, ONE)
        await asyncio.to_thread(etcd.kill)
        await until(lambda: not leader.is_leading)
        await asyncio.to_thread(etcd.start)
        await until(lambda: leader.is_leading)
        assert leader.groups == {NAME: ONE}
        await put(leader, TWO)


@asynccontextmanager
async def controller(settings: EtcdSettings, name: str, directory: Path) -> AsyncIterator[Controller]:
    made = Controller(
        ControllerSettings(
            port=0, self_id=name, etcd=settings, register=RegisterKind.ETCD, store_path=directory / name
        )
    )
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def test_an_etcd_with_tls_and_users(tmp_path: Path) -> None:
    """Tokens do not survive its restart: the controller logs in again."""
    certificates = make_files(tmp_path / "certificates")
    secret = tmp_path / "etcd.password"
    secret.touch(mode=0o600)
    secret.write_text("open sesame\n")
    with EtcdServer(tmp_path / "etcd", tls=certificates) as server:
        server.add_user("skylark", "open sesame", "/skylark/")
        right = EtcdSettings(
            endpoints=server.url, prefix="/skylark/c/", timeout_ms=30_000, lease_s=60,
            trusted=certificates.authority, user="skylark", password=f"@{secret}",
        )  # fmt: skip
        async with register(right, "a") as first:
            await first.put(NAME, ONE)
            server.kill()
            server.start()
            await put(first, TWO)
        for wrong, reason in (
            (replace(right, user="", password=""), "user name is empty"),
            (replace(right, password="guessed"), "invalid user ID or password"),
            (replace(right, prefix="/others/"), "permission denied"),
        ):
            gateway = EtcdGateway(wrong)
            with pytest.raises(RegisterUnavailable, match=reason) as refused:
                await gateway.call("/v3/kv/range", {"key": encoded(wrong.prefix)})
            await gateway.close()
            assert "guessed" not in str(refused.value)
        async with register(right, "b") as second:
            assert second.groups == {NAME: TWO}
    secret.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        EtcdGateway(right)


def encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


async def test_brokers_go_on_at_another_controller(settings: EtcdSettings, tmp_path: Path) -> None:
    async with (
        controller(settings, "n0", tmp_path) as first,
        controller(settings, "n1", tmp_path) as second,
        FakeBroker(1, first.address) as one,
        FakeBroker(2, first.address) as two,
    ):
        await one.join()
        await one.elect()
        await two.join()
        await one.ask(AlterSyncStateSet("broker-a", 1, 1, SyncStateSet((1, 2), 1)))
        with pytest.raises(BrokerError) as caught:
            await one.pool.call(second.address, GetReplicaInfo("broker-a"))
        assert (caught.value.code, caught.value.remark) == (2007, "The controller is not in leader state")
        metadata = await one.pool.call(second.address, GetControllerMetadata())
        assert (metadata.controller_leader_address, metadata.is_leader) == (first.address, False)
        one.controller = two.controller = second.address
        await one.beat()
        await two.beat()  # all controllers get heartbeats
        await first.stop()
        await until(lambda: second.decisions.is_leading)
        assert (await one.ask(GetReplicaInfo("broker-a"))).master_broker_id == 1
        two.notices.clear()
        await one.die()
        await until(lambda: two.notices != [])
        assert two.notices[-1].master_broker_id == 2


async def sends(broker: Broker, body: bytes) -> bool:
    async with BrokerClient(broker.address) as client:
        try:
            return await send_code(client, body) == ResponseCode.SUCCESS
        except BrokerError:
            return False


@pytest.mark.nightly
async def test_without_a_majority_masters_go_on_and_nobody_is_elected(tmp_path: Path) -> None:
    """One of three members is lost, and nobody notices; with two lost nobody is elected."""
    with running_etcd_members(tmp_path / "etcd") as members:
        urls = ",".join(each.url for each in members)
        settings = EtcdSettings(endpoints=urls, timeout_ms=500)
        async with (
            controller(settings, "n0", tmp_path) as first,
            controller(settings, "n1", tmp_path) as second,
            AsyncExitStack() as life,
        ):
            addresses = f"{first.address};{second.address}"
            one = await life.enter_async_context(running_replica(tmp_path / "a", controller=addresses))
            await until(lambda: is_master(one))
            async with running_replica(tmp_path / "b", controller=addresses) as two:
                await in_sync(one, two)
                await asyncio.to_thread(members[0].kill)
                assert await sends(one, b"with two of three")
                await until(lambda: first.decisions.is_leading or second.decisions.is_leading)
                await asyncio.to_thread(members[1].kill)
                await until(lambda: not first.decisions.is_leading and not second.decisions.is_leading)
                assert await sends(one, b"with one of three")  # the set is whole
                await life.aclose()
                await asyncio.sleep(1)
                assert not is_master(two)
                assert not await sends(two, b"refused")
                await asyncio.to_thread(members[0].start)
                await until(lambda: is_master(two))
                assert sync_set(two) == {2}
                assert await sends(two, b"of the new master")
                async with BrokerClient(two.address) as client:
                    bodies = [bytes(each.body) for each in await client.pull_all("T")]
                assert bodies == [b"with two of three", b"with one of three", b"of the new master"]
