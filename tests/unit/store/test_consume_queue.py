"""One consume queue: its units in memory and in files, where it begins and ends, how it is cut."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.errors import BadStoreFile, DiskFull
from skylark.store.consume_queue import ConsumeQueue, check_topic
from skylark.store.disk import RealDisk
from skylark.store.mapped_file import OpenFiles, file_name
from skylark.store.queue_entry import BLANK_ENTRY, BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES
from tests.support.simulated_disk import Fault, Kind, Operation, SimulatedDisk

ROOT = Path("/consumequeue")
DIRECTORY = ROOT / "TopicTest" / "1"
FILE_UNITS = 10
FILE_BYTES = FILE_UNITS * ENTRY_BYTES
RECORD_BYTES = 100


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(ROOT)
    return disk


@pytest.fixture
def queue(disk: SimulatedDisk) -> ConsumeQueue:
    return queue_on(disk)


def queue_on(
    disk: SimulatedDisk | RealDisk, directory: Path = DIRECTORY, file_bytes: int = FILE_BYTES
) -> ConsumeQueue:
    return ConsumeQueue(
        "TopicTest", 1, directory, file_bytes, disk, OpenFiles(disk, 8, writable=True), threading.Lock()
    )


def loaded(disk: SimulatedDisk) -> ConsumeQueue:
    queue = queue_on(disk)
    assert queue.load() == []
    return queue


def add(queue: ConsumeQueue, *queue_offsets: int) -> None:
    """Units as the records of a log in which each message lies 1,000 bytes behind the one before it."""
    for queue_offset in queue_offsets:
        assert queue.add(queue_offset, 1000 * queue_offset, RECORD_BYTES, queue_offset)


def write(queue: ConsumeQueue) -> None:
    queue.write()
    queue.sync()


def offsets(queue: ConsumeQueue) -> list[int | None]:
    """Physical offsets of all units from the minimum on, None for blank ones."""
    found: list[int | None] = []
    for queue_offset in range(queue.min_offset, queue.max_offset):
        unit = queue.entry(queue_offset)
        assert unit is not None
        found.append(unit[0] if unit[1] != BLANK_ENTRY_SIZE else None)
    return found


# Bytes


def test_units_are_those_of_the_format(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    assert queue.add(7, 1073742336, 212, 2598919)
    write(queue)
    content = disk.content(DIRECTORY / "00000000000000000000")
    assert content[140:160].hex() == "0000000040000200000000d4000000000027a807"
    assert content[:140] == bytes.fromhex("00000000000000007fffffff0000000000000000") * 7 == BLANK_ENTRY * 7
    assert content[160:] == bytes(FILE_BYTES - 160)


def test_a_scheduled_unit() -> None:
    packed = ENTRY.pack(0x400002D4, 161, 1700000010123)
    assert packed.hex() == "00000000400002d4000000a10000018bcfe58f8b"


def test_a_far_queue_offset_lies_in_its_own_file(disk: SimulatedDisk) -> None:
    queue = queue_on(disk, file_bytes=6_000_000)
    assert queue.add(300_007, 4711, 212, 1)
    write(queue)
    assert disk.files(DIRECTORY) == ["00000000000006000000"]
    content = disk.content(DIRECTORY / "00000000000006000000")
    assert len(content) == 6_000_000
    assert ENTRY.unpack_from(content, 140) == (4711, 212, 1)


@pytest.mark.parametrize(
    "topic", ["", "t" * 128, "%RETRY%" + "g" * 249, ".", "..", "a/b", "../x", "a\\b", "a\0", "\udc80"]
)
def test_topics_that_cannot_be_stored(topic: str) -> None:
    with pytest.raises(ValueError, match=r"topic|surrogates"):
        check_topic(topic)


@pytest.mark.parametrize(
    "topic", ["t", "t" * 127, "%RETRY%" + "g" * 248, "...", "订" * 42, "a b", "%x", ".a"]
)
def test_topics_that_can_be_stored(topic: str) -> None:
    check_topic(topic)


# Publishing and writing


def test_a_new_queue_is_empty(queue: ConsumeQueue) -> None:
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 0, 0)
    assert queue.max_physical_offset == -1
    assert queue.entries(0, 10) == b""
    assert queue.entry(0) is None
    assert repr(queue) == "ConsumeQueue(TopicTest/1 0..0)"


def test_published_units_are_readable_before_they_are_written(
    disk: SimulatedDisk, queue: ConsumeQueue
) -> None:
    add(queue, 0, 1, 2)
    assert offsets(queue) == [0, 1000, 2000]
    assert queue.max_physical_offset == 2100
    assert (queue.written_offset, queue.synced_offset) == (0, 0)
    assert disk.paths(ROOT) == []
    queue.write()
    assert offsets(queue) == [0, 1000, 2000]
    assert (queue.written_offset, queue.synced_offset) == (3, 0)
    queue.sync()
    assert queue.synced_offset == 3
    add(queue, 3)
    assert offsets(queue) == [0, 1000, 2000, 3000]


def test_a_unit_that_is_there_is_left_alone(queue: ConsumeQueue) -> None:
    add(queue, 0, 1)
    assert not queue.add(0, 50, 1, 1)
    assert not queue.add(1, 1050, 1, 1)
    assert offsets(queue) == [0, 1000]


def test_files_follow_one_another(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(25))
    write(queue)
    assert disk.files(DIRECTORY) == [file_name(start) for start in (0, 200, 400)]
    assert {disk.length(path) for path in disk.paths(DIRECTORY)} == {FILE_BYTES}
    assert offsets(queue) == [1000 * n for n in range(25)]
    add(queue, *range(25, 31))
    write(queue)
    assert queue.file_starts == [0, 200, 400, 600]
    assert offsets(queue) == [1000 * n for n in range(31)]


def test_units_never_come_from_two_files(queue: ConsumeQueue) -> None:
    add(queue, *range(25))
    for _ in range(2):
        assert len(queue.entries(0, 100)) == FILE_BYTES
        assert len(queue.entries(7, 100)) == 3 * ENTRY_BYTES
        assert len(queue.entries(20, 100)) == 5 * ENTRY_BYTES
        assert len(queue.entries(20, 2)) == 2 * ENTRY_BYTES
        queue.write()
    add(queue, 25, 26)
    # Whether they were written yet does not matter.
    assert len(queue.entries(20, 100)) == 7 * ENTRY_BYTES
    assert len(queue.entries(20, 6)) == 6 * ENTRY_BYTES
    assert len(queue.entries(25, 100)) == 2 * ENTRY_BYTES
    assert (
        queue.resident_entries(20, 100)
        == queue.entries(20, 100)
        == queue.entries(20, 5) + queue.entries(25, 2)
    )


def test_where_the_next_file_begins(queue: ConsumeQueue) -> None:
    assert [queue.next_file_offset(offset) for offset in (0, 9, 10, 25)] == [10, 10, 20, 30]


def test_a_file_that_is_gone_reads_as_nothing(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(25))
    write(queue)
    other = loaded(disk)
    disk.lose(DIRECTORY / file_name(200))
    assert other.entries(12, 5) == b""
    assert other.entry(12) is None
    assert other.entry(22) == (22000, RECORD_BYTES, 22)


def test_units_are_in_memory_or_not(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(12))
    disk.resident = False
    assert queue.resident_entries(0, 12) == queue.entries(0, 12)  # not written yet
    write(queue)
    add(queue, 12)
    assert queue.resident_entries(3, 5) is None
    assert queue.resident_entries(12, 1) == queue.entries(12, 1)
    disk.resident = True
    assert queue.resident_entries(3, 100) == queue.entries(3, 100)
    # A file that is not open would have to be opened first, which may wait for the disk.
    queue._open_files.forget(DIRECTORY, 0)
    assert queue.resident_entries(3, 5) is None


def test_only_what_changed_is_synced(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    synced: list[Path] = []

    def watch(operation: Operation) -> None:
        if operation.kind in (Kind.SYNC, Kind.SYNC_DIRECTORY):
            synced.append(operation.path)

    disk.observer = watch
    add(queue, *range(25))
    write(queue)
    files = {DIRECTORY / file_name(start) for start in (0, 200, 400)}
    assert files | {DIRECTORY, DIRECTORY.parent, ROOT} <= set(synced)
    synced.clear()
    add(queue, 25)
    write(queue)
    assert synced == [DIRECTORY / file_name(400)]
    write(queue)
    assert len(synced) == 1


def test_a_file_cleaned_before_it_was_synced_is_no_error(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(25))
    queue.write()
    queue.delete_files(queue.forget_expired(9001))
    queue.sync()
    assert queue.synced_offset == 25
    assert queue.file_starts == [200, 400]
    assert disk.files(DIRECTORY) == [file_name(200), file_name(400)]


@pytest.mark.parametrize("kind", [Kind.CREATE, Kind.WRITE, Kind.ALLOCATE])
def test_what_could_not_be_written_stays_readable_and_is_written_later(
    disk: SimulatedDisk, queue: ConsumeQueue, kind: Kind
) -> None:
    add(queue, *range(12))
    disk.plan(Fault(kind, error=errno.ENOSPC))
    with pytest.raises(DiskFull):
        queue.write()
    assert offsets(queue) == [1000 * n for n in range(12)]
    disk.heal()
    write(queue)
    assert offsets(loaded(disk)) == [1000 * n for n in range(12)]


def test_a_queue_takes_few_blocks(tmp_path: Path) -> None:
    queue = queue_on(RealDisk(), tmp_path / "T" / "0", 6_000_000)
    add(queue, *range(50))
    write(queue)
    status = (tmp_path / "T" / "0" / file_name(0)).stat()
    assert status.st_size == 6_000_000
    assert 1000 <= status.st_blocks * 512 <= 2 * 64 * 1024 + 8192


# Queues that begin late, or have holes


def test_a_queue_that_begins_late(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, 23, 24)
    assert (queue.min_offset, queue.max_offset) == (23, 25)
    assert offsets(queue) == [23000, 24000]
    write(queue)
    assert disk.files(DIRECTORY) == [file_name(400)]
    again = loaded(disk)
    assert again.max_offset == 25
    again.correct_min_offset(0)
    assert (again.min_offset, offsets(again)) == (23, [23000, 24000])


def test_a_gap_is_filled_with_blank_units(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, 1)
    add(queue, 5)
    assert queue.min_offset == 0
    assert offsets(queue) == [0, 1000, None, None, None, 5000]
    queue.fill_to(8)
    assert queue.max_physical_offset == -1
    write(queue)
    assert offsets(loaded(disk)) == [0, 1000, None, None, None, 5000, None, None]


def test_a_queue_of_which_only_a_name_is_left_begins_anew(disk: SimulatedDisk) -> None:
    """After a crash the last file may be there, empty, and those before it not."""
    disk.create(DIRECTORY / file_name(400), FILE_BYTES)
    queue = loaded(disk)
    assert (queue.min_offset, queue.max_offset) == (20, 20)
    add(queue, 0, 1, 2)
    assert offsets(queue) == [0, 1000, 2000]
    write(queue)
    assert disk.files(DIRECTORY) == [file_name(0)]
    # Offsets that go on from there are taken as they are.
    disk.lose(DIRECTORY)
    disk.create(DIRECTORY / file_name(400), FILE_BYTES)
    queue = loaded(disk)
    add(queue, 20, 21)
    assert offsets(queue) == [20000, 21000]


def test_a_queue_begins_anew_with_its_topic(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    """Deleted and made again, a queue counts from 0, further on in the log: the old units are not its own."""
    for written in (True, False):
        queue.reset()
        add(queue, *range(15))
        if written:
            write(queue)
        assert not queue.add(3, 3000, RECORD_BYTES, 0)  # a record that is read again
        assert queue.add(0, 20_000, RECORD_BYTES, 0)
        assert offsets(queue) == [20_000]
        assert queue.add(1, 20_100, RECORD_BYTES, 0)
        write(queue)
        assert offsets(loaded(disk)) == [20_000, 20_100]


class Turn:
    """A lock; who waits for it gets his turn, once, when it is given back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: Callable[[], object] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting()


