"""What is expected of the cells of `benchmarks/spark.py`, beside what they came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CORES = 2
FILES_KROWS_MIN = 700
SHARE_MIN = 0.35
TIMES_THE_LOOP_MIN = 8
ARCHIVE_MIN = 2.0
BULK_MIN = 0.7
PULLS_OF_32_MIN = 0.5
TRIGGER_MS_MAX = 100
QUIET_BODY_BYTES = 200


def ratios(results: Mapping[str, Any], body_bytes: int) -> dict[str, dict[str, Any]]:
    """The figures that the benchmark is for, of those cells that were run."""
    found: dict[str, dict[str, Any]] = {}
    for columns in ("7", "18"):
        decoder = results.get("decoder, one core", {}).get(columns)
        files = _best(results, "files, batch", columns)
        if decoder:
            found[f"{columns}: decoder / loop over records"] = _at_least(
                TIMES_THE_LOOP_MIN, decoder["times_the_loop"]
            )
        if decoder and files:
            share = files / (CORES * decoder["files"]["best_krows"])
            found[f"{columns}: files / {CORES} cores of the decoder"] = _at_least(SHARE_MIN, share)
        if decoder and files and (floor := _best(results, "floor", columns)):
            # With what one row costs a core: the floor's share, and what the decoder adds to it.
            possible = 1 / (1 + CORES * decoder["files"]["best_krows"] / floor)
            found[
                f"{columns}: the same if rows cost what they do at the floor, and decoding what it does alone"
            ] = {"value": round(possible, 3)}
        for name, expected in (("bulk", BULK_MIN), ("32 messages", PULLS_OF_32_MIN)):
            if files and (broker := _best(results, f"broker, batch, {name}", columns)):
                found[f"{columns}: broker, {name} / files"] = _at_least(expected, broker / files)
        for origin in ("files", "broker"):
            if archive := results.get(f"{origin}, archive", {}).get(columns):
                parquet = results[f"{origin}, AvailableNow"][f"{columns} -> parquet"]["best_krows"]
                found[f"{columns}: {origin}, archive / Spark's Parquet, AvailableNow"] = _at_least(
                    ARCHIVE_MIN, archive["best_krows"] / parquet
                )
    if (files := _best(results, "files, batch", "7")) and body_bytes == QUIET_BODY_BYTES:
        found["7: files, thousand rows/s on a quiet machine"] = _at_least(FILES_KROWS_MIN, files)
    if trigger := results.get("trigger_ms"):
        over = trigger["rocketmq"] - trigger["rate"]
        found["trigger over Spark's rate source, ms"] = {
            "expected": f"<= {TRIGGER_MS_MAX}",
            "value": round(over, 1),
            "met": over <= TRIGGER_MS_MAX,
        }
    return found


def _best(results: Mapping[str, Any], cell: str, columns: str) -> float | None:
    noop = results.get(cell, {}).get(columns, {}).get("noop")
    return None if noop is None else float(noop["best_krows"])


def _at_least(expected: float, value: float) -> dict[str, Any]:
    return {"expected": f">= {expected}", "value": round(value, 3), "met": value >= expected}
