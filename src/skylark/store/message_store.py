"""MessageStore: appends, reads, queries and offsets of one store directory, and the raw log for replicas."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from skylark.clock import Clock, SystemClock
from skylark.errors import DiskFull, StoreClosed, StoreFailed, UnsupportedStore
from skylark.model.message import PutMessage, StoredMessage
from skylark.model.message_id import parse_offset_message_id
from skylark.model.record import decode
from skylark.settings import StoreSettings
from skylark.store.append_result import (
    AppendedBatch,
    AppendedRecord,
    LaidOut,
    LayOut,
    PutResult,
    PutStatus,
    Refused,
)
from skylark.store.batch_encoder import ClientBatch
from skylark.store.checkpoint import Checkpoint, CheckpointFile, QueueManifest
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk, RealDisk
from skylark.store.dispatch import Arrival, Dispatcher
from skylark.store.flush import BackgroundThread, FlushAnswer, FlushWaiters, LogFlusher
from skylark.store.housekeeper import Housekeeper
from skylark.store.index import Index
from skylark.store.log_reader import GetResult, GetStatus, LogReader
from skylark.store.page_cache import PageCache
from skylark.store.queue_table import QueueTable
from skylark.store.recovery import Recovery, RecoveryReport
from skylark.store.tail_reader import RecordFilter, TagsFilter
from skylark.store.unsupported_files import ROCKSDB_STORE, ROCKSDB_WAY_OUT, holds_rocksdb_data

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
INDEX_PENDING_MAX = 8192
INDEX_SLICE = 64
LOOPBACK_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
"""127.0.0.1:10911"""


class MessageStore:
    """A store directory, opened for writing by one process.

    Appends may come from any thread, one at a time (the broker: its loop); reads from any thread. `open`
    recovers; `start` starts the background threads. Without them the owner flushes with `flush_log` and
    `housekeeper.flush`.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        store_host: bytes = LOOPBACK_HOST,
        on_arrival: Arrival | None = None,
    ) -> None:
        self.settings = settings
        self._disk: Disk = disk or RealDisk()
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self.on_arrival = on_arrival
        self.log = CommitLog(self._disk, settings, store_host)
        self.queues = QueueTable(self._disk, settings.path, settings, self._lock)
        self.reader = LogReader(self.log, settings, PageCache(self.log, self._clock))
        self.flusher = LogFlusher(self.log, settings, self._clock)
        self.waiters = FlushWaiters()
        self.on_flushed: Callable[[], None] = self.advance
        """Called by the flush thread after each flush; a broker replaces it with a call on its loop."""
        self.on_appended: Callable[[], None] | None = None
        """Called after each append: replication follows the log."""
        self.replica_bound: int | None = None
        """Physical offset that replicas have reached, if readers must wait for replicas."""
        self.needed_from: Callable[[], int | None] = lambda: None
        """Physical offset from which on an archive needs the log, None for none; replaced before `open`."""
        self.is_replica = False
        """Whether the store accepts no messages: it follows another log, or another master may exist."""
        self._abort_path = settings.path / "abort"
        self._checkpoint_file = CheckpointFile(self._disk, settings.path / "checkpoint")
        self._services: list[BackgroundThread] = []
        self._flush_service: BackgroundThread | None = None
        self._clean_service: BackgroundThread | None = None
        self._file_locks = ExitStack()
        self._sync_flush = settings.syncs_every_put
        self._raw_end = 0
        """End of the bytes from `append_raw`: they are published from the log, not by the append."""
        self._unannounced: list[Sequence[AppendedRecord]] = []
        """Published batches that `on_arrival` has not received yet."""
        self._closed = True
        self.report = RecoveryReport()

    # Opening and closing

    def open(self) -> RecoveryReport:
        """Lock the directory and recover it. Raises StoreLocked, UnsupportedStore, BadStoreFile, OSError."""
        settings, disk = self.settings, self._disk
        if holds_rocksdb_data(disk, settings.path):
            raise UnsupportedStore(settings.path, f"{ROCKSDB_STORE} has {ROCKSDB_WAY_OUT}")
        self._file_locks.callback(disk.lock(settings.path / "lock").release)
        try:
            # The log may be in another directory, which the settings of another store may name, too.
            self._file_locks.callback(disk.lock_directory(settings.commit_log_directory).release)
            clean_exit = not disk.exists(self._abort_path)
            self._mark_running()
            self.index = self._open_index(clean_exit)
            self._dispatcher = Dispatcher(self.log, self.queues, self.index)
            recovery = Recovery(
                disk, settings, self.log, self.queues, self.index, self._dispatcher, self._checkpoint_file
            )
            self.report = recovery.run(clean_exit=clean_exit)
            self._begin_serving(recovery.checkpoint, recovery.manifest)
        except BaseException:
            self._file_locks.close()
            raise
        self._closed = False
        return self.report

    def _mark_running(self) -> None:
        """Make the marker durable before any change: a crash from here on causes a full recovery."""
        text = str(os.getpid()).encode()
        marker = self._disk.create(self._abort_path, len(text))
        marker.write([text], 0)
        marker.sync()
        marker.close()
        self._disk.sync_directory(self.settings.path)

    def _open_index(self, clean_exit: bool) -> Index | None:
        if not self.settings.index_enabled:
            return None
        return Index.open(
            self._disk,
            self.settings.path / "index",
            slots=self.settings.index_slots,
            items=self.settings.index_items,
            clock=self._clock,
            lock=self._lock,
            clean=clean_exit,
        )

    def _begin_serving(self, checkpoint: Checkpoint, manifest: QueueManifest) -> None:
        report = self.report
        self.log.last_timestamp = max(report.last_timestamp, checkpoint.logics_timestamp)
        # Includes records that are never delivered: the next start may find no other record to read it from.
        self._dispatcher.dispatched_timestamp = self.log.last_timestamp
        self.log.unsynced_names = bool(self.log.files.starts)
        # Recovered data in the page cache must be durable before new appends are acknowledged.
        self.log.sync(min(report.scanned_from, max(self.log.appended - 1, 0)), self.log.appended)
        self.flusher.flushed = self.log.appended
        self.reader.hot.written_from = self.log.appended
        if report.last_record >= 0:
            checkpoint = replace(checkpoint, confirm_physical_offset=report.last_record)
        self.housekeeper = Housekeeper(
            self._disk, self._clock, self.settings, self.log, self.queues, self.index, self._dispatcher,
            self.flusher, self._checkpoint_file, checkpoint, self._lock, self.needed_from,
        )  # fmt: skip
        # After a power loss cut the log's end, new records are placed below the old end.
        ends = {topic: min(end, self.log.appended) for topic, end in manifest.deleted.items()}
        self.housekeeper.deleted = ends
        self.housekeeper.generation = manifest.generation
        self.housekeeper.flush()

    def start(self) -> None:
        """Start the background threads: log flush, housekeeping, allocation, cleaning."""
        settings = self.settings
        self._flush_service = BackgroundThread("skylark-flush", self._flush_step)
        self._clean_service = BackgroundThread("skylark-clean", self.housekeeper.clean_step)
        self._services = [
            self._flush_service,
            BackgroundThread("skylark-queues", self._queues_step),
            BackgroundThread("skylark-allocate", self._allocate_step),
            self._clean_service,
        ]
        for service in self._services:
            service.start()
        log.info("store started path=%s physical_offset=%d", settings.path, self.log.appended)

    def close(self) -> None:
        """Stop the threads, flush everything and mark the exit as clean. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        stopped = [service.stop(STOP_TIMEOUT_S) for service in self._services]
        self._services = []
        try:
            if all(stopped) and self.flusher.failure is None:
                self._close_cleanly()
        finally:
            self.waiters.failed()
            self._file_locks.close()

    def apply(self, settings: StoreSettings) -> None:
        """Replace the settings; only live settings may differ. Any thread."""
        for part in (self, self.reader, self.flusher, self.housekeeper):
            part.settings = settings

    def clean_soon(self) -> None:
        """Wake the cleaning thread."""
        self.housekeeper.clean_at_once()
        if self._clean_service is not None:
            self._clean_service.wake()

    def _close_cleanly(self) -> None:
        self.flusher.flush()
        self.advance()
        self.build_index()
        self.housekeeper.flush()
        self.log.drop_ready_file()
        self._disk.delete(self._abort_path)
        self._disk.sync_directory(self.settings.path)

    def _flush_step(self) -> float:
        # Under sync flush each append wakes this thread; the pause only bounds the cost of a lost wake-up.
        try:
            if self.settings.syncs_every_put:
                # Also after a slow append that stored nothing: otherwise sends would be refused forever.
                is_flushed = self.log.appended > self.flusher.flushed or self.flusher.slow_append
                if is_flushed:
                    self.flusher.flush()
            else:
                is_flushed = self.flusher.flush_if_due()
        except StoreFailed:
            is_flushed = len(self.waiters) > 0  # nothing was flushed, but the waiters must be answered
        if is_flushed:
            self.on_flushed()
        return self.settings.flush_interval_ms / 1000

    def _queues_step(self) -> float:
        self.build_index()
        self.housekeeper.flush_quietly()
        return self.settings.queue_flush_interval_ms / 1000

    def _allocate_step(self) -> float:
        try:
            self.log.prepare_next()
        except (DiskFull, OSError) as error:
            log.warning("cannot preallocate the commit log: %s", error)
        return 0.1

    # Positions

    @property
    def appended_offset(self) -> int:
        return self.log.appended

    @property
    def flushed_offset(self) -> int:
        return self.flusher.flushed

    @property
    def confirmed_offset(self) -> int:
        """End of the records that readers, long polls and maximum offsets may see."""
        stored = self.flusher.flushed if self.settings.syncs_every_put else self.log.appended
        return stored if self.replica_bound is None else min(stored, self.replica_bound)

    @property
    def durable_offset(self) -> int:
        """End of the records that survive a crash; on replicas, too, if readers wait for replicas."""
        return (
            self.flusher.flushed
            if self.replica_bound is None
            else min(self.flusher.flushed, self.replica_bound)
        )

    # Writing

    def refusal(self) -> Refused | None:
        """Return why appends are refused now, or None."""
        if self._closed:
            return Refused(PutStatus.SERVICE_NOT_AVAILABLE, str(StoreClosed(self.settings.path)))
        if self.flusher.failure is not None:
            return Refused(PutStatus.SERVICE_NOT_AVAILABLE, str(self.flusher.failure))
        if self.housekeeper.disk_full.is_set:
            return Refused(PutStatus.SERVICE_NOT_AVAILABLE, f"disk of {self.settings.path} is too full")
        unflushed = self.log.appended - self.flusher.flushed
        if unflushed > self.settings.unflushed_bytes_max or self.flusher.slow_append:
            return Refused(PutStatus.OS_PAGE_CACHE_BUSY, f"{unflushed} bytes are not flushed; retry later")
        return None

    def append(
        self, messages: Sequence[PutMessage], *, announce_later: bool = False, together: bool = False
    ) -> Sequence[PutResult]:
        """Append messages with one write; results in order. Does not wait for the disk: see `when_flushed`.

        With `announce_later` the caller calls `announce` after it has sent its replies. With `together` no
        message is stored without those before it; a crash or a full disk may still leave only the first ones.
        """
        refused = self._append_refusal()
        if refused is not None:
            return [refused] * len(messages)
        started = self._clock.monotonic()
        with self._lock:
            try:
                results = self.log.append(messages, self.queues, self._clock.now_ms(), together=together)
            except OSError as error:
                return [self._append_failed(error)] * len(messages)
            appended = [each for each in results if type(each) is AppendedRecord]
            if appended:
                self._accept(appended)
        self._check_append_time(started)
        if not announce_later:
            self.announce()
        return results

    def append_laid_out(self, lay_out: LayOut) -> LaidOut | None:
        """Append messages that are encoded while the store is locked. The caller calls `announce` afterwards.

        None if nothing was appended: `lay_out` made nothing, or the store refuses appends now, for a reason
        that `append` returns.
        """
        if self._append_refusal() is not None:
            return None
        started = self._clock.monotonic()
        with self._lock:
            try:
                laid_out = self.log.append_laid_out(lay_out, self._clock.now_ms())
            except DiskFull:
                return None
            except OSError as error:
                self._append_failed(error)
                return None
            for each in laid_out.results if laid_out is not None else ():
                self._accept(each)
        self._check_append_time(started)
        return laid_out

    def append_batches(
        self, batches: Sequence[ClientBatch], *, announce_later: bool = False
    ) -> list[AppendedBatch | list[Refused]]:
        """Append clients' batches with one write; results in order, `announce_later` as in `append`.

        Each batch is stored completely or not at all; a refused batch has one result, its refusal.
        """
        refused = self._append_refusal()
        if refused is not None:
            return [[refused] for _ in batches]
        started = self._clock.monotonic()
        with self._lock:
            try:
                results = self.log.append_batches(batches, self.queues, self._clock.now_ms())
            except OSError as error:
                refused = self._append_failed(error)
                return [[refused] for _ in batches]
            for each in results:
                if isinstance(each, AppendedBatch):
                    self._accept(each)
        self._check_append_time(started)
        if not announce_later:
            self.announce()
        return results

    def announce(self) -> None:
        """Report visible records to `on_arrival` and wake replication and the flush thread. Any thread."""
        self.announce_arrivals()
        if self.on_appended is not None:
            self.on_appended()
        if self._sync_flush and self._flush_service is not None:
            self._flush_service.wake()

    def announce_arrivals(self) -> None:
        """Report visible records to `on_arrival`. Any thread."""
        with self._lock:
            batches, self._unannounced = self._unannounced, []
        if self.on_arrival is not None:
            for batch in batches:
                self.on_arrival(batch)

    def _append_refusal(self) -> Refused | None:
        if self.is_replica:
            return Refused(PutStatus.SERVICE_NOT_AVAILABLE, "this is a slave; send to the master")
        return self.refusal()

    def _append_failed(self, error: OSError) -> Refused:
        self.flusher.failure = StoreFailed(self.settings.path, f"write to the commit log failed: {error}")
        log.critical("append failed physical_offset=%d error=%s", self.log.appended, error)
        return Refused(PutStatus.SERVICE_NOT_AVAILABLE, str(self.flusher.failure))

    def _check_append_time(self, started: float) -> None:
        elapsed_ms = (self._clock.monotonic() - started) * 1000
        if elapsed_ms > self.settings.append_slow_ms:
            log.warning("append took %d ms bytes=%d", elapsed_ms, self.log.appended - self.flusher.flushed)
            self.flusher.slow_append = True

    def _accept(self, batch: Sequence[AppendedRecord]) -> None:
        """Publish an appended batch, or stage it until it is confirmed. Under the lock."""
        if self._sync_flush or self.replica_bound is not None:
            self._dispatcher.stage(batch)
            return
        self._dispatcher.publish(batch)
        self._unannounced.append(batch)
        if self.index is not None and self.index.pending_count > INDEX_PENDING_MAX:
            # Somewhat more than was added: the backlog stays bounded and no send waits for all of it.
            self.index.build(2 * len(batch))

    def publish(self) -> None:
        """Make confirmed records visible; `announce_arrivals` reports them. Any thread."""
        with self._lock:
            confirmed = self.confirmed_offset
            if self._dispatcher.dispatched < self._raw_end:
                self._unannounced += self._dispatcher.follow_log(min(confirmed, self._raw_end))
            self._unannounced += filter(None, self._dispatcher.publish_confirmed(confirmed))

    def advance(self) -> None:
        """Publish confirmed records, answer their flush waiters, then announce them. Any thread."""
        self.publish()
        self.waiters.flushed(self.flusher.flushed)
        if self.flusher.failure is not None:
            self.waiters.failed()
        self.announce_arrivals()

    def when_flushed(self, end: int, answer: FlushAnswer) -> None:
        """Call `answer` once `end` is on disk, or too late (the owner calls `expire_waiters` regularly)."""
        if end <= self.flusher.flushed:
            answer(PutStatus.PUT_OK)
            return
        deadline = self._clock.monotonic() + self.settings.sync_flush_timeout_ms / 1000
        self.waiters.add(end, deadline, answer)
        if end <= self.flusher.flushed:  # flushed before the waiter was added: no flush would answer it
            self.waiters.flushed(self.flusher.flushed)

    def expire_waiters(self) -> None:
        self.waiters.expired(self._clock.monotonic())

    def put(self, message: PutMessage) -> tuple[PutStatus, PutResult]:
        """Append one message and, under sync flush, wait for the disk if it asks for that. Any thread."""
        result = self.append([message])[0]
        if isinstance(result, Refused) or not (self.settings.syncs_every_put and message.wait):
            return result.status, result
        return self.wait_flushed(result.end), result

    def wait_flushed(self, end: int) -> PutStatus:
        """Block until the log is on disk up to `end`, or the timeout."""
        if self._flush_service is None:
            try:
                self.flush_log()
            except StoreFailed:
                return PutStatus.FLUSH_DISK_TIMEOUT
            return PutStatus.PUT_OK
        answers: list[PutStatus] = []
        answered = threading.Event()

        def answer(status: PutStatus) -> None:
            answers.append(status)
            answered.set()

        self.when_flushed(end, answer)
        answered.wait(self.settings.sync_flush_timeout_ms / 1000)
        return answers[0] if answers else PutStatus.FLUSH_DISK_TIMEOUT

    def make_durable(self, end: int) -> None:
        """Return when the log is on disk up to `end`. May block; any thread. Raises StoreFailed."""
        if self.settings.syncs_every_put:
            self.wait_flushed(end)  # by the thread that answers the senders, too
        elif end > self.flusher.flushed:
            self.flusher.flush()

    def flush_log(self) -> None:
        """Make the log durable now and publish what that confirms. Raises StoreFailed."""
        self.flusher.flush()
        self.advance()

    def build_index(self) -> None:
        """Index all published messages. Any thread."""
        waiting = self.index.pending_count if self.index is not None else 0
        for _ in range(0, waiting, INDEX_SLICE):
            self.build_some_index(INDEX_SLICE)

    def build_some_index(self, messages_max: int) -> bool:
        """Index up to `messages_max` published messages; return whether more remain. Any thread."""
        if self.index is None:
            return False
        with self._lock:
            return self.index.build(messages_max)

    # Reading: any thread

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        *,
        max_bytes: int = 128 << 20,
        tags_filter: TagsFilter | None = None,
        record_filter: RecordFilter | None = None,
        may_block: bool = True,
    ) -> GetResult:
        """Return messages from an offset on, as slices of the log. Creates the queue. Any thread."""
        try:
            queue = self.queue(topic, queue_id)
        except ValueError:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        return self.reader.get(
            queue,
            queue_offset,
            max_messages,
            max_bytes=max_bytes,
            tags_filter=tags_filter,
            record_filter=record_filter,
            may_block=may_block,
        )

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; creates a missing one. Raises ValueError for invalid names."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            with self._lock:
                queue = self.queues[topic, queue_id]
        return queue

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        queue = self.queues.get((topic, queue_id))
        return self.reader.offset_by_time(queue, timestamp, upper=upper) if queue else 0

    def earliest_timestamp(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the queue's first message; None without one."""
        queue = self.queues.get((topic, queue_id))
        return self.reader.earliest_timestamp(queue) if queue else None

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        queue = self.queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return None
        return self.reader.entry_timestamp(queue, queue_offset)

    def message_at(self, physical_offset: int) -> StoredMessage:
        """Raises OffsetOutOfRange, CorruptRecord."""
        return decode(self.reader.record_at(physical_offset))

    def message_by_id(self, offset_message_id: str) -> StoredMessage:
        """Raises ValueError for an invalid id, OffsetOutOfRange, CorruptRecord."""
        return self.message_at(parse_offset_message_id(offset_message_id)[1])

    def messages_by_key(
        self, topic: str, key: str, *, maximum: int = 32, begin_ms: int = 0, end_ms: int = 1 << 62
    ) -> list[StoredMessage]:
        """Return messages with a key or unique key, oldest first. Hash collisions are filtered out."""
        if self.index is None:
            return []
        maximum = min(maximum, self.settings.query_messages_max)
        found = self.index.query(topic, key, maximum, begin_ms, end_ms)
        return self.reader.messages_with_key(found.physical_offsets, topic, key)

    def topics(self) -> list[str]:
        return self.queues.topics()

    # Raw log, for replicas

    def read_log(self, physical_offset: int, length_max: int) -> bytes:
        """Return raw bytes of the log, blanks included, never across a file. Raises OffsetOutOfRange."""
        length = min(length_max, self.log.appended - physical_offset)
        return self.log.read(physical_offset, length) if length > 0 else b""

    def append_raw(
        self, physical_offset: int, data: bytes | memoryview, *, publish_later: bool = False
    ) -> None:
        """Append bytes of the master's log; complete records are published once they are confirmed.

        With `publish_later` the caller calls `advance` itself, after it has acknowledged to the master.
        Raises OffsetOutOfRange, DiskFull, OSError, StoreClosed, and StoreFailed after a failed flush.
        """
        if self._closed:
            raise StoreClosed(self.settings.path)
        if self.flusher.failure is not None:
            raise self.flusher.failure
        with self._lock:
            self.log.append_raw(physical_offset, data)
            self._raw_end = self.log.appended
        if not self._sync_flush and not publish_later:
            self.advance()
        if self._sync_flush and self._flush_service is not None:
            self._flush_service.wake()

    def follow_another(self) -> None:
        """Accept no more messages: the log follows another one from now on, which may cut its end.

        Records that wait to be confirmed are published from the log when the other log confirms them.
        """
        with self._lock:
            self.is_replica = self.reader.keep_offset_on_correction = True
            self._dispatcher.unstage()
            self._raw_end = self.log.appended
            # Readers see no more before the other log confirms it.
            self.replica_bound = self._dispatcher.dispatched

    def follow_no_more(self) -> None:
        """Publish everything that has arrived, and cut a record that has not arrived completely.

        The store accepts messages when the caller resets `is_replica`. Waits for the disk. Raises OSError,
        DiskFull, StoreFailed.
        """
        self.replica_bound = None
        if self._sync_flush:
            self.flusher.flush()
        self.publish()
        if self._dispatcher.dispatched < self._raw_end:
            self.truncate(self._dispatcher.dispatched)
        self.reader.keep_offset_on_correction = False

    def make_declared_batched(self, *, unknown: Callable[[str], bool] = lambda topic: False) -> None:
        """Give topics with `queue.type=BatchCQ` batch consume queues, whose attributes came after messages.

        Also topics with inner batches in the log that are `unknown`: their attributes never came. Waits for
        the disk. Raises OSError, DiskFull.
        """
        unplaced = list(self._dispatcher.unplaced_batches)
        for topic in self.queues.plain_topics().union(filter(unknown, unplaced)):
            self.housekeeper.make_batched(topic)

    def truncate(self, physical_offset: int) -> None:
        """Truncate log and queues at a record's start: for a diverged replica. Not while others append.

        Durable on return. Raises OSError, DiskFull.
        """
        self.housekeeper.cut(physical_offset)
        # Later appends publish their own records.
        self._raw_end = min(self._raw_end, physical_offset)

    @property
    def path(self) -> Path:
        return self.settings.path
