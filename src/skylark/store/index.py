"""The index: finds records by key. A list of index files, filled one after the other.

It is derived from the log: damaged files are reported, skipped and rebuilt. The owner (`enqueue`, `build`)
holds the store's lock while it calls. Background and query threads take that lock themselves for short
moments; they must not hold it when they call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from operator import lt
from pathlib import Path
from typing import Protocol

from skylark.accelerator import unique_key_hashes as _unique_key_hashes
from skylark.clock import Clock
from skylark.errors import BadStoreFile
from skylark.model.java import index_key_hash, java_hash, java_hash_from, java_hashes_from
from skylark.store.append_result import AppendedBatch, ReadRecords
from skylark.store.disk import Disk
from skylark.store.index_backlog import BacklogColumns, IndexBacklog, SharedKeyBatch, key_rows
from skylark.store.index_file import (
    IndexChain,
    IndexFile,
    IndexGeometry,
    IndexHeader,
    IndexRows,
    Lock,
    SameKeyRows,
)

NAME = re.compile("[0-9]{17}")
OFFSET_MAX = (1 << 63) - 1
SHARED_KEY_BATCH_MIN = 8
"""Minimum size of a batch with a shared key that is indexed separately; smaller ones join other messages."""
_KEY = b"KEY"  # in the names of all properties with keys
_HASH_MASK = 0x7FFFFFFF  # turns the absolute value that does not fit, 2^31, into the 0 that the format wants


class IndexQueue(Protocol):
    @property
    def topic_hash(self) -> int:
        """Java's hash of the topic and `#`."""


class IndexEntry(Protocol):
    """A dispatched message. The caller skips rolled-back messages, which are not indexed."""

    @property
    def queue(self) -> IndexQueue: ...
    @property
    def properties(self) -> bytes: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...


@dataclass(frozen=True, slots=True)
class IndexQueryResult:
    """Records that may have the key (only hashes were compared), ascending and distinct.

    The last two fields are the end of the newest file; 0 when nothing was found.
    """

    physical_offsets: list[int]
    last_timestamp: int
    last_physical_offset: int


