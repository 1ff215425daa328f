"""A server's address for clients under test: everything passes, and what passes is kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from skylark.protocol.command import RemotingCommand
from skylark.protocol.connection import Connection, Limits
from skylark.remoting.address import split_address
from tests.support.raw_server import RawServer

READ_BYTES = 1 << 16
LIMITS = Limits(header_bytes_max=16 << 20)


class RecordingProxy(RawServer):
    """Stands before one server. `requests` are what clients asked, `connections` how many came, and `carried`
    counts the codes of requests on each of them.

    While `is_silent`, answers are kept back for ever.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(self._pass)
        self.requests: list[RemotingCommand] = []
        self.connections = 0
        self.carried: list[Counter[int]] = []
        self.is_silent = False
        self._upstream = upstream

    def asked(self, code: int) -> list[RemotingCommand]:
        """The requests of one code."""
        return [command for command in self.requests if command.code == code]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, port = split_address(self._upstream)
        server_reader, server_writer = await asyncio.open_connection(host, port)
        tasks = [
            asyncio.ensure_future(self._forward(reader, server_writer)),
            asyncio.ensure_future(self._backward(server_reader, writer)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            server_writer.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, server_writer: asyncio.StreamWriter) -> None:
        codec: Connection[None] = Connection(LIMITS)
        carried: Counter[int] = Counter()
        self.carried.append(carried)
        while data := await reader.read(READ_BYTES):
            for command in codec.receive(data):
                assert isinstance(command, RemotingCommand)
                command.body = bytes(command.body)
                if not command.is_response:
                    self.requests.append(command)
                    carried[command.code] += 1
            server_writer.write(data)

    async def _backward(self, server_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await server_reader.read(READ_BYTES):
            if not self.is_silent:
                writer.write(data)


@contextlib.asynccontextmanager
async def recording_proxy(upstream: str) -> AsyncIterator[RecordingProxy]:
    """Run a proxy on a free port."""
    proxy = RecordingProxy(upstream)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
