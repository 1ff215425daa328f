"""Addresses as RocketMQ writes them: `host:port`, `[v6]:port`."""

import contextlib
import errno
import ipaddress
import socket

from skylark.errors import SettingsError

FREE_PORT_TRIES = 100


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


def free_port(host: str, *distances: int) -> int:
    """Return a port that is free now, and so are those at these distances from it. Raises OSError."""
    for _ in range(FREE_PORT_TRIES):
        with contextlib.ExitStack() as stack:
            probe = stack.enter_context(socket.socket(_family(host)))
            probe.bind((host, 0))
            port: int = probe.getsockname()[1]
            with contextlib.suppress(OSError):
                for distance in distances:
                    if distance:
                        stack.enter_context(socket.socket(_family(host))).bind((host, port + distance))
                return port
    raise OSError(errno.EADDRINUSE, f"no free ports together on {host}")


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


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
