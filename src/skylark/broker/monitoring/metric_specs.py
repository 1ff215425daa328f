"""Names, kinds, labels and meanings of a broker's metrics.

`python -m skylark.broker.monitoring.metric_specs` prints the reference page. Names of RocketMQ begin with
`rocketmq_` and carry the common labels; Skylark's own begin with `skylark_`. Counters end in `_total`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from skylark.histogram import CREATION_MS, DELAY_S, MESSAGE_BYTES, REQUEST_MS, TRANSACTION_S
from skylark.remoting.server_metrics import SECURITY

COMMON_LABELS = ("cluster", "node_type", "node_id")
"""Labels of every `rocketmq_` metric: cluster name, `broker`, broker name."""
_STORAGE = ("storage_type", "storage_medium")
_TIMED = ("topic", *_STORAGE)
_IN = ("topic", "message_type", "is_system")
_OUT = ("topic", "consumer_group", "is_system", "is_retry")
_POPPED = ("consumer_group", "topic")
_REVIVE = ("revive_message_type",)
_STATUS = "put_status"
_CLIENT = ("language", "version", "protocol_type")
_CREATION = ("invocation_status", "is_system")
_REQUEST = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric, as it is written: `labels` are those it has besides the common ones, and `le`."""

    kind: Literal["gauge", "counter", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()
    """Bounds of a histogram, in the unit of the text; the last range is unbounded."""


METRICS = {
    # RocketMQ's.
    "rocketmq_processor_watermark": MetricSpec(
        "gauge",
        "Requests in flight: sends that wait for disk or slaves, pulls and queries that wait for the disk, "
        "others that wait for clients or name servers.",
        ("processor",),
    ),
    "rocketmq_broker_permission": MetricSpec("gauge", "Permission bits of the broker: 4 read, 2 write."),
    "rocketmq_topic_number": MetricSpec("gauge", "Topics."),
    "rocketmq_consumer_group_number": MetricSpec("gauge", "Consumer groups."),
    "rocketmq_messages_in_total": MetricSpec("counter", "Messages stored, by the topic that took them.", _IN),
    "rocketmq_throughput_in_total": MetricSpec("counter", "Bytes stored, by the topic that took them.", _IN),
    "rocketmq_message_size": MetricSpec(
        "histogram",
        "Bytes of a message as it is stored. Those of a batch count with their average.",
        _IN,
        MESSAGE_BYTES,
    ),
    "rocketmq_messages_out_total": MetricSpec("counter", "Messages pulled.", _OUT),
    "rocketmq_throughput_out_total": MetricSpec("counter", "Bytes pulled.", _OUT),
    "rocketmq_topic_create_execution_time": MetricSpec(
        "histogram",
        "Milliseconds in which topics were made or changed for an administrator, until name servers knew.",
        _CREATION,
        CREATION_MS,
    ),
    "rocketmq_consumer_group_create_execution_time": MetricSpec(
        "histogram",
        "Milliseconds in which groups were made or changed for an administrator.",
        _CREATION,
        CREATION_MS,
    ),
    "rocketmq_producer_connections": MetricSpec("gauge", "Producers that are connected.", _CLIENT),
    "rocketmq_consumer_connections": MetricSpec(
        "gauge", "Consumers that are connected.", (*_CLIENT, "consumer_group", "consume_mode", "is_system")
    ),
    "rocketmq_consumer_lag_messages": MetricSpec(
        "gauge",
        'Messages stored and not yet consumed; those in a group\'s retry topic have `is_retry="true"`.',
        _OUT,
    ),
    "rocketmq_consumer_lag_latency": MetricSpec(
        "gauge", "Age of the oldest message not yet consumed, in milliseconds.", _OUT
    ),
    "rocketmq_consumer_inflight_messages": MetricSpec("gauge", "Messages pulled and not yet consumed.", _OUT),
    "rocketmq_consumer_ready_messages": MetricSpec("gauge", "Messages stored and not yet pulled.", _OUT),
    "rocketmq_consumer_queueing_latency": MetricSpec(
        "gauge", "Age of the oldest message not yet pulled, in milliseconds.", _OUT
    ),
    "rocketmq_pop_revive_in_message_total": MetricSpec(
        "counter", "Check points (CK) and acknowledgements (ACK) written.", (*_POPPED, *_REVIVE, _STATUS)
    ),
    "rocketmq_pop_revive_out_message_total": MetricSpec(
        "counter", "Check points and acknowledgements read.", (*_POPPED, "queue_id", *_REVIVE)
    ),
    "rocketmq_pop_revive_retry_messages_total": MetricSpec(
        "counter", "Popped messages that were put into a retry topic.", (*_POPPED, _STATUS)
    ),
    "rocketmq_pop_revive_lag": MetricSpec(
        "gauge", "Records of a revive queue that are not dealt with.", ("queue_id",)
    ),
    "rocketmq_pop_revive_latency": MetricSpec(
        "gauge", "By how many milliseconds the first check point of a revive queue is late.", ("queue_id",)
    ),
    "rocketmq_pop_offset_buffer_size": MetricSpec(
        "gauge", "Queues whose committed offset is held back for popped batches."
    ),
    "rocketmq_pop_checkpoint_buffer_size": MetricSpec("gauge", "Popped batches in memory."),
    "rocketmq_send_to_dlq_messages_total": MetricSpec(
        "counter",
        "Messages stored in a group's dead-letter topic, which is the label `topic`.",
        ("consumer_group", "topic", "is_system"),
    ),
    "rocketmq_half_messages": MetricSpec(
        "gauge",
        "Transactions that are neither committed nor rolled back. Of a master; those that it has not looked "
        "at yet have the topic `RMQ_SYS_TRANS_HALF_TOPIC`.",
        ("topic",),
    ),
    "rocketmq_commit_messages_total": MetricSpec(
        "counter", "Messages of transactions that were committed.", ("topic",)
    ),
    "rocketmq_rollback_messages_total": MetricSpec(
        "counter", "Messages of transactions that were rolled back.", ("topic",)
    ),
    "rocketmq_finish_message_latency": MetricSpec(
        "histogram",
        "Seconds from a message's birth until its transaction was committed.",
        ("topic",),
        TRANSACTION_S,
    ),
    "rocketmq_rpc_latency": MetricSpec(
        "histogram",
        "Whole milliseconds from when a request was read until its answer was written.",
        _REQUEST,
        REQUEST_MS,
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
    "rocketmq_timing_messages": MetricSpec("gauge", "Messages whose time has not come, by topic.", _TIMED),
    "rocketmq_timer_enqueue_lag": MetricSpec(
        "gauge", "Timed messages that are not in the timer wheel yet.", _STORAGE
    ),
    "rocketmq_timer_enqueue_latency": MetricSpec(
        "gauge",
        "Age of the oldest timed message that is not in the timer wheel yet, in milliseconds.",
        _STORAGE,
    ),
    "rocketmq_timer_enqueue_total": MetricSpec(
        "counter",
        "Timed messages put into the timer wheel, those included that were put back, or take another back.",
        _TIMED,
    ),
    "rocketmq_timer_dequeue_lag": MetricSpec(
        "gauge", "Timed messages that are in the timer wheel.", _STORAGE
    ),
    "rocketmq_timer_dequeue_latency": MetricSpec(
        "gauge", "How far the delivery of timed messages is behind the clock, in milliseconds.", _STORAGE
    ),
    "rocketmq_timer_dequeue_total": MetricSpec(
        "counter", "Timed messages taken out of the timer wheel, for whatever reason.", _TIMED
    ),
    "rocketmq_timer_message_snapshot": MetricSpec(
        "gauge",
        "Timed messages due within this many seconds, but not within the next smaller bound.",
        ("timer_bound_s", *_STORAGE),
    ),
    "rocketmq_delay_message_latency": MetricSpec(
        "histogram",
        "Seconds from a timed message's birth until it is due: for how long senders want to wait.",
        _TIMED,
        DELAY_S,
    ),
    # Ours.
    "skylark_held_pulls": MetricSpec("gauge", "Held pulls."),
    "skylark_held_pops": MetricSpec("gauge", "Held pops and notifications."),
    "skylark_messages_refused_total": MetricSpec("counter", "Messages that the store did not take."),
    "skylark_pulls_empty_total": MetricSpec("counter", "Pulls that found nothing."),
    **{
        name: MetricSpec("counter" if name.endswith("_total") else "gauge", metric.text, metric.labels)
        for name, metric in SECURITY.items()
    },
    "skylark_messages_sent_back_total": MetricSpec(
        "counter", "Messages that consumers failed and gave back.", ("topic", "consumer_group")
    ),
    "skylark_subscription_kinds": MetricSpec(
        "gauge",
        "Different sets of subscriptions among the connected members of a group. With more than one, "
        "messages are skipped.",
        ("consumer_group",),
    ),
    "skylark_dead_letters": MetricSpec(
        "gauge",
        "Messages in a group's dead-letter topic that were not sent again.",
        ("consumer_group",),
    ),
    "skylark_log_min_offset": MetricSpec("gauge", "Physical offset of the oldest record."),
    "skylark_log_appended_offset": MetricSpec("gauge", "Physical offset of the log's end."),
    "skylark_log_flushed_offset": MetricSpec("gauge", "Physical offset up to which the log is on disk."),
    "skylark_archive_files_held": MetricSpec(
        "gauge", "Expired files of the log that wait until the group `archiveGroup` has read them."
    ),
    "skylark_archive_files_lost_total": MetricSpec(
        "counter", "Files of the log that a full disk deleted before the group `archiveGroup` had read them."
    ),
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

NOT_APPLICABLE = {
    "rocketmq_pop_buffer_scan_time_consume": "Popped batches are sorted by time: none is looked at in vain.",
    "rocketmq_proxy_up": "There is no proxy: clients speak to brokers.",
    "rocketmq_rocksdb_*": "Queues are kept in consume queue files, not in RocksDB.",
    "rocketmq_tiered_store_*": "Messages are kept on local disks, or archived by Spark.",
}
"""RocketMQ's metrics that do not apply to this broker, with reasons."""

UNITS_AT_APACHE = {
    "rocketmq_topic_create_execution_time": "_milliseconds",
    "rocketmq_consumer_group_create_execution_time": "_milliseconds",
    "rocketmq_consumer_lag_latency": "_milliseconds",
    "rocketmq_consumer_queueing_latency": "_milliseconds",
    "rocketmq_finish_message_latency": "_milliseconds",
    "rocketmq_rpc_latency": "_milliseconds",
    "rocketmq_storage_size": "_bytes",
    "rocketmq_storage_message_reserve_time": "_milliseconds",
    "rocketmq_timer_enqueue_latency": "_milliseconds",
    "rocketmq_timer_dequeue_latency": "_milliseconds",
    "rocketmq_delay_message_latency": "_seconds",
}
"""Suffixes that the exporter of Apache's broker 5.3.3 adds to these names."""

HEAD = f"""# Metrics

A broker answers `GET /metrics` on port 5557 (`metrics_port`), or on the next free port if that is taken, in
Prometheus's text format. This page is written by `python -m skylark.broker.monitoring.metric_specs`.

- Metrics whose names begin with `rocketmq_` have RocketMQ 5's names, and the labels
  {", ".join(f"`{label}`" for label in COMMON_LABELS)} besides those in the table. Those that begin with
  `skylark_` are ours; Prometheus's own label `instance` tells brokers apart.
- Times are in milliseconds where RocketMQ has them so; the others end in `_seconds`, or are in seconds as
  their meaning says.
- A histogram is scraped as `_bucket`, `_sum` and `_count`; its bounds are RocketMQ's.
- `message_type` is the type that the topic declares, in small letters, and `normal` if it declares none.
  A delayed, timed or half message counts for the system topic in which it waits, and is of the type `delay`
  or `transaction` there.
- `language`, `version` (`v5_3_3`) and `consume_mode` (`push` or `pull`) are the client's, in small letters;
  `protocol_type` is always `remoting`.
- `request_code` and `response_code` are RocketMQ's names in small letters, `unknown` for requests that are
  not served, and a number for answers without a name. `result` is `success`, `oneway`, or
  `write_channel_failed` if the client was gone when its answer was there. `is_long_polling` is `true` for
  pulls that waited for a message, whose time that is.
- `processor` is RocketMQ's name of the thread pool that serves a request. Here requests wait in no queue:
  requests in flight are counted, so `async_put`, `ack` and `lite_pull` (counted as `pull`) are always 0.
- `invocation_status` is `success` or `failure`.
- Topics, and pairs of a topic and a group, have series of their own if they are among the 1,000 busiest; for
  lag, among the 1,000 pairs with the most messages to go. Ages are read from the log, in one scrape for at
  most 1,000 queues, the pairs with the greatest lag first; the others have no series for their age.
  Sizes, commit times and delays have series for the 100 busiest topics.

`GET /health` answers 200, or 503 with the reason why no message can be stored. `GET /ready` answers 200 if
the broker does its work now, else 503 with the reason: a master must be able to store, and its permission
must let it be read or written; a slave must also be connected to its master.

| Metric | Kind | Labels | Meaning |
|---|---|---|---|
"""


UNITS_HEAD = """
## Dashboards made for Apache's broker

Names are those that RocketMQ documents. The exporter of Apache's broker 5.3.3 adds units to some of them. A
dashboard made for it uses these names; change them to the names above:

"""

NOT_APPLICABLE_HEAD = """
## RocketMQ metrics that a Skylark broker does not have

| Metric | Reason |
|---|---|
"""


def _row(name: str, spec: MetricSpec) -> str:
    text = spec.text
    if spec.bounds:
        text += f" Bounds: {', '.join(f'{bound:,}' for bound in spec.bounds)}."
    return f"| `{name}` | {spec.kind} | {', '.join(f'`{label}`' for label in spec.labels)} | {text} |\n"


def markdown() -> str:
    """The whole page."""
    rows = "".join(_row(name, spec) for name, spec in METRICS.items()).replace("|  |", "| |")
    others = "".join(f"| `{name}` | {reason} |\n" for name, reason in NOT_APPLICABLE.items())
    units = "".join(f"- `{name}{unit}`\n" for name, unit in UNITS_AT_APACHE.items())
    return HEAD + rows + UNITS_HEAD + units + NOT_APPLICABLE_HEAD + others


if __name__ == "__main__":
    sys.stdout.write(markdown())
