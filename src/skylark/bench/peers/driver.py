"""A system's own Java client in a JVM that stays: commands go in by lines, figures come out by lines."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from skylark.bench.peers.java import Classpath, compile_sources, jvm_command
from skylark.bench.peers.process import KILL_TIMEOUT_S, ProcessFailed, spawn

DRIVERS = Path(__file__).parent / "drivers"
HEAP_MB = 768
START_TIMEOUT_S = 60
# Both compilers: the client is to show what it can.
OPTIONS = ("-XX:TieredStopAtLevel=4", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


class Refused(ProcessFailed):
    """The driver could not do what it was asked for; the text is its sentence."""


def driver_classpath(pom: Path, main_class: str) -> Classpath:
    """The driver compiled against the jars of a pom. Raises MissingToolchain and ProcessFailed."""
    return compile_sources(pom, [DRIVERS / "LoadDriver.java", DRIVERS / f"{main_class}.java"])


class Driver:
    """One JVM with one client. Leaving the context kills it."""

    def __init__(self, classpath: Classpath, main_class: str, address: str, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._name = main_class
        self._log = home / f"{main_class}.log"
        command = jvm_command(classpath, main_class, address, home=home, heap_mb=HEAP_MB, options=OPTIONS)
        with self._log.open("ab") as log:
            self._process = spawn(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            self._answer(START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Give its group a signal; nothing if it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.communicate(timeout=KILL_TIMEOUT_S)

    def call(self, *words: str | float, timeout_s: float) -> dict[str, float]:
        """The figures that answer a command. Raises Refused, and ProcessFailed when there is no answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says how it ended
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> dict[str, float]:
        assert self._process.stdout is not None
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:  # a client may write words of its own
                verdict, _, rest = line.strip().partition(" ")
                if verdict == "failed":
                    raise Refused(rest)
                if verdict == "ok":
                    return {name: float(value) for name, _, value in (p.partition("=") for p in rest.split())}
        finally:
            limit.cancel()
        tail = self._log.read_text(errors="replace")[-2000:]
        raise ProcessFailed(f"{self._name} ended or did not answer within {timeout_s} s\n{tail}")
