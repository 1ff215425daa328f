"""A name server and a broker as a process of their own, with the few requests that pipeline tests make."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from skylark.errors import StoreError
from skylark.model.message import encode_properties
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.pipelines.cluster_client import ClusterClient
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.send import SendMessageV2
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.store.store_reader import StoreReader
from tests.interop.servers import Servers
from tests.support.skylark_servers import SkylarkServers

SENDS_IN_FLIGHT = 128
BROKER = "broker-a"
ROUTE_TIMEOUT_S = 60
SETTINGS: dict[str, str | int] = {
    "brokerName": BROKER,
    "registerNameServerPeriod": 1000,
    "flushIntervalConsumeQueue": 50,
    "enablePropertyFilter": "true",
}


class PipelineCluster:
    """Everything is written below `directory`; ports stay the same over restarts."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str | int] | None = None,
        *,
        servers: Servers | None = None,
    ) -> None:
        """`servers` are others than ours, with their store in `directory / "store"`."""
        self.store_path = str(directory / ("store" if servers else "data"))
        self.servers = servers or SkylarkServers(directory, {**SETTINGS, **(settings or {})})
        self.wire = ClusterClient(self.servers.name_server, retry_timeout_s=60)

    @property
    def namesrv(self) -> str:
        return self.servers.name_server

    def __enter__(self) -> Self:
        self.servers.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wire.close()
        self.servers.__exit__(kind, error, trace)

    def options(self, topic: str, **more: object) -> dict[str, str]:
        """Options of a reader from the broker."""
        return {"namesrv": self.namesrv, "topic": topic, **{name: str(value) for name, value in more.items()}}

    def create_topic(self, name: str, queues: int = 4, *, attributes: str | None = None) -> None:
        """Make a topic, or give it another number of queues; returns when the name server knows."""
        request = UpdateAndCreateTopic(
            name,
            AUTO_CREATE_TOPIC,
            queues,
            queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            order=False,
            attributes=attributes,
        )
        with_address = self.wire.connection(self.servers.broker)
        with_address.call(request)
        deadline = time.monotonic() + ROUTE_TIMEOUT_S
        while self._queue_count(name) != queues:
            assert time.monotonic() < deadline, f"no route of {name} with {queues} queues"
            time.sleep(0.02)

    def _queue_count(self, topic: str) -> int:
        from skylark.errors import NoRoute

        try:
            return len(self.wire.queues(topic, refresh=True))
        except NoRoute:
            return 0

    def files_of(self, topic: str) -> str:
        """The store's directory, once its files hold all of a topic: a broker writes queues now and then."""
        ends = self.wire.max_offsets(self.wire.queues(topic))
        wanted = {queue.queue_id: end for queue, end in ends.items() if end}
        deadline = time.monotonic() + ROUTE_TIMEOUT_S
        while self._ends_in_files(topic) != wanted:
            assert time.monotonic() < deadline, f"the files do not hold all of {topic}"
            time.sleep(0.02)
        return self.store_path

    def _ends_in_files(self, topic: str) -> dict[int, int]:
        try:
            found = StoreReader(Path(self.store_path)).queues(topic)
        except StoreError:
            return {}
        return {queue.queue_id: queue.max_offset for queue in found if queue.count}

    def queue(self, topic: str, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(topic, BROKER, queue_id)

    def send(
        self,
        topic: str,
        bodies: Iterable[bytes],
        queue_id: int = 0,
        *,
        properties: Mapping[str, str] | None = None,
        sys_flag: int = 0,
        in_flight_max: int = SENDS_IN_FLIGHT,
    ) -> None:
        """Send bodies to a queue, one message each; in the properties `{n}` is the message's number."""
        connection = self.wire.connection(self.servers.broker)
        asked = []
        for number, body in enumerate(bodies):
            named = {name: value.replace("{n}", str(number)) for name, value in (properties or {}).items()}
            request = SendMessageV2(
                producer_group="PG",
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_nums=4,
                queue_id=queue_id,
                sys_flag=sys_flag,
                born_timestamp=round(time.time() * 1000),
                flag=number,
                properties=encode_properties(named).decode(),
                body=body,
            )
            asked.append(connection.ask(request, timeout_s=30))
            if len(asked) >= in_flight_max:
                connection.answer(asked.pop(0))
        for item in asked:
            connection.answer(item)
