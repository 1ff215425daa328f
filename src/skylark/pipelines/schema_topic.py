"""The topic in which a registry keeps schemas: one queue of a cluster."""

from __future__ import annotations

import threading

from skylark.clock import now_ms
from skylark.errors import NoRoute
from skylark.model.message import encode_properties
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.model.record import decode_all
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.schema_registry import TOPIC
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.send import SendMessageV2

QUEUE_ID = 0


class SchemaTopic:
    """Any thread; requests are made one after the other."""

    def __init__(self, cluster: ClusterClient, topic: str = TOPIC) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.Lock()

    def append(self, record: bytes) -> int:
        with self._lock:
            queue = self._queue()
            request = SendMessageV2(
                producer_group="skylark-schemas",
                topic=self._topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=1,
                queue_id=QUEUE_ID,
                sys_flag=0,
                born_timestamp=now_ms(),
                flag=0,
                properties=encode_properties({"WAIT": "true"}).decode(),
                body=record,
            )
            return self._cluster.ask_broker(queue, request).reply.queue_offset

    def first(self) -> int:
        with self._lock:
            try:
                queue = self._queue()
            except NoRoute:
                return 0
            return self._cluster.min_offsets([queue])[queue]

    def read(self, from_offset: int) -> list[bytes]:
        with self._lock:
            try:
                queue = self._queue()
            except NoRoute:
                return []
            end = self._cluster.max_offsets([queue])[queue]
            found: list[bytes] = []
            while from_offset + len(found) < end:
                result = self._cluster.pull(queue, from_offset + len(found))
                found += [bytes(message.body) for message in decode_all(result.records)]
            return found[: max(end - from_offset, 0)]

    def _queue(self) -> MessageQueue:
        """The first queue of the first broker. Raises NoRoute if the topic must be made."""
        queues = [queue for queue in self._cluster.queues(self._topic) if queue.queue_id == QUEUE_ID]
        if not queues:
            raise NoRoute(self._topic)
        return queues[0]
