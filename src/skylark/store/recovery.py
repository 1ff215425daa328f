"""Bring a directory into a state that can be served: scan, verify, truncate, rebuild, report what was lost.

The log is the truth. It ends behind its last valid record; damage before that is copied aside, reported and
plugged with a record that nobody sees, so that its neighbours stay readable here and in the reference.
Consume queues and index are built again from the log where they are missing, short or may not be durable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from skylark.errors import BadStoreFile, CorruptRecord
from skylark.model.message import HOST_V4_BYTES, PutMessage, SystemFlag
from skylark.model.record import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Scan,
    ScannedRecord,
    ScanStop,
    encode,
    split,
)
from skylark.settings import StoreSettings
from skylark.store.checkpoint import Checkpoint
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.disk import Disk
from skylark.store.dispatch import Dispatcher
from skylark.store.index import Index
from skylark.store.manifest import Manifest
from skylark.store.queue_table import QueueTable

log = logging.getLogger(__name__)

SCAN_BYTES = 4 << 20
ZEROS_MAX = 8 << 20
RECORD_BYTES_MAX = 64 << 20
WRITE_EVERY_BYTES = 64 << 20
INDEX_PENDING_MAX = 4096
FILLER_TOPIC = "SKYLARK_DAMAGED"
DAMAGED_DIRECTORY = "damaged"
_ZEROS = bytes(SCAN_BYTES)
_MAGICS = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log without readable records."""

    physical_from: int
    physical_to: int
    reason: str
    lost: tuple[str, int, int] | None = None
    """Topic, queue id and queue offset of the lost record, where its head can still be read."""

    def __str__(self) -> str:
        return f"log damaged from {self.physical_from} to {self.physical_to}: {self.reason}"


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


class LogWalk:
    """Records of the log from an offset on, damage stepped over; after the walk `end` is the log's end."""

    def __init__(
        self,
        commit_log: CommitLog,
        start: int,
        *,
        require_crc_property: bool = False,
        step_over_damage: bool = True,
    ) -> None:
        self._log = commit_log
        self._require_crc_property = require_crc_property
        self._step_over_damage = step_over_damage
        self.end = start
        self.damages: list[Damage] = []
        self.stopped = ""
        """Why there is no record at the end."""

    def __iter__(self) -> Iterator[ScannedRecord]:
        files, file_bytes = self._log.files, self._log.file_bytes
        position: int | None = self.end
        chunk_bytes = SCAN_BYTES
        # Never behind the log's end: a record that is still arriving may look whole with zeros for its rest.
        end = self._log.appended
        while position is not None and position < end and files.start_of(position) in files.starts:
            file_end = files.start_of(position) + file_bytes
            data = self._log.read(position, min(chunk_bytes, end - position))
            scan = Scan(data, position, file_end, require_crc_property=self._require_crc_property)
            for record in scan:
                yield record
                self.end = record.physical_offset + record.size
            at = scan.physical_offset
            whole = (
                position + len(data) >= file_end or len(data) < chunk_bytes or chunk_bytes >= RECORD_BYTES_MAX
            )
            if scan.stop is ScanStop.NEED_MORE and (at > position or not whole):
                # A record larger than the chunk is looked at again with more of it.
                chunk_bytes = SCAN_BYTES if at > position else chunk_bytes * 4
                position = at
            else:
                chunk_bytes = SCAN_BYTES
                position = self._after(scan, file_end)

    def _after(self, scan: Scan, file_end: int) -> int | None:
        """Where to go on behind the last record that could be scanned, or None at the log's end."""
        at = scan.physical_offset
        if scan.stop is ScanStop.BLANK or at == file_end:
            self.end = file_end
            return self._next_file(file_end)
        self.stopped = scan.reason or "record is cut short"
        if not self._step_over_damage:
            return None
        found = self._find_record(at + 1, file_end)
        if found is None:
            return None
        self.damages.append(Damage(at, found, self.stopped, self._lost_at(at)))
        return found

    def _lost_at(self, position: int) -> tuple[str, int, int] | None:
        size = int.from_bytes(self._log.read(position, 4), "big", signed=True)
        try:
            head, _, topic, _ = split(self._log.read(position, min(max(size, 0), RECORD_BYTES_MAX)))
        except CorruptRecord:
            return None
        return topic.decode(errors="replace"), head[3], head[5]

    def _next_file(self, file_end: int) -> int | None:
        later = next((start for start in self._log.files.starts if start >= file_end), None)
        if later is not None and later != file_end:
            found = self._find_record(file_end, file_end)
            if found is not None:
                self.damages.append(Damage(file_end, later, "commit log file is missing"))
            return found
        return later

    def _find_record(self, position: int, file_end: int) -> int | None:
        """Where the next valid record starts, in this file or at the beginning of a later one.

        A stretch of zeros longer than any record ends the search in this file: nothing was written there.
        """
        zeros = 0
        while position < file_end and zeros < ZEROS_MAX:
            data = self._log.read(position, SCAN_BYTES)
            zeros = zeros + len(data) if data == _ZEROS or not data.strip(b"\0") else 0
            for at in (
                sorted(at for magic in _MAGICS for at in _occurrences(data, magic)) if not zeros else ()
            ):
                if self.is_record(position + at - 4):
                    return position + at - 4
            # The last bytes again: a magic may lie across the chunks' border.
            position += max(len(data) - 3, 1)
        return next(
            (start for start in self._log.files.starts if start >= file_end and self.is_record(start)), None
        )

    def is_record(self, position: int) -> bool:
        """Whether a whole, valid record starts there."""
        return self.record_at(position) is not None

    def record_at(self, position: int) -> ScannedRecord | None:
        """The whole, valid record that starts there, or None."""
        start = self._log.files.start_of(position)
        if position < 0 or start not in self._log.files.starts:
            return None
        size = int.from_bytes(self._log.read(position, 4), "big", signed=True)
        if not 0 < size <= min(start + self._log.file_bytes - position, RECORD_BYTES_MAX):
            return None
        scan = Scan(self._log.read(position, size), position, start + self._log.file_bytes)
        return next(iter(scan), None)


