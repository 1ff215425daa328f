"""The load client: processes that only fill numbers into prepared frames, so the server is measured."""

from __future__ import annotations

import functools
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
# Time beyond that of the load: connecting, and 15 s for the last replies.
RUN_MARGIN_S = 30

Watch = Callable[[str], None]


class LoadClient:
    """Runs loads with `load.c`, compiled on first use into the cache outside any checkout."""

    kind = "C"

    def run(self, load: Load, watch: Watch | None = None, cpu: int | None = None) -> Counted:
        """Run the load and count replies.

        `watch` is called with "begin" and "end" of the measured window, and in between, once a second, with
        "tick SECONDS REPLIES". Raises LoadFailed without a compiler, or if a client fails or does not end.
        """
        program = load_program()
        with tempfile.TemporaryDirectory(prefix="skylark-load-") as directory:
            with pinned(cpu):
                started = [
                    self._start(program, share, Path(directory) / f"frames-{number}")
                    for number, share in enumerate(load.shares())
                ]
            try:
                return Counted.together(_gather(started, _limit_s(load), watch or (lambda _: None)))
            finally:
                for process in started:
                    with process:  # waits, and closes its pipes
                        process.kill()

    def _start(self, program: Path, load: Load, frames: Path) -> subprocess.Popen[str]:
        frames.write_bytes(frames_of(load, time.time_ns()))
        host, _, port = load.address.rpartition(":")
        numbers = [load.in_flight, load.frames_per_s, load.warm_up_s, load.seconds, load.frames_max]
        return subprocess.Popen(  # noqa: S603 - our own program
            [str(program), "run", host.strip("[]"), port, str(frames), *map(str, numbers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def answering(self, seconds: int) -> Iterator[str]:
        """The address of a server that replies to everything at once: the limit of the client."""
        command = [str(load_program()), "answer", str(seconds)]
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
    """Read the output of all clients until each has reported its figures."""
    said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for number, process in enumerate(processes):
        threading.Thread(
            target=_pass_on, args=(process, number, said), name=f"skylark-load-{number}", daemon=True
        ).start()
    joined = _JoinedClients(len(processes), watch)
    deadline = time.monotonic() + limit_s
    while not joined.is_complete:
        try:
            number, line = said.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise LoadFailed(f"load client not ended within {limit_s:g} s") from None
        if not line:
            joined.check_end(number, processes[number])
        joined.hear(number, line.strip())
    return joined.counted


def _pass_on(process: subprocess.Popen[str], number: int, said: queue.SimpleQueue[tuple[int, str]]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.put((number, line))
    said.put((number, ""))


class _JoinedClients:
    """The output of several clients as that of one."""

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
            raise LoadFailed(reason or f"load client ended with code {process.wait()}")


def _counted(line: str, series: list[tuple[float, int]]) -> Counted:
    found: dict[str, Any] = msgspec.json.decode(line)
    latencies = LatencyHistogram(found.pop("bins"))
    return Counted(**found, latencies=latencies, series=series)


@functools.cache
def load_program() -> Path:
    """The compiled client. Raises LoadFailed where it cannot be compiled."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None or sys.platform != "linux":
        raise LoadFailed(f"cannot compile the load client: install one of {', '.join(COMPILERS)} on Linux")
    directory = cache_dir("benchmarks") / f"{digest(SOURCE)}-{platform.machine()}"

    def build(target: Path) -> None:
        command = [compiler, *FLAGS, "-o", str(target / "load"), str(SOURCE)]
        subprocess.run(  # noqa: S603 - the compiler
            command, check=True, timeout=COMPILE_TIMEOUT_S, capture_output=True, text=True
        )

    try:
        build_once(directory, build)
    except subprocess.SubprocessError as error:  # such as a compiler without the headers of the C library
        detail = getattr(error, "stderr", None) or error
        raise LoadFailed(f"cannot compile the load client with {compiler}: {detail}") from None
    return directory / "load"
