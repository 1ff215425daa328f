"""Finding records in a pull's answer: many walkers find what one finds, whatever the bodies hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.arrow import record_layout
from skylark.arrow.record_layout import UNIT_TYPE, record_starts, unit_sizes
from skylark.errors import CorruptRecord
from skylark.model.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

SEGMENT_BYTES, SHARED_BYTES_MIN = 16 << 10, 128 << 10
MAGICS = [magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2)]
# Parts of bodies: a walker that takes the magic in one for the magic of a record must not get away with it.
PARTS = st.sampled_from([b"x" * 50, bytes(300), *MAGICS, (500).to_bytes(4, "big") + MAGICS[0]])


@pytest.fixture(autouse=True, scope="module")
def small_shares() -> Iterator[None]:
    """Many walkers in little data."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(record_layout, "SEGMENT_BYTES", SEGMENT_BYTES)
        patched.setattr(record_layout, "SHARED_BYTES_MIN", SHARED_BYTES_MIN)
        yield


def record(body: bytes, magic: bytes = MAGICS[0]) -> bytes:
    """As much of a record as counts here."""
    rest = body.ljust(RECORD_BYTES_MIN - 8, b"\0")
    return (8 + len(rest)).to_bytes(4, "big") + magic + rest


@given(
    st.lists(
        st.tuples(st.lists(PARTS, max_size=40).map(b"".join), st.sampled_from(MAGICS)),
        min_size=1,
        max_size=12,
    )
)
def test_every_record_is_found(kinds: list[tuple[bytes, bytes]]) -> None:
    once = [record(*kind) for kind in kinds]
    records = once * (SHARED_BYTES_MIN * 2 // sum(map(len, once)) + 1)
    data = b"".join(records)
    sizes = np.array([len(each) for each in records])
    expected = (np.cumsum(sizes) - sizes).tolist()
    assert record_starts(data).tolist() == expected
    assert record_starts(memoryview(b"?" + data)[1:]).tolist() == expected


@given(
    st.lists(
        st.lists(st.lists(PARTS, max_size=40).map(b"".join), min_size=1, max_size=6), min_size=1, max_size=8
    ),
    st.sampled_from([1, 400]),
)
def test_records_of_many_answers_in_one_block(answers: list[list[bytes]], times: int) -> None:
    block, stretches, expected = b"", [], []
    for bodies in answers * times:
        block += b"a header " + MAGICS[0]
        first = len(block)
        for body in bodies:
            expected.append(len(block))
            block += record(body)
        stretches.append((first, len(block)))
        if len(block) > 4 * SHARED_BYTES_MIN:
            break
    assert record_starts(block, stretches).tolist() == expected
    with pytest.raises(CorruptRecord, match="truncated"):
        record_starts(block, [*stretches[:-1], (stretches[-1][0], stretches[-1][1] - 1)])


def test_a_record_larger_than_a_walkers_share() -> None:
    records = [
        record(b"x" * 100),
        record(b"y" * 5 * SEGMENT_BYTES),
        record(b"z" * 10 * SEGMENT_BYTES),
        record(b""),
    ]
    starts = record_starts(b"".join(records))
    assert starts.tolist() == [0, *np.cumsum([len(each) for each in records[:-1]]).tolist()]


@pytest.mark.parametrize("count", [3, 2000])
def test_an_answer_that_is_cut_short_is_refused(count: int) -> None:
    data = record(b"x" * 200) * count
    with pytest.raises(CorruptRecord, match="truncated"):
        record_starts(data[:-1])
    with pytest.raises(CorruptRecord, match="truncated"):
        record_starts(data + b"\0\0")


@pytest.mark.parametrize("count", [3, 2000])
def test_a_size_that_cannot_be_is_refused_with_its_place(count: int) -> None:
    good = record(b"x" * 200)
    bad = (7).to_bytes(4, "big") + good[4:]
    place = len(good) * (count // 2)
    with pytest.raises(CorruptRecord, match=f"size 7 at byte {place}"):
        record_starts(good * (count // 2) + bad + good * (count // 2))


def test_queue_entries_say_where_records_begin_only_if_they_add_up() -> None:
    sizes = [len(record(b"x" * number)) for number in (200, 300, 400)]
    units = np.array([(0, size, 0) for size in sizes], UNIT_TYPE).tobytes()
    found = unit_sizes(units, sum(sizes))
    assert found is not None
    assert found.tolist() == sizes
    assert unit_sizes(units, sum(sizes) + 1) is None
    assert unit_sizes(units[20:], sum(sizes)) is None
    wrong = np.array([(0, sum(sizes) + 1, 0), (0, -1, 0)], UNIT_TYPE).tobytes()
    assert unit_sizes(wrong, sum(sizes)) is None