def _occurrences(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


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
        self.report = RecoveryReport()

    def run(
        self, *, clean_exit: bool, checkpoint: Checkpoint | None, manifest: Manifest | None
    ) -> RecoveryReport:
        """Recover everything. Raises BadStoreFile where going on would do harm."""
        report = self.report
        report.clean_exit = clean_exit
        self._load_log()
        report.problems += [str(problem) for problem in self._queues.load()]
        claimed = {queue: queue.max_offset for queue in self._queues.values()}
        start = self._trusted_up_to(clean_exit, checkpoint)
        for queue in self._queues.values():
            queue.truncate(start)
        self._reset_short_queues(manifest)
        start = self._log.min_offset if report.rebuilt_queues else min(start, self._index_behind(manifest))
        report.scanned_from = start
        gaps = self._replay(start)
        self._rebuild_gaps(gaps)
        claimed = claimed if clean_exit else {}
        self._claim_lost(claimed)
        self._finish(claimed)
        return report

    # The log's files

    def _load_log(self) -> None:
        files = self._log.files
        wrong = [problem for problem in self._log.load()]
        lengths = {start: self._disk.length(files.path(start)) for start in files.starts}
        self._refuse_other_size(lengths)
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

    def _refuse_other_size(self, lengths: dict[int, int]) -> None:
        expected = self._log.file_bytes
        longer = next((start for start, length in lengths.items() if length > expected), None)
        different = {length for length in lengths.values()} - {expected}
        all_differ = len(lengths) > 1 and set(lengths.values()) == different and len(different) == 1
        if longer is not None or all_differ:
            start = longer if longer is not None else min(lengths)
            reason = f"has {lengths[start]} bytes, the settings say commit_log_file_bytes={expected}"
            raise BadStoreFile(self._log.files.path(start), reason)

    # Where to start

    def _trusted_up_to(self, clean_exit: bool, checkpoint: Checkpoint | None) -> int:
        """The physical offset below which log and consume queues are known to be whole and to agree."""
        files = self._log.files
        if not files.starts:
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
        end = self._index.end_physical_offset
        if self._index.rebuild_from is not None:
            end = self._index.rebuild_from
        elif manifest is not None and end >= manifest.index_end:
            return 1 << 63
        last = LogWalk(self._log, 0).record_at(end)
        if last is None:
            return self._log.min_offset
        # After a crash the last record again: perhaps not all of its keys are there. 0 may mean no record.
        return end + last.size if end and self.report.clean_exit else end

    # The walk

    def _replay(self, start: int) -> set[ConsumeQueue]:
        """Dispatch every record from `start`; returns the queues that miss units before a record."""
        gaps: set[ConsumeQueue] = set()
        walk = LogWalk(self._log, start, require_crc_property=self._settings.verify_crc_property)
        self._log.appended = self._log.files.end
        self._dispatch_all(walk, gaps)
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
                if not self._dispatcher.dispatch(record):
                    gaps.add(self._queues[record.topic.decode(errors="replace"), record.queue_id])
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
        for record in LogWalk(self._log, self._log.min_offset):
            if self._queues.get((record.topic.decode(errors="replace"), record.queue_id)) in again:
                self._dispatcher.dispatch(record)

    # Repair

    def _plug(self, damage: Damage) -> None:
        """Copy the damaged bytes aside and put something that readers step over in their place."""
        for start in self._log.files.starts:
            low = max(damage.physical_from, start)
            high = min(damage.physical_to, start + self._log.file_bytes)
            if low < high:
                data = self._log.read(low, high - low)
                self._set_aside(low, data)
                filler = filler_for(low, high, start + self._log.file_bytes, self.report.last_timestamp)
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
                with suppress(ValueError):
                    queue = self._queues[topic, queue_id]
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
