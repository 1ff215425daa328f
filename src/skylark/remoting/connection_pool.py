"""Asyncio clients: a connection, and a pool that keeps one connection per address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from skylark.errors import ClientClosed, ConnectFailed, RequestTimeout, RocketMQError
from skylark.protocol.command import CLIENT_LANGUAGE, Buffer, RemotingCommand
from skylark.protocol.connection import Limits
from skylark.protocol.request import Request
from skylark.protocol.signature import Signer
from skylark.remoting.address import reason_of, split_address
from skylark.remoting.link import Handler, Link, ReplyWaiter
from skylark.remoting.tls_client import CLOSED_IN_HANDSHAKE, ClientTls, tls_arguments

if TYPE_CHECKING:
    from skylark.remoting.nearby import NearbyServer

T = TypeVar("T")

CALL_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 3.0
WRITE_HIGH_WATER_BYTES = 1 << 20
WRITE_EARLY_BYTES = 32 << 10
REQUESTS_IN_FLIGHT_MAX = 1_024
UNNAMED_SOURCE = ("127.0.0.1", 0)
# The reply to a batch lists all message ids in its header, so the header may fill the frame.
CLIENT_LIMITS = Limits(header_bytes_max=16 << 20)


class ClientConnection(Link):
    """An outgoing connection. Requests sent by the server go to `on_request`."""

    def __init__(
        self,
        address: str,
        *,
        limits: Limits,
        on_request: Handler | None,
        tasks: set[asyncio.Task[None]],
        signer: Signer | None = None,
        on_lost: Callable[[str], None] | None = None,
        language: str = CLIENT_LANGUAGE,
    ) -> None:
        super().__init__(
            limits,
            tasks=tasks,
            requests_in_flight_max=REQUESTS_IN_FLIGHT_MAX,
            write_high_water_bytes=WRITE_HIGH_WATER_BYTES,
        )
        if signer is not None:
            self._encode_request = signer.encode
        self.address = address
        self.language = language
        self.received_at = self._loop.time()
        self._on_request = on_request
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost(self.address)

    def suspect(self, since: float) -> None:
        """Close the connection if nothing was received since a request timed out: the peer may be dead."""
        if self.received_at < since:
            self.abort()

    def write_parts(self, parts: Iterable[Buffer], parts_bytes: int) -> None:
        """Send parts of known total length.

        Flushes early during large writes, so that the server can start on the first requests.
        """
        super().write_parts(parts, parts_bytes)
        if self._out_bytes >= WRITE_EARLY_BYTES:
            self._flush()

    def reserve(self, waiter: ReplyWaiter) -> int:
        """Return the opaque for a frame to be sent by `write_parts`; the waiter receives the reply.

        Raises LocalProtocolError at the limit of pending requests.
        """
        return self._codec.reserve_opaque(waiter)

    def post(self, request: Request[Any], waiter: ReplyWaiter) -> int:
        """Send a request without waiting; return its opaque. Raises LocalProtocolError as `reserve`."""
        opaque = self._codec.reserve_opaque(waiter)
        self.write(*self._frame(request, opaque))
        return opaque

    def forget(self, opaque: int) -> None:
        """Drop the waiter of this request."""
        self._codec.take_waiter(opaque)

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        self._gathering = True
        for command in self._codec.receive(data):
            if isinstance(command, RemotingCommand) and command.is_response:
                self._deliver(command)
            else:
                self._serve(self._on_request, command)
        self._gathering = False
        self._flush()
        if self._codec.failure is not None:
            self.abort()


class ConnectionPool:
    """One connection per address, opened on demand and reopened after it was lost.

    `on_request(connection, command)` receives requests sent by servers (39, 40, 220, 221, 307, 309, 326);
    `on_open(address)` is called for each connection that was opened, `on_lost(address)` for each that ended
    before `close`. `signer` signs all requests, which name `language` as that of their client. A `nearby`
    server is reached without a socket; it knows this client by the address `source`.
    """

    def __init__(
        self,
        *,
        on_request: Handler | None = None,
        on_open: Callable[[str], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
        signer: Signer | None = None,
        limits: Limits = CLIENT_LIMITS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        tls: ClientTls | None = None,
        language: str = CLIENT_LANGUAGE,
        nearby: NearbyServer | None = None,
        source: tuple[str, int] = UNNAMED_SOURCE,
    ) -> None:
        self._tls = tls
        self._nearby = nearby
        self._source = source
        self._language = language
        self._on_request = on_request
        self._on_open = on_open
        self._on_lost = on_lost
        self._signer = signer
        self._limits = limits
        self._connect_timeout_s = connect_timeout_s
        self._connections: dict[str, ClientConnection] = {}
        self._retired: list[ClientConnection] = []
        self._opening: dict[str, asyncio.Task[ClientConnection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def call(self, address: str, request: Request[T], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Send a request and return the parsed reply; the timeout includes connecting.

        Raises BrokerError, ConnectFailed, RequestTimeout, ConnectionLost, ProtocolError, ClientClosed.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closed:
            return await connection.call(request, timeout_s=timeout_s)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self.connection(address)
            return await connection.call(request, timeout_s=deadline - loop.time())
        except (TimeoutError, RequestTimeout):
            raise RequestTimeout(address, request.code.name, round(timeout_s * 1000)) from None

    async def notify(self, address: str, request: Request[Any]) -> None:
        """Send a oneway request; waits for write buffer space. Raises ConnectFailed, ClientClosed."""
        connection = await self.connection(address)
        await connection.wait_writable()
        connection.notify(request)

    async def connection(self, address: str) -> ClientConnection:
        """Return the connection to this address, opening it if needed. Raises ConnectFailed, ClientClosed.

        Concurrent callers share one attempt, so that none waits for the timeouts of the others.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closed:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda done: self._opened(address, done))
        try:
            return await asyncio.shield(opening)
        except RocketMQError as error:
            error.shorten()
            raise

    def _lost(self, address: str) -> None:
        if self._on_lost is not None and not self._closed:
            self._on_lost(address)

    def _opened(self, address: str, opening: asyncio.Task[ClientConnection]) -> None:
        del self._opening[address]
        if not opening.cancelled():
            opening.exception()  # retrieved, so that asyncio does not report it when all callers are gone

    def open_connection(self, address: str) -> ClientConnection | None:
        """Return the open connection to this address, or None."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    def retire(self, address: str) -> None:
        """Stop using a connection on request of its server; pending requests may still be answered."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            self._retired.append(connection)
            self._retired = [each for each in self._retired if not each.is_closed]

    def drop(self, address: str) -> None:
        """Close the connection to this address, if any."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Flush and close all connections; cancel tasks that handle servers' requests."""
        self._closed = True
        tasks = [*self._tasks, *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = [*self._connections.values(), *self._retired]
        for connection in connections:
            connection.close()
        for connection in connections:
            try:
                async with asyncio.timeout(self._connect_timeout_s):
                    await connection.wait_closed()
            except TimeoutError:
                connection.abort()
                await connection.wait_closed()

    async def _open(self, address: str) -> ClientConnection:
        if self._closed:
            raise ClientClosed("connection pool")
        if self._nearby is not None and self._nearby.address == address:
            connection = self._new(address)
            self._nearby.connect(connection, self._source)
        else:
            connection = await self._connect(address)
        self._connections[address] = connection
        if self._on_open is not None:
            self._on_open(address)
        return connection

    def _new(self, address: str) -> ClientConnection:
        return ClientConnection(
            address,
            limits=self._limits,
            on_request=self._on_request,
            tasks=self._tasks,
            signer=self._signer,
            on_lost=self._lost,
            language=self._language,
        )

    async def _connect(self, address: str) -> ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(address)
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: self._new(address),
                    host,
                    port,
                    **({} if self._tls is None else tls_arguments(self._tls, host)),
                )
        except TimeoutError:
            raise ConnectFailed(address, f"not within {self._connect_timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            reason = reason_of(error)
            if self._tls is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
                reason = CLOSED_IN_HANDSHAKE
            raise ConnectFailed(address, reason) from None
        except asyncio.CancelledError:
            if self._closed:  # cancelled by `close`, not by the caller
                raise ClientClosed("connection pool") from None
            raise
        return connection
