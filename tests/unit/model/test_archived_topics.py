"""Which topics a choice holds, and what its patterns may cost a broker."""

from __future__ import annotations

import pytest

from skylark.errors import SettingsError
from skylark.model.archived_topics import LAKE_RULES, WAYS_MAX, ArchivedTopics, match_ways


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders", 1),
        (r"orders_.*\.[0-9]+", 128 * 127),
        ("a|b|c", 3),
        ("(dev|test|prod)_(a|b)_.*", 3 * 2 * 128),
        ("(?:x_)?[]a-z(]{2,5}", 2 * 4),
        ("((a|b|c)_){3}", 27),
        ("(?P<stage>ab){1,3}x{3}", 3),
        ("a{,}", 128),
        ("(?i)orders.*", 128),
        ("(?!test_|tmp_).*", 2 * 128),
        (r"\(.*\)\|", 128),
        ("{a}*", 128),
    ],
)
def test_ways_of_a_sequence_are_multiplied_and_those_of_alternatives_added(
    pattern: str, expected: int
) -> None:
    assert match_ways(pattern) == expected
    choice = ArchivedTopics(("raw",), (pattern,))
    assert ArchivedTopics.decode(choice.encode()) == choice


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a|a)*b",
        "(?:a*b?){8}",
        ".*.*.*.*x",
        "a?" * 30 + "a" * 30,
        "(?:a|b)" * 24,
        "((((a?){9})?){9})?",
        "(?=(a+)+b).*",
        "(?x)(a*) *",
        "(a)?(?(1)b|c)",
    ],
)
def test_patterns_that_can_match_in_too_many_ways_are_refused(pattern: str) -> None:
    assert match_ways(pattern) == WAYS_MAX + 1
    for choice in (ArchivedTopics(("raw",), ("orders", pattern)), ArchivedTopics(skip=(pattern,))):
        with pytest.raises(SettingsError, match=f"{LAKE_RULES}: the patterns can match a name in too many"):
            choice.encode()


def test_many_patterns_together_are_refused_and_many_names_are_not() -> None:
    assert ArchivedTopics(topics=tuple(f"topic_{number}" for number in range(4000))).encode()
    with pytest.raises(SettingsError, match="too many ways, most of all"):
        ArchivedTopics(topics=tuple(f".*{number}.*{number}.*" for number in range(5))).encode()


@pytest.mark.parametrize("pattern", ["(", "a{99999999999999999999}", "(" * 5000 + ")" * 5000])
def test_a_pattern_that_cannot_be_compiled_is_named(pattern: str) -> None:
    with pytest.raises(SettingsError, match="topic: invalid regular expression"):
        ArchivedTopics(topics=(pattern,)).encode()


def test_attributes_count_only_for_a_choice_with_tables() -> None:
    lake = ArchivedTopics(("raw",), ("orders.*",), skip=("orders_tmp",))
    archive = ArchivedTopics(topics=("orders.*",), skip=("orders_tmp",))
    cases = [("orders_1", None), ("orders_1", "none"), ("pay", "raw"), ("pay", None), ("orders_tmp", "raw")]
    assert [lake.chooses(*case) for case in cases] == [True, False, True, False, False]
    assert [archive.chooses(*case) for case in cases] == [True, True, False, False, False]
