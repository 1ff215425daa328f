"""TLS of outgoing connections: the context, and a TLS connection for threads that block."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from typing import Any

from skylark.errors import SettingsError
from skylark.remoting.tls import RECORD_BYTES, load_pair, load_trusted, stamps_of
from skylark.settings.tls import ClientTlsSettings, ServerTlsSettings, TlsMode, with_config_file

log = logging.getLogger(__name__)

READ_BYTES = 64 << 10
CLOSED_IN_HANDSHAKE = "closed by the server during the TLS handshake; it may not accept TLS"


class ClientTls:
    """What a client accepts of servers and shows of itself. Any thread.

    The files are loaded again for the first connection after they have changed.
    """

    def __init__(self, settings: ClientTlsSettings) -> None:
        """Waits for the disk. Raises SettingsError."""
        self._settings = settings
        self._stamps = self._current_stamps()
        self._context = client_context(settings)

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection: the old one if changed files cannot be loaded."""
        stamps = self._current_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = client_context(self._settings)
            except SettingsError as error:
                log.warning("certificate not reloaded, the old one stays in use reason=%s", error)
        return self._context

    def expected_name(self, host: str) -> str:
        """Return the name or address that the certificate of this host must have."""
        return self._settings.server_name or host

    def _current_stamps(self) -> list[tuple[int, int, int] | None]:
        return stamps_of(self._settings.trusted, self._settings.certificate, self._settings.key)


def client_context(settings: ClientTlsSettings) -> ssl.SSLContext:
    """Raises SettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if not settings.check_server:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.trusted is not None:
        load_trusted(context, settings.trusted)
    else:
        context.load_default_certs()
    if settings.certificate is not None and settings.key is not None:
        load_pair(
            context,
            settings.certificate,
            settings.key,
            settings.key_password,
            checks_mode=settings.check_key_mode,
        )
    return context


def make_outgoing_tls(server: ServerTlsSettings, client: ClientTlsSettings) -> ClientTls | None:
    """Return the TLS of a server's own connections: as the settings say, else TLS if it accepts nothing else.

    Raises SettingsError.
    """
    is_enabled = server.mode is TlsMode.ENFORCING if client.enabled is None else client.enabled
    return ClientTls(with_config_file(client, server.config_file)) if is_enabled else None


def tls_arguments(tls: ClientTls, host: str) -> dict[str, Any]:
    """Return the arguments of `loop.create_connection` that make it use TLS."""
    return {"ssl": tls.context(), "server_hostname": tls.expected_name(host)}


class TlsSocket:
    """A TLS connection with those methods of a blocking socket that clients use.

    One thread may send while another receives, which Python's `SSLSocket` does not allow: both would be in
    OpenSSL at once. Here the lock is never held while a thread waits for the network.
    """

    def __init__(self, connected: socket.socket, tls: ClientTls, host: str, *, timeout_s: float) -> None:
        """Shake hands. Raises OSError, of which ssl.SSLError is one; the socket is then closed."""
        self._socket = connected
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = tls.context().wrap_bio(
            self._incoming, self._outgoing, server_hostname=tls.expected_name(host)
        )
        self._lock = threading.Lock()
        self._unsent = memoryview(b"")
        self._early = b""  # decrypted by `is_lost`
        try:
            self._shake_hands(time.monotonic() + timeout_s)
        except BaseException:
            connected.close()
            raise

    def _shake_hands(self, deadline: float) -> None:
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._outgoing.read())
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise ConnectionError(CLOSED_IN_HANDSHAKE) from None
                self._incoming.write(data)
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._socket.sendall(self._outgoing.read())  # the alert
                raise
            else:
                self._socket.sendall(self._outgoing.read())
                return

    # --- Receiving ---

    def recv(self, size: int) -> bytes:
        """Return what has arrived, empty at the end. Raises OSError as a socket does."""
        if self._early:
            data, self._early = self._early[:size], self._early[size:]
            return data
        while True:
            decrypted = self._decrypted(size)
            if decrypted is not None:
                return decrypted
            received = self._socket.recv(READ_BYTES)
            if not received:
                return b""  # without close_notify: a frame that was cut is dropped anyway
            with self._lock:
                self._incoming.write(received)

    def recv_into(self, buffer: memoryview) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _decrypted(self, size: int) -> bytes | None:
        """Return the records that are complete, None if there are none, empty after close_notify."""
        records: list[bytes] = []
        left = size
        with self._lock:
            try:
                while left:
                    record = self._ssl.read(min(left, RECORD_BYTES))
                    if not record:
                        break
                    records.append(record)
                    left -= len(record)
            except ssl.SSLWantReadError:
                if not records:
                    return None
            except ssl.SSLZeroReturnError:
                pass
        return records[0] if len(records) == 1 else b"".join(records)

    def is_lost(self) -> bool:
        """Return whether the server closed the connection. Leaves the socket in non-blocking mode."""
        self._socket.setblocking(False)
        try:
            received = self._socket.recv(READ_BYTES)
            if not received:
                return True
            with self._lock:
                self._incoming.write(received)
            decrypted = self._decrypted(1 << 30)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self._early += decrypted or b""
        return decrypted == b""

    # --- Sending ---

    def send(self, data: bytes | memoryview) -> int:
        """Send all of the data and return its length. After an exception call again with the same data."""
        if not self._unsent:
            self._unsent = memoryview(self._encrypted(data))
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Raises OSError; the connection is then unusable."""
        self._socket.sendall(self._encrypted(data))

    def _encrypted(self, data: bytes | memoryview) -> bytes:
        rest = memoryview(data)
        with self._lock:
            while rest:
                rest = rest[self._ssl.write(rest) :]
            return self._outgoing.read()

    # --- The socket ---

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self._socket.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        """Without close_notify: the connection may belong to the process that this one was forked from."""
        self._socket.close()
