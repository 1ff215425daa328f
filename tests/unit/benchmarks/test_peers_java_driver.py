"""The lines between a driver and its JVM, with a small program in the JVM's place."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers import java
from benchmarks.peers.java import Classpath, JavaLoadDriver, Refused
from skylark.processes import ProcessFailed

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
