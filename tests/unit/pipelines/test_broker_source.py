"""Records of answers in one block: units of the broker say what walking from record to record finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import CorruptRecord
from skylark.pipelines.broker_source import PulledRecords, locate_pulled
from skylark.store.message_store import MessageStore
from skylark.store.queue_entry import ENTRY
from tests.support.store import message, opened, put_all, small_settings

LARGE_FILES: dict[str, Any] = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 20 * 1000}
BODIES = st.lists(st.binary(max_size=300), min_size=1, max_size=12)


def records_of(store: MessageStore, bodies: list[bytes]) -> list[bytes]:
    put_all(store, [message(body=body, tags="TagA") for body in bodies])
    return [bytes(record) for record in store.get("T", 0, 0, 32).records]


def in_a_block(answers: list[list[bytes]], *, with_units: list[bool]) -> list[PulledRecords]:
    """Answers as a connection reads them, one behind the other with headers between."""
    parts, places = [b"something"], []
    for records, has_units in zip(answers, with_units, strict=True):
        units = b"".join(ENTRY.pack(0, len(record), 0) for record in records) if has_units else b""
        parts += [b"header", units, *records]
        end = sum(map(len, parts))
        size = sum(map(len, records))
        places.append((end - size - len(units), end - size, end))
    block = memoryview(bytearray(b"".join(parts) + b"rest"))
    return [PulledRecords(block[first:end], block[units:first]) for units, first, end in places]


@given(
    BODIES, st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=5), st.integers(0, 12)
)
def test_units_say_what_walking_finds(
    bodies: list[bytes], cuts: list[tuple[int, bool]], to_offset: int
) -> None:
    with opened(small_settings(**LARGE_FILES)) as store:
        records = records_of(store, bodies)
    answers = [
        records[at : at + size] for at, (size, _) in zip(range(0, len(records), 5), cuts, strict=False)
    ]
    walked = locate_pulled(in_a_block(answers, with_units=[False] * len(answers)), to_offset)
    for with_units in ([True] * len(answers), [has for _, has in cuts[: len(answers)]]):
        found = locate_pulled(in_a_block(answers, with_units=with_units), to_offset)
        assert found.heads.tobytes() == walked.heads.tobytes()
        views = [bytes(found.body_view(row)) for row in range(len(found))]
        assert views == [bytes(walked.body_view(row)) for row in range(len(walked))]
        assert not found.bad.any()
    wanted = [offset for at, part in enumerate(answers) for offset in range(5 * at, 5 * at + len(part))]
    assert walked.heads["queue_offset"].tolist() == [offset for offset in wanted if offset < to_offset]


@pytest.mark.parametrize("damage", [(0, b"\0\0\0\1"), (4, b"????")])
def test_a_record_that_does_not_fit_its_unit_is_bad_and_the_others_are_not(damage: tuple[int, bytes]) -> None:
    with opened(small_settings(**LARGE_FILES)) as store:
        records = records_of(store, [b"a", b"bb", b"ccc"])
    place, wrong = damage
    records[1] = records[1][:place] + wrong + records[1][place + 4 :]
    found = locate_pulled(in_a_block([records], with_units=[True]), 3)
    assert found.bad.tolist() == [False, True, False]
    assert [bytes(found.body_view(row)) for row in (0, 2)] == [b"a", b"ccc"]


@pytest.mark.parametrize("size", [0, -1, 1 << 30])
def test_units_that_cannot_be_right_are_not_believed(size: int) -> None:
    with opened(small_settings(**LARGE_FILES)) as store:
        records = records_of(store, [b"a", b"bb", b"ccc"])
    [answer] = in_a_block([records], with_units=[True])
    units = bytearray(answer.units)
    units[8:12] = np.array([size], ">i4").tobytes()
    assert locate_pulled([PulledRecords(answer.records, bytes(units))], 3).heads["queue_offset"].tolist() == [
        0,
        1,
        2,
    ]
    with pytest.raises(CorruptRecord, match="truncated"):
        locate_pulled([PulledRecords(answer.records[:-1], answer.units)], 3)
