"""A network that misbehaves on command: connections pass through, or are cut, torn, held, delayed."""

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
"""Of a chunk that goes through in pieces; the rest follows as one."""
PIECE_BYTES_MAX = 97


class Way(Enum):
    """Where bytes go."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@dataclass
class Weather:
    """How the network is now."""

    delay_ms: int = 0
    """Every chunk waits up to so long, each connection by itself: what was sent later may come first."""
    lost: Way | None = None
    """What goes this way vanishes."""
    held_share: float = 0.0
    """So many connections are held, one of their ways each: nothing moves there until the weather changes."""
    in_pieces: bool = False
    """Bytes come a few at a time: frames end and begin anywhere."""
    torn: bool = False
    """The next chunk of a connection goes through by half, in the middle of a frame, and then it is cut."""


FINE = Weather()


class Proxy:
    """Forwards one port to another. Changes of the weather take effect on what flows from then on."""

    def __init__(self, target: tuple[str, int], chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._weather = FINE
        self.changed = asyncio.Event()
        self.dropped_bytes = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which 0 leaves to the system. Raises OSError."""
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
    def weather(self) -> Weather:
        return self._weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._weather = weather
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def connections(self) -> int:
        return len(self._pipes)

    def cut(self) -> None:
        """End all connections in the middle of whatever they were doing."""
        for pipe in self._pipes:
            pipe.cut()

    def forget(self) -> int:
        """End the clients' ends alone: servers go on believing in connections that nobody is at.

        Those end with the next `cut`. Returns how many there are.
        """
        for pipe in self._pipes:
            pipe.forget()
        return len(self._pipes)

    def refuse(self, refusing: bool) -> None:
        """End new connections at once, or let them in again."""
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
            pass  # the peer is away, or the run ends: both ends hear of it by the close
        finally:
            self._serving.discard(task)
            writer.transport.abort()


class _Pipe:
    """One connection through the proxy: its near end is a client's, its far end a server's."""

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

    def cut(self) -> None:
        self._cut.set()

    def forget(self) -> None:
        self._forgotten = True
        self._near.transport.abort()

    async def run(self, near: asyncio.StreamReader, far: asyncio.StreamReader) -> None:
        """Until one end closes properly, or the connection is cut."""
        tasks = [
            asyncio.ensure_future(self._pump(near, self._far, Way.REQUESTS)),
            asyncio.ensure_future(self._pump(far, self._near, Way.ANSWERS)),
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

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._held(way)
                if self._forgotten and way is Way.ANSWERS:
                    continue
                weather = self._proxy.weather
                if weather.delay_ms:
                    await asyncio.sleep(self._chance.random() * weather.delay_ms / 1000)
                if weather.lost is way:
                    self._proxy.dropped_bytes += len(data)
                    continue
                if weather.torn:
                    await self._write(writer, data[: len(data) // 2])
                    self.cut()
                    return
                await self._write(writer, data)
        if self._forgotten and way is Way.REQUESTS:
            await self._cut.wait()  # the server must not hear that nobody is there

    async def _held(self, way: Way) -> None:
        """Wait while this connection is held this way."""
        while self._luck < self._proxy.weather.held_share:
            held = Way.REQUESTS if self._luck < self._proxy.weather.held_share / 2 else Way.ANSWERS
            if way is not held:
                return
            await self._proxy.changed.wait()

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        pieces = PIECES_MAX if self._proxy.weather.in_pieces else 0
        try:
            while pieces and data:
                length = self._chance.randint(1, PIECE_BYTES_MAX)
                writer.write(data[:length])
                await writer.drain()
                await asyncio.sleep(0)  # or they would leave together
                data = data[length:]
                pieces -= 1
            writer.write(data)
            await writer.drain()
        except OSError:
            if not (self._forgotten and writer is self._near):
                raise
