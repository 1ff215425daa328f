"""Addresses as RocketMQ writes them (`host:port`, `[v6]:port`), free ports, and a listener for threads."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import random
import select
import socket

from skylark.errors import SettingsError

PORT_MAX = 0xFFFF
log = logging.getLogger(__name__)

FREE_PORT_TRIES = 200
SERVER_PORTS = range(20_000, 32_000)
"""Below the ephemeral range of Linux and macOS."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise ValueError(f"invalid address {address!r}; use host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_host(host: str) -> None:
    """Raise SettingsError unless a server can listen on this address or host name."""
    try:
        with socket.socket(family_of(host)) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:  # the latter for what can be no name
        raise SettingsError("host", f"cannot listen on {host}: {reason_of(error)}") from error


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on this address or host name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listener(
    address: str, *, is_authenticated: bool, is_encrypted: bool, is_secure_required: bool
) -> bool:
    """Return whether everybody on the network may use a server that listens on this address; log that.

    Raises SettingsError if this is so and must not be.
    """
    host, _ = split_address(address)
    if is_loopback(host):
        return False
    if is_authenticated:
        if not is_encrypted:
            log.info(
                "plain text accepted address=%s: signatures do not hide messages, requests may be replayed",
                address,
            )
        return False
    if is_secure_required:
        raise SettingsError(
            "require_secure_listener",
            f"{address} is not a loopback address and authentication is off; set authenticationEnabled=true",
        )
    log.warning(
        "insecure listener address=%s: anybody who reaches it may read, write and delete; "
        "authenticationEnabled=true protects it",
        address,
    )
    return True


def free_port(host: str, *distances: int) -> int:
    """Return a port that is free, together with the ports at these distances from it. Raises OSError.

    The port lies outside the ephemeral range, so a server that restarts finds it free again.
    """
    for port in random.sample(SERVER_PORTS, FREE_PORT_TRIES):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for distance in {0, *distances}:
                stack.enter_context(socket.socket(family_of(host))).bind((host, port + distance))
            return port
    raise OSError(errno.EADDRINUSE, f"no free ports on {host} at distances {distances}")


def hold_ports(host: str, *ports: int) -> contextlib.ExitStack:
    """Reserve ports without listening: connections are refused and no other server can bind them.

    Closing the returned stack releases them. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        for port in ports:
            held = stack.enter_context(socket.socket(family_of(host)))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT
            held.bind((host, port))
        return stack.pop_all()


def reason_of(error: Exception) -> str:
    """Return the cause of a failed connection attempt, without the address."""
    import ssl  # noqa: PLC0415  slow to import, and a client without TLS does not need it

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


def ip_of(host: str) -> str:
    """Resolve a host name or address, preferring IPv4. Raises SettingsError."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for what can be no name
        raise SettingsError("advertised_host", f"cannot resolve {host}: {error}") from error
    *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return str(address[0])


def family_of(host: str) -> socket.AddressFamily:
    """Return the socket family of an address; host names resolve to IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


_SOMEWHERE = ("192.0.2.1", 9)  # TEST-NET-1; nothing is sent
_LOOPBACK = "127.0.0.1"


def local_ip() -> str:
    """Return the IPv4 source address of outgoing connections, or the loopback address without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
        except OSError:
            return _LOOPBACK
        address: str = probe.getsockname()[0]
    return address


class SocketListener:
    """A listening socket for a thread beside the loop. The thread accepts connections from `socket`."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError."""
        self.socket = socket.create_server((host, port), family=family_of(host))
        self.address = join_address(host, self.socket.getsockname()[1])
        self.is_stopped = False

    def wait(self, timeout_s: float) -> bool:
        """Wait for a connection to accept or for `stop`; return False after the timeout."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def stop(self) -> None:
        """Stop accepting and wake the thread in `wait`. Any thread."""
        self.is_stopped = True
        with contextlib.suppress(OSError):  # not supported for listening sockets everywhere
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the port. No thread may be in `wait`."""
        self.socket.close()
