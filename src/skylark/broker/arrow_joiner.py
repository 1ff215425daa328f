"""Joins scattered records of the log with Arrow, for bulk pulls. Optional: needs numpy and pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_ENTRIES = np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])
# An item of Arrow's binary_view; its prefix is only used for comparisons.
_VIEWS = np.dtype([("size", "i4"), ("begin", "i4"), ("buffer", "i4"), ("place", "i4")])
_PLACE_MAX = (1 << 31) - 1
_INLINE_MAX = 12
"""Items up to this size are stored in the view itself."""


def join(view: memoryview, start: int, entries: bytes | bytearray) -> memoryview | None:
    """Return the records of entries, of a file that starts at `start`, in one part; None if they overlap."""
    table = np.frombuffer(entries, _ENTRIES)
    first = int(table["place"][0])
    places = table["place"] - first
    sizes = table["size"].astype(np.int64)
    ends = places + sizes
    span, position = int(ends[-1]), first - start
    if (
        not 0 <= position <= position + span <= len(view)
        or places.max() > _PLACE_MAX
        or (places[1:] < ends[:-1]).any()
        or sizes.min() <= _INLINE_MAX
    ):
        return None
    views = np.zeros(len(table), _VIEWS)
    views["size"], views["place"] = sizes, places
    parts = [None, pa.py_buffer(views), pa.py_buffer(view[position : position + span])]
    items = pa.Array.from_buffers(pa.binary_view(), len(table), parts)
    return memoryview(items.cast(pa.large_binary()).buffers()[2]).cast("B")
