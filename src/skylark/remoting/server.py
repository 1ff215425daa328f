"""RemotingServer: accepts connections and dispatches requests by a table; back-pressure, limits, draining.

All requests of one read are handled together: hot codes as batches, synchronously; the others one by one, by
a function or a coroutine. Immediate replies leave in one write.
"""

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from skylark.errors import RemoteProtocolError
from skylark.model.message import pack_host
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import PREFIX_BYTES, SERVER_LANGUAGE, RemotingCommand, TypedCommand
from skylark.protocol.connection import HEADER_START_BYTES, HOT_REQUESTS, Command, Limits, typed_command
from skylark.protocol.signature import SignedSend
from skylark.remoting.address import join_address
from skylark.remoting.latency import ONEWAY, SUCCESS, UNKNOWN_CODE, WRITE_FAILED, RequestLatencies
from skylark.remoting.link import Answer, Handler, Link, error_reply, stop_listening
from skylark.remoting.tls import FLIGHT_BYTES, FirstByte, ServerTls

log = logging.getLogger(__name__)

# --- Rate limit ---


class RequestRate(NamedTuple):
    """The rate limit of one client."""

    per_second: int
    burst: int


class TokenBucket:
    """Token bucket of one client. Starts full, refills over time up to the burst, one token per request.

    Times are monotonic seconds. The rate is an argument of each call because it may change at run time.
    """

    __slots__ = ("_filled_at", "_tokens")

    def __init__(self, rate: RequestRate, now: float) -> None:
        self._tokens = float(rate.burst)
        self._filled_at = now

    def take(self, wanted: int, rate: RequestRate, now: float) -> int:
        """Take one token per wanted request; return the number taken."""
        gained = max(now - self._filled_at, 0.0) * rate.per_second
        self._filled_at = now
        self._tokens = min(self._tokens + gained, float(rate.burst))
        taken = min(wanted, int(self._tokens))
        self._tokens -= taken
        return taken


# --- Busy polling ---

RUN_MIN, RUN_MAX = 8, 64
"""Consecutive quick replies required before the loop polls."""
CLOSELY_WINDOWS = 3
"""A reply is quick if it follows the previous one within this many windows, handling included."""


def _nothing() -> None:
    pass


