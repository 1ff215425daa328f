"""The machine that a run was made on: figures mean nothing without it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

GIT_TIMEOUT_S = 10


class Machine(msgspec.Struct, frozen=True):
    """What decides about figures."""

    system: str
    processor: str
    cores: int
    memory_mib: int
    python: str
    load_1m: float
    """The load average when the run ended; other people's work if it is above the run's own."""
    commit: str | None
    """Of the checkout that the package lies in, if it lies in one."""


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
    done = subprocess.run(  # noqa: S603 - our own question
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
    """A directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="skylark-bench-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free
