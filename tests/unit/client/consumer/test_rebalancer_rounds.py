"""Rounds of the rebalancer: when they run, what one topic's failure does, and whom they ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from skylark.client.consumer import rebalancer as module
from skylark.client.consumer.allocation_strategies import strategy_named
from skylark.client.consumer.rebalancer import QueueWatch, Rebalancer, check_expression, group_members
from skylark.client.consumer.subscription import SQL92, TopicSubscription
from skylark.client.session.routes import TopicRoute
from skylark.errors import ClientError, NoRoute, RocketMQError
from skylark.model.tag_expression import TAG
from skylark.protocol.bodies import BrokerData, ConsumerIdList, MessageQueue, QueueData, TopicRouteData
from skylark.protocol.requests.client import CheckClientConfig, GetConsumerListByGroup
from skylark.settings.client import MessageModel, PushConsumerSettings
from tests.unit.client.fake_session import QUEUES, FakeSession

HOUR_MS = 3_600_000
SETTINGS = PushConsumerSettings(rebalance_interval_ms=HOUR_MS, rebalance_gap_ms=1)


class Topics:
    """A queue holder that notes what the rebalancer decides. `faults` are raised for their topics."""

    def __init__(self, *topics: str) -> None:
        self.subscribed = list(topics)
        self.known = ["me", "you"]
        self.faults: dict[str, Exception] = {}
        self.is_complete = True
        self.assigned: dict[str, list[int]] = {}
        self.missing: list[tuple[str, int]] = []
        self.ended: list[set[str]] = []
        self.round_ended = asyncio.Event()

    def topics(self) -> list[str]:
        return self.subscribed

    async def members(self, topic: str, route: TopicRoute) -> list[str]:
        if topic in self.faults:
            raise self.faults[topic]
        return self.known

    async def assign(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> bool:
        assert all_queues == tuple(QUEUES)
        self.assigned[topic] = [queue.queue_id for queue in mine]
        return self.is_complete

    async def topic_missing(self, topic: str, rounds: int) -> bool:
        self.missing.append((topic, rounds))
        return self.is_complete

    async def end_round(self, topics: Collection[str]) -> None:
        self.ended.append(set(topics))
        self.round_ended.set()

    async def wait(self, rounds: int) -> None:
        async with asyncio.timeout(30):
            while len(self.ended) < rounds:
                self.round_ended.clear()
                await self.round_ended.wait()


class Routes(FakeSession):
    """Topics whose names begin with `no-` have no route."""

    async def find_route(self, topic: str) -> TopicRoute:
        if topic.startswith("no-"):
            raise NoRoute(topic)
        return await super().find_route(topic)


def rebalancer(holder: Topics, settings: PushConsumerSettings = SETTINGS) -> Rebalancer:
    session: Any = Routes()
    return Rebalancer(session, "G", settings, strategy_named("AVG"), holder)


# --- One round ---


async def test_a_round_gives_each_topic_my_share_and_ends_with_the_topics() -> None:
    holder = Topics("B", "A", "no-C")
    rounds = rebalancer(holder)
    assert await rounds.rebalance()
    assert holder.assigned == {"A": [0, 1], "B": [0, 1]}
    assert holder.missing == [("no-C", 1)]
    assert holder.ended == [{"A", "B", "no-C"}]
    assert await rounds.rebalance()
    assert holder.missing[1:] == [("no-C", 2)]


async def test_a_round_is_incomplete_if_one_topic_is_and_the_others_go_on() -> None:
    holder = Topics("A", "B", "%RETRY%G")
    for fault in (ClientError("a broker is away"), RuntimeError("a strategy failed")):
        holder.assigned.clear()
        holder.faults = {"A": fault}
        assert not await rebalancer(holder).rebalance()
        assert set(holder.assigned) == {"B", "%RETRY%G"}
    holder.faults = {}
    holder.is_complete = False
    assert not await rebalancer(holder).rebalance()
    holder.subscribed = ["no-A"]
    assert not await rebalancer(holder).rebalance()


async def test_only_a_retry_topic_fails_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    holder = Topics("A", "%RETRY%G")
    holder.faults = dict.fromkeys(holder.subscribed, ClientError("away"))
    with caplog.at_level(logging.WARNING):
        assert not await rebalancer(holder).rebalance()
    assert [record.getMessage().split()[2] for record in caplog.records] == ["topic=A"]


async def test_without_members_nothing_is_assigned() -> None:
    holder = Topics("A")
    holder.known = []
    assert not await rebalancer(holder).rebalance()
    assert holder.assigned == {}
    holder.known = ["you"]  # the brokers do not know me yet
    assert await rebalancer(holder).rebalance()
    assert holder.assigned == {"A": []}


async def test_broadcasting_takes_every_queue_and_asks_nobody() -> None:
    holder = Topics("A")
    holder.faults = {"A": AssertionError("asked for members")}
    settings = PushConsumerSettings(model=MessageModel.BROADCASTING)
    assert await rebalancer(holder, settings).rebalance()
    assert holder.assigned == {"A": [0, 1, 2, 3]}


async def test_a_paused_rebalancer_does_nothing() -> None:
    holder = Topics("A")
    rounds = rebalancer(holder)
    rounds.paused = True
    assert not await rounds.rebalance()
    assert (rounds.rounds, holder.ended) == (0, [])


# --- When rounds run ---


async def test_a_wake_runs_one_round_and_then_it_sleeps() -> None:
    holder = Topics("A")
    rounds = rebalancer(holder)
    running = asyncio.create_task(rounds.run())
    await asyncio.sleep(0.02)
    assert holder.ended == []
    rounds.wake()
    rounds.wake()
    await holder.wait(1)
    await asyncio.sleep(0.05)
    assert len(holder.ended) == 1
    rounds.wake()
    await holder.wait(2)
    running.cancel()


async def test_rounds_repeat_by_themselves_and_sooner_while_incomplete() -> None:
    for is_complete, interval_ms, gap_ms in ((True, 1, 1), (False, HOUR_MS, 1)):
        holder = Topics("A")
        holder.is_complete = is_complete
        settings = PushConsumerSettings(rebalance_interval_ms=interval_ms, rebalance_gap_ms=gap_ms)
        rounds = rebalancer(holder, settings)
        running = asyncio.create_task(rounds.run())
        rounds.wake()
        await holder.wait(3)
        running.cancel()


async def test_two_rounds_keep_the_gap_but_the_first_does_not_wait() -> None:
    holder = Topics("A")
    rounds = rebalancer(holder, PushConsumerSettings(rebalance_interval_ms=HOUR_MS, rebalance_gap_ms=HOUR_MS))
    running = asyncio.create_task(rounds.run())
    rounds.wake()
    await holder.wait(1)
    rounds.wake()
    await asyncio.sleep(0.05)
    assert len(holder.ended) == 1
    running.cancel()


async def test_wakes_during_the_gap_cause_no_further_round(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Topics("A")
    rounds = rebalancer(holder)
    sleep = asyncio.sleep

    async def woken_meanwhile(delay_s: float) -> None:
        if asyncio.current_task() is running:  # other loops of this process sleep, too
            rounds.wake()
            delay_s = 0
        await sleep(delay_s)

    running = asyncio.create_task(rounds.run())
    monkeypatch.setattr("asyncio.sleep", woken_meanwhile)
    rounds.wake()
    await holder.wait(1)
    await sleep(0.05)
    assert len(holder.ended) == 1
    running.cancel()


async def test_without_topics_no_round_runs_but_the_last_one_is_tidied_up() -> None:
    holder = Topics()
    rounds = rebalancer(holder)
    running = asyncio.create_task(rounds.run())
    rounds.wake()
    await asyncio.sleep(0.02)
    assert holder.ended == []
    holder.subscribed = ["A"]
    rounds.wake()
    await holder.wait(1)
    holder.subscribed = []
    rounds.wake()
    await holder.wait(2)
    assert holder.ended == [{"A"}, set()]
    rounds.wake()
    await asyncio.sleep(0.02)
    assert len(holder.ended) == 2
    running.cancel()


async def test_finishing_waits_for_the_round_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Topics("A")
    rounds = rebalancer(holder)
    async with rounds.round_lock:
        finishing = asyncio.create_task(rounds.finish_round())
        await asyncio.sleep(0.02)
        assert not finishing.done()
        assert rounds.paused
    await finishing
    assert not await rounds.rebalance()
    assert module.ROUND_WAIT_S == 3
    monkeypatch.setattr(module, "ROUND_WAIT_S", 0.01)
    async with rounds.round_lock, asyncio.timeout(30):
        await rounds.finish_round()


# --- Whom they ask ---


def route(*brokers: dict[int, str]) -> TopicRoute:
    named = [BrokerData(f"b{number}", "c", addresses) for number, addresses in enumerate(brokers)]
    data = TopicRouteData(
        broker_datas=named, queue_datas=[QueueData(each.broker_name, 1, 1, 6) for each in named]
    )
    return TopicRoute.of("T", data)


class Brokers(FakeSession):
    """Replies by address: members, or the error of a broker that does not answer."""

    def __init__(self, replies: dict[str, Any]) -> None:
        super().__init__()
        self.replies = replies
        self.addresses: list[str] = []

    async def call(self, address: str, request: Any, **_: object) -> Any:
        self.asked.append(request)
        self.addresses.append(address)
        reply = self.replies[address]
        if isinstance(reply, RocketMQError):
            raise reply
        return reply


async def test_the_master_is_asked_and_without_one_a_replica() -> None:
    session: Any = Brokers({"m:1": ConsumerIdList(["me"]), "s:1": ConsumerIdList(["you"])})
    assert await group_members(session, "G", route({1: "s:1", 0: "m:1"})) == ["me"]
    assert await group_members(session, "G", route({1: "s:1"})) == ["you"]
    assert session.asked == [GetConsumerListByGroup("G")] * 2
    assert await group_members(session, "G", route({})) == []
    assert await group_members(session, "G", route()) == []


async def test_another_broker_is_asked_when_one_fails_and_the_last_error_is_raised() -> None:
    session: Any = Brokers({"a:1": ClientError("away"), "b:1": ConsumerIdList(["me"])})
    for _ in range(20):  # the order is random
        assert await group_members(session, "G", route({0: "a:1"}, {0: "b:1"})) == ["me"]
    assert {"a:1", "b:1"} == set(session.addresses)
    with pytest.raises(ClientError, match="away"):
        await group_members(session, "G", route({0: "a:1"}))


async def test_only_an_expression_of_sql92_is_checked() -> None:
    session: Any = Brokers({"10.0.0.1:10911": None})
    await check_expression(session, "G", TopicSubscription("T", "a || b", TAG, 1))
    assert session.asked == []
    await check_expression(session, "G", TopicSubscription("T", "a > 1", SQL92, 1))
    [asked] = session.asked
    assert isinstance(asked, CheckClientConfig)
    assert asked.body.subscription_data.sub_string == "a > 1"


async def test_listeners_hear_of_changed_queues_not_of_the_first_look() -> None:
    class Changing(FakeSession):
        async def refresh_route(self, topic: str) -> TopicRoute:
            return self.route

    session: Any = Changing()
    heard: list[tuple[str, int]] = []
    watch = QueueWatch()
    watch.add("T", lambda queues: heard.append(("one", len(queues))))
    watch.add("T", lambda queues: heard.append(("two", len(queues))))
    await watch.check(session)
    await watch.check(session)
    assert heard == []
    session.route = route({0: "m:1"})
    await watch.check(session)
    assert heard == [("one", 1), ("two", 1)]
