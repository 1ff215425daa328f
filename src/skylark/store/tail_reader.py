"""The fast read path of consumers that keep up: the newest messages as slices of the log's map.

Records that this process appended are not checked again: a record and its entry were made from the same
numbers. Entries whose sizes add up to the distance they span are contiguous in the log and become one
slice. `LogReader.get` handles every other case, and a property test checks that both return the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, islice, pairwise

from skylark.accelerator import join_records as _join_records
from skylark.store.batch_consume_queue import BatchConsumeQueue, batch_entries
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.page_cache import PageCache
from skylark.store.queue_entry import ENTRY_BYTES

JOINED_RECORD_BYTES = 4096
"""Records up to this average size are copied into one part: cheaper than writing many parts later."""
JOINER_ENTRIES_MIN = 256
"""Entries per read from which `TailReader.joiner` is used: setting it up costs more for fewer."""
FILTERED_ENTRIES_MIN = 32
"""Entries whose records a filter looks at, at a time."""
UNPACKERS_KEPT = 256

_PLACE = struct.Struct(">q").unpack_from
_SIZE = struct.Struct(">i").unpack_from

TagsFilter = Callable[[int], bool]
"""Returns whether an entry with this tags code matches."""
RecordFilter = Callable[[memoryview, int, int], bool]
"""Returns whether the record from one position of a file to another matches."""
Part = bytes | memoryview
Entries = bytes | bytearray


Joiner = Callable[[memoryview, int, Entries], memoryview | None]
"""Copies the records of entries, of a file that starts at an offset, into one part; None if it cannot."""


def record_parts(
    view: memoryview,
    start: int,
    entries: Entries,
    sizes: Sequence[int],
    joiner: Joiner | None = None,
    *,
    is_checked: bool,
) -> list[Part] | None:
    """Return the records of entries, of a file that starts at `start`, in few parts.

    None if they are not in this file in ascending order; with `is_checked` also if a record does not have
    the size of its entry.
    """
    first, last = _PLACE(entries)[0] - start, _PLACE(entries, -ENTRY_BYTES)[0] - start
    taken = sum(sizes)
    is_joined = taken <= JOINED_RECORD_BYTES * len(sizes)
    if not is_checked and taken == last + sizes[-1] - first:  # contiguous
        is_there = first >= 0 and _places(entries, len(sizes)) is not None
        records: list[Part] | None = [view[first : first + taken]] if is_there else None
    elif is_joined:
        records = _joined(view, start, entries, sizes, joiner)
    else:
        records = slices(view, start, entries, sizes)
    if records is None or sum(map(len, records)) != taken:
        return None
    if is_checked:
        fit = fits(records[0], sizes) if is_joined else all(map(fits, records, zip(sizes)))
        return records if fit else None
    return records


def _joined(
    view: memoryview, start: int, entries: Entries, sizes: Sequence[int], joiner: Joiner | None
) -> list[Part] | None:
    if joiner is not None and len(sizes) >= JOINER_ENTRIES_MIN:
        data = joiner(view, start, entries)
        return None if data is None else [data]
    joined = None if _join_records is None else _join_records(view, start, entries)
    if joined is not None:
        return [joined]
    # The records are not read before the join, so the processor prefetches many of them at once.
    records = slices(view, start, entries, sizes)
    return None if records is None else [b"".join(records)]


def slices(view: memoryview, start: int, entries: Entries, sizes: Sequence[int]) -> list[Part] | None:
    """Return each record of entries as a slice; None if they are not in ascending order."""
    places = _places(entries, len(sizes))
    if places is None or places[0] < start:
        return None
    return [view[(at := place - start) : at + size] for place, size in zip(places, sizes, strict=True)]


def fits(data: Part, sizes: Sequence[int]) -> bool:
    """Return whether adjacent records have the sizes of their entries."""
    size_at = _SIZE
    starts = islice(accumulate(sizes, initial=0), len(sizes))
    try:
        return [size_at(data, start)[0] for start in starts] == list(sizes)
    except struct.error:
        return False  # a blank or damaged entry points outside of the file


def sizes_of(entries: Entries) -> tuple[int, ...]:
    """Return the record sizes of entries."""
    return _unpacker("8xi8x", len(entries) // ENTRY_BYTES)(entries)


def _codes_of(entries: Entries) -> tuple[int, ...]:
    """Return the tags codes of entries."""
    return _unpacker("12xq", len(entries) // ENTRY_BYTES)(entries)


def _places(entries: Entries, count: int) -> tuple[int, ...] | None:
    """Return the physical offsets of entries; None if they are not ascending."""
    places = _unpacker("q12x", count)(entries)
    return places if places == tuple(sorted(places)) else None


def _chosen(entries: Entries, numbers: list[int]) -> Entries:
    """Return the entries with these numbers, which ascend."""
    if len(numbers) * ENTRY_BYTES == len(entries):
        return entries
    return b"".join([entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES] for number in numbers])


@lru_cache(UNPACKERS_KEPT)
def _unpacker(entry: str, count: int) -> Callable[[Entries], tuple[int, ...]]:
    return struct.Struct(">" + entry * count).unpack


READ_ENTRIES_MAX = 512
"""Entries per read."""
READ_AHEAD_ENTRIES = 512
"""Entries read by one system call: a sequential reader needs the next ones soon."""
READ_AHEAD_QUEUES_MAX = 256
SPANS_MAX = 16
"""Checked ranges remembered per queue: one for each concurrent reader."""


TailBatch = tuple[int, int, int, int, int, list[Part]]
"""The queue's minimum and maximum offset, the next offset to read, message count, total bytes, and the
records in few parts."""


class TailReader:
    """Reads records that are in the page cache, most of them recently written by this process. Any thread."""

    def __init__(self, log: CommitLog, hot: PageCache) -> None:
        self._log = log
        self._hot = hot
        self.joiner: Joiner | None = None
        """Faster than joining slices for many scattered records; set by the caller that serves bulk reads."""
        # By queue: its generation, the first offset, and entries from there on.
        self._ahead: dict[ConsumeQueue, tuple[int, int, Entries]] = {}
        # By queue: its generation, and the ranges of entries that were checked against their records.
        self._checked: dict[ConsumeQueue, tuple[int, list[tuple[int, int]]]] = {}

    def read(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        tags_filter: TagsFilter | None = None,
        record_filter: RecordFilter | None = None,
        scan_max: int = 0,
    ) -> TailBatch | None:
        """Return messages from an offset on; None if `LogReader.get` must read them. Raises OSError.

        A filter, of tags or of records, looks at up to `scan_max` entries, or at `count_max`. Batch queues
        are read without a filter only.
        """
        if isinstance(queue, BatchConsumeQueue):
            return self._read_batches(queue, queue_offset, count_max, bytes_max)
        low, high = queue.min_offset, queue.max_offset
        count = min(count_max, high - queue_offset)
        if queue_offset < low or not 0 < count <= READ_ENTRIES_MAX:
            return None
        next_offset, entries = queue_offset + count, self._entries(queue, queue_offset, count)
        if entries is None:
            return None
        scanned = min(max(scan_max, count), high - queue_offset)
        parts: list[Part] | None = None
        if tags_filter is not None and not all(map(tags_filter, _codes_of(entries))):
            scanned = min(scanned, READ_ENTRIES_MAX)
            next_offset, entries = self._matching(queue, queue_offset, scanned, count, tags_filter)
        elif record_filter is not None:
            next_offset, entries, parts = self._matching_records(
                queue, queue_offset, scanned, count, record_filter
            )
        if not entries:
            return None
        sizes = sizes_of(entries)
        count, taken = len(sizes), sum(sizes)
        if parts is not None and taken <= bytes_max:
            return low, high, next_offset, count, taken, parts
        first, last = _PLACE(entries)[0], _PLACE(entries, -ENTRY_BYTES)[0]
        view = self._view(first, last + sizes[-1]) if taken <= bytes_max else None
        if view is None:
            return None
        start = first - first % self._log.file_bytes
        if first < self._hot.written_from and not self._fitted(queue, queue_offset, next_offset):
            parts = record_parts(view, start, entries, sizes, self.joiner, is_checked=True)
            if parts is not None and next_offset == queue_offset + count:
                self._note_fitting(queue, queue_offset, next_offset)
        elif taken == last + sizes[-1] - first:
            parts = [view[first - start : first - start + taken]]
        elif _join_records is not None and taken <= JOINED_RECORD_BYTES * count:
            parts = _joined(view, start, entries, sizes, self.joiner)
        else:  # not joined: the connection joins them with the reply's head
            parts = slices(view, start, entries, sizes)
        return None if parts is None else (low, high, next_offset, count, taken, parts)

    def _read_batches(
        self, queue: BatchConsumeQueue, queue_offset: int, count_max: int, bytes_max: int
    ) -> TailBatch | None:
        low, high = queue.min_offset, queue.max_offset
        if not low <= queue_offset < high:
            return None
        entries, ends = batch_entries(queue, queue_offset, count_max, may_block=False)
        if not entries:
            return None
        sizes = sizes_of(entries)
        first, taken = _PLACE(entries)[0], sum(sizes)
        view = self._view(first, _PLACE(entries, -ENTRY_BYTES)[0] + sizes[-1]) if taken <= bytes_max else None
        if view is None:
            return None
        start, is_checked = first - first % self._log.file_bytes, first < self._hot.written_from
        parts = record_parts(view, start, entries, sizes, is_checked=is_checked)
        return None if parts is None else (low, high, ends[-1], ends[-1] - queue_offset, taken, parts)

    def _matching(
        self, queue: ConsumeQueue, queue_offset: int, scanned: int, count: int, tags_filter: TagsFilter
    ) -> tuple[int, Entries]:
        """Return the offset behind the first `count` matching entries, and these; none if there are fewer."""
        entries = self._entries(queue, queue_offset, scanned) or b""
        numbers = [number for number, code in enumerate(_codes_of(entries)) if tags_filter(code)][:count]
        if len(numbers) < count:
            return queue_offset, b""
        return queue_offset + numbers[-1] + 1, _chosen(entries, numbers)

    def _matching_records(
        self, queue: ConsumeQueue, queue_offset: int, scanned: int, count: int, record_filter: RecordFilter
    ) -> tuple[int, Entries, list[Part] | None]:
        """Return the offset behind the entries looked at, those that match, up to `count`, and their records.

        The records are None if others lie between them. There are no entries also if records are not in
        memory, or do not have the sizes of their entries.
        """
        nothing, chosen = (queue_offset, b"", None), bytearray()
        done, step = 0, max(count, FILTERED_ENTRIES_MIN)
        while done < scanned:
            step = min(step, scanned - done)
            entries = self._entries(queue, queue_offset + done, step)
            places = None if entries is None else _places(entries, step)
            if entries is None or places is None:
                return nothing
            sizes, start = sizes_of(entries), places[0] - places[0] % self._log.file_bytes
            view = self._view(places[0], places[-1] + sizes[-1])
            if view is None:
                return nothing
            parts = record_parts(view, start, entries, sizes, is_checked=places[0] < self._hot.written_from)
            if parts is None:
                return nothing
            # Behind one another: the processor prefetches what is copied, and not what a filter looks for.
            records = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
            ends = accumulate(sizes)
            numbers = [
                number
                for number, (end, size) in enumerate(zip(ends, sizes, strict=True))
                if record_filter(records, end - size, end)
            ][: count - len(chosen) // ENTRY_BYTES]
            chosen += _chosen(entries, numbers)
            if len(chosen) == count * ENTRY_BYTES:
                return queue_offset + done + numbers[-1] + 1, chosen, parts if len(numbers) == step else None
            done += step
        return queue_offset + scanned, chosen, None

    def read_each(
        self, queue: ConsumeQueue, queue_offset: int, counts: Sequence[int], bytes_max: int
    ) -> list[TailBatch]:
        """Return the results of several consecutive reads, up to READ_ENTRIES_MAX entries in total.

        Ends before the first read that `LogReader.get` must handle. Raises OSError.
        """
        low, high = queue.min_offset, queue.max_offset
        ends = [end for end in accumulate(counts) if 0 < end <= min(READ_ENTRIES_MAX, high - queue_offset)]
        if queue_offset < low or not ends:
            return []
        entries = self._entries(queue, queue_offset, ends[-1])
        if entries is None:
            return []
        sizes = sizes_of(entries)
        takes = [sum(sizes[start:end]) for start, end in pairwise((0, *ends))]
        if max(takes) > bytes_max:
            ends = ends[: next(at for at, taken in enumerate(takes) if taken > bytes_max)]
            if not ends:
                return []
            sizes, entries = sizes[: ends[-1]], entries[: ends[-1] * ENTRY_BYTES]
        parts = self._parts(queue, queue_offset, entries, sizes)
        if parts is None:
            return []
        is_joined, whole, at = len(parts) < len(sizes), memoryview(parts[0]), 0
        runs: list[TailBatch] = []
        for taken, (start, end) in zip(takes, pairwise((0, *ends)), strict=False):
            own: list[Part] = [whole[at : at + taken]] if is_joined else parts[start:end]
            runs.append((low, high, queue_offset + end, end - start, taken, own))
            at += taken
        return runs

    def _parts(
        self, queue: ConsumeQueue, queue_offset: int, entries: Entries, sizes: Sequence[int]
    ) -> list[Part] | None:
        """Return the records of entries, one part each or all in one; None if they are not in memory."""
        first = _PLACE(entries)[0]
        view = self._view(first, _PLACE(entries, -ENTRY_BYTES)[0] + sizes[-1])
        if view is None:
            return None
        behind = queue_offset + len(sizes)
        is_checked = first < self._hot.written_from and not self._fitted(queue, queue_offset, behind)
        start = first - first % self._log.file_bytes
        parts = record_parts(view, start, entries, sizes, self.joiner, is_checked=is_checked)
        if is_checked and parts is not None:
            self._note_fitting(queue, queue_offset, behind)
        return parts

    def _fitted(self, queue: ConsumeQueue, first: int, behind: int) -> bool:
        """Return whether a range of entries was checked before."""
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
        """Return the map of the file with a range of the log, if the range is in memory."""
        log, hot = self._log, self._hot
        start = first - first % log.file_bytes
        if end > start + log.file_bytes or first < log.appended - hot.memory_bytes:
            return None
        if first < hot.written_from and not (first < end and hot.holds(first, end - first)):
            return None
        return log.views.get(start)

    def _entries(self, queue: ConsumeQueue, first: int, count: int) -> Entries | None:
        """Return `count` published entries if they are in memory and in one file."""
        wanted = count * ENTRY_BYTES
        known = self._ahead.get(queue)
        if known is not None:
            generation, start, entries = known
            at = (first - start) * ENTRY_BYTES
            if generation == queue.generation and 0 <= at <= len(entries) - wanted:
                return entries[at : at + wanted]
        generation = queue.generation
        ahead = queue.resident_entries(first, max(count, READ_AHEAD_ENTRIES))
        if ahead is None or len(ahead) < wanted:
            return None
        if len(self._ahead) >= READ_AHEAD_QUEUES_MAX:
            self._ahead.clear()
        self._ahead[queue] = generation, first, ahead
        return ahead[:wanted]
