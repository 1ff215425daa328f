"""Records of a file in few parts; if another process wrote them, only if each unit and its record agree."""

from __future__ import annotations

import pytest

from skylark.store.recent import JOINED_RECORD_BYTES, Part, parts_of

START = 1000
SIZES = (8, 12, 6)
PLACES = (START, START + 10, START + 24)


def file() -> memoryview:
    data = bytearray(40)
    for place, size in zip(PLACES, SIZES, strict=True):
        data[place - START : place - START + 4] = size.to_bytes(4, "big")
        data[place - START + 4 : place - START + size] = bytes([size]) * (size - 4)
    return memoryview(data)


def checked(places: tuple[int, ...], sizes: tuple[int, ...]) -> list[Part] | None:
    return parts_of(file(), START, places, sizes, is_checked=True)


@pytest.mark.parametrize("is_checked", [True, False])
def test_records_are_where_their_units_say(is_checked: bool) -> None:
    parts = parts_of(file(), START, PLACES, SIZES, is_checked=is_checked)
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
            assert parts_of(file(), START, (START, wrong, START + 24), SIZES, is_checked=is_checked) is None


def test_records_side_by_side_are_a_part_of_the_map() -> None:
    view = file()
    parts = parts_of(view, START, (START, START + 8), (8, 2), is_checked=False)
    assert parts is not None
    [part] = parts
    assert isinstance(part, memoryview) and part.obj is view.obj
    assert part == view[:10]
    assert parts_of(view, START, (START, START + 8), (8, 40), is_checked=False) is None


@pytest.mark.parametrize("damage", [0, 1])
def test_large_records_are_not_copied(damage: int) -> None:
    size = JOINED_RECORD_BYTES + 1
    view = memoryview(
        (size + damage).to_bytes(4, "big").ljust(size + 5, b"-") + size.to_bytes(4, "big").ljust(size)
    )
    places, sizes = (START, START + size + 5), (size, size)
    for is_checked in (True, False):
        parts = parts_of(view, START, places, sizes, is_checked=is_checked)
        if is_checked and damage:
            assert parts is None
        else:
            assert parts == [view[:size], view[size + 5 :]]
    assert parts_of(view[:-1], START, places, sizes, is_checked=True) is None
