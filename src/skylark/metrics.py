"""What a broker measures: names, kinds, labels and meanings. `python -m skylark.metrics` is the reference.

RocketMQ's own names begin with `rocketmq_` and carry the common labels; what only Skylark has begins with
`skylark_`. Counters are shown with `_total` behind their name.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

COMMON_LABELS = ("cluster", "node_type", "node_id")
"""Of every `rocketmq_` metric: the cluster's name, `broker`, and the broker's name."""
_STORAGE = ("storage_type", "storage_medium")
_IN = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_system", "is_retry")
_CLIENT = ("language", "version", "protocol_type")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric, as it is written: `labels` are those it has besides the common ones."""

    kind: Literal["gauge", "counter"]
    text: str
    labels: tuple[str, ...] = ()


METRICS = {
    # RocketMQ's.
    "rocketmq_broker_permission": MetricSpec("gauge", "Permission bits of the broker: 4 read, 2 write."),
    "rocketmq_topic_number": MetricSpec("gauge", "Topics."),
    "rocketmq_consumer_group_number": MetricSpec("gauge", "Consumer groups."),
    "rocketmq_messages_in_total": MetricSpec("counter", "Messages stored, by the topic that took them.", _IN),
    "rocketmq_throughput_in_total": MetricSpec("counter", "Bytes stored, by the topic that took them.", _IN),
    "rocketmq_messages_out_total": MetricSpec("counter", "Messages pulled.", _OUT),
    "rocketmq_throughput_out_total": MetricSpec("counter", "Bytes pulled.", _OUT),
    "rocketmq_producer_connections": MetricSpec("gauge", "Producers that are connected.", _CLIENT),
    "rocketmq_consumer_connections": MetricSpec(
        "gauge", "Consumers that are connected.", (*_CLIENT, "consumer_group", "consume_mode", "is_system")
    ),
    "rocketmq_consumer_lag_messages": MetricSpec("gauge", "Messages stored and not yet consumed.", _OUT),
    "rocketmq_consumer_lag_latency": MetricSpec(
        "gauge", "Age of the oldest message not yet consumed, in milliseconds.", _OUT
    ),
    "rocketmq_consumer_inflight_messages": MetricSpec("gauge", "Messages pulled and not yet consumed.", _OUT),
    "rocketmq_consumer_ready_messages": MetricSpec("gauge", "Messages stored and not yet pulled.", _OUT),
    "rocketmq_consumer_queueing_latency": MetricSpec(
        "gauge", "Age of the oldest message not yet pulled, in milliseconds.", _OUT
    ),
    "rocketmq_send_to_dlq_messages_total": MetricSpec(
        "counter",
        "Messages stored in a group's dead-letter topic, which is the label `topic`.",
        ("consumer_group", "topic", "is_system"),
    ),
    "rocketmq_half_messages": MetricSpec("gauge", "Transactions that are neither committed nor rolled back."),
    "rocketmq_commit_messages_total": MetricSpec(
        "counter", "Messages of transactions that were committed.", ("topic",)
    ),
    "rocketmq_rollback_messages_total": MetricSpec(
        "counter", "Messages of transactions that were rolled back.", ("topic",)
    ),
    "rocketmq_storage_size": MetricSpec(
        "gauge", "Bytes of the commit log, from the oldest record that is kept to the end.", _STORAGE
    ),
    "rocketmq_storage_flush_behind_bytes": MetricSpec(
        "gauge", "Bytes of the log that are not yet on disk.", _STORAGE
    ),
    "rocketmq_storage_dispatch_behind_bytes": MetricSpec(
        "gauge", "Bytes of the log that consumers cannot see yet.", _STORAGE
    ),
    "rocketmq_storage_message_reserve_time": MetricSpec(
        "gauge", "Age of the oldest message that is kept, in milliseconds.", _STORAGE
    ),
    "rocketmq_timing_messages": MetricSpec(
        "gauge", "Messages whose time has not come, by topic.", ("topic",)
    ),
    "rocketmq_timer_enqueue_lag": MetricSpec("gauge", "Timed messages that are not in the timer wheel yet."),
    "rocketmq_timer_dequeue_latency": MetricSpec(
        "gauge", "How far the delivery of timed messages is behind the clock, in milliseconds."
    ),
    # Ours.
    "skylark_held_pulls": MetricSpec("gauge", "Pulls that wait for messages."),
    "skylark_messages_refused_total": MetricSpec("counter", "Messages that the store did not take."),
    "skylark_pulls_empty_total": MetricSpec("counter", "Pulls that found nothing."),
    "skylark_messages_sent_back_total": MetricSpec(
        "counter", "Messages that consumers failed and gave back.", ("topic", "consumer_group")
    ),
    "skylark_timed_messages": MetricSpec("gauge", "Messages whose time has not come, of all topics."),
    "skylark_log_min_offset": MetricSpec("gauge", "Physical offset of the oldest record."),
    "skylark_log_appended_offset": MetricSpec("gauge", "Physical offset of the log's end."),
    "skylark_log_flushed_offset": MetricSpec("gauge", "Physical offset up to which the log is on disk."),
    "skylark_store_writable": MetricSpec("gauge", "1 if messages can be stored now, 0 if not."),
    "skylark_slaves": MetricSpec("gauge", "Slaves that are connected. Of a master."),
    "skylark_slave_lag_bytes": MetricSpec("gauge", "Bytes that a slave lacks. Of a master.", ("slave",)),
    "skylark_slave_lag_seconds": MetricSpec(
        "gauge", "For how long a slave has not had all of the log. Of a master.", ("slave",)
    ),
    "skylark_master_connected": MetricSpec("gauge", "1 if the link to the master is open. Of a slave."),
    "skylark_master_connections_total": MetricSpec("counter", "Links made to the master. Of a slave."),
    "skylark_master_lag_bytes": MetricSpec("gauge", "Bytes of the log that are missing here. Of a slave."),
    "skylark_master_lag_seconds": MetricSpec(
        "gauge", "For how long some of the log has been missing here. Of a slave."
    ),
}
"""All metrics, by the name under which they are scraped."""

