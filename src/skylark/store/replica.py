"""A log that follows another: where to begin, what to compare, and where to cut when the two differ."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from skylark.errors import LogsDiverged, OffsetOutOfRange
from skylark.store.disk import Disk
from skylark.store.log_scan import LogWalk
from skylark.store.message_store import MessageStore

log = logging.getLogger(__name__)

COPY_MARK = "skylark-copy"


@dataclass(frozen=True)
class Divergence:
    """What a replica threw away because its master has something else there."""

    physical_offset: int
    lost_bytes: int
    lost_records: int

    def __str__(self) -> str:
        return (
            f"cut at {self.physical_offset}, where the master's log differs: "
            f"{self.lost_records} records of {self.lost_bytes} bytes are gone"
        )


class CopyMark:
    """An empty file that says: all that this log holds is a master's, and so are the offsets of groups.

    It is there from when a slave has compared its log with a master's, and has taken the offsets, until the
    store is opened by a master: what that one appends, another master may never get. Durable; waits for the
    disk.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / COPY_MARK

    @property
    def is_set(self) -> bool:
        return self._disk.exists(self._path)

    def set(self) -> None:
        """Raises OSError, DiskFull."""
        self._disk.create(self._path, 0).close()
        self._disk.sync_directory(self._path.parent)

    def clear(self) -> None:
        """Raises OSError."""
        if self.is_set:
            self._disk.delete(self._path)
            self._disk.sync_directory(self._path.parent)


def overlap_start(store: MessageStore, end: int, overlap_bytes: int) -> int:
    """The first record within `overlap_bytes` before `end`, or an earlier one if none is whole there.

    `end` where there is no whole record before it: part of one would prove nothing. Reads the disk.
    """
    while True:
        earliest = max(end - overlap_bytes, store.log.min_offset)
        # By a walk over valid records: the bytes there may be the middle of one.
        first = next(iter(LogWalk(store.log, earliest)), None)
        if first is not None and first.physical_offset + first.size <= end:
            return first.physical_offset
        if earliest == store.log.min_offset:
            return end
        overlap_bytes *= 4


class ReplicaIntake:
    """Takes the master's bytes in order: compares those that the log has already, and appends the others.

    Whoever appends to the store gives it bytes, from `position` on, and calls the store's `advance` after
    that, which makes them visible.
    """

    def __init__(self, store: MessageStore, start: int, *, is_common: bool = False) -> None:
        """`start` is where a record begins, or the end of the log; `is_common`: what lies before is equal."""
        self._store = store
        self._start = start
        self._is_common = is_common
        self.position = start
        """Up to here the log is as the master's."""
        self.divergence: Divergence | None = None

    @property
    def is_comparing(self) -> bool:
        return self.position < self._store.appended_offset

    def take(self, physical_offset: int, data: memoryview) -> None:
        """Compare or append what comes next.

        Raises OffsetOutOfRange for bytes that do not come next, LogsDiverged where no record compared was
        equal, and what `append_raw` raises.
        """
        if physical_offset != self.position:
            raise OffsetOutOfRange(physical_offset, self.position, self.position)
        while data and self.is_comparing:
            own = self._store.read_log(self.position, len(data))
            part = data[: len(own)]
            if own != part:
                self._cut(self.position + _common_length(own, part))
            else:
                self.position += len(part)
            data = data[self.position - physical_offset :]
            physical_offset = self.position
        if data:
            self._store.append_raw(self.position, data, publish_later=True)
            self.position += len(data)

    def cut_rest(self) -> None:
        """Cut off what lies behind the position: the master has not got it. Raises as `take`."""
        if self.is_comparing:
            self._cut(self.position)

    def _cut(self, difference: int) -> None:
        """Cut the log where the record begins in which the first byte lies that the master has not."""
        boundary, store = self._start, self._store
        for record in LogWalk(store.log, self._start):
            if record.physical_offset > difference:
                break
            if record.physical_offset + record.size > difference:
                boundary = record.physical_offset
                break
            boundary = record.physical_offset + record.size
        if boundary == self._start and not self._is_common:
            raise LogsDiverged(self._start)
        end = store.appended_offset
        records = sum(1 for _ in LogWalk(store.log, boundary))
        self.divergence = Divergence(boundary, end - boundary, records)
        log.critical("log diverged from the master's: %s", self.divergence)
        # What was equal behind the boundary, of a record or a blank, is not sent again.
        kept = b""
        while (missing := difference - boundary - len(kept)) > 0:
            kept += store.read_log(boundary + len(kept), missing)
        store.truncate(boundary)
        store.append_raw(boundary, kept)
        self.position = difference


def _common_length(first: bytes, second: memoryview) -> int:
    """How many bytes are equal before the first that differs. They do differ."""
    low, high = 0, len(first)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low
