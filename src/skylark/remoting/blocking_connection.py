"""Blocking client connection on a plain socket, for Spark workers and tools. No threads, no loop."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar

from skylark.errors import ConnectFailed, ConnectionLost, RequestTimeout
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RESPONSE_FLAG, Buffer, RemotingCommand, encode
from skylark.protocol.connection import Command, Connection, Limits
from skylark.protocol.request import Request
from skylark.protocol.signature import Signer
from skylark.remoting.address import reason_of, split_address

if TYPE_CHECKING:
    from skylark.remoting.tls_client import ClientTls, TlsSocket

AnySocket: TypeAlias = "socket.socket | TlsSocket"
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CALL_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S_MIN = 0.001
CLIENT_LIMITS = Limits(header_bytes_max=16 << 20)
BLOCK_BYTES = 256 << 10
READ_BYTES_MIN = 32 << 10
"""A block with less free space is replaced by a new one."""
BLOCKS_KEPT = 3
"""Blocks to reuse: zeroing fresh memory in the kernel costs more than reading into it."""


class FramedRequest(Protocol[T_co]):
    """A request, or any object that encodes a frame and parses the reply."""

    @property
    def code(self) -> RequestCode: ...

    def frame(self, opaque: int) -> list[Buffer]: ...

    def result(self, reply: RemotingCommand) -> T_co: ...


@dataclass(eq=False, slots=True)
class PendingReply(Generic[T]):
    """A request in flight and its reply once received; pass it to `answer`."""

    request: FramedRequest[T]
    sent_on: Connection[Any]
    deadline: float
    timeout_s: float
    reply: RemotingCommand | None = None


class BlockingConnection:
    """A connection opened on demand and reopened after it was lost or the process forked.

    For one thread at a time. Requests sent by servers are answered with "not supported". Received bytes are
    held in blocks of `block_bytes`, which may change at any time; reply bodies are views into them.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: Limits = CLIENT_LIMITS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self.address = address
        self.block_bytes = BLOCK_BYTES
        self._limits = limits
        self._connect_timeout_s = connect_timeout_s
        self._frame = _frame if signer is None else partial(_signed_frame, signer)
        self._encode = encode if signer is None else signer.encode
        self._socket: AnySocket | None = None
        self._codec: Connection[PendingReply[Any]] = Connection(limits)
        self._pid = 0
        self._blocks: list[bytearray] = []
        self._block = memoryview(b"")
        self._taken = 0  # end of the complete frames in the block
        self._filled = 0

    def call(self, request: Request[T], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Send a request and return the parsed reply; the timeout includes connecting.

        Raises BrokerError, ConnectFailed, RequestTimeout, ConnectionLost, ProtocolError.
        """
        return self.answer(self.ask(request, timeout_s=timeout_s))

    def ask(self, request: Request[T], *, timeout_s: float = CALL_TIMEOUT_S) -> PendingReply[T]:
        """Send a request and return before its reply, so that several can be in flight.

        Raises ConnectFailed, RequestTimeout, ConnectionLost, LocalProtocolError if too many are pending.
        """
        return self.ask_many([request], timeout_s=timeout_s)[0]

    def ask_many(
        self, requests: Sequence[FramedRequest[T]], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[PendingReply[T]]:
        """Send several requests in one write, which wakes the server once. Raises as `ask`."""
        deadline = time.monotonic() + timeout_s
        connected = self._connected(deadline)
        frame, codec, asked, parts = self._frame, self._codec, list[PendingReply[T]](), list[Buffer]()
        for request in requests:
            asked.append(PendingReply(request, codec, deadline, timeout_s))
            parts += frame(request, codec.reserve_opaque(asked[-1]))
        try:
            self._send(connected, parts, deadline)
        except TimeoutError:
            raise RequestTimeout(self.address, requests[0].code.name, round(timeout_s * 1000)) from None
        return asked

    def answer(self, asked: PendingReply[T]) -> T:
        """Wait for a reply and return it parsed, in any order. A late reply is dropped.

        Raises BrokerError, RequestTimeout, ConnectionLost (also if the connection was reopened since).
        """
        return asked.request.result(self.reply(asked))

    def reply(self, asked: PendingReply[Any]) -> RemotingCommand:
        """Return the raw reply. Raises as `answer`, except BrokerError."""
        try:
            while asked.reply is None:
                if self._socket is None or asked.sent_on is not self._codec:
                    raise ConnectionLost(self.address, "reopened before the reply arrived")
                self._take_replies(self._socket, asked.deadline)
        except TimeoutError:
            name = asked.request.code.name
            raise RequestTimeout(self.address, name, round(asked.timeout_s * 1000)) from None
        return asked.reply

    def notify(self, request: Request[Any], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Send a oneway request. Raises ConnectFailed, RequestTimeout, ConnectionLost."""
        deadline = time.monotonic() + timeout_s
        try:
            self._send(self._connected(deadline), self._encode(request.to_command(oneway=True)), deadline)
        except TimeoutError:
            raise RequestTimeout(self.address, request.code.name, round(timeout_s * 1000)) from None

    def close(self) -> None:
        """Close the connection; the next call reopens it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self, deadline: float) -> AnySocket:
        if self._socket is not None and self._pid == os.getpid() and not is_lost(self._socket):
            return self._socket
        self.close()
        try:
            host, port = split_address(self.address)
            timeout_s = max(min(self._connect_timeout_s, deadline - time.monotonic()), CONNECT_TIMEOUT_S_MIN)
            connected = open_socket(host, port, self._tls, timeout_s=timeout_s)
        except (OSError, ValueError) as error:
            raise ConnectFailed(self.address, reason_of(error)) from None
        self._socket, self._pid, self._codec = connected, os.getpid(), Connection(self._limits)
        self._taken = self._filled
        return connected

    def _send(self, connected: AnySocket, parts: Sequence[Buffer], deadline: float) -> None:
        try:
            connected.settimeout(_time_left(deadline))
            connected.sendall(b"".join(parts))
        except OSError as error:
            self.close()  # a partial frame may have been sent
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLost(self.address, str(error)) from error
        except BaseException:  # an interrupt, such as KeyboardInterrupt: the same
            self.close()
            raise

    def _take_replies(self, connected: AnySocket, deadline: float) -> None:
        take_waiter = self._codec.take_waiter
        for command in self._received(connected, deadline):
            assert isinstance(command, RemotingCommand)  # only servers decode typed requests
            if not command.flag & RESPONSE_FLAG:
                self._decline(connected, command, deadline)
            elif (asked := take_waiter(command.opaque)) is not None:
                asked.reply = command

    def _received(self, connected: AnySocket, deadline: float) -> list[Command]:
        try:
            connected.settimeout(_time_left(deadline))
            count = connected.recv_into(self._room())
        except TimeoutError:
            raise  # the connection stays usable; a late reply is dropped
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, str(error)) from error
        except BaseException:  # an interrupt: received bytes may be lost
            self.close()
            raise
        if not count:
            self.close()
            raise ConnectionLost(self.address)
        self._filled += count
        commands, taken = self._codec.receive_in_place(self._block[self._taken : self._filled])
        self._taken += taken
        if self._codec.failure is not None:
            self.close()
            raise self._codec.failure
        return commands

    def _room(self) -> memoryview:
        """Return space after the unfinished frame, which moves to a new block if the current one is full."""
        unfinished = self._block[self._taken : self._filled]
        needed = self._codec.frame_bytes_needed
        if len(self._block) - self._filled < max(needed - len(unfinished), READ_BYTES_MIN):
            self._block = memoryview(self._free_block(max(self.block_bytes, needed + READ_BYTES_MIN)))
            self._block[: len(unfinished)] = unfinished
            self._taken, self._filled = 0, len(unfinished)
        return self._block[self._filled :]

    def _free_block(self, size: int) -> bytearray:
        """Return a block without remaining views, or a new one."""
        for block in self._blocks:
            if len(block) == size and _is_free(block):
                return block
        block = bytearray(size)
        if size == self.block_bytes:
            self._blocks = [*self._blocks, block][-BLOCKS_KEPT:]
        return block

    def _decline(self, connected: AnySocket, command: RemotingCommand, deadline: float) -> None:
        if not command.is_oneway:
            remark = f" request type {command.code} not supported"
            answer = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            self._send(connected, encode(answer), deadline)


def _frame(request: FramedRequest[Any], opaque: int) -> list[Buffer]:
    return request.frame(opaque)


def _signed_frame(signer: Signer, request: FramedRequest[Any], opaque: int) -> list[Buffer]:
    return signer.sign_frame(request.frame(opaque))


def _time_left(deadline: float) -> float:
    """Raises TimeoutError when no time is left."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_free(block: bytearray) -> bool:
    """Return whether the block has no views: only then can it be resized."""
    try:
        block.append(block.pop())
    except BufferError:
        return False
    return True


def open_socket(host: str, port: int, tls: ClientTls | None, *, timeout_s: float) -> AnySocket:
    """Open a connection; the timeout includes the TLS handshake. Raises OSError."""
    deadline = time.monotonic() + timeout_s
    connected = socket.create_connection((host, port), timeout=timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return connected
    from skylark.remoting.tls_client import TlsSocket  # noqa: PLC0415  slow to import

    return TlsSocket(connected, tls, host, timeout_s=deadline - time.monotonic())


def is_lost(connected: AnySocket) -> bool:
    """Return whether the server closed the connection. Pending data does not count as closed.

    Leaves the socket in non-blocking mode.
    """
    if not isinstance(connected, socket.socket):
        return connected.is_lost()
    connected.setblocking(False)
    try:
        return connected.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
