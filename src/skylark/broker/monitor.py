"""Metrics for Prometheus and a health page, on a port and in a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer

from skylark.broker.state import BrokerState
from skylark.remoting.address import join_address

log = logging.getLogger(__name__)

STOP_CHECK_S = 0.02
"""A broker that stops waits for this."""
SERIES_MAX = 1000
"""Topics, and pairs of topics and groups, with series of their own: those with the most messages."""


class BrokerCollector:
    """Reads the broker's tables when somebody scrapes. Any thread: numbers are read, nothing is changed."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        broker, store = self._broker, self._broker.store
        yield from self._totals()
        gauges = {
            "rocketmq_broker_permission": ("Permission bits of the broker", broker.live.current.permission),
            "rocketmq_topic_number": ("Topics", len(broker.topics)),
            "rocketmq_consumer_group_number": ("Consumer groups", len(broker.groups)),
            "skylark_held_pulls": ("Pulls that wait for messages", broker.long_polling.count),
            "skylark_timed_messages": ("Messages whose time has not come", broker.timers.waiting),
            "skylark_open_transactions": ("Half messages that are open", broker.transactions.open_count),
            "skylark_log_min_offset": ("Physical offset of the oldest record", store.log.min_offset),
            "skylark_log_appended_offset": (
                "Physical offset of the log's end",
                store.appended_offset,
            ),
            "skylark_log_flushed_offset": (
                "Physical offset up to which it is on disk",
                store.flushed_offset,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        yield from self._of_slave() if broker.role.is_slave else self._of_slaves()

    def _of_slaves(self) -> Iterator[Metric]:
        """What a master knows of its slaves."""
        lags = self._broker.replication.lags()
        in_bytes = GaugeMetricFamily(
            "skylark_slave_lag_bytes", "Bytes that a slave lacks of the log", labels=["slave"]
        )
        in_seconds = GaugeMetricFamily(
            "skylark_slave_lag_seconds", "For how long a slave has not had all of the log", labels=["slave"]
        )
        for address, lag_bytes, lag_s in lags:
            in_bytes.add_metric([address], lag_bytes)
            in_seconds.add_metric([address], lag_s)
        yield GaugeMetricFamily("skylark_slaves", "Slaves that are connected", value=len(lags))
        yield from (in_bytes, in_seconds)

    def _of_slave(self) -> Iterator[Metric]:
        """What a slave knows of itself."""
        slave = self._broker.slave_status
        gauges = {
            "skylark_master_connected": ("The link to the master is open", int(slave.sees_master)),
            "skylark_master_lag_bytes": ("Bytes that this slave lacks of the log", slave.lag_bytes),
            "skylark_master_lag_seconds": (
                "For how long this slave has not had all of the log",
                slave.lag_s(self._broker.clock.now_ms()),
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            "skylark_master_connections", "Links made to the master", value=slave.connections
        )

    def _totals(self) -> Iterator[Metric]:
        stats = self._broker.stats
        by_topic = CounterMetricFamily("rocketmq_messages_in", "Messages stored", labels=["topic"])
        in_bytes = CounterMetricFamily("rocketmq_throughput_in", "Bytes stored", labels=["topic"])
        for topic, counter in most(stats.topic_puts):
            by_topic.add_metric([topic], counter.count)
            in_bytes.add_metric([topic], counter.size)
        out = CounterMetricFamily(
            "rocketmq_messages_out", "Messages pulled", labels=["topic", "consumer_group"]
        )
        out_bytes = CounterMetricFamily(
            "rocketmq_throughput_out", "Bytes pulled", labels=["topic", "consumer_group"]
        )
        for key, counter in most(stats.group_gets):
            out.add_metric(list(key), counter.count)
            out_bytes.add_metric(list(key), counter.size)
        yield from (by_topic, in_bytes, out, out_bytes)
        yield CounterMetricFamily("skylark_messages_refused", "Messages refused", value=stats.refused)


def most(table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The busiest entries of a table."""
    items = list(table.items())
    if len(items) <= SERIES_MAX:
        return items
    return sorted(items, key=lambda item: item[1].count, reverse=True)[:SERIES_MAX]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class Monitor:
    """Serves `/metrics` and `/health`."""

    def __init__(self, broker: BrokerState) -> None:
        self._broker = broker
        registry = CollectorRegistry()
        registry.register(BrokerCollector(broker))
        self._metrics: Any = make_wsgi_app(registry)
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
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path == "/health":
            refused = self._broker.store.refusal()
            status = "200 OK" if refused is None else "503 Service Unavailable"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [(b"ok\n" if refused is None else refused.reason.encode() + b"\n")]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"there are /metrics and /health\n"]
