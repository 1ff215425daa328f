"""What push and pull consumers do with the rebalancer's decisions: take, lock, release, restart and move."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from skylark.client.consumer.rebalancer import RETRY_ROUTE_ROUNDS, PullQueues, PushQueues
from skylark.client.consumer.subscription import SQL92, TopicSubscription
from skylark.errors import ClientError
from skylark.model.tag_expression import TAG
from skylark.protocol.bodies import ConsumerIdList, MessageQueue
from skylark.protocol.requests.client import CheckClientConfig, GetConsumerListByGroup
from skylark.settings.client import PushConsumerSettings
from tests.unit.client.consumer.queue_fakes import FakeOffsets, FakePulls, FakeStarts
from tests.unit.client.fake_session import QUEUES, FakeSession

ZERO, ONE, TWO, THREE = QUEUES
SETTINGS = PushConsumerSettings(lock_retry_ms=1, give_up_wait_ms=7)


class Members(FakeSession):
    def __init__(self, *members: str) -> None:
        super().__init__()
        self.members = list(members)
        self.heartbeats = 0

    async def answer(self, request: Any) -> ConsumerIdList:
        return ConsumerIdList(self.members)

    async def heartbeat(self) -> None:
        self.heartbeats += 1


class Locks:
    """Locks of the brokers; `others` are those of other members."""

    def __init__(self) -> None:
        self.others: set[MessageQueue] = set()
        self.unlocked: list[MessageQueue] = []

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        return set(queues) - self.others

    async def unlock(self, queue: MessageQueue) -> None:
        self.unlocked.append(queue)


class Consumer(FakePulls):
    """A push consumer around its queues."""

    def __init__(self, locks: Locks | None = None, settings: PushConsumerSettings = SETTINGS) -> None:
        super().__init__()
        self.offsets, self.starts = FakeOffsets(), FakeStarts()
        self.woken = asyncio.Event()
        self.busy: set[MessageQueue] = set()
        self.waits: list[float] = []
        waiting = self.wait_until_free if locks is not None else None
        first: Any = (Members("me"), "G", settings, self)
        then: Any = (self.offsets, self.starts, locks, waiting, self.woken.set)
        around: Any = first + then
        self.queues = PushQueues(*around)

    async def wait_until_free(self, queue: MessageQueue, timeout_ms: float) -> bool:
        self.waits.append(timeout_ms)
        return queue not in self.busy

    async def assign(self, *mine: MessageQueue) -> bool:
        return await self.queues.assign("T", QUEUES, mine)

    @property
    def held(self) -> list[MessageQueue]:
        return list(self.queues.process_queues)


async def test_members_are_those_of_the_group() -> None:
    consumer = Consumer()
    session: Any = consumer.queues._session
    assert await consumer.queues.members("T", session.route) == ["me"]
    assert session.asked == [GetConsumerListByGroup("G")]
    assert list(consumer.queues.topics()) == ["T"]


async def test_only_changes_are_announced() -> None:
    consumer = Consumer()
    assert await consumer.assign(ONE, ZERO)
    assert consumer.taken == [(ZERO, 0), (ONE, 10)]
    assert await consumer.assign(ZERO, ONE)
    assert consumer.heard == [2]
    assert await consumer.assign(ZERO)
    assert (consumer.released, consumer.offsets.persisted, consumer.held) == ([ONE], [ONE], [ZERO])
    assert consumer.heard == [2, 1]


async def test_queues_of_other_topics_are_left_alone_until_their_topic_ends() -> None:
    consumer = Consumer()
    other = MessageQueue("U", "broker-a", 0)
    await consumer.assign(ZERO)
    assert await consumer.queues.assign("U", [other], [other])
    assert await consumer.assign()
    assert consumer.held == [other]
    await consumer.queues.end_round({"U"})
    assert consumer.held == [other]
    await consumer.queues.end_round({"T"})
    assert consumer.held == []


async def test_a_queue_without_a_start_offset_is_not_held() -> None:
    consumer = Consumer()
    consumer.starts.unknown = {ZERO}
    assert not await consumer.assign(ZERO, ONE)
    assert consumer.held == [ONE]
    assert consumer.heard == [2]
    assert not await consumer.assign(ZERO, ONE)
    assert consumer.heard == [2], "nothing changed"
    consumer.starts.unknown = set()
    assert await consumer.assign(ZERO, ONE)
    assert sorted(consumer.held) == [ZERO, ONE]


async def test_the_offset_in_memory_is_forgotten_when_a_queue_is_taken_and_when_it_is_released() -> None:
    consumer = Consumer()
    table = consumer.offsets.table
    table.update(ZERO, 5, increase_only=True)
    await consumer.assign(ZERO)
    assert table.get(ZERO) is None
    table.update(ZERO, 6, increase_only=True)
    await consumer.assign()
    assert table.get(ZERO) is None


async def test_a_queue_that_is_not_pulled_for_long_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    consumer = Consumer()
    await consumer.assign(ZERO)
    now += 120
    await consumer.assign(ZERO)
    assert consumer.released == []
    now += 0.001
    before = consumer.queues.process_queues[ZERO]
    assert await consumer.assign(ZERO)
    assert consumer.released == [ZERO]
    assert before.dropped
    assert consumer.queues.process_queues[ZERO] is not before
    assert len(consumer.taken) == 2


async def test_a_dropped_queue_is_released_and_taken_again_if_it_is_mine() -> None:
    consumer = Consumer()
    await consumer.assign(ZERO)
    consumer.queues.process_queues[ZERO].dropped = True
    assert await consumer.assign(ZERO)
    assert (consumer.released, len(consumer.taken)) == ([ZERO], 2)


async def test_a_missing_topic_is_announced_a_retry_topic_awaited() -> None:
    consumer = Consumer()
    assert await consumer.queues.topic_missing("T", 1)
    assert consumer.heard == [0]
    retry = "%RETRY%G"
    assert RETRY_ROUTE_ROUNDS == 30
    assert not await consumer.queues.topic_missing(retry, 30)
    assert await consumer.queues.topic_missing(retry, 31)
    assert consumer.heard == [0]


# --- Orderly ---


async def test_a_queue_is_locked_before_it_is_taken_and_others_are_tried_soon() -> None:
    locks = Locks()
    locks.others = {ONE}
    consumer = Consumer(locks)
    assert not await consumer.assign(ZERO, ONE)
    assert consumer.held == [ZERO]
    assert consumer.queues.process_queues[ZERO].locked
    async with asyncio.timeout(30):
        await consumer.woken.wait()
    consumer.woken.clear()
    locks.others = set()
    assert await consumer.assign(ZERO, ONE)
    await asyncio.sleep(0.02)
    assert not consumer.woken.is_set()


async def test_without_orderly_consumption_no_queue_counts_as_locked() -> None:
    consumer = Consumer()
    await consumer.assign(ZERO)
    assert not consumer.queues.process_queues[ZERO].locked


async def test_a_queue_is_unlocked_when_no_listener_has_it() -> None:
    locks = Locks()
    consumer = Consumer(locks)
    await consumer.assign(ZERO)
    held = consumer.queues.process_queues[ZERO]
    consumer.busy = {ZERO}
    await consumer.assign()
    assert (locks.unlocked, consumer.held, held.locked, held.unlock_tries) == ([], [ZERO], True, 1)
    assert consumer.heard == [1]
    assert consumer.waits == [7]
    assert consumer.offsets.persisted == [ZERO]
    consumer.busy = set()
    assert await consumer.assign()
    assert (locks.unlocked, consumer.held, held.locked, held.unlock_tries) == ([ZERO], [], False, 1)
    assert consumer.offsets.persisted == [ZERO] * 3, "once more after the listener's end"


async def test_a_listener_that_never_ends_loses_its_lock() -> None:
    locks = Locks()
    consumer = Consumer(locks)
    await consumer.assign(ZERO)
    consumer.busy = {ZERO}
    consumer.queues.process_queues[ZERO].last_lock_at -= 20.001  # `unlock_delay_ms`
    assert await consumer.assign()
    assert (locks.unlocked, consumer.waits) == ([ZERO], [])


# --- Corrections ---


async def test_a_restart_keeps_the_offset_until_the_queue_is_taken_again() -> None:
    consumer = Consumer()
    await consumer.assign(ZERO)
    persisted: list[int | None] = []

    async def persist(queue: MessageQueue) -> None:
        persisted.append(consumer.offsets.table.get(queue))

    consumer.offsets.persist = persist  # type: ignore[method-assign]
    await consumer.queues.restart(ZERO, 3)
    assert persisted == [3, 3]
    assert consumer.held == []
    await consumer.queues.restart(ONE, 4)  # one that is not held
    assert persisted[2:] == [4]


async def test_dropped_queues_move_to_their_new_offsets() -> None:
    consumer = Consumer()
    await consumer.assign(ZERO, ONE, TWO)
    dropped = consumer.queues.drop([ZERO, ONE, THREE])
    assert [each.queue for each in dropped] == consumer.released == [ZERO, ONE]
    assert all(each.dropped for each in dropped)
    assert not consumer.queues.process_queues[TWO].dropped
    persisted: list[tuple[MessageQueue, int | None]] = []

    async def persist(queue: MessageQueue) -> None:
        persisted.append((queue, consumer.offsets.table.get(queue)))

    consumer.offsets.persist = persist  # type: ignore[method-assign]
    consumer.queues.process_queues.pop(ONE)  # released meanwhile
    await consumer.queues.move(dropped, {ZERO: 7, ONE: 8})
    assert persisted == [(ZERO, 7)]
    assert consumer.held == [TWO]


async def test_dropped_queues_hold_no_messages_and_a_stop_releases_all() -> None:
    consumer = Consumer()
    await consumer.assign(ZERO, ONE)
    held = consumer.queues.process_queues[ZERO]
    held.message_count = 5
    consumer.queues.drop([ZERO])
    assert held.message_count == 0
    other = consumer.queues.process_queues[ONE]
    consumer.queues.release_all()
    assert other.dropped
    assert consumer.held == []
    assert consumer.released == [ZERO, ZERO, ONE]
    assert consumer.offsets.persisted == []


# --- Pull consumers ---


class Pulling:
    def __init__(self, session: Members, **expressions: str) -> None:
        self.held: list[set[MessageQueue]] = []
        self.subscriptions = {
            topic: TopicSubscription(topic, expression, SQL92 if ">" in expression else TAG, 1)
            for topic, expression in expressions.items()
        }
        anything: Any = session
        self.queues = PullQueues(anything, "G", self.subscriptions, self.hold)

    async def hold(self, queues: Collection[MessageQueue]) -> None:
        self.held.append(set(queues))


async def test_a_pull_consumer_announces_a_topic_once_and_checks_its_expression() -> None:
    session = Members("me", "you")
    pulling = Pulling(session, T="a > 1")
    assert list(pulling.queues.topics()) == ["T"]
    assert await pulling.queues.members("T", session.route) == ["me", "you"]
    assert await pulling.queues.members("T", session.route) == ["me", "you"]
    assert [type(each) for each in session.asked] == [
        CheckClientConfig, GetConsumerListByGroup, GetConsumerListByGroup,
    ]  # fmt: skip
    assert session.heartbeats == 1


async def test_a_pull_consumer_that_is_unknown_announces_itself_again() -> None:
    session = Members("you")
    pulling = Pulling(session, T="*")
    with pytest.raises(ClientError, match="do not know this member yet"):
        await pulling.queues.members("T", session.route)
    session.members.append("me")
    await pulling.queues.members("T", session.route)
    assert session.heartbeats == 2
    await pulling.queues.members("gone", session.route)  # unsubscribed while the round ran
    assert session.heartbeats == 3


async def test_a_pull_consumer_holds_the_queues_of_its_topics() -> None:
    pulling = Pulling(Members("me"), T="*", U="*")
    other = MessageQueue("U", "broker-a", 0)
    assert await pulling.queues.assign("T", QUEUES, [ZERO, ONE])
    assert await pulling.queues.assign("U", [other], [other])
    await pulling.queues.end_round({"T", "U"})
    await pulling.queues.end_round({"T"})
    await pulling.queues.end_round({"T", "U"})
    assert pulling.held == [{ZERO, ONE, other}, {ZERO, ONE}, {ZERO, ONE}]
    assert not await pulling.queues.topic_missing("T", 1)
    await pulling.queues.end_round({"T", "U"})
    assert pulling.held[-1] == set()


async def test_a_missing_topic_is_told_once_until_it_is_found(caplog: pytest.LogCaptureFixture) -> None:
    pulling = Pulling(Members("me"), T="*")
    for _ in range(3):
        assert not await pulling.queues.topic_missing("T", 1)
    assert len(caplog.records) == 1
    await pulling.queues.assign("T", QUEUES, [ZERO])
    await pulling.queues.topic_missing("T", 2)
    assert len(caplog.records) == 2