@pytest.mark.parametrize("moment", ["before its files", "behind its files"])
def test_a_queue_begins_anew_while_the_old_one_is_written(
    disk: SimulatedDisk, queue: ConsumeQueue, moment: str
) -> None:
    """A slave reads from the log that a topic was deleted and made again, while its flush thread works."""
    files_turn, units_turn = Turn(), Turn()
    queue._open_files.changing = files_turn  # type: ignore[assignment]
    queue._lock = units_turn  # type: ignore[assignment]
    add(queue, *range(15))
    turn = units_turn if moment == "before its files" else files_turn
    turn.waiting = lambda: queue.add(0, 20_000, RECORD_BYTES, 0)
    write(queue)
    assert (offsets(queue), queue.synced_offset) == ([20_000], 0)
    assert queue.add(1, 20_100, RECORD_BYTES, 0)
    write(queue)
    assert (offsets(loaded(disk)), queue.synced_offset) == ([20_000, 20_100], 2)


def test_a_queue_whose_end_is_lost_does_not_begin_anew(queue: ConsumeQueue) -> None:
    add(queue, *range(5))
    queue.fill_to(8)
    assert not queue.add(3, 3000, RECORD_BYTES, 0)
    assert queue.max_offset == 8


def test_a_queue_cut_down_to_nothing_can_begin_earlier(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(20, 28))
    write(queue)
    queue.truncate(20000)
    assert (queue.max_offset, queue.file_starts) == (20, [])
    add(queue, 3)
    assert (queue.min_offset, queue.max_offset) == (3, 4)


