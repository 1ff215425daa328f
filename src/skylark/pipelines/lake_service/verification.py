"""Compares a table with the log: every offset once, without a gap, and every body by its CRC."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from skylark.pipelines.history import PLACE, rows_of_queues
from skylark.pipelines.lake.table_log import TableLog
from skylark.pipelines.lake.table_reader import read_file
from skylark.pipelines.message_source import OffsetRange, queue_name
from skylark.pipelines.options import SourceOptions
from skylark.pipelines.planner import read_ranges
from skylark.pipelines.schema import arrow_schema, columns_schema, table_columns
from skylark.protocol.bodies import MessageQueue

FAULTS_SHOWN = 20

Sums = dict[MessageQueue, tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]
"""Offsets, ascending, and the CRC of each body."""


class TableDifference(msgspec.Struct):
    """What a comparison found."""

    compared: int = 0
    """Messages that are in the log and have to be in the table."""
    in_table: int = 0
    """Rows of the table."""
    faults: list[str] = msgspec.field(default_factory=list)
    fault_count: int = 0

    def add(self, fault: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(fault)


def compare(
    log: TableLog, options: SourceOptions, lows: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
) -> TableDifference:
    """Compare the rows of a table with the messages between these offsets, as far as the log holds them.

    Rows of other queues, and those before `lows` or the log's first message, which may be a later one when it
    is read, are checked for repetition only. Takes 12 bytes of memory
    for each message. Raises RocketMQError, OSError.
    """
    schema, table = _schema(), table_sums(log)
    found = TableDifference(in_table=sum(len(offsets) for offsets, _ in table.values()))
    for queue, (offsets, _) in sorted(table.items()):
        repeated = offsets[1:][np.diff(offsets) == 0]
        for at in repeated[:FAULTS_SHOWN].tolist():
            found.add(f"{queue_name(queue)} offset {at} is in the table more than once")
        found.fault_count += max(len(repeated) - FAULTS_SHOWN, 0)
    for queue, end in sorted(ends.items()):
        wanted = OffsetRange(queue, lows.get(queue, 0), end)
        if wanted.messages > 0:
            stored = _sums(read_ranges(options, [wanted], schema)).get(queue)
            _compare_queue(found, wanted, stored, table.get(queue))
    return found


def table_sums(log: TableLog) -> Sums:
    """Offsets and CRCs of a table. Raises OSError and the table's errors."""
    schema = _schema()
    return _sums(
        batch for file in log.files() for batch in read_file(log.store, file.path, file.partition, schema)
    )


def _schema() -> pa.Schema:
    return table_columns(arrow_schema(columns_schema([*PLACE, "body"])))


def _compare_queue(
    found: TableDifference,
    wanted: OffsetRange,
    stored: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]] | None,
    kept: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]] | None,
) -> None:
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.uint32))
    (log_offsets, log_sums), (offsets, sums) = stored or nothing, kept or nothing
    found.compared += len(log_offsets)
    places = np.searchsorted(offsets, log_offsets)
    places[places == len(offsets)] = 0
    if len(offsets):
        is_there = offsets[places] == log_offsets
        is_equal = sums[places] == log_sums
    else:
        is_there = is_equal = np.zeros(len(log_offsets), np.bool_)
    for at in log_offsets[~is_there].tolist():
        found.add(f"{queue_name(wanted.queue)} offset {at} is not in the table")
    for at in log_offsets[is_there & ~is_equal].tolist():
        found.add(f"{queue_name(wanted.queue)} offset {at} has another body in the table")
    first = int(log_offsets[0]) if len(log_offsets) else wanted.to_offset
    beyond = offsets[(offsets >= first) & ~np.isin(offsets, log_offsets)]
    for at in beyond.tolist():
        found.add(f"{queue_name(wanted.queue)} offset {at} is in the table only")


def _sums(batches: Iterable[pa.RecordBatch]) -> Sums:
    """Offsets and CRCs by queue, sorted by offset."""
    parts: dict[MessageQueue, list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]]] = {}
    for batch in batches:
        crcs = _crcs(batch.column("body"))
        offsets = batch.column("queueOffset").to_numpy(zero_copy_only=False)
        for queue, rows in rows_of_queues(batch):
            parts.setdefault(queue, []).append((offsets[rows], crcs[rows]))
    found: Sums = {}
    for queue, pieces in parts.items():
        offsets = np.concatenate([piece[0] for piece in pieces])
        crcs = np.concatenate([piece[1] for piece in pieces])
        order = np.argsort(offsets, kind="stable")
        found[queue] = (offsets[order], crcs[order])
    return found


def _crcs(bodies: pa.BinaryArray) -> npt.NDArray[np.uint32]:
    """The CRC of each body; of null it is that of nothing."""
    if not len(bodies):
        return np.zeros(0, np.uint32)
    _, ends, values = bodies.buffers()
    bounds = np.frombuffer(ends, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    data = memoryview(values or b"")
    return np.fromiter(
        (zlib.crc32(data[start:end]) for start, end in pairwise(bounds)), np.uint32, len(bodies)
    )