HEAD = f"""# Metrics

A broker answers `GET /metrics` on port 5557 (`metrics_port`) in Prometheus's text format. This page is
written by `python -m skylark.metrics`.

- Metrics whose names begin with `rocketmq_` have RocketMQ 5's names, and the labels
  {", ".join(f"`{label}`" for label in COMMON_LABELS)} besides those in the table. Those that begin with
  `skylark_` are ours; Prometheus's own label `instance` tells brokers apart.
- Times are in milliseconds where RocketMQ has them so; the others end in `_seconds`.
- `message_type` is the type that the topic declares, in small letters, and `unspecified` if it declares none.
  A delayed, timed or half message counts for the system topic in which it waits.
- `version` is the number of the client's protocol version; `protocol_type` is always `remoting`.
- Topics, and pairs of a topic and a group, have series of their own if they are among the 1,000 busiest; for
  lag, among the 1,000 pairs with the most messages to go. Ages are read from the log, in one scrape for at
  most 1,000 queues, the pairs with the greatest lag first; the others have no series for their age.
- Not measured: RocketMQ's histograms, and what belongs to pop, to proxies and to thread pools.

`GET /health` answers 200, or 503 with the reason why no message can be stored. `GET /ready` answers 200 if
the broker does its work now, else 503 with the reason: a master must be able to store, and its permission
must let it be read or written; a slave must also be connected to its master.

| Metric | Kind | Labels | Meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """The whole page."""
    rows = (
        f"| `{name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} | {spec.text} |\n"
        for name, spec in METRICS.items()
    )
    return HEAD + "".join(rows).replace("|  |", "| |")


if __name__ == "__main__":
    sys.stdout.write(markdown())
