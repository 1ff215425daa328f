"""An address that swallows connections: as of a machine that is off, nobody accepts and nobody refuses."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
FILLERS = 4


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """A listener whose queue of connections is full: the kernel drops whoever comes then."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind((HOST, 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        for _ in range(FILLERS):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
        yield f"{HOST}:{port}"
