"""Parts of the benchmark programs: timing side by side, and the result file that they print."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from skylark.bench.results import ResultFile, encode

ROUNDS = 7


class ProgramResult(ResultFile, frozen=True, kw_only=True):
    """The result file of a benchmark program; `results` has the program's own structure."""

    results: dict[str, Any]


def side_by_side(cells: Mapping[str, Callable[[], int]], rounds: int = ROUNDS) -> dict[str, dict[str, float]]:
    """Run the cells in turn for several rounds; each returns its number of operations.

    Returns microseconds per operation: of the best (least disturbed) round and the median.
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
    """Ratio of the best rounds, which were the least disturbed on a shared machine."""
    return round(result[ours][key] / result[bare][key], 2)


def report(name: str, results: dict[str, Any]) -> None:
    """Print the result file; the entry `conditions` of the results goes to its head."""
    conditions = results.get("conditions", {})
    found = {key: value for key, value in results.items() if key != "conditions"}
    sys.stdout.write(encode(ProgramResult.now(name, conditions, results=found)).decode())
