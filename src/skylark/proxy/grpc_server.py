"""The port: plain text and TLS, and gRPC on our HTTP/2. No other module knows how calls travel.

`Doorway` is the protocol of a new connection: it reads the HAProxy header of a peer that is believed and
decides by the next byte whether the connection is TLS. `GrpcConnection` speaks HTTP/2 from then on.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, cast
from urllib.parse import quote

from skylark.proxy.call import Call, CallShape, ClientGone, Method, StreamFailed
from skylark.proxy.header_blocks import encode_headers
from skylark.proxy.http2 import ErrorCode, Http2Connection, Http2Failed, Http2Stream
from skylark.proxy.proxy_header import BadProxyHeader, may_begin_header, parse_header
from skylark.proxy.schema import SERVICE
from skylark.remoting.link import stop_listening
from skylark.remoting.server import RefusedConnections
from skylark.remoting.tls import HANDSHAKE_RECORD, EncryptedTransport, ServerTls
from skylark.settings.proxy import ProxySettings
from skylark.settings.tls import TlsMode

log = logging.getLogger(__name__)

BACKLOG = 1024
FIRST_BYTES_S = 10.0
"""Time for the first bytes of a connection."""
_PREFIX = struct.Struct(">BI")  # compressed, bytes of the message
_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
_HEAD = encode_headers(_HEADERS)
_OK = encode_headers([("grpc-status", "0")])
_UNKNOWN, _INVALID_ARGUMENT, _DEADLINE, _EXHAUSTED, _UNIMPLEMENTED, _INTERNAL = 2, 3, 4, 8, 12, 13
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What the text of a status holds as it is."""
_TIMEOUT_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}
_TIMEOUT_DIGITS = 8
_MESSAGE_MAX = 1000
"""Characters of the text of a status; its block must fit into a frame."""


