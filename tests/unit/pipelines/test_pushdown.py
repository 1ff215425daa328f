"""Filters as restrictions: bounds that are never too narrow, keys as the index knows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThanOrEqual

from skylark.pipelines.pushdown import Restrictions

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_a_bound_of_time_leaves_out_no_millisecond() -> None:
    for milliseconds in (1_098_471_115_574, 1_763_287_200_001, 2_186_919_973_220, -1, 0, 253_402_300_799_999):
        moment = EPOCH + timedelta(milliseconds=milliseconds)
        restrictions = Restrictions()
        restrictions.take([GreaterThanOrEqual(("storeTimestamp",), moment)])
        restrictions.take([LessThanOrEqual(("storeTimestamp",), moment)])
        assert (restrictions.from_ms, restrictions.to_ms) == (milliseconds, milliseconds + 1)


@pytest.mark.parametrize(
    ("keys", "looked_up"),
    [
        ("order-7 all", "order-7"),
        ("  order-7", "order-7"),
        ("a\tb", "a\tb"),
        ("甲\u3000乙", "甲\u3000乙"),
        (" ", None),
    ],
)
def test_of_several_keys_the_first_is_looked_up_as_it_is(keys: str, looked_up: str | None) -> None:
    restrictions = Restrictions()
    assert restrictions.take([EqualTo(("keys",), keys)])  # Spark still compares the whole text
    assert restrictions.key == looked_up
