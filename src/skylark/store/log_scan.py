"""Scans the log record by record: for recovery, for replicas, and beside another process that writes it.

A scan ends behind the last valid record; unreadable ranges before that are reported as damage and
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from skylark.errors import CorruptRecord, OffsetOutOfRange
from skylark.model.record import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Scan,
    ScannedRecord,
    ScanStop,
    split,
)
from skylark.store.commit_log import CommitLog
from skylark.store.queue_entry import message_count

SCAN_BYTES = 4 << 20
ZEROS_MAX = 8 << 20
RECORD_BYTES_MAX = 64 << 20
_ZEROS = bytes(SCAN_BYTES)
_MAGICS = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))


@dataclass(frozen=True, slots=True)
class LogDamage:
    """A range of the log without valid records."""

    physical_from: int
    physical_to: int
    reason: str
    lost: tuple[str, int, int] | None = None
    """Topic, queue id and the queue offset behind the lost record, if its head is readable."""

    def __str__(self) -> str:
        return f"log damaged from {self.physical_from} to {self.physical_to}: {self.reason}"


class LogWalk:
    """Iterates over the records from an offset on, skipping damage; afterwards `end` is the log's end."""

    def __init__(
        self,
        commit_log: CommitLog,
        start: int,
        *,
        require_crc_property: bool = False,
        end: int | None = None,
        step_over_damage: bool = True,
        refuse_zeros: bool = False,
    ) -> None:
        self._limit = end
        self._refuse_zeros = refuse_zeros
        self._log = commit_log
        self._require_crc_property = require_crc_property
        self._step_over_damage = step_over_damage
        self.end = start
        self.damages: list[LogDamage] = []
        self.stopped = ""
        """Why no record was read at the end."""

    def __iter__(self) -> Iterator[ScannedRecord]:
        files, file_bytes = self._log.files, self._log.file_bytes
        position: int | None = self.end
        chunk_bytes = SCAN_BYTES
        # Never behind the log's end: a record that is still arriving may look complete if its rest is zeros.
        end = self._log.appended if self._limit is None else min(self._log.appended, self._limit)
        while position is not None and position < end and files.start_of(position) in files.starts:
            file_end = files.start_of(position) + file_bytes
            data = self._log.read(position, min(chunk_bytes, end - position))
            scan = Scan(
                data,
                position,
                file_end,
                require_crc_property=self._require_crc_property,
                refuse_zeros=self._refuse_zeros,
            )
            for record in scan:
                yield record
                self.end = record.physical_offset + record.size
            at = scan.physical_offset
            whole = (
                position + len(data) >= file_end or len(data) < chunk_bytes or chunk_bytes >= RECORD_BYTES_MAX
            )
            if scan.stop is ScanStop.NEED_MORE and (at > position or not whole):
                # A record larger than the chunk is read again with a larger chunk.
                chunk_bytes = SCAN_BYTES if at > position else chunk_bytes * 4
                position = at
            else:
                chunk_bytes = SCAN_BYTES
                position = self._after(scan, file_end)

    def _after(self, scan: Scan, file_end: int) -> int | None:
        """Return where to continue behind the last valid record, or None at the log's end."""
        at = scan.physical_offset
        if scan.stop is ScanStop.BLANK or at == file_end:
            self.end = file_end
            return self._next_file(file_end)
        self.stopped = scan.reason or "record is truncated"
        if not self._step_over_damage:
            return None
        found = self._find_record(at + 1, file_end)
        if found is None:
            return None
        self.damages.append(LogDamage(at, found, self.stopped, self._lost_at(at)))
        return found

    def _lost_at(self, position: int) -> tuple[str, int, int] | None:
        size = int.from_bytes(self._log.read(position, 4), "big", signed=True)
        try:
            head, _, topic, text = split(self._log.read(position, min(max(size, 0), RECORD_BYTES_MAX)))
        except CorruptRecord:
            return None
        return topic.decode(errors="replace"), head[3], head[5] + message_count(head[7], text)

    def _next_file(self, file_end: int) -> int | None:
        later = next((start for start in self._log.files.starts if start >= file_end), None)
        if later is not None and later != file_end:
            found = self._find_record(file_end, file_end)
            if found is not None:
                self.damages.append(LogDamage(file_end, later, "commit log file is missing"))
            return found
        return later

    def _find_record(self, position: int, file_end: int) -> int | None:
        """Return the start of the next valid record, in this file or at the start of a later one.

        ZEROS_MAX bytes of zeros end the search in this file: nothing was written there.
        """
        zeros = 0
        while position < file_end and zeros < ZEROS_MAX:
            data = self._log.read(position, SCAN_BYTES)
            zeros = zeros + len(data) if data == _ZEROS or not data.strip(b"\0") else 0
            for at in (
                sorted(at for magic in _MAGICS for at in _occurrences(data, magic)) if not zeros else ()
            ):
                if at >= 4 and self.is_record(position + at - 4):
                    return position + at - 4
            # Overlap the chunks: size and magic may cross the border.
            position += max(len(data) - 7, 1)
        return next(
            (start for start in self._log.files.starts if start >= file_end and self.is_record(start)), None
        )

    def is_record(self, position: int) -> bool:
        """Return whether a complete, valid record starts there."""
        return self.record_at(position) is not None

    def record_at(self, position: int) -> ScannedRecord | None:
        """Return the complete, valid record that starts there, or None."""
        start = self._log.files.start_of(position)
        if position < 0 or start not in self._log.files.starts:
            return None
        size = int.from_bytes(self._log.read(position, 4), "big", signed=True)
        if not 0 < size <= min(start + self._log.file_bytes - position, RECORD_BYTES_MAX):
            return None
        scan = Scan(
            self._log.read(position, size),
            position,
            start + self._log.file_bytes,
            require_crc_property=self._require_crc_property,
            refuse_zeros=self._refuse_zeros,
        )
        return next(iter(scan), None)


