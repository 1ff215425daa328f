"""SF-085: the rebalancer decides; it neither pulls nor keeps offsets."""

from __future__ import annotations

from typing import Any

from skylark.client.consumer.allocation_strategies import strategy_named
from skylark.client.consumer.rebalancer import PushQueues, Rebalancer
from skylark.protocol.bodies import ConsumerIdList
from skylark.settings.client import PushConsumerSettings
from tests.unit.client.consumer.queue_fakes import FakeOffsets, FakePulls, FakeStarts
from tests.unit.client.fake_session import QUEUES, FakeSession

SETTINGS = PushConsumerSettings(first_pull_delay_ms=0, pull_failure_delay_ms=1)


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
