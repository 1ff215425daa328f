"""The mutation fuzzer, for as long as a normal run can afford. `python -m fuzz.frames` goes on for longer."""

import random

import pytest

import fuzz.frames
from tests.unit.protocol.golden_frames import captured


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.nightly)])
def test_mutated_frames_raise_nothing_but_the_documented_errors(seconds: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    assert fuzz.frames.run(seconds, seed) > 10 * seconds


def test_the_same_seed_gives_the_same_inputs() -> None:
    frame = captured("producer-sync")[0].frame
    inputs = [fuzz.frames.mutate(frame, random.Random(seed)) for seed in (1, 1, 2)]
    assert inputs[0] == inputs[1]
    assert inputs[0] != inputs[2]
