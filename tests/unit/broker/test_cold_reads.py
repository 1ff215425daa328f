"""Limits for reads of cold data, with time in our hands."""

from typing import Any

import pytest

from skylark.broker.cold_reads import IDLE_S, WINDOW_S, ColdReads
from skylark.errors import BrokerError
from skylark.settings.live import plan_update
from tests.unit.broker.tables import NOW_MS, live

TOTALS = {"cgColdReadThreshold": 100, "globalColdReadThreshold": 300}


def limited(**settings: Any) -> ColdReads:
    chosen = {"limit_cold_reads": True, "group_cold_bytes_max": 100, "cold_bytes_max": 300, **settings}
    return ColdReads(live(**chosen), now=0.0)


def read(reads: ColdReads, group: str, size: int, now: float = 0.0) -> None:
    reads.count(group, size, now=now, now_ms=NOW_MS + int(now * 1000))


def test_a_group_has_enough_at_its_limit() -> None:
    reads = limited()
    assert not reads.had_enough("CG", now=0)
    read(reads, "CG", 99)
    assert not reads.had_enough("CG", now=1)
    read(reads, "CG", 1)
    assert reads.had_enough("CG", now=1)
    assert not reads.had_enough("other", now=1)


def test_bytes_are_counted_anew_in_each_window() -> None:
    reads = limited()
    read(reads, "CG", 1000)
    assert reads.had_enough("CG", now=WINDOW_S - 0.1)
    assert not reads.had_enough("CG", now=WINDOW_S)
    assert reads.totals(now=WINDOW_S) == {**TOTALS, "globalAcc": 0}
    read(reads, "CG", 100, now=WINDOW_S + 1)
    assert reads.had_enough("CG", now=WINDOW_S + 2)


def test_administrators_set_limits_of_groups() -> None:
    reads = limited()
    reads.set_limits({"CG": 10, "greedy": 250, "none": 0})
    for group in ("CG", "greedy", "none"):
        read(reads, group, 20)
    assert [reads.had_enough(group, now=0) for group in ("CG", "greedy", "none")] == [True, False, True]
    reads.limits.pop("CG")
    assert not reads.had_enough("CG", now=0)


def test_all_groups_together_have_a_limit_too() -> None:
    reads = limited()
    reads.set_limits({"greedy": 1000})
    read(reads, "CG", 1)
    read(reads, "greedy", 299)
    assert reads.had_enough("CG", now=0)
    assert reads.had_enough("greedy", now=0)
    assert not reads.had_enough("new", now=0)  # as in RocketMQ: a group may begin
    assert reads.totals(now=0) == {**TOTALS, "globalAcc": 300}


@pytest.mark.parametrize("group", ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_x"])
def test_system_groups_are_not_limited(group: str) -> None:
    reads = limited()
    read(reads, group, 1000)
    assert not reads.had_enough(group, now=0)
    assert reads.table() == {}


def test_without_the_switch_nothing_is_counted() -> None:
    holder = live(limit_cold_reads=False, group_cold_bytes_max=1)
    reads = ColdReads(holder, now=0)
    read(reads, "CG", 10)
    assert (reads.had_enough("CG", now=0), reads.table()) == (False, {})
    changes = {"coldDataFlowControlEnable": "true"}
    holder.current = plan_update(holder.current, changes).settings
    read(reads, "CG", 10)
    assert reads.had_enough("CG", now=0)


def test_groups_are_told_of_and_forgotten_when_idle() -> None:
    reads = limited()
    read(reads, "CG", 7, now=1)
    read(reads, "CG", 8, now=2)
    read(reads, "CG", 0, now=3)  # found nothing
    assert reads.table() == {
        "CG": {"coldAcc": 15, "createTimeMills": NOW_MS + 1000, "lastColdReadTimeMills": NOW_MS + 2000}
    }
    reads.totals(now=2 + IDLE_S - 0.1)
    assert reads.table()["CG"]["coldAcc"] == 0
    reads.totals(now=2 + IDLE_S + WINDOW_S)
    assert reads.table() == {}


def test_there_is_no_room_without_end() -> None:
    reads = limited(groups_max=2)
    reads.set_limits({"A": 1, "B": 2})
    reads.set_limits({"A": 3})
    with pytest.raises(BrokerError, match="no more than 2 groups with a limit"):
        reads.set_limits({"A": 4, "C": 1})
    assert reads.limits == {"A": 3, "B": 2}
