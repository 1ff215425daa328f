"""Old messages from an archive's table, for queries that read new ones from the log.

A table that `archive` writes records up to which offset it holds each queue. What is below is read from the
table, the rest from the log, so a message is read once, wherever it is and even if it is in both.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from skylark.errors import SettingsError
from skylark.pipelines.lake.file_store import FileStore
from skylark.pipelines.lake.parquet_files import TableFile
from skylark.pipelines.lake.progress import end_offsets
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_reader import read_file, schema_of
from skylark.pipelines.message_source import MessageSource, OffsetRange
from skylark.pipelines.offsets import Offsets
from skylark.pipelines.schema import COLUMNS, arrow_schema, columns_schema, table_columns
from skylark.protocol.bodies import MessageQueue

JOB = "archive"
"""The job whose table holds every message: one with a filter has another name."""
PLACE = ("topic", "brokerName", "queueId", "queueOffset")
ARROW_BYTES = 4
"""Bytes in memory of a byte in a compressed file, roughly."""
TASK_BYTES = 32 << 20
REFRESH_S = 5.0
"""An archive that is behind is not asked more often than this."""


class HistoryFile(NamedTuple):
    """A file of the table that a task reads."""

    path: str
    partition: dict[str, str]


@dataclass(frozen=True, slots=True)
class HistoryTask:
    """Files, and the ranges of which they hold messages: other rows of the files are left out."""

    ranges: list[OffsetRange]
    files: list[HistoryFile] = field(default_factory=list)


def split_at(
    ranges: Iterable[OffsetRange], ends: Mapping[MessageQueue, int]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Divide ranges into what a table holds, below `ends`, and the rest."""
    archived, rest = [], []
    for item in ranges:
        cut = min(max(ends.get(item.queue, 0), item.from_offset), item.to_offset)
        archived.append(item._replace(to_offset=cut))
        rest.append(item._replace(from_offset=cut))
    return [item for item in archived if item.messages > 0], [item for item in rest if item.messages > 0]


def may_hold(file: TableFile, item: OffsetRange) -> bool:
    """Return whether a file may hold messages of a range, by its partition and its minima and maxima."""
    if file.partition.get("topic", item.queue.topic) != item.queue.topic:
        return False
    if file.partition.get("brokerName", item.queue.broker_name) != item.queue.broker_name:
        return False
    if int(file.partition.get("queueId", item.queue.queue_id)) != item.queue.queue_id:
        return False
    return _overlaps(file, "queueId", item.queue.queue_id, item.queue.queue_id) and _overlaps(
        file, "queueOffset", item.from_offset, item.to_offset - 1
    )


def _overlaps(file: TableFile, name: str, first: int, last: int) -> bool:
    low, high = file.minima.get(name), file.maxima.get(name)
    return (not isinstance(low, int) or low <= last) and (not isinstance(high, int) or high >= first)


def history_tasks(
    files: Iterable[TableFile], ranges: Sequence[OffsetRange], task_bytes: int = TASK_BYTES
) -> list[HistoryTask]:
    """Distribute the files that may hold messages of these ranges; each file is in one task."""
    tasks: list[HistoryTask] = []
    room = 0
    for file in files:
        wanted = [item for item in ranges if may_hold(file, item)]
        if not wanted:
            continue
        if room <= 0:
            tasks.append(HistoryTask([]))
            room = task_bytes
        task = tasks[-1]
        task.ranges.extend(item for item in wanted if item not in task.ranges)
        task.files.append(HistoryFile(file.path, file.partition))
        room -= file.size
    return tasks


