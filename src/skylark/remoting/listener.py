"""A port for a thread of its own, beside the loop: it waits for connections, and any thread may end that."""

from __future__ import annotations

import contextlib
import select
import socket

from skylark.remoting.address import family_of, join_address


class Listener:
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
