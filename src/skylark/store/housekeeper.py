"""Background maintenance: writes consume queues, index and checkpoint, and deletes expired files."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from skylark.clock import Clock
from skylark.errors import BadStoreFile, DiskFull, StoreFailed
from skylark.settings import StoreSettings
from skylark.store.checkpoint import Checkpoint, CheckpointFile
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue, QueueTable
from skylark.store.disk import Disk
from skylark.store.dispatch import Dispatcher
from skylark.store.flush import LogFlusher
from skylark.store.index import Index
from skylark.store.queue_manifest import QueueManifest, extents_of, save_manifest
from skylark.store.retention import (
    DiskFullFlag,
    DiskState,
    LogFile,
    ManualCleanup,
    delete_slowly,
    disk_state,
    files_to_delete,
)

log = logging.getLogger(__name__)

SYNCED_QUEUES_MAX = 256
WRITE_ROUNDS = 20
"""More dirty queues than that are written over so many rounds: opening a file costs more than what one round
has to write into it. Meanwhile they are in memory, 20 bytes for a message. The index is written once in as
many: the keys of many topics lie all over it."""
NEW_FILES_MAX = 128
"""Files of new queues that one round makes: with its two directories a file costs twenty times what it costs
to write into one that is there, and whoever makes 10,000 topics sends to them at once."""
NEW_TAIL_BYTES_MAX = 64 << 10
"""A new queue that has more to write does not wait for its file: it would take memory."""


class Housekeeper:
    """The slow, regular work. `flush` and `clean` each belong to one thread at a time."""

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
    ) -> None:
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
        self._lock = lock
        self._flush_lock = threading.Lock()
        self._new: dict[ConsumeQueue, None] = {}  # dirty, and without a file
        self._unwritten: dict[ConsumeQueue, None] = {}
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._rounds = 0
        self._thorough_at = clock.monotonic() + settings.queue_flush_thorough_interval_ms / 1000
        self._clean_at = clock.monotonic() + settings.clean_first_delay_ms / 1000
        self._cleaned_to = commit_log.min_offset
        self.deleted: dict[str, int] = {}
        """By topic: where the log stood when it was deleted."""
        self.generation = 0
        """Of the manifest that was saved last."""
        self.disk_full = DiskFullFlag()
        self.manual = ManualCleanup()

    # Flushing

    def flush(self, *, thorough: bool = True) -> None:
        """Write consume queues and index, make them durable and say so in the checkpoint.

        Not thorough, while very many queues are dirty, it writes a share of them, those first that wait
        longest, and makes nothing durable: an fsync for each, every second, would take longer than the
        second. Raises OSError, DiskFull, StoreFailed. Does nothing once the log has failed: what comes
        after that is not vouched for.
        """
        if self._flusher.failure is not None:
            return
        with self._flush_lock:
            # Positions first: what is published while this runs is not covered by it.
            with self._lock:
                dispatched = self._dispatcher.dispatched
                timestamp = self._dispatcher.dispatched_timestamp
            due = thorough or self._clock.monotonic() >= self._thorough_at
            is_complete = self._write_queues(everything=due)
            syncs = due or (is_complete and len(self._unsynced) <= SYNCED_QUEUES_MAX)
            self._rounds += 1
            if self._index is not None and (syncs or self._rounds % WRITE_ROUNDS == 0):
                self._index.flush()
                dispatched = min(dispatched, self._index.durable_offset)
            if syncs:
                # Recovery relies on the order: a durable unit has a durable record, and below the durable
                # offset nothing is missing anywhere.
                if self._dispatcher.dispatched > self._flusher.flushed:
                    self._flusher.flush()
                self._sync_queues()
                self._save_checkpoint(min(dispatched, self._flusher.flushed), timestamp)
            if due:
                self._save_manifest()
                interval_s = self.settings.queue_flush_thorough_interval_ms / 1000
                self._thorough_at = self._clock.monotonic() + interval_s

    def flush_quietly(self) -> None:
        """For the background: a full disk or a read-only one is reported, the next round tries again."""
        try:
            self.flush(thorough=False)
        except (DiskFull, OSError, StoreFailed) as error:
            log.warning("consume queues or index could not be written: %s", error)

    def _write_queues(self, *, everything: bool) -> bool:
        """Write dirty queues, all of them or a share; returns whether none was left out."""
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
        """Write the queues that were taken, now or earlier. One that fails is told of when all were tried."""
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
        """Have a queue written; what is published from now on makes it dirty again."""
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
            index_timestamp=self._index.full_timestamp if self._index is not None else 0,
            durable_offset=max(durable_offset, self._log.min_offset),
        )
        self._checkpoint_file.save(self.checkpoint)

    def _save_manifest(self, upto: int | None = None) -> None:
        """Tell what is durable; before files are deleted or cut, only what then remains of it.

        `upto` is where the log is about to be cut.
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
        """Cut log, queues and index at a record's start, durably. Raises OSError, DiskFull."""
        with self._flush_lock:
            # Vouch for nothing from there on before it is cut: a crash must never trust what is gone.
            durable_offset = min(self.checkpoint.durable_offset or 0, physical_offset)
            self.checkpoint = replace(self.checkpoint, durable_offset=durable_offset)
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
        """Remove a topic's queues; its records stay in the log until they expire. Waits for the disk.

        Raises ValueError for what can be no topic, DiskFull, OSError.
        """
        # Files of queues are made under the flush lock, too: nobody makes new ones before the old are gone.
        with self._flush_lock:
            with self._lock:
                self._queues.forget_topic(topic)
                self._dispatcher.forget_topic(topic)
                # Its records are still in the log: recovery must not bring them back.
                self.deleted[topic] = self._log.appended
            for queues in (self._new, self._unwritten, self._unsynced):
                for queue in [queue for queue in queues if queue.topic == topic]:
                    del queues[queue]
            # First the word that it is gone: what a crash leaves of its files is then known for what it is.
            self._save_manifest()
            self._queues.delete_files(topic)

    # Cleaning

    def clean_at_once(self) -> None:
        """Let the next round of the cleaning thread begin as soon as it is woken. Any thread."""
        self._clean_at = self._clock.monotonic()

    def clean_step(self) -> float:
        """A round of the cleaning thread; returns the seconds until the next."""
        wait_s = self._clean_at - self._clock.monotonic()
        if wait_s > 0:
            return wait_s
        self._clean_at = self._clock.monotonic() + self.settings.clean_interval_ms / 1000
        try:
            self.clean()
        except (DiskFull, OSError) as error:
            log.warning("cleaning failed: %s", error)
        return self.settings.clean_interval_ms / 1000

    def clean(self) -> list[int]:
        """Look at disk and ages once and delete what may go; returns the starts of deleted log files."""
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
        if starts:
            self._vouch_for(max(starts) + self._log.file_bytes)
        delete_slowly(starts, self._delete_log_file, self.settings.delete_pause_ms / 1000)
        self.clean_derived()
        return starts

    def _modified_ms(self, start: int) -> int:
        try:
            return self._disk.modified_ms(self._log.files.path(start))
        except FileNotFoundError:
            return 0  # somebody else deleted it: it is only to be forgotten

    def _vouch_for(self, end: int) -> None:
        """Make durable what was derived from the log below `end`, which could not be made anew without it."""
        durable_offset = self.checkpoint.durable_offset
        if durable_offset is not None and durable_offset >= end:
            return
        try:
            self.flush()
        except (DiskFull, OSError, StoreFailed) as error:  # a full disk must get its room all the same
            log.warning("consume queues or index could not be written before cleaning: %s", error)

    def _disk_state(self) -> DiskState:
        # The log may lie on a disk of its own.
        paths = {self.settings.path, self.settings.commit_log_directory}
        try:
            used = max(self._disk.used_ratio(path) for path in paths if self._disk.exists(path))
            return disk_state(used, self.settings)
        except OSError as error:
            log.warning("disk use of %s is not known: %s", self.settings.path, error)
            return DiskState.CLEAN

    def _delete_log_file(self, start: int) -> None:
        # Not under the lock: whoever appends would wait for the disk.
        self._disk.delete(self._log.files.path(start))
        with self._lock:
            file = self._log.delete_file(start)
        del file  # the last to hold its blocks, if nobody reads it: to free them takes long, too
        self._disk.sync_directory(self._log.files.directory)
        log.info("commit log file deleted physical_offset=%d", start)

    def clean_derived(self) -> None:
        """Let consume queues and index follow the log's minimum."""
        minimum = self._log.min_offset
        if minimum <= self._cleaned_to:
            return
        with self._flush_lock:
            expired = {queue: self._expired_of(queue, minimum) for queue in list(self._queues.values())}
            # First the word that they are not needed, or a crash in the middle would miss them.
            self._save_manifest()
        for queue, starts in expired.items():
            with self._flush_lock:
                if starts and self._queues.get((queue.topic, queue.queue_id)) is queue:
                    queue.delete_files(starts)
        if self._index is not None:
            self._index.delete_before(minimum)
        self._cleaned_to = minimum

    def _expired_of(self, queue: ConsumeQueue, minimum: int) -> list[int]:
        """Which files of a queue may be deleted; one that cannot be read does not hold up the others."""
        try:
            return queue.forget_expired(minimum)
        except (BadStoreFile, OSError) as error:
            log.warning("consume queue not cleaned topic=%s queue=%d: %s", queue.topic, queue.queue_id, error)
            return []
