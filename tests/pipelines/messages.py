"""What a topic holds, read without Spark."""

from __future__ import annotations

from skylark.model.message import StoredMessage
from skylark.model.record import decode_all
from tests.support.pipeline_cluster import PipelineCluster


def stored(cluster: PipelineCluster, topic: str) -> list[StoredMessage]:
    """All messages of a topic, read without Spark."""
    found: list[StoredMessage] = []
    for queue in cluster.wire.queues(topic, refresh=True):
        queue_offset, end = 0, cluster.wire.max_offsets([queue])[queue]
        while queue_offset < end:
            part = list(decode_all(cluster.wire.pull(queue, queue_offset).records))
            found += part
            queue_offset = part[-1].queue_offset + 1
    return found