@pytest.mark.parametrize("blanks", [range(0, 5), range(3, 12), range(8, 20), range(15, 25), range(10, 11)])
def test_a_search_steps_over_blank_units(queue: ConsumeQueue, blanks: range) -> None:
    real = [offset for offset in range(25) if offset not in blanks]
    add(queue, 0) if 0 in real else queue.fill_to(blanks.stop)
    for offset in real:
        queue.add(offset, 1000 * offset, RECORD_BYTES, 0)
    queue.fill_to(25)
    for wanted in range(0, 25001, 500):
        expected = next((offset for offset in real if 1000 * offset >= wanted), 25)
        assert queue.search(0, 25, lambda at, _, wanted=wanted: at >= wanted) == expected, wanted  # type: ignore[misc]


# Loading


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 20, 25, 30])
def test_the_end_is_found_again(disk: SimulatedDisk, queue: ConsumeQueue, count: int) -> None:
    add(queue, *range(count))
    write(queue)
    again = loaded(disk)
    assert (again.min_offset, again.max_offset, again.next_offset) == (0, count, count)
    assert again.synced_offset == again.written_offset == count
    assert offsets(again) == [1000 * n for n in range(count)]


def test_a_file_without_units_at_the_end_does_not_count(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(10))
    write(queue)
    disk.create(DIRECTORY / file_name(200), FILE_BYTES)
    assert loaded(disk).max_offset == 10
    disk.lose(DIRECTORY / file_name(0))
    again = loaded(disk)
    assert (again.min_offset, again.max_offset) == (10, 10)


