"""The timers' check point: up to which time slots are done with, and how much of the queue is in the wheel.

Seven i64 begin a page of zeros: last read time · flushed position of the log · queue offset · the master's
queue offset · state version · timestamp · counter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from skylark.store.disk import Disk, DiskFile

FIELDS = struct.Struct(">qqqqqqq")
assert FIELDS.size == 56
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """What a restart goes on from."""

    read_ms: int = 0
    log_flushed: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    @staticmethod
    def decode(data: bytes) -> TimerCheck:
        return TimerCheck(*FIELDS.unpack_from(data))

    def encode(self) -> bytes:
        """The bytes that are also the answer to who asks for them."""
        return FIELDS.pack(
            self.read_ms,
            self.log_flushed,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.timestamp,
            self.counter,
        )


class TimerCheckFile:
    """The check point on disk, rewritten in place. One thread at a time."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None

    def load(self) -> TimerCheck | None:
        """What was saved last; None if that is nothing. Raises OSError."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        data = file.read(FIELDS.size, 0)
        file.close()
        return TimerCheck.decode(data) if len(data) == FIELDS.size and any(data) else None

    def save(self, check: TimerCheck) -> None:
        """Return when it is on the medium. Raises DiskFull, OSError."""
        if self._file is None:
            self._file = self._disk.create(self._path, PAGE_BYTES)
            self._disk.sync_directory(self._path.parent)
        self._file.write([check.encode()], 0)
        self._file.sync()
