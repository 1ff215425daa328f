"""Recovery: scans and verifies a directory, truncates it, rebuilds derived files and reports losses.

The log is authoritative. It ends behind its last valid record; damage before that is copied aside,
reported and replaced by a record that is never delivered, so that its neighbours stay readable here and
in RocketMQ. Consume queues and index are rebuilt from the log where they are missing, short or may not be
durable.

No checksum covers a queue offset, so one record is not enough to make a queue jump. A record that is not
the next of its queue is held until another record of the queue confirms or contradicts it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from skylark.errors import BadStoreFile
from skylark.model.message import HOST_V4_BYTES, PutMessage, SystemFlag
from skylark.model.record import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    RECORD_BYTES_MIN,
    Scan,
    ScannedRecord,
    encode,
)
from skylark.settings import StoreSettings
from skylark.store.append_result import AppendedRecord
from skylark.store.checkpoint import Checkpoint, CheckpointFile, QueueManifest, load_manifest
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.dispatch import Dispatcher
from skylark.store.index import OFFSET_MAX, Index
from skylark.store.log_scan import SCAN_BYTES, LogDamage, LogWalk
from skylark.store.mapped_file import NAME_DIGITS
from skylark.store.queue_entry import BATCH_MESSAGES_MAX
from skylark.store.queue_table import QueueTable

log = logging.getLogger(__name__)

WRITE_EVERY_BYTES = 64 << 20
INDEX_PENDING_MAX = 4096
HELD_MAX = 4
FILLER_TOPIC = "SKYLARK_DAMAGED"
"""Topic of the records that replace damaged ranges of the log."""
_FILLER = FILLER_TOPIC.encode()


class ReplayProgress(Protocol):
    """Receives the progress of a replay."""

    records: int
    last_record: int
    last_timestamp: int

    def add_problem(self, text: str) -> None: ...


class Replay:
    """One pass over the log that rebuilds queues and index. Before the store serves."""

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        index: Index | None,
        deleted: dict[bytes, int],
        progress: ReplayProgress,
        walk: LogWalk,
    ) -> None:
        """`deleted`: by topic, the physical offset below which records belong to a deleted topic."""
        self._log = commit_log
        self._dispatcher = dispatcher
        self._index = index
        self._deleted = deleted
        self._progress = progress
        self._walk = walk
        self._start = walk.end
        self._from_start = walk.end <= commit_log.min_offset
        self._held: dict[ConsumeQueue, list[AppendedRecord]] = {}
        self._position = walk.end
        self._read_bytes = 0
        self._filler_bytes = 0
        self._left_out = 0
        self.incomplete: set[ConsumeQueue] = set()
        """Queues that lack entries before the first record read here: rebuild them from the log's start."""

    def run(self) -> None:
        """Dispatch every record of the walk."""
        progress, since_write = self._progress, 0
        for record in self._walk:
            self._account(record)
            try:
                if record.physical_offset >= self._deleted.get(record.topic, 0):
                    placed = self._dispatcher.place(record, self._deleted)
                    self._dispatcher.note([placed])
                    for each in placed.places:
                        self._take(each)
                    self._dispatcher.note_unplaced(placed)
                    if self._dispatcher.contradicts_itself(placed):
                        progress.add_problem(
                            f"record at {record.physical_offset} has queue offset {record.queue_offset}, but "
                            f"flags of a message that is in no queue ({record.sys_flag:#x}): it is left out"
                        )
            except ValueError as error:
                progress.add_problem(f"record at {record.physical_offset} has an invalid queue: {error}")
                continue
            progress.records += 1
            progress.last_record = record.physical_offset
            progress.last_timestamp = record.store_timestamp
            since_write += record.size
            if since_write > WRITE_EVERY_BYTES:
                write_derived(self._dispatcher, self._index)
                since_write = 0
            elif self._index is not None and self._index.pending_count > INDEX_PENDING_MAX:
                build_index(self._index)
        self._settle_all()

    def run_for(self, queues: set[ConsumeQueue]) -> None:
        """Add the entries of these queues only."""
        for record in self._walk:
            self._account(record)
            if record.physical_offset < self._deleted.get(record.topic, 0):
                continue
            with suppress(ValueError):  # of an invalid topic: reported before
                for each in self._dispatcher.place(record, self._deleted).places:
                    if each.queue in queues:
                        self._take(each)
        self._settle_all()

    def _account(self, record: ScannedRecord) -> None:
        self._position = record.physical_offset + record.size
        if record.topic == _FILLER:
            self._filler_bytes += record.size
        else:
            self._read_bytes += record.size

    # Checking queue offsets

    def _take(self, placed: AppendedRecord) -> None:
        queue, queue_offset = placed.queue, placed.queue_offset
        if not self._dispatcher.has_entry(placed) or queue in self.incomplete:
            return
        held = self._held.get(queue)
        if held is None:
            if queue_offset == queue.max_offset:
                self._dispatcher.add_entry(placed)
            elif not self._is_there(placed):
                self._held[queue] = [placed]
        elif queue_offset in (queue.max_offset, queue.max_offset + _span(held)) or self._is_there(placed):
            # The queue continues without the held records: their queue offsets are wrong.
            self._leave_out(*self._held.pop(queue))
            self._dispatcher.add_entry(placed)
        elif any(queue_offset - each.queue_offset == far for far, each in _distances(held)):
            self._jump(self._held.pop(queue), placed)
        else:
            held.append(placed)
            if len(held) > HELD_MAX:
                self._settle(held.pop(0))

    def _is_there(self, placed: AppendedRecord) -> bool:
        queue = placed.queue
        if not queue.min_offset <= placed.queue_offset < queue.max_offset:
            return False
        entry = queue.entry(placed.queue_offset)
        return entry is not None and entry[0] == placed.physical_offset

    def _jump(self, held: list[AppendedRecord], placed: AppendedRecord) -> None:
        """Two records agree that the queue continues, or restarts, at another offset."""
        chain = [placed]
        for far, each in _distances(held):
            if 0 <= placed.queue_offset - each.queue_offset - far <= self._lost_messages(each.queue):
                chain.insert(0, each)
            else:
                self._leave_out(each)
        first = chain[0]
        queue = first.queue
        gap = first.queue_offset - queue.max_offset
        if self._from_start and (first.queue_offset == 0 or self._is_bare(queue)):
            # The topic was deleted and created again, or the queue's first records expired or were lost.
            queue.reset()
        elif not 0 < gap <= self._lost_messages(queue) and not self._from_start:
            self.incomplete.add(queue)
            return
        elif gap < 0:
            self._leave_out(*chain)
            return
        for each in chain:
            self._add(each)

    def _settle_all(self) -> None:
        for held in list(self._held.values()):
            for each in held:
                if each.queue not in self.incomplete:
                    self._settle(each)
        self._held.clear()

    def _settle(self, placed: AppendedRecord) -> None:
        """Accept a record that no other confirms, if enough records can be missing before it."""
        queue = placed.queue
        is_first = self._from_start and self._is_bare(queue)
        if is_first:
            queue.reset()
        gap = placed.queue_offset - queue.max_offset
        # One more: the record before it may have a flipped bit in its topic or queue id.
        possible = self._lost_messages(queue) + (self._left_out + 1) * _messages_max(queue)
        if self._from_start:
            unread = (self._position - self._start - self._read_bytes) // RECORD_BYTES_MIN
            possible += unread * _messages_max(queue)
        if 0 <= gap <= possible or (is_first and self._log.min_offset > 0):
            self._add(placed)
        elif not self._from_start:
            self.incomplete.add(queue)
        else:
            self._leave_out(placed)

    def _lost_messages(self, queue: ConsumeQueue) -> int:
        """Return how many messages fit into the damaged ranges, including those of earlier recoveries."""
        damaged = sum(damage.physical_to - damage.physical_from for damage in self._walk.damages)
        return (damaged + self._filler_bytes) // RECORD_BYTES_MIN * _messages_max(queue)

    def _is_bare(self, queue: ConsumeQueue) -> bool:
        """Return whether no entry of the queue points into the log."""
        return queue.end_below(self._log.min_offset) >= queue.max_offset

    def _add(self, placed: AppendedRecord) -> None:
        queue, begins = placed.queue, placed.queue.max_offset == 0 and self._log.min_offset > 0
        if placed.queue_offset > queue.max_offset and not begins:
            self._progress.add_problem(
                f"queue {queue.topic}/{queue.queue_id} has no records for its messages "
                f"{queue.max_offset} to {placed.queue_offset - 1}"
            )
        self._dispatcher.add_entry(placed)

    def _leave_out(self, *records: AppendedRecord) -> None:
        for placed in records:
            queue = placed.queue
            self._left_out += 1
            self._progress.add_problem(
                f"record at {placed.physical_offset} has queue offset {placed.queue_offset}, "
                f"expected {queue.max_offset} in {queue.topic}/{queue.queue_id}: skipped"
            )


