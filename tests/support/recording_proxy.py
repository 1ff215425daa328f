"""A server's address for clients under test: everything passes, and what passes is kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import Connection, Limits
from skylark.remoting.address import split_address

HOST = "127.0.0.1"
READ_BYTES = 1 << 16
LIMITS = Limits(header_bytes_max=16 << 20)


class RecordingProxy:
    """Stands before one server. `requests` are what clients asked, `connections` how many came.

    While `is_silent`, answers are kept back for ever.
    """

    def __init__(self, upstream: str) -> None:
        self.requests: list[RemotingCommand] = []
        self.connections = 0
        self.is_silent = False
        self.address = ""
        self.server: asyncio.Server | None = None
        self._upstream = upstream
        self._writers: list[asyncio.StreamWriter] = []

    def asked(self, code: int) -> list[RemotingCommand]:
        """The requests of one code."""
        return [command for command in self.requests if command.code == code]

    def shut(self) -> None:
        """Be gone: cut all connections and take no more."""
        assert self.server is not None
        self.server.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, port = split_address(self._upstream)
        try:
            server_reader, server_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, server_writer]
        codec: Connection[None] = Connection(LIMITS)

        async def forward() -> None:
            while data := await reader.read(READ_BYTES):
                for command in codec.receive(data):
                    assert isinstance(command, RemotingCommand)
                    command.body = bytes(command.body)
                    if not command.is_response:
                        self.requests.append(command)
                server_writer.write(data)

        async def backward() -> None:
            while data := await server_reader.read(READ_BYTES):
                if not self.is_silent:
                    writer.write(data)

        tasks = [asyncio.ensure_future(forward()), asyncio.ensure_future(backward())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.transport.abort()
            server_writer.transport.abort()


@contextlib.asynccontextmanager
async def recording_proxy(upstream: str) -> AsyncIterator[RecordingProxy]:
    """Run a proxy on a free port."""
    proxy = RecordingProxy(upstream)
    server = await asyncio.start_server(proxy.serve, HOST, 0)
    proxy.server = server
    proxy.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        proxy.shut()
        await server.wait_closed()
        await asyncio.sleep(0)
