"""Connections without sockets behave as those with: replies, waiting, closing, and what the server sees."""

from __future__ import annotations

import asyncio

import pytest

from skylark.errors import ConnectionLost
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.offset import GetMaxOffset
from skylark.remoting.connection_pool import ConnectionPool
from skylark.remoting.nearby import MemoryTransport, NearbyServer
from skylark.remoting.server import Peer, RemotingServer, ServerLimits
from tests.unit.remoting.rig import LOOPS, run_on, until

ADDRESS = "127.0.0.1:10911"
SOURCE = ("10.1.2.3", 4567)


def answer(_: Peer, command: RemotingCommand) -> RemotingCommand:
    return command.reply(fields={"offset": command.fields["queueId"]})


def pool_of(server: RemotingServer) -> ConnectionPool:
    nearby = NearbyServer(ADDRESS, server, {RequestCode.GET_MAX_OFFSET: answer})
    return ConnectionPool(nearby=nearby, source=SOURCE)


@pytest.mark.parametrize("loop", LOOPS)
def test_requests_are_answered_and_the_server_sees_the_source(loop: str) -> None:
    async def scenario() -> None:
        server = RemotingServer()
        pool = pool_of(server)
        calls = (pool.call(ADDRESS, GetMaxOffset("t", number)) for number in range(100))
        assert await asyncio.gather(*calls) == list(range(100))
        (peer,) = server.peers
        assert peer.address == "10.1.2.3:4567"
        await pool.close()
        assert not server.peers

    run_on(loop, scenario())


def test_a_server_that_closes_ends_the_requests() -> None:
    async def scenario() -> None:
        server = RemotingServer()
        nearby = NearbyServer(ADDRESS, server, {RequestCode.GET_MAX_OFFSET: lambda *_: None})
        pool = ConnectionPool(nearby=nearby)
        call = asyncio.create_task(pool.call(ADDRESS, GetMaxOffset("t", 1)))
        await until(lambda: len(server.peers) == 1)
        await server.close()
        with pytest.raises(ConnectionLost):
            await call
        await pool.close()

    run_on("uvloop", scenario())


def test_a_server_with_too_many_connections_refuses() -> None:
    async def scenario() -> None:
        server = RemotingServer(ServerLimits(connections_max=1))
        first, second = pool_of(server), pool_of(server)
        assert await first.call(ADDRESS, GetMaxOffset("t", 1)) == 1
        with pytest.raises(ConnectionLost):
            await second.call(ADDRESS, GetMaxOffset("t", 1))
        await first.close()
        await second.close()

    run_on("uvloop", scenario())


class Recorder(asyncio.Protocol):
    """Keeps what happens to one end."""

    def __init__(self) -> None:
        self.events: list[bytes | str] = []

    def data_received(self, data: bytes) -> None:
        self.events.append(data)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


def ends() -> tuple[Recorder, MemoryTransport, Recorder, MemoryTransport]:
    one, two = Recorder(), Recorder()
    near, far = MemoryTransport(one, SOURCE), MemoryTransport(two, SOURCE)
    near.other, far.other = far, near
    near.set_write_buffer_limits(high=10)
    return one, near, two, far


def test_a_reader_that_pauses_makes_the_writer_wait() -> None:
    async def scenario() -> None:
        one, near, two, far = ends()
        far.pause_reading()
        near.writelines([b"12345", b"67890"])
        assert one.events == []
        near.write(b"x")
        await asyncio.sleep(0)
        assert (one.events, two.events, near.get_write_buffer_size()) == (["pause"], [], 11)
        far.resume_reading()
        await asyncio.sleep(0)
        assert (one.events, two.events) == (["pause", "resume"], [b"1234567890x"])

    run_on("uvloop", scenario())


@pytest.mark.parametrize("is_reading", [True, False])
def test_what_was_written_before_closing_is_received(is_reading: bool) -> None:
    async def scenario() -> None:
        one, near, two, far = ends()
        if not is_reading:
            far.pause_reading()
        near.write(b"last")
        near.close()
        near.write(b"late")
        await asyncio.sleep(0)
        assert two.events == ([b"last", "lost"] if is_reading else ["lost"])
        assert one.events == ["lost"]
        assert near.is_closing() and far.is_closing()

    run_on("uvloop", scenario())


def test_an_aborted_connection_drops_what_was_written() -> None:
    async def scenario() -> None:
        one, near, two, _ = ends()
        near.write(b"dropped")
        near.abort()
        near.abort()
        await asyncio.sleep(0)
        assert (one.events, two.events) == (["lost"], ["lost"])

    run_on("uvloop", scenario())
