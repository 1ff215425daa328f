"""Free ports for servers that are started by a command line."""

from __future__ import annotations

import random
import socket

# Below the range from which Linux and macOS take the ports of outgoing connections.
PORTS = range(20_000, 32_000)
TRIES = 200


class PortReservation:
    """Free ports at fixed distances from a base, held by bound sockets until `release`. Raises OSError."""

    def __init__(self, *distances: int) -> None:
        for base in random.sample(PORTS, TRIES):
            self._sockets: list[socket.socket] = []
            try:
                for distance in distances:
                    self._hold(base + distance)
            except OSError:
                self.release()
                continue
            self.base = base
            return
        raise OSError(f"no free ports at distances {distances}")

    def _hold(self, port: int) -> None:
        held = socket.socket()
        self._sockets.append(held)
        held.bind(("", port))

    def release(self) -> None:
        """Free the ports for the server that was meant to have them."""
        while self._sockets:
            self._sockets.pop().close()


def listens(address: str, timeout_s: float) -> bool:
    """Whether something accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout_s).close()
    except OSError:
        return False
    return True
