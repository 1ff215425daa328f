"""The same `call(request)` on a plain socket: for Spark's workers, scripts and tools. No threads, no loop."""

import os
import socket
import time
from types import TracebackType
from typing import Any, Self, TypeVar

from skylark.errors import ConnectFailed, ConnectionLost, RequestTimeout
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.connection import Connection, Limits
from skylark.protocol.request import Request
from skylark.remoting.address import split_address

T = TypeVar("T")

CALL_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 3.0
CLIENT_LIMITS = Limits(header_bytes_max=16 << 20)
_READ_BYTES = 256 << 10


class BlockingConnection:
    """A connection that opens when it is needed, and again after it was lost or the process was forked.

    For one thread at a time. What servers ask of their own is answered with "not supported".
    """

    def __init__(
        self,
        address: str,
        *,
        limits: Limits = CLIENT_LIMITS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.address = address
        self._limits = limits
        self._connect_timeout_s = connect_timeout_s
        self._socket: socket.socket | None = None
        self._codec: Connection[None] = Connection(limits)
        self._pid = 0

    def call(self, request: Request[T], *, timeout_s: float = CALL_TIMEOUT_S) -> T:
        """Ask, and return what the answer means; the time includes connecting.

        Raises BrokerError, ConnectFailed, RequestTimeout, ConnectionLost, ProtocolError.
        """
        deadline = time.monotonic() + timeout_s
        connected = self._connected()
        command = request.to_command()
        self._codec.expect_reply(command, None)
        try:
            self._send(connected, command, deadline)
            reply = self._reply_to(connected, command.opaque, deadline)
        except TimeoutError:
            raise RequestTimeout(self.address, request.code.name, round(timeout_s * 1000)) from None
        finally:
            self._codec.take_waiter(command.opaque)
        return request.result(reply)

    def notify(self, request: Request[Any], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Send a request that wants no answer. Raises ConnectFailed, RequestTimeout, ConnectionLost."""
        deadline = time.monotonic() + timeout_s
        try:
            self._send(self._connected(), request.to_command(oneway=True), deadline)
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

    def _connected(self) -> socket.socket:
        if self._socket is not None and self._pid == os.getpid() and not _is_lost(self._socket):
            return self._socket
        self.close()
        try:
            host, port = split_address(self.address)
            connected = socket.create_connection((host, port), timeout=self._connect_timeout_s)
        except (OSError, ValueError) as error:
            raise ConnectFailed(self.address, str(error)) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._pid, self._codec = connected, os.getpid(), Connection(self._limits)
        return connected

    def _send(self, connected: socket.socket, command: RemotingCommand, deadline: float) -> None:
        try:
            connected.settimeout(_time_left(deadline))
            connected.sendall(b"".join(encode(command)))
        except OSError as error:
            self.close()  # perhaps half a frame was sent: nothing can follow it
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLost(self.address, str(error)) from error

    def _reply_to(self, connected: socket.socket, opaque: int, deadline: float) -> RemotingCommand:
        reply: RemotingCommand | None = None
        while reply is None:
            for command in self._received(connected, deadline):
                if not command.is_response:
                    self._decline(connected, command, deadline)
                elif command.opaque == opaque:
                    reply = command
        return reply

    def _received(self, connected: socket.socket, deadline: float) -> list[RemotingCommand]:
        try:
            connected.settimeout(_time_left(deadline))
            data = connected.recv(_READ_BYTES)
        except TimeoutError:
            raise  # the connection is as it was; the answer is dropped should it come
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, str(error)) from error
        if not data:
            self.close()
            raise ConnectionLost(self.address)
        commands = self._codec.receive(data)
        if self._codec.failure is not None:
            self.close()
            raise self._codec.failure
        return [command for command in commands if isinstance(command, RemotingCommand)]

    def _decline(self, connected: socket.socket, command: RemotingCommand, deadline: float) -> None:
        if not command.is_oneway:
            remark = f" request type {command.code} not supported"
            answer = command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            self._send(connected, answer, deadline)


def _time_left(deadline: float) -> float:
    """Raises TimeoutError when there is none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_lost(connected: socket.socket) -> bool:
    """Has the server closed an idle connection? It may also have asked something: that is no loss."""
    connected.setblocking(False)
    try:
        return connected.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
