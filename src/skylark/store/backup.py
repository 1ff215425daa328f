"""Backups: copies a live, closed or Apache store directory and updates the copy later.

The copy of a running store equals what a crash would have left at one moment; recovery resumes from that
when a broker starts on it. The order of the steps matters: checkpoint, manifest, consumer offsets and
index headers are read first; then the log's end is fixed; then the log is copied up to that end, and
derived files as far as they existed then. The list of topics is read last, so it names every topic
created meanwhile.

Files that are still appended to are never linked: a link is the same file and would keep growing.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skylark.atomic_file import load_file, write_file
from skylark.errors import BadStoreFile, StoreError, StoreLocked
from skylark.store.checkpoint import (
    CHECKPOINT_BYTES,
    MANIFEST_FILE_NAMES,
    QueueManifest,
    load_manifest,
    save_manifest,
)
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import DiskLock, RealDisk, disk_error
from skylark.store.index import index_names
from skylark.store.index_file import HEADER
from skylark.store.mapped_file import MappedFileQueue, file_name
from skylark.store.queue_table import BATCH_DIRECTORY, PLAIN_DIRECTORY, QueueTable
from skylark.store.store_reader import StoreReader
from skylark.store.unsupported_files import UnsupportedItem

COPY_BYTES = 8 << 20
CANNOT_COPY_INSIDE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)

Progress = Callable[[int, int], None]


class FileCopy:
    """Copies parts of files. `progress` gets the bytes done and the estimated total."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress or (lambda done, total: None)
        self._disk = RealDisk()
        self._total_bytes = 0
        self.copied_bytes = 0

    def expect(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._progress(0, total_bytes)

    def copy(
        self,
        source: int,
        path: Path,
        length: int,
        part: tuple[int, int],
        *,
        has_holes: bool = False,
        head: bytes = b"",
    ) -> None:
        """Copy a part of an open file durably into a file of this length; then write `head` at its start.

        An existing file is overwritten in place, unless it is a hard link. Raises BadStoreFile, OSError.
        """
        first, last = part
        if path.exists() and path.stat().st_nlink > 1:
            path.unlink()  # a hard link to the original
            first = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(descriptor, length)
            for low, high in stretches(source, first, last) if has_holes else [(first, last)]:
                self._copy_range(source, descriptor, low, high, path)
            if head:
                os.fsync(descriptor)
                os.pwrite(descriptor, head, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._disk.sync_directory(path.parent)

    def _copy_range(self, source: int, target: int, low: int, high: int, path: Path) -> None:
        while low < high:
            copied = _copy_some(source, target, low, min(COPY_BYTES, high - low))
            if not copied:
                raise BadStoreFile(path, f"its source ends at byte {low} instead of {high}")
            low += copied
            self.count(copied)

    def count(self, copied: int) -> None:
        """Report copied bytes as progress."""
        self.copied_bytes += copied
        self._total_bytes = max(self._total_bytes, self.copied_bytes)
        self._progress(self.copied_bytes, self._total_bytes)

    def keep_only(self, directory: Path, names: set[str]) -> None:
        """Delete all files of a directory except `names`."""
        gone = [name for name in self._disk.files(directory) if name not in names]
        for name in gone:
            self._disk.delete(directory / name)
        if gone:
            self._disk.sync_directory(directory)


@contextmanager
def open_descriptor(path: Path) -> Iterator[int]:
    """Open a file descriptor for reading. Raises FileNotFoundError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_part(path: Path, length: int = -1, position: int = 0) -> bytes:
    """Read a part of a file; empty if the file is missing. Raises OSError."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(length)
    except FileNotFoundError:
        return b""


def stretches(descriptor: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that have data; everything if the platform cannot tell."""
    while low < high:
        try:
            low = os.lseek(descriptor, low, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            yield low, high
            return
        hole = min(os.lseek(descriptor, low, os.SEEK_HOLE), high)
        if low < hole:
            yield low, hole
        low = hole


def _copy_some(source: int, target: int, position: int, length: int) -> int:
    """Return the number of bytes copied; 0 at the end of the file."""
    copy = getattr(os, "copy_file_range", None)
    if copy is not None:
        try:
            copied: int = copy(source, target, length, position, position)
        except OSError as error:
            if error.errno not in CANNOT_COPY_INSIDE:
                raise
        else:
            if copied:
                return copied
    return os.pwrite(target, os.pread(source, length, position), position)


NOTE_NAME = "backup.json"
LOCK_NAME = "backup.lock"
COMPARED_BYTES = 1 << 20
BLOCK_BYTES = 512
"""Unit of `st_blocks`."""
TRIES = 5
PAUSE_S = 0.05
# Lists that only grow: read after the log, they name every topic with messages in it.
READ_LAST = {name + end for name in ("topics.json", "subscriptionGroup.json") for end in ("", ".bak")}
SMALL_DIRECTORIES = ("config", "namesrv")
# Not copied from a running store: the timers are rebuilt from their topic.
TIMER_NAMES = ("timerlog", "timerwheel")
KNOWN_NAMES = {
    "abort", "lock", "checkpoint", "commitlog", PLAIN_DIRECTORY, BATCH_DIRECTORY, "index",
    NOTE_NAME, NOTE_NAME + ".bak", LOCK_NAME, *MANIFEST_FILE_NAMES, *SMALL_DIRECTORIES,
}  # fmt: skip


@dataclass(eq=False)
class BackupRefused(StoreError):
    """A backup cannot be made to this directory."""

    text = "cannot back up to {path}: {reason}"
    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Result of a backup."""

    end_physical_offset: int
    """End of the copied log."""
    is_running: bool
    copied_bytes: int
    linked_files: int
    left_out: list[UnsupportedItem]
    """Unsupported files that were not copied."""


class _Note(msgspec.Struct, frozen=True):
    """The contents of backup.json."""

    source: str
    physical_offset: int
    """The log of the copy is complete and durable below this offset."""
    finished_ms: int
    """End time of the last run; 0 if a run is in progress or was interrupted."""


def back_up(
    source: Path,
    target: Path,
    *,
    commit_log_path: Path | None = None,
    link: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy a store to a new or empty directory, or update its existing backup incrementally.

    With `link`, full log files become hard links. Raises BackupRefused, MissingFile, BadStoreFile, DiskFull,
    OSError; an existing backup then stays usable, unless the source's log diverged and is copied again.
    """
    before = _check_target(source, target, commit_log_path)
    backup = _Backup(source, target, before, link, progress)
    try:
        return backup.run(commit_log_path)
    except OSError as error:
        raise disk_error(error, Path(error.filename or target)) from error
    finally:
        backup.close()


def _check_target(source: Path, target: Path, commit_log_path: Path | None) -> _Note | None:
    """Return the note of an earlier run, or None. Raises BackupRefused."""
    place = target.resolve()
    for directory in filter(None, (source, commit_log_path)):
        if place.is_relative_to(directory.resolve()) or directory.resolve().is_relative_to(place):
            raise BackupRefused(target, f"it overlaps with {directory}; choose another directory")
    if not place.exists():
        if not place.parent.is_dir():
            raise BackupRefused(target, f"no such directory: {place.parent}")
        return None
    if not place.is_dir():
        raise BackupRefused(target, "it is not a directory")
    note = load_file(place / NOTE_NAME, _decode_note)
    if note is None and any(place.iterdir()):
        raise BackupRefused(target, "it is not empty and does not contain a backup")
    if note is not None and note.source != str(source.resolve()):
        raise BackupRefused(target, f"it contains a backup of {note.source}")
    if (place / "lock").exists():
        raise BackupRefused(target, "a broker was started on it, so it is no longer a backup")
    return note


def _decode_note(data: bytes) -> _Note:
    try:
        return msgspec.json.decode(data, type=_Note)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


class _Backup:
    """One run."""

    def __init__(
        self, source: Path, target: Path, before: _Note | None, link: bool, progress: Progress | None
    ) -> None:
        self._source = source
        self._target = target
        self._trusted = before.physical_offset if before is not None else 0
        self._link = link
        self._copies = FileCopy(progress)
        self._disk = RealDisk()
        self._linked_files = 0
        self._lock: DiskLock | None = None

    def run(self, commit_log_path: Path | None) -> BackupReport:
        """Run all steps, in the order explained in the module's docstring."""
        source, disk = self._source, self._disk
        is_running = disk.exists(source / "abort")
        checkpoint = read_part(source / "checkpoint", CHECKPOINT_BYTES)
        manifest = load_manifest(disk, source)
        documents = self._documents(last=False)
        heads = self._index_heads()
        reader = StoreReader(source, commit_log_path=commit_log_path, disk=disk)
        end = reader.end_physical_offset
        self._trusted = self._continue_at(reader.log.files, end)
        self._begin()
        self._copies.expect(self._bytes_to_copy(reader, end, heads))
        self._copy_log(reader.log.files, end)
        firsts = self._copy_queues(reader)
        self._copy_index(heads)
        self._forget_expired(reader.log.files)
        documents |= self._documents(last=True)
        if not is_running:
            self._copy_rest()
        if not is_running and disk.exists(source / "abort"):
            raise BackupRefused(self._target, "a broker was started on the source meanwhile; run it again")
        self._write_documents(documents)
        self._write_manifest(manifest, firsts, set(heads))
        self._finish(checkpoint, end, is_running)
        left_out = [item for item in reader.unsupported() if is_running and (source / item.name).exists()]
        return BackupReport(end, is_running, self._copies.copied_bytes, self._linked_files, left_out)

    def close(self) -> None:
        """Release the target's lock."""
        if self._lock is not None:
            self._lock.release()

    # The frame

    def _begin(self) -> None:
        """Mark the copy as unclean: if the run is interrupted, the copy needs recovery."""
        self._target.mkdir(exist_ok=True)
        try:
            self._lock = self._disk.lock(self._target / LOCK_NAME)
        except StoreLocked as error:
            raise BackupRefused(self._target, "another backup to it is in progress") from error
        self._write_note(self._trusted, finished_ms=0)
        self._write_in_place("abort", b"backup")

    def _finish(self, checkpoint: bytes, end: int, is_running: bool) -> None:
        for name in TIMER_NAMES if is_running else ():
            path = self._target / name
            self._disk.delete_directory(path) if path.is_dir() else self._disk.delete(path)
        if checkpoint:
            self._write_in_place("checkpoint", checkpoint)
        if not is_running:
            self._disk.delete(self._target / "abort")
        self._disk.sync_directory(self._target)
        self._write_note(end, finished_ms=time.time_ns() // 1_000_000)

    def _write_in_place(self, name: str, data: bytes) -> None:
        file = self._disk.create(self._target / name, len(data))
        file.write([data], 0)
        file.sync()
        file.close()

    def _write_note(self, physical_offset: int, *, finished_ms: int) -> None:
        note = _Note(str(self._source.resolve()), physical_offset, finished_ms)
        write_file(self._target / NOTE_NAME, msgspec.json.format(msgspec.json.encode(note)))

    def _bytes_to_copy(self, reader: StoreReader, end: int, heads: dict[str, bytes]) -> int:
        """Estimate the total for the progress display."""
        queue_bytes = sum(
            queue.position_of(queue.max_offset) - queue.position_of(queue.min_offset)
            for queue in reader.queue_table.values()
        )
        index_bytes = sum(
            _allocated_bytes(self._source / "index" / name)
            for name, head in heads.items()
            if not self._has_index_file(name, head)
        )
        log_bytes = end - max(self._trusted, reader.min_physical_offset)
        # Only the entries of the new part of the log are copied: few.
        return log_bytes + (0 if self._trusted else queue_bytes) + index_bytes

    # The log

    def _copy_log(self, files: MappedFileQueue, end: int) -> None:
        directory = self._target / "commitlog"
        if not self._trusted:
            self._disk.delete_directory(directory)
        directory.mkdir(exist_ok=True)
        kept: set[str] = set()
        for start in files.starts:
            last = min(end, start + files.file_bytes)
            path = directory / file_name(start)
            if last < start:
                break
            try:
                if self._link and last == start + files.file_bytes:
                    self._link_file(files.path(start), path)
                elif self._trusted < last or not path.exists():
                    with open_descriptor(files.path(start)) as descriptor:
                        part = max(self._trusted - start, 0), last - start
                        self._copies.copy(descriptor, path, files.file_bytes, part)
                kept.add(path.name)
            except FileNotFoundError:
                kept.clear()  # this file and all before it have just expired
        self._copies.keep_only(directory, kept)

    def _continue_at(self, files: MappedFileQueue, end: int) -> int:
        """Return the end of the common log; 0 if everything must be copied again."""
        at = self._trusted
        start = files.start_of(max(at - 1, 0))
        if not 0 < at <= end or start not in files.starts:
            return 0
        first = max(at - COMPARED_BYTES, start)
        theirs = read_part(files.path(start), at - first, first - start)
        ours = read_part(self._target / "commitlog" / file_name(start), at - first, first - start)
        return at if ours == theirs else 0

    def _link_file(self, source: Path, target: Path) -> None:
        if target.exists() and target.samefile(source):
            return
        new = target.with_name(target.name + ".tmp")
        new.unlink(missing_ok=True)
        try:
            new.hardlink_to(source)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise BackupRefused(self._target, f"cannot link {source}: {error.strerror}") from error
        new.replace(target)
        self._disk.sync_directory(target.parent)
        self._linked_files += 1

    def _forget_expired(self, files: MappedFileQueue) -> None:
        """Delete log files that expired during the copy: their queues and index may have expired, too."""
        directory = self._target / "commitlog"
        self._copies.keep_only(directory, set(self._disk.files(files.directory)))
        if files.starts and not self._disk.files(directory):
            raise BackupRefused(self._target, "all files expired during the copy; run it again")

    # Consume queues and index

    def _copy_queues(self, reader: StoreReader) -> dict[tuple[str, int], int]:
        """Copy the entries; return the start of the first file of each queue."""
        there = QueueTable(self._disk, self._target, reader.settings, threading.Lock(), writable=False)
        there.load()
        firsts = {}
        for key, queue in reader.queue_table.items():
            copied = there.get(key)
            if copied is not None and copied.is_batched != queue.is_batched:
                self._disk.delete_directory(copied.directory)
                copied = None
            directory = self._target / queue.directory.relative_to(self._source)
            starts = self._copy_queue(queue, copied, directory)
            if starts:
                firsts[key] = starts[0]
        for key in there.keys() - firsts.keys():
            self._disk.delete_directory(there[key].directory)
        return firsts

    def _copy_queue(self, queue: ConsumeQueue, there: ConsumeQueue | None, directory: Path) -> list[int]:
        same, file_bytes = self._same_entries(queue, there), queue.file_bytes
        copied_to = queue.position_of(same) if same else 0
        if not copied_to:
            self._disk.delete_directory(directory)
        starts: list[int] = []
        end = queue.position_of(queue.max_offset)
        for start in queue.file_starts:
            last = min(end, start + file_bytes)
            path = directory / file_name(start)
            if start >= end:
                break
            starts.append(start)
            if copied_to >= last and path.exists():
                continue
            try:
                with open_descriptor(queue.directory / file_name(start)) as descriptor:
                    part = max(copied_to - start, 0), last - start
                    self._copies.copy(descriptor, path, file_bytes, part)
            except FileNotFoundError:
                starts.clear()  # just expired
        self._copies.keep_only(directory, set(map(file_name, starts)))
        return starts

    def _same_entries(self, queue: ConsumeQueue, there: ConsumeQueue | None) -> int:
        """Return the end offset of the entries that the copy already has; 0 if the queue was recreated."""
        if there is None or there.max_offset == there.min_offset:
            return 0
        same = there.end_below(self._trusted)
        is_within = max(queue.min_offset, there.min_offset) < same <= queue.max_offset
        return same if is_within and queue.entry(same - 1) == there.entry(same - 1) else 0

    def _index_heads(self) -> dict[str, bytes]:
        """Read the headers of all index files. A header is written last, so all its items exist."""
        directory = self._source / "index"
        heads = {
            name: read_part(directory / name, HEADER.size) for name in index_names(self._disk, directory, [])
        }
        return {name: head for name, head in heads.items() if head}

    def _has_index_file(self, name: str, head: bytes) -> bool:
        return any(head) and read_part(self._target / "index" / name, HEADER.size) == head

    def _copy_index(self, heads: dict[str, bytes]) -> None:
        directory = self._target / "index"
        kept: set[str] = set()
        for name, head in heads.items():
            try:
                if not self._has_index_file(name, head):
                    with open_descriptor(self._source / "index" / name) as descriptor:
                        self._disk.delete(directory / name)
                        self._copy_whole(descriptor, directory / name, head)
                kept.add(name)
            except FileNotFoundError:
                kept.clear()  # this file and all before it have just expired
        self._copies.keep_only(directory, kept)

    def _copy_whole(self, descriptor: int, target: Path, head: bytes = b"") -> None:
        length = os.fstat(descriptor).st_size
        self._copies.copy(descriptor, target, length, (0, length), has_holes=True, head=head)

    # Other files

    def _documents(self, *, last: bool) -> dict[Path, bytes]:
        """Return small files by their path in the store: those to be read first, or last."""
        found = {}
        for directory in SMALL_DIRECTORIES:
            for name in self._disk.files(self._source / directory):
                if (name in READ_LAST) == last and not name.endswith(".tmp"):
                    data = _read_document(self._source / directory / name)
                    if data:
                        found[Path(directory, name)] = data
        return found

    def _write_documents(self, documents: dict[Path, bytes]) -> None:
        for place, data in documents.items():
            path = self._target / place
            if read_part(path) != data:
                path.unlink(missing_ok=True)  # otherwise it would become the `.bak`, which is copied itself
                write_file(path, data, is_private=_is_private(self._source / place))
                self._copies.count(len(data))
        for directory in SMALL_DIRECTORIES:
            names = {place.name for place in documents if place.parent == Path(directory)}
            self._copies.keep_only(self._target / directory, names)

    def _write_manifest(
        self, early: QueueManifest | None, firsts: dict[tuple[str, int], int], index_files: set[str]
    ) -> None:
        """Write the manifest that was read first, without files that were deleted during the copy."""
        late = load_manifest(self._disk, self._source)
        for name in MANIFEST_FILE_NAMES:
            self._disk.delete(self._target / name)
        if early is None or late is None:
            return
        known = {(extent.topic, extent.queue_id) for extent in late.queues}
        queues = [
            msgspec.structs.replace(
                extent, first_file=max(extent.first_file, firsts.get((extent.topic, extent.queue_id), 0))
            )
            for extent in early.queues
            if (extent.topic, extent.queue_id) in known | firsts.keys()
        ]
        files = [name for name in early.index_files if name in index_files or name in late.index_files]
        manifest = msgspec.structs.replace(
            early, queues=queues, index_files=files, deleted=early.deleted | late.deleted
        )
        save_manifest(self._disk, self._target, manifest)

    def _copy_rest(self) -> None:
        """Copy all other files of a closed store whose size or time differ."""
        for place in _rest_of(self._target):
            if not (self._source / place).exists():
                self._disk.delete(self._target / place)
        for place in _rest_of(self._source):
            target, found = self._target / place, (self._source / place).stat()
            if target.exists() and _size_and_time(target.stat()) == _size_and_time(found):
                continue
            with open_descriptor(self._source / place) as descriptor:
                self._copy_whole(descriptor, target)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _rest_of(directory: Path) -> list[Path]:
    """Return the paths of the files that have no step of their own."""
    places = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]
    return sorted(place for place in places if place.parts[0] not in KNOWN_NAMES)


def _read_document(path: Path) -> bytes:
    """Read a small file that the broker replaces; Apache RocketMQ deletes the old file before that."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        data = read_part(path)
        if data:
            break
    return data


def _is_private(path: Path) -> bool:
    """Return whether others may not read a file: it may hold secrets of users."""
    try:
        return not path.stat().st_mode & 0o077
    except FileNotFoundError:
        return True


def _allocated_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def _size_and_time(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns
