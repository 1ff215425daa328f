"""Rows of a pull for Arrow: found by the broker's queue entries, or by walking; never wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from skylark.arrow.record_layout import UNIT_TYPE
from skylark.client.consumer.record_rows import COLUMNS, make_decoder, record_rows
from skylark.client.consumer.subscription import by_tags
from skylark.errors import CorruptRecord
from skylark.protocol.requests.pull import PullReply, PullResult
from tests.unit.client.messages import QUEUE, record

RECORDS = [record(number, b"x" * number, {"TAGS": "a"}) for number in (1, 50, 9)]
EVERYTHING = by_tags("T", "*", now_ms=0)


def result(sizes: list[int]) -> PullResult:
    units = np.array([(0, size, 0) for size in sizes], UNIT_TYPE).tobytes()
    return PullResult(0, PullReply(0, 3, 0, 3), b"".join(RECORDS), units)


@pytest.mark.parametrize(
    "sizes", [list(map(len, RECORDS)), [], [1, 2, 3]], ids=["entries", "none", "entries that do not add up"]
)
def test_rows_are_found_with_and_without_queue_entries(sizes: list[int]) -> None:
    rows = record_rows(QUEUE, EVERYTHING, 0, result(sizes))
    batch = rows.batch(make_decoder(COLUMNS, None, check_crc=True), "T")
    assert batch.column("queueOffset").to_pylist() == [1, 50, 9]
    assert [len(body) for body in batch.column("body").to_pylist()] == [1, 50, 9]
    assert batch.column("tags").to_pylist() == ["a"] * 3


def test_entries_that_point_into_records_are_refused() -> None:
    first, second, third = map(len, RECORDS)
    with pytest.raises(CorruptRecord):
        record_rows(QUEUE, EVERYTHING, 0, result([first + 1, second - 1, third]))
