"""Pure. Records to Arrow batches with any choice of columns: whole buffers at a time, no loop over messages.

Values equal those of `record.decode` for every record. Bodies are decompressed, or left as stored if that
fails; unusual rows are computed one by one and patched in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from skylark.accelerator import join_column as _join_column
from skylark.arrow.columns import BODY_TEXT, MICROSECONDS, REJECTS, VALUE
from skylark.arrow.json_bodies import JsonBodies
from skylark.arrow.record_layout import Bytes, Flags, Ints, Records, windows
from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import decompress
from skylark.model.message import (
    HOST_V4_BYTES,
    PROPERTY_KEYS,
    PROPERTY_UNIQUE_KEY,
    SystemFlag,
    decode_properties,
    format_host,
)
from skylark.model.message_id import offset_message_id

# Clipped to this: a thousand times the value still fits into 64 bits.
_MILLISECONDS_MAX = (1 << 63) // 1000 - 1
_HEX = np.array([f"{byte:02X}".encode() for byte in range(256)]).view("<u2")
_MARK, _SEPARATOR = 1, 2
_PADDING = 8
_WORDS = {size: np.dtype(f"<u{size}") for size in (8, 4, 2, 1)}
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
# Masks for the first bytes of a word, for names shorter than a word.
_HEADS = np.array([(1 << 8 * size) - 1 for size in range(8)] + [(1 << 64) - 1], np.uint64)

BadRows = Callable[[CorruptRecord, int], None]


def refuse(error: CorruptRecord, count: int) -> None:
    """Raise the error of a bad record: the default of `on_bad`."""
    raise error


class Decoder:
    """Makes batches of one schema; `wanted_tags` filters rows, `json` decodes bodies to `value`."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        wanted_tags: frozenset[str] | None = None,
        json: JsonBodies | None = None,
        check_crc: bool = False,
        on_bad: BadRows = refuse,
    ) -> None:
        """`on_bad` is called with corrupt records; if it returns, they are skipped."""
        self.schema = schema
        self._wanted_tags = None if wanted_tags is None else pa.array(sorted(wanted_tags), pa.string())
        self._json = json
        self._check_crc = check_crc
        self._on_bad = on_bad

    @property
    def empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def batch(self, records: Records, broker_name: str) -> pa.RecordBatch:
        """Raises what `on_bad` raises."""
        bad = records.bad
        if bad.any():
            self._on_bad(records.corrupt(bad), int(bad.sum()))
            records = records.only(~bad)
        if self._check_crc and (faults := records.crc_faults()).any():
            self._on_bad(records.corrupt(faults), int(faults.sum()))
            records = records.only(~faults)
        if self._wanted_tags is not None:
            tags = PropertyTexts(records).tags
            wanted = pc.fill_null(pc.is_in(tags, self._wanted_tags), False)
            records = records.only(np.asarray(wanted.to_numpy(zero_copy_only=False), np.bool_))
        columns = _Columns(records, broker_name, self._json)
        arrays = [columns.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class _Columns:
    """Lazily computed columns of one batch."""

    def __init__(self, records: Records, broker_name: str, json: JsonBodies | None) -> None:
        self._records = records
        self._broker_name = broker_name
        self._json = json

    def column(self, name: str) -> pa.Array:
        return _COLUMNS[name](self)

    @cached_property
    def _properties(self) -> PropertyTexts:
        return PropertyTexts(self._records)

    def _topic(self) -> pa.Array:
        records = self._records
        return as_text(between(records.buffer, records.topic_start, records.topic_end))

    def _broker(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._broker_name, pa.string()), len(self._records))

    def _int(self, name: str) -> pa.Array:
        return pa.array(self._records.numbers(name, np.int32))

    def _long(self, name: str) -> pa.Array:
        return pa.array(self._records.numbers(name, np.int64))

    def _time(self, name: str) -> pa.Array:
        milliseconds = self._records.numbers(name, np.int64)
        clipped = np.clip(milliseconds, -_MILLISECONDS_MAX, _MILLISECONDS_MAX)
        return pa.array(clipped * 1000).view(MICROSECONDS)

    def _host(self, name: str) -> pa.Array:
        records = self._records
        packed = records.heads[name]
        different, places = (packed[:1], np.zeros(len(packed), np.int64))
        if (packed != packed[:1]).any():
            different, places = np.unique(packed, return_inverse=True)
        texts = [format_host(int(host).to_bytes(HOST_V4_BYTES, "big")) for host in different]
        column = pa.array(texts, pa.string()).take(pa.array(places))
        if not records.odd_hosts:
            return column
        which = 0 if name == "born_host" else 1
        odd = [format_host(hosts[which]) for hosts in records.odd_hosts.values()]
        return patched(column, _rows(records), pa.array(odd, pa.string()))

    def _message_id(self) -> pa.Array:
        records = self._records
        packed = np.empty(len(records), [("store_host", ">u8"), ("physical_offset", ">i8")])
        packed["store_host"] = records.heads["store_host"]
        packed["physical_offset"] = records.heads["physical_offset"]
        digits = _HEX[packed.view(np.uint8)]
        offsets = np.arange(len(records) + 1, dtype=np.int32) * 2 * packed.itemsize
        column = pa.Array.from_buffers(
            pa.string(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        )
        if not records.odd_hosts:
            return column
        physical_offsets = records.heads["physical_offset"]
        odd = [
            offset_message_id(hosts[1], int(physical_offsets[row]))
            for row, hosts in records.odd_hosts.items()
        ]
        return patched(column, _rows(records), pa.array(odd, pa.string()))

    @cached_property
    def _body_and_faults(self) -> tuple[pa.Array, Flags]:
        """Decompressed bodies, and flags of those that could not be decompressed."""
        records = self._records
        column = between(records.buffer, records.body_start, records.body_end)
        faults = np.zeros(len(records), np.bool_)
        sys_flags = records.heads["sys_flag"]
        rows = np.flatnonzero(sys_flags & SystemFlag.COMPRESSED)
        if not len(rows):
            return column, faults
        bodies = []
        for row in rows.tolist():
            stored = bytes(records.body_view(row))
            try:
                bodies.append(decompress(stored, int(sys_flags[row])))
            except BadBody:
                bodies.append(stored)
                faults[row] = True
        return patched(column, rows, pa.array(bodies, pa.binary())), faults

    @property
    def _body(self) -> pa.Array:
        return self._body_and_faults[0]

    @cached_property
    def _value_and_rejects(self) -> tuple[pa.Array, Flags]:
        return decode_bodies(*self._body_and_faults, self._json)

    def _rejects(self) -> pa.Array:
        return rejected_bodies(self._body, self._value_and_rejects[1])


def decode_bodies(bodies: pa.Array, faults: Flags, json: JsonBodies | None) -> tuple[pa.Array, Flags]:
    """The column `value` of bodies, and flags of those that did not decode, `faults` included."""
    if json is not None:
        return json.decode(bodies, faults)
    try:
        return bodies.cast(pa.string()), faults
    except pa.ArrowInvalid:
        return _texts(bodies, faults)


def rejected_bodies(bodies: pa.Array, rejected: Flags) -> pa.Array:
    """The column `rejects`: bodies that did not decode."""
    return pc.if_else(pa.array(rejected), bodies, pa.scalar(None, pa.binary()))


def _rows(records: Records) -> Ints:
    return np.fromiter(records.odd_hosts, np.int64, len(records.odd_hosts))


def _texts(bodies: pa.Array, faults: Flags) -> tuple[pa.Array, Flags]:
    faults = faults.copy()
    texts: list[str | None] = []
    for row, body in enumerate(bodies.to_pylist()):
        try:
            texts.append(body.decode())
        except UnicodeDecodeError:
            texts.append(None)
            faults[row] = True
    return pa.array(texts, pa.string()), faults


_COLUMNS: dict[str, Callable[[_Columns], pa.Array]] = {
    "topic": _Columns._topic,
    "brokerName": _Columns._broker,
    "queueId": lambda columns: columns._int("queue_id"),
    "queueOffset": lambda columns: columns._long("queue_offset"),
    "physicalOffset": lambda columns: columns._long("physical_offset"),
    "msgId": _Columns._message_id,
    "uniqKey": lambda columns: columns._properties.column(PROPERTY_UNIQUE_KEY),
    "tags": lambda columns: columns._properties.tags,
    "keys": lambda columns: columns._properties.column(PROPERTY_KEYS),
    "body": lambda columns: columns._body,
    "properties": lambda columns: columns._properties.maps(),
    "bornTimestamp": lambda columns: columns._time("born_timestamp"),
    "storeTimestamp": lambda columns: columns._time("store_timestamp"),
    "bornHost": lambda columns: columns._host("born_host"),
    "storeHost": lambda columns: columns._host("store_host"),
    "reconsumeTimes": lambda columns: columns._int("reconsume_times"),
    "sysFlag": lambda columns: columns._int("sys_flag"),
    "flag": lambda columns: columns._int("flag"),
    BODY_TEXT: lambda columns: as_text(columns._body),
    VALUE: lambda columns: columns._value_and_rejects[0],
    REJECTS: _Columns._rejects,
}


# --- Properties ---


def stretches(buffer: pa.Buffer, bounds: Ints) -> pa.Array:
    """The bytes between consecutive bounds. Bounds ascend and span less than 2 GiB."""
    base = int(bounds[0]) if len(bounds) else 0
    offsets = (bounds - base).astype(np.int32) if len(bounds) else np.zeros(1, np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer.slice(base)]
    )


