"""The same `call(request)` on a plain socket: for Spark's workers, scripts and tools. No threads, no loop."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from skylark.errors import ConnectFailed, ConnectionLost, RequestTimeout
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RESPONSE_FLAG, Buffer, RemotingCommand, encode
from skylark.protocol.connection import Command, Connection, Limits
from skylark.protocol.request import Request
from skylark.remoting.address import reason_of, split_address

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CALL_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S_MIN = 0.001
CLIENT_LIMITS = Limits(header_bytes_max=16 << 20)
BLOCK_BYTES = 256 << 10
READ_BYTES_MIN = 32 << 10
"""With less room a new block is begun."""
BLOCKS_KEPT = 3
"""To be filled again: memory that the kernel must clear first costs more than what is read into it."""


class FramedRequest(Protocol[T_co]):
    """What is asked: a request, or whatever can be written and answered like one."""

    @property
    def code(self) -> RequestCode: ...

    def frame(self, opaque: int) -> list[Buffer]: ...

    def result(self, reply: RemotingCommand) -> T_co: ...


@dataclass(eq=False, slots=True)
class PendingReply(Generic[T]):
    """A request that is on its way, and its answer once it has come; hand it to `answer`."""

    request: FramedRequest[T]
    sent_on: Connection[Any]
    deadline: float
    timeout_s: float
    reply: RemotingCommand | None = None


class BlockingConnection:
    """A connection that opens when it is needed, and again after it was lost or the process was forked.

    For one thread at a time. What servers ask of their own is answered with "not supported". What is read
    lies in blocks of `block_bytes`, which may be changed at any time; bodies of answers are views of them.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: Limits = CLIENT_LIMITS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.address = address
        self.block_bytes = BLOCK_BYTES
        self._limits = limits
        self._connect_timeout_s = connect_timeout_s
        self._socket: socket.socket | None = None
        self._codec: Connection[PendingReply[Any]] = Connection(limits)
        self._pid = 0
        self._blocks: list[bytearray] = []
        self._block = memoryview(b"")
        self._taken = 0  # so much of the block was whole frames
        self._filled = 0

    def call(self, request: Request[T], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Ask, and return what the answer means; the time includes connecting.

        Raises BrokerError, ConnectFailed, RequestTimeout, ConnectionLost, ProtocolError.
        """
        return self.answer(self.ask(request, timeout_s=timeout_s))

    def ask(self, request: Request[T], *, timeout_s: float = CALL_TIMEOUT_S) -> PendingReply[T]:
        """Send a request whose answer is taken later, so that several are on their way at once.

        Raises ConnectFailed, RequestTimeout, ConnectionLost, LocalProtocolError if too many are open.
        """
        return self.ask_many([request], timeout_s=timeout_s)[0]

    def ask_many(
        self, requests: Sequence[FramedRequest[T]], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> list[PendingReply[T]]:
        """Send several requests with one write: each write may wake the server up. Raises as `ask`."""
        deadline = time.monotonic() + timeout_s
        connected = self._connected(deadline)
        codec, asked, parts = self._codec, list[PendingReply[T]](), list[Buffer]()
        for request in requests:
            asked.append(PendingReply(request, codec, deadline, timeout_s))
            parts += request.frame(codec.reserve_opaque(asked[-1]))
        try:
            self._send(connected, parts, deadline)
        except TimeoutError:
            raise RequestTimeout(self.address, requests[0].code.name, round(timeout_s * 1000)) from None
        return asked

    def answer(self, asked: PendingReply[T]) -> T:
        """Return what the answer means, in any order of asking. One that comes too late is dropped.

        Raises BrokerError, RequestTimeout, ConnectionLost (also if the connection was opened anew since).
        """
        return asked.request.result(self.reply(asked))

    def reply(self, asked: PendingReply[Any]) -> RemotingCommand:
        """Return the answer as it came. Raises as `answer`, but for what the answer says."""
        try:
            while asked.reply is None:
                if self._socket is None or asked.sent_on is not self._codec:
                    raise ConnectionLost(self.address, "before the answer came")
                self._take_replies(self._socket, asked.deadline)
        except TimeoutError:
            name = asked.request.code.name
            raise RequestTimeout(self.address, name, round(asked.timeout_s * 1000)) from None
        return asked.reply

    def notify(self, request: Request[Any], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Send a request that wants no answer. Raises ConnectFailed, RequestTimeout, ConnectionLost."""
        deadline = time.monotonic() + timeout_s
        try:
            self._send(self._connected(deadline), encode(request.to_command(oneway=True)), deadline)
        except TimeoutError:
            raise RequestTimeout(self.address, request.code.name, round(timeout_s * 1000)) from None

    def close(self) -> None:
        """Close the connection; the next call would open it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self, deadline: float) -> socket.socket:
        if self._socket is not None and self._pid == os.getpid() and not is_lost(self._socket):
            return self._socket
        self.close()
        try:
            host, port = split_address(self.address)
            timeout_s = max(min(self._connect_timeout_s, deadline - time.monotonic()), CONNECT_TIMEOUT_S_MIN)
            connected = socket.create_connection((host, port), timeout=timeout_s)
        except (OSError, ValueError) as error:
            raise ConnectFailed(self.address, reason_of(error)) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._pid, self._codec = connected, os.getpid(), Connection(self._limits)
        self._taken = self._filled
        return connected

    def _send(self, connected: socket.socket, parts: Sequence[Buffer], deadline: float) -> None:
        try:
            connected.settimeout(_time_left(deadline))
            connected.sendall(b"".join(parts))
        except OSError as error:
            self.close()  # perhaps half a frame was sent: nothing can follow it
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLost(self.address, str(error)) from error
        except BaseException:  # an interrupt: the same
            self.close()
            raise

    def _take_replies(self, connected: socket.socket, deadline: float) -> None:
        take_waiter = self._codec.take_waiter
        for command in self._received(connected, deadline):
            assert isinstance(command, RemotingCommand)  # requests are typed on servers alone
            if not command.flag & RESPONSE_FLAG:
                self._decline(connected, command, deadline)
            elif (asked := take_waiter(command.opaque)) is not None:
                asked.reply = command

    def _received(self, connected: socket.socket, deadline: float) -> list[Command]:
        try:
            connected.settimeout(_time_left(deadline))
            count = connected.recv_into(self._room())
        except TimeoutError:
            raise  # the connection is as it was; the answer is dropped should it come
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, str(error)) from error
        except BaseException:  # an interrupt: what was read may be lost
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
        """Where the next bytes go: behind the unfinished frame, which moves to a new block if it must."""
        unfinished = self._block[self._taken : self._filled]
        needed = self._codec.frame_bytes_needed
        if len(self._block) - self._filled < max(needed - len(unfinished), READ_BYTES_MIN):
            self._block = memoryview(self._free_block(max(self.block_bytes, needed + READ_BYTES_MIN)))
            self._block[: len(unfinished)] = unfinished
            self._taken, self._filled = 0, len(unfinished)
        return self._block[self._filled :]

    def _free_block(self, size: int) -> bytearray:
        """An old block that nobody looks at any more, or a new one."""
        for block in self._blocks:
            if len(block) == size and _is_free(block):
                return block
        block = bytearray(size)
        if size == self.block_bytes:
            self._blocks = [*self._blocks, block][-BLOCKS_KEPT:]
        return block

    def _decline(self, connected: socket.socket, command: RemotingCommand, deadline: float) -> None:
        if not command.is_oneway:
            remark = f" request type {command.code} not supported"
            answer = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            self._send(connected, encode(answer), deadline)


def _time_left(deadline: float) -> float:
    """Raises TimeoutError when there is none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_free(block: bytearray) -> bool:
    """Say whether nobody has a view of a block: only then its size can change."""
    try:
        block.append(block.pop())
    except BufferError:
        return False
    return True


def is_lost(connected: socket.socket) -> bool:
    """Has the server closed an idle connection? It may also have asked something: that is no loss."""
    connected.setblocking(False)
    try:
        return connected.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
