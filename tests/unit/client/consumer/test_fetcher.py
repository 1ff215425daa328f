"""SF-085: the fetch loop pulls what it is given; it knows nothing of members and progress."""

from __future__ import annotations

import asyncio
from typing import Any

from skylark.client.consumer.consume_rates import ConsumeRates
from skylark.client.consumer.fetcher import PushFetchLoop
from skylark.client.consumer.offset_store import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.subscription import by_tags
from skylark.errors import BrokerError
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.pull import PullMessage, PullReply, PullResult
from skylark.settings.client import PushConsumerSettings
from tests.unit.client.fake_session import QUEUES, FakeSession
from tests.unit.client.messages import record

SETTINGS = PushConsumerSettings(first_pull_delay_ms=0, pull_failure_delay_ms=1)


class FakeStarts:
    """Every queue begins at ten times its number."""

    async def find(self, queue: MessageQueue) -> int:
        return 10 * queue.queue_id


async def test_sf_085_the_pull_loop_fetches_whatever_it_is_given() -> None:
    answered = asyncio.Event()

    class Pulled(FakeSession):
        async def answer(self, request: PullMessage) -> PullResult:
            if len(self.asked) == 1:
                raise BrokerError(ResponseCode.SYSTEM_ERROR, "not this time")
            start = request.queue_offset
            if start >= 13:
                answered.set()
                await asyncio.Event().wait()  # held, as for an idle queue
            reply = PullReply(0, start + 1, 0, 13)
            return PullResult(ResponseCode.SUCCESS, reply, record(start, b"%d" % start))

    session: Any = Pulled()
    offsets, starts = OffsetTable(), FakeStarts()
    handed: list[bytes] = []
    repaired: list[object] = []
    subscriptions = {"T": by_tags("T", "*", now_ms=0)}
    stats = ConsumeRates()
    anything: Any = (session, "G", SETTINGS, subscriptions, offsets, starts, stats, repaired.append)
    loop = PushFetchLoop(*anything)
    loop.submit = lambda _, messages: handed.extend(message.body for message in messages)
    loop.begin(PullRequest("G", ProcessQueue(QUEUES[1], now=0.0), 10))
    async with asyncio.timeout(60):
        await answered.wait()
    assert handed == [b"10", b"11", b"12"]
    assert [request.queue_offset for request in session.asked] == [10, 10, 11, 12, 13]
    assert {request.commit_offset for request in session.asked} == {-1}, "progress is others' business"
    assert repaired == []
    await loop.stop()
    assert loop.requests == []