class _CallFailed(Exception):
    """Ends a call with a status of gRPC."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# --- Calls ---


class _Exchange:
    """One call: its messages and its task."""

    def __init__(self, connection: GrpcConnection, stream: Http2Stream, method: Method, call: Call) -> None:
        self.connection = connection
        self.stream = stream
        self.method = method
        self.call = call
        self.task: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if call.deadline is not None:  # `asyncio.timeout` takes five times as long
            left_s = max(0.0, call.deadline - time.monotonic())
            self._timer = connection.loop.call_later(left_s, self._expire)
        self._is_late = False
        self._is_started = False
        self._lock: asyncio.Lock | None = None
        self._arrival: asyncio.Future[None] | None = None

    @property
    def is_short(self) -> bool:
        """Whether it waits neither for messages nor for commands."""
        return self.method.shape is CallShape.UNARY

    def received(self) -> None:
        """Begin the call with its only message, or wake who waits for the next one."""
        if self.task is None:
            try:
                message = self._next()
            except _CallFailed as failure:
                self._refuse(failure)
                return
            if message is not None:
                self.start(message)
            elif self.stream.is_ended:
                self._refuse(_CallFailed(_INTERNAL, "the call has no message"))
        elif self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _refuse(self, failure: _CallFailed) -> None:
        self.end(failure.code, failure.message)
        self.connection.forget(self)

    def start(self, message: Any) -> None:
        """Serve the call, in a task unless its handler returns a future."""
        if self.method.shape is CallShape.UNARY:
            reply = self.method.handler(self.call, message)
            if isinstance(reply, asyncio.Future):
                self.task = reply
                reply.add_done_callback(self._replied)
            else:
                self._spawn(self._reply(reply))
        else:
            self._spawn(self._stream(message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.task = self.connection.loop.create_task(self._serve(work))
        self.task.add_done_callback(self._done)

    def _replied(self, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            if self._is_late:
                self.end(_DEADLINE, "deadline exceeded")
        elif (error := reply.exception()) is not None:
            log.error("call failed method=%s peer=%s", self.call.method, self.connection.host, exc_info=error)
            self.end(_INTERNAL, f"{type(error).__name__}: {error}")
        elif not self.stream.is_closed:
            data = _framed(reply.result())
            if not self._answered(data):
                self._spawn(self._answer(data))
                return
        self.connection.forget(self)

    def _expire(self) -> None:
        self._is_late = True
        if self.task is not None:
            self.task.cancel()
        else:
            self._refuse(_CallFailed(_DEADLINE, "deadline exceeded"))

    def over(self) -> None:
        """Nothing is left to do."""
        if self._timer is not None:
            self._timer.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self.connection.forget(self)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("call failed peer=%s", self.connection.host, exc_info=error)

    async def _serve(self, work: Coroutine[Any, Any, None]) -> None:
        call = self.call
        try:
            await work
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not self._is_late:
                raise
            self.end(_DEADLINE, "deadline exceeded")
        except _CallFailed as failure:
            self.end(failure.code, failure.message)
        except StreamFailed as failure:
            self.end(_INVALID_ARGUMENT if failure.is_argument else _INTERNAL, failure.message)
        except Exception as error:
            log.exception("call failed method=%s client=%s", call.method, call.client_id)
            self.end(_INTERNAL, f"{type(error).__name__}: {error}")

    async def _reply(self, reply: Awaitable[Any]) -> None:
        await self._answer(_framed(await reply))

    async def _stream(self, message: Any) -> None:
        is_duplex = self.method.shape is CallShape.DUPLEX
        await self.method.handler(self.call, self._messages() if is_duplex else message, self.send)
        self.end()

    # --- Messages of the client ---

    def _next(self) -> Any:
        """Return the next message, None if it is not complete. Raises _CallFailed."""
        stream, http2 = self.stream, self.connection.http2
        if len(stream.data) < _PREFIX.size:
            return None
        is_compressed, length = _PREFIX.unpack_from(stream.data)
        if is_compressed:
            raise _CallFailed(_UNIMPLEMENTED, "compressed messages are not supported; use identity")
        bytes_max = self.connection.server.settings.inbound_bytes_max
        if length > bytes_max:
            raise _CallFailed(_EXHAUSTED, f"message of {length} bytes is larger than {bytes_max}")
        end = _PREFIX.size + length
        if len(stream.data) < end:
            http2.grant(stream)
            return None
        data = http2.take(stream, end)[_PREFIX.size :]
        try:
            return self.method.request.FromString(data)
        except Exception as error:  # noqa: BLE001 (of protobuf; the class depends on its version)
            raise _CallFailed(_INTERNAL, f"message cannot be decoded: {error}") from None

    async def _messages(self) -> AsyncIterator[Any]:
        while True:
            message = self._next()
            self.connection.flush_soon()
            if message is not None:
                yield message
            elif self.stream.is_ended or self.stream.is_closed:
                return
            else:
                self._arrival = self.connection.loop.create_future()
                await self._arrival

    # --- Messages of the server ---

    async def send(self, message: Any) -> None:
        """Send a message; wait while the client takes nothing. Raises ClientGone."""
        data = _framed(message)
        if self._lock is None:
            if self._has_room(len(data)):
                self._begin()
                self.connection.http2.send_data(self.stream, data)
                self.connection.flush_soon()
                return
            self._lock = asyncio.Lock()
        async with self._lock:
            self._begin()
            await self._send_parts(data)

    def _answered(self, data: bytes) -> bool:
        """Send the only message of an open call at once, if there is room."""
        if not self.connection.is_writable or not self.connection.http2.send_all(
            self.stream, _HEAD, data, _OK
        ):
            return False
        self.connection.flush_soon()
        return True

    async def _answer(self, data: bytes) -> None:
        """Send the only message and the end of a call. Raises ClientGone."""
        if self.stream.is_closed:
            raise ClientGone
        if not self._answered(data):
            self._begin()
            await self._send_parts(data)
            self.end()

    def _has_room(self, count: int) -> bool:
        if self.stream.is_closed:
            raise ClientGone
        return self.connection.is_writable and self.connection.http2.room(self.stream) >= count

    def _begin(self) -> None:
        if self.stream.is_closed:
            raise ClientGone
        if not self._is_started:
            self._is_started = True
            self.connection.http2.send_headers(self.stream, _HEAD)

    async def _send_parts(self, data: bytes) -> None:
        """Send as much as there is room for, each time there is."""
        stream, connection = self.stream, self.connection
        while data:
            room = connection.http2.room(stream) if connection.is_writable else 0
            if room:
                connection.http2.send_data(stream, data[:room])
                data = data[room:]
            connection.flush_soon()
            if data:
                await connection.change()
                if stream.is_closed:
                    raise ClientGone

    def end(self, code: int = 0, message: str = "") -> None:
        """End the call with a status of gRPC."""
        if self.stream.is_closed:
            return
        if self._is_started and not code:
            self.connection.http2.send_headers(self.stream, _OK, ends=True)
            self.connection.flush_soon()
        else:
            self.connection.fail(self.stream, _status(code, message, is_started=self._is_started))


def _framed(message: Any) -> bytes:
    """Return a message, or several that are encoded already, as they travel."""
    if isinstance(message, list):
        return b"".join([part for data in message for part in (_PREFIX.pack(0, len(data)), data)])
    data: bytes = message.SerializeToString()
    return _PREFIX.pack(0, len(data)) + data


def _status(code: int, message: str, *, is_started: bool) -> bytes:
    """Return the header block that ends a call."""
    headers = [] if is_started else list(_HEADERS)
    headers.append(("grpc-status", str(code)))
    if message:
        headers.append(("grpc-message", quote(message[:_MESSAGE_MAX], safe=_PRINTABLE)))
    return encode_headers(headers)


def _deadline(text: str | None) -> float | None:
    """Return the time of `grpc-timeout`, in monotonic seconds. Raises _CallFailed."""
    if text is None:
        return None
    unit = _TIMEOUT_UNITS.get(text[-1:])
    digits = text[:-1]
    if unit is None or not digits.isdecimal() or len(digits) > _TIMEOUT_DIGITS:
        raise _CallFailed(_INTERNAL, f"invalid grpc-timeout {text!r}")
    return time.monotonic() + int(digits) * unit


# --- Connections ---


class GrpcConnection(asyncio.Protocol):
    """A connection that speaks HTTP/2. It begins with the first bytes, when a TLS handshake is over."""

    def __init__(self, server: GrpcServer, host: str, port: int) -> None:
        self.server = server
        self.host = host
        self.port = port
        self.loop = asyncio.get_running_loop()
        self.active_at = self.loop.time()
        self.http2 = Http2Connection(self, server.settings.inbound_bytes_max)
        self.exchanges: dict[int, _Exchange] = {}
        """Calls by the number of their stream."""
        self.is_writable = True
        """The transport takes more."""
        self._changed: asyncio.Future[None] | None = None
        self._is_flushing = False
        self._transport: asyncio.Transport | None = None

    def secure(self, transport: asyncio.Transport) -> None:
        """Use this transport."""
        self._transport = transport

    # --- Protocol of asyncio ---

    def data_received(self, data: bytes) -> None:
        self.active_at = now = self.loop.time()
        try:
            self.http2.receive(data, now)
        except Http2Failed as failure:
            self.server.refused.add(self.host, str(failure), now)
            self._close()
        else:
            self.flush()

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        self.is_writable = False
        if self._transport is not None:
            self._transport.pause_reading()  # answers to its frames would wait here without end

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self.widened()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.server.connections.discard(self)
        for exchange in list(self.exchanges.values()):
            exchange.stream.is_closed = True
            self.cancelled(exchange.stream)
        self.widened()

    # --- What the client does ---

    def opened(self, stream: Http2Stream) -> None:
        headers = stream.headers
        try:
            method = self._method(headers)
            deadline = _deadline(headers.get("grpc-timeout"))
        except _CallFailed as failure:
            self.fail(stream, _status(failure.code, failure.message, is_started=False))
            return
        call = Call(headers[":path"].rpartition("/")[2], headers, self.host, self.port, deadline)
        exchange = self.exchanges[stream.number] = _Exchange(self, stream, method, call)
        if method.shape is CallShape.DUPLEX:
            exchange.start(None)
        elif stream.is_ended:
            exchange.received()

    def _method(self, headers: Mapping[str, str]) -> Method:
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith(
            "application/grpc"
        ):
            raise _CallFailed(_UNKNOWN, "not a gRPC call")
        service, _, name = headers.get(":path", "")[1:].partition("/")
        method = self.server.methods.get(name) if service == SERVICE else None
        if method is None:
            raise _CallFailed(_UNIMPLEMENTED, f"Method not found: {service}/{name}")
        return method

    def received(self, stream: Http2Stream) -> None:
        exchange = self.exchanges.get(stream.number)
        if exchange is not None:
            exchange.received()

    def cancelled(self, stream: Http2Stream) -> None:
        exchange = self.exchanges.get(stream.number)
        if exchange is not None:
            if exchange.task is None:
                self.forget(exchange)
            else:
                exchange.task.cancel()

    def widened(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)

    # --- What calls do ---

    def fail(self, stream: Http2Stream, block: bytes) -> None:
        """Send the last headers of a call that may be over before the client has sent everything."""
        self.http2.send_headers(stream, block, ends=True)
        if not stream.is_ended:
            self.http2.reset(stream, ErrorCode.NO_ERROR)
        self.flush_soon()

    def forget(self, exchange: _Exchange) -> None:
        exchange.over()
        self.exchanges.pop(exchange.stream.number, None)
        self.active_at = self.loop.time()

    async def change(self) -> None:
        """Wait until there may be room again, or the connection is lost."""
        if self._changed is None:
            self._changed = self.loop.create_future()
        await asyncio.shield(self._changed)

    def flush_soon(self) -> None:
        """Send when all that is ready has run, with one write."""
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._is_flushing = False
        output = self.http2.output
        if output and self._transport is not None:
            data = output[0] if len(output) == 1 else b"".join(output)
            output.clear()
            if not self._transport.is_closing():
                self._transport.write(data)

    # --- Life ---

    @property
    def is_idle(self) -> bool:
        return not self.exchanges

    def hang_up(self) -> None:
        """Tell the client to open another connection, and close."""
        self.http2.goodbye(ErrorCode.NO_ERROR)
        self._close()

    def _close(self) -> None:
        self.flush()
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
            server.connections.add(connection)
            connection.secure(transport)
            transport.set_protocol(connection)
            connection.data_received(data)
            return
        if server.tls is None:
            self._close(server.no_tls_reason)
            return
        self._stop_timer()
        server.connections.add(connection)
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
        self.connections: set[GrpcConnection] = set()
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
        if short := [each.task for each in self._exchanges() if each.task is not None and each.is_short]:
            await asyncio.wait(short, timeout=drain_s)
        tasks = [each.task for each in self._exchanges() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.hang_up()
        if self._listener is not None:
            await self._listener.wait_closed()

    def _exchanges(self) -> list[_Exchange]:
        return [exchange for each in self.connections for exchange in each.exchanges.values()]

    def sweep(self) -> None:
        """Close connections that had no call for a while."""
        oldest = asyncio.get_running_loop().time() - self.settings.idle_timeout_ms / 1000
        for connection in list(self.connections):
            if connection.is_idle and connection.active_at < oldest:
                connection.hang_up()
