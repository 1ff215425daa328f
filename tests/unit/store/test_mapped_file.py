"""Files named by their offsets, and the bounded set of open ones."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from skylark.store.disk import DiskFile, RealDisk
from skylark.store.mapped_file import MappedFileQueue, OpenFiles, file_name
from tests.support.simulated_disk import Kind, SimulatedDisk

DIRECTORY = Path("/files")


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_names_have_20_digits() -> None:
    assert file_name(0) == "00000000000000000000"
    assert file_name(1 << 30) == "00000000001073741824"


# The files of a directory


def test_a_directory_that_is_not_there_has_no_files(disk: SimulatedDisk) -> None:
    files = MappedFileQueue(disk, DIRECTORY, 100)
    assert files.load() == []
    assert (files.starts, files.first, files.end) == ([], 0, 0)
    assert list(files.holes()) == []


def test_files_are_found_in_order(disk: SimulatedDisk) -> None:
    for start in (300, 100, 200):
        disk.create(DIRECTORY / file_name(start), 100)
    disk.create(DIRECTORY / "sub" / "file", 1)
    files = MappedFileQueue(disk, DIRECTORY, 100)
    assert files.load() == []
    assert (files.starts, files.first, files.end) == ([100, 200, 300], 100, 400)
    assert list(files.holes()) == []
    assert files.path(200) == DIRECTORY / "00000000000000000200"
    assert [files.start_of(position) for position in (0, 99, 100, 399)] == [0, 0, 100, 300]


def test_what_does_not_belong_there_is_told_and_left(disk: SimulatedDisk) -> None:
    for name, length in (
        (file_name(0), 100),
        (file_name(100), 99),
        (file_name(150), 100),
        ("readme", 5),
        ("²" * 20, 100),
        (file_name(200), 0),
    ):
        disk.create(DIRECTORY / name, length)
    before = disk.paths(DIRECTORY)
    files = MappedFileQueue(disk, DIRECTORY, 100)
    problems = {Path(str(problem.path)).name: problem.reason for problem in files.load()}
    assert problems == {
        file_name(100): "has 99 bytes instead of 100",
        file_name(150): "its name is not a multiple of 100 bytes",
        "readme": "its name is not an offset of 20 digits",
        "²" * 20: "its name is not an offset of 20 digits",
        file_name(200): "has 0 bytes instead of 100",
    }
    assert files.starts == [0, 100, 200]
    assert disk.paths(DIRECTORY) == before


def test_holes(disk: SimulatedDisk) -> None:
    for start in (100, 300, 600):
        disk.create(DIRECTORY / file_name(start), 100)
    files = MappedFileQueue(disk, DIRECTORY, 100)
    files.load()
    assert list(files.holes()) == [(200, 300), (400, 600)]


# Open files


def test_an_open_file_is_kept(disk: SimulatedDisk) -> None:
    open_files = OpenFiles(disk, 2, writable=True)
    file = open_files.get(DIRECTORY, 0, 10)
    assert open_files.get(DIRECTORY, 0) is file
    assert open_files.get(DIRECTORY, 0, 10) is file
    assert disk.counts[Kind.CREATE] == 1
    open_files.forget(DIRECTORY, 0)
    open_files.forget(DIRECTORY, 0)
    assert open_files.get(DIRECTORY, 0) is not file


def test_a_peek_opens_nothing(disk: SimulatedDisk) -> None:
    open_files = OpenFiles(disk, 2, writable=True)
    disk.create(DIRECTORY / file_name(0), 10)
    assert open_files.peek(DIRECTORY, 0) is None
    file = open_files.get(DIRECTORY, 0)
    assert open_files.peek(DIRECTORY, 0) is file


def test_a_missing_file_is_made_only_on_demand(disk: SimulatedDisk) -> None:
    open_files = OpenFiles(disk, 2, writable=True)
    with pytest.raises(FileNotFoundError):
        open_files.get(DIRECTORY, 0)
    assert open_files.get(DIRECTORY, 0, 10).length == 10


def test_the_least_recently_used_file_goes_first(disk: SimulatedDisk) -> None:
    open_files = OpenFiles(disk, 2, writable=True)
    first, second = open_files.get(DIRECTORY, 0, 10), open_files.get(DIRECTORY, 10, 10)
    open_files.get(DIRECTORY, 0)
    open_files.get(DIRECTORY, 20, 10)
    assert open_files.get(DIRECTORY, 0) is first
    assert open_files.get(DIRECTORY, 10) is not second


def test_an_evicted_file_stays_open_for_who_holds_it(tmp_path: Path) -> None:
    open_files = OpenFiles(RealDisk(), 1, writable=True)
    held = open_files.get(tmp_path, 0, 10)
    held.write([b"held"], 0)
    open_files.get(tmp_path, 10, 10)
    assert held.read(4, 0) == b"held"
    del held
    gc.collect()
    opened = {path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    assert tmp_path / file_name(10) in opened
    assert tmp_path / file_name(0) not in opened


def test_files_opened_for_reading_are_not_written(disk: SimulatedDisk) -> None:
    disk.create(DIRECTORY / file_name(0), 10)
    with pytest.raises(OSError, match="Bad file descriptor"):
        OpenFiles(disk, 1, writable=False).get(DIRECTORY, 0).write([b"x"], 0)


def test_many_threads_ask_for_the_same_files(tmp_path: Path) -> None:
    open_files = OpenFiles(RealDisk(), 4, writable=True)
    found: list[DiskFile] = []

    def ask() -> None:
        found.extend(open_files.get(tmp_path, start, 10) for start in (0, 10, 20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found[0].write([b"shared"], 0)
    assert [file.read(6, 0) for file in found if file.path.name == file_name(0)] == [b"shared"] * 8
    assert open_files.get(tmp_path, 0) is open_files.get(tmp_path, 0)


def test_a_file_deleted_while_it_is_opened_is_not_kept(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else whoever makes it anew would write into the deleted one."""
    open_files = OpenFiles(disk, 4, writable=True)
    disk.create(DIRECTORY / file_name(0), 10)
    real = disk.open

    def open_late(path: Path, *, writable: bool = False) -> DiskFile:
        file = real(path, writable=writable)
        disk.delete(path)
        open_files.forget(DIRECTORY, 0)
        return file

    with monkeypatch.context() as racing:
        racing.setattr(disk, "open", open_late)
        gone = open_files.get(DIRECTORY, 0)
    assert open_files.get(DIRECTORY, 0, 10) is not gone


def test_a_file_deleted_while_the_directory_is_listed(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 100):
        disk.create(DIRECTORY / file_name(start), 100)
    names = disk.files(DIRECTORY)
    disk.lose(DIRECTORY / file_name(0))
    monkeypatch.setattr(disk, "files", lambda directory: names)
    files = MappedFileQueue(disk, DIRECTORY, 100)
    assert files.load() == []
    assert files.starts == [100]
