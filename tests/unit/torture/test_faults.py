"""Plans of faults are repeatable and keep to their time."""

from __future__ import annotations

import random

from skylark.torture.faults import FAULTS, plan


def test_the_same_seed_gives_the_same_plan() -> None:
    names = sorted(FAULTS)
    plans = [plan(random.Random(7), names, 120.0) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0] != plan(random.Random(8), names, 120.0)


def test_a_plan_fits_into_its_time_and_uses_what_it_may() -> None:
    planned = plan(random.Random(3), ["kill-broker", "flood"], 60.0)
    assert 0 < sum(each.after_s + each.for_s for each in planned) <= 60.0
    assert {each.name for each in planned} == {"kill-broker", "flood"}
    assert plan(random.Random(3), ["flood"], 0.5) == []
