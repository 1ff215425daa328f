"""Records that lie apart in the log, copied together by Arrow: `gather` imports this if it can."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNITS = np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])
_COUNTS_KEPT = 64


def gather(view: memoryview, start: int, units: bytes | bytearray) -> memoryview | None:
    """The records of units, of a file that starts at `start`; None unless each lies behind the one before."""
    table = np.frombuffer(units, _UNITS)
    bounds = np.empty(2 * len(table), np.int64)
    bounds[0::2] = table["place"]
    bounds[0::2] -= start
    bounds[1::2] = bounds[0::2] + table["size"]
    if bounds[0] < 0 or bounds[-1] > len(view) or (bounds[1:] < bounds[:-1]).any():
        return None
    # The items of one array are records and what lies between them, in turn: every other one is taken.
    parts = [None, pa.py_buffer(bounds), pa.py_buffer(view)]
    items = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(bounds) - 1, parts)
    taken = pc.take(items, _every_other(len(table)), boundscheck=False)
    return memoryview(taken.buffers()[2]).cast("B")


@lru_cache(_COUNTS_KEPT)
def _every_other(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2))
