"""Reading by queue offset, address, time and key: statuses, limits, filters, and what is not in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from skylark.clock import SystemClock
from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model.message import PutMessage
from skylark.model.message_id import offset_message_id
from skylark.model.record import decode
from skylark.store import log_reader, page_cache
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import RealDisk
from skylark.store.log_reader import GetStatus
from skylark.store.message_store import LOOPBACK_HOST, MessageStore
from skylark.store.queue_entry import ENTRY
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Fault, Kind
from tests.support.store import (
    NOW_MS,
    ROOT,
    bodies,
    message,
    opened,
    placed,
    put_all,
    simulated_disk,
    sized,
    small_settings,
)

WIDE: dict[str, Any] = {
    "consume_queue_file_bytes": 20 * 1000,
    "commit_log_file_bytes": 1 << 20,
    "message_bytes_max": 1 << 19,
}


def numbered(count: int, **fields: Any) -> list[PutMessage]:
    return [message(body=b"%d" % number, **fields) for number in range(count)]


def offsets(result: log_reader.GetResult) -> list[int]:
    return [each.queue_offset for each in result.messages()]


# Statuses


@pytest.mark.parametrize(
    ("asked", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 4),
        (0, GetStatus.OFFSET_TOO_SMALL, 4),
        (3, GetStatus.OFFSET_TOO_SMALL, 4),
        (4, GetStatus.FOUND, 6),
        (11, GetStatus.FOUND, 12),
        (12, GetStatus.OFFSET_OVERFLOW_ONE, 12),
        (13, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
        (1 << 60, GetStatus.OFFSET_OVERFLOW_BADLY, 12),
    ],
)
def test_offsets_outside_the_queue_are_corrected(asked: int, status: GetStatus, next_offset: int) -> None:
    with opened() as store:
        put_all(store, [sized(1000) for _ in range(12)])
        store.log.delete_file(0)
        store.queue("T", 0).correct_min_offset(store.log.min_offset)
        result = store.get("T", 0, asked, 2)
        assert (result.status, result.next_offset) == (status, next_offset)
        assert (result.min_offset, result.max_offset) == (4, 12)
        store.reader.keep_offset_on_correction = True
        result = store.get("T", 0, asked, 2)
        assert result.status is status
        assert result.next_offset == (next_offset if status is GetStatus.FOUND else asked)


def test_a_queue_without_messages() -> None:
    with opened() as store:
        for asked in (0, 5):
            result = store.get("T", 0, asked, 32)
            assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
            assert (result.min_offset, result.max_offset) == (0, 0)


def test_a_queue_that_cannot_be() -> None:
    with opened() as store:
        for topic, queue_id in (("../x", 0), ("", 0), ("T", -1)):
            result = store.get(topic, queue_id, 3, 32)
            assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_the_queues_file_is_gone() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, numbered(25))
        store.housekeeper.flush()
        queue = store.queue("T", 0)
        queue._open_files.forget(queue.directory, 200)
        disk.lose(queue.directory / f"{200:020d}")
        result = store.get("T", 0, 12, 32)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 20)
        assert offsets(store.get("T", 0, result.next_offset, 32)) == [20, 21, 22, 23, 24]


def test_the_logs_file_is_gone() -> None:
    with opened(small_settings(consume_queue_file_bytes=2000)) as store:
        put_all(store, [sized(1000) for _ in range(12)])
        store.log.delete_file(0)
        result = store.get("T", 0, 0, 32)
        assert (result.status, result.next_offset) == (GetStatus.FOUND, 12)
        assert offsets(result) == list(range(4, 12))
        result = store.get("T", 0, 1, 2)
        assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 3)
        assert result.records == []


# How much


@pytest.mark.parametrize("asked", [-1, 0, 1, 5, 32, 100])
def test_never_more_than_asked_for_nor_than_32(asked: int) -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, numbered(50))
        for _ in range(2):  # with and without the file mapped
            result = store.get("T", 0, 0, asked)
            assert offsets(result) == list(range(min(max(asked, 1), 32)))
            assert result.next_offset == len(result.records)


def test_never_more_bytes_than_256_kib_in_memory() -> None:
    settings = small_settings(**WIDE)
    with opened(settings) as store:
        put_all(store, [sized(100_000) for _ in range(8)])
        for _ in range(2):
            result = store.get("T", 0, 0, 32)
            assert (len(result.records), result.bytes) == (2, 200_000)


def test_the_first_message_comes_whatever_its_size() -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [sized(300_000), sized(100), sized(300_000)])
        for _ in range(2):
            assert offsets(store.get("T", 0, 0, 32, max_bytes=1)) == [0]
            assert offsets(store.get("T", 0, 0, 32)) == [0]


@pytest.mark.parametrize(
    ("max_bytes", "count"), [(0, 1), (100, 1), (199, 1), (200, 2), (999, 9), (1000, 10), (1 << 40, 32)]
)
def test_never_more_bytes_than_asked_for(max_bytes: int, count: int) -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [sized(100) for _ in range(40)])
        for _ in range(2):
            assert len(store.get("T", 0, 0, 32, max_bytes=max_bytes).records) == count


def test_one_answer_stays_in_one_file_of_the_queue() -> None:
    with opened() as store:
        put_all(store, numbered(25))
        assert offsets(store.get("T", 0, 7, 32)) == [7, 8, 9]
        assert bodies(store) == [b"%d" % number for number in range(25)]


def test_records_of_several_log_files_come_together() -> None:
    with opened(small_settings(consume_queue_file_bytes=2000)) as store:
        put_all(store, [sized(1000) for _ in range(10)])
        for _ in range(2):
            assert offsets(store.get("T", 0, 2, 32)) == list(range(2, 10))


# Bulk reads


def bulk(store: MessageStore, at: int, *, is_checked: bool, count: int = 2048) -> log_reader.GetResult:
    queue = store.queue("T", 0)
    return store.reader.get(queue, at, count, bulk_bytes=1 << 20, is_checked=is_checked, may_block=False)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize("is_old", [False, True])
def test_bulk_reads_bring_what_others_bring(queues: int, is_old: bool, is_checked: bool) -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [sized(100 + 7 * (n % 5), queue_id=n % queues) for n in range(300)])
        if is_old:  # as if an earlier process had written all this
            store.reader.hot.written_from = store.appended_offset
        result = bulk(store, 10, is_checked=is_checked)
        count = 300 // queues - 10
        assert (result.count, result.next_offset) == (count, 10 + count)
        plain = [record for at in range(10, 10 + count) for record in store.get("T", 0, at, 1).records]
        assert b"".join(result.records) == b"".join(plain)
        assert (len(result.records), result.bytes) == (1, sum(map(len, plain)))
        assert [size for _, size, _ in ENTRY.iter_unpack(result.entries)] == list(map(len, plain))
        assert [each.queue_offset for each in result.messages()] == list(range(10, 10 + count))
        cut = bulk(store, 10, is_checked=is_checked, count=3)
        assert (cut.count, cut.entries) == (3, result.entries[: 3 * ENTRY.size])


def test_bulk_reads_with_units_are_cut_by_bytes() -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [sized(1000) for _ in range(50)])
        result = store.reader.get(store.queue("T", 0), 1, 32, bulk_bytes=3999, is_checked=False)
        assert (result.count, result.next_offset, len(result.entries)) == (3, 4, 3 * ENTRY.size)
        assert result.bytes == len(result.records[0]) == 3000


@pytest.mark.parametrize("broken", [(4094, 2), (4000, 100), (-50, 100), (0, 0x7FFFFFFF), (0, -1)])
def test_units_that_leave_the_file_are_checked_in_bulk_reads_too(broken: tuple[int, int]) -> None:
    with opened() as store:
        put_all(store, [sized(100), sized(100), sized(100)])
        units_of(store, (0, 100), broken, (200, 100))
        result = bulk(store, 0, is_checked=False)
        assert result.next_offset in (1, 3)
        assert b"".join(result.records) in (
            store.log.read(0, 100),
            store.log.read(0, 100) + store.log.read(200, 100),
        )
        assert len(result.entries) in (0, ENTRY.size)


def test_a_bulk_read_with_a_filter_has_no_units() -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [message(tags="TagA"), message(tags="TagB")])
        result = store.reader.get(
            store.queue("T", 0),
            0,
            32,
            bulk_bytes=1 << 20,
            is_checked=False,
            tags_filter=lambda code: code == 2598920,
        )
        assert (result.count, result.entries, offsets(result)) == (1, b"", [1])


# Filters


def test_the_filter_on_tags_sees_only_the_code() -> None:
    seen: list[int] = []

    def is_tag_b(code: int) -> bool:
        seen.append(code)
        return code == 2598920

    with opened() as store:
        put_all(store, [message(tags="TagA"), message(tags="TagB"), message()])
        result = store.get("T", 0, 0, 32, tags_filter=is_tag_b)
        assert seen == [2598919, 2598920, 0]
        assert (offsets(result), result.next_offset) == ([1], 3)


def test_the_filter_on_records_comes_second() -> None:
    seen: list[bytes] = []

    def has_x(file: memoryview, start: int, stop: int) -> bool:
        seen.append(decode(file[start:stop]).body)
        return b"x" in seen[-1]

    with opened() as store:
        put_all(
            store,
            [
                message(body=b"x", tags="TagA"),
                message(body=b"y", tags="TagB"),
                message(body=b"xx", tags="TagB"),
            ],
        )
        result = store.get("T", 0, 0, 32, tags_filter=lambda code: code == 2598920, record_filter=has_x)
        assert seen == [b"y", b"xx"]
        assert (offsets(result), result.next_offset) == ([2], 3)


def test_a_filter_that_matches_nothing_moves_on() -> None:
    with opened() as store:
        put_all(store, numbered(8))
        result = store.get("T", 0, 2, 32, tags_filter=lambda code: False)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 8)


def test_a_filter_goes_on_behind_what_it_drops_until_enough_match() -> None:
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [message(tags="TagA" if number % 3 else "TagB") for number in range(300)])
        result = store.get("T", 0, 0, 10, tags_filter=lambda code: code == 2598920)
        assert offsets(result) == list(range(0, 30, 3))
        assert result.next_offset == 28  # right behind the last match


def test_a_filter_passes_what_is_not_in_a_file_yet() -> None:
    """Else an answer ended before messages that do not match, as often as the queue was written meanwhile."""
    with opened(small_settings(**WIDE)) as store:
        put_all(store, [message(tags="TagB")])
        store.housekeeper.flush()
        put_all(store, [message(tags="TagA")])
        for may_block in (True, False):
            result = store.get("T", 0, 0, 32, tags_filter=lambda code: code == 2598920, may_block=may_block)
            assert (offsets(result), result.next_offset) == ([0], 2)
            assert offsets(store.get("T", 0, 0, 32, may_block=may_block)) == [0, 1]


# Damage


def units_of(store: MessageStore, *units: tuple[int, int]) -> None:
    """Give the queue these units instead of its own."""
    queue = store.queue("T", 0)
    queue.tail[:] = b"".join(ENTRY.pack(physical_offset, size, 0) for physical_offset, size in units)


@pytest.mark.parametrize(
    "broken",
    [(0, 99), (0, 101), (50, 100), (0, 0), (0, -1), (0, 3), (4094, 2), (4000, 100), (300, 100), (0, 1 << 30)],
)
def test_units_that_point_to_no_record_are_stepped_over(broken: tuple[int, int]) -> None:
    with opened() as store:
        put_all(store, [sized(100), sized(100), sized(100)])
        units_of(store, broken, (100, 100), broken, (200, 100))
        for _ in range(2):
            found: list[int] = []
            damaged = at = 0
            while at < 4:
                result = store.get("T", 0, at, 32)
                found += [each.physical_offset for each in result.messages()]
                damaged += result.damaged
                assert result.next_offset > at
                at = result.next_offset
            assert found == [100, 200]
            assert damaged == 2


def test_blank_units_are_stepped_over() -> None:
    with opened(small_settings(consume_queue_file_bytes=2000)) as store:
        put_all(store, [sized(1000) for _ in range(9)])
        queue = store.queue("T", 0)
        queue.fill_to(12)
        queue.next_offset = 12
        put_all(store, [sized(1000) for _ in range(2)])
        for _ in range(2):
            found: list[int] = []
            at = 0
            while at < 14:
                result = store.get("T", 0, at, 32)
                found += offsets(result)
                at = result.next_offset
            assert found == [*range(9), 12, 13]
            # From a record in the same file as the last one, so that only the blanks lie elsewhere.
            assert offsets(store.get("T", 0, 8, 32)) == [8]
        assert store.store_timestamp("T", 0, 10) is None
        assert store.get("T", 0, 10, 1).status is GetStatus.MESSAGE_WAS_REMOVING


# By time


@pytest.fixture
def timed() -> MessageStore:
    """Messages at 1000, 1010, 1010, 1010, 1020, 1030 after the start."""
    clock = ManualClock(NOW_MS + 1000)
    store = MessageStore(small_settings(), disk=simulated_disk(clock), clock=clock)
    store.open()
    for wait_ms in (0, 10, 0, 0, 10, 10):
        clock.advance(wait_ms)
        put_all(store, [message()])
    return store


@pytest.mark.parametrize(
    ("after_ms", "lower", "upper"),
    [
        (0, 0, 0),
        (999, 0, 0),
        (1000, 0, 0),
        (1005, 1, 0),
        (1010, 1, 3),
        (1015, 4, 3),
        (1020, 4, 4),
        (1030, 5, 5),
        (1031, 6, 5),
    ],
)
def test_offsets_by_time(timed: MessageStore, after_ms: int, lower: int, upper: int) -> None:
    assert timed.offset_by_time("T", 0, NOW_MS + after_ms) == lower
    assert timed.offset_by_time("T", 0, NOW_MS + after_ms, upper=True) == upper
    timed.close()


def test_times_of_messages(timed: MessageStore) -> None:
    assert timed.earliest_timestamp("T", 0) == NOW_MS + 1000
    assert timed.store_timestamp("T", 0, 4) == NOW_MS + 1020
    assert timed.store_timestamp("T", 0, 6) is None
    assert timed.store_timestamp("T", 0, -1) is None
    assert timed.store_timestamp("T", 9, 0) is None
    assert timed.earliest_timestamp("T", 9) is None
    timed.queue("empty", 0)
    assert timed.earliest_timestamp("empty", 0) is None
    assert timed.offset_by_time("empty", 0, NOW_MS) == 0
    assert timed.offset_by_time("T", 9, NOW_MS) == 0
    assert timed.reader.store_timestamp(1 << 40) is None
    assert timed.reader.store_timestamp(4096 - 75) is None
    timed.close()


def test_times_over_several_files_and_ipv6() -> None:
    clock = ManualClock(NOW_MS)
    with opened(clock=clock) as store:
        for number in range(40):
            clock.advance(10)
            put_all(store, [message(body=bytes(300), born_host=bytes(20 if number % 2 else 8))])
        assert len(store.log.files.starts) > 3
        for number in range(40):
            at = NOW_MS + 10 * (number + 1)
            assert store.offset_by_time("T", 0, at) == number
            assert store.offset_by_time("T", 0, at - 1) == number
            assert store.offset_by_time("T", 0, at, upper=True) == number


def test_by_time_only_what_is_still_there_counts() -> None:
    clock = ManualClock(NOW_MS)
    with opened(clock=clock) as store:
        for _ in range(12):
            clock.advance(10)
            put_all(store, [sized(1000)])
        store.log.delete_file(0)
        store.queue("T", 0).correct_min_offset(store.log.min_offset)
        assert store.offset_by_time("T", 0, 0) == 4
        assert store.offset_by_time("T", 0, 0, upper=True) == 4
        assert store.earliest_timestamp("T", 0) == NOW_MS + 50


def test_by_time_blank_units_do_not_count() -> None:
    clock = ManualClock(NOW_MS)
    with opened(clock=clock) as store:
        put_all(store, [message(), message()])
        queue = store.queue("T", 0)
        queue.fill_to(20)
        queue.next_offset = 20
        clock.advance(100)
        put_all(store, [message()])
        assert store.offset_by_time("T", 0, NOW_MS) == 0
        assert store.offset_by_time("T", 0, NOW_MS + 1) == 20


# By address


def test_by_address_and_by_id() -> None:
    with opened() as store:
        first, second = put_all(store, [message(body=b"one"), message(body=b"two")])
        assert store.message_at(second.physical_offset).body == b"two"
        message_id = offset_message_id(LOOPBACK_HOST, first.physical_offset)
        assert store.message_by_id(message_id).body == b"one"
        for wrong in (store.appended_offset, -1, 1 << 40):
            with pytest.raises(OffsetOutOfRange):
                store.message_at(wrong)
        with pytest.raises(CorruptRecord, match="no record starts here"):
            store.message_at(first.physical_offset + 1)
        with pytest.raises(ValueError, match="invalid message id of 5 characters"):
            store.message_by_id("no id")


def test_a_record_whose_size_leaves_the_file() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message()])
        disk.overwrite(ROOT / "commitlog" / f"{0:020d}", 0, (5000).to_bytes(4, "big"))
        with pytest.raises(CorruptRecord, match="its size of 5000 bytes exceeds the file"):
            store.message_at(0)


def test_the_last_bytes_of_a_file_are_no_record() -> None:
    with opened() as store:
        put_all(store, [sized(1000) for _ in range(6)])
        with pytest.raises(CorruptRecord, match="no record starts here"):
            store.message_at(4096 - 3)


# By key


def test_by_key_only_true_matches_come() -> None:
    with opened() as store:
        # "Aa" and "BB" have the same Java hash.
        put_all(
            store,
            [
                message(body=b"1", keys="Aa"),
                message(body=b"2", keys="BB"),
                message("other", body=b"3", keys="Aa"),
                message(body=b"4", keys="x Aa", unique_key="id"),
            ],
        )
        store.build_index()
        assert [each.body for each in store.messages_by_key("T", "Aa")] == [b"1", b"4"]
        assert [each.body for each in store.messages_by_key("T", "id")] == [b"4"]
        assert store.messages_by_key("T", "gone") == []


def test_by_key_within_a_time_and_up_to_a_number() -> None:
    clock = ManualClock(NOW_MS)
    with opened(small_settings(query_messages_max=3), clock=clock) as store:
        for number in range(5):
            put_all(store, [message(body=b"%d" % number, keys="k")])
            clock.advance(10_000)
        store.build_index()

        def found(**limits: int) -> list[bytes]:
            return [each.body for each in store.messages_by_key("T", "k", **limits)]

        assert found() == [b"2", b"3", b"4"]
        assert found(maximum=1) == [b"4"]
        assert found(begin_ms=NOW_MS + 10_000, end_ms=NOW_MS + 20_000) == [b"1", b"2"]


def test_by_key_what_cannot_be_read_is_left_out() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        _, _, third = put_all(store, [sized(1500), sized(1500), message(keys="k")])
        put_all(store, [message(body=bytes(1000), keys="k"), message(body=b"last", keys="k")])
        store.build_index()
        disk.overwrite(ROOT / "commitlog" / f"{0:020d}", third.physical_offset, bytes(8))
        assert [each.body for each in store.messages_by_key("T", "k")] == [bytes(1000), b"last"]
        store.log.delete_file(0)
        assert [each.body for each in store.messages_by_key("T", "k")] == [bytes(1000), b"last"]


# Cold data


def test_data_that_is_not_in_memory_is_cold() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, numbered(5))
    with opened(disk=disk) as store:
        disk.resident = False
        result = store.get("T", 0, 0, 32, may_block=False)
        assert (result.status, result.next_offset, result.records) == (GetStatus.COLD, 0, [])
        assert offsets(store.get("T", 0, 0, 32)) == [0, 1, 2, 3, 4]
        # What this process just wrote is in memory.
        put_all(store, numbered(2))
        result = store.get("T", 0, 5, 32, may_block=False)
        assert (result.status, offsets(result)) == (GetStatus.FOUND, [5, 6])
        result = store.get("T", 0, 3, 32, may_block=False)
        assert result.status is GetStatus.COLD
        disk.resident = True
        assert offsets(store.get("T", 0, 0, 32, may_block=False)) == [0, 1, 2, 3, 4, 5, 6]


def test_units_that_are_not_in_memory_are_cold_too() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, numbered(5))
    with opened(disk=disk) as store:
        disk.resident = False
        before = disk.counts[Kind.READ]
        assert store.get("T", 0, 2, 32, may_block=False).status is GetStatus.COLD
        assert disk.counts[Kind.READ] == before
        assert len(store.get("T", 0, 2, 32).records) == 3
        put_all(store, numbered(1))
        assert store.get("T", 0, 5, 32, may_block=False).status is GetStatus.FOUND


def test_what_was_filtered_before_the_cold_part_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [message(tags="TagA"), message(tags="TagA"), message(tags="TagB")])
    with opened(disk=disk) as store:
        disk.resident = False
        monkeypatch.setattr(ConsumeQueue, "resident_entries", ConsumeQueue.entries)
        result = store.get("T", 0, 0, 32, may_block=False, tags_filter=lambda code: code == 2598920)
        assert (result.status, result.next_offset) == (GetStatus.COLD, 2)


def test_what_is_known_to_be_hot_is_not_asked_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    disk = simulated_disk(clock)
    with opened(disk=disk, clock=clock) as store:
        put_all(store, numbered(5))
    with opened(disk=disk, clock=clock) as store:
        asked: list[tuple[int, int]] = []

        def is_resident(physical_offset: int, size: int) -> bool:
            asked.append((physical_offset, size))
            return True

        monkeypatch.setattr(store.log, "is_resident", is_resident)
        for _ in range(3):
            assert len(store.get("T", 0, 0, 32, may_block=False).records) == 5
        assert asked == [(0, store.appended_offset)]
        clock.advance(int(page_cache.RESIDENT_FOR_S * 1000))
        assert len(store.get("T", 0, 0, 32, may_block=False).records) == 5
        assert len(asked) == 2, "the kernel may have needed the memory since"


def test_every_part_of_a_large_record_must_be_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "RESIDENT_CHUNK_BYTES", 1000)
    monkeypatch.setattr(page_cache, "RESIDENT_CHUNKS_MAX", 3)
    disk = simulated_disk()
    settings = small_settings(message_bytes_max=4096)
    with opened(settings, disk) as store:
        put_all(store, [sized(200), sized(3700)])
    with opened(settings, disk) as store:
        for cold in range(0, 4000, 1000):
            store.reader.hot._chunks.clear()
            monkeypatch.setattr(store.log, "is_resident", lambda at, size, cold=cold: at != cold)
            assert store.get("T", 0, 1, 1, may_block=False).status is GetStatus.COLD
        monkeypatch.setattr(store.log, "is_resident", lambda at, size: True)
        assert store.get("T", 0, 1, 1, may_block=False).status is GetStatus.FOUND
        assert len(store.reader.hot._chunks) <= 3


def test_what_was_written_long_ago_may_have_become_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "memory_bytes", lambda: 1000)
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [sized(100) for _ in range(10)])
        disk.resident = False
        # 40 % of the memory holds the last four records.
        assert store.get("T", 0, 5, 1, may_block=False).status is GetStatus.COLD
        assert store.get("T", 0, 6, 1, may_block=False).status is GetStatus.FOUND


def test_cold_data_of_a_real_disk(tmp_path: Path) -> None:
    settings = small_settings(tmp_path / "store", **WIDE)
    with opened(settings, RealDisk(), SystemClock()) as store:
        put_all(store, [message(body=os.urandom(1000)) for _ in range(100)])
    with opened(settings, RealDisk(), SystemClock()) as store:
        path = store.log.files.path(0)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        assert store.get("T", 0, 0, 32, may_block=False).status is GetStatus.COLD
        result = store.get("T", 0, 0, 32)
        assert (result.status, len(result.records)) == (GetStatus.FOUND, 32)
        assert offsets(result) == list(range(32))


def test_without_a_way_to_ask_nothing_is_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where the kernel cannot be asked."""
    monkeypatch.delattr(os, "RWF_NOWAIT")
    settings = small_settings(tmp_path / "store")
    with opened(settings, RealDisk(), SystemClock()) as store:
        put_all(store, numbered(5))
    with opened(settings, RealDisk(), SystemClock()) as store:
        assert store.get("T", 0, 0, 32, may_block=False).status is GetStatus.FOUND


def test_an_error_of_a_cold_read_is_an_error() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, numbered(5))
    with opened(disk=disk) as store:
        disk.resident = False
        disk.plan(Fault(Kind.READ, path_contains="commitlog"))
        with pytest.raises(OSError, match="Input/output error"):
            store.get("T", 0, 0, 32)
        assert len(store.get("T", 0, 0, 32).records) == 5


def test_a_file_deleted_under_a_cold_read() -> None:
    disk = simulated_disk()
    with opened(disk=disk) as store:
        put_all(store, [sized(1000) for _ in range(12)])
    with opened(disk=disk) as store:
        store.log.view(0)
        disk.resident = False
        store.log.files.starts.remove(0)  # the map is still there, the file is not
        store.log._open.clear()
        result = store.get("T", 0, 0, 32)
        assert offsets(result) == [4, 5, 6, 7, 8, 9]


def test_results_are_slices_of_the_log_and_not_copies() -> None:
    with opened() as store:
        put_all(store, numbered(3))
        result = store.get("T", 0, 0, 3)
        assert all(isinstance(record, memoryview) and record.readonly for record in result.records)
        assert placed(store.append([message()])[0]).queue_offset == 3
