"""Pure. Records to Arrow batches with any choice of columns: whole buffers at a time, no loop over messages.

Values equal those of `record.decode` for every record. Bodies are decompressed, or left as stored if that
fails; unusual rows are computed one by one and patched in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import decompress
from skylark.model.message import (
    HOST_V4_BYTES,
    PROPERTY_KEYS,
    PROPERTY_UNIQUE_KEY,
    SystemFlag,
    format_host,
)
from skylark.model.record import offset_message_id
from skylark.pipelines.decode.json_bodies import JsonBodies
from skylark.pipelines.decode.property_columns import PropertyTexts, as_text, between, patched
from skylark.pipelines.decode.record_layout import Flags, Ints, Records
from skylark.pipelines.schema import BODY_TEXT, REJECTS, VALUE

MICROSECONDS = pa.timestamp("us", tz="UTC")
# Clipped to this: a thousand times the value still fits into 64 bits.
_MILLISECONDS_MAX = (1 << 63) // 1000 - 1
_HEX = np.array([f"{byte:02X}".encode() for byte in range(256)]).view("<u2")

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
        bodies, faults = self._body_and_faults
        if self._json is not None:
            return self._json.decode(bodies, faults)
        try:
            return bodies.cast(pa.string()), faults
        except pa.ArrowInvalid:
            return _texts(bodies, faults)

    def _rejects(self) -> pa.Array:
        """Bodies that did not decode."""
        rejected = self._value_and_rejects[1]
        return pc.if_else(pa.array(rejected), self._body, pa.scalar(None, pa.binary()))


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
