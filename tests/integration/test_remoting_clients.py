"""The clients over real sockets: the same requests on asyncio and on a plain socket."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from skylark.errors import (
    BrokerError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    LocalProtocolError,
    RemoteProtocolError,
    RequestTimeout,
)
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.connection import Connection, Limits
from skylark.protocol.requests.client import GetConsumerListByGroup, NotifyConsumerIdsChanged
from skylark.protocol.requests.offset import GetMaxOffset, GetMinOffset
from skylark.remoting.blocking_connection import BlockingConnection
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.server import ServerLimits
from tests.support.black_hole import black_hole
from tests.support.raw_server import raw_server
from tests.unit.remoting.rig import HOST, LOOPS, SEND, Rig, run_on, running, until


@pytest.fixture(params=list(LOOPS))
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken, but on which nobody listens."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield taken.getsockname()[1]


# --- asyncio ---


def test_calls_share_one_connection_and_come_back_in_any_order(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            pool = ConnectionPool()
            slow = asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 19)))
            quick = [pool.call(rig.address, GetMaxOffset("t", queue_id)) for queue_id in range(10)]
            assert await asyncio.gather(*quick) == list(range(10))
            assert not slow.done()
            rig.gate.set()
            assert await slow == 19
            assert len(rig.server.peers) == 1
            await pool.close()

    run_on(loop, scenario())


def test_a_late_answer_is_dropped_and_the_connection_goes_on(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            pool = ConnectionPool()
            with pytest.raises(RequestTimeout) as caught:
                await pool.call(rig.address, GetMaxOffset("t", 19), timeout_s=0.05)
            assert (caught.value.request, caught.value.timeout_ms) == ("GET_MAX_OFFSET", 50)
            rig.gate.set()
            assert await pool.call(rig.address, GetMaxOffset("t", 3)) == 3
            assert len(rig.gone) == 0
            connection = await pool.connection(rig.address)
            assert connection._codec.pending_requests == 0
            await pool.close()

    run_on(loop, scenario())


def test_a_cancelled_call_leaves_nothing_behind(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            pool = ConnectionPool()
            call = asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 19)))
            await until(lambda: len(rig.server.tasks) == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            connection = await pool.connection(rig.address)
            assert connection._codec.pending_requests == 0
            rig.gate.set()
            assert await pool.call(rig.address, GetMaxOffset("t", 3)) == 3
            await pool.close()

    run_on(loop, scenario())


def test_a_lost_connection_fails_its_calls_and_is_opened_again(loop: str) -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.port = await rig.server.listen(HOST, 0, rig.routes())
        pool = ConnectionPool()
        waiting = [asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 20))) for _ in range(3)]
        await until(lambda: len(rig.server.tasks) == 3)
        for peer in rig.server.peers:
            peer.abort()
        for call in waiting:
            with pytest.raises(ConnectionLost) as caught:
                await call
            assert caught.value.retriable
        assert await pool.call(rig.address, GetMaxOffset("t", 3)) == 3
        await rig.server.close(drain_timeout_s=0.1)
        await until(lambda: pool._connections[rig.address].is_closed)
        with pytest.raises(ConnectFailed):
            await pool.call(rig.address, GetMaxOffset("t", 3))
        second = Rig()
        second.port = await second.server.listen(HOST, rig.port, second.routes())
        assert await pool.call(rig.address, GetMaxOffset("t", 4)) == 4
        await pool.close()
        await second.server.close()

    run_on(loop, scenario())


def test_one_connection_even_if_many_open_it_at_once(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            pool = ConnectionPool()
            await asyncio.gather(*[pool.call(rig.address, GetMaxOffset("t", 1)) for _ in range(50)])
            assert len(rig.server.peers) == 1
            pool.drop(rig.address)
            await until(lambda: not rig.server.peers)
            await pool.close()

    run_on(loop, scenario())


def test_addresses_that_do_not_answer(loop: str, closed_port: int) -> None:
    async def scenario() -> None:
        pool = ConnectionPool(connect_timeout_s=0.2)
        for address in (f"{HOST}:{closed_port}", "nonsense", f"{HOST}:70000", "host.invalid:1"):
            with pytest.raises(ConnectFailed) as caught:
                await pool.call(address, GetMinOffset("t", 0))
            assert caught.value.address == address
        await pool.close()
        with pytest.raises(ClientClosed):
            await pool.call(f"{HOST}:{closed_port}", GetMinOffset("t", 0))

    run_on(loop, scenario())


def test_connecting_counts_as_waiting(loop: str) -> None:
    async def scenario() -> None:
        with black_hole() as address:
            pool = ConnectionPool(connect_timeout_s=30)
            with pytest.raises(RequestTimeout):
                await pool.call(address, GetMinOffset("t", 0), timeout_s=0.2)
            await pool.close()

    run_on(loop, scenario())


def test_all_who_want_a_connection_share_one_attempt(loop: str) -> None:
    async def scenario() -> None:
        with black_hole() as address:
            pool = ConnectionPool(connect_timeout_s=1)
            began = asyncio.get_running_loop().time()
            results = await asyncio.gather(
                *(pool.connection(address) for _ in range(8)), return_exceptions=True
            )
            assert asyncio.get_running_loop().time() - began < 4
            assert [type(result) for result in results] == [ConnectFailed] * 8
            await pool.close()

    run_on(loop, scenario())


def test_closing_ends_what_is_being_opened(loop: str) -> None:
    async def scenario() -> None:
        with black_hole() as address:
            pool = ConnectionPool(connect_timeout_s=60)
            one, other = (asyncio.create_task(pool.connection(address)) for _ in range(2))
            await asyncio.sleep(0)
            one.cancel()  # the other one goes on
            await asyncio.sleep(0.01)
            assert one.cancelled() and not other.done()
            async with asyncio.timeout(60):
                await pool.close()
                with pytest.raises(ClientClosed):
                    await other

    run_on(loop, scenario())


def test_oneway_and_the_limit_of_pending_requests(loop: str) -> None:
    async def scenario() -> None:
        async with running() as rig:
            pool = ConnectionPool(limits=Limits(pending_requests_max=2))
            await pool.notify(rig.address, SEND)
            waiting = [asyncio.create_task(pool.call(rig.address, GetMaxOffset("t", 19))) for _ in range(2)]
            await until(lambda: len(rig.server.tasks) == 2)
            with pytest.raises(LocalProtocolError):
                await pool.call(rig.address, GetMinOffset("t", 0))
            rig.gate.set()
            await asyncio.gather(*waiting)
            assert rig.batches == [1]
            await pool.close()

    run_on(loop, scenario())


def test_a_server_that_talks_nonsense(loop: str) -> None:
    async def scenario() -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()

        async with raw_server(nonsense) as server:
            pool = ConnectionPool()
            with pytest.raises(ConnectionLost, match="larger than the limit"):
                await pool.call(server.address, GetMinOffset("t", 0))
            await pool.close()

    run_on(loop, scenario())


# --- Blocking ---


class Script:
    """A server for one connection after another, each read and answered by a function in a thread."""

    def __init__(self, *turns: "list[bytes | None]") -> None:
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.received: list[RemotingCommand] = []
        self._turns = turns
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for turn in self._turns:
            connected, _ = self._listener.accept()
            connected.settimeout(60)
            with connected:
                codec: Connection[None] = Connection()
                for answer in turn:
                    commands: list[RemotingCommand] = []
                    while not commands:
                        commands += codec.receive(connected.recv(65536))  # type: ignore[arg-type]
                    self.received += commands
                    if answer is None:  # answer the request as asked
                        connected.sendall(b"".join(encode(commands[0].reply(fields={"offset": "5"}))))
                    else:
                        connected.sendall(answer)

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


def test_blocking_calls_against_the_real_server() -> None:
    async def scenario() -> None:
        async with running() as rig:

            def calls() -> None:
                with BlockingConnection(rig.address) as connection:
                    assert connection.call(GetMaxOffset("t", 3)) == 3
                    assert connection.call(SEND).reply.queue_offset == 100
                    with pytest.raises(BrokerError, match="no such topic"):
                        connection.call(GetMaxOffset("t", 17))
                    with pytest.raises(RequestTimeout):
                        connection.call(GetMaxOffset("t", 20), timeout_s=0.05)
                    connection.notify(SEND)
                    assert connection.call(GetMaxOffset("t", 4)) == 4

            await asyncio.to_thread(calls)
            assert sum(rig.batches) == 2
            await until(lambda: not rig.server.peers)

    run_on("asyncio", scenario())


def test_a_blocking_connection_comes_back_after_the_server_closed_it() -> None:
    async def scenario() -> None:
        async with running(ServerLimits(idle_timeout_s=0.1)) as rig:
            connection = BlockingConnection(rig.address)
            assert await asyncio.to_thread(connection.call, GetMinOffset("t", 0)) == 0
            await until(lambda: not rig.server.peers)
            assert await asyncio.to_thread(connection.call, GetMinOffset("t", 0)) == 0
            assert len(rig.gone) == 1
            connection.close()

    run_on("asyncio", scenario())


def test_a_blocking_call_survives_what_the_server_asks_meanwhile() -> None:
    push = b"".join(encode(NotifyConsumerIdsChanged("g").to_command(oneway=True)))
    question = RemotingCommand(code=38, opaque=77)
    late = RemotingCommand(code=0, opaque=-9, flag=1)
    answer = RemotingCommand(code=0, opaque=0, flag=1, fields={"offset": "5"})
    script = Script([push + b"".join(encode(question)), b"".join(encode(late) + encode(answer))])
    with BlockingConnection(script.address) as connection:
        assert connection.call(GetMinOffset("t", 0)) == 5
    script.close()
    declined = script.received[-1]
    assert (declined.code, declined.opaque, declined.is_response) == (3, 77, True)


def test_a_blocking_connection_that_is_cut_off() -> None:
    script = Script([b""], [b"\xff\xff\xff\xff"], [None])
    with BlockingConnection(script.address) as connection:
        with pytest.raises(ConnectionLost):
            connection.call(GetMinOffset("t", 0))
        with pytest.raises(RemoteProtocolError):
            connection.call(GetMinOffset("t", 0))
        assert connection.call(GetMinOffset("t", 0)) == 5
    script.close()


def test_a_blocking_connection_is_not_shared_by_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([None], [None])
    with BlockingConnection(script.address) as connection:
        assert connection.call(GetMinOffset("t", 0)) == 5
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert connection.call(GetMinOffset("t", 0)) == 5
    script.close()


def test_blocking_connections_that_fail(closed_port: int) -> None:
    for address in (f"{HOST}:{closed_port}", "nonsense"):
        with pytest.raises(ConnectFailed), BlockingConnection(address) as connection:
            connection.call(GetConsumerListByGroup("g"))


def test_a_blocking_call_connects_within_its_time() -> None:
    with black_hole() as address, BlockingConnection(address, connect_timeout_s=60) as connection:
        began = time.monotonic()
        with pytest.raises(ConnectFailed):
            connection.call(GetMinOffset("t", 0), timeout_s=0.2)
        assert time.monotonic() - began < 20
