"""Epochs of a log: which part each master wrote, in RocketMQ's file `epochFileCheckpoint`.

The file is text, LF at each line's end: the number of entries, the CRC-32 of the lines that follow (0: not
checked), then `epoch-start` per line. The end of an epoch is the start of the next one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from skylark.atomic_file import load_file, write_file
from skylark.errors import BadStoreFile
from skylark.model.record import crc32

log = logging.getLogger(__name__)

EPOCH_FILE = "epochFileCheckpoint"
_ENTRY = re.compile(rb"(\d{1,10})-(\d{1,19})")


class EpochEntry(NamedTuple):
    """The master of this epoch wrote the log from here on."""

    epoch: int
    start: int


class LogEpochs:
    """The epochs of one log, oldest first. Pure."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        """Raises ValueError unless epochs grow and starts do not shrink."""
        self.entries: tuple[EpochEntry, ...] = ()
        for entry in entries:
            if not self.append(entry):
                raise ValueError(f"epoch {entry.epoch} at {entry.start} follows {self.last}")

    @property
    def last(self) -> EpochEntry | None:
        return self.entries[-1] if self.entries else None

    @property
    def last_epoch(self) -> int:
        """0 without entries."""
        return self.entries[-1].epoch if self.entries else 0

    def append(self, entry: EpochEntry) -> bool:
        """Add an epoch; return False for one that is not newer, or begins before the last one.

        An epoch may begin where the last one does: that master wrote nothing, or nothing that was kept.
        RocketMQ leaves such an epoch out, so that two logs with different records may seem equal.
        """
        last = self.last
        if last is not None and (entry.epoch <= last.epoch or entry.start < last.start):
            return False
        self.entries = (*self.entries, entry)
        return True

    def cut_from(self, physical_offset: int) -> None:
        """Drop epochs that begin at an offset or behind it."""
        self.entries = tuple(entry for entry in self.entries if entry.start < physical_offset)

    def cut_before(self, physical_offset: int) -> None:
        """Drop epochs that end at an offset or before it; the last one has no end."""
        ends = [entry.start for entry in self.entries[1:]]
        dropped = sum(end <= physical_offset for end in ends)
        self.entries = self.entries[dropped:]

    def at(self, physical_offset: int) -> EpochEntry | None:
        """Return the epoch to which the byte at an offset belongs, or will; None before the first."""
        found = None
        for entry in self.entries:
            if entry.start > physical_offset:
                break
            found = entry
        return found

    def after(self, physical_offset: int) -> EpochEntry | None:
        """Return the first epoch that begins behind an offset."""
        return next((entry for entry in self.entries if entry.start > physical_offset), None)

    def _end(self, index: int, log_end: int) -> int:
        return self.entries[index + 1].start if index + 1 < len(self.entries) else log_end

    def common_end(self, own_end: int, master: LogEpochs, master_end: int) -> int | None:
        """Return up to where epochs say that a log equals a master's; None without a common epoch.

        It is the end, the lesser one, of the newest epoch that begins at the same offset in both.
        """
        theirs = {entry: index for index, entry in enumerate(master.entries)}
        for index in range(len(self.entries) - 1, -1, -1):
            other = theirs.get(self.entries[index])
            if other is not None:
                return min(self._end(index, own_end), master._end(other, master_end))
        return None


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    lines = b"".join(b"%d-%d\n" % entry for entry in entries)
    return b"%d\n%d\n%s" % (len(entries), crc32(lines), lines)


def decode_epochs(data: bytes) -> LogEpochs:
    """Raises ValueError."""
    count, _, rest = data.partition(b"\n")
    checksum, _, lines = rest.partition(b"\n")
    if not count.isdigit() or not checksum.isdigit():
        raise ValueError("begins with neither a number of entries nor a checksum")
    if int(checksum) not in (0, crc32(lines)):
        raise ValueError(f"checksum {int(checksum)} does not match {crc32(lines)}")
    entries = []
    for line in lines.splitlines():
        found = _ENTRY.fullmatch(line)
        if found is None:
            raise ValueError(f"{line[:40]!r} is not an entry such as 3-1024")
        entries.append(EpochEntry(int(found[1]), int(found[2])))
    if len(entries) != int(count):
        raise ValueError(f"{len(entries)} entries, although it says {int(count)}")
    return LogEpochs(entries)


class EpochFile:
    """The epochs of a store, each change durable when the call returns. One thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EPOCH_FILE
        self.epochs = LogEpochs()

    def load(self, log_start: int, log_end: int) -> None:
        """Load the file, without epochs that begin behind the log's end. Raises BadStoreFile, OSError."""
        self.epochs = load_file(self._path, decode_epochs) or LogEpochs()
        last = self.epochs.last
        if last is not None and last.start > log_end:
            log.warning("epochs behind the end of the log are dropped physical_offset=%d", log_end)
            self.epochs.cut_from(log_end + 1)
            self._save()
        self.epochs.cut_before(log_start)

    def append(self, entry: EpochEntry) -> None:
        """Add an epoch; one that is known already is left out. Raises BadStoreFile, OSError."""
        if entry == self.epochs.last:
            return
        if not self.epochs.append(entry):
            raise BadStoreFile(
                self._path, f"epoch {entry.epoch} at {entry.start} cannot follow {self.epochs.last}"
            )
        self._save()

    def adopt(self, epochs: LogEpochs, log_end: int) -> None:
        """Take over the epochs of a log that is equal up to an offset. Raises OSError."""
        entries = tuple(entry for entry in epochs.entries if entry.start <= log_end)
        if entries != self.epochs.entries:
            self.epochs = LogEpochs(entries)
            self._save()

    def cut_from(self, physical_offset: int) -> None:
        """Drop epochs that begin at an offset or behind it. Raises OSError."""
        self.epochs.cut_from(physical_offset)
        self._save()

    def cut_before(self, physical_offset: int) -> None:
        """Drop epochs whose part of the log was deleted, in the file with the next change."""
        self.epochs.cut_before(physical_offset)

    def _save(self) -> None:
        if self.epochs.entries:
            write_file(self._path, encode_epochs(self.epochs.entries))
        else:
            # RocketMQ reads the older version if the file is empty: neither may remain.
            for path in (self._path, self._path.with_name(EPOCH_FILE + ".bak")):
                path.unlink(missing_ok=True)
