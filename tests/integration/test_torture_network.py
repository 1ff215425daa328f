"""The proxy of a torture run, between real sockets: each kind of condition does what it says, and passes."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import pytest

from skylark.torture.proxy import NORMAL, Direction, LinkState, Proxy

HOST = "127.0.0.1"
WAIT_S = 60.0
MESSAGE = b"0123456789" * 10


class Echo:
    """A server that remembers what it got, and answers with the same."""

    def __init__(self) -> None:
        self.received = b""
        self.writers: list[asyncio.StreamWriter] = []
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.received += data
                writer.write(data)
                await writer.drain()
        self.ended += 1
        writer.transport.abort()


class Rig:
    def __init__(self, echo: Echo, proxy: Proxy, port: int) -> None:
        self.echo, self.proxy, self._port = echo, proxy, port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.proxy.stop()
        await until(lambda: self.echo.ended == len(self.echo.writers))

    async def roundtrip(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MESSAGE)
        assert await reader.readexactly(len(MESSAGE)) == MESSAGE


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    async with asyncio.timeout(WAIT_S):
        echo = Echo()
        server = await asyncio.start_server(echo.serve, HOST, 0)
        proxy = Proxy((HOST, server.sockets[0].getsockname()[1]), random.Random(1))
        port = await proxy.start(HOST, 0)
        rig = Rig(echo, proxy, port)
        yield rig
        await rig.close()
        server.close()
        await server.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.01)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What still came before the end of a connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "condition",
    [
        NORMAL,
        LinkState(delay_ms=20),
        LinkState(in_pieces=True),
        LinkState(delay_ms=5, in_pieces=True),
    ],
)
async def test_bytes_arrive_whole_and_in_order(condition: LinkState) -> None:
    async with running() as rig:
        rig.proxy.condition = condition
        reader, writer = await rig.connect()
        for _ in range(5):
            await rig.roundtrip(reader, writer)
        assert rig.echo.received == MESSAGE * 5
        writer.close()
        await until(lambda: rig.echo.ended == 1)


async def test_a_cut_ends_both_ends_and_a_closed_network_lets_nobody_in() -> None:
    async with running() as rig:
        reader, writer = await rig.connect()
        await rig.roundtrip(reader, writer)
        rig.proxy.refuse(True)
        rig.proxy.cut()
        assert await ended(reader) == b""
        await until(lambda: rig.echo.ended == 1)
        refused, _ = await rig.connect()
        assert await ended(refused) == b""
        rig.proxy.refuse(False)
        await rig.roundtrip(*await rig.connect())


async def test_lost_answers_never_come_though_requests_arrive() -> None:
    async with running() as rig:
        reader, writer = await rig.connect()
        rig.proxy.condition = LinkState(lost=Direction.REPLIES)
        writer.write(MESSAGE)
        await until(lambda: rig.echo.received == MESSAGE)
        await until(lambda: rig.proxy.dropped_bytes == len(MESSAGE))
        rig.proxy.condition = NORMAL
        writer.write(b"later")
        assert await reader.readexactly(5) == b"later"


async def test_one_connection_is_cut_and_the_other_stays() -> None:
    async with running() as rig:
        ends = [await rig.connect() for _ in range(2)]
        for end in ends:
            await rig.roundtrip(*end)
        rig.proxy.single_out(None)
        await until(lambda: rig.echo.ended == 1)
        [kept] = [end for end in ends if not end[0].at_eof()]
        await rig.roundtrip(*kept)


async def test_one_connection_loses_its_answers_and_the_other_does_not() -> None:
    async with running() as rig:
        ends = [await rig.connect() for _ in range(2)]
        for end in ends:
            await rig.roundtrip(*end)
        rig.proxy.single_out(LinkState(lost=Direction.REPLIES))
        for _, writer in ends:
            writer.write(MESSAGE)
        await until(lambda: rig.proxy.dropped_bytes == len(MESSAGE))
        reads = [asyncio.ensure_future(reader.readexactly(len(MESSAGE))) for reader, _ in ends]
        await until(lambda: any(read.done() for read in reads))
        assert sum(read.done() for read in reads) == 1
        for read in reads:
            read.cancel()


async def test_a_torn_connection_brings_the_half_and_ends() -> None:
    async with running() as rig:
        reader, writer = await rig.connect()
        await rig.roundtrip(reader, writer)
        rig.proxy.condition = LinkState(torn=True)
        writer.write(MESSAGE)
        await ended(reader)
        await until(lambda: rig.echo.ended == 1)
        assert rig.echo.received == MESSAGE + MESSAGE[: len(MESSAGE) // 2]


async def test_held_connections_are_overtaken_and_lose_nothing() -> None:
    async with running() as rig:
        ends = [await rig.connect() for _ in range(20)]
        for reader, writer in ends:
            await rig.roundtrip(reader, writer)
        rig.proxy.condition = LinkState(held_share=0.5)
        for _, writer in ends:
            writer.write(b"late!")
        answers = [asyncio.ensure_future(reader.readexactly(5)) for reader, _ in ends]
        await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        held = sum(not answer.done() for answer in answers)
        rig.proxy.condition = NORMAL
        assert await asyncio.gather(*answers) == [b"late!"] * 20
        assert held > 0


async def test_a_forgotten_connection_stays_open_at_the_server_alone() -> None:
    async with running() as rig:
        reader, writer = await rig.connect()
        await rig.roundtrip(reader, writer)
        assert rig.proxy.forget() == 1
        assert await ended(reader) == b""
        rig.echo.writers[0].write(b"is anybody there?")
        await rig.roundtrip(*await rig.connect())
        assert (rig.echo.ended, rig.proxy.connections) == (0, 2)
        rig.proxy.cut()
        await until(lambda: rig.echo.ended == 2)


async def test_who_connects_while_the_server_is_away_is_sent_off() -> None:
    async with asyncio.timeout(WAIT_S):
        server = await asyncio.start_server(lambda reader, writer: None, HOST, 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        proxy = Proxy((HOST, port), random.Random(1))
        reader, writer = await asyncio.open_connection(HOST, await proxy.start(HOST, 0))
        assert await ended(reader) == b""
        writer.close()
        await proxy.stop()
