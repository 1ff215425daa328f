"""Reading the log record by record while another process writes and cleans it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from skylark.errors import OffsetOutOfRange
from skylark.model.record import BLANK, BLANK_BYTES, MAGIC_BLANK, ScannedRecord
from skylark.store.commit_log import CommitLog
from skylark.store.log_walk import Damage, LogWalk

DamageHandler = Callable[[Damage], None]


class LogScan:
    """Records of a log from an offset on, damage and deleted files stepped over. Its owner may go on writing.

    Files may vanish between two reads: the scan goes on behind them. What looked damaged because it was being
    written is read again. After the scan `end` and `stopped` say where it ended and why.
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
        """Where to go on if the file in which the walk ended is gone; None if the walk ended for good."""
        starts = self._log.files.starts
        if self._log.files.start_of(self.end) in starts:
            return None
        return next((start for start in starts if start > self.end), None)

    def is_whole(self, position: int) -> bool:
        """Whether a record or a blank is there now."""
        files = self._log.files
        if LogWalk(self._log, position).is_record(position):
            return True
        if files.start_of(position) not in files.starts:
            return False
        blank = BLANK.pack(files.start_of(position) + files.file_bytes - position, MAGIC_BLANK)
        return self._log.read(position, BLANK_BYTES) == blank


def forget_deleted(log: CommitLog) -> None:
    """Drop the files that their owner has deleted."""
    files = log.files
    files.starts = [start for start in files.starts if files.disk.exists(files.path(start))]
