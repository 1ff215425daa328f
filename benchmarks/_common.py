"""What every benchmark shares: timing side by side, a scratch directory, the JSON that is printed."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROUNDS = 7


def side_by_side(cells: Mapping[str, Callable[[], int]], rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Run the cells in turn, several rounds; each returns how many operations it did.

    Gives microseconds per operation: the best round (least disturbed) and the median.
    """
    taken: dict[str, list[float]] = {name: [] for name in cells}
    for _ in range(rounds):
        for name, cell in cells.items():
            started = time.perf_counter()
            count = cell()
            taken[name].append((time.perf_counter() - started) / count * 1e6)
    return {
        name: {"best_us": round(min(times), 3), "median_us": round(statistics.median(times), 3)}
        for name, times in taken.items()
    }


def ratio(result: dict[str, dict[str, float]], ours: str, bare: str, key: str = "best_us") -> float:
    """Of the best rounds: on a shared machine they are the ones that were left alone."""
    return round(result[ours][key] / result[bare][key], 2)


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


def anonymous_bytes() -> int:
    """Anonymous memory of this process: mapped log pages belong to the page cache."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def report(name: str, results: dict[str, Any]) -> None:
    document = {
        "benchmark": name,
        "commit": commit(),
        "python": platform.python_version(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "results": results,
    }
    json.dump(document, sys.stdout, indent=2)
    print()
