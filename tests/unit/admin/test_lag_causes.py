"""Why a group lags: each rule holds for its snapshot and names its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skylark.admin.lag_causes import GroupSnapshot, lag_causes
from skylark.admin.results import (
    ClientInfo,
    ConnectedConsumers,
    Group,
    GroupProgress,
    QueueOwners,
    QueueProgress,
    QueueStats,
)
from skylark.errors import ClientError
from skylark.protocol.bodies import MessageQueue, SubscriptionData, SubscriptionKind

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(2)]
RETRY = MessageQueue("%RETRY%billing", "broker-a", 0)
NOW_MS = 1_000_000


def progress(*committed: int, end: int = 10, **more: Any) -> GroupProgress:
    parts = tuple(
        QueueProgress(queue, done, done, end, 400_000) for queue, done in zip(QUEUES, committed, strict=True)
    )
    return GroupProgress("billing", parts, 0.0, more.pop("failures", {}))


def members(*clients: str, **more: Any) -> ConnectedConsumers:
    return ConnectedConsumers(
        "billing",
        tuple(ClientInfo(name, "10.0.0.1", "PYTHON", 1) for name in clients),
        {"orders": SubscriptionData("orders")},
        more.pop("different", ()),
        None,
        "CLUSTERING",
        None,
        {},
    )


def held(*owners: tuple[str, ...], silent: tuple[str, ...] = ()) -> QueueOwners:
    return QueueOwners(dict(zip(QUEUES, owners, strict=True)), silent)


LAGS = GroupSnapshot(
    progress(4, 10),
    members("a"),
    {"broker": Group("billing")},
    {},
    (),
    2.0,
    -2.0,
    NOW_MS,
    held(("a",), ("a",)),
)


def names(seen: GroupSnapshot) -> list[str]:
    return [cause.name for cause in lag_causes(seen)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ["catching_up"]),
        ({"progress": progress(10, 10)}, ["none"]),
        ({"members": None}, ["nobody"]),
        ({"settings": {"broker": Group("billing", consume_enabled=False)}}, ["disabled", "catching_up"]),
        ({"unreadable_topics": ["orders"]}, ["unreadable", "catching_up"]),
        ({"members": members("a", "b", "c")}, ["more_members", "catching_up"]),
        (
            {"members": members("a", "b", different=(SubscriptionKind({"orders": "paid"}, ["a"]),))},
            ["different", "catching_up"],
        ),
        ({"members": replace(members("a"), subscriptions={})}, ["unsubscribed", "catching_up"]),
        ({"consumed_per_s": 0.0, "growth_per_s": 0.0}, ["stands"]),
        ({"growth_per_s": 4.0}, ["slow"]),
        ({"consumed_per_s": None, "growth_per_s": None}, ["none"]),
        (
            {"progress": progress(4, 10, failures={"b": ClientError("late")})},
            ["catching_up", "incomplete"],
        ),
        ({"queues": {QUEUES[0]: QueueStats(QUEUES[0], 5, 10, None)}}, ["deleted", "catching_up"]),
        ({"owners": held((), ("a",))}, ["unsettled", "catching_up"]),
        ({"owners": held(("a", "b"), ("a",))}, ["unsettled", "catching_up"]),
        ({"owners": held(("a",), ())}, ["catching_up"]),
        ({"owners": held((), ("a",), silent=("b",))}, ["catching_up"]),
        ({"owners": None}, ["catching_up"]),
        ({"owners": QueueOwners({})}, ["catching_up"]),
        ({"standing_s": {QUEUES[0]: 30.0}}, ["queue_stands", "catching_up"]),
        ({"standing_s": {QUEUES[0]: 29.0}}, ["catching_up"]),
        ({"standing_s": {QUEUES[0]: 30.0}, "consumed_per_s": 0.0}, ["stands"]),
        ({"sample": (3, 32)}, ["catching_up", "filtered"]),
        ({"sample": (4, 32)}, ["catching_up"]),
        ({"sample": (0, 9)}, ["catching_up"]),
    ],
)
def test_each_cause_is_found_in_its_snapshot(change: dict[str, Any], expected: list[str]) -> None:
    assert names(replace(LAGS, **change)) == expected


def test_messages_that_wait_for_their_next_try_are_a_cause() -> None:
    retrying = QueueProgress(RETRY, 0, 0, 8, None)
    waiting = GroupProgress("billing", (*progress(10, 10).queues, retrying), 0.0, {})
    assert names(replace(LAGS, progress=waiting)) == ["catching_up", "retrying"]


def test_causes_name_their_evidence() -> None:
    [nobody] = lag_causes(replace(LAGS, members=None))
    assert nobody.facts == {"seconds": 600.0}
    [slow] = lag_causes(replace(LAGS, consumed_per_s=2.0, growth_per_s=4.0))
    assert slow.facts == {"rate": 4.0, "members": 1, "needed": 3}
    [stands] = lag_causes(replace(LAGS, consumed_per_s=0.0))
    assert stands.facts == {"place": "orders broker-a:0:4", "held": 0, "queues": 1}
    unsettled = lag_causes(replace(LAGS, owners=held((), ("a",))))[0]
    assert unsettled.facts == {"unheld": 1, "doubled": 0, "places": "orders broker-a:0"}
    standing = lag_causes(replace(LAGS, standing_s={QUEUES[0]: 45.0}))[0]
    assert standing.facts == {"place": "orders broker-a:0:4", "queues": 1, "seconds": 45.0}
    filtered = lag_causes(replace(LAGS, sample=(1, 32)))[-1]
    assert filtered.facts == {"passing": 1, "count": 32}
    deleted = lag_causes(replace(LAGS, queues={QUEUES[0]: QueueStats(QUEUES[0], 7, 10, None)}))[0]
    assert deleted.facts == {"count": 3}
