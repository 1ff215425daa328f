"""The machine of a run: its description, processor pinning, processor time and memory of a server process."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

GIT_TIMEOUT_S = 10


class Machine(msgspec.Struct, frozen=True):
    """Facts that decide about figures."""

    system: str
    processor: str
    cores: int
    memory_mib: int
    python: str
    load_1m: float
    """Load average at the end of the run."""
    commit: str | None
    """Commit of the checkout that holds the package, if any."""


def describe() -> Machine:
    return Machine(
        system=platform.platform(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        python=platform.python_version(),
        load_1m=round(os.getloadavg()[0], 2),
        commit=commit(),
    )


def busy_share(sample_s: float = 0.3) -> float:
    """The share of all processors that is in use, 0.0 to 1.0, now; without /proc, in the last minute."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return min(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
    before = stat.read_text()
    time.sleep(sample_s)
    return used_share(before, stat.read_text())


def used_share(before: str, after: str) -> float:
    """Pure. The share of processor time between two contents of /proc/stat that was not idle."""
    first, last = ([int(word) for word in text.split("\n", 1)[0].split()[1:9]] for text in (before, after))
    spent = [late - early for early, late in zip(first, last, strict=True)]
    total = sum(spent)
    return (total - spent[3] - spent[4]) / total if total > 0 else 0.0


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(  # noqa: S603 - git
        [git, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        timeout=GIT_TIMEOUT_S,
    )
    return done.stdout.strip() or None


@contextmanager
def scratch(where: str | None = None) -> Iterator[Path]:
    """A temporary directory."""
    path = Path(tempfile.mkdtemp(prefix="skylark-bench-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


BROKER_CPU, CLIENT_CPU = 0, 1
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LISTENING = "0A"  # in the kernel's table of connections
SETTLE_TIMEOUT_S = 30
SETTLED_SHARE = 0.2
"""Share of a processor below which a server without requests counts as idle."""


@contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """Processes started inside run on BROKER_CPU, or, for CLIENT_CPU, on all others.

    Does nothing for None, and on a machine with one processor.
    """
    if cpu is None or not can_pin():
        yield
        return
    allowed = os.sched_getaffinity(0)
    brokers = {sorted(allowed)[BROKER_CPU]}
    os.sched_setaffinity(0, brokers if cpu == BROKER_CPU else allowed - brokers)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def can_pin() -> bool:
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > CLIENT_CPU


def anonymous_bytes() -> int:
    """Anonymous memory of this process, without mapped files."""
    return _anonymous_kib(Path("/proc/self")) * 1024


def _anonymous_kib(process: Path) -> int:
    for line in (process / "status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


class ListeningProcess:
    """The process that listens at a loopback address, if it is visible in /proc."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._directory = _listener(int(port)) if host in LOOPBACK else None

    @property
    def pid(self) -> int | None:
        return int(self._directory.name) if self._directory is not None else None

    def cpu_us(self) -> float | None:
        """Processor time so far, in steps of 10 ms; None if the process is not visible."""
        if self._directory is None:
            return None
        fields = (self._directory / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6

    def anonymous_mib(self) -> float | None:
        return _anonymous_kib(self._directory) / 1024 if self._directory is not None else None

    def wait_settled(self) -> None:
        """Wait until it is idle, or until the time that the compilers of a JVM need is over."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        before, share = self.cpu_us(), 1.0
        while before is not None and share > SETTLED_SHARE and time.monotonic() < deadline:
            time.sleep(1)
            after = self.cpu_us() or 0.0
            before, share = after, (after - before) / 1e6

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    @contextmanager
    def spread(self) -> Iterator[None]:
        """Let it use all processors inside the block."""
        if self._directory is None or not can_pin():
            yield
            return
        allowed = os.sched_getaffinity(int(self._directory.name))
        _allow(self._directory, os.sched_getaffinity(0))
        try:
            yield
        finally:
            _allow(self._directory, allowed)


def _allow(process: Path, processors: set[int]) -> None:
    for thread in (process / "task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), processors)


def _listener(port: int) -> Path | None:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            with os.scandir(process / "fd") as entries:
                if any(os.readlink(entry) in inodes for entry in entries):  # noqa: PTH115
                    return process
        except OSError:
            continue  # ended, or of another user
    return None
