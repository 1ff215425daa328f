"""The thin client: processes that only fill numbers into frames, so that the server is measured.

It is `load.c`, compiled on first use into the cache outside any clone; where there is no compiler it is
`thin_python.py`, in as many processes as there are processors, and then the client may be the limit.
"""

from __future__ import annotations

import functools
import os
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from skylark.bench.build_cache import build_once, cache_dir, digest
from skylark.bench.latencies import LatencyHistogram
from skylark.bench.load import Counted, Load, LoadFailed, frames_of
from skylark.bench.machine import BROKER_CPU, pinned

SOURCE = Path(__file__).with_name("load.c")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 60
# What a client may take beyond the time it was given: connecting, and 15 s for the last answers.
RUN_MARGIN_S = 30
IN_FLIGHT_PER_PROCESS_MIN = 8
"""Of the client in Python: with fewer, more processes would not drive more."""

Watch = Callable[[str], None]


class LoadClient:
    """Runs loads. `kind` says which client it is."""

    def __init__(self, *, compiled: bool = True) -> None:
        """`compiled=False` takes the client in Python even where there is a compiler."""
        program = compiled_program() if compiled else None
        self.is_compiled = program is not None
        self.kind = "C" if program else "Python: no C compiler was used, the client may be the limit"
        python = [sys.executable, "-m", "skylark.bench.thin_python"]
        self._command = [str(program)] if program else python

    def run(self, load: Load, watch: Watch | None = None, cpu: int | None = None) -> Counted:
        """Make the load and count. `watch` hears "begin" and "end" of the window, and meanwhile, once a
        second, "tick SECONDS ANSWERS". Raises LoadFailed when a client fails or does not end in time.
        """
        load = self._spread(load)
        with tempfile.TemporaryDirectory(prefix="skylark-load-") as directory:
            shares = load.shares()
            with pinned(cpu):
                started = [
                    self._start(share, Path(directory) / f"frames-{number}")
                    for number, share in enumerate(shares)
                ]
            try:
                return Counted.together(_gather(started, _limit_s(load), watch or (lambda _: None)))
            finally:
                for process in started:
                    with process:  # waits, and closes its pipes
                        process.kill()

    def _spread(self, load: Load) -> Load:
        if self.is_compiled or load.processes > 1:
            return load
        useful = min(os.cpu_count() or 1, load.in_flight // IN_FLIGHT_PER_PROCESS_MIN)
        return replace(load, processes=max(useful, 1))

    def _start(self, load: Load, frames: Path) -> subprocess.Popen[str]:
        frames.write_bytes(frames_of(load, time.time_ns()))
        host, _, port = load.address.rpartition(":")
        numbers = [load.in_flight, load.frames_per_s, load.warm_up_s, load.seconds, load.frames_max]
        return subprocess.Popen(  # noqa: S603 - our own program
            [*self._command, "run", host.strip("[]"), port, str(frames), *map(str, numbers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def answering(self, seconds: int) -> Iterator[str]:
        """The address of a server that answers and does nothing: what the client can drive.

        Only the compiled client has one.
        """
        assert self.is_compiled
        command = [*self._command, "answer", str(seconds)]
        with (
            pinned(BROKER_CPU),
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,  # noqa: S603
        ):
            try:
                assert process.stdout is not None
                yield f"127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.kill()


def _limit_s(load: Load) -> float:
    return load.warm_up_s + load.seconds + RUN_MARGIN_S


def _gather(processes: list[subprocess.Popen[str]], limit_s: float, watch: Watch) -> list[Counted]:
    """Read what all of them say until each has told its figures."""
    said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for number, process in enumerate(processes):
        threading.Thread(
            target=_pass_on, args=(process, number, said), name=f"skylark-load-{number}", daemon=True
        ).start()
    together = _Together(len(processes), watch)
    deadline = time.monotonic() + limit_s
    while not together.is_complete:
        try:
            number, line = said.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise LoadFailed(f"the load client did not end within {limit_s:g} s") from None
        if not line:
            together.check_end(number, processes[number])
        together.hear(number, line.strip())
    return together.counted


def _pass_on(process: subprocess.Popen[str], number: int, said: queue.SimpleQueue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.put((number, line))
    said.put((number, ""))


class _Together:
    """Several clients as if they were one."""

    def __init__(self, count: int, watch: Watch) -> None:
        self._watch = watch
        self._count = count
        self._words = {"begin": 0, "end": 0}
        self._series: list[list[tuple[float, int]]] = [[] for _ in range(count)]
        self._parts: dict[int, Counted] = {}

    @property
    def is_complete(self) -> bool:
        return len(self._parts) == self._count

    @property
    def counted(self) -> list[Counted]:
        return list(self._parts.values())

    def hear(self, number: int, line: str) -> None:
        word = line.partition(" ")[0]
        if word in self._words:
            self._words[word] += 1
            # The window is open from the first that begins to the last that ends.
            if self._words[word] == (1 if word == "begin" else self._count):
                self._watch(word)
        elif word == "tick":
            self._tick(number, line)
        elif line:
            self._parts[number] = _counted(line, self._series[number])

    def _tick(self, number: int, line: str) -> None:
        _, second, answers = line.split()
        self._series[number].append((float(second), int(answers)))
        reports = len(self._series[number])
        if all(len(series) >= reports for series in self._series):
            total = sum(series[reports - 1][1] for series in self._series)
            self._watch(f"tick {second} {total}")

    def check_end(self, number: int, process: subprocess.Popen[str]) -> None:
        """Raises LoadFailed for a client that ended without its figures."""
        if number not in self._parts:
            assert process.stderr is not None
            reason = process.stderr.read().strip()
            raise LoadFailed(reason or f"the load client ended with code {process.wait()}")


def _counted(line: str, series: list[tuple[float, int]]) -> Counted:
    found: dict[str, Any] = msgspec.json.decode(line)
    latencies = LatencyHistogram(found.pop("bins"))
    return Counted(**found, latencies=latencies, series=series)


@functools.cache
def compiled_program() -> Path | None:
    """The compiled client, None where it cannot be compiled."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or sys.platform != "linux":
        return None
    directory = cache_dir("benchmarks") / f"{digest(SOURCE)}-{platform.machine()}"

    def build(target: Path) -> None:
        command = [compiler, *FLAGS, "-o", str(target / "load"), str(SOURCE)]
        subprocess.run(  # noqa: S603 - the compiler
            command, check=True, timeout=COMPILE_TIMEOUT_S, capture_output=True
        )

    try:
        build_once(directory, build)
    except subprocess.SubprocessError:
        return None  # a compiler without the C library's headers
    return directory / "load"
