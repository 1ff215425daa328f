"""The fast path of consumers that keep up: runs of the newest messages, slices of the log's map.

What this process appended it need not check again: records and their units were made from the same numbers.
So units whose sizes add up to the distance they span lie side by side in the log, and are one slice of it;
nothing of the records is looked at. Whatever is not that simple is left to `LogReader.get`, which gives the
same answer where both give one: a property test holds them equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.hot_chunks import HotChunks
from skylark.store.unit import UNIT_BYTES

RUN_MAX = 256
"""Units of one read."""
AHEAD_UNITS = 256
"""Units that one system call brings: those who read one run read the next."""
AHEAD_QUEUES_MAX = 256

_POSITION = struct.Struct(">q").unpack_from
_SIZE = struct.Struct(">i").unpack_from

RecentRun = tuple[int, int, int, int, list[memoryview]]
"""The queue's minimum and maximum, how many messages, their bytes, and the bytes themselves in few parts."""


class RecentRuns:
    """Reads what this process wrote of late. Any thread."""

    def __init__(self, log: CommitLog, hot: HotChunks) -> None:
        self._log = log
        self._hot = hot
        # By queue: its generation, the first offset, and units from there on.
        self._ahead: dict[ConsumeQueue, tuple[int, int, bytes | bytearray]] = {}

    def read(
        self, queue: ConsumeQueue, queue_offset: int, count_max: int, bytes_max: int
    ) -> RecentRun | None:
        """Messages from an offset on; None where somebody else must say what there is. Raises OSError."""
        low, high = queue.min_offset, queue.max_offset
        count = min(count_max, high - queue_offset)
        if queue_offset < low or not 0 < count <= RUN_MAX:
            return None
        units = self._units(queue, queue_offset, count)
        if units is None:
            return None
        log, sizes = self._log, sizes_of(count)(units)
        taken = sum(sizes)
        first, last = _POSITION(units)[0], _POSITION(units, (count - 1) * UNIT_BYTES)[0]
        start = first - first % log.file_bytes
        end = last + sizes[-1]
        view = log.views.get(start)
        if (
            view is None
            or taken > bytes_max
            or end > start + log.file_bytes
            or first < log.appended - self._hot.memory_bytes
        ):
            return None
        if first < self._hot.written_from:
            if not first < end or not self._hot.holds(first, end - first):
                return None
            records = checked_slices(view, start, positions_of(count)(units), sizes)
            return None if records is None else (low, high, count, taken, records)
        if taken == end - first:
            return low, high, count, taken, [view[first - start : end - start]]
        places = zip(positions_of(count)(units), sizes, strict=True)
        return low, high, count, taken, [view[at - start : at - start + size] for at, size in places]

    def _units(self, queue: ConsumeQueue, first: int, count: int) -> bytes | bytearray | None:
        """`count` published units, if they are in memory and in one file."""
        wanted = count * UNIT_BYTES
        known = self._ahead.get(queue)
        if known is not None:
            generation, start, units = known
            at = (first - start) * UNIT_BYTES
            if generation == queue.generation and 0 <= at <= len(units) - wanted:
                return units[at : at + wanted]
        generation = queue.generation
        ahead = queue.resident_units(first, max(count, AHEAD_UNITS))
        if ahead is None or len(ahead) < wanted:
            return None
        if len(self._ahead) >= AHEAD_QUEUES_MAX:
            self._ahead.clear()
        self._ahead[queue] = generation, first, ahead
        return ahead[:wanted]


def checked_slices(
    view: memoryview, start: int, places: Sequence[int], sizes: Sequence[int]
) -> list[memoryview] | None:
    """Records of a file that starts at `start`, if each has the size that its unit claims."""
    size_at = _SIZE
    try:
        records = [
            view[place - start : place - start + size]
            for place, size in zip(places, sizes, strict=True)
            if size_at(view, place - start)[0] == size
        ]
    except struct.error:
        return None  # a blank or damaged unit points out of the file
    return records if len(records) == len(sizes) and min(places) >= start else None


@lru_cache(RUN_MAX)
def sizes_of(count: int) -> Callable[[bytes | bytearray], tuple[int, ...]]:
    return struct.Struct(">" + "8xi8x" * count).unpack


@lru_cache(RUN_MAX)
def positions_of(count: int) -> Callable[[bytes | bytearray], tuple[int, ...]]:
    return struct.Struct(">" + "q12x" * count).unpack