class TopicHistory:
    """A table of the archive, in a driver process. Not thread-safe."""

    def __init__(self, kind: str, where: str) -> None:
        self._log = open_log(kind, where)
        self._name = f"{kind}:{where}"
        self._ends: Offsets | None = None
        self._read_at = float("-inf")
        self._files: list[TableFile] = []

    @property
    def ends(self) -> Offsets:
        """The offsets up to which the table is complete. Raises SettingsError if it records none."""
        if self._ends is None:
            self.refresh()
        assert self._ends is not None
        return self._ends

    def refresh(self) -> None:
        """Read the table's log again, unless that was a moment ago."""
        if time.monotonic() - self._read_at < REFRESH_S:
            return
        ends = end_offsets(entry for entry in self._log.progress() if entry.job == JOB)
        if not ends:
            raise SettingsError(
                "history",
                f"{self._name} is not an archive of whole topics; make one with `skylark spark archive`, "
                "without --tags and --sql92",
            )
        # After the ends: the files hold at least what is below them.
        self._files = self._log.files()
        self._ends, self._read_at = ends, time.monotonic()

    @property
    def files(self) -> list[TableFile]:
        """The files of the table, as of the last `refresh`. Raises SettingsError."""
        assert self.ends
        return self._files

    def read(self, file: TableFile, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a file with these columns of messages. Raises OSError."""
        schema = table_columns(arrow_schema(columns_schema(names)))
        return read_file(self._log.store, file.path, file.partition, schema)

    def first_offsets(self) -> Offsets:
        """For each queue an offset at or before its first message in the table."""
        found: Offsets = {}
        for queue, end in self.ends.items():
            whole = OffsetRange(queue, 0, end)
            lows = [file.minima.get("queueOffset", 0) for file in self._files if may_hold(file, whole)]
            found[queue] = min((int(low) for low in lows), default=end)
        return found

    def offsets_by_time(self, timestamp_ms: int) -> Offsets:
        """The first message of each queue stored at or after a time; queues without one are left out."""
        moment = pa.scalar(timestamp_ms * 1000, pa.timestamp("us", tz="UTC"))
        found: Offsets = {}
        for file in self.files:
            last = file.maxima.get("storeTimestamp")
            if isinstance(last, str) and last < f"{moment.as_py():%Y-%m-%dT%H:%M:%S.%f}":
                continue
            for batch in self.read(file, [*PLACE, "storeTimestamp"]):
                later = batch.filter(pc.greater_equal(batch.column("storeTimestamp"), moment))
                for queue, offsets in _by_queue(later):
                    found[queue] = min(int(offsets.min()), found.get(queue, int(offsets.min())))
        return found

    def check_columns(self, names: Iterable[str]) -> None:
        """Raises SettingsError for a column of messages that the table lacks."""
        there = set(schema_of(self._log).fieldNames())
        if missing := [name for name in [*names, *PLACE] if name in COLUMNS and name not in there]:
            raise SettingsError("history", f"{self._name} has no column {', '.join(missing)}; read others")

    @property
    def row_bytes(self) -> float:
        """Mean bytes of a message in memory, roughly."""
        rows = sum(file.rows for file in self._files)
        return max(sum(file.size for file in self._files) * ARROW_BYTES / max(rows, 1), 1.0)

    def tasks(self, ranges: Sequence[OffsetRange]) -> list[HistoryTask]:
        """What tasks read for these ranges, which are below `ends`."""
        return history_tasks(self._files, ranges) if ranges else []


class LongMemory:
    """The positions of a source whose queues begin in a table."""

    def __init__(self, origin: MessageSource, history: TopicHistory) -> None:
        self._origin = origin
        self._history = history

    def min_offsets(self, queues: Sequence[MessageQueue]) -> Offsets:
        lows, firsts = self._origin.min_offsets(queues), self._history.first_offsets()
        return {queue: min(low, firsts.get(queue, low)) for queue, low in lows.items()}

    def max_offsets(self, queues: Sequence[MessageQueue]) -> Offsets:
        return self._origin.max_offsets(queues)

    def offsets_by_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> Offsets:
        found, older = (
            self._origin.offsets_by_time(queues, timestamp_ms),
            self._history.offsets_by_time(timestamp_ms),
        )
        return {queue: min(at, older.get(queue, at)) for queue, at in found.items()}

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        return self._origin.group_offset(group, queue)


# --- Reading, in tasks ---


def read_history(files: FileStore, task: HistoryTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task with these columns of the table. Raises OSError, SettingsError."""
    needed = list(dict.fromkeys([*names, *PLACE]))
    schema = table_columns(arrow_schema(columns_schema(needed)))
    bounds = {item.queue: (item.from_offset, item.to_offset) for item in task.ranges}
    for path, partition in task.files:
        for batch in read_file(files, path, partition, schema):
            kept = batch.filter(pa.array(wanted_rows(batch, bounds)))
            if kept.num_rows:
                yield kept.select(list(names))


def wanted_rows(
    batch: pa.RecordBatch, bounds: Mapping[MessageQueue, tuple[int, int]]
) -> npt.NDArray[np.bool_]:
    """Flag the rows within the bounds of their queues."""
    mask = np.zeros(batch.num_rows, np.bool_)
    offsets = batch.column("queueOffset").to_numpy(zero_copy_only=False)
    for queue, rows in rows_of_queues(batch):
        if (wanted := bounds.get(queue)) is not None:
            mask[rows] = (offsets[rows] >= wanted[0]) & (offsets[rows] < wanted[1])
    return mask


def _by_queue(batch: pa.RecordBatch) -> Iterator[tuple[MessageQueue, npt.NDArray[np.int64]]]:
    offsets = batch.column("queueOffset").to_numpy(zero_copy_only=False)
    for queue, rows in rows_of_queues(batch):
        yield queue, offsets[rows]


def rows_of_queues(batch: pa.RecordBatch) -> Iterator[tuple[MessageQueue, npt.NDArray[np.int64]]]:
    """The rows of each queue in a batch."""
    if not batch.num_rows:
        return
    topics, brokers = (batch.column(name).dictionary_encode() for name in ("topic", "brokerName"))
    ids = batch.column("queueId").to_numpy(zero_copy_only=False).astype(np.int64)
    names = topics.indices.to_numpy().astype(np.int64) * len(brokers.dictionary) + brokers.indices.to_numpy()
    keys = names << 32 | ids
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(keys[order]) != 0])
    for rows in np.split(order, starts[1:]):
        first = int(rows[0])
        yield (
            MessageQueue(
                topics.dictionary[topics.indices[first].as_py()].as_py(),
                brokers.dictionary[brokers.indices[first].as_py()].as_py(),
                int(ids[first]),
            ),
            rows,
        )
