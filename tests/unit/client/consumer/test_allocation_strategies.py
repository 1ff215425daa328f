"""The strategies' worked examples, and what a member does about a new split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skylark.client.consumer.allocation_strategies import (
    BUILDERS,
    QueueChanges,
    Strategy,
    allocate,
    consistent_hash,
    machine_room_nearby,
    queue_changes,
    queue_text,
    ring_hash,
    strategy_named,
)
from skylark.client.consumer.pull_consumer import AsyncPullConsumer, PullConsumer
from skylark.client.consumer.push_consumer import AsyncPushConsumer, PushConsumer
from skylark.errors import SettingsError
from skylark.protocol.bodies import MessageQueue


def queues(count: int, topic: str = "TopicTest", broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def members(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def split(strategy: Strategy, all_queues: list[MessageQueue], all_members: list[str]) -> list[list[int]]:
    """What each member gets, as queue numbers."""
    return [[queue.queue_id for queue in strategy(member, all_queues, all_members)] for member in all_members]


@pytest.mark.parametrize(
    ("name", "queue_count", "member_count", "expected"),
    [
        ("AVG", 8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("AVG", 8, 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("AVG", 3, 2, [[0, 1], [2]]),
        ("AVG", 4, 2, [[0, 1], [2, 3]]),
        ("AVG", 8, 5, [[0, 1], [2, 3], [4, 5], [6], [7]]),
        ("AVG", 2, 4, [[0], [1], [], []]),
        ("AVG_BY_CIRCLE", 8, 3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        ("AVG_BY_CIRCLE", 10, 4, [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]),
        ("CONSISTENT_HASH", 8, 3, [[1], [0, 3, 4, 5, 7], [2, 6]]),
    ],
)
def test_sf_009_087_strategies_by_name(
    name: str, queue_count: int, member_count: int, expected: list[list[int]]
) -> None:
    assert split(strategy_named(name), queues(queue_count), members(member_count)) == expected


@pytest.mark.parametrize("kind", [AsyncPushConsumer, AsyncPullConsumer, PushConsumer, PullConsumer])
def test_sf_009_averaging_is_the_default_of_every_consumer(kind: Callable[..., Any]) -> None:
    consumer = kind("G", namesrv="127.0.0.1:9876")
    strategy = getattr(consumer, "_inner", consumer)._strategy
    assert split(strategy, queues(8), members(3)) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_sf_009_machine_room_takes_its_rooms_only() -> None:
    near = queues(8, broker="room1@broker-a")
    far = queues(3, broker="room2@broker-b") + queues(3, broker="plain")
    strategy = strategy_named("MACHINE_ROOM", {"room1"})
    assert split(strategy, near + far, members(3)) == [[0, 1, 6], [2, 3, 7], [4, 5]]


@pytest.mark.parametrize("name", ["room1", "room1@", "room1@a@b", "broker-a"])
def test_a_broker_without_a_room_in_its_name_is_in_no_room(name: str) -> None:
    strategy = strategy_named("MACHINE_ROOM", {"room1"})
    assert split(strategy, queues(2, broker=name), members(1)) == [[]]


def test_sf_009_fixed_list_is_not_checked() -> None:
    mine = queues(2, topic="Other")
    assert list(strategy_named("CONFIG", mine)("c0", queues(4), ["c0"])) == mine


def test_sf_009_rooms_without_members_are_split_among_all() -> None:
    strategy = strategy_named(
        "MACHINE_ROOM_NEARBY",
        strategy_named("AVG"),
        lambda queue: queue.broker_name.partition("-")[0],
        lambda member: member.partition("-")[0],
    )
    everyone = ["r1-a", "r1-b", "r2-a"]
    all_queues = sorted(
        queues(4, broker="r1-broker") + queues(2, broker="r2-broker") + queues(3, broker="r3-broker")
    )
    got = {
        member: [(q.broker_name, q.queue_id) for q in strategy(member, all_queues, everyone)]
        for member in everyone
    }
    assert got == {
        "r1-a": [("r1-broker", 0), ("r1-broker", 1), ("r3-broker", 0)],
        "r1-b": [("r1-broker", 2), ("r1-broker", 3), ("r3-broker", 1)],
        "r2-a": [("r2-broker", 0), ("r2-broker", 1), ("r3-broker", 2)],
    }


def test_a_room_that_the_resolver_does_not_know_is_an_error() -> None:
    strategy = machine_room_nearby(strategy_named("AVG"), lambda queue: "", lambda member: "r")
    with pytest.raises(ValueError, match="no room for MessageQueue"):
        strategy("c0", queues(1), ["c0"])


def test_ring_vectors() -> None:
    assert ring_hash("c0-0") == 2316876094
    assert ring_hash(queue_text(queues(1)[0])) == 1987926524


def test_a_name_that_nobody_knows_lists_those_that_are() -> None:
    assert len(BUILDERS) == 6
    with pytest.raises(SettingsError, match="'AVERAGE'; choose one of AVG, AVG_BY_CIRCLE, CONFIG"):
        strategy_named("AVERAGE")
    with pytest.raises(SettingsError, match="wrong arguments for MACHINE_ROOM"):
        strategy_named("MACHINE_ROOM")
    with pytest.raises(SettingsError, match="the minimum is 1"):
        consistent_hash(0)
    assert split(consistent_hash(1), queues(4), members(1)) == [[0, 1, 2, 3]]


def test_sf_091_a_broker_s_queues_stay_together() -> None:
    both = queues(2, broker="broker-b") + queues(2, broker="broker-a")
    assert {q.broker_name for q in allocate(strategy_named("AVG"), "c0", both, ["c1", "c0"])} == {"broker-a"}
    assert {q.broker_name for q in allocate(strategy_named("AVG"), "c1", both, ["c1", "c0"])} == {"broker-b"}


def test_nothing_is_mine_while_the_broker_does_not_know_me() -> None:
    assert allocate(strategy_named("AVG"), "me", queues(4), ["other"]) == []


def test_changes_give_up_take_and_repair() -> None:
    q0, q1, q2, q3 = queues(4)
    held = {q0: 100.0, q1: 100.0, q2: 5.0}
    assert queue_changes(held, {q1, q2, q3}, stale_before=50.0) == QueueChanges([q0, q2], [q2, q3])
    assert queue_changes(held, held, stale_before=0.0) == QueueChanges([], [])
    assert queue_changes(held, held, stale_before=5.0) == QueueChanges([], [])
