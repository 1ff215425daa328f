"""What Spark's JVM may say, and what of it is passed on."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkConf

from skylark.pipelines.jobs import session

JAVA_SAYS = (
    b"WARNING: Using incubator modules: jdk.incubator.vector\n"
    b"WARNING: package sun.security.action not in java.base\n"
)
UNCHECKED = "-Darrow.enable_unsafe_memory_access=true"
OPTIONS = f"-Dlog4j2.configurationFile={session.LOG4J_FILE.as_uri()} {UNCHECKED}"


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
    assert b"".join(session.after_warnings(cut(JAVA_SAYS + rest, places))) == rest


@given(places=st.lists(st.integers(min_value=0)))
def test_what_follows_is_passed_on_as_it_is(places: list[int]) -> None:
    text = b"12:00:00 ERROR spark.Executor: no\n" + JAVA_SAYS
    assert b"".join(session.after_warnings(cut(text, places))) == text


def test_what_has_no_end_of_line_is_passed_on_at_once() -> None:
    chunks = iter([JAVA_SAYS, b"\r[Stage 0:>", b"(0 + 1) / 2]"])
    said = session.after_warnings(chunks)
    assert next(said) == b"\r[Stage 0:>"
    assert list(chunks) == [b"(0 + 1) / 2]"]


def test_a_warning_that_was_cut_off_is_passed_on() -> None:
    assert list(session.after_warnings([JAVA_SAYS + b"WARNING: no end"])) == [b"WARNING: no end"]


def test_what_the_user_tells_java_comes_last_and_wins() -> None:
    assert session.java_options({}) == {session.JAVA_OPTIONS: OPTIONS, session.EXECUTOR_OPTIONS: UNCHECKED}
    given_options = {
        session.JAVA_OPTIONS: "-Dlog4j2.configurationFile=mine",
        session.EXECUTOR_OPTIONS: "-Darrow.enable_unsafe_memory_access=false",
        "spark.ui.enabled": "true",
    }
    assert session.java_options(given_options) == {
        session.JAVA_OPTIONS: f"{OPTIONS} -Dlog4j2.configurationFile=mine",
        session.EXECUTOR_OPTIONS: f"{UNCHECKED} -Darrow.enable_unsafe_memory_access=false",
    }


def test_debug_shows_everything(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert session.java_options({})[session.JAVA_OPTIONS] == " ".join([OPTIONS, *session.VERBOSE_OPTIONS])
    text = session.LOG4J_FILE.read_text()
    for option in session.VERBOSE_OPTIONS:
        assert f"sys:{option.partition('=')[0].removeprefix('-D')}:" in text


INTERPRETERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def conf(**settings: str) -> SparkConf:
    values = {"spark_master": "local[2]", **settings}
    return SparkConf(loadDefaults=False).setAll(
        [(name.replace("_", "."), value) for name, value in values.items()]
    )


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (session.HOME, *INTERPRETERS):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_workers_take_the_python_files_that_are_installed_and_compiled(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("PYSPARK_PYTHON", sys.executable)
    with session.quick_home(conf()) as home:
        assert home is not None
        assert os.environ[session.HOME] == str(home)
    assert session.HOME not in os.environ
    assert not (home / "python").exists()  # pyspark.zip would be below it
    installed = Path(pyspark.__file__).parent
    for name in ("bin/spark-submit", "jars"):
        assert (home / name).samefile(installed / name)
    shutil.rmtree(home)
    assert (installed / "jars").is_dir()


def test_a_home_for_a_jvm_that_does_not_start_is_removed(environment: pytest.MonkeyPatch) -> None:
    homes = []
    with pytest.raises(OSError, match="no java"), session.quick_home(conf()) as home:
        homes.append(home)
        raise OSError("no java")
    assert homes[0] is not None
    assert not homes[0].exists()
    assert session.HOME not in os.environ


@pytest.mark.parametrize(
    ("settings", "variables"),
    [
        ({"spark_master": "spark://127.0.0.1:7077"}, {}),
        ({"spark_pyspark_python": "another"}, {}),
        ({}, {"PYSPARK_PYTHON": "another"}),
        ({}, {"PYSPARK_DRIVER_PYTHON": "another"}),
        ({}, {session.HOME: "a distribution"}),
    ],
)
def test_who_runs_spark_elsewhere_or_with_another_python_has_its_own_home(
    environment: pytest.MonkeyPatch, settings: dict[str, str], variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    with session.quick_home(conf(**settings)) as home:
        assert home is None
        assert os.environ.get(session.HOME) == variables.get(session.HOME)
