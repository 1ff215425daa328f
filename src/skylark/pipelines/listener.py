"""LagListener: follows a session's queries, measures their lag and commits a group's offsets.

    listener = LagListener("127.0.0.1:9876", "orders-lake", metrics_port=9100)
    spark.streams.addListener(listener)
    …
    listener.detach(spark)

It works in its own thread, on the newest progress only, and never fails a query. In a classic session it
runs in the driver, under Spark Connect in the client; if the client disconnects, the reader's own offset
commits remain, which are one batch behind.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Gauge, generate_latest, start_http_server
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from skylark.errors import RocketMQError
from skylark.model.record import decode_all
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.offsets import Offsets, from_nested
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.pull import PullMessage
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import client_credentials
from skylark.settings.tls import client_tls_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LABELS = ("group", "topic", "broker", "queue")


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A queue's lag. Bytes are estimated; seconds are the age of the first unread message."""

    queue: MessageQueue
    messages: int
    record_bytes: int
    seconds: float


def measure(brokers: ClusterClient, offsets: Mapping[MessageQueue, int], now_ms: int) -> list[QueueLag]:
    """Return the lag of every queue. Raises RocketMQError."""
    queues = sorted(offsets)
    highs = brokers.max_offsets(queues)
    behind = [queue for queue in queues if highs[queue] > offsets[queue]]
    sizes = dict(zip(behind, _sizes(brokers, behind, offsets), strict=True))
    stored = dict(zip(behind, _stored_ms(brokers, behind, offsets), strict=True))
    lags = []
    for queue in queues:
        messages = max(highs[queue] - offsets[queue], 0)
        since_ms = stored.get(queue)
        seconds = 0.0 if since_ms is None else max(now_ms - since_ms, 0) / 1000
        lags.append(QueueLag(queue, messages, round(messages * sizes.get(queue, 0.0)), seconds))
    return lags


def _sizes(
    brokers: ClusterClient, queues: Sequence[MessageQueue], offsets: Mapping[MessageQueue, int]
) -> list[float]:
    try:
        samples = brokers.record_bytes([(queue, offsets[queue]) for queue in queues])
    except RocketMQError:  # the broker does not support the request
        return [0.0] * len(queues)
    return [sum(sample) / len(sample) if sample else 0.0 for sample in samples]


def _stored_ms(
    brokers: ClusterClient, queues: Sequence[MessageQueue], offsets: Mapping[MessageQueue, int]
) -> list[int | None]:
    """Store time of the first message at or after each offset."""
    pulls = [(queue, PullMessage.plain(queue, offsets[queue], messages_max=1)) for queue in queues]
    return [
        next((message.store_timestamp for message in decode_all(answer.records, check_crc=False)), None)
        for answer in brokers.ask_all(pulls)
    ]


class LagGauges:
    """Lag as Prometheus metrics."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._gauges = {
            field: Gauge(f"skylark_spark_lag_{name}", f"Lag in {name}", _LABELS, registry=self.registry)
            for field, name in (("messages", "messages"), ("record_bytes", "bytes"), ("seconds", "seconds"))
        }

    def show(self, group: str, lags: Sequence[QueueLag]) -> None:
        for lag in lags:
            queue = lag.queue
            for field, gauge in self._gauges.items():
                labels = gauge.labels(group, queue.topic, queue.broker_name, str(queue.queue_id))
                labels.set(getattr(lag, field))

    def text(self) -> str:
        return generate_latest(self.registry).decode()


log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 5.0
LOG_INTERVAL_S = 10.0
CLOSE_TIMEOUT_S = 10.0
END_TIMEOUT_S = 30.0
"""How long to wait for a query's end event: about a second, much longer on a busy machine."""


