"""Pure. Arrow columns to the messages of a RocketMQ batch: whole buffers at a time, no loop over rows.

The bytes equal those that a producer encodes message by message. `text_values` makes texts of any column,
`property_texts` joins them to the properties of each row, and `encode_elements` adds the bodies.
`unique_key_texts` makes the property that every message has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from skylark.arrow.record_layout import Bytes, Flags, Ints
from skylark.model.message import (
    KEY_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQUE_KEY,
)
from skylark.model.message_id import COUNTER_LIMIT
from skylark.model.record import BATCH_ELEMENT, LENGTH

_HEAD = np.dtype(
    [("total", ">i4"), ("magic", ">i4"), ("body_crc", ">i4"), ("flag", ">i4"), ("body_bytes", ">i4")]
)
assert _HEAD.itemsize == BATCH_ELEMENT.size
_LENGTH = np.dtype(">u2")
assert _LENGTH.itemsize == LENGTH.size
_UNSAFE_MAX = 2
"""Property texts hold no byte up to this one, except as separators."""
ELEMENT_BYTES = BATCH_ELEMENT.size + LENGTH.size
"""Bytes of a message in a batch besides body and properties."""


class Elements:
    """Encoded messages of consecutive rows."""

    def __init__(self, joined: pa.Array) -> None:
        self._bounds = _bounds(joined)
        self._data = memoryview(joined.buffers()[2])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def part(self, rows: range) -> memoryview:
        """The messages of some rows: the body of one batch."""
        return self._data[int(self._bounds[rows.start]) : int(self._bounds[rows.stop])]

    def parts(self, bytes_max: int, rows_max: int) -> Iterator[range]:
        """Split the rows into batches; a row that exceeds `bytes_max` is alone."""
        return parts(self._bounds, bytes_max, rows_max)


def parts(bounds: Ints, bytes_max: int, rows_max: int) -> Iterator[range]:
    """Split rows of known bounds into ranges of at least one row, within limits of bytes and rows."""
    first, count = 0, len(bounds) - 1
    while first < count:
        fitting = int(np.searchsorted(bounds, bounds[first] + bytes_max, side="right")) - 1
        stop = max(first + 1, min(fitting, first + rows_max, count))
        yield range(first, stop)
        first = stop


def encode_elements(bodies: pa.Array, texts: pa.Array) -> Elements:
    """Encode rows of bodies and property texts, both binary and without nulls.

    Property texts have at most 65,535 bytes, and all rows together less than 2 GiB.
    """
    body_bytes, text_bytes = value_bytes(bodies), value_bytes(texts)
    heads = np.zeros(len(bodies), _HEAD)
    heads["total"] = ELEMENT_BYTES + body_bytes + text_bytes
    heads["body_bytes"] = body_bytes
    lengths = text_bytes.astype(_LENGTH)
    return Elements(_joined(_fixed(heads), bodies, _fixed(lengths), texts))


Texts: TypeAlias = pa.Array | bytes
"""A binary column, or the same bytes for every row."""


def property_texts(named: Sequence[tuple[str, Texts]], count: int) -> pa.Array:
    """Join named columns to one property text per row, in this order.

    A null or empty value has no property. Columns without a name are joined as they are: finished properties.
    """
    pieces: list[Texts] = []
    for name, values in named:
        before, after = f"{name}{NAME_VALUE_SEPARATOR}".encode(), PROPERTY_SEPARATOR.encode()
        if not name:
            pieces.append(values)
        elif isinstance(values, bytes):
            pieces.append(before + values + after)
        elif (there := value_bytes(values) > 0).all():
            pieces += (before, values, after)
        else:
            full = _joined(before, pc.fill_null(values, b""), after)
            pieces.append(pc.if_else(pa.array(there), full, pa.scalar(b"", pa.binary())))
    if all(isinstance(piece, bytes) for piece in pieces):
        return pa.repeat(pa.scalar(b"".join(pieces), pa.binary()), count)
    if len(pieces) == 1:
        return pieces[0]
    return _joined(*pieces)


def unique_key_texts(stems: Iterable[tuple[str, Sequence[int]]]) -> pa.Array:
    """The property texts of unique keys, as `UniqueIds.stems` makes them."""
    pieces: list[Bytes] = []
    for stem, numbers in stems:
        start = np.frombuffer(f"{PROPERTY_UNIQUE_KEY}{NAME_VALUE_SEPARATOR}{stem}".encode(), np.uint8)
        texts = np.empty((len(numbers), len(start) + _digits().shape[1] + 1), np.uint8)
        texts[:, : len(start)] = start
        where = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        texts[:, len(start) : -1] = _digits()[where]
        texts[:, -1] = ord(PROPERTY_SEPARATOR)
        pieces.append(texts)
    rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return _fixed(rows.view(np.dtype((np.void, rows.shape[1]))).ravel())


@cache
def _digits() -> Bytes:
    """The four hexadecimal digits of every number of a unique key."""
    text = np.arange(COUNTER_LIMIT, dtype=">u2").tobytes().hex().upper().encode()
    return np.frombuffer(text, np.uint8).reshape(COUNTER_LIMIT, -1)


def map_items(column: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The row, the name and the value of every item in a column of maps, without null or empty ones."""
    pairs = column.cast(pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())])))
    flat = pc.list_flatten(pairs)
    names, values = (text_values(pc.struct_field(flat, each)) for each in ("name", "value"))
    there = pa.array((value_bytes(names) > 0) & (value_bytes(values) > 0))
    return pc.list_parent_indices(pairs).filter(there), names.filter(there), values.filter(there)


