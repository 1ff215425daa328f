"""The real disk: what files do, how a full one is told, who may lock, and the branches of other systems."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from skylark.errors import BadStoreFile, DiskFull, StoreLocked
from skylark.store.disk import WRITE_PARTS_MAX, DiskFile, Part, RealDisk, disk_error

MEGABYTE = 1 << 20


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


@pytest.fixture
def file(disk: RealDisk, tmp_path: Path) -> DiskFile:
    return disk.create(tmp_path / "a" / "b" / "file", 4 * MEGABYTE)


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def descriptors() -> int:
    """Open ones, after those of files that nobody holds any more are given back."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


# Files


def test_a_new_file_has_its_full_length_and_hardly_any_blocks(file: DiskFile) -> None:
    assert file.length == file.path.stat().st_size == 4 * MEGABYTE
    assert allocated_bytes(file.path) == 0
    assert file.read(10, 0) == bytes(10)


def test_creating_again_keeps_the_content_and_sets_the_length(disk: RealDisk, file: DiskFile) -> None:
    file.write([b"content"], 0)
    assert disk.create(file.path, 4 * MEGABYTE).read(7, 0) == b"content"
    assert disk.create(file.path, 3).read(7, 0) == b"con"
    again = disk.create(file.path, 4 * MEGABYTE)
    assert again.read(7, 0) == b"con\0\0\0\0"


def test_parts_are_written_in_a_row(file: DiskFile) -> None:
    file.write([b"one", bytearray(b"two"), memoryview(b"three"), b""], 5)
    assert file.read(16, 3) == b"\0\0onetwothree\0\0\0"


@pytest.mark.parametrize("count", [WRITE_PARTS_MAX, WRITE_PARTS_MAX + 1, 3 * WRITE_PARTS_MAX + 7])
def test_any_number_of_parts_is_written(file: DiskFile, count: int) -> None:
    """The kernel refuses more than 1,024 parts in one call."""
    parts = [str(number).encode() for number in range(count)]
    file.write(parts, 100)
    whole = b"".join(parts)
    assert file.read(len(whole), 100) == whole