def _occurrences(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


DamageHandler = Callable[[LogDamage], None]


class LiveLogScan:
    """Iterates over the records of a log while its owner writes it, skipping damage and deleted files.

    If a file is deleted between two reads, the scan continues behind it. A record that looked damaged because
    it was being written is read again. Afterwards `end` and `stopped` tell where the scan ended and why.
    """

    def __init__(self, log: CommitLog, start: int, on_damage: DamageHandler | None = None) -> None:
        self._log = log
        self._on_damage = on_damage
        self.end = start
        self.stopped = ""

    def __iter__(self) -> Iterator[ScannedRecord]:
        start: int | None = self.end
        while start is not None:
            walk = LogWalk(self._log, start)
            reported = 0
            try:
                for record in walk:
                    if len(walk.damages) > reported:
                        damage = walk.damages[reported]
                        if self.is_whole(damage.physical_from):
                            break
                        reported += 1
                        if self._on_damage is not None:
                            self._on_damage(damage)
                    yield record
            except OffsetOutOfRange:
                forget_deleted(self._log)
            self.end, self.stopped = walk.end, walk.stopped
            start = walk.damages[-1].physical_from if len(walk.damages) > reported else self._behind_deleted()

    def _behind_deleted(self) -> int | None:
        """Return where to continue if the file in which the walk ended was deleted; else None."""
        starts = self._log.files.starts
        if self._log.files.start_of(self.end) in starts:
            return None
        return next((start for start in starts if start > self.end), None)

    def is_whole(self, position: int) -> bool:
        """Return whether a valid record or a blank starts there."""
        files = self._log.files
        if LogWalk(self._log, position).is_record(position):
            return True
        if files.start_of(position) not in files.starts:
            return False
        blank = BLANK.pack(files.start_of(position) + files.file_bytes - position, MAGIC_BLANK)
        return self._log.read(position, BLANK_BYTES) == blank


def forget_deleted(log: CommitLog) -> None:
    """Drop files that the log's owner has deleted."""
    files = log.files
    files.starts = [start for start in files.starts if files.disk.exists(files.path(start))]
