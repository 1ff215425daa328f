"""The port: plain text and TLS, HTTP/2 and gRPC by grpclib. No other module knows the library.

`Doorway` is the protocol of a new connection: it reads the HAProxy header of a peer that is believed and
decides by the next byte whether the connection is TLS. `GrpcConnection` speaks HTTP/2 from then on.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

from grpclib.config import Configuration
from grpclib.exceptions import StreamTerminatedError
from grpclib.metadata import decode_timeout, encode_grpc_message
from grpclib.protocol import AbstractHandler, H2Protocol, Stream
from h2.config import H2Configuration
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes

from skylark.proxy.call import Call, CallShape, Method, StreamFailed
from skylark.proxy.proxy_header import BadProxyHeader, may_begin_header, parse_header
from skylark.proxy.schema import SERVICE
from skylark.remoting.link import stop_listening
from skylark.remoting.server import RefusedConnections
from skylark.remoting.tls import HANDSHAKE_RECORD, EncryptedTransport, ServerTls
from skylark.settings.proxy import ProxySettings
from skylark.settings.tls import TlsMode

log = logging.getLogger(__name__)

STREAMS_MAX = 10_000
"""Calls of one connection at the same time."""
BACKLOG = 1024
FIRST_BYTES_S = 10.0
"""Time for the first bytes of a connection."""
_PREFIX = struct.Struct(">BI")  # compressed, bytes of the message
_WINDOW_BYTES = 4 << 20
_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
_OK = [("grpc-status", "0")]
_UNKNOWN, _INVALID_ARGUMENT, _DEADLINE, _UNIMPLEMENTED, _INTERNAL = 2, 3, 4, 12, 13
_EXHAUSTED = 8

Headers = list[tuple[str, str]]


class _CallFailed(Exception):
    """Ends a call with a status of gRPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# --- Calls ---


class _Exchange:
    """The messages of one call."""

    def __init__(self, stream: Stream, method: Method, bytes_max: int) -> None:
        self._stream = stream
        self._method = method
        self._bytes_max = bytes_max
        self._lock = asyncio.Lock()
        self._is_started = False

    async def receive(self) -> Any:
        """Return the client's next message, None at its end."""
        prefix = await self._stream.recv_data(_PREFIX.size)
        if not prefix:
            return None
        is_compressed, length = _PREFIX.unpack(prefix)
        if is_compressed:
            raise _CallFailed(_UNIMPLEMENTED, "compressed messages are not supported; use identity")
        if length > self._bytes_max:
            raise _CallFailed(_EXHAUSTED, f"message of {length} bytes is larger than {self._bytes_max}")
        data = await self._stream.recv_data(length)
        try:
            return self._method.request.FromString(data)
        except Exception as error:  # noqa: BLE001 (of protobuf; the class depends on its version)
            raise _CallFailed(_INTERNAL, f"message cannot be decoded: {error}") from None

    async def received(self) -> AsyncIterator[Any]:
        while (message := await self.receive()) is not None:
            yield message

    async def send(self, message: Any) -> None:
        async with self._lock:
            if not self._is_started:
                self._is_started = True
                await self._stream.send_headers(_HEADERS)
            await self._stream.send_data(_framed(message))

    async def answer(self, message: Any) -> None:
        """Send the only message and the end of a call, with one write if they fit."""
        stream = self._stream
        await stream.connection.write_ready.wait()
        data, h2 = _framed(message), stream._h2_connection
        assert stream.id is not None
        if stream.id not in h2.streams:
            raise StreamClosedError(stream.id)
        room = min(h2.local_flow_control_window(stream.id), h2.max_outbound_frame_size)
        h2.send_headers(stream.id, _HEADERS)
        self._is_started = True
        if len(data) <= room:
            h2.send_data(stream.id, data)
            h2.send_headers(stream.id, _OK, end_stream=True)
            stream.connection.flush()
        else:
            await stream.send_data(data)
            await self.end()

    async def end(self, code: int = 0, message: str = "") -> None:
        """End the call with a status of gRPC."""
        headers: Headers = [] if self._is_started else list(_HEADERS)
        headers.append(("grpc-status", str(code)))
        if message:
            headers.append(("grpc-message", encode_grpc_message(message)))
        self._is_started = True
        await self._stream.send_headers(headers, end_stream=True)
        if code and self._stream.closable:
            self._stream.reset_nowait()  # the client has not ended its side


def _framed(message: Any) -> bytes:
    data = message.SerializeToString()
    return _PREFIX.pack(0, len(data)) + cast("bytes", data)


