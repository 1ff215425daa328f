"""How much of the tables of faults a run checks: a sample that each run draws anew, or at night all of it."""

import os
import random
import zlib
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import pytest
from _pytest.mark import ParameterSet

IMAGES_PER_CASE = 50
CASES = 24
"""Per kind of crash; the first case is part of every run, the others are marked nightly."""

SAMPLE_PLACES = 10
"""Places of one table that a test tries in every run."""

_SEED = random.SystemRandom().randrange(1_000_000)


T = TypeVar("T")


class Sample(NamedTuple):
    """The part of a table of places that a test tries: some, drawn by the seed, or without one all."""

    seed: int | None

    def of(self, table: Iterable[T], count: int = SAMPLE_PLACES) -> list[T]:
        """Return the chosen places in the table's order."""
        places = list(table)
        if self.seed is None or len(places) <= count:
            return places
        chosen = sorted(random.Random(self.seed).sample(range(len(places)), count))
        return [places[number] for number in chosen]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-images", type=int, help=f"images per kind of crash, {IMAGES_PER_CASE} per case")
    parser.addoption("--fault-seed", type=int, help="seed of the first case; by default another in each run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with `image_seed` once per case, those with `sample` on a sample; ids contain the seed."""
    first = metafunc.config.getoption("--fault-seed", None)
    first = run_seed() if first is None else first
    if "sample" in metafunc.fixturenames:
        everything = pytest.param(Sample(None), id="all", marks=pytest.mark.nightly)
        metafunc.parametrize("sample", [pytest.param(Sample(first), id=f"seed{first}"), everything])
    if "image_seed" in metafunc.fixturenames:
        metafunc.parametrize("image_seed", cases(metafunc.config.getoption("--fault-images", None), first))


def cases(images: int | None, first: int) -> list[ParameterSet]:
    usual = 1 if images is None else -(-images // IMAGES_PER_CASE)
    slow = CASES - 1 if images is None else 0
    found = [pytest.param(first + number, id=f"seed{first + number}") for number in range(usual)]
    for seed in range(first + usual, first + usual + slow):
        found.append(pytest.param(seed, id=f"seed{seed}", marks=pytest.mark.nightly))
    return found


def run_seed() -> int:
    """Return a seed that all workers of this run share: they must collect the same tests."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return zlib.crc32(run.encode()) % 1_000_000 if run else _SEED
