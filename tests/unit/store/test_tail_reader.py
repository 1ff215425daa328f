"""Records of a file in few parts; if another process wrote them, only if each unit and its record agree."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.store.queue_entry import ENTRY
from skylark.store.tail_reader import (
    JOINED_RECORD_BYTES,
    JOINER_ENTRIES_MIN,
    Joiner,
    Part,
    record_parts,
)

START = 1000
SIZES = (8, 12, 6)
PLACES = (START, START + 10, START + 24)
FILE = os.urandom(100_000)


def file() -> memoryview:
    data = bytearray(40)
    for place, size in zip(PLACES, SIZES, strict=True):
        data[place - START : place - START + 4] = size.to_bytes(4, "big")
        data[place - START + 4 : place - START + size] = bytes([size]) * (size - 4)
    return memoryview(data)


def parts_of(
    view: memoryview,
    places: Sequence[int],
    sizes: Sequence[int],
    *,
    is_checked: bool,
    joiner: Joiner | None = None,
) -> list[Part] | None:
    entries = b"".join(ENTRY.pack(place, size, 0) for place, size in zip(places, sizes, strict=True))
    return record_parts(view, START, entries, sizes, joiner, is_checked=is_checked)


def checked(places: tuple[int, ...], sizes: tuple[int, ...]) -> list[Part] | None:
    return parts_of(file(), places, sizes, is_checked=True)


@pytest.mark.parametrize("is_checked", [True, False])
def test_records_are_where_their_units_say(is_checked: bool) -> None:
    parts = parts_of(file(), PLACES, SIZES, is_checked=is_checked)
    assert parts == [b"\0\0\0\x08" + b"\x08" * 4 + b"\0\0\0\x0c" + b"\x0c" * 8 + b"\0\0\0\x06" + b"\x06" * 2]


def test_a_unit_that_does_not_fit_its_record_is_not_believed() -> None:
    assert checked(PLACES, (8, 13, 6)) is None
    assert checked((START, START + 11, START + 24), SIZES) is None
    assert checked(PLACES, (8, 0, 6)) is None
    assert checked(PLACES, (8, -1, 6)) is None


def test_a_unit_that_points_out_of_the_file_is_not_believed() -> None:
    assert checked((START, START + 10, START + 38), SIZES) is None
    # Counted from the file's end, a record of the right size lies there.
    assert checked((START, START + 10, START - 16), SIZES) is None
    for is_checked in (True, False):
        for wrong in (START + 38, START - 16):
            assert parts_of(file(), (START, wrong, START + 24), SIZES, is_checked=is_checked) is None


def test_records_side_by_side_are_a_part_of_the_map() -> None:
    view = file()
    parts = parts_of(view, (START, START + 8), (8, 2), is_checked=False)
    assert parts is not None
    [part] = parts
    assert isinstance(part, memoryview) and part.obj is view.obj
    assert part == view[:10]
    assert parts_of(view, (START, START + 8), (8, 40), is_checked=False) is None


@pytest.mark.parametrize("damage", [0, 1])
def test_large_records_are_not_copied(damage: int) -> None:
    size = JOINED_RECORD_BYTES + 1
    view = memoryview(
        (size + damage).to_bytes(4, "big").ljust(size + 5, b"-") + size.to_bytes(4, "big").ljust(size)
    )
    places, sizes = (START, START + size + 5), (size, size)
    for is_checked in (True, False):
        parts = parts_of(view, places, sizes, is_checked=is_checked)
        if is_checked and damage:
            assert parts is None
        else:
            assert parts == [view[:size], view[size + 5 :]]
    assert parts_of(view[:-1], places, sizes, is_checked=True) is None


# --- With Arrow ---


@pytest.fixture(scope="module")
def by_arrow() -> Joiner:
    pytest.importorskip("pyarrow")
    from skylark.broker.arrow_joiner import join

    return join


@given(
    st.lists(st.tuples(st.integers(-1, 40), st.integers(11, 300)), min_size=JOINER_ENTRIES_MIN, max_size=300),
    st.integers(-30, 2000),
)
def test_arrow_gives_what_slices_give(by_arrow: Joiner, records: list[tuple[int, int]], first: int) -> None:
    """A gap below 0 makes two records overlap, and none is as short as 12 bytes: those are left to others."""
    places, sizes, place = [], [], START + first
    for gap, size in records:
        place += gap
        places.append(place)
        sizes.append(size)
        place += size
    view = memoryview(FILE)
    fast = parts_of(view, places, sizes, is_checked=False, joiner=by_arrow)
    slow = parts_of(view, places, sizes, is_checked=False)
    assert fast == slow or (fast is None and (any(gap < 0 for gap, _ in records[1:]) or min(sizes) <= 12))


@pytest.mark.parametrize(
    "wrong",
    [(START - 1, 15), (START + len(FILE) - 4, 15), (START + 7, -3), (1 << 62, 15), ((1 << 63) - 4, 15)],
)
def test_arrow_leaves_what_is_elsewhere(by_arrow: Joiner, wrong: tuple[int, int]) -> None:
    units = sorted([*((START + 20 * number, 15) for number in range(JOINER_ENTRIES_MIN)), wrong])
    places, sizes = zip(*units, strict=True)
    assert parts_of(memoryview(FILE), places, sizes, is_checked=False, joiner=by_arrow) is None


def test_arrow_checks_the_sizes_of_records(by_arrow: Joiner) -> None:
    data = bytearray(40 * JOINER_ENTRIES_MIN)
    places, sizes = range(START, START + len(data), 40), [20] * JOINER_ENTRIES_MIN
    for place in places:
        data[place - START : place - START + 4] = (20).to_bytes(4, "big")
    assert parts_of(memoryview(data), places, sizes, is_checked=True, joiner=by_arrow) is not None
    data[40 * 7 + 3] = 21
    assert parts_of(memoryview(data), places, sizes, is_checked=True, joiner=by_arrow) is None


def test_a_joiner_is_used_for_many_records_only() -> None:
    joined: list[int] = []

    def join(view: memoryview, start: int, entries: bytes | bytearray) -> memoryview | None:
        joined.append(len(entries) // ENTRY.size)
        return None

    for count in (JOINER_ENTRIES_MIN - 1, JOINER_ENTRIES_MIN):
        parts_of(
            memoryview(FILE), range(START, START + 10 * count, 10), [5] * count, is_checked=False, joiner=join
        )
    assert joined == [JOINER_ENTRIES_MIN]