def between(buffer: pa.Buffer, starts: Ints, ends: Ints, is_there: Flags | None = None) -> pa.Array:
    """The bytes from each start to its end, which ascend; null where `is_there` is false."""
    if _join_column is None:
        places = pa.array(np.arange(0, 2 * len(starts), 2), mask=None if is_there is None else ~is_there)
        return stretches(buffer, interleaved(starts, ends)).take(places)
    return _binary(_join_column(buffer, starts, ends, None), is_there)


def _binary(column: tuple[bytes, bytearray], is_there: Flags | None) -> pa.Array:
    """An array of 32-bit offsets and bytes; null where `is_there` is false."""
    known = None if is_there is None else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    offsets, data = map(pa.py_buffer, column)
    return pa.Array.from_buffers(pa.binary(), offsets.size // 4 - 1, [known, offsets, data])


def interleaved(*bounds: Ints) -> Ints:
    """Interleave arrays: the first element of each, then the second of each."""
    return np.stack(bounds, axis=1).ravel()


def as_text(data: pa.Array) -> pa.Array:
    """Binary as UTF-8 text; invalid bytes are replaced, as by `bytes.decode(errors="replace")`."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if item is None else item.decode(errors="replace") for item in data.to_pylist()]
        return pa.array(texts, pa.string())


def patched(column: pa.Array, rows: Ints, values: pa.Array) -> pa.Array:
    """Replace the values of some rows."""
    places = np.arange(len(column))
    places[rows] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, values]).take(pa.array(places))


class PropertyTexts:
    """The property texts of a batch of records. Results equal those of `decode_properties`."""

    def __init__(self, records: Records) -> None:
        self._records = records

    @cached_property
    def _scanned(self) -> _ScannedTexts:
        return _ScannedTexts(self._records)

    def column(self, name: str) -> pa.Array:
        """One property of every text, null where it is missing or empty."""
        records = self._records
        if _join_column is None:
            return as_text(self._scanned.values(name.encode()))
        column = _join_column(records.buffer, records.properties_start, records.end, name.encode())
        return as_text(_binary(column, np.diff(np.frombuffer(column[0], np.int32)) > 0))

    def maps(self) -> pa.Array:
        """All properties of every text as a map."""
        return self._scanned.maps()

    @cached_property
    def tags(self) -> pa.Array:
        """Cached: used by the column and by the tag filter."""
        return self.column("TAGS")


class _ScannedTexts:
    """Property texts parsed with numpy.

    The texts are copied into one array in which two separators precede every text (in place of its length
    field) and one follows the last, so that no property spans two texts.
    """

    def __init__(self, records: Records) -> None:
        raw = between(records.buffer, records.topic_end, records.end)
        self.count = len(raw)
        offsets = np.frombuffer(raw.buffers()[1], np.int32)[: self.count + 1] if self.count else np.zeros(1)
        self.bounds: Ints = offsets.astype(np.int64)
        total = int(self.bounds[-1])
        self.text: Bytes = np.zeros(total + 1 + _PADDING, np.uint8)
        if total:
            self.text[:total] = np.frombuffer(raw.buffers()[2], np.uint8)[:total]
        first = self.bounds[:-1]
        self.text[first] = self.text[first + 1] = _SEPARATOR
        self.text[total] = _SEPARATOR
        control = np.flatnonzero(self.text[: total + 1] <= _SEPARATOR)
        kinds = self.text[control]
        self.marks: Ints = control[kinds == _MARK]
        self.separators: Ints = control[kinds == _SEPARATOR]
        self.buffer = pa.py_buffer(self.text)

    def values(self, name: bytes) -> pa.Array:
        """One property of every text, null where it is missing or empty."""
        marks = self._marks_after(name)
        starts = marks + 1
        ends = self.separators[np.searchsorted(self.separators, marks)]
        filled = ends > starts
        marks, starts, ends = marks[filled], starts[filled], ends[filled]
        rows = self._rows_of(marks)
        value_starts, value_ends = self.bounds[:-1].copy(), self.bounds[:-1].copy()
        value_starts[rows], value_ends[rows] = starts, ends  # the last duplicate wins
        return between(self.buffer, value_starts, value_ends, value_ends > value_starts)

    def _marks_after(self, name: bytes) -> Ints:
        """Positions of the marks that follow `name`."""
        marks: Ints = self.marks[self.marks > len(name)]
        marks = marks[self.text[marks - len(name) - 1] == _SEPARATOR]
        at, rest = len(name), name
        for size, kind in _WORDS.items():
            while len(rest) >= size:
                word = np.frombuffer(rest[:size], kind)[0]
                marks = marks[windows(self.text, kind)[marks - at] == word]
                at, rest = at - size, rest[size:]
        return marks

    def _rows_of(self, positions: Ints) -> Ints:
        first, behind = self.bounds[:-1], self.bounds[1:]
        if len(positions) == self.count and ((positions >= first) & (positions < behind)).all():
            return np.arange(self.count)
        rows: Ints = np.searchsorted(self.bounds, positions, side="right") - 1
        return rows

    def maps(self) -> pa.Array:
        """All properties of every text as a map."""
        starts, marks, ends = self._pieces()
        rows = np.searchsorted(self.bounds, starts, side="right") - 1
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self.count), out=offsets[1:])
        pieces = stretches(self.buffer, interleaved(starts, marks, marks + 1, ends))
        names, values = (pieces.take(pa.array(np.arange(first, 4 * len(starts), 4))) for first in (0, 2))
        try:
            names, values = names.cast(pa.string()), values.cast(pa.string())
        except pa.ArrowInvalid:
            return self._decoded(np.arange(self.count))
        column = pa.MapArray.from_arrays(pa.array(offsets), names, values)
        twice = self._rows_with_duplicates(starts, marks, rows)
        return patched(column, twice, self._decoded(twice)) if len(twice) else column

    def _pieces(self) -> tuple[Ints, Ints, Ints]:
        """Start of name, mark and end of value of each complete property."""
        starts, ends = self.separators[:-1] + 1, self.separators[1:]
        filled = ends > starts
        starts, ends = starts[filled], ends[filled]
        if len(starts) != len(self.marks) or not ((self.marks >= starts) & (self.marks < ends)).all():
            padded = np.append(self.marks, len(self.text))
            marks = padded[np.searchsorted(self.marks, starts)]
        else:
            marks = self.marks
        whole = (marks > starts) & (marks + 1 < ends)
        return starts[whole], marks[whole], ends[whole]

    def _rows_with_duplicates(self, starts: Ints, marks: Ints, rows: Ints) -> Ints:
        """Rows in which two names may be equal, by length, first and last bytes."""
        sizes = marks - starts
        words = windows(self.text, _WORDS[8])
        first = words[starts] & _HEADS[np.minimum(sizes, 8)]
        last = words[np.maximum(marks - 8, starts)] & _HEADS[np.minimum(sizes, 8)]
        with np.errstate(over="ignore"):
            looks = first * _MIX[0] ^ last * _MIX[1] ^ sizes.astype(np.uint64) * _MIX[2]
            if self._all_alike(looks, rows):
                return np.empty(0, np.int64)
            looks = (looks ^ (looks >> np.uint64(29))) * _MIX[0] + rows.astype(np.uint64) * _MIX[1]
        ordered = np.sort(looks)
        same = ordered[1:][ordered[1:] == ordered[:-1]]
        return np.unique(rows[np.isin(looks, same)]) if len(same) else np.empty(0, np.int64)

    def _all_alike(self, looks: npt.NDArray[np.uint64], rows: Ints) -> bool:
        """Return whether all texts have the same distinct names, as messages of one producer do."""
        each, rest = divmod(len(looks), max(self.count, 1))
        if rest or not each or len(np.unique(looks[:each])) < each:
            return False
        same_names = looks.reshape(-1, each) == looks[:each]
        return bool(same_names.all() and (rows.reshape(-1, each) == np.arange(self.count)[:, None]).all())

    def _decoded(self, rows: Ints) -> pa.Array:
        """Decode some rows one by one."""
        text = self.text.tobytes()
        maps = [
            list(decode_properties(text[self.bounds[row] + 2 : self.bounds[row + 1]]).items()) for row in rows
        ]
        return pa.array(maps, pa.map_(pa.string(), pa.string()))
