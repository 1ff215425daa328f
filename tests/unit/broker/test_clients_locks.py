"""Locks of queues, with time in our hands."""

from typing import Any

from skylark.broker.clients import QueueLockTable
from skylark.protocol.bodies import LockedQueues, LockRequest, MessageQueue, decode_body
from tests.unit.broker.tables import answers, live
from tests.unit.protocol.golden_frames import captured


def queues(*ids: int, topic: str = "t1") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", queue_id) for queue_id in ids]


def request(client_id: str, *ids: int, group: str = "g1") -> LockRequest:
    return LockRequest(client_id=client_id, consumer_group=group, mq_set=queues(*ids))


def table(**settings: Any) -> QueueLockTable:
    return QueueLockTable(live(**settings))


def test_sf_102_a_queue_is_locked_by_one_client_until_it_lets_go() -> None:
    locks = table()
    assert locks.lock(request("a", 0, 1), now=0) == queues(0, 1)
    assert locks.lock(request("b", 0, 1, 2), now=1) == queues(2)
    locks.unlock(request("b", 0))  # not its own
    assert locks.lock(request("b", 0), now=1) == []
    locks.unlock(request("a", 0))
    assert locks.lock(request("b", 0, 1), now=1) == queues(0)


def test_sf_102_a_lock_that_is_not_renewed_ends_after_60_s() -> None:
    locks = table()
    locks.lock(request("a", 0, 1), now=0)
    assert locks.lock(request("a", 1), now=30) == queues(1)
    assert locks.lock(request("b", 0, 1), now=60) == []
    assert locks.lock(request("b", 0, 1), now=60.1) == queues(0)
    assert locks.lock(request("a", 0), now=61) == []


def test_groups_lock_for_themselves() -> None:
    locks = table()
    locks.lock(request("a", 0), now=0)
    assert locks.lock(request("b", 0, group="g2"), now=0) == queues(0)
    assert locks.lock(
        LockRequest(client_id="b", consumer_group="g1", mq_set=queues(0, topic="t2")), now=0
    ) == queues(0, topic="t2")


def test_a_group_that_holds_any_lock_consumes_in_order() -> None:
    locks = table()
    assert not locks.has_any("g1", now=0)
    locks.lock(request("a", 0), now=0)
    assert locks.has_any("g1", now=60)
    assert not locks.has_any("g1", now=60.1)
    assert not locks.has_any("g2", now=0)
    locks.lock(request("a", 0), now=60.1)
    locks.unlock(request("a", 0))
    assert not locks.has_any("g1", now=60.1)


def test_locks_have_a_limit_and_ended_ones_make_room() -> None:
    locks = table(locks_max=2)
    assert locks.lock(request("a", 0, 1, 2), now=0) == queues(0, 1)
    assert locks.lock(request("a", 0, 1, 2), now=1) == queues(0, 1)
    locks.expire(now=30)
    assert locks.lock(request("a", 2), now=30) == []
    locks.expire(now=90)
    assert locks.lock(request("b", 2, 3, 4), now=90) == queues(2, 3)
    locks.unlock(request("b", 2))
    assert locks.lock(request("b", 4), now=90) == queues(4)


def test_a_queue_that_is_named_twice_is_locked_once() -> None:
    locks = table(locks_max=1)
    assert locks.lock(request("a", 0, 0), now=0) == queues(0)
    locks.unlock(request("a", 0, 0))
    assert locks.lock(request("b", 1), now=0) == queues(1)


def test_locks_are_given_as_by_apache() -> None:
    """Codes 41 and 42 of `probe-members`, in order."""
    locks = table()
    expected = {asked.header["opaque"]: answer for asked, answer in answers("probe-members", 41)}
    replayed = 0
    for frame in captured("probe-members"):
        if frame.kind != "request" or frame.code not in (41, 42):
            continue
        asked = decode_body(frame.body, LockRequest)
        if frame.code == 42:
            locks.unlock(asked)
            continue
        answer = next(
            answer for question, answer in answers("probe-members", 41) if question.frame == frame.frame
        )
        assert set(locks.lock(asked, now=0)) == set(decode_body(answer.body, LockedQueues).queues)
        replayed += 1
    assert replayed == 3
    assert expected
