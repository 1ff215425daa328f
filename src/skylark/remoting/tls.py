"""TLS on the ports of a server: plain text and TLS on the same port, decided by the first byte.

`FirstByte` is the protocol of a new connection. It hands a plain one over to the server's own protocol, which
from then on belongs to the loop as if there were no TLS. For a TLS connection it puts an `EncryptedTransport`
between the loop's transport and that protocol.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from skylark.errors import SettingsError
from skylark.settings.credentials import check_private
from skylark.settings.tls import ClientCertificate, ServerTlsSettings, TlsMode, with_config_file

log = logging.getLogger(__name__)

HANDSHAKE_RECORD = 0x16
"""First byte of a TLS connection. A frame begins with a length below 16 MiB, so with 0."""
RECORD_BYTES = 16 << 10
"""OpenSSL reads and writes one record at a time."""
FLIGHT_BYTES = 4 * RECORD_BYTES
"""What is written and encrypted before it is sent: the peer decrypts it while the next is made."""
FILES_CHECK_MS = 1000
TEST_DAYS = 30
HANDSHAKES_BURST_S = 2
"""An address that was quiet may begin the handshakes of this many seconds at once: clients that reconnect."""
HANDSHAKE_ADDRESSES_MAX = 10_000
"""Addresses whose handshakes are counted; the one that was seen first is forgotten."""
REFUSED_LOG_INTERVAL_S = 60.0

FileStamp = tuple[int, int, int]


# --- Contexts ---


def server_context(settings: ServerTlsSettings, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Load certificate, key and trusted CAs; `alpn` is offered. Waits for the disk. Raises SettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if settings.certificate is not None and settings.key is not None:
        load_pair(
            context,
            settings.certificate,
            settings.key,
            settings.key_password,
            checks_mode=settings.check_key_mode,
        )
    else:
        _load_test_pair(context)
    if settings.client_certificate is not ClientCertificate.NONE:
        assert settings.trusted is not None
        load_trusted(context, settings.trusted)
        is_required = settings.client_certificate is ClientCertificate.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def load_pair(
    context: ssl.SSLContext, certificate: Path, key: Path, password: str, *, checks_mode: bool
) -> None:
    """Raises SettingsError; with `checks_mode` also for a key that others may read."""
    for file in (certificate, key):
        _check_readable(file)
    if checks_mode:
        check_private(key)
    try:
        # With a password, even an empty one, OpenSSL does not ask the terminal for it.
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        reason = "the key does not belong to the certificate"
        if error.reason != "KEY_VALUES_MISMATCH":
            reason = f"not a certificate with its key in PEM format, or a wrong password: {error}"
        raise SettingsError("tls.certificate", f"{certificate} and {key}: {reason}") from error


def load_trusted(context: ssl.SSLContext, file: Path) -> None:
    """Raises SettingsError."""
    _check_readable(file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise SettingsError("tls.trusted", f"{file}: no certificates in PEM format: {error}") from error


def _check_readable(file: Path) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise SettingsError("tls", f"{file}: {error.strerror}") from error


def _load_test_pair(context: ssl.SSLContext) -> None:
    """Make a certificate that lives as long as the process, as RocketMQ's test mode does."""
    from skylark.certificates import issue, make_authority  # noqa: PLC0415 - slow, and for trials only

    authority = make_authority("skylark test mode", days=TEST_DAYS)
    pair = issue(authority, "skylark test mode", ["localhost"], days=TEST_DAYS, is_server=True)
    with tempfile.TemporaryDirectory() as directory:  # of mode 0700
        certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)


class HandshakeRate:
    """Limits the handshakes of an address: each costs a server up to a millisecond of its loop.

    Times are monotonic seconds.
    """

    def __init__(self, per_second: int) -> None:
        """0 is no limit."""
        self.refused = 0
        self._per_second = per_second
        self._burst = per_second * HANDSHAKES_BURST_S
        self._left: dict[str, tuple[float, float]] = {}
        """By address: the handshakes that it may begin, and when that was so."""
        self._logged_at = -REFUSED_LOG_INTERVAL_S
        self._logged = 0

    def admits(self, host: str, now: float) -> bool:
        """Count a handshake of this address; return whether it may begin."""
        if not self._per_second:
            return True
        left, since = self._left.get(host, (float(self._burst), now))
        left = min(left + (now - since) * self._per_second, float(self._burst))
        if left < 1.0:
            self._left[host] = (left, now)
            self._refuse(host, now)
            return False
        self._left[host] = (left - 1.0, now)
        if len(self._left) > HANDSHAKE_ADDRESSES_MAX:
            del self._left[next(iter(self._left))]
        return True

    def _refuse(self, host: str, now: float) -> None:
        self.refused += 1
        if now - self._logged_at >= REFUSED_LOG_INTERVAL_S:
            log.warning(
                "TLS handshakes refused count=%d last=%s reason=more than %d per second, see "
                "tlsHandshakesPerSecondMax",
                self.refused - self._logged,
                host,
                self._per_second,
            )
            self._logged_at, self._logged = now, self.refused


