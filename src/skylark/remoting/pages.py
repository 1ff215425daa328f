"""The pages `/`, `/metrics`, `/health` and `/ready` of a server, with one thread per request."""

from __future__ import annotations

import hmac
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from skylark.remoting.address import SocketListener, is_loopback, split_address
from skylark.remoting.server_metrics import Part, Samples, ServerMetric
from skylark.remoting.tls import ServerTls, accept_socket

log = logging.getLogger(__name__)

PAGES = "there are /metrics, /health and /ready"
PAGES_AT_ONCE_MAX = 32
"""Further connections are closed at once: each uses a thread."""
READ_TIMEOUT_S = 10.0
"""Idle connections are closed after this."""


class ServerMetrics(Collector):
    """The metrics of a server. Reads its state at each scrape, in any thread."""

    def __init__(self, metrics: Mapping[str, ServerMetric], *sources: Callable[[], Samples]) -> None:
        """All samples of the sources are of these metrics."""
        self._metrics = metrics
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, spec in self._metrics.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = kind(name, spec.text, labels=spec.labels)
        for source in self._sources:
            for name, labels, value in source():
                families[name].add_metric(labels, value)
        yield from families.values()


class JoinedMetrics(Collector):
    """The metrics of a server, and of parts that others run in its process: these may be added later."""

    def __init__(self, first: Collector, more: Sequence[Part]) -> None:
        self._first = first
        self._more = more

    def collect(self) -> Iterator[Metric]:
        yield from self._first.collect()
        for metrics, source in self._more:
            yield from ServerMetrics(metrics, source).collect()


class _Quiet(WSGIRequestHandler):
    timeout = READ_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class PageServer(ThreadingWSGIServer):
    """Serves pages on a socket that listens already. `handle_request` returns after `check_s`.

    With TLS that is enforced, plain text is accepted on loopback addresses only.
    """

    def __init__(
        self, listener: SocketListener, pages: Pages, *, check_s: float, tls: ServerTls | None = None
    ) -> None:
        host, port = split_address(listener.address)
        self._tls = tls
        self._allows_plain = tls is None or not tls.is_enforcing or is_loopback(host)
        super().__init__((host, port), _Quiet, bind_and_activate=False)
        self.socket.close()
        self.socket = listener.socket
        self.timeout = check_s
        # No reverse lookup: it may take long.
        self.server_name, self.server_port = host, port
        self.setup_environ()
        self.set_app(pages.answer)
        self._free = threading.BoundedSemaphore(PAGES_AT_ONCE_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            log.debug("connection refused address=%s reason=%d are open", client_address, PAGES_AT_ONCE_MAX)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(READ_TIMEOUT_S)
        with accept_socket(request, self._tls, allows_plain=self._allows_plain) as accepted:
            super().finish_request(accepted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level: mostly the client has disconnected or timed out."""
        log.debug("page not served address=%s reason=%r", client_address, sys.exception())


def security_warnings(tls: ServerTls | None, open_host: str) -> list[str]:
    """Return what is wrong with the security of a server, a line each.

    `open_host` is the address where it is open to the whole network; empty if it is not.
    """
    found = []
    if open_host:
        found.append(f"warning: {open_host} is open: anybody who reaches it may read, write and delete")
    if tls is not None and tls.reload_failure:
        found.append(f"warning: the old certificate is in use: {tls.reload_failure}")
    return found


class Pages:
    """The WSGI application."""

    def __init__(
        self,
        collector: Collector,
        token: str = "",
        *,
        fault: Callable[[], str | None] = lambda: None,
        idle_reason: Callable[[], str | None] = lambda: None,
        warnings: Callable[[], list[str]] = list,
    ) -> None:
        """With a token, only requests that carry it are answered (`Authorization: Bearer TOKEN`).

        `fault` returns why the server does not work, `idle_reason` why a healthy one does not serve now.
        """
        self.collector = collector
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._fault = fault
        self._idle_reason = idle_reason
        self._warnings = warnings
        registry = CollectorRegistry()
        registry.register(collector)
        self._metrics: Any = make_wsgi_app(registry)
        # Concurrent scrapes wait for each other.
        self._scraping = threading.Lock()

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1")
        if self._authorization and not hmac.compare_digest(given, self._authorization):
            headers = [("Content-Type", "text/plain; charset=utf-8"), ("WWW-Authenticate", "Bearer")]
            start_response("401 Unauthorized", headers)
            return [b"the bearer token is missing or wrong\n"]
        if path == "/metrics":
            with self._scraping:
                answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path in ("/health", "/ready"):
            fault = self._fault() if path == "/health" else self._fault() or self._idle_reason()
            status, text = ("200 OK", "ok") if fault is None else ("503 Service Unavailable", fault)
        elif path in ("", "/"):
            status, text = "200 OK", "\n".join([PAGES, *self._warnings()])
        else:
            status, text = "404 Not Found", PAGES
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]
