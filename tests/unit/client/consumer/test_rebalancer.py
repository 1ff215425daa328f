"""SF-085: the rebalancer decides; it neither pulls nor keeps offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skylark.client.consumer.allocation_strategies import strategy_named
from skylark.client.consumer.offset_store import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.rebalancer import PushQueues, Rebalancer
from skylark.protocol.bodies import ConsumerIdList, MessageQueue
from skylark.settings.client import PushConsumerSettings
from tests.unit.client.fake_session import QUEUES, FakeSession

SETTINGS = PushConsumerSettings(first_pull_delay_ms=0, pull_failure_delay_ms=1)


class FakeOffsets:
    """An offset store that only notes what it is asked to keep."""

    def __init__(self) -> None:
        self.table = OffsetTable()
        self.persisted: list[MessageQueue] = []

    async def persist(self, queue: MessageQueue) -> None:
        self.persisted.append(queue)


class FakeStarts:
    """Every queue begins at ten times its number."""

    async def find(self, queue: MessageQueue) -> int:
        return 10 * queue.queue_id


class FakePulls:
    """What a consumer does with the rebalancer's decisions: here it writes them down."""

    def __init__(self) -> None:
        self.taken: list[tuple[MessageQueue, int]] = []
        self.released: list[MessageQueue] = []
        self.heard: list[int] = []

    def topics(self) -> list[str]:
        return ["T"]

    def queue_taken(self, request: PullRequest) -> None:
        self.taken.append((request.queue, request.next_offset))

    def queue_released(self, process_queue: ProcessQueue) -> None:
        self.released.append(process_queue.queue)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        self.heard.append(len(mine))


async def test_sf_085_the_rebalancer_decides_and_neither_pulls_nor_keeps_offsets() -> None:
    members = ["me"]

    class Members(FakeSession):
        async def answer(self, request: Any) -> ConsumerIdList:
            return ConsumerIdList(members)

    session: Any = Members()
    pulls, offsets, starts = FakePulls(), FakeOffsets(), FakeStarts()
    anything: Any = (session, "G", SETTINGS, pulls, offsets, starts, None, None, None)
    queues = PushQueues(*anything)
    rebalancer = Rebalancer(session, "G", SETTINGS, strategy_named("AVG"), queues)
    assert await rebalancer.rebalance()
    assert pulls.taken == [(queue, 10 * queue.queue_id) for queue in QUEUES]
    assert (pulls.released, offsets.persisted) == ([], [])
    members.append("you")
    assert await rebalancer.rebalance()
    assert pulls.released == offsets.persisted == QUEUES[2:]
    assert list(queues.process_queues) == QUEUES[:2]
    assert len(pulls.taken) == 4
    members.remove("you")
    assert await rebalancer.rebalance()
    assert pulls.taken[4:] == [(queue, 10 * queue.queue_id) for queue in QUEUES[2:]]
    assert pulls.heard == [4, 2, 4]
