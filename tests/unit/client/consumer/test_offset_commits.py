"""The order of commits: what a broker of many threads may be told at once, and what it may not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from skylark.client.consumer.offset_commits import OffsetCommits
from skylark.client.consumer.offset_store import BrokerOffsetStore
from skylark.client.session.session import Session
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.offset import UpdateConsumerOffset


class SlowBrokers:
    """A session whose calls end when they are let go, and which knows what was under way together."""

    def __init__(self) -> None:
        self.routes = SimpleNamespace(readable=lambda name: SimpleNamespace(address=f"{name}:1"))
        self.asked: list[UpdateConsumerOffset] = []
        self.under_way = 0
        self._gate = asyncio.Semaphore(0)

    async def call(self, _: str, request: UpdateConsumerOffset, *, timeout_ms: int) -> None:
        self.asked.append(request)
        self.under_way += 1
        await self._gate.acquire()
        self.under_way -= 1

    async def answer(self, count: int) -> None:
        for _ in range(count):
            self._gate.release()
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def queues(topic: str, count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, queue_id) for queue_id in range(count)]


async def test_the_first_commit_of_a_topic_goes_alone_and_all_others_together() -> None:
    brokers = SlowBrokers()
    session = cast("Session", brokers)
    commits = OffsetCommits(session, "CG", BrokerOffsetStore(session, "CG", 1000), 1000)
    all_queues = [*queues("A", 8), *queues("B", 8), *queues("A", 8, "broker-b")]

    def commit(queue_offset: int) -> asyncio.Future[Any]:
        return asyncio.gather(*(commits.commit(queue, queue_offset, wait=True) for queue in all_queues))

    first = commit(5)
    await settled()
    places = sorted((request.broker_name, request.topic) for request in brokers.asked)
    assert places == [("broker-a", "A"), ("broker-a", "B"), ("broker-b", "A")], "one of each"
    await brokers.answer(3)
    assert brokers.under_way == len(all_queues) - 3
    await brokers.answer(brokers.under_way)
    await first
    again = commit(6)
    await settled()
    assert brokers.under_way == len(all_queues)
    await brokers.answer(brokers.under_way)
    await again
    assert [request.commit_offset for request in brokers.asked] == [5] * len(all_queues) + [6] * len(
        all_queues
    )


async def test_a_first_commit_that_fails_is_followed_by_another_first_one() -> None:
    brokers = SlowBrokers()
    session = cast("Session", brokers)
    commits = OffsetCommits(session, "CG", BrokerOffsetStore(session, "CG", 1000), 1000)
    tasks = [asyncio.create_task(commits.commit(queue, 5, wait=True)) for queue in queues("A", 4)]
    await settled()
    tasks[0].cancel()
    await settled()
    assert len(brokers.asked) == 2
    await brokers.answer(1)
    assert len(brokers.asked) == 4
    await brokers.answer(2)
    await asyncio.gather(*tasks[1:])
