"""Plans of faults are repeatable and keep to their time."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.torture.faults import ALL_FAULTS
from skylark.torture.plan import MODES, Mode, plan
from skylark.torture.report import TortureOptions
from skylark.torture.run import Torture


def test_the_same_seed_gives_the_same_plan() -> None:
    mode = MODES["sync-master"]
    assert plan(7, mode, 120.0) == plan(7, mode, 120.0) != plan(8, mode, 120.0)
    # Whatever a longer run does after it, it begins as the shorter one.
    for shorter, longer in zip(plan(7, mode, 60.0), plan(7, mode, 120.0), strict=True):
        assert longer[: len(shorter)] == shorter


@pytest.mark.parametrize("name", MODES)
def test_a_plan_fits_into_its_time_and_every_kind_has_its_turn(name: str) -> None:
    mode = MODES[name]
    sequences = plan(3, mode, 300.0)
    for sequence, kinds in zip(sequences, (mode.server_faults, mode.client_faults), strict=True):
        assert 0 < sum(each.after_s + each.for_s for each in sequence) <= 300.0
        assert {each.name for each in sequence[: len(kinds)]} == set(kinds)
    assert plan(3, mode, 0.5) == [[], []]


def test_faults_last_as_long_as_is_wanted() -> None:
    usual, long = (
        [each.for_s for sequence in plan(7, MODES["orderly"], 3600.0, *longest) for each in sequence]
        for longest in ((), (12.0,))
    )
    assert 3 < max(usual) <= 4
    assert 10 < max(long) <= 12


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_planned_by_its_seed_mode_and_length_alone(tmp_path: Path, mode: str) -> None:
    runs = [
        Torture(
            TortureOptions(directory=tmp_path / str(number), mode=mode, seed=5, seconds=60, members=number),
            print,
        )
        for number in (1, 2)
    ]
    assert runs[0].planned == runs[1].planned == plan(5, MODES[mode], 60)


def test_every_fault_is_in_some_mode() -> None:
    names = {name for mode in MODES.values() for name in (*mode.server_faults, *mode.client_faults)}
    assert names == set(ALL_FAULTS)


def test_servers_and_clients_are_hit_by_faults_of_their_own() -> None:
    assert not set(Mode().server_faults) & set(Mode().client_faults)
