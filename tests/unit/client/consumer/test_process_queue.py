"""The process queue by the vectors of the client chapter, and its thresholds to the message."""

from __future__ import annotations

import time

import pytest

from skylark.client.consumer.process_queue import (
    EXPIRED_MAX,
    MEBIBYTE,
    NOTHING_HELD,
    MessageRows,
    ProcessQueue,
    PulledQueue,
)
from skylark.client.consumer.pull_policy import Thresholds, Wait, WaitReason, wait_before_pull
from skylark.client.consumer.subscription import by_tags
from skylark.client.received_message import ReceivedMessage
from skylark.settings.client import PushConsumerSettings
from tests.unit.client.messages import QUEUE, received

ALL = by_tags("T", "*", now_ms=1)
SETTINGS = PushConsumerSettings()


@pytest.fixture
def held() -> ProcessQueue:
    return ProcessQueue(QUEUE, now=0.0)


def put(held: ProcessQueue, *queue_offsets: int) -> dict[int, ReceivedMessage]:
    messages = {queue_offset: received(queue_offset) for queue_offset in queue_offsets}
    held.put(list(messages.values()))
    return messages


def test_sf_039_the_smallest_unfinished_offset_is_committed(held: ProcessQueue) -> None:
    messages = put(held, *range(2, 8))
    assert held.remove([messages[7]]) == 2
    assert held.remove([messages[2]]) == 3
    assert held.remove([messages[n] for n in (3, 4, 5, 6)]) == 8
    assert held.remove([messages[7]]) == NOTHING_HELD
    assert (held.message_count, held.message_bytes) == (0, 0)


def test_sf_016_offsets_are_in_order_whatever_order_they_came_in(held: ProcessQueue) -> None:
    put(held, 5, 3, 9, 4, 1)
    assert held.span == 8
    assert [message.queue_offset for message in held.take(10)] == [1, 3, 4, 5, 9]


def test_a_message_that_comes_twice_counts_once(held: ProcessQueue) -> None:
    put(held, 1, 2)
    put(held, 2, 3)
    assert (held.message_count, held.message_bytes, held.span) == (3, 12, 2)


def test_a_removed_message_may_come_again(held: ProcessQueue) -> None:
    messages = put(held, 1, 2, 3)
    held.remove([messages[2]])
    again = put(held, 2)
    assert held.remove([messages[1]]) == 2
    assert held.holds(again[2])
    assert not held.holds(messages[2])


def test_put_says_once_that_somebody_must_begin(held: ProcessQueue) -> None:
    assert held.put([received(1)])
    assert not held.put([received(2)])
    assert len(held.take(5)) == 2
    assert held.take(5) == []
    assert held.put([received(3)])
    assert not ProcessQueue(QUEUE, now=0.0).put([])


def test_sf_111_the_accumulated_count_is_what_the_broker_has_beyond(held: ProcessQueue) -> None:
    held.put([received(1, max_offset=10), received(2, max_offset=12)])
    assert held.accumulated_count == 10


def test_taken_messages_count_until_they_are_committed(held: ProcessQueue) -> None:
    put(held, 1, 2, 3, 4)
    taken = held.take(2)
    assert held.message_count == 4
    held.take_back(taken[1:])
    assert held.commit() == 2
    assert held.commit() == NOTHING_HELD
    assert [message.queue_offset for message in held.take(9)] == [2, 3, 4]
    held.rollback()
    assert [message.queue_offset for message in held.take(9)] == [2, 3, 4]
    assert held.commit() == 5
    assert (held.message_count, held.message_bytes) == (0, 0)


def test_what_is_put_back_is_taken_again_in_order(held: ProcessQueue) -> None:
    messages = put(held, *range(10))
    held.take(6)
    put(held, 4)  # it came again meanwhile
    held.take_back([messages[n] for n in (5, 2, 3)])
    assert [message.queue_offset for message in held.take(10)] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_to_put_back_a_stretch_costs_little_however_much_waits(held: ProcessQueue) -> None:
    """A slow listener has it put back many times a second, on the loop."""
    put(held, *range(1000))
    began = time.process_time()
    for _ in range(100):
        held.take_back(held.take(256)[1:])
        held.rollback()
    assert time.process_time() - began < 1
    assert [message.queue_offset for message in held.take(1000)] == list(range(1000))


def test_only_what_a_listener_has_for_too_long_expires(held: ProcessQueue) -> None:
    messages = put(held, *range(30))
    assert held.take_expired(100.0) == []
    for message in messages.values():
        message.started_at = 50.0
    messages[3].started_at = 150.0
    assert [message.queue_offset for message in held.take_expired(100.0)] == [0, 1, 2]
    messages[3].started_at = 50.0
    assert len(held.take_expired(100.0)) == EXPIRED_MAX


