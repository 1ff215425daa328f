"""Metrics of a controller for Prometheus, and the HTTP server of them, which has its own threads."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skylark.controller.decisions import Decisions
from skylark.controller.election import Outcome
from skylark.protocol.codes import RequestCode
from skylark.remoting.latency import UNKNOWN_CODE, RequestLatencies

GROUP_LABELS = ("cluster", "broker_set")


class ControllerMetric(NamedTuple):
    """A counter's name ends in `_total`; all others are gauges."""

    text: str
    labels: tuple[str, ...] = ()


METRICS = {
    "rocketmq_controller_role": ControllerMetric("1: this controller leads."),
    "rocketmq_controller_active_broker_num": ControllerMetric("Brokers that are alive.", GROUP_LABELS),
    "rocketmq_controller_election_total": ControllerMetric("Elections by result.", ("election_result",)),
    "rocketmq_controller_request_total": ControllerMetric("Requests.", ("request_type", "response_code")),
    "skylark_controller_master": ControllerMetric("1: the broker name has a living master.", GROUP_LABELS),
    "skylark_controller_master_epoch": ControllerMetric("Master epoch.", GROUP_LABELS),
    "skylark_controller_in_sync_replicas": ControllerMetric("Members of the SyncStateSet.", GROUP_LABELS),
    "skylark_controller_replicas": ControllerMetric("Known replicas.", GROUP_LABELS),
}
"""Only the leader reports groups."""

Samples = Iterator[tuple[str, tuple[str, ...], float]]


class ControllerMetrics(Collector):
    """Reads a controller's state at each scrape, in any thread."""

    def __init__(self, decisions: Decisions, latencies: RequestLatencies) -> None:
        self._decisions = decisions
        self._latencies = latencies

    def collect(self) -> Iterator[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, spec in METRICS.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = kind(name, spec.text, labels=spec.labels)
        for name, labels, value in (*self._own(), *self._groups()):
            families[name].add_metric(labels, value)
        yield from families.values()

    def _own(self) -> Samples:
        decisions = self._decisions
        yield "rocketmq_controller_role", (), decisions.is_leading
        for cluster, name, number in decisions.live.count():
            yield "rocketmq_controller_active_broker_num", (cluster, name), number
        for outcome in Outcome:
            yield "rocketmq_controller_election_total", (outcome.value,), decisions.elections[outcome]
        counts: dict[tuple[int, int], int] = {}
        for (code, answer, _, _), histogram in list(self._latencies.table.items()):
            counts[code, answer] = counts.get((code, answer), 0) + histogram.count
        for (code, answer), number in counts.items():
            kind = "unknown" if code == UNKNOWN_CODE else RequestCode(code).name
            yield "rocketmq_controller_request_total", (kind, str(answer)), number

    def _groups(self) -> Samples:
        if not self._decisions.is_leading:
            return
        for group in list(self._decisions.groups.values()):
            labels = (group.cluster, group.name)
            yield "skylark_controller_master", labels, self._decisions.has_living_master(group)
            yield "skylark_controller_master_epoch", labels, group.master_epoch
            yield "skylark_controller_in_sync_replicas", labels, len(group.members)
            yield "skylark_controller_replicas", labels, len(group.replicas)


class MetricsServer:
    """Serves `/metrics` until it is closed."""

    def __init__(self, collector: ControllerMetrics, host: str, port: int) -> None:
        """Raises OSError."""
        registry = CollectorRegistry()
        registry.register(collector)
        self._server: Any
        self._server, self._thread = start_http_server(port, host, registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