class BusyPoll:
    """Keeps a loop awake between the requests of peers that send one at a time.

    Waking a loop that sleeps in the kernel takes about 40 us on a virtual machine, nearly as long as a reply.
    Polling ends when no request arrives within the window and resumes only after a new run of quick replies,
    twice as long if polling saved little. It wastes at most one window per `RUN_MIN` requests and nothing on
    an idle server. Other callbacks of the loop run meanwhile, and other threads get the interpreter at every
    iteration.
    """

    def __init__(self, window_us: int, *, now: Callable[[], float] = time.perf_counter) -> None:
        """`window_us` is the time to stay awake after a reply; 0 disables polling."""
        self._window_s = window_us / 1e6
        self._now = now
        self._answered_at = 0.0
        self._run = 0
        self._run_needed = RUN_MIN
        self._until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_polling = False
        self.on_end: Callable[[], None] = _nothing
        """Called when polling ends, before the loop sleeps; for deferred work."""

    def answered(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record a reply to a request that arrived alone. Loop thread."""
        now = self._now()
        is_close = now - self._answered_at < CLOSELY_WINDOWS * self._window_s
        self._answered_at = now
        self._run = self._run + 1 if is_close else 0
        if self._run < self._run_needed:
            return
        self._until = now + self._window_s
        if not self.is_polling:
            self.is_polling = True
            self._loop = loop
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        assert self._loop is not None
        if self._now() < self._until:
            self._loop.call_soon(self._turn)
            return
        self.is_polling = False
        was_useful = self._run >= self._run_needed + RUN_MIN
        self._run_needed = RUN_MIN if was_useful else min(2 * self._run_needed, RUN_MAX)
        self._run = 0
        self.on_end()


# --- Off-loop replies ---


class OffloopReply:
    """A frame that one other thread may send once, until the loop revokes it.

    The loop revokes it before it sends anything else on the connection and before the connection closes.
    """

    __slots__ = ("_descriptor", "_frame", "_lock", "_sent_bytes")

    def __init__(self, descriptor: int, frame: bytes) -> None:
        """`descriptor` is a non-blocking socket."""
        self._descriptor = descriptor
        self._frame = frame
        self._sent_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_sent(self) -> bool:
        """Whether at least a part was sent, so that no other reply may replace it.

        Waits for a send in progress: the peer may react before the sending thread has recorded it.
        """
        with self._lock:
            return self._sent_bytes > 0

    def send(self) -> None:
        """Send what the socket buffer takes; the loop sends the rest. Called by the other thread.

        Only the first call sends: the thread may call again before the loop has revoked the reply.
        """
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor < 0:
                return
            try:
                self._sent_bytes = os.write(descriptor, self._frame)
            except OSError:
                pass  # buffer full or peer gone: the loop finds out

    def take_back(self) -> bytes:
        """Revoke the frame. Return its unsent rest if a part was sent."""
        with self._lock:
            self._descriptor = -1
            return self._frame[self._sent_bytes :] if self._sent_bytes else b""


# --- Connections ---

REJECTIONS_LOG_INTERVAL_S = 10.0


class RefusedConnections:
    """Logs rejected connections at most once per interval, with a count."""

    def __init__(self) -> None:
        self._logged_at = -math.inf
        self._unlogged = 0

    def add(self, address: str, reason: str, now: float) -> None:
        """Count a connection rejected at this monotonic time."""
        self._unlogged += 1
        if now - self._logged_at >= REJECTIONS_LOG_INTERVAL_S:
            log.warning("connections refused count=%d last=%s reason=%s", self._unlogged, address, reason)
            self._logged_at, self._unlogged = now, 0


EARLY_BYTES = range(16 << 10, 32 << 10)
"""Replies of this total size are flushed before the next are encoded, so that the peer reads them meanwhile.
Larger replies overlap anyway, and flushing them early would only cost system calls."""
_LISTEN_BACKLOG = 1024
_SWEEPS_PER_IDLE_TIMEOUT = 60
_HOT_BY_CODE = {request.code.value: request for request in HOT_REQUESTS}


class GateVisitor(Protocol):
    """A connection as the gate of a server knows it."""

    def admits(self, commands: list[TypedCommand[SignedSend]]) -> list[bool]:
        """Return which sends are certainly allowed; `refusal` decides about all others."""

    def senders(self) -> dict[bytes, bytes]:
        """Return whose sends are allowed if they are signed: `SigningKey.states` by access key and topic."""

    def refusal(self, command: RemotingCommand) -> RemotingCommand | None:
        """Return the reply to a request that is refused, None for one that is admitted."""


class ServerGate(Protocol):
    """Decides about every request before it is dispatched."""

    on_block: Callable[[str], None]
    """Set by the server; called with an address whose connections must be closed."""

    def is_blocked(self, host: str) -> bool:
        """Return whether connections of this address are refused for now."""

    def visitor(self, host: str, address: str) -> GateVisitor:
        """Return the state of a new connection."""


BatchHandler = Callable[["Peer", list[TypedCommand[Any]]], None]
TakeFrames = Callable[["Peer", bytes | bytearray | memoryview, dict[bytes, bytes] | None], tuple[int, int]]
"""Handles the first frames of a buffer, as many as it can, before others are decoded; returns their end and
their number. With `GateVisitor.senders` only those that they have signed."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchRoute:
    """A handler of hot requests. It receives all that arrived together and replies by `peer.write`.

    It must not raise after its first reply. `commands_max` bounds the requests handled between two checks of
    the write buffer: keep it small where replies are large.
    """

    handle: BatchHandler
    commands_max: int = 1_024
    take_frames: Mapping[bytes, TakeFrames] = field(default_factory=dict)
    """By `header_start` of the first frame, of any requests; one continues where another one stops."""


Routes = Mapping[int, Handler | BatchRoute]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Resource limits of a server."""

    protocol: Limits = field(default_factory=Limits)
    connections_max: int = 16_384
    # Requests of one connection in coroutines. Above: SYSTEM_BUSY.
    requests_in_flight_max: int = 1_024
    # Unfinished frames and bodies of requests in coroutines, over all connections.
    bytes_in_flight_max: int = 512 << 20
    # Above the first, a peer's requests are paused; above the second, the peer is disconnected.
    write_high_water_bytes: int = 1 << 20
    write_bytes_max: int = 64 << 20
    idle_timeout_s: float = 120.0
    # Busy-poll window for clients that send one request at a time; 0 disables it.
    stay_awake_us: int = 0


class Peer(Link):
    """An incoming connection. `packed_host` is the client's address in record format."""

    language = SERVER_LANGUAGE

    def __init__(self, server: "RemotingServer", routes: Routes) -> None:
        self.limits = server.limits
        super().__init__(
            self.limits.protocol,
            tasks=server.tasks,
            requests_in_flight_max=self.limits.requests_in_flight_max,
            write_high_water_bytes=self.limits.write_high_water_bytes,
            # A gate needs all ext fields of a request.
            typed=server.gate is None and any(isinstance(route, BatchRoute) for route in routes.values()),
        )
        self._receive = self._codec.receive
        self._taken = 0  # frames of the current read that were handled undecoded
        taking = [route.take_frames for route in routes.values() if isinstance(route, BatchRoute)]
        self._takers: Mapping[bytes, TakeFrames] = next(filter(None, taking), {})
        self._visitor: GateVisitor | None = None
        self._early_bytes = EARLY_BYTES
        self.host = ""
        self.packed_host = b""
        self.active_at = self._loop.time()
        """Time of the last request or drained reply; while requests are handled, their arrival time."""
        self._server = server
        self._routes = routes
        self._buffered_bytes = 0
        self._waiting: list[Command] = []  # received while the write buffer was full
        self._bucket: TokenBucket | None = None
        self._descriptor = -1
        self._prepared: OffloopReply | None = None
        self._is_lone = False  # a single request arrived and nothing was sent since
        self._began: dict[int, float] = {}  # arrival times of requests in coroutines, by opaque

    # --- For the owner ---

    def prepare(self, frame: bytes) -> OffloopReply | None:
        """Create a reply that another thread may send; None while other output is pending.

        The caller must eventually call `take_back`, and send the reply itself if it was not sent.
        """
        transport = self._transport
        if (
            self._out
            or self._prepared is not None
            or self._descriptor < 0
            or transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
        ):
            return None
        self._prepared = OffloopReply(self._descriptor, frame)
        return self._prepared

    def take_back(self, prepared: OffloopReply) -> None:
        """Revoke an off-loop reply. The rest of a partly sent frame goes out first."""
        if self._prepared is not prepared:
            return
        self._prepared = None
        rest = prepared.take_back()
        if rest:
            self._out.insert(0, rest)
            self.write_parts((), len(rest))

    # --- For the loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        socket = transport.get_extra_info("socket")
        if socket is not None:
            self._descriptor = socket.fileno()
        self.host, port = _peer_name(transport)
        self.address = join_address(self.host, port)
        self.packed_host = pack_host(self.host, port)
        if self._server.gate is not None:
            self._visitor = visitor = self._server.gate.visitor(self.host, self.address)
            self._codec.admits = visitor.admits
            self._receive = partial(self._admitted, visitor)
        if self._takers:
            self._codec.take_frames = self._take_frames
        self._server.add(self)

    def secure(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor = -1  # off-loop replies would be plain text
        self._at_once_bytes = min(FLIGHT_BYTES, self._at_once_bytes)

    def data_received(self, data: bytes) -> None:
        self._taken = 0
        commands = self._receive(data)
        if not commands and self._taken:
            self._is_lone = self._taken == 1
            self._flush()
        elif commands:
            # Complete frames only: a trickle of bytes does not keep a connection open.
            self.active_at = self._loop.time()
            self._is_lone = len(commands) + self._taken == 1
            if self._server.rate is not None:
                commands = self._within_rate(commands, self._server.rate)
            self._handle(commands)
        if self._codec.failure is not None:
            log.info("connection closed peer=%s reason=%s", self.address, self._codec.failure)
            self.close()
        if self._codec.buffered_bytes != self._buffered_bytes:
            self._count_buffered(self._codec.buffered_bytes)
            if self._server.is_full:
                log.warning("connection closed peer=%s reason=too many bytes in flight", self.address)
                self.abort()
                # Release its bytes now, so that other peers are not rejected meanwhile.
                self._count_buffered(0)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.active_at = self._loop.time()
        if self._server.is_closing or self.is_closed:
            return
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._handle(waiting)
        if self.is_writable and self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # The descriptor is closed after this and may be reused by another connection.
        if self._prepared is not None:
            self.take_back(self._prepared)
        self._descriptor = -1
        super().connection_lost(exc)
        self._waiting.clear()
        self._count_buffered(0)
        self._server.remove(self)

    def pause_reading(self) -> None:
        """Stop reading requests."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    # --- Handling ---

    def _take_frames(self, buffer: bytes | bytearray) -> int:
        """Handle the first frames that need no decoding; return their end. Replies leave after the read."""
        if (
            self._taker(buffer, 0) is None
            or self._server.rate is not None
            or self._waiting
            or not self.is_writable
        ):
            return 0
        senders = None if self._visitor is None else self._visitor.senders()
        if senders is not None and not senders:
            return 0
        self.active_at = self._loop.time()
        self._gathering = True
        end, stopped = 0, None
        try:
            while (take := self._taker(buffer, end)) is not None and take is not stopped:
                rest = memoryview(buffer)[end:] if end else buffer
                taken_bytes, frames = take(self, rest, senders)
                if not frames:
                    break
                end += taken_bytes
                self._taken += frames
                stopped = take  # it would take no more at once
        finally:
            self._gathering = False
        return end

    def _taker(self, buffer: bytes | bytearray, start: int) -> TakeFrames | None:
        """Return what handles the frame at a position, if it need not be decoded here."""
        header = start + PREFIX_BYTES
        return self._takers.get(bytes(buffer[header : header + HEADER_START_BYTES]))

    def _admitted(self, visitor: GateVisitor, data: bytes) -> list[Command]:
        """Decide about all requests of one read; answer the refused ones and return the others."""
        commands = self._codec.receive(data)
        if not self._codec.has_undecided:
            return commands
        admitted: list[Command] = []
        for command in commands:
            if isinstance(command, TypedCommand) or command.is_response:
                admitted.append(command)
                continue
            refusal = visitor.refusal(command)
            if refusal is None:
                admitted.append(typed_command(command))
            else:
                self._answer(command, refusal)
        return admitted

    def _within_rate(self, commands: list[Command], rate: RequestRate) -> list[Command]:
        """Reject requests above the rate limit; return the rest and all replies."""
        if self._bucket is None:
            self._bucket = TokenBucket(rate, self.active_at)
        requests = sum(not command.is_response for command in commands)
        left = self._bucket.take(requests, rate, self.active_at)
        if left == requests:
            return commands
        within = []
        for command in commands:
            if not command.is_response:
                left -= 1
            if command.is_response or left >= 0:
                within.append(command)
                continue
            remark = f"[OVERLOAD]too many requests, {rate.per_second} per second are allowed"
            self._answer(command, command.reply(ResponseCode.SYSTEM_BUSY, remark))
        return within

    def _handle(self, commands: list[Command]) -> None:
        """Handle the commands of one read; queue them while the write buffer is full."""
        self._gathering = True
        batches: dict[BatchRoute, list[TypedCommand[Any]]] = {}
        for command in commands:
            route = self._routes.get(command.code)
            if isinstance(command, TypedCommand):
                if isinstance(route, BatchRoute):
                    batches.setdefault(route, []).append(command)
                else:
                    self._serve(None, command)
            elif command.is_response:
                self._deliver(command)
            else:
                # Keep the order of requests: an offset query must see the commit sent before it.
                self._serve_batches(batches)
                self._serve_single(route, command)
        self._serve_batches(batches)
        self._gathering = False
        self._flush()

    def _serve_single(self, route: Handler | BatchRoute | None, command: RemotingCommand) -> None:
        if not self.is_writable:
            self._waiting.append(command)
        elif isinstance(route, BatchRoute):
            self._refuse(command)
        else:
            self._serve(route, command)

    def _serve_batches(self, batches: dict[BatchRoute, list[TypedCommand[Any]]]) -> None:
        for route, batch in batches.items():
            self._serve_batch(route, batch)
        batches.clear()

    def _serve_batch(self, route: BatchRoute, batch: list[TypedCommand[Any]]) -> None:
        for start in range(0, len(batch), route.commands_max):
            if not self.is_writable:
                self._waiting += batch[start:]
                return
            part = batch[start : start + route.commands_max]
            try:
                route.handle(self, part)
            except Exception as error:  # noqa: BLE001 (logged by error_reply)
                for command in part:
                    self._answer(command, error_reply(command, error))

    def _refuse(self, command: RemotingCommand) -> None:
        """Report the invalid field of a hot request that could not be decoded into its type."""
        try:
            _HOT_BY_CODE[command.code].from_fields(command.fields)
        except RemoteProtocolError as error:
            self._answer(command, error_reply(command, error))

    def _is_full(self) -> bool:
        return super()._is_full() or self._server.is_full

    def _count_request(self, change: int, command: RemotingCommand) -> None:
        super()._count_request(change, command)
        self._server.bytes_in_flight += change * len(command.body)
        self._server.at_work[command.code] += change
        if change > 0:
            self._began[command.opaque] = self.active_at
        else:
            self._began.pop(command.opaque, None)

    def _answer(self, command: Command, answer: Answer) -> None:
        super()._answer(command, answer)
        latencies = self._server.latencies
        if latencies is None or answer is None:
            return
        result = ONEWAY if command.is_oneway else WRITE_FAILED if self.is_closed else SUCCESS
        code = command.code if command.code in self._routes else UNKNOWN_CODE
        since = self._began.get(command.opaque, self.active_at)
        latencies.count(code, answer.code, since, result=result)

    def _schedule_flush(self) -> None:
        if not self._server.gather(self):
            super()._schedule_flush()

    def flush(self) -> None:
        """Send buffered output."""
        self._flush()

    def _flush(self) -> None:
        if self._prepared is not None and self._out:
            self.take_back(self._prepared)
        answers_lone = self._is_lone and bool(self._out)
        super()._flush()
        if self._transport is None:
            return
        if answers_lone:
            self._is_lone = False
            self._server.busy_poll.answered(self._loop)
        if self.is_writable:
            self.active_at = self._loop.time()
        elif self._transport.get_write_buffer_size() > self.limits.write_bytes_max:
            log.warning("connection closed peer=%s reason=write buffer above limit", self.address)
            self.abort()

    def _count_buffered(self, buffered_bytes: int) -> None:
        self._server.bytes_in_flight += buffered_bytes - self._buffered_bytes
        self._buffered_bytes = buffered_bytes


def _peer_name(transport: asyncio.BaseTransport) -> tuple[str, int]:
    host, port = (transport.get_extra_info("peername") or ("0.0.0.0", 0))[:2]  # noqa: S104 (peer is gone)
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address), port


class RemotingServer:
    """Listens on one or more ports, each with its own routes; the limits are shared.

    `on_disconnect` is called after a connection closed. `latencies` records all replies except those of batch
    handlers, which record their own. Without `tls` all connections are plain text, without `gate` all
    requests are admitted.
    """

    def __init__(
        self,
        limits: ServerLimits | None = None,
        *,
        on_disconnect: Callable[[Peer], None] | None = None,
        latencies: RequestLatencies | None = None,
        tls: ServerTls | None = None,
        gate: ServerGate | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self.gate = gate
        if gate is not None:
            gate.on_block = self._close_host
        self._tls = tls
        self.latencies = latencies
        self.at_work: Counter[int] = Counter()
        """Requests in coroutines, by code."""
        self.peers: set[Peer] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.bytes_in_flight = 0
        self.is_closing = False
        self.rate: RequestRate | None = None
        """Rate limit per connection, or None. May change at any time."""
        self.busy_poll = BusyPoll(self.limits.stay_awake_us)
        self._on_disconnect = on_disconnect
        self._gathered: list[Peer] | None = None
        self._listeners: list[asyncio.Server] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._no_peers = asyncio.Event()
        self._no_peers.set()
        self._refused = RefusedConnections()

    @property
    def is_full(self) -> bool:
        return self.bytes_in_flight > self.limits.bytes_in_flight_max

    async def listen(self, host: str, port: int, routes: Routes) -> int:
        """Listen with these routes and return the bound port; port 0 picks a free one. Raises OSError."""
        for code, route in routes.items():
            if isinstance(route, BatchRoute) != (code in _HOT_BY_CODE):
                raise ValueError(f"code {code}: hot codes need a batch route and other codes a handler")
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(lambda: self._accept(routes), host, port, backlog=_LISTEN_BACKLOG)
        self._listeners.append(listener)
        if self._sweep_timer is None:
            self._sweep()
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    async def close(self, *, drain_timeout_s: float = 5.0) -> None:
        """Stop reading, finish requests in flight, flush replies, close.

        Requests that take longer than half of the timeout are cancelled; replies not sent after all of it are
        lost. Batch handlers that reply later must be done by then: call `stop_reading` first.
        """
        self.stop_reading()
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=drain_timeout_s / 2)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for peer in list(self.peers):
            peer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout_s / 2):
                await self._no_peers.wait()
        for peer in list(self.peers):
            peer.abort()
        await self._no_peers.wait()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for listener in self._listeners:
            await listener.wait_closed()

    def stop_reading(self) -> None:
        """Stop accepting connections and reading requests; requests in flight are still answered."""
        self.is_closing = True
        for listener in self._listeners:
            stop_listening(listener)
        for peer in self.peers:
            peer.pause_reading()

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Flush output written inside the context at its end, with one write per peer."""
        self._gathered = gathered = list[Peer]()
        try:
            yield
        finally:
            self._gathered = None
            for peer in gathered:
                peer.flush()

    def _accept(self, routes: Routes) -> asyncio.Protocol:
        peer = Peer(self, routes)
        return peer if self._tls is None else FirstByte(peer, self._tls, partial(self.refuse, peer))

    # --- For peers ---

    def refuse(self, peer: Peer, reason: str) -> None:
        """Log that a connection is closed, at a limited rate."""
        self._refused.add(peer.address, reason, asyncio.get_running_loop().time())

    def gather(self, peer: Peer) -> bool:
        """Register a peer for the flush at the end of `gathering`; False outside of it."""
        if self._gathered is None:
            return False
        self._gathered.append(peer)
        return True

    def add(self, peer: Peer) -> None:
        """Register a new connection, or close it at the connection limit."""
        if len(self.peers) >= self.limits.connections_max or self.is_closing:
            self.refuse(peer, f"{len(self.peers)} are open")
            peer.abort()
            return
        if self.gate is not None and self.gate.is_blocked(peer.host):
            self.refuse(peer, "too many failed signatures")
            peer.abort()
            return
        self.peers.add(peer)
        self._no_peers.clear()

    def remove(self, peer: Peer) -> None:
        if peer not in self.peers:
            return
        self.peers.discard(peer)
        if not self.peers:
            self._no_peers.set()
        if self._on_disconnect is not None:
            self._on_disconnect(peer)

    def _close_host(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        for peer in list(self.peers):
            if peer.host == host:
                loop.call_soon(peer.close)  # after the reply to the last request

    def _sweep(self) -> None:
        """Close idle connections, including half-closed ones and those with a partial frame."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self.limits.idle_timeout_s
        for peer in list(self.peers):
            if peer.active_at < oldest:
                log.info("connection closed peer=%s reason=idle", peer.address)
                peer.abort()
        self._sweep_timer = loop.call_later(
            self.limits.idle_timeout_s / _SWEEPS_PER_IDLE_TIMEOUT, self._sweep
        )
