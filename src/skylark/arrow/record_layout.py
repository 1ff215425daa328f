"""Pure. Locates the fields of many records at once with numpy.

The layout is that of `skylark.model.record`. Records lie in one buffer, a pull reply or a mapped log file;
only their heads are copied. IPv6 hosts shift the fields after them, so those rows are read by their own
layout. Inconsistent rows are marked bad.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from skylark.errors import CorruptRecord
from skylark.model.message import HOST_V4_BYTES, HOST_V6_BYTES, HOST_V6_MASK, SystemFlag
from skylark.model.record import (
    HEAD,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    UNWRAPPED_BY_CLIENTS,
    crc32,
    unwrap_record,
)

Buffer = bytes | memoryview
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

OFFSET_MAX = (1 << 63) - 1
SPAN_BYTES_MAX = (1 << 31) - 1
"""Arrow's binary arrays count with 32 bits."""
SEGMENT_BYTES = 8 << 10
"""Bytes per walker."""
SHARED_BYTES_MIN = 1 << 20
"""Smaller inputs are walked sequentially, which costs 0.1 us a record; steps of many walkers cost 30 us."""
UNIT_TYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""An entry of a consume queue."""
_SIZE = struct.Struct(">i")
_SIZE_TYPE = np.dtype(">i4")
_ANY_MAGIC = re.compile(rb"\xDA\xA3\x20[\xA7\xAB]")
assert all(_ANY_MAGIC.fullmatch(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2))


def _head_type(born_bytes: int, store_bytes: int) -> np.dtype[Any]:
    """The record's head. Hosts are one number if both are IPv4, else bytes."""
    is_plain = born_bytes == store_bytes == HOST_V4_BYTES
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_timestamp", ">i8"),
            ("born_host", ">u8" if is_plain else f"V{born_bytes}"),
            ("store_timestamp", ">i8"),
            ("store_host", ">u8" if is_plain else f"V{store_bytes}"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_bytes", ">i4"),
        ]
    )


HEAD_TYPES = {
    0: _head_type(HOST_V4_BYTES, HOST_V4_BYTES),
    int(SystemFlag.BORN_HOST_V6): _head_type(HOST_V6_BYTES, HOST_V4_BYTES),
    int(SystemFlag.STORE_HOST_V6): _head_type(HOST_V4_BYTES, HOST_V6_BYTES),
    HOST_V6_MASK: _head_type(HOST_V6_BYTES, HOST_V6_BYTES),
}
assert {flags: kind.itemsize for flags, kind in HEAD_TYPES.items()} == {
    flags: head.size for flags, head in HEADS.items()
}


def record_starts(data: Buffer, stretches: Sequence[tuple[int, int]] | None = None) -> Ints:
    """Start positions of contiguous records in each of some stretches of a buffer, or in all of it.

    Raises CorruptRecord if a record exceeds its stretch.
    """
    stretches = [(0, len(data))] if stretches is None else stretches
    is_much = sum(end - first for first, end in stretches) >= SHARED_BYTES_MIN
    starts = _walked_by_many(data, stretches) if is_much else None
    if starts is None:
        starts = np.array([start for stretch in stretches for start in _walked(data, *stretch)], np.int64)
    return starts


def unit_sizes(units: Buffer, records_bytes: int) -> Ints | None:
    """Sizes of the records of a reply by the queue entries before them; None if they do not add up."""
    sizes: Ints = np.frombuffer(units, UNIT_TYPE)["size"].astype(np.int64)
    return None if sizes.sum() != records_bytes or (sizes < RECORD_BYTES_MIN).any() else sizes


def _walked_by_many(data: Buffer, stretches: Sequence[tuple[int, int]]) -> Ints | None:
    """Follow record sizes with many walkers in parallel, each from a likely start of a record.

    Returns None unless each walker ends where the next one began.
    """
    found: list[int] = []
    until: list[int] = []
    for first, end in stretches:
        found.append(first)
        for place in range(first + SEGMENT_BYTES, end, SEGMENT_BYTES):
            if magic := _ANY_MAGIC.search(data, place, min(place + SEGMENT_BYTES, end)):
                found.append(magic.start() - _SIZE.size)
                until.append(found[-1])
        until.append(end)
    sizes = windows(np.frombuffer(data, np.uint8), _SIZE_TYPE)
    at, ends = np.array(found, np.int64), np.array(until, np.int64)
    steps: list[Ints] = []
    while (walking := at < ends).any():
        steps.append(np.where(walking, at, -1))
        size = np.where(walking, sizes[np.minimum(at, len(sizes) - 1)], 0).astype(np.int64)
        if (walking & ((size < RECORD_BYTES_MIN) | (size > ends - at))).any():
            return None
        at = at + size
    starts: Ints = np.stack(steps, axis=1).ravel()
    return starts[starts >= 0]


