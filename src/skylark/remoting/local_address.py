"""The address by which others reach this machine."""

import socket

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
