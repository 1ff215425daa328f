"""How far delayed messages were delivered, written with every delivery: a killed broker repeats none of them.

RocketMQ's files of this progress are written every few seconds. This one is beside them and RocketMQ ignores
it: one small write into the page cache per delivery. It counts only while the machine runs: what a killed
process wrote is whole then. A power failure may keep this file and lose what was delivered.

SIZE_AND_CRC · HEAD: boot id, end of the log i64, next slot of the timers i64 · next queue offset i64 of each
delay level from 1 on.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from pathlib import Path

from skylark.errors import DiskFull
from skylark.model.record import crc32
from skylark.store.disk import Disk, DiskFile

log = logging.getLogger(__name__)

FILE_NAME = "skylark-delivered"
FILE_BYTES = 4096
SIZE_AND_CRC = struct.Struct(">II")
HEAD = struct.Struct(">36sqq")
LEVELS_MAX = (FILE_BYTES - SIZE_AND_CRC.size - HEAD.size) // 8
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DeliveryProgress:
    """Progress of delay levels and timers. Loop thread; `load` and `clear` run before, in a thread."""

    def __init__(self, disk: Disk, directory: Path, boot: bytes) -> None:
        """`boot` names the run of the machine; nothing is written if it is empty."""
        self._disk = disk
        self._boot = boot
        self._path = directory / FILE_NAME
        self._file: DiskFile | None = None
        self.level_offsets: dict[int, int] = {}
        """By level: the queue offset of the next message to deliver."""
        self.timer_ms = 0
        """The next slot of the timers to deliver."""

    def load(self, log_end: int) -> None:
        """Take what the file holds if it counts, else forget the file. Raises OSError."""
        found = self._read()
        if found is None:
            self.clear()
            return
        boot, end, timer_ms = HEAD.unpack_from(found)
        if boot != self._boot or end > log_end:
            # Kept, it would count again once the log has grown by other messages.
            self.clear()
            return
        offsets = struct.unpack_from(f">{(len(found) - HEAD.size) // 8}q", found, HEAD.size)
        self.timer_ms = timer_ms
        self.level_offsets = {level: offset for level, offset in enumerate(offsets, 1) if offset}

    def clear(self) -> None:
        """Forget the file: the log is, or may be, another one. Raises OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.level_offsets, self.timer_ms = {}, 0
        self._disk.delete(self._path)

    def save_levels(self, offsets: Mapping[int, int], log_end: int) -> None:
        """Note a delivery of delay levels."""
        self.level_offsets = dict(offsets)
        self._save(log_end)

    def save_timers(self, next_ms: int, log_end: int) -> None:
        """Note that all timers of slots before `next_ms` are delivered."""
        self.timer_ms = next_ms
        self._save(log_end)

    def _save(self, log_end: int) -> None:
        if not self._boot:
            return
        count = min(max(self.level_offsets, default=0), LEVELS_MAX)
        offsets = [self.level_offsets.get(level, 0) for level in range(1, count + 1)]
        data = HEAD.pack(self._boot, log_end, self.timer_ms) + struct.pack(f">{count}q", *offsets)
        try:
            if self._file is None:
                self._file = self._disk.create(self._path, FILE_BYTES)
            self._file.write([SIZE_AND_CRC.pack(len(data), crc32(data)), data], 0)
        except (DiskFull, OSError) as error:
            log.warning("cannot note what was delivered; a killed broker would deliver it again: %s", error)

    def _read(self) -> bytes | None:
        """Return the content of a valid file."""
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        data = file.read(FILE_BYTES, 0)
        file.close()
        if len(data) < SIZE_AND_CRC.size:
            return None
        size, checksum = SIZE_AND_CRC.unpack_from(data)
        content = data[SIZE_AND_CRC.size : SIZE_AND_CRC.size + size]
        is_whole = HEAD.size <= size == len(content) and crc32(content) == checksum
        return content if is_whole else None


def current_boot() -> bytes:
    """Return what names this run of the machine; empty where the system does not tell."""
    try:
        return BOOT_ID.read_bytes().strip()[:36]
    except OSError:
        return b""