class _Calls(AbstractHandler):
    """The calls of one connection, each in a task."""

    def __init__(self, server: GrpcServer, connection: GrpcConnection) -> None:
        self._server = server
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.tasks: dict[Stream, asyncio.Task[None]] = {}

    def accept(self, stream: Stream, headers: Headers, release_stream: Callable[[], None]) -> None:
        task = self._loop.create_task(self._serve(stream, dict(headers)))
        self.tasks[stream] = task
        self._server.tasks.add(task)
        task.add_done_callback(lambda done: self._done(stream, done, release_stream))

    def _done(self, stream: Stream, task: asyncio.Task[None], release_stream: Callable[[], None]) -> None:
        self.tasks.pop(stream, None)
        self._server.tasks.discard(task)
        self._server.short_calls.discard(task)
        self._connection.active_at = self._loop.time()
        release_stream()
        if not task.cancelled() and task.exception() is not None:
            log.error("call failed peer=%s", self._connection.host, exc_info=task.exception())

    def cancel(self, stream: Stream) -> None:
        task = self.tasks.get(stream)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        for task in list(self.tasks.values()):
            task.cancel()

    async def _serve(self, stream: Stream, headers: Mapping[str, str]) -> None:
        try:
            method = self._method(headers)
            deadline = _deadline(headers)
        except _CallFailed as failure:
            await _refuse(stream, failure)
            return
        if method.shape is CallShape.UNARY:
            self._server.short_calls.add(self.tasks[stream])
        exchange = _Exchange(stream, method, self._server.settings.inbound_bytes_max)
        connection = self._connection
        call = Call(headers[":path"].rpartition("/")[2], headers, connection.host, connection.port, deadline)
        try:
            left_s = None if deadline is None else deadline - time.monotonic()
            async with asyncio.timeout(left_s):
                await _run(method, call, exchange)
        except (StreamClosedError, StreamTerminatedError, ProtocolError):
            pass  # the client is gone
        except TimeoutError:
            await _end(exchange, _CallFailed(_DEADLINE, "deadline exceeded"))
        except _CallFailed as failure:
            await _end(exchange, failure)
        except StreamFailed as failure:
            code = _INVALID_ARGUMENT if failure.is_argument else _INTERNAL
            await _end(exchange, _CallFailed(code, failure.message))
        except Exception as error:
            log.exception("call failed method=%s client=%s", call.method, call.client_id)
            await _end(exchange, _CallFailed(_INTERNAL, f"{type(error).__name__}: {error}"))

    def _method(self, headers: Mapping[str, str]) -> Method:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(
            "application/grpc"
        ):
            raise _CallFailed(_UNKNOWN, "not a gRPC call")
        service, _, name = headers.get(":path", "")[1:].partition("/")
        method = self._server.methods.get(name) if service == SERVICE else None
        if method is None:
            raise _CallFailed(_UNIMPLEMENTED, f"Method not found: {service}/{name}")
        return method


def _deadline(headers: Mapping[str, str]) -> float | None:
    text = headers.get("grpc-timeout")
    if text is None:
        return None
    try:
        return time.monotonic() + decode_timeout(text)
    except ValueError as error:
        raise _CallFailed(_INTERNAL, str(error)) from None


async def _run(method: Method, call: Call, exchange: _Exchange) -> None:
    if method.shape is CallShape.DUPLEX:
        await method.handler(call, exchange.received(), exchange.send)
        await exchange.end()
        return
    request = await exchange.receive()
    if request is None:
        raise _CallFailed(_INTERNAL, "the call has no message")
    if method.shape is CallShape.UNARY:
        await exchange.answer(await method.handler(call, request))
    else:
        await method.handler(call, request, exchange.send)
        await exchange.end()


async def _end(exchange: _Exchange, failure: _CallFailed) -> None:
    try:
        await exchange.end(failure.code, failure.message)
    except (StreamClosedError, StreamTerminatedError, ProtocolError):
        pass  # the client is gone


async def _refuse(stream: Stream, failure: _CallFailed) -> None:
    headers = [
        *_HEADERS,
        ("grpc-status", str(failure.code)),
        ("grpc-message", encode_grpc_message(failure.message)),
    ]
    try:
        await stream.send_headers(headers, end_stream=True)
        if stream.closable:
            stream.reset_nowait()
    except (StreamClosedError, ProtocolError):
        pass


# --- Connections ---


