"""The Java support of the interop tests: versions, the shared cache, processes with limits."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support import java
from tests.support.java import GroupProcess, JavaFailed, MissingToolchain


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


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_missing_toolchain_skips_on_a_laptop_and_fails_in_ci(
    machine: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="java is not installed"):
        java.jars_of(machine / "pom.xml")


def test_unreachable_registry_is_a_reason_with_the_words_of_maven(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("java", "javac"):
        program(machine, name, "echo 'javac 17'")
    program(machine, "mvn", "echo 'Could not transfer artifact'; exit 1")
    pom = machine / "pom.xml"
    pom.write_text("<project/>")
    monkeypatch.setenv("SKYLARK_CACHE", str(machine / "cache"))
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="Could not transfer artifact"):
        java.jars_of(pom)

    assert [path.name for path in (machine / "cache" / "interop").glob("*/*")] == ["lib.lock"]


def test_digest_follows_names_and_contents_but_not_the_order(tmp_path: Path) -> None:
    first, second = tmp_path / "A.java", tmp_path / "B.java"
    first.write_text("one")
    second.write_text("two")
    before = java.digest(first, second)
    assert java.digest(second, first) == before
    second.write_text("three")
    assert java.digest(first, second) != before


def test_build_once_builds_once_for_all_who_ask(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "lib"
    builds: list[Path] = []
    go_on = threading.Event()

    def build(target: Path) -> None:
        builds.append(target)
        assert go_on.wait(10)
        assert not directory.exists()
        (target / "a.jar").write_text("jar")

    threads = [threading.Thread(target=java.build_once, args=(directory, build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(10)

    assert len(builds) == 1
    assert (directory / "a.jar").read_text() == "jar"
    assert sorted(path.name for path in directory.parent.iterdir()) == ["lib", "lib.lock"]


def test_failed_build_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "lib"

    def fail(target: Path) -> None:
        (target / "half.jar").touch()
        raise OSError("network")

    with pytest.raises(OSError, match="network"):
        java.build_once(directory, fail)
    assert not directory.exists()
    java.build_once(directory, lambda target: (target / "whole.jar").touch())
    assert [path.name for path in directory.iterdir()] == ["whole.jar"]


SPAWNS_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("child", child.pid, flush=True)
time.sleep(60)
"""


def test_process_over_its_limit_is_killed_with_its_children(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", SPAWNS_A_CHILD], log=tmp_path / "log") as process:
        process.wait_until(lambda: "child" in process.log_text(), "a child", 30)
        child = int(process.log_text().split()[1])
        with pytest.raises(JavaFailed, match="killed after"):
            process.wait(0.05)
        assert not process.running
    wait_until_gone(child)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        # An orphan whose new parent does not reap it stays as a zombie: dead as well.
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")


def test_waiting_for_a_process_that_ends_early_tells_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such port'); raise SystemExit(3)"]
    with GroupProcess(command, log=tmp_path / "log") as process:
        with pytest.raises(JavaFailed, match=r"(?s)ended before readiness, code 3.*no such port"):
            process.wait_until(lambda: False, "readiness", 30)


LEAVES_ON_SIGTERM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
signal.pause()
"""


def test_terminate_gives_the_exit_code(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", LEAVES_ON_SIGTERM], log=tmp_path / "log") as process:
        process.wait_until(lambda: "up" in process.log_text(), "start", 30)
        assert process.terminate(30) == 7


def test_killed_process_has_its_signal_as_code(tmp_path: Path) -> None:
    with GroupProcess([sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log") as process:
        process.kill()
        assert process.wait(1) == -signal.SIGKILL
