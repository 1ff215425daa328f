"""Metrics of a controller for Prometheus, and the HTTP server of them, which has its own threads."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skylark.controller.decisions import Decisions
from skylark.controller.election import Outcome
from skylark.protocol.codes import RequestCode
from skylark.remoting.latency import UNKNOWN_CODE, RequestLatencies

GROUP_LABELS = ("cluster", "broker_set")


class ControllerMetrics(Collector):
    """Reads a controller's state at each scrape, in any thread."""

    def __init__(self, decisions: Decisions, latencies: RequestLatencies) -> None:
        self._decisions = decisions
        self._latencies = latencies

    def collect(self) -> Iterator[Metric]:
        decisions = self._decisions
        yield GaugeMetricFamily(
            "rocketmq_controller_role", "1: this controller leads.", value=int(decisions.is_leading)
        )
        alive = GaugeMetricFamily(
            "rocketmq_controller_active_broker_num", "Brokers that are alive.", labels=GROUP_LABELS
        )
        for cluster, name, number in decisions.live.count():
            alive.add_metric((cluster, name), number)
        yield alive
        yield from self._groups()
        elections = CounterMetricFamily(
            "rocketmq_controller_election", "Elections by result.", labels=("election_result",)
        )
        for outcome in Outcome:
            elections.add_metric((outcome.value,), decisions.elections[outcome])
        yield elections
        requests = CounterMetricFamily(
            "rocketmq_controller_request",
            "Requests by type and response code.",
            labels=("request_type", "response_code"),
        )
        counts: dict[tuple[int, int], int] = {}
        for (code, answer, _, _), histogram in list(self._latencies.table.items()):
            counts[code, answer] = counts.get((code, answer), 0) + histogram.count
        for (code, answer), number in counts.items():
            kind = "unknown" if code == UNKNOWN_CODE else RequestCode(code).name
            requests.add_metric((kind, str(answer)), number)
        yield requests

    def _groups(self) -> Iterator[Metric]:
        masters = GaugeMetricFamily(
            "skylark_controller_master", "1: the broker name has a living master.", labels=GROUP_LABELS
        )
        epochs = GaugeMetricFamily("skylark_controller_master_epoch", "Master epoch.", labels=GROUP_LABELS)
        members = GaugeMetricFamily(
            "skylark_controller_in_sync_replicas", "Members of the SyncStateSet.", labels=GROUP_LABELS
        )
        replicas = GaugeMetricFamily("skylark_controller_replicas", "Known replicas.", labels=GROUP_LABELS)
        if self._decisions.is_leading:
            for group in list(self._decisions.groups.values()):
                labels = (group.cluster, group.name)
                masters.add_metric(labels, int(self._decisions.has_living_master(group)))
                epochs.add_metric(labels, group.master_epoch)
                members.add_metric(labels, len(group.members))
                replicas.add_metric(labels, len(group.replicas))
        yield from (masters, epochs, members, replicas)


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
