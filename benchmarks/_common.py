"""What benchmarks share: timing side by side, the JSON that is printed."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from skylark.bench.machine import describe

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


def report(name: str, results: dict[str, Any]) -> None:
    document = {
        "benchmark": name,
        "made_at": datetime.now(UTC).isoformat(" ", "seconds"),
        "machine": msgspec.structs.asdict(describe()),
        "results": results,
    }
    json.dump(document, sys.stdout, indent=2)
    print()