@pytest.mark.parametrize(("length", "kept"), [(0, 10), (199, 10), (201, 10)])
def test_a_file_of_another_length_ends_what_counts(
    disk: SimulatedDisk, queue: ConsumeQueue, length: int, kept: int
) -> None:
    add(queue, *range(30))
    write(queue)
    disk.cut(DIRECTORY / file_name(200), length)
    again = queue_on(disk)
    (problem,) = again.load()
    assert problem.reason == f"has {length} bytes instead of 200"
    assert again.max_offset == kept
    assert again.file_starts == [0]


def test_a_hole_ends_what_counts(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(30))
    write(queue)
    disk.lose(DIRECTORY / file_name(200))
    assert loaded(disk).max_offset == 10


def test_units_that_do_not_count_never_come_back(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    """Files behind an unusable one are built again; what they held before must not shine through."""
    add(queue, *range(30))
    write(queue)
    disk.cut(DIRECTORY / file_name(0), 77)
    again = queue_on(disk)
    again.load()
    assert again.max_offset == 0
    again.truncate(0)
    add(again, *range(12))
    write(again)
    last = queue_on(disk)
    last.load()
    assert last.max_offset == 12
    assert offsets(last) == [1000 * n for n in range(12)]


# Cutting


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 20, 24, 25])
@pytest.mark.parametrize("written", [True, False])
def test_truncating(disk: SimulatedDisk, queue: ConsumeQueue, keep: int, written: bool) -> None:
    add(queue, *range(25))
    if written:
        write(queue)
    queue.truncate(1000 * keep)
    assert queue.max_offset == keep
    assert offsets(queue) == [1000 * n for n in range(keep)]
    assert offsets(loaded(disk)) == [1000 * n for n in range(keep)]
    add(queue, keep, keep + 1)
    write(queue)
    assert offsets(loaded(disk)) == [1000 * n for n in range(keep + 2)]


def test_truncating_between_two_records(queue: ConsumeQueue) -> None:
    add(queue, 0, 1, 2)
    queue.truncate(1001)
    assert offsets(queue) == [0, 1000]


def test_truncating_goes_by_records_not_by_blank_units(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, 1)
    queue.fill_to(12)
    add(queue, 12, 13)
    queue.fill_to(15)
    queue.truncate(13001)
    assert queue.max_offset == 15  # offsets that were given out, nothing behind the cut
    queue.truncate(13000)
    assert offsets(queue) == [0, 1000, *[None] * 10, 12000]
    queue.truncate(1000)
    assert offsets(loaded(disk)) == [0]


def test_a_reset_forgets_everything(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(15))
    write(queue)
    add(queue, 15)
    queue.reset()
    assert (queue.min_offset, queue.max_offset, queue.file_starts) == (0, 0, [])
    assert disk.directories(DIRECTORY.parent) == []
    add(queue, 3)
    write(queue)
    assert disk.files(DIRECTORY) == [file_name(0)]


