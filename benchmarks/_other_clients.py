"""Clients measured by programs of their own, in processes that stay."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

from benchmarks.peers.apache import POM
from benchmarks.peers.java import MissingToolchain, jvm_command
from skylark.processes import ProcessFailed
from tests.support.java import compiled

HERE = Path(__file__).parent
JAVA_WARM_UP_S = 5.0
KAFKA_HEAP_MB = 1024
PARTITIONS = 4  # as many as our topics have queues
UNAVAILABLE = (
    MissingToolchain,
    ProcessFailed,
    RuntimeError,
    OSError,
    pytest.skip.Exception,
    pytest.fail.Exception,
)
"""What is raised for a client or a server that cannot be had."""


class ClientProcess:
    """A program that says which cells it has, then takes a cell and a number of seconds a line.

    It answers with a rate, and perhaps with other figures.
    """

    def __init__(self, name: str, command: Sequence[str], *, warm_up_s: float = 0.0) -> None:
        self.name = name
        self._warm_up_s = warm_up_s
        self.cell_names: list[str] = []
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> Self:
        self.cell_names = self._read("cells")
        if self._warm_up_s:
            for name in self.cell_names:
                self.rate(name, self._warm_up_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._errors, self._process:
            pass

    def _read(self, first: str) -> list[str]:
        """Return the words behind `first` of its next line. Raises RuntimeError if the program has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(f"{first} "):
                return line.split()[1:]
        self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        raise RuntimeError(f"the {self.name} client has ended: {' '.join(last) or self._process.returncode}")

    def answer(self, cell: str, seconds: float) -> list[float]:
        """Raises RuntimeError if the program has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{cell} {seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # said below
        return [float(word) for word in self._read("rate")]

    def rate(self, cell: str, seconds: float) -> float:
        return self.answer(cell, seconds)[0]

    def cells(self) -> dict[str, Callable[[float], float]]:
        return {f"{self.name}-{name}": functools.partial(self.rate, name) for name in self.cell_names}


def java_client(namesrv: str, topic: str, body_bytes: int, path: Path) -> ClientProcess:
    """The Java client, in a JVM that stays: it compiles itself only once. Raises if there is no Java."""
    classpath = compiled(POM, [HERE / "java" / "ClientRates.java"])
    # Both compilers: this client is to show what it can.
    options = ("-XX:TieredStopAtLevel=4",)
    arguments = [namesrv, topic, str(body_bytes)]
    command = jvm_command(classpath, "ClientRates", *arguments, home=path, heap_mb=512, options=options)
    return ClientProcess("java", command, warm_up_s=JAVA_WARM_UP_S)
