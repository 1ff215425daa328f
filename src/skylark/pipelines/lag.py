"""How far offsets are behind what brokers hold: in messages, in bytes, in seconds; and as Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from skylark.errors import RocketMQError
from skylark.model.record import decode_all
from skylark.pipelines.wire import Cluster, Queue

_LABELS = ("group", "topic", "broker", "queue")


@dataclass(frozen=True, slots=True)
class QueueLag:
    """What of a queue waits behind an offset. Bytes are by a sample; seconds are the age of the first."""

    queue: Queue
    messages: int
    record_bytes: int
    seconds: float


def measure(brokers: Cluster, offsets: Mapping[Queue, int], now_ms: int) -> list[QueueLag]:
    """The lag of every queue. Raises RocketMQError."""
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


def _sizes(brokers: Cluster, queues: Sequence[Queue], offsets: Mapping[Queue, int]) -> list[float]:
    try:
        samples = brokers.record_bytes([(queue, offsets[queue]) for queue in queues])
    except RocketMQError:  # a broker that does not show its queues
        return [0.0] * len(queues)
    return [sum(sample) / len(sample) if sample else 0.0 for sample in samples]


def _stored_ms(brokers: Cluster, queues: Sequence[Queue], offsets: Mapping[Queue, int]) -> list[int | None]:
    """When the first message behind each offset was stored."""
    pulls = [(queue, brokers.pull_request(queue, offsets[queue], messages_max=1)) for queue in queues]
    return [
        next((message.store_timestamp for message in decode_all(answer.records, check_crc=False)), None)
        for answer in brokers.ask_all(pulls)
    ]


class LagGauges:
    """Lags as metrics."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._gauges = {
            field: Gauge(f"skylark_spark_lag_{name}", f"Lag in {name}", _LABELS, registry=self.registry)
            for field, name in (("messages", "messages"), ("record_bytes", "bytes"), ("seconds", "seconds"))
        }

    def show(self, group: str, lags: Sequence[QueueLag]) -> None:
        """Take over what was measured."""
        for lag in lags:
            queue = lag.queue
            for field, gauge in self._gauges.items():
                labels = gauge.labels(group, queue.topic, queue.broker_name, str(queue.queue_id))
                labels.set(getattr(lag, field))

    def text(self) -> str:
        """Prometheus text."""
        return generate_latest(self.registry).decode()
