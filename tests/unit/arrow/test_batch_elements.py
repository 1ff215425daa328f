"""Encoded columns: the unique keys of many rows."""

import itertools

import pytest

from skylark.arrow.batch_elements import unique_key_texts
from skylark.model.message_id import COUNTER_LIMIT, UniqueIds


@pytest.mark.parametrize("first", [0, COUNTER_LIMIT - 3])
@pytest.mark.parametrize("step", [1, 2])
def test_unique_keys_of_rows_are_those_of_a_producer(first: int, step: int) -> None:
    """Also where the counter comes round, and where another thread uses it too."""
    ids = [UniqueIds(bytes(4), 1_700_000_000_000) for _ in range(2)]
    for each in ids:
        each._prefix = ids[0]._prefix  # part of it is random
        each._counter = itertools.count(first, step)
    texts = unique_key_texts(ids[0].stems(10, 1_700_000_000_001))
    assert texts.to_pylist() == [
        b"UNIQ_KEY\x01%b\x02" % ids[1].next(1_700_000_000_001).encode() for _ in range(10)
    ]
