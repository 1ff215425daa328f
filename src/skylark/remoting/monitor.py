"""The HTTP port for metrics and health, served by a thread of its own.

`pages` is imported at the first request: servers that are never scraped do not load it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from skylark.remoting.address import PORT_MAX, SocketListener, join_address, reason_of
from skylark.remoting.tls import ServerTls

if TYPE_CHECKING:
    from skylark.remoting.pages import Pages

log = logging.getLogger(__name__)

PORTS_TRIED = 100
"""Ports from the wanted one on that are tried if it is taken."""
STOP_CHECK_S = 1.0
"""Interval at which the thread checks for a stop, where nothing wakes it."""
STOP_TIMEOUT_S = 2.0
"""Limit of waiting for the thread when the server stops."""


class Monitor:
    """Serves `/metrics`, `/health` and `/ready`."""

    def __init__(self, make_pages: Callable[[], Pages], tls: ServerTls | None = None) -> None:
        self._make_pages = make_pages
        self._tls = tls
        self._listener: SocketListener | None = None
        self._thread: threading.Thread | None = None
        self.address = ""
        """Where the pages are served; empty if they are not."""
        self.remark = ""
        """Why they are served elsewhere than wanted, or not at all."""

    def start(self, host: str, port: int) -> None:
        """Listen on a port, or on the next free one: several servers may run on one machine.

        A port that cannot be had for another reason is logged, and the server runs without the pages.
        """
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            self.remark = f"no metrics on {join_address(host, port)}: {reason_of(error)}"
            log.warning("%s", self.remark)
            return
        self.address = self._listener.address
        if port and self.address != join_address(host, port):
            self.remark = f"port {port} is taken"
        self._thread = threading.Thread(
            target=self._serve, args=(self._listener,), name="skylark-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None or self._thread is None:
            return
        listener.stop()
        self._thread.join(STOP_TIMEOUT_S)
        listener.close()

    def _serve(self, listener: SocketListener) -> None:
        while not listener.wait(STOP_CHECK_S) and not listener.is_stopped:
            pass
        if listener.is_stopped:
            return
        from skylark.remoting.pages import PageServer  # noqa: PLC0415 - see above

        server = PageServer(listener, self._make_pages(), check_s=STOP_CHECK_S, tls=self._tls)
        while not listener.is_stopped:
            server.handle_request()


def _listen(host: str, port: int) -> SocketListener:
    """Raises OSError."""
    last = min(port + PORTS_TRIED, PORT_MAX + 1) - 1
    while True:
        try:
            return SocketListener(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port >= last:
                raise
            port += 1
