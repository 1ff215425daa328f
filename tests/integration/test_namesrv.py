"""Name servers over real sockets."""

import asyncio
import contextlib
import json
import os
import signal
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.clock import Clock
from skylark.errors import BadStoreFile, BrokerError, TopicNotExist
from skylark.namesrv.server import NameServer
from skylark.protocol.bodies import ClusterInfo
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import GetConsumerListByGroup
from skylark.protocol.requests.name_server import (
    BrokerHeartbeat,
    GetAllTopicListFromNameServer,
    GetBrokerClusterInfo,
    GetKvConfig,
    GetNamesrvConfig,
    GetRouteInfoByTopic,
    PutKvConfig,
    QueryDataVersion,
    UnregisterBroker,
    UpdateNamesrvConfig,
)
from skylark.remoting.connection_pool import ConnectionPool
from skylark.settings import NameServerSettings
from tests.support.clock import ManualClock
from tests.support.name_server import NameServerProcess
from tests.support.skylark_servers import SkylarkBroker
from tests.unit.namesrv.registering import CLUSTER, V1, addresses, registration, topics, with_body
from tests.unit.remoting.rig import frame, raw_client

A = "10.0.0.1:10911"
B = "10.0.0.2:10911"


@contextlib.asynccontextmanager
async def running(
    directory: Path, *, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[NameServer]:
    """Run a name server on a free port."""
    changes = {"port": 0, "kv_config_path": directory / "kvConfig.json", **changes}
    server = NameServer(NameServerSettings(**changes), clock=clock)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


class Caller:
    """A connection to one server."""

    def __init__(self, server: NameServer | str) -> None:
        self._address = server if isinstance(server, str) else server.address
        self._pool = ConnectionPool()

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def ask(self, request: Any, *, timeout_s: float = 30) -> Any:
        return await self._pool.call(self._address, request, timeout_s=timeout_s)

    async def register(self, name: str = "broker-a", broker_id: int = 0, address: str = A) -> None:
        await self.ask(with_body(registration(name, broker_id, address), topics("t1", "t2")))

    async def members(self) -> dict[str, dict[int, str]]:
        info: ClusterInfo = await self.ask(GetBrokerClusterInfo())
        return {name: data.broker_addrs for name, data in info.broker_addr_table.items()}


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 60) -> None:
    """Wait for what a server can tell."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 (the server does not call back)
            await asyncio.sleep(0.01)


async def test_sf_049_it_listens_and_answers_registrations_and_routes(tmp_path: Path) -> None:
    assert NameServerSettings().port == 9876
    async with running(tmp_path) as server, Caller(server) as broker, Caller(server) as client:
        assert server.address == f"127.0.0.1:{server.port}"
        with pytest.raises(TopicNotExist):
            await client.ask(GetRouteInfoByTopic("t1"))
        await broker.register()
        assert addresses(await client.ask(GetRouteInfoByTopic("t1"))) == {"broker-a": {0: A}}


async def test_sf_063_two_brokers_of_four_queues_are_eight_queues(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Caller(server) as one, Caller(server) as two:
        await one.register("broker-a", 0, A)
        await two.register("broker-b", 0, B)
        route = await one.ask(GetRouteInfoByTopic("t1"))
        queues = {
            (data.broker_name, queue) for data in route.queue_datas for queue in range(data.write_queue_nums)
        }
        assert queues == {(name, queue) for name in ("broker-a", "broker-b") for queue in range(4)}


async def test_sf_051_a_silent_broker_is_removed_and_may_return(tmp_path: Path) -> None:
    # A hundredth of the intervals: two minutes are 1200 ms, five seconds 50 ms.
    async with running(tmp_path, broker_timeout_ms=1200, scan_interval_ms=50) as server:
        async with Caller(server) as client:
            request = with_body(registration(), topics("t1", "t2")).to_command()
            async with raw_client(server.port) as silent:
                started = asyncio.get_running_loop().time()
                await silent.send(frame(request))
                assert (await silent.receive()).code == 0
                assert addresses(await client.ask(GetRouteInfoByTopic("t1"))) == {"broker-a": {0: A}}
                await until(lambda: has_no_brokers(client))
                assert asyncio.get_running_loop().time() - started >= 1.2
                assert await silent.is_closed()
            with pytest.raises(TopicNotExist):
                await client.ask(GetRouteInfoByTopic("t1"))
            async with raw_client(server.port) as returned:
                await returned.send(frame(request))
                assert (await returned.receive()).code == 0
                assert addresses(await client.ask(GetRouteInfoByTopic("t1"))) == {"broker-a": {0: A}}


async def test_sf_051_signs_of_life_keep_a_broker_for_two_minutes_each(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, scan_interval_ms=5, clock=clock) as server:
        async with Caller(server) as broker, Caller(server) as client:
            await broker.register()
            heartbeat = BrokerHeartbeat(CLUSTER, A, "broker-a", 0)
            question = QueryDataVersion("broker-a", A, CLUSTER, 0, body=V1)
            for sign_of_life in (heartbeat, question, heartbeat):
                clock.advance(120_000)
                await asyncio.sleep(0.05)  # for several scans
                assert await client.members() == {"broker-a": {0: A}}
                await broker.ask(sign_of_life)
            clock.advance(120_000)
            await broker.register()
            clock.advance(120_001)
            await until(lambda: has_no_brokers(client))


async def frozen_and_thawed(
    server: str, broker: SkylarkBroker, *, timeout_s: float, period_s: float, slack_s: float
) -> None:
    """Freeze a broker until it is removed, after `timeout_s`; thaw it, and see it come back in a period."""
    clock = asyncio.get_running_loop()
    async with Caller(server) as client:

        async def is_here() -> bool:
            return {0: broker.address} in (await client.members()).values()

        await until(is_here)
        broker.signal(signal.SIGSTOP)
        frozen = clock.time()
        try:
            await until(lambda: has_no_brokers(client), timeout_s=timeout_s + 10 + slack_s)
        finally:
            broker.signal(signal.SIGCONT)
        # It was last heard of up to a period before it froze.
        assert clock.time() - frozen >= timeout_s - period_s - 0.2
        await until(is_here, timeout_s=period_s + slack_s)


async def test_sf_051_a_frozen_broker_is_removed_and_returns(tmp_path: Path) -> None:
    """A hundredth of the intervals; on a busy machine what takes 0.3 s may take a few seconds."""
    async with running(tmp_path, broker_timeout_ms=1200, scan_interval_ms=50) as server:
        broker = SkylarkBroker(tmp_path, server.address, {"registerNameServerPeriod": 300})
        await asyncio.to_thread(broker.start)
        try:
            await frozen_and_thawed(server.address, broker, timeout_s=1.2, period_s=0.3, slack_s=5)
        finally:
            await asyncio.to_thread(broker.kill)


@pytest.mark.nightly
async def test_sf_051_a_frozen_broker_is_removed_after_two_minutes_and_returns_within_thirty_seconds(
    tmp_path: Path,
) -> None:
    with NameServerProcess(tmp_path / "name-server") as server:
        broker = SkylarkBroker(tmp_path, server.address, {})
        await asyncio.to_thread(broker.start)
        try:
            await frozen_and_thawed(server.address, broker, timeout_s=120, period_s=30, slack_s=1)
        finally:
            await asyncio.to_thread(broker.kill)


async def has_no_brokers(caller: Caller) -> bool:
    return not await caller.members()


async def test_the_end_of_a_connection_removes_its_brokers_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Caller(server) as client:
        for abort in (False, True):
            async with raw_client(server.port) as broker:
                await broker.send(frame(with_body(registration(), topics("t1", "t2")).to_command()))
                assert (await broker.receive()).code == 0
                assert await client.members() == {"broker-a": {0: A}}
                if abort:
                    broker.writer.transport.abort()
                else:
                    await broker.close()
                await until(lambda: has_no_brokers(client), timeout_s=60)
        with pytest.raises(TopicNotExist):
            await client.ask(GetRouteInfoByTopic("t1"))


async def test_a_broker_that_came_back_is_not_removed_by_its_old_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Caller(server) as client, Caller(server) as renewed:
        async with Caller(server) as old:
            await old.register()
            await old.register("broker-b", 0, B)
            await renewed.register()
        await until(lambda: is_known(client, {"broker-a": {0: A}}))


async def is_known(caller: Caller, members: dict[str, dict[int, str]]) -> bool:
    return await caller.members() == members


async def test_a_broker_may_unregister(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Caller(server) as broker:
        await broker.register()
        await broker.ask(UnregisterBroker("broker-a", A, CLUSTER, 0))
        assert await broker.members() == {}


async def test_servers_side_by_side_share_nothing(tmp_path: Path) -> None:
    async with running(tmp_path / "1") as one, running(tmp_path / "2") as two:
        async with Caller(one) as first, Caller(two) as second:
            await first.register()
            await first.ask(PutKvConfig("ns", "k", "v"))
            assert await second.members() == {}
            with pytest.raises(BrokerError, match="No config item"):
                await second.ask(GetKvConfig("ns", "k"))
            await second.register("broker-b", 0, B)
            assert set(await first.members()) == {"broker-a"}
        assert one.port != two.port


async def test_values_outlive_the_server(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Caller(server) as caller:
        puts = [caller.ask(PutKvConfig("ns", f"k{number}", "v")) for number in range(50)]
        await asyncio.gather(*puts)
    document = json.loads((tmp_path / "kvConfig.json").read_text())
    assert document == {"configTable": {"ns": {f"k{number}": "v" for number in range(50)}}}
    (tmp_path / "kvConfig.json").write_bytes(b'{"conf')  # torn, as Java's way of writing may leave it
    (tmp_path / "kvConfig.json.bak").write_bytes(b'{"configTable":{"ns":{"k":"from the backup"}}}')
    async with running(tmp_path) as server, Caller(server) as caller:
        assert (await caller.ask(GetKvConfig("ns", "k"))).value == "from the backup"


async def test_a_disk_that_hangs_stops_neither_brokers_nor_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    fsync = os.fsync

    def hanging_fsync(descriptor: int) -> None:
        assert hang.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hanging_fsync)
    async with running(tmp_path) as server, Caller(server) as admin, Caller(server) as broker:
        put = asyncio.ensure_future(admin.ask(PutKvConfig("ns", "k", "v"), timeout_s=60))
        try:
            await broker.register()
            assert addresses(await admin.ask(GetRouteInfoByTopic("t1"))) == {"broker-a": {0: A}}
            many = with_body(registration(), topics(*(f"topic-{number:05}" for number in range(2000))))
            await broker.ask(many)  # so large that it is read in a thread
            assert not put.done()
        finally:
            hang.set()
            await put
    assert (tmp_path / "kvConfig.json").exists()


async def test_a_server_does_not_start_over_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_bytes(b"nonsense")
    server = NameServer(NameServerSettings(port=0, kv_config_path=tmp_path / "kvConfig.json"))
    with pytest.raises(BadStoreFile, match=r"kvConfig\.json"):
        await server.start()
    await server.stop()
    assert (tmp_path / "kvConfig.json").read_bytes() == b"nonsense"


async def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path / "1") as one:
        server = NameServer(
            NameServerSettings(port=one.port, kv_config_path=tmp_path / "2" / "kvConfig.json")
        )
        with pytest.raises(OSError, match="address already in use"):
            await server.start()
        await server.stop()


async def test_the_scan_follows_a_change_of_the_configuration(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, scan_interval_ms=100, clock=clock) as server:
        async with Caller(server) as broker, Caller(server) as client:
            await client.ask(UpdateNamesrvConfig(b"scanNotActiveBrokerInterval=3600000"))
            assert "scanNotActiveBrokerInterval=3600000\n" in await client.ask(GetNamesrvConfig())
            await broker.register()
            await asyncio.sleep(0.3)  # until the scan that was planned is over
            clock.advance(121_000)
            await asyncio.sleep(0.3)
            assert await client.members() == {"broker-a": {0: A}}


async def test_codes_that_others_serve_are_answered_with_code_3(tmp_path: Path) -> None:
    async with running(tmp_path) as server, raw_client(server.port) as client:
        await client.send(frame(GetConsumerListByGroup("g").to_command(), 7))
        answer = await client.receive()
        assert (answer.code, answer.opaque, answer.remark) == (3, 7, " request type 38 not supported")
        for code in RequestCode:
            await client.send(frame(RemotingCommand(code=code), code))
        codes = {answer.opaque: answer.code for answer in [await client.receive() for _ in RequestCode]}
        assert codes[RequestCode.SEND_MESSAGE] == 3
        assert codes[RequestCode.GET_BROKER_CLUSTER_INFO] == 0
        assert codes[RequestCode.GET_ROUTEINFO_BY_TOPIC] == 1


async def test_huge_and_senseless_registrations_harm_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, topics_max=1000) as server:
        async with Caller(server) as healthy, raw_client(server.port) as bad:
            await healthy.register()
            many = with_body(registration("broker-b", 0, B), topics(*map(str, range(1001)))).to_command()
            nested = registration("broker-b", 0, B).to_command()
            nested.body = b'{"topicConfigSerializeWrapper":' * 100_000
            slow = registration("broker-b", 0, B).to_command()
            slow.body = b'{"x":{0:0},' + b'"topic":"t",' * 300_000  # not quite JSON, so read the slow way
            for opaque, command in enumerate((many, nested, slow)):
                await bad.send(frame(command, opaque))
            loop = asyncio.get_running_loop()
            started, longest = loop.time(), 0.0
            answers: dict[int, RemotingCommand] = {}
            reading = asyncio.ensure_future(read_answers(bad, answers, 3))
            while not reading.done():
                asked = loop.time()
                await healthy.ask(GetRouteInfoByTopic("t1"))
                longest = max(longest, loop.time() - asked)
                await asyncio.sleep(0.002)
            await reading
            assert [answers[opaque].code for opaque in range(3)] == [1, 1, 1]
            assert "no more than 1000 topics" in (answers[0].remark or "")
            assert longest < (loop.time() - started) / 2, "the healthy client waited for the bad one"
            assert set(await healthy.members()) == {"broker-a"}
            assert (await healthy.ask(GetAllTopicListFromNameServer())).topic_list == ["t1", "t2"]


async def read_answers(client: Any, answers: dict[int, RemotingCommand], count: int) -> None:
    while len(answers) < count:
        answer = await client.receive()
        answers[answer.opaque] = answer


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">ii", -1, 2) + b"{}" * 10,
        struct.pack(">ii", 1 << 30, 2) + b"{}",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    ],
)
async def test_bytes_of_other_protocols_end_their_connection_only(tmp_path: Path, data: bytes) -> None:
    async with running(tmp_path) as server, Caller(server) as healthy, raw_client(server.port) as bad:
        await healthy.register()
        await bad.send(data)
        assert await bad.is_closed()
        assert await healthy.members() == {"broker-a": {0: A}}


def test_sigterm_and_sigint_stop_the_process_cleanly(tmp_path: Path) -> None:
    for number, name in ((signal.SIGTERM, "term"), (signal.SIGINT, "int")):
        with NameServerProcess(tmp_path / name) as server:
            asyncio.run(keep_a_value(server.address))
            server.process._process.send_signal(number)
            assert server.process.wait(60) == 0
            assert "name server stopped" in server.process.log_text()
            assert "Traceback" not in server.process.log_text()
            assert json.loads((server.directory / "kvConfig.json").read_text()) == {
                "configTable": {"ns": {"k": "v"}}
            }


async def keep_a_value(address: str) -> None:
    async with Caller(address) as caller:
        await caller.register()
        await caller.ask(PutKvConfig("ns", "k", "v"))
