"""The simulated disk keeps its own promises: the fault suite is worth what this disk is worth."""

import errno
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.errors import DiskFull, StoreLocked
from skylark.store.disk import Disk, DiskFile
from tests.support.clock import ManualClock
from tests.support.simulated_disk import Crash, Fault, Kind, Operation, SimulatedDisk
from tests.support.simulated_medium import PAGE_BYTES, SECTOR_BYTES

ROOT = Path("/data")
FILE = ROOT / "file"
IMAGES = 200


def made(
    length: int = 4 * PAGE_BYTES, *, seed: int = 0, capacity_bytes: int | None = None
) -> tuple[SimulatedDisk, DiskFile]:
    """A disk with one durable file of zeros."""
    disk = SimulatedDisk(seed=seed, capacity_bytes=capacity_bytes)
    disk.make_directory(ROOT)
    file = disk.create(FILE, length)
    file.sync()
    disk.sync_directory(ROOT)
    return disk, file


def images(disk: SimulatedDisk) -> list[SimulatedDisk]:
    return [disk.crash_image(random.Random(seed)) for seed in range(IMAGES)]


def test_it_is_a_disk() -> None:
    disk: Disk = SimulatedDisk()
    file: DiskFile = disk.create(FILE, 100)
    assert (file.path, file.length, disk.length(FILE), disk.exists(FILE)) == (FILE, 100, 100, True)
    assert file.read(100, 0) == bytes(100)
    assert disk.files(ROOT) == ["file"]
    assert disk.directories(Path("/")) == ["data"]
    assert disk.files(Path("/nowhere")) == []
    with pytest.raises(FileNotFoundError):
        disk.open(ROOT / "other")
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(Path("/nowhere"))


def test_a_write_is_visible_at_once_to_reads_and_to_older_views() -> None:
    disk, file = made()
    view = disk.open(FILE).view()
    file.write([b"ab", bytearray(b"cd"), memoryview(b"ef")], 10)
    assert bytes(view[10:16]) == file.read(6, 10) == b"abcdef"
    assert view.readonly
    assert file.read(100, file.length - 5) == bytes(5)


def test_a_view_outlives_close_and_delete() -> None:
    disk, file = made()
    file.write([b"x"], 0)
    view = file.view()
    file.close()
    disk.delete(FILE)
    assert view[0] == ord("x")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)


def test_an_empty_file_has_no_view() -> None:
    with pytest.raises(ValueError, match="empty"):
        SimulatedDisk().create(FILE, 0).view()


def test_a_file_opened_for_reading_takes_no_write() -> None:
    disk, _ = made()
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.open(FILE).write([b"x"], 0)
    disk.open(FILE, writable=True).write([b"x"], 0)


def test_create_on_an_existing_file_gives_it_the_length_and_zeros_behind_a_cut() -> None:
    disk, file = made(1000)
    file.write([b"\1" * 1000], 0)
    file.sync()
    disk.create(FILE, 300)
    disk.create(FILE, 1000).sync()
    for image in [disk, *images(disk)]:
        assert image.content(FILE) == b"\1" * 300 + bytes(700)


def test_what_was_synced_survives_every_power_loss() -> None:
    disk, file = made()
    file.write([b"\1" * PAGE_BYTES], 0)
    file.sync()
    file.write([b"\2" * PAGE_BYTES], PAGE_BYTES)
    assert all(image.content(FILE)[:PAGE_BYTES] == b"\1" * PAGE_BYTES for image in images(disk))


def test_what_was_not_synced_is_lost_or_kept_in_any_order() -> None:
    disk, file = made(2 * PAGE_BYTES)
    file.write([b"\1" * PAGE_BYTES], 0)
    file.write([b"\2" * PAGE_BYTES], PAGE_BYTES)
    seen = {
        (bytes({image.content(FILE)[0]}), bytes({image.content(FILE)[PAGE_BYTES]})) for image in images(disk)
    }
    assert seen == {(a, b) for a in (b"\0", b"\1") for b in (b"\0", b"\2")}