def _messages_max(queue: ConsumeQueue) -> int:
    """Return how many messages of a queue one record may hold."""
    return BATCH_MESSAGES_MAX if queue.is_batched else 1


def _span(records: Iterable[AppendedRecord]) -> int:
    return sum(placed.message_count for placed in records)


def _distances(held: list[AppendedRecord]) -> list[tuple[int, AppendedRecord]]:
    """Return each held record, the last first, with the offsets from it to the record behind them all."""
    backwards = held[::-1]
    return list(zip(accumulate(placed.message_count for placed in backwards), backwards, strict=True))


def build_index(index: Index) -> None:
    while index.build():
        pass


def write_derived(dispatcher: Dispatcher, index: Index | None) -> None:
    """Write dispatched entries and index items, to bound the memory of a long replay."""
    if index is not None:
        build_index(index)
    while dispatcher.dirty:
        queue = dispatcher.dirty.popleft()
        queue.dirty = False
        queue.write()
    if index is not None:
        index.flush()


DAMAGED_DIRECTORY = "damaged"


@dataclass(slots=True)
class RecoveryReport:
    """Result of opening a store."""

    clean_exit: bool = True
    others_wrote: bool = False
    """Whether Apache RocketMQ ran on the directory since this store last did."""
    scanned_from: int = 0
    end: int = 0
    records: int = 0
    damages: list[LogDamage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rebuilt_queues: list[str] = field(default_factory=list)
    last_record: int = -1
    last_timestamp: int = 0

    def add_problem(self, text: str) -> None:
        log.warning("recovery %s", text)
        self.problems.append(text)


class Recovery:
    """One recovery of one store. Before the store serves; the caller has made the abort marker durable."""

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        commit_log: CommitLog,
        queues: QueueTable,
        index: Index | None,
        dispatcher: Dispatcher,
        checkpoint_file: CheckpointFile,
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._checkpoint_file = checkpoint_file
        self._deleted: dict[bytes, int] = {}
        self._has_manifest = False
        self._index_is_lost = False
        self.checkpoint = Checkpoint()
        self.manifest = QueueManifest()
        self.report = RecoveryReport()

    def run(self, *, clean_exit: bool) -> RecoveryReport:
        """Recover everything. Raises BadStoreFile where continuing would destroy data."""
        report = self.report
        report.clean_exit = clean_exit
        self._load_evidence()
        self._load_log()
        report.problems += [str(problem) for problem in self._queues.load()]
        durable = self.checkpoint.durable_offset
        if clean_exit and durable is not None and self.manifest.durable_offset >= durable:
            # The clean exit saved the length of each queue: entries beyond it are not ours. (If only an older
            # manifest is left, its lengths are too short and not used.)
            for extent in self.manifest.queues:
                self._queues[extent.topic, extent.queue_id].cut_to(extent.entries)
        claimed = self._claimed()
        trusted = self._trusted_up_to()
        stale, short = self._stale_queues(), self._short_queues()
        index_start = self._index_behind()
        start = min(trusted, self._log.min_offset if short else trusted, index_start, *stale.values())
        start = max(start, self._log.min_offset)
        if stale or short or index_start < trusted:
            self._distrust(start)
        for queue in self._queues.values():
            queue.truncate(trusted)
            queue.clear_behind()
        for queue in stale:
            queue.reset()
        for queue in short:
            self._reset(queue)
        if self._index is not None and self._index_is_lost:
            self._index.destroy()
        report.scanned_from = start
        self._replay(start)
        self._claim_lost(claimed)
        self._finish(claimed)
        return report

    # Checkpoint and manifest

    def _load_evidence(self) -> None:
        checkpoint = self._checkpoint_file.load()
        if checkpoint is None or checkpoint.durable_offset is not None:
            manifest = load_manifest(self._disk, self._settings.path)
        else:
            # RocketMQ ran here since: it may have deleted files that the manifest names.
            manifest = None
            self.report.others_wrote = True
        if checkpoint is not None:
            if manifest is None:
                # Without a manifest the queues' lengths are not known: recovery reads them from the files.
                checkpoint = replace(checkpoint, durable_offset=None)
            self.checkpoint = checkpoint
        self.manifest = manifest or QueueManifest()
        self._has_manifest = manifest is not None
        self._deleted = {topic.encode(): end for topic, end in self.manifest.deleted.items()}

    def _distrust(self, physical_offset: int) -> None:
        """Reduce the durable offset before a rebuild: another crash must not trust incomplete files."""
        durable_offset = self.checkpoint.durable_offset
        if durable_offset is not None and physical_offset < durable_offset:
            self.checkpoint = replace(self.checkpoint, durable_offset=physical_offset)
            self._checkpoint_file.save(self.checkpoint)

    # The log's files

    def _load_log(self) -> None:
        files = self._log.files
        wrong = self._log.load()
        lengths = {start: self._disk.length(files.path(start)) for start in files.starts}
        self._refuse_other_size(lengths, wrong)
        for problem in wrong:
            self.report.add_problem(str(problem))
        for start, length in lengths.items():
            if length == 0 and start == files.starts[-1]:
                self._log.delete_file(start)
            elif length < files.file_bytes:
                # Extended with zeros, so that the existing part can be scanned.
                self._disk.create(files.path(start), files.file_bytes).close()
        for hole_from, hole_to in files.holes():
            self.report.add_problem(f"commit log files from {hole_from} to {hole_to} are missing")

    def _refuse_other_size(self, lengths: dict[int, int], wrong: list[BadStoreFile]) -> None:
        """Raise BadStoreFile if the files have another size: they would be misread and overwritten."""
        expected = self._log.file_bytes
        setting = f"but commit_log_file_bytes is {expected}; set it to the size of the existing files"
        for problem in wrong:
            name = Path(problem.path).name
            if len(name) == NAME_DIGITS and name.isdigit() and int(name) % expected:
                raise BadStoreFile(problem.path, f"its name is not a multiple of the file size, {setting}")
        made = {start: length for start, length in lengths.items() if length}  # a crash may leave empty files
        alike = len(made) > 1 and len(set(made.values())) == 1
        for start, length in made.items():
            if length > expected or (alike and length != expected):
                raise BadStoreFile(self._log.files.path(start), f"has {length} bytes, {setting}")

    # Where to start

    def _claimed(self) -> dict[ConsumeQueue, int]:
        """Return up to which offset each queue is known to have assigned offsets, even to lost records."""
        claimed: dict[ConsumeQueue, int] = {}
        durable = self.checkpoint.durable_offset
        if self.report.clean_exit:
            claimed = {queue: queue.max_offset for queue in self._queues.values()}
        elif durable is not None and durable > self._log.files.end:
            claimed = {queue: queue.end_below(durable) for queue in self._queues.values()}
        for extent in self.manifest.queues:
            queue = self._queues[extent.topic, extent.queue_id]
            claimed[queue] = max(claimed.get(queue, 0), extent.entries)
        return claimed

    def _trusted_up_to(self) -> int:
        """Return the physical offset below which log and consume queues are complete and consistent."""
        files, checkpoint = self._log.files, self.checkpoint
        if not files.starts:
            if any(queue.max_offset for queue in self._queues.values()):
                self.report.add_problem("commit log files are missing, but consume queues have entries")
            return 0
        # Without any plain queue their directory was lost: they lack more than batch queues show.
        has_plain = any(not queue.is_batched for queue in self._queues.values())
        ends = (queue.max_physical_offset for queue in self._queues.values() if has_plain)
        dispatched = max(ends, default=-1)
        if checkpoint.durable_offset is not None:
            trusted = checkpoint.durable_offset
        elif self.report.clean_exit:
            trusted = dispatched
        else:
            trusted = self._start_by_time(checkpoint.recovery_timestamp(with_index=False))
            if dispatched < trusted:
                trusted = files.start_of(max(dispatched, 0))
        if trusted > files.end:
            self.report.add_problem(
                f"the log ends at {files.end}, but consume queues have entries up to {trusted}"
            )
            return files.starts[-1]
        return max(trusted, self._log.min_offset)

    def _start_by_time(self, timestamp: int) -> int:
        """RocketMQ's rule: the newest file whose first record was stored before the checkpoint."""
        for start in reversed(self._log.files.starts):
            data = self._log.read(start, SCAN_BYTES)
            first = next(iter(Scan(data, start, start + self._log.file_bytes)), None)
            if first is not None and 0 < first.store_timestamp <= timestamp:
                return start
        return self._log.min_offset

    def _stale_queues(self) -> dict[ConsumeQueue, int]:
        """Return queues of deleted topics restored by a crash, and where to read the topic's new records."""
        stale = {}
        for topic, end in self.manifest.deleted.items():
            for queue in self._queues.of_topic(topic):
                if queue.max_offset == queue.min_offset:
                    stale[queue] = OFFSET_MAX  # files without an entry: the queue starts at 0
                elif queue.end_below(end) > queue.first_with_record:
                    # Not exactly at the end: an earlier recovery may have put a filler there.
                    stale[queue] = self._log.files.start_of(end)
        return stale

    def _short_queues(self) -> list[ConsumeQueue]:
        """Return queues that lost files. Call before any queue is truncated."""
        short = [queue for queue in self._queues.values() if queue.has_unusable_files]
        for extent in self.manifest.queues:
            queue = self._queues[extent.topic, extent.queue_id]
            first = queue.file_starts[0] if queue.file_starts else None
            is_short = queue.max_offset < extent.entries or first is None or first > extent.first_file
            if is_short and extent.entries and queue not in short:
                short.append(queue)
        return short

    def _reset(self, queue: ConsumeQueue) -> None:
        name = f"{queue.topic}/{queue.queue_id}"
        self.report.add_problem(f"consume queue {name} lost files: rebuilt from the log")
        self.report.rebuilt_queues.append(name)
        queue.reset()

    def _index_behind(self) -> int:
        """Return from where the log must be read for the index; indexed messages are skipped."""
        index = self._index
        if index is None or not self._log.files.starts:
            return OFFSET_MAX
        for problem in index.problems:
            self.report.add_problem(problem)
        lost = set(self.manifest.index_files) - set(index.file_names)
        if lost and index.rebuild_from is None:
            self.report.add_problem(f"index files {', '.join(sorted(lost))} are lost: the index is rebuilt")
            self._index_is_lost = True
            return self._log.min_offset
        end = index.last_physical_offset
        if index.rebuild_from is not None:
            end = index.rebuild_from
        elif self._has_manifest and end >= self.manifest.index_end:
            return OFFSET_MAX
        last = LogWalk(self._log, 0).record_at(end)
        if last is None:
            return self._log.min_offset
        # After a crash index the last record again: some of its keys may be missing.
        return end + last.size if self.report.clean_exit and index.rebuild_from is None else end

    # The walk

    def _replay(self, start: int) -> None:
        self._log.appended = self._log.files.end
        walk = self._walk(start)
        replay = Replay(self._log, self._dispatcher, self._index, self._deleted, self.report, walk)
        replay.run()
        if self._log.files.starts and walk.end == self._log.files.end:
            self.report.add_problem(f"the commit log file at {walk.end} is missing")
        self._log.appended = walk.end
        self.report.end = walk.end
        for damage in walk.damages:
            self.report.add_problem(str(damage))
            self._plug(damage)
        self.report.damages += walk.damages
        self._cut_tail(walk)
        self._build_again(replay.incomplete)

    def _walk(self, start: int) -> LogWalk:
        return LogWalk(
            self._log,
            start,
            require_crc_property=self._settings.verify_crc_property,
            refuse_zeros=not self.report.clean_exit,
        )

    def _build_again(self, incomplete: set[ConsumeQueue]) -> None:
        """Rebuild queues that lack entries, from the start of the log."""
        if not incomplete:
            return
        self._distrust(self._log.min_offset)
        for queue in incomplete:
            self._reset(queue)
        walk = self._walk(self._log.min_offset)
        Replay(self._log, self._dispatcher, None, self._deleted, self.report, walk).run_for(incomplete)

    # Repair

    def _plug(self, damage: LogDamage) -> None:
        """Copy the damaged bytes aside and replace them with a filler that readers skip."""
        behind = LogWalk(self._log, 0).record_at(damage.physical_to)
        # Same time as the record behind it: store times never decrease along the log.
        timestamp = behind.store_timestamp if behind is not None else self.report.last_timestamp
        for start in self._log.files.starts:
            low = max(damage.physical_from, start)
            high = min(damage.physical_to, start + self._log.file_bytes)
            if low < high:
                data = self._log.read(low, high - low)
                self._set_aside(low, data)
                filler = filler_for(low, high, start + self._log.file_bytes, timestamp)
                if filler is not None:
                    self._log.file(start).write([filler], low - start)
                    self._log.file(start).sync()

    def _set_aside(self, physical_offset: int, data: bytes) -> None:
        if not data.strip(b"\0"):
            return
        path = self._settings.path / DAMAGED_DIRECTORY / f"{physical_offset:020d}"
        file = self._disk.create(path, len(data))
        file.write([data], 0)
        file.sync()
        file.close()

    def _cut_tail(self, walk: LogWalk) -> None:
        end = walk.end
        left = (
            self._log.read(end, SCAN_BYTES)
            if self._log.files.start_of(end) in self._log.files.starts
            else b""
        )
        garbage = left.rstrip(b"\0")
        if garbage:
            self.report.add_problem(f"log cut at {end}: {walk.stopped}")
            self._set_aside(end, garbage)
        # After a clean exit there is nothing behind the end to wipe.
        self._log.end_at(end, wipe=bool(garbage) or not self.report.clean_exit)

    def _claim_lost(self, claimed: dict[ConsumeQueue, int]) -> None:
        for damage in self.report.damages:
            if damage.lost is not None:
                topic, queue_id, behind = damage.lost
                lost_records = (damage.physical_to - damage.physical_from) // RECORD_BYTES_MIN
                with suppress(ValueError):
                    queue = self._queues[topic, queue_id]
                    # A damaged head may contain any offset: accept only what fits into the damaged range.
                    if behind <= queue.max_offset + lost_records * _messages_max(queue):
                        claimed[queue] = max(claimed.get(queue, 0), behind)

    def _finish(self, claimed: dict[ConsumeQueue, int]) -> None:
        for queue in self._queues.values():
            queue.truncate(self._log.appended)
            # Assigned offsets are never assigned again, even if their records are lost.
            upto = max(queue.max_offset, claimed.get(queue, 0))
            if upto > queue.max_offset:
                self.report.add_problem(
                    f"queue {queue.topic}/{queue.queue_id} lost messages {queue.max_offset} to {upto - 1}"
                )
                queue.fill_to(upto)
            queue.next_offset = upto
            queue.correct_min_offset(self._log.min_offset)
            if not queue.dirty:
                queue.dirty = True
                self._dispatcher.dirty.append(queue)
        write_derived(self._dispatcher, self._index)
        for queue in self._queues.values():
            queue.sync()
        if self._index is not None:
            if self._index.end_physical_offset >= self._log.appended:
                self._index.truncate(self._log.appended)
            self._index.finish_rebuild()
        self._dispatcher.dispatched = self._log.appended


def filler_for(low: int, high: int, file_end: int, store_timestamp: int) -> bytes | None:
    """Return a blank if the range reaches the file's end, a rolled-back record of its size, or None."""
    if high == file_end and high - low >= BLANK_BYTES:
        return BLANK.pack(high - low, MAGIC_BLANK)
    host = bytes(HOST_V4_BYTES)
    message = PutMessage(FILLER_TOPIC, 0, b"", sys_flag=SystemFlag.TRANSACTION_ROLLBACK, born_host=host)
    place = {
        "queue_offset": 0, "physical_offset": low, "store_timestamp": store_timestamp, "store_host": host
    }  # fmt: skip
    spare = high - low - len(encode(message, **place))  # type: ignore[arg-type]
    if spare < 0:
        return None
    message.body = bytes(spare)
    return encode(message, **place)  # type: ignore[arg-type]