def test_info_tells_every_attribute(held: ProcessQueue) -> None:
    put(held, 5, 6, 7)
    held.take(1)
    held.locked, held.unlock_tries, held.last_lock_at = True, 2, 4.0
    held.last_pull_at, held.last_consume_at = 5.0, 6.0
    info = held.info(4, 1_000_000.0)
    assert (info.commit_offset, info.cached_msg_min_offset, info.cached_msg_max_offset) == (4, 6, 7)
    assert (info.cached_msg_count, info.transaction_msg_count) == (2, 1)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (5, 5)
    assert (info.locked, info.droped, info.try_unlock_times) == (True, False, 2)
    assert (info.last_lock_timestamp, info.last_pull_timestamp) == (1_004_000, 1_005_000)
    assert info.last_consume_timestamp == 1_006_000


def test_clear_leaves_nothing(held: ProcessQueue) -> None:
    put(held, 1, 2, 3)
    held.take(1)
    held.clear()
    assert (held.message_count, held.message_bytes, held.span) == (0, 0, 0)
    assert held.commit() == NOTHING_HELD


def test_a_new_queue_is_empty_and_as_old_as_its_taking() -> None:
    held = ProcessQueue(QUEUE, now=7.0)
    assert NOTHING_HELD == -1, "no offset"
    assert (held.queue, held.dropped, held.locked, held.consuming) == (QUEUE, False, False, False)
    assert (held.message_count, held.message_bytes, held.max_offset, held.accumulated_count) == (0, 0, 0, 0)
    assert (held.last_pull_at, held.last_consume_at, held.last_lock_at, held.unlock_tries) == (7, 7, 7, 0)
    assert (held.span, held.take(1)) == (0, [])
    info = held.info(0, 0.0)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset, info.cached_msg_size_in_mi_b) == (0, 0, 0)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (0, 0)


def test_sizes_and_flags_are_told_as_they_are(held: ProcessQueue) -> None:
    held.put([received(1, b"x" * MEBIBYTE, max_offset=4), received(2, b"x" * (MEBIBYTE - 1))])
    held.dropped = True
    info = held.info(1, 0.0)
    assert (info.cached_msg_size_in_mi_b, info.droped, info.accumulated_msg_count) == (1, True, 0)
    held.put([received(3, b"x", max_offset=9)])
    assert held.info(1, 0.0).cached_msg_size_in_mi_b == 2
    assert held.info(1, 0.0).accumulated_msg_count == 6


def test_the_last_offset_put_counts_also_if_it_came_out_of_order(held: ProcessQueue) -> None:
    first = put(held, 5, 6)
    late = put(held, 3)
    assert held.max_offset == 3, "the last one put"
    assert held.remove([*first.values(), *late.values()]) == 4
    assert held.remove([]) == NOTHING_HELD


def test_a_worker_keeps_a_queue_until_it_takes_nothing(held: ProcessQueue) -> None:
    assert held.put([received(1)])
    assert len(held.take(1)) == 1
    assert held.consuming
    held.rollback()
    assert not held.put([received(2)]), "the worker is still there"
    assert [len(held.take(1)) for _ in range(3)] == [1, 1, 0]
    assert not held.consuming
    assert not held.put([])


def test_removed_messages_neither_expire_nor_hide_those_behind_them(held: ProcessQueue) -> None:
    messages = put(held, 0, 1, 2, 3)
    for message in messages.values():
        message.started_at = 50.0
    held.remove([messages[1]])
    messages[3].started_at = 100.0
    assert [message.queue_offset for message in held.take_expired(100.0)] == [0, 2], "3 was begun just then"
    assert [message.queue_offset for message in held.take_expired(100.1)] == [0, 2, 3]
    messages[0].started_at = 0.0  # not begun
    assert held.take_expired(100.0) == []
    assert EXPIRED_MAX == 16


def test_a_lock_expires_after_its_time(held: ProcessQueue) -> None:
    held.last_lock_at = 10.0
    assert not held.is_lock_expired(40.0, 30.0)
    assert held.is_lock_expired(40.1, 30.0)


# --- Pull consumers ---


def pulled(*offsets: int) -> MessageRows:
    return MessageRows([received(queue_offset) for queue_offset in offsets])


def test_a_new_pulled_queue_knows_nothing() -> None:
    held = PulledQueue(QUEUE)
    assert (held.queue, held.paused, held.has_batch, held.span) == (QUEUE, False, False, 0)
    assert (held.next_offset, held.position, held.done) == (None, None, None)
    assert (held.message_count, held.message_bytes, held.generation) == (0, 0, 0)
    held.begin(4)
    assert (held.next_offset, held.position, held.done) == (4, 4, 4)


