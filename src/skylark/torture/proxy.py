"""A network that misbehaves on command: connections pass through here, are cut, delayed, or go silent."""

from __future__ import annotations

import asyncio
import contextlib
import random

CHUNK_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0


class Proxy:
    """Forwards one port to another. `delay_ms`, `silent` and `cut` take effect on what flows from now on."""

    def __init__(self, target: tuple[str, int], chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._refusing = False
        self.delay_ms = 0
        """Every chunk waits up to so long, each connection by itself: what was sent later may come first."""
        self.silent = False
        """Answers vanish, while requests still arrive."""

    async def start(self, host: str, port: int) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def cut(self) -> None:
        """End all connections in the middle of whatever they were doing."""
        for pipe in self._pipes:
            pipe.cancel()

    def refuse(self, refusing: bool) -> None:
        """End new connections at once, or let them in again."""
        self._refusing = refusing

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        try:
            if not self._refusing:
                await self._join(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the peer is away, or the network was cut: both ends hear of it by the close
        finally:
            self._pipes.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            pumps = [
                asyncio.ensure_future(self._pump(reader, far_writer, answers=False)),
                asyncio.ensure_future(self._pump(far_reader, writer, answers=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            far_writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_ms:
                    await asyncio.sleep(self._chance.random() * self.delay_ms / 1000)
                if answers and self.silent:
                    continue
                writer.write(data)
                await writer.drain()
