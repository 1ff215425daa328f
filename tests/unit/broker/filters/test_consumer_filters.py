"""Filters of groups over restarts: born, dead, forgotten, and RocketMQ's file."""

from __future__ import annotations

import pytest

from skylark.broker.filters.compiled_subscription import CompiledSubscription, compile_subscription
from skylark.broker.filters.consumer_filters import (
    DEAD_BEFORE_LOAD_MS,
    FORGET_AFTER_MS,
    ConsumerFilters,
    bit_positions,
)
from skylark.model import java
from skylark.protocol.bodies import SubscriptionData
from tests.unit.broker.tables import NOW_MS, golden_config

LATER_MS = NOW_MS + 1000


def wanted(expression: str = "a > 5", version: int = 1, topic: str = "T") -> CompiledSubscription:
    return compile_subscription(
        SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version)
    )


def filters() -> ConsumerFilters:
    return ConsumerFilters(filters_max=10)


def test_a_filter_is_born_with_its_bits() -> None:
    table = filters()
    told: list[int] = []
    table.on_change = lambda: told.append(1)
    tags = compile_subscription(SubscriptionData(topic="Tags", sub_string="TagA", sub_version=1))
    table.register("CG", [wanted(), tags], now_ms=NOW_MS)
    data = table.get("CG", "T")
    assert data is not None
    assert (data.expression, data.born_time, data.client_version, data.is_dead) == ("a > 5", NOW_MS, 1, False)
    assert data.bloom_filter_data is not None
    assert data.bloom_filter_data.bit_pos == bit_positions("CG#T")
    assert table.get("CG", "Tags") is None
    table.register("CG", [wanted(), tags], now_ms=LATER_MS)
    assert told == [1]


def test_a_new_expression_is_a_new_filter_and_a_new_version_alone_is_not() -> None:
    table = filters()
    table.register("CG", [wanted()], now_ms=NOW_MS)
    table.register("CG", [wanted(version=2)], now_ms=LATER_MS)
    data = table.get("CG", "T")
    assert data is not None
    assert (data.born_time, data.client_version) == (NOW_MS, 2)
    table.register("CG", [wanted("b = 'x'", version=1)], now_ms=LATER_MS)
    assert table.get("CG", "T") is data
    table.register("CG", [wanted("b = 'x'", version=3)], now_ms=LATER_MS)
    data = table.get("CG", "T")
    assert data is not None
    assert (data.expression, data.born_time) == ("b = 'x'", LATER_MS)


def test_a_bad_expression_leaves_no_filter() -> None:
    table = filters()
    table.register("CG", [wanted("a >")], now_ms=NOW_MS)
    assert table.get("CG", "T") is None
    table.register("CG", [wanted(version=2)], now_ms=NOW_MS)
    table.register("CG", [wanted("a >", version=3)], now_ms=NOW_MS)
    assert table.get("CG", "T") is None


def test_filters_die_with_their_group_and_come_back_with_it() -> None:
    table = filters()
    table.register("CG", [wanted(), wanted(topic="T2")], now_ms=NOW_MS)
    table.register("CG", [wanted()], now_ms=LATER_MS)
    left = table.get("CG", "T2")
    assert left is not None
    assert left.dead_time == LATER_MS
    table.retire(lambda group: False, now_ms=LATER_MS + 1)
    data = table.get("CG", "T")
    assert data is not None
    assert (data.is_dead, data.dead_time) == (True, LATER_MS + 1)
    table.register("CG", [wanted()], now_ms=LATER_MS + 2)
    assert (data.is_dead, data.born_time) == (False, NOW_MS)
    table.retire(lambda group: True, now_ms=LATER_MS + FORGET_AFTER_MS + 2)
    assert table.get("CG", "T2") is None
    assert table.get("CG", "T") is data


def test_there_is_no_room_without_end() -> None:
    table = ConsumerFilters(filters_max=1)
    table.register("CG", [wanted(), wanted(topic="T2")], now_ms=NOW_MS)
    assert table.get("CG", "T2") is None


def test_apaches_file_is_read_and_written_the_same() -> None:
    data = golden_config("consumerFilter.json")
    table = filters()
    table.load(data, now_ms=NOW_MS)
    assert java.loads(table.snapshot()()) == java.loads(data)


def test_a_filter_that_lived_is_dead_after_a_restart() -> None:
    table = filters()
    table.register("CG", [wanted()], now_ms=NOW_MS)
    restarted = filters()
    restarted.load(table.snapshot()(), now_ms=NOW_MS + 10 * DEAD_BEFORE_LOAD_MS)
    data = restarted.get("CG", "T")
    assert data is not None
    assert data.dead_time == NOW_MS + 9 * DEAD_BEFORE_LOAD_MS
    with pytest.raises(ValueError, match="filterDataByTopic"):
        restarted.load(b'{"filterDataByTopic":7}', now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "count", "bits", "positions"),
    [
        ("GroupA#TopicA", 3, 112, [29, 107, 11]),
        ("CID_abc#TopicTest", 3, 112, [103, 61, 29]),
        ("g#t", 3, 112, [22, 87, 58]),
        ("CID_abc_efg", 4, 96, [49, 17, 78, 14]),
        ("CG_sql#TopicTest", 3, 112, [30, 35, 71]),
    ],
)
def test_bits_of_the_bloom_filter(text: str, count: int, bits: int, positions: list[int]) -> None:
    assert bit_positions(text, count=count, bits=bits) == positions
