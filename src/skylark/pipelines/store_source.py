"""Messages from a store directory, Skylark's or Apache's, live or closed: read-only, without a broker.

Consume-queue entries locate the records of a range; records are decoded in the mapped log file.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from skylark.arrow.record_layout import UNIT_TYPE, Flags, Ints, Records, in_order, locate, unwrapped
from skylark.errors import BadStoreFile, CorruptRecord, MissingFile, NoRoute, OffsetOutOfRange
from skylark.model.java import java_hash
from skylark.model.message import SCHEDULE_TOPIC, StoredMessage
from skylark.model.tag_expression import split_tags
from skylark.pipelines.message_source import LossPolicy, OffsetRange
from skylark.pipelines.options import SourceOptions
from skylark.protocol.bodies import MessageQueue
from skylark.store.queue_entry import BLANK_ENTRY_SIZE
from skylark.store.store_reader import StoreReader

log = logging.getLogger(__name__)

UNITS_AT_A_TIME = 16_384
SAMPLE_UNITS = 256
STORES_OPEN_MAX = 8
# Lower values are addresses of extension entries, not hashes.
TAGS_CODE_MIN = -(1 << 31)
Units = npt.NDArray[np.void]


class StoreSource:
    """Reads messages from a store directory."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.path is not None
        self._options = options
        self._reader = shared_reader(options.path)
        # The reader may have been open for long: refresh on first use.
        self._looked_at = float("-inf")
        tags = split_tags(options.tags) if options.tags else None
        self._tags_codes = None if tags is None else np.array([java_hash(tag) for tag in tags], np.int64)

    # --- Topics, queues and offsets ---

    def topics(self) -> list[str]:
        self._refresh()
        return self._reader.topics()

    def queues(self, topic: str) -> list[MessageQueue]:
        self._refresh()
        found = [
            MessageQueue(topic, self._options.broker_name, queue_id)
            for name, queue_id in sorted(self._reader.queue_table)
            if name == topic
        ]
        if not found:
            raise NoRoute(topic)
        return found

    def min_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        return {queue: self._bounds(queue)[0] for queue in queues}

    def max_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        self._refresh()
        return {queue: self._bounds(queue)[1] for queue in queues}

    def offsets_by_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        found = {
            queue: self._reader.offset_by_time(queue.topic, queue.queue_id, timestamp_ms) for queue in queues
        }
        return {queue: 0 if queue_offset is None else queue_offset for queue, queue_offset in found.items()}

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        return None

    def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        found = self._reader.queue_table.get((queue.topic, queue.queue_id))
        return (found.min_offset, found.max_offset) if found else (0, 0)

    def _refresh(self) -> None:
        """Rescan the directory, at most once per poll interval."""
        now = time.monotonic()
        if now - self._looked_at >= self._options.poll_interval_ms / 1000:
            self._reader.refresh()
            self._looked_at = now

    # --- Sizes ---

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        return [self._average(wanted) for wanted in ranges]

    def _average(self, wanted: OffsetRange) -> float:
        places = {
            wanted.from_offset,
            wanted.from_offset + wanted.messages // 2,
            wanted.to_offset - SAMPLE_UNITS,
        }
        samples = [
            self._units(wanted.queue, max(place, wanted.from_offset), SAMPLE_UNITS)
            for place in sorted(places)
        ]
        units = np.concatenate(samples)
        units = units[units["size"] != BLANK_ENTRY_SIZE]
        return float(_sizes(units).mean()) if len(units) else 0.0

    def end_within(self, wanted: OffsetRange, bytes_max: int, record_bytes: float) -> int:
        """Exact, as consume-queue entries hold the sizes."""
        at, left = wanted.from_offset, bytes_max
        while at < wanted.to_offset:
            units = self._units(wanted.queue, at, min(UNITS_AT_A_TIME, wanted.to_offset - at))
            if not len(units):
                return wanted.to_offset
            sizes = _sizes(units)
            fitting = int(np.searchsorted(np.cumsum(sizes), left, side="right"))
            at, left = at + fitting, left - int(sizes[:fitting].sum())
            if fitting < len(units):
                break
        return at

    def _units(self, queue: MessageQueue, first: int, count: int) -> Units:
        """Consume-queue entries from an offset, at most to the end of their file."""
        found = self._reader.queue_table.get((queue.topic, queue.queue_id))
        data = found.entries(first, count) if found and count > 0 else b""
        return np.frombuffer(data, UNIT_TYPE)

    # --- Lookups ---

    def by_key(self, topic: str, key: str, *, unique: bool, maximum: int) -> list[OffsetRange] | None:
        try:
            messages = self._reader.by_key(topic, key, maximum=maximum)
        except (MissingFile, BadStoreFile):
            return None
        return None if len(messages) >= maximum else [self._place(message) for message in messages]

    def by_message_id(self, topics: Sequence[str], message_id: str) -> list[OffsetRange] | None:
        try:
            message = self._reader.by_offset_id(message_id)
        except (ValueError, OffsetOutOfRange, CorruptRecord):
            return []
        return [self._place(message)] if message.topic in topics else []

    def _place(self, message: StoredMessage) -> OffsetRange:
        queue = MessageQueue(message.topic, self._options.broker_name, message.queue_id)
        return OffsetRange(queue, message.queue_offset, message.queue_offset + 1)

    # --- Reading ---

    def read(self, wanted: OffsetRange, losses: LossPolicy) -> Iterator[Records]:
        self._wait_for(wanted)
        at = wanted.from_offset
        while at < wanted.to_offset:
            units = self._units(wanted.queue, at, min(UNITS_AT_A_TIME, wanted.to_offset - at))
            if not len(units):
                losses.aged_out(
                    OffsetRange(wanted.queue, at, wanted.to_offset), "their consume-queue file is gone"
                )
                return
            for piece in self._pieces(units):
                yield from self._records(OffsetRange(wanted.queue, at, at + len(piece)), piece, losses)
                at += len(piece)

    def _wait_for(self, wanted: OffsetRange) -> None:
        """Rescan the directory if the range was planned with a newer view of it."""
        if self._bounds(wanted.queue)[1] < wanted.to_offset:
            self._reader.refresh()

    def _pieces(self, units: Units) -> Iterator[Units]:
        """Split entries into pieces of about `batchBytes`."""
        sizes = _sizes(units)
        pieces = np.cumsum(sizes) // self._options.batch_bytes
        yield from np.split(units, np.flatnonzero(np.diff(pieces)) + 1)

    def _records(self, wanted: OffsetRange, units: Units, losses: LossPolicy) -> Iterator[Records]:
        if (blank := units["size"] == BLANK_ENTRY_SIZE).any():
            units = units[~blank]
        units = units[_is_first(units)]
        if self._tags_codes is not None and wanted.queue.topic != SCHEDULE_TOPIC:
            codes = units["tags_code"]
            units = units[np.isin(codes, self._tags_codes) | (codes < TAGS_CODE_MIN)]
        places = units["physical_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        file_bytes = self._reader.log.file_bytes
        files = places // file_bytes
        for rows in np.split(np.arange(len(units)), np.flatnonzero(np.diff(files)) + 1):
            if not len(rows):
                continue
            start = int(files[rows[0]]) * file_bytes
            view = self._reader.log.view(start)
            if view is None:
                self._tell_gone(wanted.queue, len(rows), int(places[rows[0]]), losses)
                continue
            located = _located(view, places[rows] - start, sizes[rows])
            yield unwrapped(located, wanted.from_offset, wanted.to_offset)

    def _tell_gone(self, queue: MessageQueue, count: int, physical_offset: int, losses: LossPolicy) -> None:
        if self._reader.is_cleaned(physical_offset):
            first = self._bounds(queue)[0]
            losses.aged_out(OffsetRange(queue, first - count, first))
        else:
            reason = f"the log has no file for {count} record(s) of {queue.topic}/{queue.queue_id}"
            losses.damaged(CorruptRecord(physical_offset, reason), count)


def _is_first(units: Units) -> Flags:
    """Return which entries do not repeat the one before: the messages of a batch share one."""
    places = units["physical_offset"]
    return np.concatenate((np.ones(min(len(units), 1), np.bool_), places[1:] != places[:-1]))


def _sizes(units: Units) -> Ints:
    """Return the sizes of the entries' records, each counted once; blank entries have none."""
    is_counted = _is_first(units) & (units["size"] != BLANK_ENTRY_SIZE)
    return np.where(is_counted, units["size"], 0).astype(np.int64)


def _located(view: memoryview, places: Ints, sizes: Ints) -> Records:
    if ((sizes <= 0) | (places < 0) | (places + sizes > len(view))).any():
        return locate(view, places, sizes)  # marks these rows bad
    buffer, places = in_order(view, places, sizes)
    return locate(pa.py_buffer(buffer), places, sizes)


@lru_cache(STORES_OPEN_MAX)
def shared_reader(path: str) -> StoreReader:
    """The reader of this process for a directory."""
    return StoreReader(path)


# Close files before the interpreter shuts down.
atexit.register(shared_reader.cache_clear)
