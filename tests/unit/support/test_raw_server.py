"""A server that is shut leaves no connection open, whatever it was doing; so does a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from skylark.remoting.address import split_address
from tests.support.raw_server import RawServer, raw_server
from tests.support.recording_proxy import recording_proxy


async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def comes_and_is_sent_off(server: RawServer, turns: int) -> None:
    """A connection that is that many turns of the loop old when the server is gone."""
    with socket.create_connection(split_address(server.address), 60) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.to_thread(client.recv, 1) == b""


@pytest.mark.parametrize("turns", range(10))
async def test_who_comes_while_a_server_is_shut_is_not_forgotten(turns: int) -> None:
    async with raw_server(wait_for_the_end) as server:
        await comes_and_is_sent_off(server, turns)


@pytest.mark.parametrize("turns", range(10))
async def test_who_comes_while_a_proxy_is_shut_is_not_forgotten(turns: int) -> None:
    async with raw_server(wait_for_the_end) as server, recording_proxy(server.address) as proxy:
        await comes_and_is_sent_off(proxy, turns)


async def test_what_a_handler_leaves_open_is_closed() -> None:
    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")

    async with raw_server(leave) as server:
        reader, writer = await asyncio.open_connection(*split_address(server.address))
        assert await reader.read() == b"last words"
        writer.close()
        await writer.wait_closed()
