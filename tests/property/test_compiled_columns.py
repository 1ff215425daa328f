"""The compiled functions of the decoder refuse positions outside of a buffer."""

from types import ModuleType

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("starts", "ends"), [([-1], [2]), ([3], [2]), ([0], [6]), ([0, 1], [1]), ([1 << 62], [1 << 62])]
)
def test_stretches_outside_of_the_buffer_are_refused(
    compiled: ModuleType, starts: list[int], ends: list[int]
) -> None:
    places = np.array(starts, np.int64), np.array(ends, np.int64)
    for name in (None, b"TAGS"):
        with pytest.raises(ValueError, match="not in the buffer"):
            compiled.join_column(b"12345", *places, name)


def test_more_than_arrow_can_count_is_refused(compiled: ModuleType) -> None:
    data = bytes(1 << 20)
    places = np.zeros(2049, np.int64), np.full(2049, len(data))
    with pytest.raises(ValueError, match="more than 2 GiB"):
        compiled.join_column(data, *places, None)
