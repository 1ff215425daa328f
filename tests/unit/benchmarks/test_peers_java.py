"""Java's toolchain: versions, where it is found, what is said when it is not."""

from pathlib import Path

import pytest

from benchmarks.peers import java
from benchmarks.peers.java import MissingToolchain


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