def test_positions_follow_what_was_fetched_handed_out_and_finished() -> None:
    held = PulledQueue(QUEUE)
    held.begin(4)
    assert held.put(0, pulled(4, 6, 9), 11)
    assert (held.next_offset, held.position, held.done, held.span) == (11, 4, 4, 5)
    assert (held.message_count, held.message_bytes, held.has_batch) == (3, 12, True)
    assert held.put(0, pulled(12), 13)
    assert held.span == 8
    batch = held.take()
    assert (held.message_count, held.message_bytes, held.span) == (1, 4, 0)
    held.hand_out(batch, 0)
    assert (held.position, held.done) == (5, 4)
    held.hand_out(batch, 1)
    assert (held.position, held.done) == (7, 6)
    held.hand_out(batch, 2)
    assert (held.position, held.done) == (11, 9), "behind the last one nothing matched"
    held.finish()
    assert held.done == 11
    held.hand_out_rows(held.take(), 0, 1)
    assert (held.position, held.done) == (13, 11)


def test_what_does_not_match_is_passed_when_all_before_it_was_handed_out() -> None:
    held = PulledQueue(QUEUE)
    held.begin(0)
    assert held.put(0, pulled(), 5)
    assert (held.position, held.done, held.next_offset, held.has_batch) == (5, 5, 5, False)
    held.put(0, pulled(5), 6)
    held.put(0, pulled(), 9)
    assert (held.position, held.done) == (5, 5)
    held.hand_out_all(held.take())
    assert (held.position, held.done) == (9, 5), "the message is not finished"
    held.put(0, pulled(), 12)
    assert (held.position, held.done) == (12, 5)
    held.finish()
    assert held.done == 12


def test_after_a_seek_earlier_batches_are_void() -> None:
    held = PulledQueue(QUEUE)
    held.begin(0)
    held.put(0, pulled(0, 1), 2)
    batch = held.take()
    held.put(0, pulled(2), 3)
    assert not batch.is_void
    held.seek(50)
    assert batch.is_void
    assert (held.message_count, held.message_bytes, held.has_batch, held.generation) == (0, 0, False, 1)
    held.hand_out(batch, 1)
    held.hand_out_all(batch)
    assert (held.next_offset, held.position, held.done) == (50, 50, 50)
    assert not held.put(0, pulled(3), 4)
    assert held.put(1, pulled(50), 51)


# --- Flow control ---


def wait(held: ProcessQueue, settings: PushConsumerSettings = SETTINGS, **changes: object) -> Wait | None:
    thresholds = Thresholds(settings.queue_messages_max, settings.queue_mib_max)
    values: dict[str, object] = {"paused": False, "must_lock": False, "subscription": ALL, **changes}
    return wait_before_pull(held, thresholds, settings, **values)  # type: ignore[arg-type]


def test_sf_107_the_thousandth_message_still_pulls(held: ProcessQueue) -> None:
    put(held, *range(1000))
    assert wait(held) is None
    put(held, 1000)
    assert wait(held) == Wait(50, WaitReason.COUNT)


def test_sf_107_a_hundred_mebibytes_still_pull(held: ProcessQueue) -> None:
    held.message_bytes = 101 * MEBIBYTE - 1
    assert wait(held) is None
    held.message_bytes += 1
    assert wait(held) == Wait(50, WaitReason.SIZE)
    assert wait(held, PushConsumerSettings(orderly=True)) == Wait(50, WaitReason.SIZE)


def test_sf_107_a_span_of_two_thousand_still_pulls(held: ProcessQueue) -> None:
    put(held, 0, 2000)
    assert wait(held) is None
    put(held, 2001)
    assert wait(held) == Wait(50, WaitReason.SPAN)
    assert wait(held, PushConsumerSettings(orderly=True)) is None


def test_sf_112_113_the_other_reasons_to_wait(held: ProcessQueue) -> None:
    assert wait(held, paused=True) == Wait(1000, WaitReason.PAUSED)
    assert wait(held, must_lock=True) == Wait(1000, WaitReason.NOT_LOCKED)
    held.locked = True
    assert wait(held, must_lock=True) is None
    assert wait(held, subscription=None) == Wait(1000, WaitReason.NOT_SUBSCRIBED)


def test_limits_of_the_consumer_are_shared_by_its_queues() -> None:
    settings = PushConsumerSettings(topic_messages_max=100, topic_mib_max=10)
    thresholds = Thresholds(settings.queue_messages_max, settings.queue_mib_max)
    thresholds.share(settings, 0)
    assert (thresholds.messages_max, thresholds.mib_max) == (1000, 100)
    thresholds.share(settings, 8)
    assert (thresholds.messages_max, thresholds.mib_max) == (12, 1)
    thresholds.share(settings, 1000)
    assert (thresholds.messages_max, thresholds.mib_max) == (1, 1)
    unlimited = Thresholds(1000, 100)
    unlimited.share(SETTINGS, 8)
    assert (unlimited.messages_max, unlimited.mib_max) == (1000, 100)
