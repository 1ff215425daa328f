"""Rows with all columns, as Spark shows them and as they were produced, and hashes to compare them by."""

from __future__ import annotations

import hashlib

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.support.pipeline_cluster import PipelineCluster
from tests.support.record_rows import rows_of


def digests(rows: list[dict[str, object]]) -> list[str]:
    """A hash of all columns of every row, sorted."""

    def text(value: object) -> str:
        return repr(sorted(value.items()) if isinstance(value, dict) else value)

    texts = [repr([(name, text(value)) for name, value in sorted(row.items())]) for row in rows]
    return sorted(hashlib.sha256(item.encode()).hexdigest() for item in texts)


def produced(cluster: PipelineCluster, topic: str) -> list[dict[str, object]]:
    """What the broker holds, pulled and decoded one record at a time, as Spark shows it."""
    rows: list[dict[str, object]] = []
    for queue in cluster.wire.queues(topic, refresh=True):
        at, end = 0, cluster.wire.max_offsets([queue])[queue]
        while at < end:
            records = bytes(cluster.wire.pull(queue, at).records)
            part = rows_of(records, queue.broker_name)
            at += len(part)
            rows += part
    for row in rows:
        del row["bodyText"]
        row["properties"] = dict(row["properties"])  # type: ignore[call-overload]
    return rows


def as_rows(frame: DataFrame) -> list[dict[str, object]]:
    """Rows of Spark in the same shape: times as microseconds."""
    frame = frame.withColumns(
        {name: F.unix_micros(name) for name in ("bornTimestamp", "storeTimestamp") if name in frame.columns}
    )
    rows = [row.asDict() for row in frame.collect()]
    return [{**row, "body": bytes(row["body"])} for row in rows]
