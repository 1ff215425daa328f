"""A blocking connection shared by threads: each sends its own request, and one waiting thread reads for all.

A single thread pays for one send and one receive: no loop, no other thread, no context switch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from skylark.errors import ConnectFailed, ConnectionLost, RequestTimeout
from skylark.protocol.command import Buffer, RemotingCommand
from skylark.protocol.connection import Connection, Limits
from skylark.remoting.address import reason_of, split_address
from skylark.remoting.blocking_connection import (
    CLIENT_LIMITS,
    CONNECT_TIMEOUT_S_MIN,
    AnySocket,
    is_lost,
    open_socket,
)
from skylark.remoting.tls_client import ClientTls

# Socket timeout after which a waiting thread checks its deadline, so that no call needs its own timer.
TICK_S = 0.05
IDLE_CHECK_S = 1.0
_TICKED = (BlockingIOError, TimeoutError)
"""Raised by SO_RCVTIMEO and SO_SNDTIMEO: the first on POSIX, the second on Windows."""
_READ_BYTES = 256 << 10
MakeFrame = Callable[[int], tuple[Buffer, ...]]
"""Returns the parts of the frame for an opaque."""


class _Waiter:
    """A thread waiting for one reply. The lock is created when another thread is already reading."""

    __slots__ = ("failure", "is_done", "reply", "woken")

    def __init__(self) -> None:
        self.is_done = False
        self.reply: RemotingCommand | None = None
        self.failure: Exception | None = None
        self.woken: threading.Lock | None = None

    def finish(self, reply: RemotingCommand | None, failure: Exception | None = None) -> None:
        self.reply = reply
        self.failure = failure
        self.is_done = True

    def wake(self) -> None:
        woken = self.woken
        if woken is not None and woken.locked():
            with contextlib.suppress(RuntimeError):  # released by another thread meanwhile
                woken.release()

    def wait(self, seconds: float) -> None:
        """Wait for `wake`, at most one tick: a wake-up before the lock exists would be missed."""
        if self.woken is None:
            self.woken = threading.Lock()
            self.woken.acquire()
        if not self.is_done:
            self.woken.acquire(timeout=min(seconds, TICK_S))


class ThreadedConnection:
    """A connection to one address, opened on demand and reopened after it was lost. Any thread."""

    def __init__(
        self,
        address: str,
        *,
        limits: Limits = CLIENT_LIMITS,
        connect_timeout_s: float = 3.0,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self.address = address
        self._limits = limits
        self._connect_timeout_s = connect_timeout_s
        self._sending = threading.Lock()  # held while a frame is written, and while the connection changes
        self._reading = threading.Lock()  # held by the thread that reads
        self._socket: AnySocket | None = None
        self._codec: Connection[_Waiter] = Connection(limits)
        self._failed_at, self._failure = 0.0, ""  # last failed attempt to connect, and its reason
        self._used_at = 0.0
        self._received_at = 0.0

    def exchange(self, make_frame: MakeFrame, *, deadline: float, request: str) -> RemotingCommand:
        """Send a frame and return the reply. `deadline` is monotonic; `request` names it in errors.

        Raises ConnectFailed, ConnectionLost, RequestTimeout, ProtocolError, and what `make_frame` raises.
        """
        started = time.monotonic()
        waiter = _Waiter()
        self._take_turn(deadline)
        try:
            connected = self._connected(started, deadline)
            codec = self._codec
            opaque = codec.reserve_opaque(waiter)
            try:
                self._send(connected, make_frame(opaque), deadline)
            except BaseException:
                codec.take_waiter(opaque)
                raise
        finally:
            self._sending.release()
        try:
            self._wait(connected, codec, waiter, deadline)
        except TimeoutError:
            if self._received_at < started:  # nothing received since: the peer may be dead
                self._lost_by(connected, ConnectionLost(self.address, "silent"))
            raise RequestTimeout(self.address, request, round((time.monotonic() - started) * 1000)) from None
        finally:
            codec.take_waiter(opaque)
        if waiter.failure is not None:
            raise waiter.failure
        assert waiter.reply is not None
        return waiter.reply

    def notify(self, make_frame: MakeFrame, *, deadline: float) -> None:
        """Send a oneway frame. Raises ConnectFailed, ConnectionLost."""
        started = time.monotonic()
        self._take_turn(deadline)
        try:
            self._send(self._connected(started, deadline), make_frame(0), deadline)
        finally:
            self._sending.release()

    def close(self) -> None:
        """Close the connection; pending calls raise ConnectionLost."""
        with self._sending:
            self._lose(ConnectionLost(self.address, "closed"))

    def _take_turn(self, deadline: float) -> None:
        """Acquire the sending lock. Raises ConnectFailed at the deadline, when nothing was sent yet."""
        if not self._sending.acquire(blocking=False) and not self._sending.acquire(
            timeout=max(0.0, deadline - time.monotonic())
        ):
            raise ConnectFailed(self.address, "timed out waiting for other threads that connect or send")

    # --- Under the sending lock ---

    def _connected(self, started: float, deadline: float) -> AnySocket:
        now = time.monotonic()
        if (
            self._socket is not None
            and now - self._used_at > IDLE_CHECK_S
            and not self._codec.pending_requests
        ):
            # Servers close idle connections; detect that before a send fails on one.
            if is_lost(self._socket):
                self._lose(ConnectionLost(self.address))
            else:
                self._socket.setblocking(True)
        self._used_at = now
        if self._socket is not None:
            return self._socket
        if self._failed_at > started:
            # Another thread failed while this one waited. Retrying here would add up the timeouts.
            raise ConnectFailed(self.address, self._failure)
        timeout_s = max(min(self._connect_timeout_s, deadline - now), CONNECT_TIMEOUT_S_MIN)
        try:
            host, port = split_address(self.address)
            connected = open_socket(host, port, self._tls, timeout_s=timeout_s)
        except (OSError, ValueError) as error:
            is_shortened = isinstance(error, TimeoutError) and timeout_s < self._connect_timeout_s
            if not is_shortened:  # by the deadline of this call
                self._failed_at, self._failure = time.monotonic(), reason_of(error)
            raise ConnectFailed(self.address, reason_of(error)) from None
        connected.settimeout(None)
        tick = _timeval(TICK_S)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
        self._socket, self._codec = connected, Connection(self._limits)
        return connected

    def _send(self, connected: AnySocket, parts: tuple[Buffer, ...], deadline: float) -> None:
        data = b"".join(parts)
        sent = 0
        try:
            while sent < len(data):
                try:
                    sent += connected.send(memoryview(data)[sent:] if sent else data)
                except _TICKED:
                    if time.monotonic() > deadline:
                        raise TimeoutError("send buffer full") from None
        except OSError as error:
            self._lose(ConnectionLost(self.address, str(error)))  # a partial frame may have been sent
            raise ConnectionLost(self.address, str(error)) from error
        except BaseException:  # an interrupt, such as KeyboardInterrupt: the same
            self._lose(ConnectionLost(self.address, "interrupted"))
            raise

    def _lose(self, failure: Exception) -> None:
        connected, self._socket = self._socket, None
        if connected is None:
            return
        # Wakes the reading thread; close alone does not.
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
        connected.close()
        for waiter in self._codec.take_all_waiters():
            waiter.finish(None, failure)
            waiter.wake()

    # --- Waiting ---

    def _wait(
        self, connected: AnySocket, codec: Connection[_Waiter], waiter: _Waiter, deadline: float
    ) -> None:
        """Return when the reply has arrived, read by this thread or another. Raises TimeoutError."""
        while not waiter.is_done:
            if self._reading.acquire(blocking=False):
                try:
                    self._read_until(connected, codec, waiter, deadline)
                finally:
                    self._reading.release()
                    if codec.pending_requests:
                        self._wake_another(codec)
            else:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                waiter.wait(left)

    def _read_until(
        self, connected: AnySocket, codec: Connection[_Waiter], waiter: _Waiter, deadline: float
    ) -> None:
        while not waiter.is_done:
            try:
                data = connected.recv(_READ_BYTES)
            except _TICKED:
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                continue
            except OSError as error:
                self._lost_by(connected, ConnectionLost(self.address, str(error)))
                return
            except BaseException:  # an interrupt: received bytes may be lost
                self._lost_by(connected, ConnectionLost(self.address, "interrupted"))
                raise
            if not data:
                self._lost_by(connected, ConnectionLost(self.address))
                return
            self._received_at = time.monotonic()
            for command in codec.receive(data):
                # Servers send their own requests on the connection of the heartbeats, not here.
                found = codec.take_waiter(command.opaque) if command.is_response else None
                if found is not None:
                    assert isinstance(command, RemotingCommand)
                    found.finish(command)
                    if found is not waiter:
                        found.wake()
            if codec.failure is not None:
                self._lost_by(connected, codec.failure)
                return

    def _lost_by(self, connected: AnySocket, failure: Exception) -> None:
        if self._socket is not connected:
            return  # already replaced by another thread
        with self._sending:
            if self._socket is connected:
                self._lose(failure)

    def _wake_another(self, codec: Connection[_Waiter]) -> None:
        """Wake one waiting thread to continue reading."""
        for other in codec.waiters()[:1]:
            other.wake()


def _timeval(seconds: float) -> bytes:
    """Pack a duration for SO_RCVTIMEO and SO_SNDTIMEO."""
    if os.name == "nt":
        return struct.pack("@I", round(seconds * 1000))
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
