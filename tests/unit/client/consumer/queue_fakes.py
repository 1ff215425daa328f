"""Fakes around the rebalancer, which note what it decides: offset store, start offsets, consumer."""

from __future__ import annotations

from collections.abc import Sequence

from skylark.client.consumer.offset_store import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.errors import ClientError
from skylark.protocol.bodies import MessageQueue


class FakeOffsets:
    """An offset store that only notes what it is asked to keep."""

    def __init__(self) -> None:
        self.table = OffsetTable()
        self.persisted: list[MessageQueue] = []

    async def persist(self, queue: MessageQueue) -> None:
        self.persisted.append(queue)


class FakeStarts:
    """Every queue begins at ten times its number; those in `unknown` cannot be asked."""

    def __init__(self) -> None:
        self.unknown: set[MessageQueue] = set()

    async def find(self, queue: MessageQueue) -> int:
        if queue in self.unknown:
            raise ClientError("no broker replies")
        return 10 * queue.queue_id


class FakePulls:
    """What a consumer does with the rebalancer's decisions: here it writes them down."""

    def __init__(self) -> None:
        self.taken: list[tuple[MessageQueue, int]] = []
        self.released: list[MessageQueue] = []
        self.heard: list[int] = []
        self.subscribed = ["T"]

    def topics(self) -> list[str]:
        return self.subscribed

    def queue_taken(self, request: PullRequest) -> None:
        self.taken.append((request.queue, request.next_offset))

    def queue_released(self, process_queue: ProcessQueue) -> None:
        self.released.append(process_queue.queue)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        self.heard.append(len(mine))
