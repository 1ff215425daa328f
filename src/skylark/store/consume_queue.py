"""Consume queues: per topic and queue, 20-byte entries that point into the commit log.

Entries are published in memory and written by the background flush; recovery rebuilds from the log what a
crash loses. Published entries are visible to readers at once, written or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from skylark.errors import BadStoreFile
from skylark.model.java import java_hash
from skylark.model.lite_topic import LIGHT_PREFIX
from skylark.model.message import RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC
from skylark.model.record import topic_part
from skylark.store.disk import Disk
from skylark.store.mapped_file import MappedFileQueue, OpenFiles
from skylark.store.queue_entry import BLANK_ENTRY, BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES

ALLOCATION_BYTES = 64 * 1024
DIRECTORIES_ABOVE = 3
"""Directories whose entries name the next: the topic's, `consumequeue`, and the store's."""
SEARCH_ENTRIES = 1024
TOPIC_BYTES_MAX = 127
DERIVED_TOPIC_BYTES_MAX = 255


def check_topic(topic: str) -> None:
    """Raise ValueError for a topic that is too long or unsafe as a directory name."""
    size = len(topic.encode())
    is_derived = topic.startswith((RETRY_TOPIC_PREFIX, LIGHT_PREFIX))
    limit = DERIVED_TOPIC_BYTES_MAX if is_derived else TOPIC_BYTES_MAX
    if not 0 < size <= limit:
        raise ValueError(f"topic {topic[:40]!r} has {size} bytes, 1 to {limit} are allowed")
    if "/" in topic or "\\" in topic or "\0" in topic or topic in (".", ".."):
        raise ValueError(f"invalid topic {topic!r}: it cannot be a directory name")


class _Reached:
    """The slots that every append uses. Slots of a base class come first, so these are adjacent in memory.

    With thousands of active queues each cache line is a cache miss.
    """

    __slots__ = (
        "dirty", "is_forgotten", "is_special", "magic", "next_offset", "tail", "topic_hash", "topic_part",
    )  # fmt: skip


class ConsumeQueue(_Reached):
    """One queue. Changed only under the store's lock; `entries` may be called from any thread."""

    __slots__ = (
        "_files", "_lock", "_new_names", "_open_files", "_tail_start", "_unusable",
        "generation", "is_schedule", "min_offset", "queue_id", "synced_offset", "topic", "unsynced",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        file_bytes: int,
        disk: Disk,
        open_files: OpenFiles,
        lock: threading.Lock,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        # Fields of the topic that the append needs, computed once.
        self.magic, self.topic_part = topic_part(topic)
        self.topic_hash = java_hash(topic + "#")
        self.is_schedule = topic == SCHEDULE_TOPIC
        self.is_special = self.is_schedule
        """Whether its entries are not made as those of most queues: the append looks closer then."""
        self.is_forgotten = False
        """Whether its topic was deleted: a new topic of that name gets new queues."""
        self.next_offset = 0
        """The queue offset of the next append: above `max_offset` while appends are not confirmed."""
        self.min_offset = 0
        self.synced_offset = 0
        """Entries below are on disk."""
        self.dirty = False
        self.unsynced: set[int] = set()
        self._files = MappedFileQueue(disk, directory, file_bytes)
        self._open_files = open_files
        self._lock = lock
        self._new_names = False
        self._unusable: list[int] = []
        self.tail = bytearray()
        """Published entries that are not in files yet. Dispatch appends to it directly."""
        self._tail_start = 0
        self.generation = 0
        """Changes whenever published entries may have been replaced."""

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic}/{self.queue_id} {self.min_offset}..{self.max_offset})"

    is_batched: ClassVar[bool] = False
    """Whether an entry may stand for several messages, as in a batch consume queue."""
    entry_bytes: ClassVar[int] = ENTRY_BYTES

    @property
    def directory(self) -> Path:
        return self._files.directory

    def position_of(self, queue_offset: int) -> int:
        """Return where the entry of an offset is in the files, in bytes from the queue's beginning."""
        return queue_offset * ENTRY_BYTES

    def offset_at(self, position: int) -> int:
        """Return the queue offset of the entry at a position, or behind the last entry before it."""
        return position // ENTRY_BYTES

    @property
    def max_offset(self) -> int:
        """One above the last published entry."""
        return (self._tail_start + len(self.tail)) // ENTRY_BYTES

    @property
    def max_physical_offset(self) -> int:
        """End of the record that the last entry points to; -1 without one."""
        last = self.entry(self.max_offset - 1) if self.max_offset > self.min_offset else None
        return last[0] + last[1] if last is not None and last[1] != BLANK_ENTRY_SIZE else -1

    @property
    def written_offset(self) -> int:
        """Entries below are in files, not necessarily on the medium."""
        return self.offset_at(self._tail_start)

    # Reading

    def entries(self, first: int, count: int) -> bytes | bytearray:
        """Return up to `count` entries from `first` on, never across a file's end; empty if the file is gone.

        The caller stays within `min_offset` and `max_offset`. Raises OSError, BadStoreFile.
        """
        start = first * ENTRY_BYTES
        length, tail = self._split(start, count * ENTRY_BYTES)
        if not length:
            return tail
        written = self._read(start, length)
        return written + tail if written else written

    def resident_entries(self, first: int, count: int) -> bytes | bytearray | None:
        """Return what `entries` returns, or None if that would wait for the disk."""
        start = first * ENTRY_BYTES
        length, tail = self._split(start, count * ENTRY_BYTES)
        if not length:
            return tail
        written = self._read_resident(start, length)
        return written + tail if written is not None and len(written) == length else written

    def _read_resident(self, start: int, length: int) -> bytes | bytearray | None:
        file_start = self._files.start_of(start)
        file = self._open_files.peek(self._files.directory, file_start)
        return file.read_resident(length, start - file_start) if file is not None else None

    def _split(self, start: int, length: int) -> tuple[int, bytearray]:
        """Return the written length of a range, limited to its file, and its unwritten bytes."""
        file_bytes = self._files.file_bytes
        length = min(length, file_bytes - start % file_bytes)
        with self._lock:
            within = start - self._tail_start
            if within >= 0:
                return 0, self.tail[within : within + length]
            written = min(length, -within)
            return written, self.tail[: length - written]

    def _read(self, start: int, length: int) -> bytes:
        file_start = self._files.start_of(start)
        try:
            file = self._open_files.get(self._files.directory, file_start)
        except FileNotFoundError:
            return b""
        data = file.read(length, start - file_start)
        if len(data) < length:
            # An error, not "no entries": consumers would skip their messages.
            expected = f"{length} bytes from byte {start - file_start} on"
            raise BadStoreFile(file.path, f"has {len(data)} instead of {expected}")
        return data

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Return one entry, or None if it cannot be read."""
        data = self.entries(queue_offset, 1)
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else None

    def next_file_offset(self, queue_offset: int) -> int:
        """Return the first queue offset of the next file."""
        start = self._files.start_of(self.position_of(queue_offset))
        return self.offset_at(start + self._files.file_bytes)

    def search(self, low: int, high: int, predicate: Callable[[int, int], bool]) -> int:
        """Return the first offset in [low, high) whose entry meets a monotone predicate, else `high`.

        The predicate takes physical offset and size. A blank entry counts as the next entry with a record.
        """
        found = high
        while low < high:
            middle = (low + high) // 2
            at, entry = middle, self.entry(middle)
            if entry is not None and entry[1] == BLANK_ENTRY_SIZE:
                at = self._first_with_record(middle, high)
                entry = self.entry(at) if at < high else None
            if at == high:
                high = middle
            elif entry is not None and predicate(entry[0], entry[1]):
                found, high = at, middle
            else:
                low = at + 1
        return found

    @property
    def first_with_record(self) -> int:
        """The first offset whose entry is not blank; `max_offset` without one."""
        return self._first_with_record(self.min_offset, self.max_offset)

    def _first_with_record(self, low: int, high: int) -> int:
        """Return the first offset in [low, high) whose entry is not blank, or `high`."""
        while low < high:
            entries = self.entries(low, min(SEARCH_ENTRIES, high - low))
            if not entries:
                return low
            for _, size, _ in ENTRY.iter_unpack(entries):
                if size != BLANK_ENTRY_SIZE:
                    return low
                low += 1
        return low

    # Publishing: hold the store's lock

    def fill_to(self, queue_offset: int) -> None:
        """Add blank entries up to `queue_offset`, for offsets without a record in the log."""
        if self.max_offset == 0 and not self._files.starts:
            # The queue starts above 0: only the entries before it in its first file are filled.
            first_file = self._files.start_of(queue_offset * ENTRY_BYTES)
            self._tail_start = first_file
            self.min_offset = queue_offset
        self.tail += BLANK_ENTRY * (queue_offset - self.max_offset)

    def add(
        self,
        queue_offset: int,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int = 0,
        count: int = 1,
    ) -> bool:
        """Publish the entry of one record; return False if it is published already.

        Dispatch of appends does so by itself for plain queues. Others also keep the store time, and how many
        messages the record has.
        """
        if queue_offset < self.max_offset:
            if self._is_covered(physical_offset):
                return False
            self.reset()
        if queue_offset > self.max_offset:
            self.fill_to(queue_offset)
        self._publish(queue_offset, physical_offset, size, tags_code, store_timestamp, count)
        return True

    def _publish(
        self, queue_offset: int, physical_offset: int, size: int, tags_code: int, timestamp: int, count: int
    ) -> None:
        self.tail += ENTRY.pack(physical_offset, size, tags_code)

    def _is_covered(self, physical_offset: int) -> bool:
        """Return whether the entries reach beyond this physical offset. If not, they are obsolete.

        Either the topic was deleted and created again, or a crash left files without contents.
        """
        if not self.tail and (not self._files.starts or self._tail_start == self._files.first):
            return False
        last = self.tail[-ENTRY_BYTES:] or self._read(self._tail_start - ENTRY_BYTES, ENTRY_BYTES)
        last_offset, last_size, _ = (
            ENTRY.unpack(last) if len(last) == ENTRY_BYTES else (0, BLANK_ENTRY_SIZE, 0)
        )
        return bool(last_size == BLANK_ENTRY_SIZE or physical_offset < last_offset + last_size)

    # Writing: the flush thread alone

    def write(self) -> None:
        """Move published entries from memory to files. Raises OSError, DiskFull."""
        with self._lock:
            generation, start, data = self.generation, self._tail_start, bytes(self.tail)
        with self._open_files.changing:
            if generation == self.generation:
                self._write_at(start, data)
        end, written = start + len(data), slice(len(data))
        with self._lock:
            if generation != self.generation:
                return  # the queue was reset meanwhile
            # No call in between: `max_offset` takes no lock and must not see an intermediate state.
            del self.tail[written]
            self._tail_start = end

    def _write_at(self, start: int, data: bytes) -> None:
        position = 0
        while position < len(data):
            at = start + position
            file_start = self._files.start_of(at)
            length = min(len(data) - position, file_start + self._files.file_bytes - at)
            self._write_into(file_start, at - file_start, data[position : position + length])
            position += length

    def _write_into(self, file_start: int, position: int, data: bytes) -> None:
        files = self._files
        is_new = file_start not in files.starts
        file = self._open_files.get(files.directory, file_start, files.file_bytes if is_new else None)
        if is_new:
            files.starts.append(file_start)
            self._new_names = True
        step = position - position % ALLOCATION_BYTES
        if is_new or position + len(data) > step + ALLOCATION_BYTES or position == step:
            file.allocate(step, position - step + len(data) + ALLOCATION_BYTES)
        file.write([data], position)
        self.unsynced.add(file_start)

    def sync(self) -> None:
        """Make written entries durable."""
        generation, upto = self.generation, self.written_offset
        for file_start in sorted(self.unsynced):
            try:
                self._open_files.get(self._files.directory, file_start).sync()
            except FileNotFoundError:
                continue  # deleted since
        self.unsynced.clear()
        if self._new_names:
            for directory in (self.directory, *list(self.directory.parents)[:DIRECTORIES_ABOVE]):
                with suppress(FileNotFoundError):  # reset, nothing written since
                    self._files.disk.sync_directory(directory)
            self._new_names = False
        with self._lock:
            if generation == self.generation:
                self.synced_offset = upto

    # Loading, truncating, cleaning: under the store's lock, or before it serves

    def load(self) -> list[BadStoreFile]:
        """Find the files and the last written entry."""
        problems = self._files.load()
        short = [Path(str(problem.path)).name for problem in problems]
        self._drop_from_first_unusable(short)
        self._tail_start = self._end_of_entries()
        # The name of a file without entries may not be durable yet.
        self._new_names = bool(self._files.starts) and self._files.starts[-1] >= self._tail_start
        self._after_load()
        return problems

    def _drop_from_first_unusable(self, short: list[str]) -> None:
        """Drop a short file, or files behind a hole: recovery rebuilds their entries from the log."""
        usable: list[int] = []
        for start in self._files.starts:
            if usable and start != usable[-1] + self._files.file_bytes:
                break
            if self._files.path(start).name in short:
                break
            usable.append(start)
        self._unusable = self._files.starts[len(usable) :]
        self._files.starts = usable

    def _end_of_entries(self) -> int:
        """Return the first byte behind the valid entries: they are dense, so it is found by binary search."""
        if not self._files.starts:
            return 0
        for start in reversed(self._files.starts):
            low, high = 0, self._files.file_bytes // self.entry_bytes
            while low < high:
                middle = (low + high) // 2
                # Short if another process deleted the file after the directory was listed.
                if self._is_entry(self._read(start + middle * self.entry_bytes, self.entry_bytes)):
                    low = middle + 1
                else:
                    high = middle
            if low:
                return start + low * self.entry_bytes
        return self._files.first

    def _is_entry(self, data: bytes) -> bool:
        physical_offset, size, _ = ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0)
        return bool(physical_offset >= 0 and size > 0)

    def _after_load(self) -> None:
        self.generation += 1
        self.tail = bytearray()
        self.min_offset = self.first_offset
        self.next_offset = self.max_offset
        self.synced_offset = self.max_offset

    def truncate(self, physical_offset: int) -> None:
        """Drop every entry whose record starts at or behind `physical_offset`. Before the store serves."""
        while self._unusable:
            # The contents of these files must never be read as entries again.
            self._files.disk.delete(self._files.path(self._unusable.pop()))
            self._new_names = True
        self.write()
        self.cut_to(self.end_below(physical_offset))

    def end_below(self, physical_offset: int) -> int:
        """Return the queue offset behind the last entry whose record starts before `physical_offset`."""
        return self.search(
            self.first_offset, self.max_offset, lambda at, size: size <= 0 or at >= physical_offset
        )

    @property
    def has_unusable_files(self) -> bool:
        """Whether files of a wrong length, or behind a missing file, were found."""
        return bool(self._unusable)

    def clear_behind(self) -> None:
        """Clear bytes behind the last entry, left by a crash or another writer. Before the store serves."""
        end = self._tail_start
        for start in [start for start in self._files.starts if start + self._files.file_bytes > end]:
            file = self._open_files.get(self._files.directory, start)
            if not file.is_zero_from(max(end - start, 0)):
                self._cut(end)
                return

    def cut_to(self, queue_offset: int) -> None:
        """Drop every entry from there on. Before the store serves."""
        if queue_offset < self.max_offset:
            self._cut(self.position_of(queue_offset))

    def reset(self) -> None:
        """Drop every entry, to be rebuilt from the log."""
        with self._open_files.changing:  # not while the flush thread writes the old entries
            self.tail.clear()
            self._cut(0)
            self._files.starts = []
            self._files.disk.delete_directory(self.directory)

    def _cut(self, end: int) -> None:
        files = self._files
        disk = files.disk
        for start in [start for start in files.starts if start >= end]:
            self._open_files.forget(files.directory, start)
            disk.delete(files.path(start))
            files.starts.remove(start)
            self.unsynced.discard(start)
        # The names of the files with the dropped entries may not be durable yet.
        self._new_names = True
        self._zero_behind(end)
        self._tail_start = end
        self._after_load()

    def _zero_behind(self, end: int) -> None:
        """Zero the bytes behind the end: a later start would read them as valid entries."""
        start = self._files.start_of(end)
        if start not in self._files.starts or end == start:
            return
        path = self._files.path(start)
        self._open_files.forget(self._files.directory, start)
        self._files.disk.create(path, end - start)
        self._files.disk.create(path, self._files.file_bytes)
        self.unsynced.add(start)

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move the minimum to the first entry whose record is still in the log."""
        self.min_offset = self._first_in_log(log_min_offset)

    def _first_in_log(self, log_min_offset: int) -> int:
        first = max(self.min_offset, self.first_offset)
        return self.search(first, self.max_offset, lambda at, size: at >= log_min_offset)

    def forget_expired(self, log_min_offset: int) -> list[int]:
        """Move the minimum to the log's start; return the starts of files that can be deleted.

        These are the files, never the last, of which no record is left in the log.
        """
        self.correct_min_offset(log_min_offset)
        keep, file_bytes = self.position_of(self.min_offset), self._files.file_bytes
        expired = [start for start in self._files.starts[:-1] if start + file_bytes <= keep]
        self._files.starts = self._files.starts[len(expired) :]
        return expired

    def delete_files(self, starts: list[int]) -> None:
        """Delete files that `forget_expired` returned. Raises OSError."""
        for start in starts:
            self._files.disk.delete(self._files.path(start))
            self._open_files.forget(self._files.directory, start)

    @property
    def first_offset(self) -> int:
        """The queue offset of the first entry in files, which may be expired."""
        return self.offset_at(self._files.first)

    @property
    def file_starts(self) -> list[int]:
        return self._files.starts

    @property
    def file_bytes(self) -> int:
        return self._files.file_bytes
