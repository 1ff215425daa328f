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


# What recovery does not master yet: found by these tests, told in docs/faults.md, and looked at by every run.
KNOWN_OPEN = {
    "test_second_crash_while_recovering_from_the_first": "a second power cut while recovering may lose units",
    "test_crash_around_the_deletion_of_topics": "a crash around a deletion may bring old offsets back",
    "test_a_short_read_gives_no_wrong_message": "a short read of a queue file shifts what is read",
    "killed without checkpoint": "without a checkpoint not every loss of derived files is noticed",
    "test_garbage_behind_the_end[consumequeue": "garbage behind a queue's end counts as units",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for words, reason in KNOWN_OPEN.items():
            if "tests/fault/" in item.nodeid and words in item.nodeid:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
