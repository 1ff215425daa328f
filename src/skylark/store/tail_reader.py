"""The fast read path of consumers that keep up: the newest messages as slices of the log's map.

Records that this process appended are not checked again: a record and its entry were made from the same
numbers. Entries whose sizes add up to the distance they span are contiguous in the log and become one
slice. `LogReader.get` handles every other case, and a property test checks that both return the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from threading import Thread

from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.page_cache import PageCache
from skylark.store.queue_entry import ENTRY_BYTES

JOINED_RECORD_BYTES = 4096
"""Records that are smaller on average are copied together: that costs less than many parts do later."""
ARROW_ENTRIES_MIN = 128
"""The records of so many units Arrow copies together in a third of the time. Only readers of a backlog, who
ask far ahead, come to so many: nobody else makes a broker load it."""
UNPACKERS_KEPT = 256

_PLACE = struct.Struct(">q").unpack_from
_SIZE = struct.Struct(">i").unpack_from

Part = bytes | memoryview
Entries = bytes | bytearray


class Gather:
    """Gathers records; with Arrow, if that is installed, once somebody has asked for many. Any thread."""

    def __init__(self) -> None:
        self._by_arrow: Callable[[memoryview, int, Entries], memoryview | None] | None = None
        self._loading: Thread | None = None

    def load(self) -> None:
        """Load Arrow, if it is installed. That takes a fifth of a second: not while somebody waits."""
        with suppress(ImportError):
            from skylark.store.arrow_gather import gather  # noqa: PLC0415 (an extra)

            self._by_arrow = gather

    def parts(
        self, view: memoryview, start: int, units: Entries, sizes: Sequence[int], *, is_checked: bool
    ) -> list[Part] | None:
        """The records of units, of a file that starts at `start`, in few parts.

        None if they do not lie there, one behind the other. `is_checked`: also if one of them does not have
        the size that its unit claims.
        """
        first, last, taken = _PLACE(units)[0] - start, _PLACE(units, -ENTRY_BYTES)[0] - start, sum(sizes)
        is_joined = taken <= JOINED_RECORD_BYTES * len(sizes)
        if not is_checked and taken == last + sizes[-1] - first:  # side by side
            is_there = first >= 0 and _places(units, len(sizes)) is not None
            records: list[Part] | None = [view[first : first + taken]] if is_there else None
        elif is_joined:
            records = self._joined(view, start, units, sizes)
        else:
            records = slices(view, start, units, sizes)
        if records is None or sum(map(len, records)) != taken:
            return None
        if is_checked:
            fit = fits(records[0], sizes) if is_joined else all(map(fits, records, zip(sizes)))
            return records if fit else None
        return records

    def _joined(
        self, view: memoryview, start: int, units: Entries, sizes: Sequence[int]
    ) -> list[Part] | None:
        if len(sizes) >= ARROW_ENTRIES_MIN:
            if self._loading is None:
                self._loading = Thread(target=self.load, name="skylark-arrow", daemon=True)
                self._loading.start()
            if self._by_arrow is not None:
                data = self._by_arrow(view, start, units)
                return None if data is None else [data]
        # Nothing has looked at the records yet: so the processor fetches many of them from memory at once.
        records = slices(view, start, units, sizes)
        return None if records is None else [b"".join(records)]


def slices(view: memoryview, start: int, units: Entries, sizes: Sequence[int]) -> list[Part] | None:
    """The records of units one by one where they lie; None if they do not lie one behind the other."""
    places = _places(units, len(sizes))
    if places is None or places[0] < start:
        return None
    return [view[(at := place - start) : at + size] for place, size in zip(places, sizes, strict=True)]


def fits(data: Part, sizes: Sequence[int]) -> bool:
    """Whether records that lie one behind the other have the sizes that their units claim."""
    size_at = _SIZE
    starts = islice(accumulate(sizes, initial=0), len(sizes))
    try:
        return [size_at(data, start)[0] for start in starts] == list(sizes)
    except struct.error:
        return False  # a blank or damaged unit pointed out of the file


def sizes_of(units: Entries) -> tuple[int, ...]:
    """How large the records of units are."""
    return _unpacker("8xi8x", len(units) // ENTRY_BYTES)(units)


def _places(units: Entries, count: int) -> tuple[int, ...] | None:
    """Where records lie; None if not one behind the other."""
    places = _unpacker("q12x", count)(units)
    return places if places == tuple(sorted(places)) else None


@lru_cache(UNPACKERS_KEPT)
def _unpacker(unit: str, count: int) -> Callable[[Entries], tuple[int, ...]]:
    return struct.Struct(">" + unit * count).unpack


READ_ENTRIES_MAX = 512
"""Units of one read."""
READ_AHEAD_ENTRIES = 512
"""Units that one system call brings: those who read one run read the next."""
READ_AHEAD_QUEUES_MAX = 256
SPANS_MAX = 16
"""Of one queue: so many may read it at once, each in a place of its own."""


TailBatch = tuple[int, int, int, int, list[Part]]
"""The queue's minimum and maximum, how many messages, their bytes, and the bytes themselves in few parts."""


