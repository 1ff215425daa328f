"""Replica of another log: compares the overlap, appends the rest, truncates where the logs diverge."""

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
    """The part of a replica's log that was discarded because the master's log differs."""

    physical_offset: int
    lost_bytes: int
    lost_records: int

    def __str__(self) -> str:
        return (
            f"truncated at {self.physical_offset}, where the master's log differs: "
            f"{self.lost_records} records of {self.lost_bytes} bytes discarded"
        )


class CopyMark:
    """An empty file that marks log and group offsets as a copy of a master's.

    A slave creates it once it has compared its log with the master's and taken over the offsets. It is
    deleted when a master opens the store: another master may never get what this one appends. Durable; waits
    for the disk.
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
    """Return the first record within `overlap_bytes` before `end`, or an earlier one if none is complete.

    Returns `end` if there is no complete record before it. Reads the disk.
    """
    while True:
        earliest = max(end - overlap_bytes, store.log.min_offset)
        # Walk over valid records: `earliest` may be in the middle of one.
        first = next(iter(LogWalk(store.log, earliest)), None)
        if first is not None and first.physical_offset + first.size <= end:
            return first.physical_offset
        if earliest == store.log.min_offset:
            return end
        overlap_bytes *= 4


class ReplicaIntake:
    """Receives the master's bytes in order: compares those that the log already has, appends the others.

    The thread that appends to the store calls `take` with the bytes from `position` on, then the store's
    `advance`, which makes them visible.
    """

    def __init__(self, store: MessageStore, start: int, *, is_common: bool = False) -> None:
        """`start` is the start of a record or the log's end; `is_common`: the logs are equal before it."""
        self._store = store
        self._start = start
        self._is_common = is_common
        self.position = start
        """The log equals the master's up to here."""
        self.divergence: Divergence | None = None

    @property
    def is_comparing(self) -> bool:
        return self.position < self._store.appended_offset

    def take(self, physical_offset: int, data: memoryview) -> None:
        """Compare or append the next bytes.

        Raises OffsetOutOfRange for bytes from another position, LogsDiverged if no compared record was equal,
        and the errors of `append_raw`.
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
        """Truncate the log at `position`: the master has nothing behind it. Raises as `take`."""
        if self.is_comparing:
            self._cut(self.position)

    def _cut(self, difference: int) -> None:
        """Truncate the log at the start of the record with the first byte that differs."""
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
        # The master does not send the equal bytes behind the boundary again.
        kept = b""
        while (missing := difference - boundary - len(kept)) > 0:
            kept += store.read_log(boundary + len(kept), missing)
        store.truncate(boundary)
        store.append_raw(boundary, kept)
        self.position = difference


def _common_length(first: bytes, second: memoryview) -> int:
    """Return the number of equal bytes before the first difference. The inputs must differ."""
    low, high = 0, len(first)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low
