"""Numbers in properties: the limits of Java's types, also on the fast way from bytes, and Java's order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skylark.model.sql92.values import (
    EvaluationError,
    int32_of_bytes,
    int64_of_bytes,
    order,
    read_int32,
    read_int64,
)


@pytest.mark.parametrize(
    ("of_text", "of_bytes", "largest"),
    [(read_int32, int32_of_bytes, 2**31 - 1), (read_int64, int64_of_bytes, 2**63 - 1)],
)
def test_whole_numbers_have_the_limits_of_their_type(
    of_text: Callable[[str], int], of_bytes: Callable[[bytes], int], largest: int
) -> None:
    for number in (0, 7, largest - 1, largest, -1, -largest, -largest - 1):
        assert of_text(str(number)) == of_bytes(str(number).encode()) == number
    as_long = 10 ** (len(str(largest)) - 1)  # as many digits as the largest, and less
    assert of_bytes(str(as_long).encode()) == as_long
    nines = "9" * len(str(largest))
    for text in (str(largest + 1), str(-largest - 2), nines, "1x", "", "-", "\u0661x"):
        with pytest.raises(EvaluationError, match="is not a valid"):
            of_text(text)
        with pytest.raises(EvaluationError, match="is not a valid"):
            of_bytes(text.encode())


def test_the_order_is_java_s() -> None:
    nan, infinity = float("nan"), float("inf")
    ascending = [-infinity, -1.5, -0.0, 0.0, 2.0, infinity, nan]
    for place, left in enumerate(ascending):
        for other, right in enumerate(ascending):
            assert order(left, right) == (place > other) - (place < other)