class ServerTls:
    """TLS of a server: what it accepts, and the context of new connections.

    The context is replaced when its files change; open connections keep theirs.
    """

    def __init__(
        self, settings: ServerTlsSettings, accepted_names: Iterable[str] = (), alpn: Sequence[str] = ()
    ) -> None:
        """`accepted_names` are those of client certificates; without any, all names are accepted.

        `alpn` are the protocols that are offered in handshakes. Waits for the disk. Raises SettingsError if
        the certificate cannot be loaded.
        """
        self._accepted_names = frozenset(accepted_names)
        self._alpn = tuple(alpn)
        self.settings = with_config_file(settings, settings.config_file)
        self.is_enforcing = self.settings.effective_mode is TlsMode.ENFORCING
        self.handshake_timeout_s = self.settings.handshake_timeout_ms / 1000
        self._loaded = self._seen = self._stamps()
        self.context = server_context(self.settings, self._alpn)
        self.handshakes = 0
        self.unfinished_handshakes = 0
        self.failed_handshakes = 0
        self.handshake_rate = HandshakeRate(self.settings.handshakes_per_s)
        self.reloads = 0
        self.reload_failure = ""
        """Why the files that are there now are not in use; empty if they are."""

    @property
    def handshake_counts(self) -> dict[str, int]:
        """Handshakes by their result."""
        return {
            "completed": self.handshakes,
            "failed": self.failed_handshakes,
            "refused": self.handshake_rate.refused,
        }

    def check_files(self) -> None:
        """Load the files if they have changed. Call every FILES_CHECK_MS, in a thread: it waits for the disk.

        Files are loaded when they are as they were at the last call: certificate and key are replaced one by
        one. Those that cannot be loaded are reported once, and the old context stays.
        """
        stamps = self._stamps()
        is_settled, self._seen = stamps == self._seen, stamps
        if not is_settled or stamps == self._loaded:
            return
        self._loaded = stamps
        try:
            self.context = server_context(self.settings, self._alpn)
        except SettingsError as error:
            self.reload_failure = str(error)
            log.error("certificate not reloaded, the old one stays in use reason=%s", error)  # noqa: TRY400
        else:
            self.reloads += 1
            self.reload_failure = ""
            log.info("certificate reloaded file=%s", self.settings.certificate)

    def refusal_of(self, connection: ssl.SSLObject) -> str:
        """Return why a client with this certificate is refused; empty if it is not."""
        if not self._accepted_names:
            return ""
        names = _names_of(connection.getpeercert() or {})
        return "" if names & self._accepted_names else f"no accepted name in {sorted(names)}"

    def _stamps(self) -> list[FileStamp | None]:
        return stamps_of(self.settings.certificate, self.settings.key, self.settings.trusted)


def make_server_tls(settings: ServerTlsSettings) -> ServerTls | None:
    """Return None if TLS is disabled. Raises as ServerTls."""
    disabled = settings.config_file is None and settings.effective_mode is TlsMode.DISABLED
    if disabled or settings.mode is TlsMode.DISABLED:
        return None
    made = ServerTls(settings)
    return None if made.settings.effective_mode is TlsMode.DISABLED else made


def make_replication_tls(server: ServerTls | None, accepted_names: Iterable[str]) -> ServerTls | None:
    """Return the TLS of a master's port for slaves: they need a certificate, and it one of these names.

    None without TLS, and without CAs to check slaves with. Raises SettingsError.
    """
    if server is None or server.settings.trusted is None:
        return None
    required = replace(server.settings, client_certificate=ClientCertificate.REQUIRE, config_file=None)
    return ServerTls(required, accepted_names)


def _names_of(certificate: Mapping[str, Any]) -> set[str]:
    """Return common name and alternative names of what `getpeercert` returns."""
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return subject | {value for _, value in certificate.get("subjectAltName", ())}


def stamps_of(*files: Path | None) -> list[FileStamp | None]:
    """Return what changes when one of the files is replaced or written. Waits for the disk."""
    return [_stamp(file) for file in files if file is not None]


def _stamp(file: Path) -> FileStamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


# --- Connections ---


def accept_socket(connected: socket.socket, tls: ServerTls, *, allows_plain: bool) -> socket.socket:
    """Return a connection to read requests from, for servers with threads: TLS by its first byte.

    Waits for the peer up to the socket's timeout. Raises OSError, also for plain text that is not allowed.
    """
    first = connected.recv(1, socket.MSG_PEEK)
    if first and first[0] == HANDSHAKE_RECORD:
        return tls.context.wrap_socket(connected, server_side=True)
    if not allows_plain:
        raise ConnectionError("plain text, but tls.server.mode is enforcing")
    return connected