def test_short_writes_are_finished(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(descriptor: int, parts: Sequence[Part], position: int) -> int:
        return real(descriptor, [b"".join(parts)[:4]], position)

    calls = []
    real_pwrite = os.pwrite

    def shorter(descriptor: int, data: memoryview, position: int) -> int:
        calls.append(position)
        return real_pwrite(descriptor, data[:3], position)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", shorter)
    file.write([b"0123", b"456789"], 50)
    assert file.read(10, 50) == b"0123456789"
    assert calls == [54, 57]


def test_a_read_is_short_only_at_the_files_end(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = disk.create(tmp_path / "small", 10)
    small.write([b"0123456789"], 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real(fd, min(length, 3), at))
    assert small.read(8, 0) == b"01234567"
    assert small.read(8, 6) == b"6789"
    assert small.read(8, 10) == b""


def test_a_view_shows_writes_and_outlives_the_file(disk: RealDisk, file: DiskFile) -> None:
    view = file.view()
    assert view.readonly
    assert len(view) == 4 * MEGABYTE
    file.write([b"later"], 7)
    piece = view[7:12]
    assert bytes(piece) == b"later"
    assert file.view() is view
    file.close()
    disk.delete(file.path)
    del view
    gc.collect()
    assert bytes(piece) == b"later"


def test_closing_gives_the_descriptor_back(disk: RealDisk, tmp_path: Path) -> None:
    before = descriptors()
    files = [disk.create(tmp_path / str(number), 10) for number in range(20)]
    assert descriptors() == before + 20
    for each in files[:10]:
        each.close()
        each.close()
    assert descriptors() == before + 10
    files.clear()
    del each
    gc.collect()
    assert descriptors() == before


def test_a_file_opened_for_reading_cannot_be_written(disk: RealDisk, file: DiskFile) -> None:
    reading = disk.open(file.path)
    with pytest.raises(OSError, match="Bad file descriptor"):
        reading.write([b"x"], 0)
    disk.open(file.path, writable=True).write([b"x"], 0)
    assert reading.read(1, 0) == b"x"


def test_allocated_blocks_are_there(file: DiskFile) -> None:
    file.write([b"x"], 0)
    file.allocate(MEGABYTE, MEGABYTE)
    assert MEGABYTE <= allocated_bytes(file.path) < 2 * MEGABYTE
    assert file.read(4, MEGABYTE) == bytes(4)
    # Never beyond the file's length, which stays what it is.
    file.allocate(3 * MEGABYTE, 10 * MEGABYTE)
    assert file.path.stat().st_size == 4 * MEGABYTE


def drop_cache_until(path: Path, is_gone: Callable[[], bool]) -> None:
    """Drop a file from the page cache: the kernel keeps pages in use, and a check may make it read ahead."""
    deadline = time.monotonic() + 60
    drop_cache(path)
    while not is_gone():
        assert time.monotonic() < deadline, "still in the page cache"
        drop_cache(path)


def test_what_was_written_is_resident_and_what_was_dropped_is_not(file: DiskFile) -> None:
    data = os.urandom(MEGABYTE)
    file.write([data], 0)
    assert file.read_resident(MEGABYTE, 0) == data
    assert file.is_resident(MEGABYTE, 0)
    assert file.is_resident(100, 5)
    file.sync()
    drop_cache_until(file.path, lambda: file.read_resident(MEGABYTE, 0) is None)
    drop_cache_until(file.path, lambda: not file.is_resident(MEGABYTE, 0))
    file.read(MEGABYTE, 0)
    assert file.read_resident(MEGABYTE, 0) == data
    assert file.is_resident(MEGABYTE, 0)
    assert not file.is_resident(MEGABYTE, 3 * MEGABYTE + 1), "beyond the end nothing is in memory"


@pytest.mark.parametrize("can_tell_holes", [True, False])
def test_zeros_to_the_end(file: DiskFile, monkeypatch: pytest.MonkeyPatch, can_tell_holes: bool) -> None:
    if not can_tell_holes:
        monkeypatch.setattr(os, "lseek", failing(errno.EINVAL))
    assert file.is_zero_from(0)
    file.write([b"x"], 5000)
    assert not file.is_zero_from(0)
    assert not file.is_zero_from(5000)
    assert file.is_zero_from(5001)
    file.allocate(0, MEGABYTE)
    assert file.is_zero_from(5001)
    file.write([b"x"], file.length - 1)
    assert not file.is_zero_from(5001)
    assert file.is_zero_from(file.length)


def drop_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


# Other systems


def test_without_posix_fallocate_nothing_is_allocated(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    file.allocate(0, MEGABYTE)
    assert allocated_bytes(file.path) == 0


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_cannot_allocate(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(number))
    file.allocate(0, MEGABYTE)


def test_without_fdatasync_fsync_is_taken(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    file.sync()
    assert len(synced) == 1


def test_with_fdatasync_it_is_taken(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file.sync()
    assert len(synced) == 1


def test_without_a_way_to_ask_everything_counts_as_resident(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(MEGABYTE)
    file.write([data], 0)
    file.sync()
    drop_cache(file.path)
    with monkeypatch.context() as masked:
        masked.setattr(os, "preadv", without_flags(os.preadv))
        assert file.is_resident(MEGABYTE, 0)
        assert file.read_resident(MEGABYTE, 0) == data
    with monkeypatch.context() as masked:
        masked.delattr(os, "RWF_NOWAIT")
        drop_cache(file.path)
        assert file.is_resident(MEGABYTE, 0)
        assert file.read_resident(MEGABYTE, 0) == data


def test_an_error_while_asking_is_raised(file: DiskFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        file.read_resident(10, 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.is_resident(10, 0)


# Errors


def without_flags(read: Callable[..., int]) -> Callable[..., int]:
    def refuse_flags(descriptor: int, parts: list[bytearray], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return read(descriptor, parts, position)

    return refuse_flags


def failing(number: int) -> object:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", ["pwritev", "posix_fallocate", "ftruncate", "open"])
def test_a_full_disk_is_its_own_error(
    disk: RealDisk, file: DiskFile, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    monkeypatch.setattr(os, call, failing(number))
    before = descriptors()
    with pytest.raises(DiskFull) as caught:
        if call == "pwritev":
            file.write([b"x"], 0)
        elif call == "posix_fallocate":
            file.allocate(0, 1)
        else:
            disk.create(file.path.parent / "other", 10)
    assert os.strerror(number) in str(caught.value)
    assert descriptors() <= before  # a thread of another test may end meanwhile


@pytest.mark.parametrize("call", ["pwritev", "posix_fallocate", "ftruncate", "open"])
def test_any_other_error_stays_what_it_is(
    disk: RealDisk, file: DiskFile, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        if call == "pwritev":
            file.write([b"x"], 0)
        elif call == "posix_fallocate":
            file.allocate(0, 1)
        else:
            disk.create(file.path.parent / "other", 10)


def test_disk_error_names_the_file() -> None:
    full = disk_error(OSError(errno.ENOSPC, "No space left on device"), Path("/x"))
    assert isinstance(full, DiskFull)
    assert str(full) == "disk full at /x: No space left on device"
    other = OSError(errno.EIO, "bad")
    assert disk_error(other, Path("/x")) is other


# Directories


def test_names(disk: RealDisk, tmp_path: Path) -> None:
    disk.create(tmp_path / "b", 1)
    disk.create(tmp_path / "a", 1)
    disk.create(tmp_path / "sub" / "c", 1)
    assert disk.files(tmp_path) == ["a", "b"]
    assert disk.directories(tmp_path) == ["sub"]
    assert disk.files(tmp_path / "gone") == disk.directories(tmp_path / "gone") == []
    with pytest.raises(BadStoreFile, match="not a directory"):
        disk.files(tmp_path / "a")


def test_what_is_there_and_what_is_not(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not disk.exists(path)
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    with pytest.raises(FileNotFoundError):
        disk.length(path)
    disk.create(path, 17)
    assert disk.exists(path)
    assert disk.length(path) == 17
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    assert disk.modified_ms(path) == 1_700_000_000_123
    disk.delete(path)
    disk.delete(path)
    assert not disk.exists(path)


def test_a_directory_goes_with_everything_in_it(disk: RealDisk, tmp_path: Path) -> None:
    disk.create(tmp_path / "top" / "sub" / "file", 1)
    disk.sync_directory(tmp_path / "top")
    disk.delete_directory(tmp_path / "top")
    disk.delete_directory(tmp_path / "top")
    assert disk.directories(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(tmp_path / "top")


def test_a_directory_is_synced_and_its_descriptor_given_back(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    before = descriptors()
    disk.sync_directory(tmp_path)
    assert synced == [str(tmp_path)]
    assert descriptors() == before


@pytest.mark.parametrize(
    ("blocks", "free", "available", "ratio"),
    [(100, 50, 50, 0.5), (1000, 499, 499, 0.51), (100, 0, 0, 1.0), (100, 20, 10, 0.89), (0, 0, 0, 0.0)],
)
def test_disk_use_in_whole_percents_rounded_up(
    disk: RealDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    free: int,
    available: int,
    ratio: float,
) -> None:
    usage = os.statvfs_result((4096, 4096, blocks, free, available, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: usage)
    assert disk.used_ratio(tmp_path) == ratio


def test_disk_use_of_a_real_path(disk: RealDisk, tmp_path: Path) -> None:
    assert 0 < disk.used_ratio(tmp_path) <= 1
    with pytest.raises(FileNotFoundError):
        disk.used_ratio(tmp_path / "gone")


# The lock

TRY_LOCK = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from skylark.errors import StoreLocked
    from skylark.store.disk import RealDisk
    try:
        RealDisk().lock(Path(sys.argv[1]))
    except StoreLocked as error:
        sys.exit(f"refused: {error}")
    """
)


def lock_elsewhere(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", TRY_LOCK, str(path)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_lock_is_held_against_this_process(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / "store" / "lock"
    lock = disk.lock(path)
    assert path.read_bytes() == b"lock"
    with pytest.raises(StoreLocked):
        disk.lock(path)
    with pytest.raises(StoreLocked):
        RealDisk().lock(tmp_path / "store" / ".." / "store" / "lock")
    lock.release()
    disk.lock(path).release()


def test_a_directory_is_locked_under_any_name(disk: RealDisk, tmp_path: Path) -> None:
    path, other_name = tmp_path / "a" / "log", tmp_path / "link"
    lock = disk.lock_directory(path)
    other_name.symlink_to(path)
    before = descriptors()
    for name in (path, other_name):
        with pytest.raises(StoreLocked):
            RealDisk().lock_directory(name)
    assert descriptors() == before
    assert list(path.iterdir()) == []
    lock.release()
    disk.lock_directory(other_name).release()


def test_a_lock_is_held_against_other_processes(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = disk.lock(path)
    refused = lock_elsewhere(path)
    assert refused.returncode == 1
    assert "is in use by another process" in refused.stderr
    lock.release()
    assert lock_elsewhere(path).returncode == 0


def test_the_lock_of_another_process_is_respected(disk: RealDisk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = f"{TRY_LOCK}\nprint('held', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = descriptors()
        with pytest.raises(StoreLocked):
            disk.lock(path)
        assert descriptors() == before
        other.communicate(timeout=60)
    disk.lock(path).release()
