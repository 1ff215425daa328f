"""The crash images that the suite checks: how many, and from which seed on."""

import os
import random
import zlib

import pytest

IMAGES_PER_CASE = 50
CASES = 24
"""Per kind of crash; the first case is part of every run, the others are marked nightly."""

_SEED = random.SystemRandom().randrange(1_000_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-images", type=int, help=f"images per kind of crash, {IMAGES_PER_CASE} per case")
    parser.addoption("--fault-seed", type=int, help="seed of the first case; by default another in each run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `image_seed` once per case; the test's id contains the seed."""
    if "image_seed" not in metafunc.fixturenames:
        return
    images = metafunc.config.getoption("--fault-images", None)
    first = metafunc.config.getoption("--fault-seed", None)
    first = run_seed() if first is None else first
    usual = 1 if images is None else -(-images // IMAGES_PER_CASE)
    slow = CASES - 1 if images is None else 0
    cases = [pytest.param(first + number, id=f"seed{first + number}") for number in range(usual)]
    for seed in range(first + usual, first + usual + slow):
        cases.append(pytest.param(seed, id=f"seed{seed}", marks=pytest.mark.nightly))
    metafunc.parametrize("image_seed", cases)


def run_seed() -> int:
    """Return a seed that all workers of this run share: they must collect the same tests."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return zlib.crc32(run.encode()) % 1_000_000 if run else _SEED