class GrpcConnection(H2Protocol):
    """A connection that speaks HTTP/2. It begins with the first bytes, when a TLS handshake is over."""

    def __init__(self, server: GrpcServer, host: str, port: int) -> None:
        self.calls = _Calls(server, self)
        super().__init__(self.calls, server.h2_limits, server.h2_config)
        self.host = host
        self.port = port
        self.active_at = asyncio.get_running_loop().time()
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_begun = False

    def secure(self, transport: asyncio.Transport) -> None:
        """Use this transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._is_begun:
            assert self._transport is not None
            self._is_begun = True
            self.connection_made(self._transport)
            h2 = self.connection._connection
            h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX})
        self.active_at = asyncio.get_running_loop().time()
        super().data_received(data)

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        if self._is_begun:
            super().pause_writing()

    def resume_writing(self) -> None:
        if self._is_begun:
            super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._server.remove(self)
        if self._is_begun:
            super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        return not self.calls.tasks

    def hang_up(self) -> None:
        """Tell the client to open another connection, and close."""
        if self._is_begun and not self.connection.is_closing():
            self.connection._connection.close_connection()
            self.connection.flush()
        if self._transport is not None:
            self._transport.close()


class Doorway(asyncio.Protocol):
    """A connection before its first bytes are understood."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._host, self._port = "", 0
        self._expects_header = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._host, self._port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]  # noqa: S104
        self._host = self._host.removeprefix("::ffff:")
        self._expects_header = self._server.settings.believes(self._host)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTES_S, self._transport.abort)
        if self._server.is_full:
            self._close("too many connections")

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._expects_header and may_begin_header(self._data):
            try:
                header = parse_header(self._data)
            except BadProxyHeader as error:
                self._close(str(error))
                return
            if header is None:
                return
            self._data = self._data[header.length :]
            if header.host:
                self._host, self._port = header.host, header.port
        self._expects_header = False
        if self._data:
            self._enter()

    def _enter(self) -> None:
        transport, server = self._transport, self._server
        assert transport is not None
        if self._data[0] == HANDSHAKE_RECORD and server.is_loading_tls:
            transport.pause_reading()
            server.waiting_for_tls.append(self._enter_later)
            return
        connection = GrpcConnection(server, self._host, self._port)
        data, self._data = self._data, b""
        if data[0] != HANDSHAKE_RECORD:
            if server.settings.tls.mode is TlsMode.ENFORCING:
                self._close("plain text, but TLS is required")
                return
            self._stop_timer()
            server.add(connection)
            connection.secure(transport)
            transport.set_protocol(connection)
            connection.data_received(data)
            return
        if server.tls is None:
            self._close(server.no_tls_reason)
            return
        self._stop_timer()
        server.add(connection)
        encrypted = EncryptedTransport(transport, connection, server.tls, self._refuse)
        connection.secure(encrypted)
        transport.set_protocol(encrypted)
        encrypted.data_received(data)

    def _enter_later(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._enter()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self, reason: str) -> None:
        self._refuse(reason)
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, reason: str) -> None:
        self._server.refused.add(self._host, reason, asyncio.get_running_loop().time())


class GrpcServer:
    """Listens on one port. Loop thread; listen once, close once."""

    def __init__(self, settings: ProxySettings, methods: Mapping[str, Method]) -> None:
        self.settings = settings
        self.methods = methods
        self.tls: ServerTls | None = None
        self.no_tls_reason = ""
        self.is_loading_tls = True
        self.waiting_for_tls: list[Callable[[], None]] = []
        self.refused = RefusedConnections()
        self.tasks: set[asyncio.Task[None]] = set()
        self.short_calls: set[asyncio.Task[None]] = set()
        """Those that do not wait for messages or commands."""
        self.connections: set[GrpcConnection] = set()
        self.h2_config = H2Configuration(
            client_side=False,
            header_encoding="ascii",
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_inbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2_limits = Configuration(
            http2_connection_window_size=_WINDOW_BYTES, http2_stream_window_size=_WINDOW_BYTES
        ).__for_server__()
        self._listener: asyncio.Server | None = None

    @property
    def is_full(self) -> bool:
        return len(self.connections) >= self.settings.connections_max

    async def listen(self, *, shares_port: bool = False) -> int:
        """Listen and return the bound port; other processes may share it. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Doorway(self),
            self.settings.host,
            self.settings.port,
            backlog=BACKLOG,
            reuse_port=shares_port or None,
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    def use_tls(self, tls: ServerTls | None, reason: str = "") -> None:
        """Accept TLS from now on; None: refuse it for this reason. Earlier connections have waited."""
        self.tls, self.no_tls_reason, self.is_loading_tls = tls, reason, False
        waiting, self.waiting_for_tls = self.waiting_for_tls, []
        for enter in waiting:
            enter()

    def stop_listening(self) -> None:
        if self._listener is not None:
            stop_listening(self._listener)

    async def close(self, *, drain_s: float) -> None:
        """Finish short calls for a while, then cancel the rest and close all connections."""
        self.stop_listening()
        if self.short_calls:
            await asyncio.wait(self.short_calls.copy(), timeout=drain_s)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.hang_up()
        if self._listener is not None:
            await self._listener.wait_closed()

    def add(self, connection: GrpcConnection) -> None:
        self.connections.add(connection)

    def remove(self, connection: GrpcConnection) -> None:
        self.connections.discard(connection)

    def sweep(self) -> None:
        """Close connections that had no call for a while."""
        oldest = asyncio.get_running_loop().time() - self.settings.idle_timeout_ms / 1000
        for connection in list(self.connections):
            if connection.is_idle and connection.active_at < oldest:
                connection.hang_up()