def test_a_page_may_be_any_of_its_versions_or_torn_at_a_sector() -> None:
    disk, file = made(PAGE_BYTES)
    for value in (b"\1", b"\2", b"\3"):
        file.write([value * PAGE_BYTES], 0)
    contents = {image.content(FILE) for image in images(disk)}
    whole = {content[0] for content in contents if len(set(content)) == 1}
    assert whole == {0, 1, 2, 3}
    torn = [content for content in contents if len(set(content)) > 1]
    assert torn
    for content in torn:
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)


def test_a_write_may_be_torn_in_the_middle_of_what_it_wrote() -> None:
    disk, file = made(PAGE_BYTES)
    file.write([b"\1" * 100], SECTOR_BYTES - 50)
    seen = {
        (image.content(FILE)[SECTOR_BYTES - 1], image.content(FILE)[SECTOR_BYTES]) for image in images(disk)
    }
    assert seen == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_names_are_durable_only_after_sync_directory() -> None:
    disk, _ = made()
    other = ROOT / "other"
    disk.create(other, 10).sync()
    disk.delete(FILE)
    seen = {(image.exists(FILE), image.exists(other)) for image in images(disk)}
    assert seen == {(a, b) for a in (True, False) for b in (True, False)}
    disk.sync_directory(ROOT)
    assert {(image.exists(FILE), image.exists(other)) for image in images(disk)} == {(False, True)}


def test_a_new_directory_needs_its_parent_synced() -> None:
    disk, _ = made()
    path = ROOT / "deep" / "file"
    disk.create(path, 10).sync()
    disk.sync_directory(path.parent)
    assert {image.exists(path) for image in images(disk)} == {True, False}
    disk.sync_directory(ROOT)
    assert {image.exists(path) for image in images(disk)} == {True}


def test_a_length_is_durable_only_after_sync() -> None:
    disk, _ = made()
    other = ROOT / "other"
    file = disk.create(other, 5000)
    disk.sync_directory(ROOT)
    file.write([b"\1"], 4999)
    assert {image.length(other) for image in images(disk)} == {0, 5000}
    file.sync()
    assert {image.content(other) for image in images(disk)} == {bytes(4999) + b"\1"}


def test_a_deleted_tree_may_come_back_in_pieces() -> None:
    disk, _ = made()
    names = [ROOT / "tree" / str(number) for number in range(3)]
    for name in names:
        disk.create(name, 1).sync()
    disk.sync_directory(names[0].parent)
    disk.sync_directory(ROOT)
    before = disk.operations
    disk.delete_directory(ROOT / "tree")
    assert disk.operations - before == 4
    assert not disk.exists(ROOT / "tree")
    assert len({tuple(map(image.exists, names)) for image in images(disk)}) > 3
    disk.sync_directory(ROOT)
    assert not any(image.exists(ROOT / "tree") for image in images(disk))


def test_a_kill_loses_nothing_and_makes_nothing_durable() -> None:
    disk, file = made()
    file.write([b"\1"], 0)
    killed = disk.kill_image()
    assert killed.content(FILE)[0] == 1
    assert {image.content(FILE)[0] for image in images(killed)} == {0, 1}
    killed.open(FILE, writable=True).write([b"\2"], 0)
    assert disk.content(FILE)[0] == 1
    killed.open(FILE).sync()
    assert {image.content(FILE)[0] for image in images(killed)} == {2}


def test_equal_seeds_give_equal_images() -> None:
    def image(seed: int) -> list[bytes]:
        disk, file = made()
        for position in range(0, file.length, 700):
            file.write([bytes([position % 251]) * 600], min(position, file.length - 600))
        image = disk.crash_image(random.Random(seed))
        return [image.content(path) for path in image.paths()]

    assert [image(seed) for seed in range(20)] == [image(seed) for seed in range(20)]


