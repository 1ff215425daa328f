"""A TCP proxy that cuts, truncates, holds or delays connections on command."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from enum import Enum

from skylark.remoting.link import stop_listening

CHUNK_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0
PIECES_MAX = 50
"""Pieces of a chunk; the rest follows at once."""
PIECE_BYTES_MAX = 97


class Direction(Enum):
    """Direction of the bytes."""

    REQUESTS = "requests"
    REPLIES = "replies"


@dataclass
class LinkState:
    """The present condition of the network."""

    delay_ms: int = 0
    """Maximum delay of a chunk, per connection, so connections may overtake each other."""
    lost: Direction | None = None
    """Direction in which all bytes are dropped."""
    held_share: float = 0.0
    """Share of connections of which one direction is held until the condition changes."""
    in_pieces: bool = False
    """Forward a few bytes at a time."""
    torn: bool = False
    """Forward half of the next chunk of a connection, then cut it."""


NORMAL = LinkState()


class Proxy:
    """Forwards one port to another. A new condition applies to data from then on."""

    def __init__(self, target: tuple[str, int], chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._condition = NORMAL
        self.changed = asyncio.Event()
        self.dropped_bytes = 0

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port; 0 chooses a free one. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            stop_listening(self._server)
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    @property
    def condition(self) -> LinkState:
        return self._condition

    @condition.setter
    def condition(self, condition: LinkState) -> None:
        self._condition = condition
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def connections(self) -> int:
        return len(self._pipes)

    def cut(self) -> None:
        """Abort all connections."""
        for pipe in self._pipes:
            pipe.cut()

    def single_out(self, condition: LinkState | None) -> None:
        """Give one connection, if there is one, a condition of its own, or cut it."""
        pipe = self._chance.choice(list(self._pipes)) if self._pipes else None
        if pipe is not None and condition is None:
            pipe.cut()
        elif pipe is not None:
            pipe.own_condition = condition

    def forget(self) -> int:
        """Close only the client side of all connections, until the next `cut`; returns their number."""
        for pipe in self._pipes:
            pipe.forget()
        return len(self._pipes)

    def refuse(self, refusing: bool) -> None:
        """Refuse new connections, or accept them again."""
        self._refusing = refusing

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if not self._refusing:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    far_reader, far_writer = await asyncio.open_connection(*self._target)
                pipe = _Pipe(self, writer, far_writer, self._chance)
                self._pipes.add(pipe)
                try:
                    await pipe.run(reader, far_reader)
                finally:
                    self._pipes.discard(pipe)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # unreachable peer or end of the run: both ends are closed
        finally:
            self._serving.discard(task)
            writer.transport.abort()


class _Pipe:
    """One connection: the near end is the client's, the far end the server's."""

    def __init__(
        self,
        proxy: Proxy,
        near: asyncio.StreamWriter,
        far: asyncio.StreamWriter,
        chance: random.Random,
    ) -> None:
        self._proxy = proxy
        self._near = near
        self._far = far
        self._chance = chance
        self._luck = chance.random()
        self._cut = asyncio.Event()
        self._forgotten = False
        self.own_condition: LinkState | None = None
        """In place of the proxy's."""

    def cut(self) -> None:
        self._cut.set()

    def forget(self) -> None:
        self._forgotten = True
        self._near.transport.abort()

    async def run(self, near: asyncio.StreamReader, far: asyncio.StreamReader) -> None:
        """Forward until one end closes or the connection is cut."""
        tasks = [
            asyncio.ensure_future(self._pump(near, self._far, Direction.REQUESTS)),
            asyncio.ensure_future(self._pump(far, self._near, Direction.REPLIES)),
            asyncio.ensure_future(self._cut.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._near.transport.abort()
            self._far.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._held(way)
                if self._forgotten and way is Direction.REPLIES:
                    continue
                condition = self.own_condition or self._proxy.condition
                if condition.delay_ms:
                    await asyncio.sleep(self._chance.random() * condition.delay_ms / 1000)
                if condition.lost is way:
                    self._proxy.dropped_bytes += len(data)
                    continue
                if condition.torn:
                    await self._write(writer, data[: len(data) // 2])
                    self.cut()
                    return
                await self._write(writer, data)
        if self._forgotten and way is Direction.REQUESTS:
            await self._cut.wait()  # the server must not notice that the client is gone

    async def _held(self, way: Direction) -> None:
        """Wait while this direction is held."""
        while self._luck < self._proxy.condition.held_share:
            held = (
                Direction.REQUESTS if self._luck < self._proxy.condition.held_share / 2 else Direction.REPLIES
            )
            if way is not held:
                return
            await self._proxy.changed.wait()

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        pieces = PIECES_MAX if self._proxy.condition.in_pieces else 0
        try:
            while pieces and data:
                length = self._chance.randint(1, PIECE_BYTES_MAX)
                writer.write(data[:length])
                await writer.drain()
                await asyncio.sleep(0)  # else they would be sent together
                data = data[length:]
                pieces -= 1
            writer.write(data)
            await writer.drain()
        except OSError:
            if not (self._forgotten and writer is self._near):
                raise
