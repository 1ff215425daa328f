"""Java's toolchain: versions, where it is found, what is said when it is not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers import java
from benchmarks.peers.java import Classpath, JavaLoadDriver, MissingToolchain, Refused
from skylark.processes import ProcessFailed


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("javac 17.0.15", 17),
        ("Unable to locate a Java Runtime.", 0),
    ],
)
def test_java_version_is_read(text: str, version: int) -> None:
    assert java.parse_java_version(text) == version


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of all programs of a machine that has none yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_toolchain", java.find_toolchain.__wrapped__)
    return tmp_path


def test_toolchain_is_found_and_java_home_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = machine / "jdk"
    (home / "bin").mkdir(parents=True)
    for directory in (machine, home / "bin"):
        program(directory, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    program(machine, "javac", "echo 'javac 21'")
    program(machine, "mvn", "exit 0")
    monkeypatch.setenv("JAVA_HOME", str(home))

    found = java.find_toolchain()

    assert (found.java, found.javac, found.maven) == (
        home / "bin" / "java",
        machine / "javac",
        machine / "mvn",
    )


@pytest.mark.parametrize(
    ("java_answer", "with_maven", "reason"),
    [
        (None, True, "java is not installed"),
        ("echo 'openjdk version \"11.0.2\"'", True, "Java 11, 17 or newer"),
        ("exit 1", True, "-version failed"),
        ("echo 'openjdk version \"17\"'", False, "Maven"),
    ],
)
def test_missing_toolchain_is_told(
    machine: Path, java_answer: str | None, with_maven: bool, reason: str
) -> None:
    if java_answer is not None:
        program(machine, "java", java_answer)
        program(machine, "javac", "echo 'javac 17'")
    if with_maven:
        program(machine, "mvn", "exit 0")
    with pytest.raises(MissingToolchain, match=reason):
        java.find_toolchain()


def test_unreachable_registry_is_a_reason_with_the_words_of_maven(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("java", "javac"):
        program(machine, name, "echo 'javac 17'")
    program(machine, "mvn", "echo 'Could not transfer artifact'; exit 1")
    pom = machine / "pom.xml"
    pom.write_text("<project/>")
    monkeypatch.setenv("SKYLARK_CACHE", str(machine / "cache"))

    with pytest.raises(MissingToolchain, match="Could not transfer artifact"):
        java.fetch_jars(pom)

    assert [path.name for path in (machine / "cache" / "interop").glob("*/*")] == ["lib.lock"]


PROGRAM = """
import sys, time
print("words of a library", flush=True)
print("ok", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "send":
        print("SLF4J: more words", flush=True)
        print(f"ok messages={words[2]} seconds=2.5", flush=True)
    elif words[0] == "create":
        print("ok ", flush=True)
    elif words[0] == "refuse":
        print("failed IllegalStateException: no such topic", flush=True)
    elif words[0] == "hang":
        time.sleep(600)
    else:
        sys.stderr.write("out of memory\\n")
        sys.exit(3)
"""


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JavaLoadDriver]:
    monkeypatch.setattr(java, "jvm_command", lambda *_, **__: [sys.executable, "-c", PROGRAM])
    with JavaLoadDriver(Classpath(tmp_path), "Load", "127.0.0.1:1", tmp_path / "home") as started:
        yield started


def test_figures_are_read_past_the_words_of_libraries(running: JavaLoadDriver) -> None:
    assert running.call("create", "topic", timeout_s=60) == {}
    assert running.call("send", "topic", 64, timeout_s=60) == {"messages": 64.0, "seconds": 2.5}


def test_a_refusal_is_its_sentence_and_the_driver_goes_on(running: JavaLoadDriver) -> None:
    with pytest.raises(Refused, match=r"^IllegalStateException: no such topic$"):
        running.call("refuse", timeout_s=60)
    assert running.call("send", "topic", 1, timeout_s=60)["messages"] == 1


def test_a_driver_that_ends_says_why(running: JavaLoadDriver) -> None:
    with pytest.raises(ProcessFailed, match=r"(?s)ended or did not answer.*out of memory"):
        running.call("die", timeout_s=60)
    with pytest.raises(ProcessFailed, match="ended or did not answer"):
        running.call("create", timeout_s=60)


def test_a_driver_that_does_not_answer_is_ended(running: JavaLoadDriver) -> None:
    with pytest.raises(ProcessFailed, match=r"within 0\.3 s"):
        running.call("hang", timeout_s=0.3)


def test_a_driver_that_cannot_start_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "jvm_command", lambda *_, **__: [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(ProcessFailed, match="Load ended or did not answer"):
        JavaLoadDriver(Classpath(tmp_path), "Load", "127.0.0.1:1", tmp_path / "home")
