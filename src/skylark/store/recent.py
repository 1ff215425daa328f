"""The fast path of consumers that keep up: runs of the newest messages, slices of the log's map.

What this process appended it need not check again: records and their units were made from the same numbers.
So units whose sizes add up to the distance they span lie side by side in the log, and are one slice of it;
nothing of the records is looked at. Whatever is not that simple is left to `LogReader.get`, which gives the
same answer where both give one: a property test holds them equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.gather import Gather, Part, Units, sizes_of, slices
from skylark.store.hot_chunks import HotChunks
from skylark.store.unit import UNIT_BYTES

RUN_MAX = 512
"""Units of one read."""
AHEAD_UNITS = 512
"""Units that one system call brings: those who read one run read the next."""
AHEAD_QUEUES_MAX = 256
SPANS_MAX = 16
"""Of one queue: so many may read it at once, each in a place of its own."""

_PLACE = struct.Struct(">q").unpack_from

RecentRun = tuple[int, int, int, int, list[Part]]
"""The queue's minimum and maximum, how many messages, their bytes, and the bytes themselves in few parts."""


class RecentRuns:
    """Reads what this process wrote of late. Any thread."""

    def __init__(self, log: CommitLog, hot: HotChunks, gather: Gather) -> None:
        self._log = log
        self._hot = hot
        self._gather = gather
        # By queue: its generation, the first offset, and units from there on.
        self._ahead: dict[ConsumeQueue, tuple[int, int, Units]] = {}
        # By queue: its generation, and from where to where its units were seen to fit their records.
        self._checked: dict[ConsumeQueue, tuple[int, list[tuple[int, int]]]] = {}

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
        sizes = sizes_of(units)
        taken = sum(sizes)
        first, last = _PLACE(units)[0], _PLACE(units, -UNIT_BYTES)[0]
        view = self._view(first, last + sizes[-1]) if taken <= bytes_max else None
        if view is None:
            return None
        start = first - first % self._log.file_bytes
        parts: list[Part] | None
        if first < self._hot.written_from and not self._fitted(queue, queue_offset, queue_offset + count):
            parts = self._gather.parts(view, start, units, sizes, is_checked=True)
            if parts is not None:
                self._note_fitting(queue, queue_offset, queue_offset + count)
        elif taken == last + sizes[-1] - first:
            parts = [view[first - start : first - start + taken]]
        else:  # left in parts: whoever sends them joins them with what goes before
            parts = slices(view, start, units, sizes)
        return None if parts is None else (low, high, count, taken, parts)

    def read_each(
        self, queue: ConsumeQueue, queue_offset: int, counts: Sequence[int], bytes_max: int
    ) -> list[RecentRun]:
        """What several reads give of which each goes on behind the last one: up to RUN_MAX units at once.

        Those that must be left to somebody else, and all behind them, are not there. Raises OSError.
        """
        low, high = queue.min_offset, queue.max_offset
        ends = [end for end in accumulate(counts) if 0 < end <= min(RUN_MAX, high - queue_offset)]
        if queue_offset < low or not ends:
            return []
        units = self._units(queue, queue_offset, ends[-1])
        if units is None:
            return []
        sizes = sizes_of(units)
        takes = [sum(sizes[start:end]) for start, end in pairwise((0, *ends))]
        if max(takes) > bytes_max:
            ends = ends[: next(at for at, taken in enumerate(takes) if taken > bytes_max)]
            if not ends:
                return []
            sizes, units = sizes[: ends[-1]], units[: ends[-1] * UNIT_BYTES]
        parts = self._parts(queue, queue_offset, units, sizes)
        if parts is None:
            return []
        is_joined, whole, at = len(parts) < len(sizes), memoryview(parts[0]), 0
        runs: list[RecentRun] = []
        for taken, (start, end) in zip(takes, pairwise((0, *ends)), strict=False):
            own: list[Part] = [whole[at : at + taken]] if is_joined else parts[start:end]
            runs.append((low, high, end - start, taken, own))
            at += taken
        return runs

    def _parts(
        self, queue: ConsumeQueue, queue_offset: int, units: Units, sizes: Sequence[int]
    ) -> list[Part] | None:
        """The records of units, one by one or all in one part; None if somebody else must look at them."""
        first = _PLACE(units)[0]
        view = self._view(first, _PLACE(units, -UNIT_BYTES)[0] + sizes[-1])
        if view is None:
            return None
        behind = queue_offset + len(sizes)
        is_checked = first < self._hot.written_from and not self._fitted(queue, queue_offset, behind)
        start = first - first % self._log.file_bytes
        parts = self._gather.parts(view, start, units, sizes, is_checked=is_checked)
        if is_checked and parts is not None:
            self._note_fitting(queue, queue_offset, behind)
        return parts

    def _fitted(self, queue: ConsumeQueue, first: int, behind: int) -> bool:
        """Whether units were looked at before, and fitted their records."""
        generation, spans = self._checked.get(queue, (-1, []))
        return generation == queue.generation and any(low <= first and behind <= high for low, high in spans)

    def _note_fitting(self, queue: ConsumeQueue, first: int, behind: int) -> None:
        generation, spans = self._checked.get(queue, (-1, []))
        if generation != queue.generation:
            generation, spans = queue.generation, []
        apart = [span for span in spans if span[1] < first or behind < span[0]]
        near = [span for span in spans if span not in apart]
        lows, highs = zip((first, behind), *near, strict=True)
        if queue not in self._checked and len(self._checked) >= AHEAD_QUEUES_MAX:
            self._checked.clear()
        self._checked[queue] = generation, [*apart[-SPANS_MAX + 1 :], (min(lows), max(highs))]

    def _view(self, first: int, end: int) -> memoryview | None:
        """The map of the file that holds a stretch of the log, if that is in memory."""
        log, hot = self._log, self._hot
        start = first - first % log.file_bytes
        if end > start + log.file_bytes or first < log.appended - hot.memory_bytes:
            return None
        if first < hot.written_from and not (first < end and hot.holds(first, end - first)):
            return None
        return log.views.get(start)

    def _units(self, queue: ConsumeQueue, first: int, count: int) -> Units | None:
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
