"""What Spark's JVM may say, and what of it is passed on."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.pipelines.jobs import jvm

JAVA_SAYS = (
    b"WARNING: Using incubator modules: jdk.incubator.vector\n"
    b"WARNING: package sun.security.action not in java.base\n"
)
UNCHECKED = "-Darrow.enable_unsafe_memory_access=true"
OPTIONS = f"-Dlog4j2.configurationFile={jvm.LOGGING.as_uri()} {UNCHECKED}"


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


@given(
    rest=st.sampled_from(
        [b"", b"12:00:00 ERROR spark.Executor: no\n", b"\r[Stage 0:>  (0 + 1) / 2]", b"WARN"]
    ),
    places=st.lists(st.integers(min_value=0)),
)
def test_warnings_with_which_java_begins_are_left_out_however_they_arrive(
    rest: bytes, places: list[int]
) -> None:
    assert b"".join(jvm.after_warnings(cut(JAVA_SAYS + rest, places))) == rest


@given(places=st.lists(st.integers(min_value=0)))
def test_what_follows_is_passed_on_as_it_is(places: list[int]) -> None:
    text = b"12:00:00 ERROR spark.Executor: no\n" + JAVA_SAYS
    assert b"".join(jvm.after_warnings(cut(text, places))) == text


def test_what_has_no_end_of_line_is_passed_on_at_once() -> None:
    chunks = iter([JAVA_SAYS, b"\r[Stage 0:>", b"(0 + 1) / 2]"])
    said = jvm.after_warnings(chunks)
    assert next(said) == b"\r[Stage 0:>"
    assert list(chunks) == [b"(0 + 1) / 2]"]


def test_a_warning_that_was_cut_off_is_passed_on() -> None:
    assert list(jvm.after_warnings([JAVA_SAYS + b"WARNING: no end"])) == [b"WARNING: no end"]


def test_what_the_user_tells_java_comes_last_and_wins() -> None:
    assert jvm.java_options({}) == {jvm.JAVA_OPTIONS: OPTIONS, jvm.EXECUTOR_OPTIONS: UNCHECKED}
    given_options = {
        jvm.JAVA_OPTIONS: "-Dlog4j2.configurationFile=mine",
        jvm.EXECUTOR_OPTIONS: "-Darrow.enable_unsafe_memory_access=false",
        "spark.ui.enabled": "true",
    }
    assert jvm.java_options(given_options) == {
        jvm.JAVA_OPTIONS: f"{OPTIONS} -Dlog4j2.configurationFile=mine",
        jvm.EXECUTOR_OPTIONS: f"{UNCHECKED} -Darrow.enable_unsafe_memory_access=false",
    }


def test_debug_shows_everything(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert jvm.java_options({})[jvm.JAVA_OPTIONS] == " ".join([OPTIONS, *jvm.EVERYTHING])
    text = jvm.LOGGING.read_text()
    for option in jvm.EVERYTHING:
        assert f"sys:{option.partition('=')[0].removeprefix('-D')}:" in text
