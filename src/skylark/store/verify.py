"""Full verification of a store directory, read-only: every record, unit and index item, and what lies beside.

One pass over the log checks each record and looks up its unit and its keys on the way; units that no record
claimed are then looked at one by one. Memory stays flat: a window of units for each of the queues seen last,
and the slots of one index file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from skylark.errors import BadJson, OffsetOutOfRange
from skylark.model import java
from skylark.model.message import PROPERTY_CRC32
from skylark.model.record import CRC_PROPERTY_BYTES, ScannedRecord, has_valid_crc_property
from skylark.store.checkpoint import CHECKPOINT_BYTES
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.findings import FINDINGS_MAX, FindingKind, Verification
from skylark.store.log_scan import LogScan
from skylark.store.log_walk import Damage
from skylark.store.mapped_file import NAME_DIGITS
from skylark.store.reader import StoreReader
from skylark.store.verify_index import IndexCheck
from skylark.store.verify_queues import QueueCheck

PROGRESS_BYTES = 4 << 20
TAIL_BYTES = 1 << 20
TRIES = 3
PAUSE_S = 0.05
_CRC_PROPERTY_NAME = f"{PROPERTY_CRC32}\x01".encode()

Progress = Callable[[int, int], None]


def verify(
    reader: StoreReader, *, progress: Progress | None = None, findings_max: int = FINDINGS_MAX
) -> Verification:
    """Look at everything. `progress` is told bytes of the log done and to do. Raises OSError."""
    result = Verification(findings_max)
    if reader.is_marked_running:
        result.note("the store is running, or was not closed: what it has not written yet is not missing")
    _check_files(reader, result)
    _check_checkpoint(reader, result)
    queues = QueueCheck(reader, result)
    index = IndexCheck(reader, result)
    _check_log(reader, result, queues, index, progress or (lambda done, total: None))
    queues.finish()
    index.finish()
    _check_config(reader, result)
    return result


# The log


def _check_files(reader: StoreReader, result: Verification) -> None:
    files = reader.log.files
    for bad in reader.bad_log_files:
        result.add(FindingKind.LOG_FILE, Path(bad.path), 0, bad.reason)
    for hole_from, hole_to in files.holes():
        result.add(FindingKind.LOG_HOLE, files.path(hole_from), 0, f"missing up to offset {hole_to}")
    for bad in reader.bad_queue_files:
        result.add(FindingKind.QUEUE_FILE, Path(bad.path), 0, bad.reason)
    for queue in reader.queue_table.values():
        for path in _unusable_files(reader, queue):
            reason = "it cannot be used: a file before it is missing or has another length"
            result.add(FindingKind.QUEUE_FILE, path, 0, reason)


def _unusable_files(reader: StoreReader, queue: ConsumeQueue) -> Iterator[Path]:
    """Good files behind a gap or a bad file."""
    bad = {bad.path for bad in reader.bad_queue_files}
    is_broken = False
    next_start = None
    for name in reader.disk.files(queue.directory):
        path = queue.directory / name
        if len(name) != NAME_DIGITS or not name.isdigit():
            continue
        is_broken = is_broken or int(name) != (next_start if next_start is not None else int(name))
        if path in bad:
            is_broken = True
        elif is_broken:
            yield path
        next_start = int(name) + reader.settings.consume_queue_file_bytes


def _check_log(
    reader: StoreReader, result: Verification, queues: QueueCheck, index: IndexCheck, progress: Progress
) -> None:
    log, files, counts = reader.log, reader.log.files, result.counts
    start, total = log.min_offset, reader.end_physical_offset - log.min_offset

    def on_damage(damage: Damage) -> None:
        index.skip(damage.physical_from, damage.physical_to)
        if files.start_of(damage.physical_from) in files.starts:
            path, position = _place(reader, damage.physical_from)
            reason = f"{damage.reason}; the next record is at physical offset {damage.physical_to}"
            result.add(FindingKind.RECORD, path, position, reason)

    counts.log_files = len(files.starts)
    progress(0, total)
    # To the files' end: damage behind the last unit may have hidden the log's end from the reader.
    log.appended = files.end
    scan = LogScan(log, start, on_damage)
    told = 0
    for record in scan:
        counts.records += 1
        _check_crc_property(reader, result, record)
        queues.check(record)
        index.check(record)
        done = record.physical_offset + record.size - start
        if done - told >= PROGRESS_BYTES:
            told = done
            progress(min(done, total), total)
    _check_tail(reader, result, scan)
    log.appended = scan.end
    counts.log_bytes = scan.end - start
    progress(total, total)


def _place(reader: StoreReader, physical_offset: int) -> tuple[Path, int]:
    start = reader.log.files.start_of(physical_offset)
    return reader.log.files.path(start), physical_offset - start


def _check_crc_property(reader: StoreReader, result: Verification, record: ScannedRecord) -> None:
    if not record.properties[-CRC_PROPERTY_BYTES:].startswith(_CRC_PROPERTY_NAME):
        return
    try:
        data = reader.log.read(record.physical_offset, record.size)
    except OffsetOutOfRange:
        return  # deleted since it was scanned
    if not has_valid_crc_property(memoryview(data)):
        path, position = _place(reader, record.physical_offset)
        result.add(FindingKind.CRC_PROPERTY, path, position, "the record does not match its CRC property")


def _check_tail(reader: StoreReader, result: Verification, scan: LogScan) -> None:
    """Behind the last record there must be nothing. A record that is being written is given time to end."""
    log, files = reader.log, reader.log.files
    if files.start_of(scan.end) not in files.starts:
        return
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            tail = log.read(scan.end, TAIL_BYTES)
            if not tail.strip(b"\0") or scan.is_whole(scan.end):
                return
        except OffsetOutOfRange:
            return  # deleted just now
    path, position = _place(reader, scan.end)
    size = len(tail.rstrip(b"\0"))
    reason = f"{size} bytes behind the last record are no record: {scan.stopped}"
    result.add(FindingKind.LOG_TAIL, path, position, reason)


# What lies beside


def _check_checkpoint(reader: StoreReader, result: Verification) -> None:
    path = reader.path / "checkpoint"
    try:
        length = reader.disk.length(path)
    except FileNotFoundError:
        if reader.log.files.starts:
            result.add(
                FindingKind.CHECKPOINT, path, 0, "missing: a start after a crash would scan the whole log"
            )
        return
    if length != CHECKPOINT_BYTES:
        reason = f"has {length} bytes instead of {CHECKPOINT_BYTES}"
        result.add(FindingKind.CHECKPOINT, path, 0, reason)
        return
    checkpoint = reader.checkpoint
    if checkpoint is None:
        return  # made, and not written yet
    times = (checkpoint.physic_timestamp, checkpoint.logics_timestamp, checkpoint.index_timestamp)
    if min(times) < 0:
        result.add(FindingKind.CHECKPOINT, path, 0, f"has times before 1970: {times}")
    for name, physical_offset in (
        ("confirmed", checkpoint.confirm_physical_offset),
        ("durable", checkpoint.durable_offset or 0),
    ):
        if not 0 <= physical_offset <= max(reader.log.files.end, reader.end_physical_offset):
            reason = f"its {name} offset {physical_offset} is outside the log"
            result.add(FindingKind.CHECKPOINT, path, 0, reason)


def _check_config(reader: StoreReader, result: Verification) -> None:
    directory = reader.path / "config"
    for name in reader.disk.files(directory):
        if name.endswith(".json"):
            result.counts.config_files += 1
            error = _json_error(reader, directory / name)
            if error is not None:
                result.add(FindingKind.CONFIG, directory / name, error.position, error.reason)


def _json_error(reader: StoreReader, path: Path) -> BadJson | None:
    """What is wrong with the file's text; while a broker runs, it may be writing it just now."""
    found = None
    for attempt in range(TRIES if reader.is_marked_running else 1):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            file = reader.disk.open(path)
        except FileNotFoundError:
            return None
        try:
            java.loads(file.read(file.length, 0))
        except BadJson as error:
            found = error
        else:
            return None
        finally:
            file.close()
    return found
