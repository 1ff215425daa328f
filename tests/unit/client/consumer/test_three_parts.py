"""SF-085: rebalancer, fetch loop and offset store, each tested alone with fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from skylark.client.consumer.allocation_strategies import strategy_named
from skylark.client.consumer.consume_rates import ConsumeRates
from skylark.client.consumer.fetcher import PushFetchLoop
from skylark.client.consumer.offset_store import BrokerOffsetStore, OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.rebalancer import PushQueues, Rebalancer
from skylark.client.consumer.subscription import by_tags
from skylark.client.session.routes import FoundBroker, TopicRoute
from skylark.errors import BrokerError
from skylark.protocol.bodies import BrokerData, ConsumerIdList, MessageQueue, QueueData, TopicRouteData
from skylark.protocol.codes import ResponseCode
from skylark.protocol.requests.offset import QueryConsumerOffset, UpdateConsumerOffset
from skylark.protocol.requests.pull import PullMessage, PullReply, PullResult
from skylark.settings.client import ClientSettings, PushConsumerSettings
from tests.unit.client.messages import record

ADDRESS = "10.0.0.1:10911"
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]
SETTINGS = PushConsumerSettings(first_pull_delay_ms=0, pull_failure_delay_ms=1)


class FakeSession:
    """Neither sockets nor routes that change; `answer` says what servers say."""

    client_id = "me"
    settings = ClientSettings()

    def __init__(self) -> None:
        data = TopicRouteData(
            broker_datas=[BrokerData("broker-a", "c", {0: ADDRESS})],
            queue_datas=[QueueData("broker-a", len(QUEUES), len(QUEUES), 6)],
        )
        self.route = TopicRoute.of("T", data)
        self.routes = self
        self.asked: list[Any] = []
        self.told: list[Any] = []

    def readable(self, broker_name: str, broker_id: int = 0) -> FoundBroker:
        return FoundBroker(ADDRESS, is_slave=False)

    async def find_route(self, topic: str) -> TopicRoute:
        return self.route

    async def call(self, address: str, request: Any, **_: object) -> Any:
        self.asked.append(request)
        return await self.answer(request)

    async def notify(self, address: str, request: Any) -> None:
        self.told.append(request)

    async def answer(self, request: Any) -> Any:
        raise NotImplementedError


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


async def test_sf_085_the_offset_store_keeps_what_it_is_told() -> None:
    class Kept(FakeSession):
        async def answer(self, request: QueryConsumerOffset) -> int:
            if request.queue_id == 3:
                raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "never heard of")
            return 100 + request.queue_id

    session: Any = Kept()
    store = BrokerOffsetStore(session, "G", timeout_ms=60_000)
    assert await store.read(QUEUES[1]) == store.table.get(QUEUES[1]) == 101
    assert await store.read(QUEUES[3]) is None
    store.table.update(QUEUES[1], 105, increase_only=True)
    store.table.update(QUEUES[2], 7, increase_only=True)
    await store.persist(QUEUES[1])
    await store.persist_all(QUEUES[2:])
    told = [(request.queue_id, request.commit_offset) for request in session.told]
    assert told == [(1, 105), (2, 7)]
    assert all(isinstance(request, UpdateConsumerOffset) for request in session.told)
    assert store.table.get(QUEUES[1]) is None, "queues that are not owned are forgotten"
