"""How long brokers are avoided."""

import pytest

from skylark.client.producer.queue_selectors import LatencyTable, avoid_ms


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (600, 2000), (1800, 5000), (3000, 6000),
     (5000, 10_000), (10_000, 10_000), (14_999, 10_000), (15_000, 30_000), (99_999, 30_000)],
)  # fmt: skip
def test_the_slower_the_longer(latency_ms: int, avoided_ms: int) -> None:
    assert avoid_ms(latency_ms) == avoided_ms


def test_a_broker_that_failed_is_avoided_for_ten_seconds() -> None:
    table = LatencyTable()
    assert table.is_available("a", 0)
    assert table.is_reachable("a")
    table.failed("a", 100.0, is_reachable=False)
    assert not table.is_available("a", 109.9)
    assert table.is_available("a", 110.0)
    assert not table.is_reachable("a")
    assert table.is_available("b", 100.0)


def test_a_good_answer_makes_it_reachable_but_does_not_shorten_the_time() -> None:
    table = LatencyTable()
    table.failed("a", 100.0, is_reachable=False)
    table.answered("a", 10, 101.0)
    assert table.is_reachable("a")
    assert not table.is_available("a", 102.0)
    table.answered("a", 20_000, 103.0)
    assert not table.is_available("a", 132.9)
    assert table.is_available("a", 133.0)
