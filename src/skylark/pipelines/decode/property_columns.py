"""Pure. Single properties, or all of them as a map, from the property texts of many records.

The texts are copied into one array in which two separators precede every text (in place of its length field)
and one follows the last, so that no property spans two texts. Results equal those of `decode_properties`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from skylark.model.message import decode_properties
from skylark.pipelines.decode.record_layout import Bytes, Ints, Records, windows

_MARK, _SEPARATOR = 1, 2
_PADDING = 8
_WORDS = {size: np.dtype(f"<u{size}") for size in (8, 4, 2, 1)}
_MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
# Masks for the first bytes of a word, for names shorter than a word.
_HEADS = np.array([(1 << 8 * size) - 1 for size in range(8)] + [(1 << 64) - 1], np.uint64)


def stretches(buffer: pa.Buffer, bounds: Ints) -> pa.Array:
    """The bytes between consecutive bounds. Bounds ascend and span less than 2 GiB."""
    base = int(bounds[0]) if len(bounds) else 0
    offsets = (bounds - base).astype(np.int32) if len(bounds) else np.zeros(1, np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer.slice(base)]
    )


def between(buffer: pa.Buffer, starts: Ints, ends: Ints) -> pa.Array:
    return stretches(buffer, interleaved(starts, ends)).take(pa.array(np.arange(0, 2 * len(starts), 2)))


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
    """Parsed property texts of a batch of records."""

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

    def column(self, name: str) -> pa.Array:
        """One property of every text, null where it is missing or empty."""
        marks = self._marks_after(name.encode())
        starts = marks + 1
        ends = self.separators[np.searchsorted(self.separators, marks)]
        filled = ends > starts
        marks, starts, ends = marks[filled], starts[filled], ends[filled]
        rows = self._rows_of(marks)
        value_starts, value_ends = self.bounds[:-1].copy(), self.bounds[:-1].copy()
        value_starts[rows], value_ends[rows] = starts, ends  # the last duplicate wins
        places = pa.array(np.arange(self.count) * 2, mask=value_starts == value_ends)
        return as_text(stretches(self.buffer, interleaved(value_starts, value_ends)).take(places))

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

    @cached_property
    def tags(self) -> pa.Array:
        """Cached: used by the column and by the tag filter."""
        return self.column("TAGS")
