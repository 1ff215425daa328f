"""What a replay believes of queue offsets, which no checksum covers."""

from __future__ import annotations

import pytest

from skylark.model.record import ScannedRecord
from skylark.store.dispatch import Dispatcher
from skylark.store.log_scan import LogDamage, LogWalk
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import BLANK_ENTRY_SIZE
from skylark.store.recovery import FILLER_TOPIC, RecoveryReport, Replay
from tests.support.store import opened, sized, small_settings

SIZE = 100
FILE_BYTES = 1 << 20
BLANK_SIZE = BLANK_ENTRY_SIZE.to_bytes(4, "big")


class Records(LogWalk):
    """A walk over records that need no log."""

    def __init__(self, store: MessageStore, records: list[ScannedRecord], start: int) -> None:
        super().__init__(store.log, start)
        self._records = records

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._records)


def record(place: int, queue_offset: int, topic: str = "T") -> ScannedRecord:
    sys_flag = 0xC if topic == FILLER_TOPIC else 0
    return ScannedRecord(place * SIZE, SIZE, 0, queue_offset, sys_flag, 1000, topic.encode(), b"")


def replayed(
    store: MessageStore, records: list[ScannedRecord], start: int = 0, lost: int = 0
) -> tuple[Replay, RecoveryReport]:
    walk = Records(store, records, start)
    if lost:
        walk.damages.append(LogDamage(0, lost, "test"))
    report = RecoveryReport()
    dispatcher = Dispatcher(store.log, store.queues, None)
    replay = Replay(store.log, dispatcher, None, {}, report, walk)
    replay.run()
    return replay, report


def places(store: MessageStore) -> list[int | None]:
    """By queue offset: which record is there, None for a blank unit."""
    queue = store.queue("T", 0)
    units = [queue.entry(at) for at in range(queue.max_offset)]
    return [None if unit is None or unit[1] == BLANK_ENTRY_SIZE else unit[0] // SIZE for unit in units]


@pytest.mark.parametrize(
    ("queue_offsets", "expected"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        # One that goes astray, upwards or downwards, costs itself and nothing else.
        ([0, 1 << 40, 2, 3], [0, None, 2, 3]),
        ([0, 3, 2, 3], [0, None, 2, 3]),
        ([0, 1, 0, 3, 4], [0, 1, None, 3, 4]),
        ([1 << 40, 1, 2], [None, 1, 2]),
        # Two that agree speak for a loss before them: of a record whose queue id has flipped, say.
        ([1, 2, 3], [None, 0, 1, 2]),
        ([0, 5, 6], [0, None, None, None, None, 1, 2]),
        # The last of all is believed if no more than its neighbour is missing.
        ([0, 2], [0, None, 1]),
        ([0, 7], [0]),
        # A topic that was deleted and made again.
        ([0, 1, 2, 0, 1], [3, 4]),
    ],
)
def test_one_record_is_not_believed_and_two_are(queue_offsets: list[int], expected: list[int | None]) -> None:
    with opened(small_settings(commit_log_file_bytes=FILE_BYTES)) as store:
        replayed(store, [record(place, offset) for place, offset in enumerate(queue_offsets)])
        assert places(store) == expected


def test_what_is_left_out_or_missing_is_told() -> None:
    with opened() as store:
        _, report = replayed(store, [record(0, 0), record(1, 9), record(2, 2), record(3, 5), record(4, 6)])
        assert report.problems == [
            "record at 100 has queue offset 9, expected 1 in T/0: skipped",
            "queue T/0 has no records for its messages 3 to 4",
        ]


def test_the_last_record_is_believed_as_far_as_the_log_has_room_for_what_is_missing() -> None:
    with opened(small_settings(commit_log_file_bytes=FILE_BYTES)) as store:
        replayed(store, [record(0, 0), record(7, 5)])
        assert places(store) == [0, None, None, None, None, 7]


def test_plugged_damage_explains_a_gap_as_damage_does() -> None:
    with opened(small_settings(commit_log_file_bytes=FILE_BYTES)) as store:
        records = [record(0, 0), record(1, 0, FILLER_TOPIC), record(2, 0, FILLER_TOPIC), record(3, 3)]
        replay, _ = replayed(store, records, start=0)
        assert places(store) == [0, None, None, 3]
        assert not replay.incomplete


@pytest.mark.parametrize("lost", [0, 2 * SIZE])
def test_a_queue_that_misses_units_before_the_scan_is_built_again(lost: int) -> None:
    """Damage read just now may explain the gap; else the units were lost, and the log still has them."""
    with opened(small_settings(commit_log_file_bytes=FILE_BYTES)) as store:
        replay, _ = replayed(store, [record(10, 2), record(11, 3)], start=10 * SIZE, lost=lost)
        queue = store.queue("T", 0)
        assert replay.incomplete == (set() if lost else {queue})
        assert queue.max_offset == (4 if lost else 0)


@pytest.mark.parametrize(
    ("queue_offsets", "expected"),
    [
        ([70], [70]),
        ([70, 71, 72], [70, 71, 72]),
        ([1 << 50, 71, 72], [71, 72]),
        ([70, 1 << 50, 72], [70, 72]),
        ([70, 71, 1 << 50], [70, 71]),
        ([6, 71, 72], [71, 72]),
        ([70, 7, 72, 73], [70, 72, 73]),
    ],
)
def test_a_queue_may_begin_late_where_the_log_does(queue_offsets: list[int], expected: list[int]) -> None:
    with opened() as store:
        for _ in range(8):
            store.append([sized(1000)])
        store.log.delete_file(0)
        store.queues.clear()
        place = store.log.min_offset // SIZE + 1
        records = [record(place + number, offset) for number, offset in enumerate(queue_offsets)]
        replayed(store, records, start=store.log.min_offset)
        queue = store.queue("T", 0)
        offsets = [
            at for at in range(queue.min_offset, queue.max_offset) if queue.entries(at, 1)[8:12] != BLANK_SIZE
        ]
        assert offsets == expected
