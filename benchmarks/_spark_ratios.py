"""What is expected of the cells of `benchmarks/spark.py`, beside what they came to."""

from __future__ import annotations

import statistics
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
        files = _noop(results, "files, batch", columns)
        if decoder:
            found[f"{columns}: decoder / loop over records"] = _at_least(
                TIMES_THE_LOOP_MIN, decoder["times_the_loop"]
            )
        if decoder and files:
            share = files["median_krows"] / (CORES * decoder["files"]["best_krows"])
            found[f"{columns}: files / {CORES} cores of the decoder"] = _at_least(SHARE_MIN, share)
        if decoder and files and (floor := _noop(results, "floor", columns)):
            # With what one row costs a core: the floor's share, and what the decoder adds to it.
            possible = 1 / (1 + CORES * decoder["files"]["best_krows"] / floor["median_krows"])
            found[
                f"{columns}: the same if rows cost what they do at the floor, and decoding what it does alone"
            ] = {"value": round(possible, 3)}
        beside = _noop(results, "files beside the broker, batch", columns)
        for name, expected in (("bulk", BULK_MIN), ("32 messages", PULLS_OF_32_MIN)):
            if beside and (broker := _noop(results, f"broker, {name}, batch", columns)):
                found[f"{columns}: broker, {name} / files"] = _by_round(expected, broker, beside)
        for origin in ("files", "broker"):
            if archive := results.get(f"{origin}, archive", {}).get(columns):
                parquet = results[f"{origin}, AvailableNow"][f"{columns} -> parquet"]
                found[f"{columns}: {origin}, archive / Spark's Parquet, AvailableNow"] = _by_round(
                    ARCHIVE_MIN, archive, parquet
                )
    if (files := _noop(results, "files, batch", "7")) and body_bytes == QUIET_BODY_BYTES:
        name = "7: files, thousand rows/s on a quiet machine"
        found[name] = _at_least(FILES_KROWS_MIN, files["median_krows"])
    if trigger := results.get("trigger_ms"):
        over = trigger["rocketmq"] - trigger["rate"]
        found["trigger over Spark's rate source, ms"] = {
            "expected": f"<= {TRIGGER_MS_MAX}",
            "value": round(over, 1),
            "met": over <= TRIGGER_MS_MAX,
        }
    return found


def _noop(results: Mapping[str, Any], cell: str, columns: str) -> Mapping[str, Any] | None:
    noop: Mapping[str, Any] | None = results.get(cell, {}).get(columns, {}).get("noop")
    return noop


def _by_round(expected: float, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """How often one goes into the other, round by round: they were measured in turn."""
    each = sorted(a / b for a, b in zip(one["rounds_krows"], other["rounds_krows"], strict=True))
    spread = {"lowest": round(each[0], 3), "highest": round(each[-1], 3)}
    return {**_at_least(expected, statistics.median(each)), **spread}


def _at_least(expected: float, value: float) -> dict[str, Any]:
    return {"expected": f">= {expected}", "value": round(value, 3), "met": value >= expected}
