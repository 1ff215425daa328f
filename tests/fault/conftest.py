"""How many crash images the suite looks at, and from which seed on; in cases, for xdist to split."""

import pytest

IMAGES_PER_CASE = 60
IMAGES = 1200


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-images",
        type=int,
        default=IMAGES,
        help=f"images of each kind of crash to look at (default {IMAGES}), in cases of {IMAGES_PER_CASE}",
    )
    parser.addoption("--fault-seed", type=int, default=0, help="seed of the first case of crash images")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `image_seed` runs once for every case."""
    if "image_seed" in metafunc.fixturenames:
        images = metafunc.config.getoption("--fault-images", IMAGES)
        first = metafunc.config.getoption("--fault-seed", 0)
        cases = -(-images // IMAGES_PER_CASE)
        metafunc.parametrize("image_seed", range(first, first + cases))