class TailReader:
    """Reads what this process wrote of late. Any thread."""

    def __init__(self, log: CommitLog, hot: PageCache, gather: Gather) -> None:
        self._log = log
        self._hot = hot
        self._gather = gather
        # By queue: its generation, the first offset, and units from there on.
        self._ahead: dict[ConsumeQueue, tuple[int, int, Entries]] = {}
        # By queue: its generation, and from where to where its units were seen to fit their records.
        self._checked: dict[ConsumeQueue, tuple[int, list[tuple[int, int]]]] = {}

    def read(
        self, queue: ConsumeQueue, queue_offset: int, count_max: int, bytes_max: int
    ) -> TailBatch | None:
        """Messages from an offset on; None where somebody else must say what there is. Raises OSError."""
        low, high = queue.min_offset, queue.max_offset
        count = min(count_max, high - queue_offset)
        if queue_offset < low or not 0 < count <= READ_ENTRIES_MAX:
            return None
        units = self._units(queue, queue_offset, count)
        if units is None:
            return None
        sizes = sizes_of(units)
        taken = sum(sizes)
        first, last = _PLACE(units)[0], _PLACE(units, -ENTRY_BYTES)[0]
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
    ) -> list[TailBatch]:
        """What several reads give of which each goes on behind the last one: up to RUN_MAX units at once.

        Those that must be left to somebody else, and all behind them, are not there. Raises OSError.
        """
        low, high = queue.min_offset, queue.max_offset
        ends = [end for end in accumulate(counts) if 0 < end <= min(READ_ENTRIES_MAX, high - queue_offset)]
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
            sizes, units = sizes[: ends[-1]], units[: ends[-1] * ENTRY_BYTES]
        parts = self._parts(queue, queue_offset, units, sizes)
        if parts is None:
            return []
        is_joined, whole, at = len(parts) < len(sizes), memoryview(parts[0]), 0
        runs: list[TailBatch] = []
        for taken, (start, end) in zip(takes, pairwise((0, *ends)), strict=False):
            own: list[Part] = [whole[at : at + taken]] if is_joined else parts[start:end]
            runs.append((low, high, end - start, taken, own))
            at += taken
        return runs

    def _parts(
        self, queue: ConsumeQueue, queue_offset: int, units: Entries, sizes: Sequence[int]
    ) -> list[Part] | None:
        """The records of units, one by one or all in one part; None if somebody else must look at them."""
        first = _PLACE(units)[0]
        view = self._view(first, _PLACE(units, -ENTRY_BYTES)[0] + sizes[-1])
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
        if queue not in self._checked and len(self._checked) >= READ_AHEAD_QUEUES_MAX:
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

    def _units(self, queue: ConsumeQueue, first: int, count: int) -> Entries | None:
        """`count` published units, if they are in memory and in one file."""
        wanted = count * ENTRY_BYTES
        known = self._ahead.get(queue)
        if known is not None:
            generation, start, units = known
            at = (first - start) * ENTRY_BYTES
            if generation == queue.generation and 0 <= at <= len(units) - wanted:
                return units[at : at + wanted]
        generation = queue.generation
        ahead = queue.resident_units(first, max(count, READ_AHEAD_ENTRIES))
        if ahead is None or len(ahead) < wanted:
            return None
        if len(self._ahead) >= READ_AHEAD_QUEUES_MAX:
            self._ahead.clear()
        self._ahead[queue] = generation, first, ahead
        return ahead[:wanted]
