"""The machine of a run."""

from __future__ import annotations

from skylark.bench.machine import busy_share, used_share

BEFORE = "cpu  100 10 50 1000 40 0 10 0 0 0\ncpu0 1 2 3 4\n"


def test_idle_and_waiting_time_is_not_in_use() -> None:
    assert used_share(BEFORE, "cpu  130 10 60 1050 50 0 10 0 0 0\n") == 0.4
    assert used_share(BEFORE, "cpu  100 10 50 1100 40 0 10 0 0 0\n") == 0.0
    assert used_share(BEFORE, BEFORE) == 0.0


def test_this_machine_has_a_share() -> None:
    assert 0.0 <= busy_share(0.05) <= 1.0
