"""Addresses as RocketMQ writes them (`host:port`, `[v6]:port`), free ports, and a listener for threads."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import random
import select
import socket

from skylark.errors import SettingsError

FREE_PORT_TRIES = 200
SERVER_PORTS = range(20_000, 32_000)
"""Below those that Linux and macOS give to outgoing connections."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return the address of a host and a port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_host(host: str) -> None:
    """Raise SettingsError unless a server can listen on this address, or on that of this name."""
    try:
        with socket.socket(family_of(host)) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:  # the latter for what can be no name
        raise SettingsError("host", f"cannot listen on {host}: {reason_of(error)}") from error


def free_port(host: str, *distances: int) -> int:
    """Return a port that is free now, and so are those at these distances from it. Raises OSError.

    No outgoing connection takes it, so that a server which comes back finds its port free.
    """
    for port in random.sample(SERVER_PORTS, FREE_PORT_TRIES):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for distance in {0, *distances}:
                stack.enter_context(socket.socket(family_of(host))).bind((host, port + distance))
            return port
    raise OSError(errno.EADDRINUSE, f"no free ports together on {host}")


def hold_ports(host: str, *ports: int) -> contextlib.ExitStack:
    """Take ports for nobody: connections to them are refused, and no server gets them meanwhile.

    Closing what is returned frees them. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        for port in ports:
            held = stack.enter_context(socket.socket(family_of(host)))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections may linger
            held.bind((host, port))
        return stack.pop_all()


def reason_of(error: Exception) -> str:
    """Why a connection could not be made, without the address, which whoever says it knows."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


def ip_of(host: str) -> str:
    """The IP address of a host that may be a name, IPv4 if it has one. Raises SettingsError."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for what can be no name
        raise SettingsError("advertised_host", f"{host} has no address: {error}") from error
    *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return str(address[0])


def family_of(host: str) -> socket.AddressFamily:
    """The kind of sockets for an address; a name is looked for among IPv4 addresses."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


_SOMEWHERE = ("192.0.2.1", 9)  # of no network; nothing is sent there
_LOOPBACK = "127.0.0.1"


def local_ip() -> str:
    """Return the IPv4 address that outward connections have; the loopback's without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_SOMEWHERE)
        except OSError:
            return _LOOPBACK
        address: str = probe.getsockname()[0]
    return address


class SocketListener:
    """Listens from the beginning. What accepts connections takes `socket`."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError."""
        self.socket = socket.create_server((host, port), family=family_of(host))
        self.address = join_address(host, self.socket.getsockname()[1])
        self.is_stopped = False

    def wait(self, timeout_s: float) -> bool:
        """Wait for a connection that can be accepted, or for the end; False if there was neither."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def stop(self) -> None:
        """Take no more connections, and wake who waits for one."""
        self.is_stopped = True
        with contextlib.suppress(OSError):  # some systems do not know this for a socket that listens
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the port. Nobody may wait any more."""
        self.socket.close()
