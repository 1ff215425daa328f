"""Metrics that all kinds of servers have: what access control and TLS refused, requests by code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from skylark.protocol.codes import RequestCode
from skylark.remoting.latency import UNKNOWN_CODE, RequestLatencies
from skylark.remoting.tls import ServerTls


class ServerMetric(NamedTuple):
    """A counter's name ends in `_total`; all others are gauges."""

    text: str
    labels: tuple[str, ...] = ()


SECURITY = {
    "skylark_auth_refused_total": ServerMetric(
        "Requests that access control refused, by reason.", ("reason",)
    ),
    "skylark_insecure_listener": ServerMetric(
        "1 if the server listens on the network without authentication, 0 if not."
    ),
    "skylark_tls_handshakes_total": ServerMetric(
        "TLS handshakes, by `result`: `completed`, `failed`, or `refused` for too many of an address.",
        ("result",),
    ),
    "skylark_tls_reload_failed": ServerMetric(
        "1 if changed certificate files could not be loaded and the old certificate is in use."
    ),
}

HANDSHAKE_RESULTS = ("completed", "failed", "refused")

Samples = Iterator[tuple[str, tuple[str, ...], float]]
"""Name, values of the labels, value."""
Part = tuple[Mapping[str, ServerMetric], Callable[[], Samples]]
"""Metrics of a part of a process, and what yields their samples at each scrape."""


def security_samples(tls: ServerTls | None, refusals: Mapping[str, int], *, is_insecure: bool) -> Samples:
    """Yield the samples of `SECURITY`."""
    for reason, count in list(refusals.items()):
        yield "skylark_auth_refused_total", (reason,), count
    yield "skylark_insecure_listener", (), is_insecure
    handshakes = dict.fromkeys(HANDSHAKE_RESULTS, 0) if tls is None else tls.handshake_counts
    for result, count in handshakes.items():
        yield "skylark_tls_handshakes_total", (result,), count
    yield "skylark_tls_reload_failed", (), tls is not None and bool(tls.reload_failure)


def security_faults(tls: ServerTls | None, open_host: str) -> dict[str, str]:
    """Return the faults in the security of a server, for `skylark doctor`.

    `open_host` is the address where it is open to the whole network; empty if it is not.
    """
    found = {"tlsReloadFailure": "" if tls is None else tls.reload_failure, "insecureListener": open_host}
    return {name: value for name, value in found.items() if value}


def request_samples(name: str, latencies: RequestLatencies) -> Samples:
    """Yield the number of requests by the name of their code and by the code of the reply."""
    counts: dict[tuple[int, int], int] = {}
    for (code, answer, _, _), histogram in list(latencies.table.items()):
        counts[code, answer] = counts.get((code, answer), 0) + histogram.count
    for (code, answer), number in counts.items():
        kind = "unknown" if code == UNKNOWN_CODE else RequestCode(code).name
        yield name, (kind, str(answer)), number