def test_names_that_a_killed_process_left_become_durable(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(5))
    write(queue)
    add(queue, *range(5, 12))
    queue.write()
    image = disk.kill_image()
    disk.create(DIRECTORY / file_name(400), FILE_BYTES)
    for killed, end in ((image, 12), (disk.kill_image(), 22)):
        again = loaded(killed)
        again.truncate(5000)
        add(again, *range(5, end))
        write(again)
        for seed in range(20):
            assert loaded(killed.crash_image(random.Random(seed))).max_offset == end


@pytest.mark.parametrize("wound", ["cut", "reset", "unusable"])
def test_what_was_cut_off_does_not_come_back_after_a_power_loss(
    disk: SimulatedDisk, queue: ConsumeQueue, wound: str
) -> None:
    add(queue, *range(30))
    write(queue)
    if wound == "unusable":
        disk.cut(DIRECTORY / file_name(200), 77)
        queue = queue_on(disk)
        queue.load()
        queue.truncate(99_000)
    elif wound == "cut":
        queue.truncate(8000)
    else:
        queue.reset()
    write(queue)
    for seed in range(20):
        image = disk.crash_image(random.Random(seed))
        assert loaded(image).max_offset == {"cut": 8, "reset": 0, "unusable": 10}[wound]


# Following the log


@pytest.mark.parametrize(
    ("log_min", "expected"), [(0, 0), (1, 1), (1000, 1), (1001, 2), (24000, 24), (24001, 25), (99999, 25)]
)
def test_the_minimum_follows_the_log(queue: ConsumeQueue, log_min: int, expected: int) -> None:
    add(queue, *range(25))
    queue.correct_min_offset(log_min)
    assert queue.min_offset == expected
    queue.correct_min_offset(0)
    assert queue.min_offset == expected  # it never goes back


def test_the_minimum_is_a_unit_with_a_record(queue: ConsumeQueue) -> None:
    add(queue, *range(8))
    queue.fill_to(20)
    add(queue, 20, 21)
    queue.correct_min_offset(3000)
    assert queue.min_offset == 3
    queue.correct_min_offset(7001)
    assert queue.min_offset == 20


@pytest.mark.parametrize(("units", "far"), [(7, 0), (7, 1), (7, 2), (10, 0), (10, 9), (13, 0), (13, 5)])
def test_what_lies_behind_the_last_unit_is_cut_off(
    disk: SimulatedDisk, queue: ConsumeQueue, units: int, far: int
) -> None:
    add(queue, *range(units))
    write(queue)
    start = 200 * (units // 10)
    position = 20 * (units % 10 + far)
    path = DIRECTORY / file_name(start)
    if not disk.exists(path):
        disk.create(path, 200)
    disk.overwrite(path, position, ENTRY.pack(-1, 5, 0) if far == 0 else ENTRY.pack(50, 5, 0))
    again = loaded(disk)
    again.cut_to(units)
    again.clear_behind()
    assert again.max_offset == units
    behind = disk.content(path)[20 * (units % 10) :] if disk.exists(path) else b""
    assert not behind.strip(b"\0")


def test_a_file_that_was_cut_short_is_an_error_and_no_end(disk: SimulatedDisk, queue: ConsumeQueue) -> None:
    add(queue, *range(9))
    write(queue)
    disk.cut(DIRECTORY / file_name(0), 50)
    assert len(queue.entries(0, 2)) == 40
    for first, left in ((0, 50), (2, 10), (5, 0)):
        with pytest.raises(BadStoreFile, match=f"has {left} instead of .* bytes from byte {20 * first} on"):
            queue.entries(first, 4)


def test_files_expire_with_their_last_record(queue: ConsumeQueue) -> None:
    add(queue, *range(35))
    write(queue)
    assert queue.forget_expired(9000) == []
    assert queue.forget_expired(9001) == [0]
    assert (queue.file_starts, queue.min_offset) == ([200, 400, 600], 10)
    # Never the last one.
    assert queue.forget_expired(99999) == [200, 400]
    assert queue.file_starts == [600]


def test_a_file_whose_last_unit_is_blank_expires_with_its_records(queue: ConsumeQueue) -> None:
    add(queue, *range(5))
    queue.fill_to(10)
    add(queue, *range(10, 15))
    write(queue)
    assert queue.forget_expired(3000) == []
    assert queue.forget_expired(4001) == [0]
