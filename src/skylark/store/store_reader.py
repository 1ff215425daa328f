"""StoreReader: a store directory opened read-only, whether live, closed or written by Apache RocketMQ.

No recovery, no marker, no lock: opening the lock file would release the lock of a store that this process
has open. A reader shows the directory as `refresh` found it; files that another process deletes later
read as deleted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from skylark.clock import SystemClock
from skylark.errors import BadStoreFile, CorruptRecord, MissingFile, OffsetOutOfRange
from skylark.model.message import HOST_V4_BYTES, StoredMessage
from skylark.model.message_id import parse_offset_message_id
from skylark.model.record import MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, ScannedRecord, decode, unwrap
from skylark.settings import DELAY_LEVELS, StoreSettings
from skylark.store.checkpoint import Checkpoint, CheckpointFile
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk, RealDisk
from skylark.store.index import IndexReader, index_names
from skylark.store.index_file import IndexGeometry, find_geometry
from skylark.store.log_reader import GetResult, LogReader
from skylark.store.log_scan import DamageHandler, LiveLogScan, LogWalk, forget_deleted
from skylark.store.mapped_file import NAME_DIGITS, MappedFileQueue
from skylark.store.page_cache import PageCache
from skylark.store.queue_entry import BLANK_ENTRY_SIZE, ENTRY
from skylark.store.queue_table import BATCH_DIRECTORY, PLAIN_DIRECTORY, QueueTable, is_batch_type
from skylark.store.tail_reader import RecordFilter, TagsFilter
from skylark.store.unsupported_files import (
    TopicAttributes,
    UnsupportedItem,
    find_unsupported,
    load_topic_attributes,
)

ENTRIES_AT_A_TIME = 1024

CorruptHandler = Callable[[CorruptRecord], None]


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The messages of a queue: `min_offset` <= queue offset < `max_offset`. Unknown times are None."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    first_timestamp: int | None
    last_timestamp: int | None

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


class _NoPageCache(PageCache):
    """Never reads through the map: a bad disk or a file truncated by its owner would raise a signal."""

    def __init__(self, log: CommitLog) -> None:
        super().__init__(log, SystemClock())
        self.written_from = 1 << 63

    def holds(self, physical_offset: int, size: int) -> bool:
        return False


class StoreReader:
    """Reads a store directory. One thread at a time.

    File sizes and the index geometry are derived from the files, unless given; index files of another
    geometry are reported in `problems`.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        commit_log_path: Path | str | None = None,
        index_slots: int | None = None,
        index_items: int | None = None,
        delay_levels: str = DELAY_LEVELS,
        disk: Disk | None = None,
    ) -> None:
        """Raises MissingFile, BadStoreFile if the directory is not a store, SettingsError, OSError."""
        self.path = Path(path)
        self._commit_log_path = Path(commit_log_path) if commit_log_path else None
        self._index_slots, self._index_items = index_slots, index_items
        self._delay_levels = delay_levels
        self.disk: Disk = disk or RealDisk()
        self.refresh()

    # Opening

    def refresh(self) -> None:
        """Read the directory again. Raises as the constructor does."""
        self._check_directory()
        self._load()
        if (self.bad_log_files or self.bad_queue_files) and self._derive_settings() != self.settings:
            self._load()  # the first files of a kind appeared after their size was derived

    def _load(self) -> None:
        self.bad_log_files: list[BadStoreFile] = []
        self.bad_queue_files: list[BadStoreFile] = []
        self._bad_config: list[BadStoreFile] = []
        self.index_geometry = self._derive_index_geometry()
        self.settings = self._derive_settings()
        self.log = CommitLog(self.disk, self.settings, bytes(HOST_V4_BYTES), writable=False)
        self.queue_table = QueueTable(self.disk, self.path, self.settings, threading.Lock(), writable=False)
        self.topic_attributes = self._load_topic_attributes()
        self.queue_table.is_declared_batched = self._is_declared_batched
        # Checkpoint, then queues, then log: the data that each refers to exists when the next is read.
        self.checkpoint: Checkpoint | None = CheckpointFile(self.disk, self.path / "checkpoint").load()
        self.bad_queue_files = self._still_bad(self.queue_table.load(), None)
        self._load_log()
        for queue in self.queue_table.values():
            queue.correct_min_offset(self.log.min_offset)
        self._reader = LogReader(self.log, self.settings, _NoPageCache(self.log))
        self.index = self._open_index()

    def _check_directory(self) -> None:
        if not self.disk.exists(self.path):
            raise MissingFile(self.path, "no such directory")
        if self._commit_log_path is not None and not self.disk.exists(self._commit_log_path):
            raise MissingFile(self._commit_log_path, "no such directory")
        names = {*self.disk.directories(self.path), *self.disk.files(self.path)}
        if not names & {"commitlog", "consumequeue", "checkpoint"}:
            raise BadStoreFile(self.path, "not a store: it has neither commitlog nor consumequeue")

    def _derive_settings(self) -> StoreSettings:
        log_directory = self._commit_log_path or self.path / "commitlog"
        log_bytes = likely_file_bytes(self._lengths(log_directory))
        queue_bytes, batch_queue_bytes = (
            likely_file_bytes(
                length
                for topic in self.disk.directories(self.path / directory)
                for queue in self.disk.directories(self.path / directory / topic)
                for length in self._lengths(self.path / directory / topic / queue)
            )
            for directory in (PLAIN_DIRECTORY, BATCH_DIRECTORY)
        )
        return StoreSettings(
            path=self.path,
            commit_log_path=self._commit_log_path,
            commit_log_file_bytes=max(log_bytes, 4096) if log_bytes else StoreSettings.commit_log_file_bytes,
            consume_queue_file_bytes=queue_bytes or StoreSettings.consume_queue_file_bytes,
            batch_consume_queue_file_bytes=batch_queue_bytes or StoreSettings.batch_consume_queue_file_bytes,
            index_slots=self.index_geometry.slots,
            index_items=self.index_geometry.items,
            delay_levels=self._delay_levels,
        )

    def _derive_index_geometry(self) -> IndexGeometry:
        usual = IndexGeometry(StoreSettings.index_slots, StoreSettings.index_items)
        if self._index_slots is not None or self._index_items is not None:
            return IndexGeometry(
                usual.slots if self._index_slots is None else self._index_slots,
                usual.items if self._index_items is None else self._index_items,
            )
        directory = self.path / "index"
        for name in reversed(index_names(self.disk, directory, [])):
            try:
                if self.disk.length(directory / name) == usual.file_bytes:
                    return usual
                found = find_geometry(self.disk, directory / name)
            except OSError:
                continue  # deleted since the directory was listed, or unreadable: reported when it is opened
            if found is not None:
                return found
        return usual

    def _lengths(self, directory: Path) -> Iterator[tuple[int, int]]:
        """Yield start and length of each file whose name is an offset."""
        for name in self.disk.files(directory):
            if len(name) == NAME_DIGITS and name.isascii() and name.isdigit():
                try:
                    yield int(name), self.disk.length(directory / name)
                except FileNotFoundError:
                    continue  # deleted since the directory was listed

    def _load_log(self) -> None:
        log, files = self.log, self.log.files
        self.bad_log_files = self._still_bad(log.load(), files.file_bytes)
        files.starts = [
            start for start, length in self._lengths(files.directory) if length and start in files.starts
        ]
        log.appended = files.end
        walk = LogWalk(log, self._known_end(), step_over_damage=False)
        try:
            for _ in walk:
                pass
        except OffsetOutOfRange:
            pass  # deleted by its owner: the walk ends there
        log.appended = walk.end

    def _still_bad(self, bad_files: list[BadStoreFile], file_bytes: int | None) -> list[BadStoreFile]:
        """Remove files that their owner was creating or deleting at the same time.

        Without `file_bytes` they are of consume queues.
        """
        return [bad for bad in bad_files if self._is_still_bad(Path(bad.path), file_bytes)]

    def _is_still_bad(self, path: Path, file_bytes: int | None) -> bool:
        names = self.disk.files(path.parent)
        if file_bytes is None:
            is_batched = self.path / BATCH_DIRECTORY in path.parents
            settings = self.settings
            file_bytes = (
                settings.batch_consume_queue_file_bytes if is_batched else settings.consume_queue_file_bytes
            )
        if path.name not in names:
            return self.disk.exists(path)  # a directory
        now_bad = {bad.path for bad in MappedFileQueue(self.disk, path.parent, file_bytes).load()}
        try:
            is_being_made = path.name == names[-1] and self.disk.length(path) == 0
        except FileNotFoundError:
            return False
        return path in now_bad and not is_being_made

    def _known_end(self) -> int:
        """Return the end of a record near the log's end; a walk from there finds the exact end."""
        by_file = next(
            (start for start in reversed(self.log.files.starts) if LogWalk(self.log, 0).is_record(start)),
            self.log.min_offset,
        )
        queues = sorted(self.queue_table.values(), key=lambda queue: queue.max_physical_offset, reverse=True)
        by_queue = next((end for queue in queues if (end := self._end_by(queue))), 0)
        return max(by_file, by_queue)

    def _end_by(self, queue: ConsumeQueue) -> int | None:
        """Return the end of the record that the queue's last entry points to, if it has that size."""
        entry = queue.entry(queue.max_offset - 1) if queue.max_offset > queue.min_offset else None
        if entry is None:
            return None
        physical_offset, size, _ = entry
        try:
            head = self.log.read(physical_offset, SIZE_AND_MAGIC.size)
        except OffsetOutOfRange:
            return None
        if head not in (SIZE_AND_MAGIC.pack(size, MAGIC_V1), SIZE_AND_MAGIC.pack(size, MAGIC_V2)):
            return None
        return physical_offset + size

    def _open_index(self) -> IndexReader | None:
        directory = self.path / "index"
        if not self.disk.files(directory):
            return None
        return IndexReader(
            self.disk, directory, slots=self.index_geometry.slots, items=self.index_geometry.items
        )

    def _load_topic_attributes(self) -> TopicAttributes:
        try:
            return load_topic_attributes(self.path)
        except BadStoreFile as error:
            self._bad_config.append(error)
            return {}

    def _is_declared_batched(self, topic: str) -> bool:
        return is_batch_type(self.topic_attributes.get(topic, {}))

    # Overview

    @property
    def problems(self) -> list[str]:
        """Problems found when the directory was opened, one sentence each."""
        bad_files = [*self.bad_log_files, *self.bad_queue_files, *self._bad_config]
        holes = [
            f"commit log files from {hole_from} to {hole_to} are missing"
            for hole_from, hole_to in self.log.files.holes()
        ]
        return [*map(str, bad_files), *holes, *(self.index.problems if self.index else [])]

    @property
    def is_marked_running(self) -> bool:
        """Whether the abort marker exists: the store is running, or was not closed."""
        return self.disk.exists(self.path / "abort")

    @property
    def min_physical_offset(self) -> int:
        return self.log.min_offset

    @property
    def end_physical_offset(self) -> int:
        """End of the last complete record."""
        return self.log.appended

    def is_cleaned(self, physical_offset: int) -> bool:
        """Return whether the log's owner deleted the file with this offset."""
        if physical_offset >= self.log.min_offset:
            forget_deleted(self.log)
        return physical_offset < self.log.min_offset or not self.log.files.starts

    def topics(self) -> list[str]:
        return self.queue_table.topics()

    def queues(self, topic: str | None = None) -> list[QueueSummary]:
        """Return the queues of a topic, or of all topics, sorted; empty for an unknown topic."""
        return [
            self._range_of(self.queue_table[key])
            for key in sorted(self.queue_table)
            if topic is None or key[0] == topic
        ]

    def queue_range(self, topic: str, queue_id: int) -> QueueSummary | None:
        queue = self.queue_table.get((topic, queue_id))
        return self._range_of(queue) if queue else None

    def _range_of(self, queue: ConsumeQueue) -> QueueSummary:
        low, high = queue.min_offset, queue.max_offset
        first = self._reader.earliest_timestamp(queue)
        last = self._reader.entry_timestamp(queue, high - 1) if low < high else None
        return QueueSummary(queue.topic, queue.queue_id, low, high, first, last)

    def unsupported(self) -> list[UnsupportedItem]:
        return find_unsupported(self.disk, self.path, self.topics(), self.topic_attributes)

    # Messages

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        *,
        tags_filter: TagsFilter | None = None,
        record_filter: RecordFilter | None = None,
    ) -> GetResult | None:
        """Read as a consumer does, see `MessageStore.get`; None for an unknown queue."""
        queue = self.queue_table.get((topic, queue_id))
        if queue is None:
            return None
        return self._reader.get(
            queue, queue_offset, max_messages, tags_filter=tags_filter, record_filter=record_filter
        )

    def messages(
        self,
        topic: str,
        queue_id: int,
        from_offset: int | None = None,
        to_offset: int | None = None,
        *,
        on_corrupt: CorruptHandler | None = None,
    ) -> Iterator[StoredMessage]:
        """Yield the messages of a queue with `from_offset` <= queue offset < `to_offset`.

        A message that cannot be read is passed to `on_corrupt` and skipped; without `on_corrupt` it raises
        CorruptRecord. Deleted messages and offsets without a record are skipped.
        """
        queue = self.queue_table.get((topic, queue_id))
        if queue is None:
            return
        low = max(queue.min_offset, from_offset or 0)
        high = queue.max_offset if to_offset is None else min(to_offset, queue.max_offset)
        while low < high:
            entries = queue.entries(low, min(ENTRIES_AT_A_TIME, high - low))
            if not entries:
                low = queue.next_file_offset(low)
            read_at = -1  # messages of a batch share a record
            for physical_offset, size, _ in ENTRY.iter_unpack(entries):
                if size != BLANK_ENTRY_SIZE and physical_offset != read_at:
                    read_at = physical_offset
                    for message in self._messages(queue, low, physical_offset, on_corrupt):
                        if low <= message.queue_offset < high or not queue.is_batched:
                            yield message
                low += 1

    def _messages(
        self, queue: ConsumeQueue, queue_offset: int, physical_offset: int, on_corrupt: CorruptHandler | None
    ) -> list[StoredMessage]:
        """Return the messages of a record."""
        try:
            message = self.message_at(physical_offset)
            return unwrap(message) if queue.is_batched else [message]
        except OffsetOutOfRange:
            if self.is_cleaned(physical_offset):
                return []
            entry = f"{queue.topic}/{queue.queue_id} at queue offset {queue_offset}"
            corrupt = CorruptRecord(physical_offset, f"the log has no record for {entry}")
        except CorruptRecord as error:
            corrupt = error
        if on_corrupt is None:
            raise corrupt
        on_corrupt(corrupt)
        return []

    def records(
        self,
        physical_from: int | None = None,
        physical_to: int | None = None,
        *,
        on_damage: DamageHandler | None = None,
    ) -> Iterator[ScannedRecord]:
        """Yield records of all topics that start in the range of the log; damaged ranges are skipped."""
        start = max(physical_from or 0, self.log.min_offset)
        end = self.log.appended if physical_to is None else min(physical_to, self.log.appended)
        if start >= end:
            return
        for record in LiveLogScan(self.log, start, on_damage):
            if record.physical_offset >= end:
                return
            yield record
            if record.physical_offset + record.size >= end:
                return

    def message_at(self, physical_offset: int) -> StoredMessage:
        """Raises OffsetOutOfRange, CorruptRecord."""
        return decode(self._reader.record_at(physical_offset))

    def by_offset_id(self, offset_message_id: str) -> StoredMessage:
        """Raises ValueError for an invalid id, OffsetOutOfRange, CorruptRecord."""
        return self.message_at(parse_offset_message_id(offset_message_id)[1])

    def by_key(
        self, topic: str, key: str, *, maximum: int = 64, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[StoredMessage]:
        """Return messages with a key or unique key, oldest first. Raises MissingFile, BadStoreFile."""
        if self.index is None:
            raise MissingFile(self.path / "index", "keys cannot be looked up without an index")
        if not self.index.refresh() and self.index.problems:
            geometry = f"{self.index_geometry.slots} slots and {self.index_geometry.items} items"
            raise BadStoreFile(self.path / "index", f"no valid index file with {geometry}")
        found = self.index.query(topic, key, maximum, begin_ms, end_ms)
        return self._reader.messages_with_key(found.physical_offsets, topic, key)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int | None:
        """Return the first offset stored at or after a time (`upper`: the last at or before), or None."""
        queue = self.queue_table.get((topic, queue_id))
        return self._reader.offset_by_time(queue, timestamp, upper=upper) if queue else None


def likely_file_bytes(files: Iterator[tuple[int, int]]) -> int:
    """Return the file length that most names and lengths agree with; 0 without files."""
    counts: Counter[int] = Counter()
    starts = []
    for start, length in files:
        starts.append(start)
        counts[length] += 1
    del counts[0]
    fits = {length: sum(start % length == 0 for start in starts) for length in counts}
    return max(counts, key=lambda length: (fits[length], counts[length], length), default=0)
