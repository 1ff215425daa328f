"""Slices of the log for units that another process wrote: only if each unit and its record agree."""

from __future__ import annotations

from skylark.store.recent import checked_slices

START = 1000
SIZES = (8, 12, 6)
PLACES = (START, START + 10, START + 24)


def file() -> memoryview:
    data = bytearray(40)
    for place, size in zip(PLACES, SIZES, strict=True):
        data[place - START : place - START + 4] = size.to_bytes(4, "big")
        data[place - START + 4 : place - START + size] = bytes([size]) * (size - 4)
    return memoryview(data)


def test_records_are_where_their_units_say() -> None:
    records = checked_slices(file(), START, PLACES, SIZES)
    assert records is not None
    assert [bytes(record[4:]) for record in records] == [b"\x08" * 4, b"\x0c" * 8, b"\x06" * 2]


def test_a_unit_that_does_not_fit_its_record_is_not_believed() -> None:
    assert checked_slices(file(), START, PLACES, (8, 13, 6)) is None
    assert checked_slices(file(), START, (START, START + 11, START + 24), SIZES) is None


def test_a_unit_that_points_out_of_the_file_is_not_believed() -> None:
    assert checked_slices(file(), START, (START, START + 10, START + 38), SIZES) is None
    # Counted from the file's end, a record of the right size lies there.
    assert checked_slices(file(), START, (START, START + 10, START - 16), SIZES) is None
