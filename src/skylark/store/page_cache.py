"""Tracks which ranges of the log are in the page cache."""

from __future__ import annotations

from skylark.clock import Clock
from skylark.store.commit_log import CommitLog

RESIDENT_CHUNK_BYTES = 1 << 20
RESIDENT_CHUNKS_MAX = 4096
# The kernel may evict pages at any time: a chunk counts as resident for this long after it was seen.
RESIDENT_FOR_S = 5.0


class PageCache:
    """Chunks of the log known to be in memory; asking the kernel for each record would cost a read each."""

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._chunks: dict[int, float] = {}  # by start: when it was last seen resident
        self.written_from = 0
        """Start of the data written by this process: in the page cache while it is among the newest."""
        self.memory_bytes = 0
        """Bytes at the end of the log that are assumed to be in memory."""

    def holds(self, physical_offset: int, size: int) -> bool:
        """Return whether a record can be read without waiting for the disk."""
        file_start = self._log.files.start_of(physical_offset)
        file_end = file_start + self._log.file_bytes
        first = physical_offset - physical_offset % RESIDENT_CHUNK_BYTES
        for chunk in range(first, min(physical_offset + size, file_end), RESIDENT_CHUNK_BYTES):
            if not self._is_hot(max(chunk, file_start), min(chunk + RESIDENT_CHUNK_BYTES, file_end)):
                return False
        return True

    def _is_hot(self, start: int, end: int) -> bool:
        now, seen = self._clock.monotonic(), self._chunks.get(start)
        if seen is not None and now - seen < RESIDENT_FOR_S:
            return True
        if not self._log.is_resident(start, max(min(end, self._log.appended) - start, 0)):
            return False
        if len(self._chunks) >= RESIDENT_CHUNKS_MAX:
            self._chunks.clear()
        self._chunks[start] = now
        return True
