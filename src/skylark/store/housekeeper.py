"""Background maintenance: writes consume queues, index and checkpoint, and deletes expired files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from skylark.clock import Clock
from skylark.errors import BadStoreFile, DiskFull, StoreFailed
from skylark.settings import StoreSettings
from skylark.store.checkpoint import Checkpoint, CheckpointFile, QueueManifest, extents_of, save_manifest
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.dispatch import Dispatcher
from skylark.store.flush import LogFlusher
from skylark.store.index import Index
from skylark.store.log_scan import LogWalk
from skylark.store.queue_table import PLAIN_DIRECTORY, QueueTable
from skylark.store.retention import (
    DiskFullFlag,
    DiskState,
    LogFile,
    ManualCleanup,
    UnreadFiles,
    delete_slowly,
    disk_state,
    files_to_delete,
    unread_of,
)

log = logging.getLogger(__name__)

SYNCED_QUEUES_MAX = 256
WRITE_ROUNDS = 20
"""More than SYNCED_QUEUES_MAX dirty queues are written over this many rounds: opening a file costs more than
writing one round's entries. Until then they stay in memory, 20 bytes per message. The index is written once
in as many rounds: the keys of many topics are spread over all of it."""
NEW_FILES_MAX = 128
"""Files of new queues created per round: a new file with its two directories costs twenty times a write to an
existing one, and a client may create 10,000 topics at once."""
NEW_TAIL_BYTES_MAX = 64 << 10
"""A new queue with more unwritten bytes gets its file at once, to save memory."""


class Housekeeper:
    """Flushes derived files and deletes expired ones. `flush` and `clean`: one thread at a time each."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: StoreSettings,
        commit_log: CommitLog,
        queues: QueueTable,
        index: Index | None,
        dispatcher: Dispatcher,
        flusher: LogFlusher,
        checkpoint_file: CheckpointFile,
        checkpoint: Checkpoint,
        lock: threading.Lock,
        needed_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`needed_from` returns the physical offset from which on an archive needs the log. Any thread."""
        self._disk = disk
        self._clock = clock
        self.settings = settings
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._checkpoint_file = checkpoint_file
        self.checkpoint = checkpoint
        if index is not None:
            # Recovery may have added keys.
            known = max(checkpoint.index_timestamp, index.durable_timestamp)
            self.checkpoint = replace(checkpoint, index_timestamp=known)
        self._lock = lock
        self._needed_from = needed_from
        self._flush_lock = threading.Lock()
        self._new: dict[ConsumeQueue, None] = {}  # dirty queues without a file
        self._unwritten: dict[ConsumeQueue, None] = {}
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._rounds = 0
        self._thorough_at = clock.monotonic() + settings.queue_flush_thorough_interval_ms / 1000
        self._clean_at = clock.monotonic() + settings.clean_first_delay_ms / 1000
        self._cleaned_to = commit_log.min_offset
        self.deleted: dict[str, int] = {}
        """End of the log when a topic was deleted, by topic."""
        self.generation = 0
        """Generation of the last saved manifest."""
        self.disk_full = DiskFullFlag()
        self.manual = ManualCleanup()
        self.unread = UnreadFiles()

    # Flushing

    def flush(self, *, thorough: bool = True) -> None:
        """Write consume queues and index, make them durable and save the checkpoint.

        If `thorough` is False and very many queues are dirty, it writes only a share, the longest waiting
        first, and makes nothing durable: an fsync for each queue would take longer than the interval. Does
        nothing after the log has failed. Raises OSError, DiskFull, StoreFailed.
        """
        if self._flusher.failure is not None:
            return
        with self._flush_lock:
            # Positions first: this flush does not cover entries that are published while it runs.
            with self._lock:
                dispatched = self._dispatcher.complete_up_to
                timestamp = self._dispatcher.dispatched_timestamp
            due = thorough or self._clock.monotonic() >= self._thorough_at
            is_complete = self._write_queues(everything=due)
            syncs = due or (is_complete and len(self._unsynced) <= SYNCED_QUEUES_MAX)
            self._rounds += 1
            if self._index is not None and (syncs or self._rounds % WRITE_ROUNDS == 0):
                self._flush_index(self._index)
                dispatched = min(dispatched, self._index.durable_offset)
            if syncs:
                # Recovery relies on this order: a durable entry has a durable record, and below the durable
                # offset nothing is missing.
                if self._dispatcher.dispatched > self._flusher.flushed:
                    self._flusher.flush()
                self._sync_queues()
                self._save_checkpoint(min(dispatched, self._flusher.flushed), timestamp)
            if due:
                self._save_manifest()
                interval_s = self.settings.queue_flush_thorough_interval_ms / 1000
                self._thorough_at = self._clock.monotonic() + interval_s

    def flush_quietly(self) -> None:
        """Flush in the background: errors are logged, and the next round tries again."""
        try:
            self.flush(thorough=False)
        except (DiskFull, OSError, StoreFailed) as error:
            log.warning("cannot write consume queues or index: %s", error)

    def _write_queues(self, *, everything: bool) -> bool:
        """Write dirty queues, all or a share; return whether all were written."""
        dirty, new = self._dispatcher.dirty, self._new
        count = len(dirty)
        everything = everything or count + len(new) <= SYNCED_QUEUES_MAX
        taken = count if everything else min(count, max(SYNCED_QUEUES_MAX, count // WRITE_ROUNDS))
        for _ in range(taken):
            queue = dirty.popleft()
            if queue.file_starts:
                self._take(queue)
            else:
                new[queue] = None
        for number, queue in enumerate(list(new)):
            if everything or number < NEW_FILES_MAX or len(queue.tail) > NEW_TAIL_BYTES_MAX:
                del new[queue]
                self._take(queue)
        self._write_taken()
        return taken == count and not new

    def _write_taken(self) -> None:
        """Write the taken queues. The first error is raised after all were tried."""
        failure: OSError | None = None
        for queue in list(self._unwritten):
            try:
                queue.write()
            except OSError as error:
                failure = failure or error
            else:
                del self._unwritten[queue]
                self._unsynced[queue] = None
        if failure is not None:
            raise failure

    def _take(self, queue: ConsumeQueue) -> None:
        """Take a queue for writing; entries published from now on make it dirty again."""
        queue.dirty = False
        self._unwritten[queue] = None

    def _sync_queues(self) -> None:
        for queue in list(self._unsynced):
            queue.sync()
            del self._unsynced[queue]

    def _save_checkpoint(self, durable_offset: int, timestamp: int) -> None:
        before = self.checkpoint
        self.checkpoint = replace(
            before,
            physic_timestamp=max(before.physic_timestamp, self._flusher.flushed_timestamp),
            logics_timestamp=max(before.logics_timestamp, timestamp),
            durable_offset=max(durable_offset, self._log.min_offset),
        )
        self._checkpoint_file.save(self.checkpoint)

    def _flush_index(self, index: Index) -> None:
        """Flush the index, with its end in the checkpoint only while its files are whole.

        After a crash RocketMQ deletes index files that end after that time: a file that is half written.
        """
        if not index.is_dirty:
            return
        self._save_index_timestamp(index.sealed_timestamp)
        index.flush()
        self._save_index_timestamp(index.durable_timestamp)

    def _save_index_timestamp(self, timestamp: int) -> None:
        self.checkpoint = replace(self.checkpoint, index_timestamp=timestamp)
        self._checkpoint_file.save(self.checkpoint)

    def _save_manifest(self, upto: int | None = None) -> None:
        """Save what is durable; before files are deleted or truncated, only what will remain.

        `upto` is where the log is about to be truncated.
        """
        minimum = self._log.min_offset
        deleted = {topic: end for topic, end in self.deleted.items() if end > minimum}
        index_end, index_files = -1, list[str]()
        if self._index is not None and upto is None:
            index_end, index_files = self._index.last_physical_offset, self._index.names_from(minimum)
        extents = extents_of(list(self._queues.values()), upto)
        if upto is not None:
            deleted = {topic: min(end, upto) for topic, end in deleted.items()}
        self.generation += 1
        self.deleted = deleted
        durable_offset = self.checkpoint.durable_offset
        manifest = QueueManifest(
            extents,
            index_end,
            index_files,
            deleted,
            self.generation,
            -1 if durable_offset is None else durable_offset,
        )
        save_manifest(self._disk, self.settings.path, manifest)

    def cut(self, physical_offset: int) -> None:
        """Truncate log, queues and index at a record's start, durably. Raises OSError, DiskFull."""
        with self._flush_lock:
            # First reduce these offsets: a crash must never trust data that is truncated.
            self.checkpoint = replace(
                self.checkpoint,
                durable_offset=min(self.checkpoint.durable_offset or 0, physical_offset),
                confirm_physical_offset=min(self.checkpoint.confirm_physical_offset, physical_offset),
            )
            self._checkpoint_file.save(self.checkpoint)
            self._save_manifest(physical_offset)
            with self._flusher.lock, self._lock:
                self._log.truncate(physical_offset)
                self._flusher.flushed = min(self._flusher.flushed, physical_offset)
                self._dispatcher.dispatched = min(self._dispatcher.dispatched, physical_offset)
            for queue in list(self._queues.values()):
                queue.truncate(physical_offset)
                queue.next_offset = queue.max_offset
                queue.correct_min_offset(self._log.min_offset)
                queue.sync()
            if self._index is not None:
                self._index.truncate(physical_offset)
        self.flush()

    def delete_topic(self, topic: str) -> None:
        """Delete a topic's queues; its records stay in the log until they expire. Waits for the disk.

        Raises ValueError for an invalid topic name, DiskFull, OSError.
        """
        # Queue files are created under the flush lock, too: none is created before the old ones are deleted.
        with self._flush_lock:
            with self._lock:
                self._queues.forget_topic(topic)
                self._dispatcher.forget_topic(topic)
                # Its records are still in the log: recovery must not restore them.
                self.deleted[topic] = self._log.appended
            self._forget_queues(topic)
            # The manifest first: after a crash it identifies the remaining files as deleted.
            self._save_manifest()
            self._queues.delete_files(topic)

    def _forget_queues(self, topic: str) -> None:
        for queues in (self._new, self._unwritten, self._unsynced):
            for queue in [queue for queue in queues if queue.topic == topic]:
                del queues[queue]

    def make_batched(self, topic: str) -> None:
        """Replace the plain queues of a topic by batch consume queues, built from the log.

        A replica may get a topic's first messages before its attributes. Appends wait while the log is read
        from the first of them on. Raises OSError, DiskFull.
        """
        with self._flush_lock:
            plain = [queue for queue in self._queues.of_topic(topic) if not queue.is_batched]
            firsts = [queue.entry(queue.first_with_record) for queue in plain if queue.max_offset]
            start = min((first[0] for first in firsts if first is not None), default=self._log.appended)
            self._forget_queues(topic)
            with self._lock:
                start = min(start, self._dispatcher.unplaced_batches.get(topic, start))
                self._queues.forget_topic(topic)
                self._dispatcher.forget_topic(topic)
                self._queues.batch_topics.add(topic)
                for record in LogWalk(self._log, start, end=self._dispatcher.dispatched):
                    if record.topic == topic.encode():
                        placed = self._dispatcher.place(record)
                        if self._dispatcher.has_entry(placed):
                            self._dispatcher.add_entry(placed)
            self._save_manifest()
            self._queues.delete_files(topic, PLAIN_DIRECTORY)
        log.warning("plain queues replaced by batch consume queues topic=%s physical_offset=%d", topic, start)

    # Cleaning

    def clean_at_once(self) -> None:
        """Make the next round of the cleaning thread due now. Any thread."""
        self._clean_at = self._clock.monotonic()

    def clean_step(self) -> float:
        """Run a round of the cleaning thread; return the seconds until the next."""
        wait_s = self._clean_at - self._clock.monotonic()
        if wait_s > 0:
            return wait_s
        self._clean_at = self._clock.monotonic() + self.settings.clean_interval_ms / 1000
        try:
            self.clean()
        except (DiskFull, OSError) as error:
            log.warning("cannot delete expired files: %s", error)
        return self.settings.clean_interval_ms / 1000

    def clean(self) -> list[int]:
        """Delete expired files once; return the starts of the deleted log files."""
        state = self._disk_state()
        self.disk_full.update(state)
        files = [
            LogFile(start, self._modified_ms(start))
            for start in list(self._log.files.starts)
            if start <= self._log.appended
        ]
        starts = files_to_delete(
            files,
            now_ms=self._clock.now_ms(),
            state=state,
            manual=self.manual.take(),
            settings=self.settings,
        )
        unread = unread_of(starts, self._log.file_bytes, self._needed_from() if starts else None)
        starts = self.unread.decide(starts, unread, state)
        if starts:
            self._vouch_for(max(starts) + self._log.file_bytes)
        delete_slowly(starts, self._delete_log_file, self.settings.delete_pause_ms / 1000)
        self.clean_derived()
        return starts

    def _modified_ms(self, start: int) -> int:
        try:
            return self._disk.modified_ms(self._log.files.path(start))
        except FileNotFoundError:
            return 0  # deleted by another process: only drop it from the list

    def _vouch_for(self, end: int) -> None:
        """Make derived files durable for the log below `end`: without the log they cannot be rebuilt."""
        durable_offset = self.checkpoint.durable_offset
        if durable_offset is not None and durable_offset >= end:
            return
        try:
            self.flush()
        except (DiskFull, OSError, StoreFailed) as error:  # a full disk needs the deletion even so
            log.warning("cannot write consume queues or index before files are deleted: %s", error)

    def _disk_state(self) -> DiskState:
        # The log may be on its own disk.
        paths = {self.settings.path, self.settings.commit_log_directory}
        try:
            used = max(self._disk.used_ratio(path) for path in paths if self._disk.exists(path))
            return disk_state(used, self.settings)
        except OSError as error:
            log.warning("cannot read disk usage of %s: %s", self.settings.path, error)
            return DiskState.CLEAN

    def _delete_log_file(self, start: int) -> None:
        # Not under the lock: appends would wait for the disk.
        self._disk.delete(self._log.files.path(start))
        with self._lock:
            file = self._log.delete_file(start)
        del file  # outside of the lock: closing the last reference frees the blocks, which is slow
        self._disk.sync_directory(self._log.files.directory)
        log.info("commit log file deleted physical_offset=%d", start)

    def clean_derived(self) -> None:
        """Move the minimum of consume queues and index to the log's minimum."""
        minimum = self._log.min_offset
        if minimum <= self._cleaned_to:
            return
        with self._flush_lock:
            expired = {queue: self._expired_of(queue, minimum) for queue in list(self._queues.values())}
            # The manifest first: after a crash in between, recovery must not report these files as lost.
            self._save_manifest()
        for queue, starts in expired.items():
            with self._flush_lock:
                if starts and self._queues.get((queue.topic, queue.queue_id)) is queue:
                    queue.delete_files(starts)
        if self._index is not None:
            self._index.delete_before(minimum)
        self._cleaned_to = minimum

    def _expired_of(self, queue: ConsumeQueue, minimum: int) -> list[int]:
        """Return the expired files of a queue; none, with a warning, if the queue cannot be read."""
        try:
            return queue.forget_expired(minimum)
        except (BadStoreFile, OSError) as error:
            log.warning(
                "cannot expire consume queue topic=%s queue=%d: %s", queue.topic, queue.queue_id, error
            )
            return []
