"""Metrics of a proxy: on its own page, or on that of the broker in whose process it runs."""

from __future__ import annotations

from collections import Counter

from skylark.proxy.clients import ClientTable
from skylark.proxy.schema import ClientType, Code
from skylark.remoting.server_metrics import Samples, ServerMetric

METRICS = {
    "skylark_proxy_calls_total": ServerMetric("Calls by method and code of the reply.", ("method", "code")),
    "skylark_proxy_clients": ServerMetric("Clients by kind and language.", ("kind", "language")),
    "skylark_proxy_streams": ServerMetric("Telemetry streams that are open."),
    "skylark_proxy_connections": ServerMetric("Connections of clients."),
    "skylark_proxy_renewed_messages": ServerMetric("Messages of push consumers that are renewed."),
}


class CallCounts:
    """Counters of calls and streams. Written by the loop thread; other threads read copies."""

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, int]] = Counter()
        """Calls by method and code of the reply."""
        self.streams = 0
        """Telemetry streams that are open."""


def proxy_samples(counts: CallCounts, clients: ClientTable, *, connections: int, renewed: int) -> Samples:
    """Yield the samples of `METRICS`. Any thread: the tables are copied before they are read."""
    for (method, code), count in dict(counts.ended).items():
        yield "skylark_proxy_calls_total", (method, Code(code).name), count
    kinds = Counter(
        (ClientType(each.settings.client_type).name.lower(), each.language)
        for each in list(clients)
        if each.settings is not None
    )
    for labels, count in kinds.items():
        yield "skylark_proxy_clients", labels, count
    yield "skylark_proxy_streams", (), counts.streams
    yield "skylark_proxy_connections", (), connections
    yield "skylark_proxy_renewed_messages", (), renewed
