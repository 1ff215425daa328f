"""What a topic holds, read without Spark, and what is put there."""

from __future__ import annotations

from collections.abc import Sequence

from skylark.model.message import StoredMessage
from skylark.model.record import decode_all
from skylark.protocol.requests.send import ConsumerSendMsgBack
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


def dead_letters(cluster: PipelineCluster, topic: str, group: str, bodies: Sequence[bytes]) -> None:
    """Messages that a group gave back for good."""
    cluster.send(topic, bodies, 0, properties={"KEYS": "k{n}"})
    for message in stored(cluster, topic):
        request = ConsumerSendMsgBack(
            group=group,
            physical_offset=message.physical_offset,
            delay_level=-1,
            origin_msg_id=message.unique_key,
            origin_topic=topic,
        )
        cluster.wire.connection(cluster.servers.broker).call(request)
