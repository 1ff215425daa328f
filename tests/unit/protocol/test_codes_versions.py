"""Names of RocketMQ's releases."""

import pytest

from skylark.protocol.codes import version_name


@pytest.mark.parametrize(
    ("ordinal", "name"),
    [
        (62, "62"),
        (211, "211"),
        (212, "V4_0_0_SNAPSHOT"),
        (400, "V4_9_4_SNAPSHOT"),
        (401, "V4_9_4"),
        (413, "V5_0_0"),
        (479, "V5_3_3"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (-1, "-1"),
    ],
)
def test_a_release_has_the_name_that_rocketmq_gives_it(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
