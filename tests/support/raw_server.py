"""A server that does with a connection whatever a test says; no connection outlives it.

async with raw_server(handle) as server:
    ... server.address ...
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from skylark.remoting.link import stop_listening

HOST = "127.0.0.1"
TURNS = 5
"""Of the loop: within so many, who was accepted just before the end is handled."""

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """Listens from `start` to `stop`. What a handler leaves open is closed."""

    def __init__(self, handle: Handle) -> None:
        self.address = ""
        self._handle = handle
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_shut = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def shut(self) -> None:
        """Be gone: cut all connections and take no more."""
        assert self._server is not None
        self._is_shut = True
        stop_listening(self._server)
        self.cut()

    async def stop(self) -> None:
        self.shut()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        assert self._server is not None
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            if not self._is_shut:
                await self._handle(reader, writer)
        except (OSError, EOFError):
            pass  # the other side has gone
        finally:
            self._tasks.discard(task)
            writer.close()


@contextlib.asynccontextmanager
async def raw_server(handle: Handle) -> AsyncIterator[RawServer]:
    """Run a server on a free port."""
    server = RawServer(handle)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
