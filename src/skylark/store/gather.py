"""Records that lie apart in the log, in few parts: copied together if they are small, else where they lie."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, islice
from threading import Thread

from skylark.store.unit import UNIT_BYTES

JOINED_RECORD_BYTES = 4096
"""Records that are smaller on average are copied together: that costs less than many parts do later."""
ARROW_UNITS_MIN = 128
"""The records of so many units Arrow copies together in a third of the time. Only readers of a backlog, who
ask far ahead, come to so many: nobody else makes a broker load it."""
UNPACKERS_KEPT = 256

_PLACE = struct.Struct(">q").unpack_from
_SIZE = struct.Struct(">i").unpack_from

Part = bytes | memoryview
Units = bytes | bytearray


class Gather:
    """Gathers records; with Arrow, if that is installed, once somebody has asked for many. Any thread."""

    def __init__(self) -> None:
        self._by_arrow: Callable[[memoryview, int, Units], memoryview | None] | None = None
        self._loading: Thread | None = None

    def load(self) -> None:
        """Load Arrow, if it is installed. That takes a fifth of a second: not while somebody waits."""
        with suppress(ImportError):
            from skylark.store.arrow_gather import gather  # noqa: PLC0415 (an extra)

            self._by_arrow = gather

    def parts(
        self, view: memoryview, start: int, units: Units, sizes: Sequence[int], *, is_checked: bool
    ) -> list[Part] | None:
        """The records of units, of a file that starts at `start`, in few parts.

        None if they do not lie there, one behind the other. `is_checked`: also if one of them does not have
        the size that its unit claims.
        """
        first, last, taken = _PLACE(units)[0] - start, _PLACE(units, -UNIT_BYTES)[0] - start, sum(sizes)
        is_joined = taken <= JOINED_RECORD_BYTES * len(sizes)
        if not is_checked and taken == last + sizes[-1] - first:  # side by side
            is_there = first >= 0 and _places(units, len(sizes)) is not None
            records: list[Part] | None = [view[first : first + taken]] if is_there else None
        elif is_joined:
            records = self._joined(view, start, units, sizes)
        else:
            records = slices(view, start, units, sizes)
        if records is None or sum(map(len, records)) != taken:
            return None
        if is_checked:
            fit = fits(records[0], sizes) if is_joined else all(map(fits, records, zip(sizes)))
            return records if fit else None
        return records

    def _joined(self, view: memoryview, start: int, units: Units, sizes: Sequence[int]) -> list[Part] | None:
        if len(sizes) >= ARROW_UNITS_MIN:
            if self._loading is None:
                self._loading = Thread(target=self.load, name="skylark-arrow", daemon=True)
                self._loading.start()
            if self._by_arrow is not None:
                data = self._by_arrow(view, start, units)
                return None if data is None else [data]
        # Nothing has looked at the records yet: so the processor fetches many of them from memory at once.
        records = slices(view, start, units, sizes)
        return None if records is None else [b"".join(records)]


def slices(view: memoryview, start: int, units: Units, sizes: Sequence[int]) -> list[Part] | None:
    """The records of units one by one where they lie; None if they do not lie one behind the other."""
    places = _places(units, len(sizes))
    if places is None or places[0] < start:
        return None
    return [view[(at := place - start) : at + size] for place, size in zip(places, sizes, strict=True)]


def fits(data: Part, sizes: Sequence[int]) -> bool:
    """Whether records that lie one behind the other have the sizes that their units claim."""
    size_at = _SIZE
    starts = islice(accumulate(sizes, initial=0), len(sizes))
    try:
        return [size_at(data, start)[0] for start in starts] == list(sizes)
    except struct.error:
        return False  # a blank or damaged unit pointed out of the file


def sizes_of(units: Units) -> tuple[int, ...]:
    """How large the records of units are."""
    return _unpacker("8xi8x", len(units) // UNIT_BYTES)(units)


def _places(units: Units, count: int) -> tuple[int, ...] | None:
    """Where records lie; None if not one behind the other."""
    places = _unpacker("q12x", count)(units)
    return places if places == tuple(sorted(places)) else None


@lru_cache(UNPACKERS_KEPT)
def _unpacker(unit: str, count: int) -> Callable[[Units], tuple[int, ...]]:
    return struct.Struct(">" + unit * count).unpack
