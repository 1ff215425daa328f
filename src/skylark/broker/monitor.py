"""Metrics for Prometheus and a health page, on a port and in a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from skylark.broker.collector import BrokerCollector
from skylark.broker.state import BrokerState
from skylark.broker.topics import Permission
from skylark.remoting.address import join_address

log = logging.getLogger(__name__)

PAGES = "there are /metrics, /health and /ready"
STOP_CHECK_S = 0.02
"""A broker that stops waits for this."""


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class Monitor:
    """Serves `/metrics`, `/health` and `/ready`."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        registry = CollectorRegistry()
        registry.register(BrokerCollector(broker))
        self._metrics: Any = make_wsgi_app(registry)
        # Two that scrape at once shall not read everything at once.
        self._scraping = threading.Lock()
        self._server: WSGIServer | None = None
        self.address = ""

    def start(self, host: str, port: int) -> None:
        """Listen; a port that is taken is reported and does without (several brokers on one machine)."""
        try:
            self._server = make_server(host, port, self._answer, ThreadingWSGIServer, _Quiet)
        except OSError as error:
            log.warning("no metrics on %s: %s", join_address(host, port), error)
            return
        self.address = join_address(host, self._server.server_port)
        serving = partial(self._server.serve_forever, poll_interval=STOP_CHECK_S)
        threading.Thread(target=serving, name="skylark-metrics", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            with self._scraping:
                answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path in ("/health", "/ready"):
            fault = self.fault() if path == "/health" else self.fault() or self.idle_reason()
            status, text = ("200 OK", "ok") if fault is None else ("503 Service Unavailable", fault)
        else:
            status, text = "404 Not Found", PAGES
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    def fault(self) -> str | None:
        """Why no message can be stored, or None."""
        refused = self._broker.store.refusal()
        return None if refused is None else refused.reason

    def idle_reason(self) -> str | None:
        """Why a broker that is well does not do its work now, or None."""
        broker = self._broker
        if broker.role.is_slave:
            return None if broker.slave_status.sees_master else "not connected to its master"
        if not broker.live.current.permission & Permission.READ_WRITE:
            return "its permission is neither to be read nor to be written"
        return None
