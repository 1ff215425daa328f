"""Bring a directory into a state that can be served: scan, verify, truncate, rebuild, report what was lost.

The log is the truth. It ends behind its last valid record; damage before that is copied aside, reported and
plugged with a record that nobody sees, so that its neighbours stay readable here and in the reference.
Consume queues and index are built again from the log where they are missing, short or may not be durable.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

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
from skylark.store.checkpoint import Checkpoint
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.dispatch import Dispatcher
from skylark.store.index import Index
from skylark.store.log_walk import SCAN_BYTES, Damage, LogWalk
from skylark.store.manifest import Manifest
from skylark.store.mapped_file import NAME_DIGITS
from skylark.store.queue_table import QueueTable
from skylark.store.unit import NO_UNIT_MASK

log = logging.getLogger(__name__)

WRITE_EVERY_BYTES = 64 << 20
INDEX_PENDING_MAX = 4096
FILLER_TOPIC = "SKYLARK_DAMAGED"
DAMAGED_DIRECTORY = "damaged"


@dataclass(slots=True)
class RecoveryReport:
    """What opening a store found and did."""

    clean_exit: bool = True
    scanned_from: int = 0
    end: int = 0
    records: int = 0
    damages: list[Damage] = field(default_factory=list)
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
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._deleted: dict[bytes, int] = {}
        self._implausible = 0
        self.report = RecoveryReport()

    def run(
        self, *, clean_exit: bool, checkpoint: Checkpoint | None, manifest: Manifest | None
    ) -> RecoveryReport:
        """Recover everything. Raises BadStoreFile where going on would do harm."""
        report = self.report
        report.clean_exit = clean_exit
        self._load_log()
        report.problems += [str(problem) for problem in self._queues.load()]
        if clean_exit and manifest is not None:
            # The exit wrote down how long each queue is: what lies behind is not ours.
            for extent in manifest.queues:
                self._queues[extent.topic, extent.queue_id].cut_to(extent.units)
        claimed = self._claimed(clean_exit, checkpoint)
        start = self._trusted_up_to(clean_exit, checkpoint)
        for queue in self._queues.values():
            queue.truncate(start)
        start = min(start, self._forget_deleted(manifest))
        self._reset_short_queues(manifest)
        start = self._log.min_offset if report.rebuilt_queues else min(start, self._index_behind(manifest))
        report.scanned_from = start
        gaps = self._replay(start)
        self._rebuild_gaps(gaps)
        self._claim_lost(claimed)
        self._finish(claimed)
        return report

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
                # The missing rest reads as zeros, so what is there can be scanned.
                self._disk.create(files.path(start), files.file_bytes).close()
        for hole_from, hole_to in files.holes():
            self.report.add_problem(f"commit log files from {hole_from} to {hole_to} are missing")

    def _refuse_other_size(self, lengths: dict[int, int], wrong: list[BadStoreFile]) -> None:
        """Opened with another size, the files would be read wrongly and then overwritten."""
        expected = self._log.file_bytes
        setting = f"the settings say commit_log_file_bytes={expected}"
        for problem in wrong:
            name = Path(problem.path).name
            if len(name) == NAME_DIGITS and name.isdigit() and int(name) % expected:
                raise BadStoreFile(problem.path, f"begins at no multiple of {expected} bytes, {setting}")
        made = {start: length for start, length in lengths.items() if length}  # a crash may leave empty ones
        alike = len(made) > 1 and len(set(made.values())) == 1
        for start, length in made.items():
            if length > expected or (alike and length != expected):
                raise BadStoreFile(self._log.files.path(start), f"has {length} bytes, {setting}")

    # Where to start

    def _claimed(self, clean_exit: bool, checkpoint: Checkpoint | None) -> dict[ConsumeQueue, int]:
        """Up to where each queue gave out offsets for sure, though the log may not have their records now."""
        if clean_exit:
            return {queue: queue.max_offset for queue in self._queues.values()}
        durable = checkpoint.durable_offset if checkpoint is not None else None
        if durable is None or durable <= self._log.files.end:
            return {}
        return {queue: queue.end_below(durable) for queue in self._queues.values()}

    def _trusted_up_to(self, clean_exit: bool, checkpoint: Checkpoint | None) -> int:
        """The physical offset below which log and consume queues are known to be whole and to agree."""
        files = self._log.files
        if not files.starts:
            if any(queue.max_offset for queue in self._queues.values()):
                self.report.add_problem("no commit log file is left, though consume queues know records")
            return 0
        dispatched = max((queue.max_physical_offset for queue in self._queues.values()), default=-1)
        if checkpoint is not None and checkpoint.durable_offset is not None:
            trusted = checkpoint.durable_offset
        elif clean_exit:
            trusted = dispatched
        else:
            trusted = self._start_by_time(
                checkpoint.recovery_timestamp(with_index=False) if checkpoint else 0
            )
            if dispatched < trusted:
                trusted = files.start_of(max(dispatched, 0))
        if trusted > files.end:
            self.report.add_problem(
                f"the log ends at {files.end}, consume queues know records up to {trusted}"
            )
            return files.starts[-1]
        return max(trusted, self._log.min_offset)

    def _start_by_time(self, timestamp: int) -> int:
        """The reference's rule: the newest file whose first record was stored before the checkpoint."""
        for start in reversed(self._log.files.starts):
            data = self._log.read(start, SCAN_BYTES)
            first = next(iter(Scan(data, start, start + self._log.file_bytes)), None)
            if first is not None and 0 < first.store_timestamp <= timestamp:
                return start
        return self._log.min_offset

    def _forget_deleted(self, manifest: Manifest | None) -> int:
        """Drop units of deleted topics that a crash left; returns from where their successors are read."""
        start = 1 << 63
        if manifest is None:
            return start
        self._deleted = {topic.encode(): end for topic, end in manifest.deleted.items()}
        for topic, end in manifest.deleted.items():
            for queue in list(self._queues.of_topic(topic)):
                first = queue.unit(queue.min_offset) if queue.max_offset > queue.min_offset else None
                if first is not None and first[0] < end:
                    queue.reset()
                    start = min(start, end)
        return max(start, self._log.min_offset)

    def _reset_short_queues(self, manifest: Manifest | None) -> None:
        for extent in manifest.queues if manifest else []:
            queue = self._queues[extent.topic, extent.queue_id]
            first = queue.file_starts[0] if queue.file_starts else None
            if queue.max_offset < extent.units or first is None or first > extent.first_file:
                if extent.units:
                    self._reset(queue)

    def _reset(self, queue: ConsumeQueue) -> None:
        name = f"{queue.topic}/{queue.queue_id}"
        self.report.add_problem(f"consume queue {name} lost files and is built again from the log")
        self.report.rebuilt_queues.append(name)
        queue.reset()

    def _index_behind(self, manifest: Manifest | None) -> int:
        """From where the log must be read again for the index: what is indexed already is passed over."""
        if self._index is None or not self._log.files.starts:
            return 1 << 63
        for problem in self._index.problems:
            self.report.add_problem(problem)
        lost = set(manifest.index_files) - set(self._index.file_names) if manifest is not None else set()
        if lost and self._index.rebuild_from is None:
            self.report.add_problem(f"index files {', '.join(sorted(lost))} are lost, all are built again")
            self._index.destroy()
            return self._log.min_offset
        end = self._index.last_physical_offset
        if self._index.rebuild_from is not None:
            end = self._index.rebuild_from
        elif manifest is not None and end >= manifest.index_end:
            return 1 << 63
        last = LogWalk(self._log, 0).record_at(end)
        if last is None:
            return self._log.min_offset
        # After a crash the last record again: perhaps not all of its keys are there.
        return end + last.size if self.report.clean_exit and self._index.rebuild_from is None else end

    # The walk

    def _replay(self, start: int) -> set[ConsumeQueue]:
        """Dispatch every record from `start`; returns the queues that miss units before a record."""
        gaps: set[ConsumeQueue] = set()
        walk = LogWalk(
            self._log,
            start,
            require_crc_property=self._settings.verify_crc_property,
            refuse_zeros=not self.report.clean_exit,
        )
        self._log.appended = self._log.files.end
        self._dispatch_all(walk, gaps)
        if self._log.files.starts and walk.end == self._log.files.end:
            self.report.add_problem(f"the commit log file from {walk.end} on is missing")
        self._log.appended = walk.end
        self.report.end = walk.end
        for damage in walk.damages:
            self.report.add_problem(str(damage))
            self._plug(damage)
        self.report.damages += walk.damages
        self._cut_tail(walk)
        return gaps

    def _dispatch_all(self, walk: LogWalk, gaps: set[ConsumeQueue]) -> None:
        report = self.report
        since_write = 0
        for record in walk:
            try:
                self._dispatch(record, walk, gaps)
            except ValueError as error:
                report.add_problem(f"record at {record.physical_offset} has an impossible queue: {error}")
                continue
            report.records += 1
            report.last_record = record.physical_offset
            report.last_timestamp = record.store_timestamp
            since_write += record.size
            if since_write > WRITE_EVERY_BYTES:
                self._write_derived()
                since_write = 0
            elif self._index is not None and self._index.pending_count > INDEX_PENDING_MAX:
                self._build_index()

    def _dispatch(self, record: ScannedRecord, walk: LogWalk, gaps: set[ConsumeQueue] | None) -> None:
        """Dispatch a record whose queue offset can be right; `gaps` takes queues that must be built anew."""
        if record.physical_offset < self._deleted.get(record.topic, 0):
            return
        queue = self._queues[record.topic.decode(errors="replace"), record.queue_id]
        if not record.sys_flag & NO_UNIT_MASK and not self._is_plausible(record, queue, walk):
            if gaps is not None and self.report.scanned_from > self._log.min_offset:
                gaps.add(queue)
                return
            self._implausible += 1
            self.report.add_problem(
                f"record at {record.physical_offset} says queue offset {record.queue_offset}, "
                f"{queue.max_offset} comes next in {queue.topic}/{queue.queue_id}: it is left out"
            )
            return
        self._dispatcher.dispatch(record)

    def _is_plausible(self, record: ScannedRecord, queue: ConsumeQueue, walk: LogWalk) -> bool:
        """Whether a record's queue offset fits: a bit of it may have flipped, no CRC covers it."""
        gap = record.queue_offset - queue.max_offset
        if gap < 0:
            unit = queue.unit(record.queue_offset) if record.queue_offset >= queue.min_offset else None
            return unit is not None and unit[0] == record.physical_offset
        lost_bytes = sum(damage.physical_to - damage.physical_from for damage in walk.damages)
        if gap <= lost_bytes // RECORD_BYTES_MIN + self._implausible:
            return True
        begins_late = queue.max_offset == 0 and not queue.file_starts and self._log.min_offset > 0
        return begins_late and self.report.scanned_from == self._log.min_offset

    def _build_index(self) -> None:
        while self._index is not None and self._index.build():
            pass

    def _write_derived(self) -> None:
        """Keep memory flat over a long replay."""
        self._build_index()
        while self._dispatcher.dirty:
            queue = self._dispatcher.dirty.popleft()
            queue.dirty = False
            queue.write()
        if self._index is not None:
            self._index.flush()

    def _rebuild_gaps(self, gaps: set[ConsumeQueue]) -> None:
        """Queues that turned out to miss units: once more from the beginning of the log."""
        again = {
            queue for queue in gaps if f"{queue.topic}/{queue.queue_id}" not in self.report.rebuilt_queues
        }
        if not again or self.report.scanned_from <= self._log.min_offset:
            return
        for queue in again:
            self._reset(queue)
        walk = LogWalk(self._log, self._log.min_offset)
        self._implausible = 0
        for record in walk:
            if self._queues.get((record.topic.decode(errors="replace"), record.queue_id)) in again:
                self._dispatch(record, walk, None)

    # Repair

    def _plug(self, damage: Damage) -> None:
        """Copy the damaged bytes aside and put something that readers step over in their place."""
        behind = LogWalk(self._log, 0).record_at(damage.physical_to)
        # Of the same time as what follows: store times do not go back along the log.
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
        # After a clean exit nothing was written behind the end, so there is nothing to wipe.
        self._log.end_at(end, wipe=bool(garbage) or not self.report.clean_exit)

    def _claim_lost(self, claimed: dict[ConsumeQueue, int]) -> None:
        for damage in self.report.damages:
            if damage.lost is not None:
                topic, queue_id, queue_offset = damage.lost
                lost_records = (damage.physical_to - damage.physical_from) // RECORD_BYTES_MIN
                with suppress(ValueError):
                    queue = self._queues[topic, queue_id]
                    # A damaged head may say anything: no more is believed than what can be lost there.
                    if queue_offset < queue.max_offset + lost_records:
                        claimed[queue] = max(claimed.get(queue, 0), queue_offset + 1)

    def _finish(self, claimed: dict[ConsumeQueue, int]) -> None:
        for queue in self._queues.values():
            queue.truncate(self._log.appended)
            # Offsets that were given out are not given out again, even if their records are lost.
            upto = max(queue.max_offset, claimed.get(queue, 0))
            if upto > queue.max_offset:
                self.report.add_problem(
                    f"queue {queue.topic}/{queue.queue_id} lost its messages {queue.max_offset} to {upto - 1}"
                )
                queue.fill_to(upto)
            queue.next_offset = upto
            queue.correct_min_offset(self._log.min_offset)
            if not queue.dirty:
                queue.dirty = True
                self._dispatcher.dirty.append(queue)
        self._write_derived()
        for queue in self._queues.values():
            queue.sync()
        if self._index is not None:
            if self._index.end_physical_offset >= self._log.appended:
                self._index.truncate(self._log.appended)
            self._index.finish_rebuild()
        self._dispatcher.dispatched = self._log.appended


def filler_for(low: int, high: int, file_end: int, store_timestamp: int) -> bytes | None:
    """A blank if the range reaches the file's end, else a rolled-back record of its size, else None."""
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
