"""From the log to queues and index: what becomes visible, when, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skylark.model.message import PutMessage, SystemFlag
from skylark.model.record import BatchColumns, BatchElement, ScannedRecord
from skylark.settings import FlushMode
from skylark.store.append_result import AppendedRecord
from skylark.store.dispatch import Dispatcher, is_indexed
from skylark.store.log_scan import LogWalk
from skylark.store.message_store import MessageStore
from tests.support.store import bodies, message, opened, placed, put_all, small_settings

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


def scanned(
    queue_offset: int, physical_offset: int, topic: str = "T", sys_flag: int = 0, properties: bytes = b""
) -> ScannedRecord:
    return ScannedRecord(physical_offset, 100, 0, queue_offset, sys_flag, 1000, topic.encode(), properties)


def dispatcher(store: MessageStore) -> Dispatcher:
    return Dispatcher(store.log, store.queues, store.index)


def keys_found(store: MessageStore, *keys: str) -> list[str]:
    store.build_index()
    return [key for key in keys if store.messages_by_key("T", key)]


# Transactions


def test_which_transaction_states_are_visible_and_which_are_indexed() -> None:
    with opened() as store:
        states = {"none": 0, "prepared": PREPARED, "commit": COMMIT, "rollback": ROLLBACK}
        put_all(store, [message(body=n.encode(), keys=n, sys_flag=flag) for n, flag in states.items()])
        assert bodies(store) == [b"none", b"commit"]
        assert keys_found(store, *states) == ["none", "prepared", "commit"]


@pytest.mark.parametrize(
    ("flag", "expected"),
    [(0, True), (PREPARED, True), (COMMIT, True), (ROLLBACK, False), (ROLLBACK | 0x101, False)],
)
def test_what_is_indexed(flag: int, expected: bool) -> None:
    assert is_indexed(flag) == expected


# Confirmation


def test_flags_of_a_client_hide_no_message() -> None:
    flags = {b"none": 0, b"lone": 1 << 30, b"all but half and batch": -149}
    with opened() as store:
        put_all(store, [message(body=body, sys_flag=flag) for body, flag in flags.items()])
        assert bodies(store) == list(flags)


def test_under_sync_flush_messages_appear_when_they_are_on_disk() -> None:
    arrived: list[int] = []

    def arrive(batch: Sequence[AppendedRecord]) -> None:
        arrived.extend(each.queue_offset for each in batch)

    settings = small_settings(flush_mode=FlushMode.SYNC)
    with opened(settings, on_arrival=arrive) as store:
        first = placed(store.append([message(body=b"one"), message(body=b"two")])[0])
        second = placed(store.append([message(body=b"three")])[0])
        assert (first.queue_offset, second.queue_offset) == (0, 2)
        assert (store.max_offset("T", 0), arrived) == (0, [])
        store.flush_log()
        assert bodies(store) == [b"one", b"two", b"three"]
        assert arrived == [0, 1, 2]


def test_only_whole_batches_below_the_flush_appear() -> None:
    with opened(small_settings(flush_mode=FlushMode.SYNC)) as store:
        end = placed(store.append([message(), message()])[-1]).end
        store.append([message(), message()])
        store._dispatcher.publish_confirmed(end - 1)
        assert store.max_offset("T", 0) == 0
        store._dispatcher.publish_confirmed(end + 1)
        assert store.max_offset("T", 0) == 2


def test_a_batch_appears_as_a_whole() -> None:
    with opened(small_settings(flush_mode=FlushMode.SYNC)) as store:
        elements = [BatchElement(0, b"one", b"KEYS\x01k1\x02"), BatchElement(0, b"two", b"")]
        store.append_batches([(message(), BatchColumns.of(elements))])
        assert bodies(store) == []
        store.flush_log()
        assert bodies(store) == [b"one", b"two"]
        assert keys_found(store, "k1", "k2") == ["k1"]


def test_arrivals_are_told_per_append() -> None:
    batches: list[list[tuple[str, int]]] = []

    def arrive(batch: Sequence[AppendedRecord]) -> None:
        batches.append([(each.queue.topic, each.queue_offset) for each in batch])

    with opened(on_arrival=arrive) as store:
        store.append([message("a"), message("b"), message("a")])
        store.append([message("../x")])
        store.append_batches([(message("c"), BatchColumns.of([BatchElement(0, b"", b"")] * 2))])
        assert batches == [[("a", 0), ("b", 0), ("a", 1)], [("c", 0), ("c", 1)]]


def test_the_caller_may_announce_an_append_after_its_replies() -> None:
    arrived: list[str] = []
    with opened(on_arrival=lambda batch: arrived.extend(each.queue.topic for each in batch)) as store:
        store.append([message("a")], announce_later=True)
        store.append_batches(
            [(message("b"), BatchColumns.of([BatchElement(0, b"", b"")]))], announce_later=True
        )
        assert (store.max_offset("a", 0), store.max_offset("b", 0), arrived) == (1, 1, [])
        store.announce()
        assert arrived == ["a", "b"]
        store.announce()
        assert arrived == ["a", "b"]


def test_under_sync_flush_sends_are_answered_before_arrivals_are_announced() -> None:
    events: list[str] = []
    settings = small_settings(flush_mode=FlushMode.SYNC)
    with opened(settings, on_arrival=lambda batch: events.append("arrived")) as store:
        end = placed(store.append([message()])[0]).end
        store.when_flushed(end, lambda status: events.append(f"{status.name} {store.max_offset('T', 0)}"))
        store.flush_log()
        assert events == ["PUT_OK 1", "arrived"]


# Records read back


def test_a_record_is_placed_as_the_append_placed_it() -> None:
    with opened() as store:
        puts = [
            message(tags="TagA", keys="one"),
            message("SCHEDULE_TOPIC_XXXX", 2, delay="3"),
            message(sys_flag=SystemFlag.TRANSACTION_COMMIT),
            message(born_host=bytes(20), unique_key="id"),
        ]
        expected = put_all(store, puts)
        walk = LogWalk(store.log, 0)
        assert [dispatcher(store).place(record) for record in walk] == expected


def test_what_is_there_already_is_left_alone() -> None:
    with opened() as store:
        again = dispatcher(store)
        for _ in range(2):
            again.dispatch([scanned(0, 0), scanned(1, 100)])
        queue = store.queue("T", 0)
        assert (queue.max_offset, queue.next_offset) == (2, 2)
        assert list(again.dirty) == [queue]
        assert again.dispatched == 200


def test_a_gap_is_filled() -> None:
    with opened() as store:
        again = dispatcher(store)
        again.dispatch([scanned(0, 0), scanned(3, 300)])
        queue = store.queue("T", 0)
        assert (queue.max_offset, queue.next_offset, queue.min_offset) == (4, 4, 0)


def test_impossible_topics_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as store:
        found = dispatcher(store).dispatch([scanned(0, 0, topic="../x"), scanned(0, 100)])
        assert [placed.physical_offset for placed in found] == [100]
        assert store.max_offset("T", 0) == 1
    assert "invalid queue" in caplog.text
    assert "directory name" in caplog.text


@pytest.mark.parametrize("flag", [PREPARED, ROLLBACK])
def test_records_without_a_unit(flag: int) -> None:
    with opened() as store:
        dispatcher(store).dispatch([scanned(7, 100, sys_flag=flag)])
        assert store.max_offset("T", 0) == 0


# Forgetting


def test_a_deleted_topic_is_dropped_from_what_waits() -> None:
    with opened(small_settings(flush_mode=FlushMode.SYNC)) as store:
        store.append([message("a"), message("b"), message("a")])
        store.append([message("a")])
        store.append_batches([(message("a"), BatchColumns.of([BatchElement(0, b"", b"")]))])
        store.append_batches([(message("b"), BatchColumns.of([BatchElement(0, b"", b"")]))])
        store.housekeeper.delete_topic("a")
        store.flush_log()
        assert store.max_offset("a", 0) == 0
        assert store.max_offset("b", 0) == 2
        assert [queue.topic for queue in store._dispatcher.dirty] == ["b"]


def test_a_deleted_topic_is_not_written_any_more() -> None:
    with opened() as store:
        put_all(store, [message("a"), message("b"), message("a", 1)])
        store.housekeeper.delete_topic("a")
        assert [queue.topic for queue in store._dispatcher.dirty] == ["b"]


def put(store: MessageStore, *messages: PutMessage) -> None:
    put_all(store, messages)


def test_positions_follow_what_is_published() -> None:
    with opened() as store:
        put(store, message(), message())
        assert store._dispatcher.dispatched == store.appended_offset
        assert store._dispatcher.dispatched_timestamp == store.log.last_timestamp