def test_every_change_is_a_numbered_operation() -> None:
    disk, file = made()
    seen: list[Operation] = []
    disk.observer = seen.append
    first = disk.operations + 1
    file.write([b"x"], 0)
    file.allocate(0, 10)
    file.read(1, 0)
    file.sync()
    disk.sync_directory(ROOT)
    disk.create(ROOT / "new", 1)
    disk.delete(FILE)
    disk.delete(FILE)
    kinds = [Kind.WRITE, Kind.ALLOCATE, Kind.SYNC, Kind.SYNC_DIRECTORY, Kind.CREATE, Kind.DELETE]
    assert [operation.kind for operation in seen] == kinds
    assert [operation.number for operation in seen] == list(range(first, first + 6))


def test_a_crash_comes_after_its_operation_and_ends_all_others() -> None:
    disk, file = made()
    disk.crash_after(disk.operations + 2)
    file.write([b"\1"], 0)
    with pytest.raises(Crash, match="write /data/file"):
        file.write([b"\2"], 1)
    with pytest.raises(Crash):
        file.sync()
    with pytest.raises(Crash):
        disk.delete(FILE)
    assert file.read(2, 0) == b"\1\2"
    assert not issubclass(Crash, Exception)
    disk.crash_image(random.Random(1)).open(FILE, writable=True).write([b"works"], 0)


def test_a_full_disk_takes_what_fits() -> None:
    disk, file = made(capacity_bytes=2 * PAGE_BYTES)
    file.write([b"\1" * 10], 0)
    with pytest.raises(DiskFull):
        file.write([b"\2" * 3 * PAGE_BYTES], PAGE_BYTES - 100)
    assert file.read(file.length, 0).count(2) == 100 + PAGE_BYTES
    with pytest.raises(DiskFull):
        file.allocate(2 * PAGE_BYTES, 1)
    file.write([b"\3"], 0)  # its page is there
    assert disk.used_ratio(ROOT) == 1.0
    disk.capacity_bytes = 3 * PAGE_BYTES
    file.allocate(2 * PAGE_BYTES, 1)
    disk.delete(FILE)
    assert disk.used_ratio(ROOT) == 0.0
    disk.used = 0.76
    assert disk.used_ratio(ROOT) == 0.76


def test_the_nth_write_fails_once_and_leaves_a_prefix() -> None:
    prefixes = set()
    for seed in range(20):
        disk, file = made(seed=seed)
        disk.plan(Fault(Kind.WRITE, nth=2))
        file.write([b"\1"], 0)
        with pytest.raises(OSError, match="Input/output error"):
            file.write([b"\2" * 8], 8)
        file.write([b"\3"], 30)
        written = file.read(31, 0)
        assert (written[0], written[30], written[16:30]) == (1, 3, bytes(14))
        prefixes.add(written[8:16].count(2))
        assert written[8:16] == b"\2" * written[8:16].count(2) + bytes(8 - written[8:16].count(2))
    assert len(prefixes) > 3


def test_a_fault_may_last_and_may_strike_one_file_only() -> None:
    disk, file = made()
    other = disk.create(ROOT / "other", 10)
    disk.plan(Fault(Kind.WRITE, nth=1, always=True, error=errno.ENOSPC, path_contains="other"))
    file.write([b"x"], 0)
    for _ in range(3):
        with pytest.raises(DiskFull):
            other.write([b"x"], 0)
    disk.heal()
    other.write([b"x"], 0)


@pytest.mark.parametrize("kind", [Kind.CREATE, Kind.SYNC_DIRECTORY, Kind.ALLOCATE, Kind.DELETE, Kind.READ])
def test_every_kind_can_fail(kind: Kind) -> None:
    disk, file = made()
    calls: dict[Kind, Callable[[], object]] = {
        Kind.CREATE: lambda: disk.create(ROOT / "new", 1),
        Kind.SYNC_DIRECTORY: lambda: disk.sync_directory(ROOT),
        Kind.ALLOCATE: lambda: file.allocate(0, 1),
        Kind.DELETE: lambda: disk.delete(FILE),
        Kind.READ: lambda: file.read(1, 0),
    }
    disk.plan(Fault(kind))
    with pytest.raises(OSError, match="Input/output error"):
        calls[kind]()
    assert disk.exists(FILE)
    assert not disk.exists(ROOT / "new")
    calls[kind]()


