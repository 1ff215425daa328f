"""Connections inside a process: a client and a server on one loop, without sockets between them.

Frames, limits, gate and statistics are those of all connections. What is saved are system calls, turns of the
loop and descriptors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from skylark.remoting.address import split_address
from skylark.remoting.link import Link
from skylark.remoting.server import Peer, RemotingServer, Routes

Data = bytes | bytearray | memoryview


class MemoryTransport(asyncio.Transport):
    """One end of a connection. The other end receives what is written in the next turn, in one piece.

    What it writes while it receives comes back in the same turn.
    """

    def __init__(self, protocol: asyncio.Protocol, peer_name: tuple[str, int]) -> None:
        super().__init__({"peername": peer_name})
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._written: list[Data] = []
        self._written_bytes = 0
        self._high_water_bytes = 0
        self._is_delivering = False
        self._is_full = False
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self.other: MemoryTransport = self
        """Set before anything is written."""

    # --- Writing ---

    def write(self, data: Data) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        if self._is_closing:
            return
        for data in list_of_data:
            self._written.append(data)
            self._written_bytes += len(data)
        if self.other._is_reading:
            self._deliver_soon()
        elif self._written_bytes > self._high_water_bytes and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water_bytes = high or 0

    def get_write_buffer_size(self) -> int:
        return self._written_bytes

    def _deliver_soon(self) -> None:
        if not self._is_delivering:
            self._is_delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self, *, is_answer: bool = False) -> None:
        self._is_delivering = False
        if self._is_lost:
            return
        if self.other._is_reading and self._written:
            written, self._written, self._written_bytes = self._written, [], 0
            self.other._protocol.data_received(b"".join(written))
            if self._is_full:
                self._is_full = False
                self._protocol.resume_writing()
            if self.other._written and not is_answer:
                self.other._deliver(is_answer=True)
        if self._is_closing:
            self._lose()

    # --- Reading ---

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self.other._written:
            self.other._deliver_soon()

    # --- The end ---

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close as soon as the other end has received everything, or does not read."""
        self._is_closing = True
        self._deliver_soon()

    def abort(self) -> None:
        self._is_closing = True
        self._written, self._written_bytes = [], 0
        self._deliver_soon()

    def _lose(self) -> None:
        for end in (self, self.other):
            if not end._is_lost:
                end._is_closing = end._is_lost = True
                end._protocol.connection_lost(None)


class NearbyServer:
    """A server on the running loop, under the address that routes give for it."""

    def __init__(self, address: str, server: RemotingServer, routes: Routes) -> None:
        self.address = address
        self._server = server
        self._routes = routes

    def connect(self, connection: Link, source: tuple[str, int]) -> None:
        """Connect a client. The server knows it by the IP address and the port `source`."""
        peer = Peer(self._server, self._routes)
        near = MemoryTransport(connection, split_address(self.address))
        far = MemoryTransport(peer, source)
        near.other, far.other = far, near
        connection.connection_made(near)
        peer.connection_made(far)