def property_maps(column: pa.Array) -> pa.Array:
    """The property texts of a column of maps."""
    rows, names, values = map_items(column)
    texts = _joined(names, NAME_VALUE_SEPARATOR.encode(), values, PROPERTY_SEPARATOR.encode())
    return _by_row(rows, texts, len(column), b"")


def text_values(column: pa.Array) -> pa.Array:
    """A column as binary: texts as UTF-8, bytes as they are, lists joined by blanks, others as text.

    Raises pyarrow.ArrowInvalid or ArrowNotImplementedError for a type that has no text.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return text_values(column.dictionary).take(column.indices)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = column.cast(pa.list_(pa.string()))
        words = text_values(pc.list_flatten(lists))
        there = pa.array(value_bytes(words) > 0)
        rows = pc.list_parent_indices(lists).filter(there)
        return _by_row(rows, words.filter(there), len(column), KEY_SEPARATOR.encode())
    if pa.types.is_binary(kind):
        return column
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    return (column if pa.types.is_string(kind) else column.cast(pa.string())).cast(pa.binary())


def value_bytes(column: pa.Array) -> Ints:
    """The length of every value of a binary column, 0 for null."""
    lengths = np.diff(_bounds(column))
    return np.where(_valid(column), lengths, 0) if column.null_count else lengths


def unsafe_rows(column: pa.Array) -> Ints:
    """Rows of a binary column with a byte that property texts cannot hold: \\x00, \\x01 or \\x02."""
    bounds = _bounds(column)
    buffer = column.buffers()[2]
    if buffer is None or not len(column):
        return np.empty(0, np.int64)
    data: Bytes = np.frombuffer(buffer, np.uint8)[bounds[0] : bounds[-1]]
    if not len(data) or data.min() > _UNSAFE_MAX:
        return np.empty(0, np.int64)
    places = np.flatnonzero(data <= _UNSAFE_MAX) + bounds[0]
    return np.unique(np.searchsorted(bounds, places, side="right") - 1)


def _by_row(rows: pa.Array, values: pa.Array, count: int, separator: bytes) -> pa.Array:
    """Join the values of each row, given in ascending order of rows; an empty text without any."""
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows.to_numpy(), minlength=count))])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values), separator)


def _joined(*pieces: Texts) -> pa.Array:
    """Join columns and constants row by row."""
    merged: list[pa.Array] = []
    for is_constant, group in groupby(pieces, lambda piece: isinstance(piece, bytes)):
        run = list(group)
        merged += [pa.scalar(b"".join(run), pa.binary())] if is_constant else run
    return pc.binary_join_element_wise(*merged, pa.scalar(b"", pa.binary()))


def _fixed(values: npt.NDArray[np.generic]) -> pa.Array:
    """Values of equal size as a binary column."""
    bounds = np.arange(len(values) + 1, dtype=np.int32) * values.itemsize
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(values.tobytes())]
    )


def _bounds(column: pa.Array) -> Ints:
    """Where the values of a binary column begin and end in its buffer."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)


def _valid(column: pa.Array) -> Flags:
    valid: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return valid
