"""Queues that can be read, and how members share them."""

from __future__ import annotations

from skylark.protocol.bodies import MessageQueue, QueueData, TopicRouteData
from skylark.protocol.queue_allocation import averagely, averagely_by_circle, read_queues

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(8)]
MEMBERS = ["a", "b", "c"]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


def test_queues_are_read_where_that_is_allowed() -> None:
    data = [
        QueueData(broker_name="broker-b", read_queue_nums=1, write_queue_nums=5, perm=6),
        QueueData(broker_name="broker-a", read_queue_nums=2, write_queue_nums=1, perm=4),
        QueueData(broker_name="broker-c", read_queue_nums=3, write_queue_nums=3, perm=2),
    ]
    found = list(read_queues("T", TopicRouteData(queue_datas=data)))
    assert [(queue.broker_name, queue.queue_id) for queue in found] == [
        ("broker-a", 0),
        ("broker-a", 1),
        ("broker-b", 0),
    ]


def test_consecutive_shares() -> None:
    shares = [ids(averagely(member, QUEUES, MEMBERS)) for member in MEMBERS]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert averagely("c", QUEUES[:2], MEMBERS) == []


def test_shares_dealt_out_like_cards() -> None:
    shares = [ids(averagely_by_circle(member, QUEUES, MEMBERS)) for member in MEMBERS]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert averagely_by_circle("c", QUEUES[:2], MEMBERS) == []