class LagListener(StreamingQueryListener):
    """Serves one group. `query` is a query's name or id; by default all queries that read topics count."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        query: str | None = None,
        write_offsets: bool = True,
        metrics_port: int | None = None,
        log_interval_s: float = LOG_INTERVAL_S,
        client: ClientSettings | None = None,
    ) -> None:
        """`metrics_port` serves Prometheus text; 0 picks a free port. `client` holds credentials and TLS."""
        client = client or ClientSettings()
        self.group = group
        self.gauges = LagGauges()
        self.lags: list[QueueLag] = []
        self._query = query
        self._write_offsets = write_offsets
        self._log_interval_s = log_interval_s
        self._logged_at = float("-inf")
        self._brokers = ClusterClient(
            namesrv,
            request_timeout_s=REQUEST_TIMEOUT_S,
            retry_timeout_s=0,
            credentials=client_credentials(client),
            tls=client_tls_settings(client),
        )
        self._condition = threading.Condition()
        self._newest: Offsets | None = None
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._is_busy = False
        self._is_closed = False
        self._server: Any = None
        if metrics_port is not None:
            self._server, _ = start_http_server(metrics_port, "127.0.0.1", self.gauges.registry)
        self._thread = threading.Thread(target=self._work, name=f"lag of {group}", daemon=True)
        self._thread.start()

    @property
    def metrics_port(self) -> int | None:
        return None if self._server is None else int(self._server.server_port)

    # --- Called by Spark ---

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._condition:
            self._started.add(str(event.runId))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._condition:
            self._ended.add(str(event.runId))
            self._condition.notify_all()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self._query is None or self._query in (progress.name, str(progress.id)):
            offsets: Offsets = {}
            for source in progress.sources:
                offsets.update(offsets_of(source.endOffset))
            if offsets:
                self.advance(offsets)

    # --- Thread-safe methods ---

    def advance(self, offsets: Mapping[Any, int]) -> None:
        """Note a query's progress; returns immediately."""
        with self._condition:
            self._newest = {**(self._newest or {}), **offsets}
            self._condition.notify_all()

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until all noted progress is committed; return False on timeout."""
        with self._condition:
            return self._condition.wait_for(lambda: self._newest is None and not self._is_busy, timeout_s)

    def detach(self, spark: SparkSession, timeout_s: float = END_TIMEOUT_S) -> None:
        """Wait for the end events of all started queries, leave the session, then close.

        A Connect session's `removeListener` waits for events while it holds a lock that they need: it would
        deadlock on an outstanding event. On timeout the listener stays registered until the session stops.
        """
        with self._condition:
            has_ended = self._condition.wait_for(lambda: self._started <= self._ended, timeout_s)
        if has_ended:
            spark.streams.removeListener(self)
        else:
            log.warning("query end event missing group=%s waited_s=%s", self.group, timeout_s)
        self.close()

    def close(self) -> None:
        """Commit outstanding progress and stop. Events of an ended query may arrive up to a second later."""
        self.flush()
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._brokers.close()

    # --- The thread ---

    def _work(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._newest is not None or self._is_closed)
                offsets, self._newest = self._newest, None
                if offsets is None:
                    return
                self._is_busy = True
            try:
                self._act(offsets)
            except (RocketMQError, OSError) as error:
                log.warning("cannot measure lag group=%s error=%s", self.group, error)
            finally:
                with self._condition:
                    self._is_busy = False
                    self._condition.notify_all()

    def _act(self, offsets: Offsets) -> None:
        if self._write_offsets:
            self._brokers.advance_offsets(self.group, offsets)
        self.lags = measure(self._brokers, offsets, round(time.time() * 1000))
        self.gauges.show(self.group, self.lags)
        now = time.monotonic()
        if now - self._logged_at >= self._log_interval_s:
            self._logged_at = now
            log.info(
                "lag group=%s messages=%d bytes=%d seconds=%.1f",
                self.group,
                sum(lag.messages for lag in self.lags),
                sum(lag.record_bytes for lag in self.lags),
                max((lag.seconds for lag in self.lags), default=0.0),
            )


def offsets_of(text: object) -> Offsets:
    """Offsets in a source's progress; empty for sources of other formats."""
    try:
        return from_nested(msgspec.json.decode(text)) if isinstance(text, str) else {}
    except (msgspec.DecodeError, ValueError):
        return {}
