"""Controller mode between the two: our brokers, alone and mixed with Apache's, under Apache's controller."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.peers.apache import ApacheBroker, ApacheController
from skylark.broker.broker import Broker
from skylark.errors import RocketMQError
from skylark.processes import HOST, free_ports, python_command
from skylark.protocol.bodies import ReplicasInfo
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.controller import ElectMaster, GetSyncStateData
from skylark.settings import StoreSettings
from skylark.settings.fields import FAST_PORT_DISTANCE
from skylark.store.disk import RealDisk
from skylark.torture.cluster import CLIENT_HOST, Process
from skylark.torture.proxy import NORMAL, Direction, LinkState, Proxy
from tests.interop.epoch_ha_recording import SETTINGS as APACHE_SETTINGS
from tests.interop.epoch_ha_recording import Recorder
from tests.interop.mqadmin import admin_classpath
from tests.interop.servers import PATIENT
from tests.support.broker import BrokerClient, until
from tests.support.replica_group import elected, in_sync, is_master, own_id, running_replica, sync_set
from tests.support.replication import in_step, send_code
from tests.support.store import bodies as stored_bodies
from tests.support.store import opened

pytestmark = [pytest.mark.interop("java", "mvn"), pytest.mark.nightly]

STORE = {"commit_log_file_bytes": 1 << 20, "message_bytes_max": 64 << 10}
JAVA_TIMEOUT_S = 120


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheController]:
    with ApacheController(admin_classpath(), tmp_path_factory.mktemp("controller")) as server:
        yield server


def replica(directory: Path, controller: ApacheController, name: str, **changes: Any) -> Any:
    return running_replica(
        directory, controller=controller.controller, name_servers=controller.address, name=name,
        **{"store": STORE, **changes},
    )  # fmt: skip


async def send_some(broker: Broker | ApacheBroker | Member, prefix: str, count: int) -> list[bytes]:
    """Send until so many messages are acknowledged."""
    sent: list[bytes] = []
    async with BrokerClient(broker.address) as client:

        async def is_done() -> bool:
            body = f"{prefix} {len(sent)}".encode()
            with contextlib.suppress(RocketMQError):
                if await send_code(client, body) == ResponseCode.SUCCESS:
                    sent.append(body)
            return len(sent) == count

        await until(is_done, timeout_s=JAVA_TIMEOUT_S)
    return sent


async def test_our_brokers_under_apaches_controller(tmp_path: Path, controller: ApacheController) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(tmp_path / "a", controller, "ours"))
        await until(lambda: is_master(first))
        assert (own_id(first), first.role.epoch, sync_set(first)) == (1, 1, {1})
        sent = await send_some(first, "first", 20)
        async with replica(tmp_path / "b", controller, "ours") as second:
            await in_sync(first, second)
            sent += await send_some(first, "both", 20)
            await in_step(first, second)
            await stack.aclose()
            await until(lambda: is_master(second))
            assert second.role.epoch > 1
            sent += await send_some(second, "second", 20)
            async with replica(tmp_path / "a", controller, "ours") as again:
                await in_sync(second, again)
                await in_step(second, again)
                assert not is_master(again)
                async with BrokerClient(second.address) as client:
                    bodies = [bytes(message.body) for message in await client.pull_all("T")]
                assert set(sent) <= set(bodies)


async def test_a_designated_election_moves_the_master_and_back(
    tmp_path: Path, controller: ApacheController
) -> None:
    async with (
        replica(tmp_path / "a", controller, "moved") as first,
        replica(tmp_path / "b", controller, "moved") as second,
    ):
        master = await elected(first, second)
        sent: list[bytes] = []
        for turn in range(6):
            slave = second if master is first else first
            await in_sync(master, slave)
            sent += await send_some(master, f"turn {turn}", 5)
            async with BrokerClient(controller.controller) as client:
                await client.ask(ElectMaster("DefaultCluster", "moved", own_id(slave), designate_elect=True))
            await until(lambda slave=slave: is_master(slave))  # type: ignore[misc]
            await until(lambda master=master: not is_master(master))  # type: ignore[misc]
            master = slave
        slave = second if master is first else first
        await in_sync(master, slave)
        await in_step(master, slave)
        async with BrokerClient(master.address) as client:
            assert [bytes(each.body) for each in await client.pull_all("T")] == sent


@contextlib.asynccontextmanager
async def running_apache(
    directory: Path, controller: ApacheController, name: str
) -> AsyncIterator[ApacheBroker]:
    broker = ApacheBroker(
        admin_classpath(), directory / "home", directory / "store", name_server=controller.address,
        settings={
            **APACHE_SETTINGS, "controllerAddr": controller.controller, "brokerName": name,
            "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        },
    )  # fmt: skip
    try:
        await asyncio.to_thread(broker.start)
        yield broker
    finally:
        await asyncio.to_thread(broker.kill)


def log_bytes(directory: Path, end: int) -> bytes:
    data = b"".join(path.read_bytes() for path in sorted((directory / "commitlog").iterdir()))
    return data[:end]


async def test_our_slave_takes_the_place_of_apaches_master(
    tmp_path: Path, controller: ApacheController
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        apache = await stack.enter_async_context(running_apache(tmp_path / "apache", controller, "mixed-1"))
        sent = await send_some(apache, "apache", 30)
        async with replica(tmp_path / "ours", controller, "mixed-1") as ours:
            await until(lambda: ours.role.slave.is_copy, timeout_s=JAVA_TIMEOUT_S)
            sent += await send_some(apache, "both", 30)
            apache.kill()
            await until(lambda: is_master(ours), timeout_s=JAVA_TIMEOUT_S)
            sent += await send_some(ours, "ours", 30)
            await asyncio.to_thread(apache.start)
            await until(lambda: len(sync_set(ours)) == 2, timeout_s=JAVA_TIMEOUT_S)
            sent += await send_some(ours, "together", 5)
            end = ours.store.appended_offset
            async with BrokerClient(ours.address) as client:
                assert [bytes(each.body) for each in await client.pull_all("T")] == sent
            assert log_bytes(tmp_path / "apache" / "store", end) == log_bytes(tmp_path / "ours", end)


async def test_apaches_slave_takes_the_place_of_our_master(
    tmp_path: Path, controller: ApacheController
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ours = await stack.enter_async_context(replica(tmp_path / "ours", controller, "mixed-2"))
        sent = await send_some(ours, "ours", 30)
        async with running_apache(tmp_path / "apache", controller, "mixed-2") as apache:
            await until(lambda: len(sync_set(ours)) == 2, timeout_s=JAVA_TIMEOUT_S)
            sent += await send_some(ours, "both", 30)
            await stack.aclose()
            sent += await send_some(apache, "apache", 30)
            async with (
                replica(tmp_path / "ours", controller, "mixed-2") as again,
                BrokerClient(apache.address) as client,
            ):
                await until(lambda: again.role.slave.is_copy, timeout_s=JAVA_TIMEOUT_S)
                bodies = [bytes(each.body) for each in await client.pull_all("T")]
                assert bodies == sent
                end = again.store.appended_offset
                assert log_bytes(tmp_path / "apache" / "store", end) == log_bytes(tmp_path / "ours", end)


ROUNDS = 3


async def test_a_mixed_group_of_three_stays_equal_while_the_master_moves_around(
    tmp_path: Path, controller: ApacheController
) -> None:
    """Each of them, one of Apache's and two of ours, is elected several times under Apache's controller."""
    name = "mixed-3"
    async with (
        running_apache(tmp_path / "apache", controller, name) as apache,
        replica(tmp_path / "b", controller, name) as second,
        replica(tmp_path / "c", controller, name) as third,
        BrokerClient(controller.controller) as client,
    ):

        async def group() -> ReplicasInfo:
            return (await client.ask(GetSyncStateData([name]))).replicas_info_table[name]

        async def is_whole() -> bool:
            return len((await group()).in_sync_replicas) == 3

        sent: list[bytes] = []
        brokers = {each.address: each for each in (apache, second, third)}
        for turn in range(3 * ROUNDS):
            await until(is_whole, timeout_s=JAVA_TIMEOUT_S)
            found = await group()
            assert found.master_address is not None
            assert found.master_broker_id is not None
            sent += await send_some(brokers[found.master_address], f"turn {turn}", 5)
            following = found.master_broker_id % 3 + 1
            await client.ask(ElectMaster("DefaultCluster", name, following, designate_elect=True))
        await until(is_whole, timeout_s=JAVA_TIMEOUT_S)
        await until(lambda: second.store.appended_offset == third.store.appended_offset)
        async with BrokerClient(second.address) as reader:
            bodies = [bytes(each.body) for each in await reader.pull_all("T")]
        assert set(sent) <= set(bodies)
        end = second.store.appended_offset
        logs = [log_bytes(tmp_path / place, end) for place in ("apache/store", "b", "c")]
        assert logs[0] == logs[1] == logs[2]


# --- Cut links ---

CUTS = (None, LinkState(lost=Direction.REPLIES), LinkState(lost=Direction.REQUESTS))
"""A link is cut, or loses what the master sends, or what the slave sends, while its connection stays open."""


@contextlib.contextmanager
def broken(link: Proxy, condition: LinkState | None) -> Iterator[None]:
    if condition is None:
        link.refuse(True)
        link.cut()
    else:
        link.condition = condition
    yield
    link.refuse(False)
    link.condition = NORMAL
    link.cut()  # the streams lack bytes


async def break_link(
    link: Proxy, master: Broker | ApacheBroker, members: Callable[[], Awaitable[int]]
) -> list[bytes]:
    """Break the link of two replicas in every way; returns what their master acknowledged."""

    async def has(count: int) -> bool:
        return await members() == count

    sent: list[bytes] = []
    for turn, condition in enumerate(CUTS):
        await until(lambda: has(2), timeout_s=JAVA_TIMEOUT_S)
        assert link.connections > 0
        sent += await send_some(master, f"turn {turn} before", 5)
        with broken(link, condition):
            await until(lambda: has(1), timeout_s=JAVA_TIMEOUT_S)
            sent += await send_some(master, f"turn {turn} alone", 5)
    await until(lambda: has(2), timeout_s=JAVA_TIMEOUT_S)
    return sent + await send_some(master, "at the end", 5)


@contextlib.asynccontextmanager
async def relay(target: int, *, host: str = HOST, port: int = 0) -> AsyncIterator[tuple[Proxy, int]]:
    """Relay an address to a port; yields the relay and its port."""
    link = Proxy((HOST, target), random.Random(target))
    try:
        yield link, await link.start(host, port)
    finally:
        await link.stop()


async def test_apaches_slave_is_cut_from_our_master_and_joins_again(
    tmp_path: Path, controller: ApacheController
) -> None:
    name = "cut-1"
    async with replica(tmp_path / "ours", controller, name, advertised_replica_host=CLIENT_HOST) as ours:
        await until(lambda: is_master(ours))
        port = ours.addresses.replica_port

        async def members() -> int:
            return len(sync_set(ours))

        async with (
            relay(port, host=CLIENT_HOST, port=port) as (link, _),
            running_apache(tmp_path / "apache", controller, name),
        ):
            sent = await break_link(link, ours, members)
            await check_equal(ours, tmp_path, sent)


async def check_equal(ours: Broker, directory: Path, sent: list[bytes]) -> None:
    """Both replicas have the same log, with all that was acknowledged."""
    apache = directory / "apache" / "store"
    async with BrokerClient(ours.address) as client:

        async def has_all() -> bool:
            return set(sent) <= {bytes(each.body) for each in await client.pull_all("T")}

        await until(has_all, timeout_s=JAVA_TIMEOUT_S)  # a slave learns later what is confirmed
    end = ours.store.appended_offset
    await until(
        lambda: log_bytes(apache, end) == log_bytes(directory / "ours", end), timeout_s=JAVA_TIMEOUT_S
    )


async def test_our_slave_is_cut_from_apaches_master_and_joins_again(
    tmp_path: Path, controller: ApacheController
) -> None:
    """Relays before controller and master change the ports that they name, so that the link has one, too."""
    name = "cut-2"
    fronts = controller_front, broker_front = free_ports(), free_ports(-FAST_PORT_DISTANCE)
    async with (
        running_apache(tmp_path / "apache", controller, name) as apache,
        relay(apache.port + 1) as (link, link_front),
        BrokerClient(controller.controller) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        assert {len(str(port)) for port in (*fronts, link_front, apache.port, apache.port + 1)} == {5}

        def name_relay(data: bytes) -> bytes:
            return data.replace(b":%d" % apache.port, b":%d" % broker_front)

        def name_link(data: bytes) -> bytes:
            return data.replace(b"haListenPort=%d" % (apache.port + 1), b"haListenPort=%d" % link_front)

        recorder = stack.enter_context(contextlib.closing(Recorder()))
        await recorder.serve(controller_front, controller.port + 1, change=name_relay)
        for distance in (0, FAST_PORT_DISTANCE):
            await recorder.serve(broker_front - distance, apache.port - distance, change=name_link)

        async def members() -> int:
            return len(
                (await client.ask(GetSyncStateData([name]))).replicas_info_table[name].in_sync_replicas
            )

        async with running_replica(
            tmp_path / "ours", controller=f"{HOST}:{controller_front}", name_servers=controller.address,
            name=name, store=STORE,
        ) as ours:  # fmt: skip
            sent = await break_link(link, apache, members)
            await until(lambda: ours.role.slave.is_copy)
            await check_equal(ours, tmp_path, sent)


# --- Processes of both ---


class Member:
    """A broker process of either kind that is paused, killed and stopped."""

    def __init__(self, server: ApacheBroker | Process, address: str) -> None:
        self._server = server
        self.address = address

    async def interrupt(self, action: str) -> None:
        server = self._server
        if action == "pause":
            server.signal(signal.SIGSTOP)
        elif isinstance(server, Process):
            await (server.kill() if action == "kill" else server.terminate())
        else:
            await asyncio.to_thread(server.kill if action == "kill" else server.stop)

    async def resume(self, action: str) -> None:
        server = self._server
        if action == "pause":
            server.signal(signal.SIGCONT)
        elif isinstance(server, Process):
            await server.start()
        else:
            await asyncio.to_thread(server.start)


def our_process(directory: Path, controller: ApacheController, name: str) -> tuple[Process, str]:
    port = free_ports(-2, 1)
    values = {
        "brokerName": name, "namesrvAddr": controller.address, "listenPort": str(port), "bindAddress": HOST,
        "brokerIP1": HOST, "brokerIP2": HOST, "store.path": str(directory / "store"),
        "enableControllerMode": "true", "controllerAddr": controller.controller,
        "metricsPromExporterPort": "0", "mappedFileSizeCommitLog": str(1 << 20),
    }  # fmt: skip
    text = msgspec.json.encode(values).decode()
    command = python_command("skylark.torture.server", "broker", text, str(directory / "disk"))
    return Process("ours", command, directory / "log", port), f"{HOST}:{port}"


@pytest.mark.timeout(900)
async def test_masters_of_both_kinds_are_paused_killed_and_stopped_and_their_stores_exchanged(
    tmp_path: Path, controller: ApacheController
) -> None:
    name = "mixed-4"
    (tmp_path / "ours").mkdir()
    process, address = our_process(tmp_path / "ours", controller, name)
    async with running_apache(tmp_path / "apache", controller, name) as apache:
        members = {each.address: each for each in (Member(apache, apache.address), Member(process, address))}
        await process.start()
        try:
            sent = await interrupt_masters(members, controller.controller, name)
        finally:
            await process.kill()
    shape = StoreSettings(
        path=tmp_path / "apache" / "store", commit_log_file_bytes=1 << 20, consume_queue_file_bytes=200_000,
        index_slots=1024, index_items=8192,
    )  # fmt: skip
    with opened(shape, RealDisk()) as store:
        assert set(sent) <= set(stored_bodies(store))
    store_dir = tmp_path / "ours" / "store"
    alone = ApacheBroker(
        admin_classpath(), tmp_path / "reader", store_dir, name_server=controller.address,
        settings={**PATIENT, "mappedFileSizeCommitLog": 1 << 20, "brokerName": "reader", "reviveQueueNum": 0},
    )  # fmt: skip
    await asyncio.to_thread(alone.start)
    try:
        async with BrokerClient(alone.address) as client:
            assert set(sent) <= {bytes(each.body) for each in await client.pull_all("T")}
    finally:
        await asyncio.to_thread(alone.kill)
        alone.release_ports()


async def interrupt_masters(members: dict[str, Member], controller: str, name: str) -> list[bytes]:
    """Interrupt each master in each way; returns what was acknowledged."""
    sent: list[bytes] = []
    async with BrokerClient(controller) as client:

        async def group() -> ReplicasInfo:
            return (await client.ask(GetSyncStateData([name]))).replicas_info_table[name]

        async def is_whole() -> bool:
            return len((await group()).in_sync_replicas) == len(members)

        for turn, action in enumerate(("pause", "pause", "kill", "kill", "stop", "stop")):
            await until(is_whole, timeout_s=JAVA_TIMEOUT_S)
            before = (await group()).master_address
            assert before is not None
            sent += await send_some(members[before], f"turn {turn} before {action}", 5)
            await members[before].interrupt(action)

            async def has_moved(before: str = before) -> bool:
                return (await group()).master_address not in (None, "", before)

            await until(has_moved, timeout_s=JAVA_TIMEOUT_S)
            after = (await group()).master_address
            assert after is not None
            sent += await send_some(members[after], f"turn {turn} after {action}", 5)
            await members[before].resume(action)
        await until(is_whole, timeout_s=JAVA_TIMEOUT_S)
    return sent