def test_a_failed_sync_loses_its_data_though_the_next_sync_succeeds() -> None:
    disk, file = made()
    file.write([b"\1"], 0)
    disk.plan(Fault(Kind.SYNC))
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    assert file.read(1, 0) == b"\1"
    assert {image.content(FILE)[0] for image in images(disk)} == {0}


def test_a_read_may_be_short() -> None:
    disk, file = made()
    disk.plan(Fault(Kind.READ, short=True))
    assert len(file.read(100, 0)) < 100
    assert len(file.read(100, 0)) == 100


def test_a_held_sync_waits_and_covers_only_what_was_written_before_it() -> None:
    disk, file = made()
    file.write([b"\1"], 0)
    disk.hold_sync = threading.Event()
    thread = threading.Thread(target=file.sync)
    before = disk.counts[Kind.SYNC]
    thread.start()
    while disk.counts[Kind.SYNC] == before:
        time.sleep(0.001)
    file.write([b"\2"], PAGE_BYTES)
    assert {image.content(FILE)[0] for image in images(disk)} == {0, 1}
    disk.hold_sync.set()
    thread.join()
    assert {image.content(FILE)[0] for image in images(disk)} == {1}
    assert {image.content(FILE)[PAGE_BYTES] for image in images(disk)} == {0, 2}


def test_a_slow_sync_takes_its_time() -> None:
    disk, file = made()
    disk.sync_latency_s = 0.01
    before = time.monotonic()
    file.sync()
    assert time.monotonic() - before >= 0.01


def test_counters() -> None:
    disk, file = made()
    writes, syncs, written = disk.counts[Kind.WRITE], disk.counts[Kind.SYNC], disk.bytes_written
    file.write([b"abc", b"de"], 0)
    file.sync()
    assert disk.counts[Kind.WRITE] - writes == 1
    assert disk.counts[Kind.SYNC] - syncs == 1
    assert disk.bytes_written - written == 5


def test_the_lock_is_held_per_disk_and_not_by_images() -> None:
    disk, _ = made()
    lock = disk.lock(ROOT / "lock")
    with pytest.raises(StoreLocked):
        disk.lock(ROOT / "lock")
    assert disk.content(ROOT / "lock") == b"lock"
    disk.kill_image().lock(ROOT / "lock")
    SimulatedDisk().lock(ROOT / "lock")
    lock.release()
    disk.lock(ROOT / "lock")


def test_times_come_from_the_clock() -> None:
    clock = ManualClock(now_ms=1000)
    disk = SimulatedDisk(clock=clock)
    file = disk.create(FILE, 10)
    clock.advance(500)
    assert disk.modified_ms(FILE) == 1000
    file.write([b"x"], 0)
    clock.advance(500)
    assert disk.modified_ms(FILE) == 1500
    assert disk.kill_image().modified_ms(FILE) == 1500


def test_damage_is_done_on_the_medium() -> None:
    disk, file = made(100)
    file.write([b"\1" * 100], 0)
    disk.flip_bit(FILE, 3, 7)
    disk.overwrite(FILE, 10, b"zz")
    disk.cut(FILE, 50)
    for image in images(disk):
        assert image.content(FILE) == b"\1\1\1\x81" + b"\1" * 6 + b"zz" + b"\1" * 38
    disk.lose(FILE)
    assert not any(image.exists(FILE) for image in [disk, *images(disk)])


def test_residence_is_as_told() -> None:
    disk, file = made()
    assert file.read_resident(10, 0) == file.read(10, 0)
    assert file.is_resident(10, 0)
    disk.resident = False
    assert file.read_resident(10, 0) is None
    assert not file.is_resident(10, 0)


def test_the_manual_clock_moves_when_told() -> None:
    clock = ManualClock(now_ms=10_000)
    clock.advance(1500)
    assert (clock.now_ms(), clock.monotonic()) == (11_500, 1.5)
    clock.jump(-3_600_000)
    assert (clock.now_ms(), clock.monotonic()) == (11_500 - 3_600_000, 1.5)
    with pytest.raises(ValueError, match="cannot advance by -1 ms"):
        clock.advance(-1)