class Index:
    """The index of a store that this process writes."""

    def __init__(
        self, disk: Disk, directory: Path, geometry: IndexGeometry, clock: Clock, lock: Lock
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._geometry = geometry
        self._clock = clock
        self._lock = lock
        self._disk_lock = threading.RLock()  # always taken before the store's
        # Oldest first. Replaced, never changed: queries hold the old list.
        self._files: list[IndexFile] = []
        self._pending = IndexBacklog()
        self._set_aside: list[Path] = []
        self._newest_name = ""
        self.problems: list[str] = []
        """Problems found by `open`, one sentence each."""
        self.rebuild_from: int | None = None
        """The physical offset from which the log must be enqueued again, until `finish_rebuild`."""

    @staticmethod
    def open(
        disk: Disk, directory: Path, *, slots: int, items: int, clock: Clock, lock: Lock, clean: bool
    ) -> Index:
        """Open the index; a missing directory is an empty index. Raises BadStoreFile if it is a file.

        From a damaged file on, all files are set aside (`problems`, `rebuild_from`); they stay on disk until
        `finish_rebuild`, so that a crash during the rebuild repeats it. Without `clean`, only headers and the
        items they count are trusted.
        """
        index = Index(disk, directory, IndexGeometry(slots, items), clock, lock)
        for name in index_names(disk, directory, index.problems):
            index._newest_name = name
            index._open_file(directory / name)
        index._open_newest(clean=clean)
        if not clean:
            index._make_durable()
        return index

    def _make_durable(self) -> None:
        """Sync files that a killed process left in the page cache: they are relied on from now on."""
        for file in self._files:
            file.sync()
        if self._files:
            self._disk.sync_directory(self._directory)
            self._disk.sync_directory(self._directory.parent)

    def _open_file(self, path: Path) -> None:
        if self.rebuild_from is not None:
            self._set_file_aside(path, f"{path} follows a bad file: its keys are rebuilt, too")
            return
        try:
            file = IndexFile.open(self._disk, path, self._geometry, writable=True)
            file.check_ends()
        except (BadStoreFile, OSError) as error:
            self._set_file_aside(path, str(error))
            return
        if file.is_empty:
            file.seed(self._newest_header.successor())
        if file.header.begin_physical_offset < self.end_physical_offset:
            self._set_file_aside(path, f"{path} starts before the end of the previous file")
            return
        self._files.append(file)

    def _open_newest(self, *, clean: bool) -> None:
        while self._files and not self._files[-1].is_full:
            newest = self._files[-1]
            try:
                if clean:
                    newest.load_slots()
                else:
                    newest.rebuild_slots()
            except (BadStoreFile, OSError) as error:
                self._files.pop()
                self._set_file_aside(newest.path, str(error))
            else:
                return

    def _set_file_aside(self, path: Path, reason: str) -> None:
        self.problems.append(reason)
        self._set_aside.append(path)
        # Its own start is as unreliable as the rest of its header; the end of the previous file is known.
        self.rebuild_from = self.end_physical_offset

    @property
    def _newest_header(self) -> IndexHeader:
        return self._files[-1].header if self._files else IndexHeader()

    @property
    def end_physical_offset(self) -> int:
        """Physical offset of the last message with a key; 0 without one."""
        return self._newest_header.end_physical_offset

    @property
    def sealed_timestamp(self) -> int:
        """End time of the last file that is full and on disk; 0 without one."""
        with self._lock:
            return max((file.header.end_timestamp for file in self._files if file.is_sealed), default=0)

    @property
    def durable_timestamp(self) -> int:
        """End time of the newest file on disk; 0 without one."""
        with self._lock:
            return max((file.durable_timestamp for file in self._files), default=0)

    @property
    def is_dirty(self) -> bool:
        """Whether a flush would write."""
        with self._lock:
            return any(file.is_dirty for file in self._files)

    @property
    def last_physical_offset(self) -> int:
        """As `end_physical_offset`, but -1 without one."""
        return -1 if all(file.is_empty for file in self._files) else self.end_physical_offset

    @property
    def file_names(self) -> list[str]:
        """Names of the files on disk, oldest first."""
        return [file.path.name for file in self._files if file.is_on_disk]

    def names_from(self, physical_offset: int) -> list[str]:
        """Return the names that `delete_before` would keep."""
        return [file.path.name for file in self._from(physical_offset) if file.is_on_disk]

    def _from(self, physical_offset: int) -> list[IndexFile]:
        """Return the newest file, and older files that end at or behind `physical_offset`."""
        expired = takewhile(lambda file: file.header.end_physical_offset < physical_offset, self._files[:-1])
        return self._files[len(list(expired)) :]

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # --- Owner: under the store's lock ---

    def enqueue(self, entries: Sequence[IndexEntry]) -> None:
        """Queue messages, in log order, for `build`."""
        self._pending.add(
            [entry.physical_offset for entry in entries],
            [entry.store_timestamp for entry in entries],
            [entry.queue.topic_hash for entry in entries],
            [entry.properties for entry in entries],
        )

    def enqueue_read(self, records: ReadRecords) -> None:
        """Queue messages that were read back from the log."""
        topic_hashes = [queue.topic_hash for queue in records.queues]
        self._pending.add(records.physical_offsets, records.timestamps, topic_hashes, records.texts)

    def enqueue_run(self, run: AppendedBatch) -> None:
        """Queue a batch of messages without splitting it."""
        count, offsets, topic_hash = len(run), run.physical_offsets, run.queue.topic_hash
        key = run.only_key if count >= SHARED_KEY_BATCH_MIN else None
        if key is not None:
            self._pending.add_run(SharedKeyBatch(offsets, run.store_timestamp, topic_hash, key))
        else:
            self._pending.add(offsets, [run.store_timestamp] * count, [topic_hash] * count, run.properties)

    def build(self, limit: int = 64) -> bool:
        """Index up to `limit` messages in memory; return whether more remain.

        SHARED_KEY_BATCH_MIN messages of a batch with a shared key count as one. Recovery may enqueue messages
        again: those below the end of the index are skipped, and of the message at its end only missing keys
        are added. Raises OSError.
        """
        while limit > 0 and len(self._pending):
            messages = self._pending.take(limit, run_limit=limit * SHARED_KEY_BATCH_MIN)
            count = len(messages.physical_offsets)
            if isinstance(messages, SharedKeyBatch):
                self._build_run(messages)
                limit -= -(-count // SHARED_KEY_BATCH_MIN)
            else:
                self._build_each(messages)
                limit -= count
        return len(self._pending) > 0

    def _build_run(self, run: SharedKeyBatch) -> None:
        if run.physical_offsets[0] <= self.end_physical_offset:
            self._build_each(run.messages())
            return
        key_hash = java_hash_from(run.topic_hash, run.key.decode(errors="replace"))
        self._put(SameKeyRows(index_key_hash(key_hash), run.physical_offsets, run.timestamp))

    def _build_each(self, messages: BacklogColumns) -> None:
        offsets, end = messages.physical_offsets, self.end_physical_offset
        if offsets[0] <= end or not all(map(lt, offsets, offsets[1:])):
            messages = _ascending_from(messages, end)
        rows = _index_rows(messages)
        if rows.hashes:
            self._put(rows if rows.physical_offsets[0] != end else self._without_known(rows, end))

    def _without_known(self, rows: IndexRows, end: int) -> IndexRows:
        """Remove the keys that the index already has for the message at its end."""
        known = self._last_hashes()
        new = [row for row in zip(*rows, strict=True) if row[1] != end or row[0] not in known]
        return IndexRows(*([row[column] for row in new] for column in range(len(rows))))

    def _last_hashes(self) -> set[int]:
        """Return the key hashes of the last message in the index; they may span files."""
        hashes: set[int] = set()
        for file in reversed(self._files):
            for key_hash, physical_offset in file.newest_first():
                if physical_offset != self.end_physical_offset:
                    return hashes
                hashes.add(key_hash)
        return hashes

    def _put(self, rows: IndexRows | SameKeyRows) -> None:
        put = 0
        while put < len(rows.physical_offsets):
            if not self._files or self._files[-1].is_full:
                self._roll()
            put = self._files[-1].put(rows, put)

    def _roll(self) -> None:
        self._newest_name = file_name(self._clock.now_ms(), self._newest_name)
        path = self._directory / self._newest_name
        self._files = [*self._files, IndexFile.new(path, self._geometry, self._newest_header.successor())]

    # --- Background ---

    def flush(self) -> None:
        """Make all built items durable, oldest file first. Raises DiskFull, OSError."""
        with self._disk_lock:
            with self._lock:
                files = self._files
            for file in files:
                file.flush(self._disk, self._lock)

    @property
    def durable_offset(self) -> int:
        """Everything enqueued below this physical offset is durable; OFFSET_MAX if everything is.

        A caller that limits this by the end of its enqueued messages must read that end first.
        """
        with self._lock:
            volatile = [file.first_volatile_offset for file in self._files]
            volatile += (self._pending.first_offset, self.rebuild_from)
            return min((offset for offset in volatile if offset is not None), default=OFFSET_MAX)

    def delete_before(self, physical_offset: int) -> None:
        """Delete files, never the newest, whose records are no longer in the log. Raises OSError."""
        with self._disk_lock:
            with self._lock:
                kept = self._from(physical_offset)
                deleted = self._files[: len(self._files) - len(kept)]
                self._files = kept
            self._delete([file.path for file in deleted])

    def truncate(self, physical_offset: int) -> None:
        """Remove all keys of records from this physical offset on, durably. Raises DiskFull, OSError.

        Needed when the log ends before the index: later appends at these offsets must be indexed.
        """
        with self._disk_lock:
            with self._lock:
                self._pending.truncate(physical_offset)
                kept = [file for file in self._files if file.header.begin_physical_offset < physical_offset]
                deleted, self._files = self._files[len(kept) :], kept
            self._delete([file.path for file in deleted])
            with self._lock:
                if kept:
                    kept[-1].truncate(physical_offset)
                    if not kept[-1].is_full:
                        kept[-1].load_slots()
            self.flush()

    def finish_rebuild(self) -> None:
        """Delete the files set aside, after everything is rebuilt. Raises DiskFull, OSError."""
        assert not len(self._pending)
        with self._disk_lock:
            self.flush()
            self._delete(self._set_aside)
            self._set_aside = []
            self.rebuild_from = None

    def destroy(self) -> None:
        """Delete all files and pending messages; the index is then empty. Raises OSError."""
        with self._disk_lock:
            with self._lock:
                self._pending.clear()
                deleted, self._files = self._files, []
            self._delete([*(file.path for file in deleted), *self._set_aside])
            self._set_aside = []
            self.rebuild_from = None

    def _delete(self, paths: list[Path]) -> None:
        # Descriptors stay open until the last query releases them: a query keeps a consistent view.
        for path in paths:
            self._disk.delete(path)
        if paths and self._disk.exists(self._directory):
            self._disk.sync_directory(self._directory)

    # --- Any thread ---

    def query(self, topic: str, key: str, maximum: int, begin_ms: int, end_ms: int) -> IndexQueryResult:
        """Find records of the key stored in the window, both ends included, newest first. Raises OSError."""
        key_hash = key_hash_of(topic, key)
        return search_chains(self._chains(key_hash), key_hash, maximum, begin_ms, end_ms)

    def _chains(self, key_hash: int) -> Iterator[IndexChain]:
        with self._lock:
            files = self._files
        for file in reversed(files):
            with self._lock:
                chain = file.chain(key_hash)
            yield chain


def _index_rows(messages: BacklogColumns) -> IndexRows:
    """Return one row per key."""
    hashes = None
    if _unique_key_hashes is not None:
        hashes = _unique_key_hashes(messages.topic_hashes, messages.texts)
        if hashes is None:  # op messages of transactions have no keys
            messages = messages.chosen([n for n, text in enumerate(messages.texts) if text.find(_KEY) >= 0])
            hashes = _unique_key_hashes(messages.topic_hashes, messages.texts)
    if hashes is not None:
        return IndexRows(hashes, messages.physical_offsets, messages.timestamps)
    keys = key_rows(messages)
    return IndexRows(_key_hashes(keys), keys.physical_offsets, keys.timestamps)


def _key_hashes(keys: BacklogColumns) -> list[int]:
    prefixes, texts = keys.topic_hashes, keys.texts
    if len(set(texts)) == len(texts):
        return [abs(each) & _HASH_MASK for each in java_hashes_from(prefixes, texts)]
    # Messages of one batch may share keys.
    pairs = list(zip(prefixes, texts, strict=True))
    distinct = list(dict.fromkeys(pairs))
    hashes = java_hashes_from([prefix for prefix, _ in distinct], [text for _, text in distinct])
    by_pair = {pair: abs(each) & _HASH_MASK for pair, each in zip(distinct, hashes, strict=True)}
    return [by_pair[pair] for pair in pairs]


def _ascending_from(messages: BacklogColumns, end: int) -> BacklogColumns:
    """Return the messages at or behind `end` whose offsets ascend."""
    last, numbers = -1, []
    for number, physical_offset in enumerate(messages.physical_offsets):
        if physical_offset >= end and physical_offset > last:
            last = physical_offset
            numbers.append(number)
    return messages.chosen(numbers)


class IndexReader:
    """The index of a directory that another process, perhaps Apache's broker, may be writing. Reads only."""

    def __init__(self, disk: Disk, directory: Path, *, slots: int, items: int) -> None:
        self._disk = disk
        self._directory = directory
        self._geometry = IndexGeometry(slots, items)
        self._files: dict[str, IndexFile] = {}
        self.problems: list[str] = []
        """Problems found by the last `refresh`, one sentence each."""
        self.refresh()

    def refresh(self) -> list[IndexFile]:
        """Read the directory again; return the readable files, oldest first."""
        problems: list[str] = []
        files = {}
        for name in index_names(self._disk, self._directory, problems):
            try:
                file = self._files.get(name) or self._open(name)
                file.reload()
            except FileNotFoundError:
                continue  # deleted since the directory was listed
            except (BadStoreFile, OSError) as error:
                problems.append(str(error))
            else:
                files[name] = file
        self._files, self.problems = files, problems
        return list(files.values())

    def _open(self, name: str) -> IndexFile:
        return IndexFile.open(self._disk, self._directory / name, self._geometry, writable=False)

    def query(self, topic: str, key: str, maximum: int, begin_ms: int, end_ms: int) -> IndexQueryResult:
        """As `Index.query`, on the current files. Raises OSError."""
        key_hash = key_hash_of(topic, key)
        chains = (file.chain(key_hash) for file in reversed(self.refresh()))
        return search_chains(chains, key_hash, maximum, begin_ms, end_ms)


def search_chains(
    chains: Iterable[IndexChain], key_hash: int, maximum: int, begin_ms: int, end_ms: int
) -> IndexQueryResult:
    """Search the chains of one key, one per file, newest first."""
    found: set[int] = set()
    newest: IndexHeader | None = None
    for chain in chains:
        header = chain.header
        if header.next_item <= 1:
            continue
        newest = newest or header
        if header.overlaps(begin_ms, end_ms):
            chain.collect(key_hash, begin_ms, end_ms, found, maximum)
        if header.begin_timestamp < begin_ms or len(found) >= maximum:
            break
    if newest is None or not found:
        return IndexQueryResult([], 0, 0)
    return IndexQueryResult(sorted(found), newest.end_timestamp, newest.end_physical_offset)


def key_hash_of(topic: str, key: str) -> int:
    return index_key_hash(java_hash(f"{topic}#{key}"))


def index_names(disk: Disk, directory: Path, problems: list[str]) -> list[str]:
    """Return the names of index files, oldest first; other names are added to `problems`."""
    names = disk.files(directory)
    problems += [f"{directory / name} is not an index file name" for name in names if not is_name(name)]
    return [name for name in names if is_name(name)]


def is_name(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def file_name(now_ms: int, newest_name: str) -> str:
    """Return the local time as yyyyMMddHHmmssSSS, or the newest name plus 1 if that is not greater."""
    seconds, milliseconds = divmod(now_ms, 1000)
    name = f"{datetime.fromtimestamp(seconds):%Y%m%d%H%M%S}{milliseconds:03}"
    return name if name > newest_name else str(int(newest_name) + 1)
