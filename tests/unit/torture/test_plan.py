"""Plans of faults are repeatable and keep to their time."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.torture.faults import ALL_FAULTS, FAULTS
from skylark.torture.modes import MODES
from skylark.torture.plan import plan
from skylark.torture.report import Wanted
from skylark.torture.run import Torture


def test_the_same_seed_gives_the_same_plan() -> None:
    names = list(ALL_FAULTS)
    assert plan(7, names, 120.0) == plan(7, names, 120.0) != plan(8, names, 120.0)
    # Whatever a longer run does after it, it begins as the shorter one.
    shorter = plan(7, names, 60.0)
    assert plan(7, names, 120.0)[: len(shorter)] == shorter


def test_a_plan_fits_into_its_time_and_every_kind_has_its_turn() -> None:
    planned = plan(3, list(FAULTS), 300.0)
    assert 0 < sum(each.after_s + each.for_s for each in planned) <= 300.0
    assert {each.name for each in planned[: len(FAULTS)]} == set(FAULTS)
    assert plan(3, ["flood"], 0.5) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_planned_by_its_seed_mode_and_length_alone(tmp_path: Path, mode: str) -> None:
    runs = [
        Torture(
            Wanted(directory=tmp_path / str(number), mode=mode, seed=5, seconds=60, members=number), print
        )
        for number in (1, 2)
    ]
    assert runs[0].planned == runs[1].planned
    assert {each.name for each in runs[0].planned} <= set(MODES[mode].faults)


def test_every_fault_is_in_some_mode() -> None:
    assert {name for mode in MODES.values() for name in mode.faults} == set(ALL_FAULTS)