def _walked(data: Buffer, first: int, end: int) -> list[int]:
    """Follow record sizes sequentially. Raises CorruptRecord at the first bad one."""
    starts: list[int] = []
    add, size_at = starts.append, _SIZE.unpack_from
    position = first
    try:
        while position < end:
            add(position)
            (size,) = size_at(data, position)
            if size < RECORD_BYTES_MIN:
                reason = f"size {size} at byte {position - first} of a pull reply"
                raise CorruptRecord(physical_offset=-1, reason=reason)
            position += size
    except struct.error:
        position = -1
    if position != end:
        raise CorruptRecord(physical_offset=-1, reason="the last record of a pull reply is truncated")
    return starts


def windows(data: Bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """View the buffer as values of a type that start at every byte."""
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data.data, strides=(1,))


def _gathered(data: Bytes, kind: np.dtype[Any], places: Ints) -> npt.NDArray[Any]:
    """Copy values of a type from some positions, as raw bytes, which is many times faster."""
    return windows(data, np.dtype(f"V{kind.itemsize}"))[places].view(kind)


@dataclass(slots=True)
class Records:
    """Records in a buffer, ascending and without overlap."""

    data: Bytes
    buffer: pa.Buffer
    heads: npt.NDArray[Any]
    """As in layout 0; rows with IPv6 hosts keep their hosts in `odd_hosts`."""
    odd_hosts: dict[int, tuple[bytes, bytes]]
    """Born and store host of rows with an IPv6 host."""
    start: Ints
    end: Ints
    body_start: Ints
    topic_start: Ints
    properties_start: Ints
    bad: Flags
    """Rows with inconsistent magic or lengths; their other fields are undefined."""
    topic_length_bytes: Ints = field(repr=False)

    @property
    def body_end(self) -> Ints:
        return self.topic_start - self.topic_length_bytes

    @property
    def topic_end(self) -> Ints:
        return self.properties_start - 2

    def __len__(self) -> int:
        return len(self.start)

    def numbers(self, name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
        """A field of all heads, in native byte order."""
        return self.heads[name].astype(kind)

    def only(self, keep: Flags) -> Records:
        if keep.all():
            return self
        rows = np.cumsum(keep) - 1
        odd_hosts = {int(rows[row]): hosts for row, hosts in self.odd_hosts.items() if keep[row]}
        return Records(
            self.data, self.buffer, self.heads[keep], odd_hosts, self.start[keep], self.end[keep],
            self.body_start[keep], self.topic_start[keep], self.properties_start[keep], self.bad[keep],
            self.topic_length_bytes[keep],
        )  # fmt: skip

    def body_view(self, row: int) -> memoryview:
        return self.data.data[int(self.body_start[row]) : int(self.body_end[row])]

    def crc_faults(self) -> Flags:
        """Rows whose body does not match its CRC."""
        claimed, empty = self.heads["body_crc"], self.body_end == self.body_start
        sound = [crc32(self.body_view(row)) == claimed[row] for row in range(len(self))]
        faults: Flags = ~(np.array(sound, np.bool_) | empty)
        return faults

    def corrupt(self, bad: Flags) -> CorruptRecord:
        """Return the error for the first bad row."""
        row = int(np.flatnonzero(bad)[0])
        physical_offset = int(self.heads["physical_offset"][row])
        return CorruptRecord(physical_offset, f"wrong magic, lengths or CRC in {int(bad.sum())} record(s)")


def unwrapped(records: Records, from_offset: int, to_offset: int = OFFSET_MAX) -> Records:
    """Return the records with a row for each message of inner batches, of the offsets in a range.

    Bad rows stay, and an inner batch whose body does not match its CRC stays one row. Raises CorruptRecord.
    """
    is_inner = (records.heads["sys_flag"] & UNWRAPPED_BY_CLIENTS) == UNWRAPPED_BY_CLIENTS
    if not (is_inner & ~records.bad).any():
        return records
    damaged = records.bad | records.crc_faults()
    pieces: list[bytes | memoryview] = []
    for row, (start, end) in enumerate(zip(records.start.tolist(), records.end.tolist(), strict=True)):
        record = records.data.data[start:end]
        pieces += unwrap_record(record) if is_inner[row] and not damaged[row] else [record]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    found = locate(b"".join(pieces), np.cumsum(sizes) - sizes, sizes)
    offsets = found.heads["queue_offset"]
    return found.only(found.bad | ((offsets >= from_offset) & (offsets < to_offset)))


def locate(buffer: Buffer | pa.Buffer, starts: Ints, sizes: Ints | None = None) -> Records:
    """Locate the fields of records at `starts`; `sizes` are the sizes in the consume queue."""
    whole = buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
    data = np.frombuffer(whole, np.uint8)
    bad = (starts < 0) | (starts + RECORD_BYTES_MIN > len(data))
    if bad.any():
        starts = np.where(bad, 0, starts)
    if len(data) < RECORD_BYTES_MIN:
        data = np.zeros(RECORD_BYTES_MIN, np.uint8)  # every row is bad; keeps the reads below in bounds
    heads = _gathered(data, HEAD_TYPES[0], starts)
    size = heads["size"].astype(np.int64)
    magic = heads["magic"]
    bad |= (magic != MAGIC_V1) & (magic != MAGIC_V2)
    bad |= (size < RECORD_BYTES_MIN) | (starts + size > len(data))
    if sizes is not None:
        bad |= size != sizes
    ends = starts + np.where(bad, RECORD_BYTES_MIN, size)
    odd_hosts: dict[int, tuple[bytes, bytes]] = {}
    head_bytes = _read_odd_heads(data, starts, heads, odd_hosts, bad)
    body_bytes = heads["body_bytes"].astype(np.int64)
    body_start = starts + head_bytes
    topic_length_bytes = np.where(magic == MAGIC_V2, 2, 1)
    bad |= (body_bytes < 0) | (body_start + body_bytes + topic_length_bytes + 2 > ends)
    body_end = np.where(bad, starts, body_start + body_bytes)
    topic_bytes = data[body_end].astype(np.int64)
    long_topics = topic_length_bytes == 2
    if long_topics.any():
        second = data[np.minimum(body_end + 1, len(data) - 1)]
        topic_bytes = np.where(long_topics, topic_bytes * 256 + second, topic_bytes)
    topic_start = body_end + topic_length_bytes
    topic_end = topic_start + topic_bytes
    bad |= topic_end + 2 > ends
    topic_end = np.where(bad, starts, topic_end)
    properties_start = topic_end + 2
    properties_bytes = data[topic_end].astype(np.int64) * 256 + data[topic_end + 1]
    bad |= properties_start + properties_bytes != ends
    return Records(
        data, whole, heads, odd_hosts, starts, ends, body_start, topic_start, properties_start, bad,
        topic_length_bytes,
    )  # fmt: skip


def _read_odd_heads(
    data: Bytes, starts: Ints, heads: npt.NDArray[Any], odd_hosts: dict[int, tuple[bytes, bytes]], bad: Flags
) -> Ints | int:
    """Read the heads of rows with IPv6 hosts by their own layout; return the length of each head."""
    layouts = heads["sys_flag"] & HOST_V6_MASK
    if not layouts.any():
        return HEAD.size
    head_bytes = np.full(len(starts), HEAD.size, np.int64)
    for flags, kind in HEAD_TYPES.items():
        rows = np.flatnonzero((layouts == flags) & ~bad) if flags else np.empty(0, np.int64)
        fits = starts[rows] + kind.itemsize <= len(data)
        bad[rows[~fits]] = True
        rows = rows[fits]
        if not len(rows):
            continue
        own = _gathered(data, kind, starts[rows])
        for name in ("store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_bytes"):
            heads[name][rows] = own[name]
        head_bytes[rows] = kind.itemsize
        for row, born, store in zip(rows.tolist(), own["born_host"], own["store_host"], strict=True):
            odd_hosts[row] = (born.tobytes(), store.tobytes())
    return head_bytes


def in_order(buffer: Buffer, starts: Ints, sizes: Ints) -> tuple[Buffer, Ints]:
    """Copy records into ascending order, unless they already ascend without overlap."""
    if not len(starts):
        return buffer, starts
    ascending = bool((starts[1:] >= starts[:-1] + sizes[:-1]).all())
    if ascending and starts[-1] + sizes[-1] - starts[0] <= SPAN_BYTES_MAX:
        return buffer, starts
    view = memoryview(buffer)
    copied = b"".join(
        view[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    )
    return copied, np.cumsum(sizes) - sizes