class SecurableProtocol(Protocol):
    """A protocol of the loop whose transport may be replaced before anything was read or written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def secure(self, transport: asyncio.Transport) -> None:
        """Use this transport from now on."""


Refuse = Callable[[str], None]
"""Reports why a connection is closed."""


class FirstByte(asyncio.Protocol):
    """Decides by its first byte whether a connection is TLS.

    The inner protocol knows the connection from the start, so that the server's limits apply to it.
    """

    def __init__(
        self,
        inner: SecurableProtocol,
        tls: ServerTls,
        refuse: Refuse,
        allows_plain: Callable[[], bool] | None = None,
    ) -> None:
        """`allows_plain` is asked for a plain connection; by default the mode of `tls` decides."""
        self._allows_plain = allows_plain
        self._inner = inner
        self._tls = tls
        self._refuse = refuse
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        tls = self._tls
        if data[0] == HANDSHAKE_RECORD:
            if tls.unfinished_handshakes >= tls.settings.handshakes_max:
                tls.failed_handshakes += 1
                self._refuse(f"{tls.unfinished_handshakes} TLS handshakes are unfinished")
                transport.abort()
                return
            host = str((transport.get_extra_info("peername") or ("",))[0])
            if not tls.handshake_rate.admits(host, asyncio.get_running_loop().time()):
                transport.abort()
                return
            encrypted = EncryptedTransport(transport, self._inner, tls, self._refuse)
            transport.set_protocol(encrypted)
            self._inner.secure(encrypted)
            encrypted.data_received(data)
        elif tls.is_enforcing if self._allows_plain is None else not self._allows_plain():
            self._refuse("plain text, but TLS is required")
            transport.abort()
        else:
            transport.set_protocol(cast("asyncio.Protocol", self._inner))
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)


class EncryptedTransport(asyncio.Transport, asyncio.Protocol):
    """TLS between the loop's transport and a protocol: the transport of the one, the protocol of the other.

    What one read brought is decrypted and passed on together. What is written together is sent a flight at a
    time: else both ends would take turns at their ciphers. Back-pressure is that of the loop's transport.
    """

    def __init__(
        self, lower: asyncio.Transport, inner: SecurableProtocol, tls: ServerTls, refuse: Refuse
    ) -> None:
        super().__init__()
        self._lower = lower
        self._inner = inner
        self._tls = tls
        self._refuse = refuse
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False
        self._is_closing = False
        tls.unfinished_handshakes += 1
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(
            tls.handshake_timeout_s, self._expire
        )

    # --- The transport of the inner protocol ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. Does nothing before the handshake and after `close`."""
        if not self._is_open or self._is_closing:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._ssl.write(rest) :]
                if self._outgoing.pending >= FLIGHT_BYTES:
                    self._send()
        except ssl.SSLError as error:
            self._fail(f"cannot encrypt: {error}")
            return
        self._send()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Tell the peer, flush, close."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._is_open:
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # the peer's close_notify is not waited for
            self._send()
        self._lower.close()

    def abort(self) -> None:
        self._is_closing = True
        self._lower.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._lower.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ssl if name == "ssl_object" else self._lower.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        self._lower.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._lower.get_write_buffer_size()

    # --- The protocol of the loop's transport ---

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._is_open and not self._shake_hands():
            return
        received: list[bytes] = []
        is_ended = True
        try:
            while record := self._ssl.read(RECORD_BYTES):  # empty: close_notify
                received.append(record)
                if not self._incoming.pending and not self._ssl.pending():
                    is_ended = False  # a read in vain would raise, which takes longer than a short record
                    break
        except ssl.SSLWantReadError:
            is_ended = False
        except ssl.SSLError as error:
            self._fail(f"invalid TLS record: {error}")
            return
        if received:
            self._inner.data_received(received[0] if len(received) == 1 else b"".join(received))
        self._send()  # session tickets, new keys
        if is_ended:
            self.close()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if not self._is_open:
            self._tls.unfinished_handshakes -= 1
            if not self._is_closing:
                self._count_failure("closed during the TLS handshake")
        self._is_closing = True
        self._inner.connection_lost(exc)

    # --- The handshake ---

    def _shake_hands(self) -> bool:
        """Continue the handshake; return whether it is complete."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as error:
            self._count_failure(f"TLS handshake failed: {error}")
            self._is_closing = True
            self._send()  # the alert
            self._lower.close()
            return False
        if refusal := self._tls.refusal_of(self._ssl):
            self._count_failure(refusal)
            self.abort()
            return False
        self._stop_timer()
        self._is_open = True
        self._tls.unfinished_handshakes -= 1
        self._tls.handshakes += 1
        self._send()
        return True

    def _expire(self) -> None:
        self._timer = None
        self._count_failure(f"no TLS handshake within {self._tls.handshake_timeout_s:g} s")
        self.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _count_failure(self, reason: str) -> None:
        self._tls.failed_handshakes += 1
        self._refuse(reason)

    def _fail(self, reason: str) -> None:
        self._refuse(reason)
        self._send()  # the alert
        self._is_closing = True
        self._lower.close()

    def _send(self) -> None:
        if self._outgoing.pending and not self._lower.is_closing():
            self._lower.write(self._outgoing.read())
