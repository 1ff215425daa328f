"""What the Spark benchmark divides by what: round by round, since the machine changes between them."""

from __future__ import annotations

from typing import Any

from benchmarks._spark_cells import rates_in_turn
from benchmarks._spark_ratios import ratios


def cell(*rounds: float) -> dict[str, Any]:
    return {
        "best_krows": max(rounds),
        "median_krows": sorted(rounds)[len(rounds) // 2],
        "rounds_krows": rounds,
    }


def test_what_is_compared_is_divided_round_by_round() -> None:
    results = {
        "files beside the broker, batch": {"7": {"noop": cell(1000, 500, 2000)}},
        "broker, bulk, batch": {"7": {"noop": cell(800, 300, 1500)}},
        "files, AvailableNow": {"7 -> parquet": cell(400, 100, 300)},
        "files, archive": {"7": cell(800, 150, 900)},
    }
    found = ratios(results, 200)
    assert found == {
        "7: broker, bulk / files": {
            "expected": ">= 0.7", "value": 0.75, "met": True, "lowest": 0.6, "highest": 0.8
        },
        "7: files, archive / Spark's Parquet, AvailableNow": {
            "expected": ">= 2.0", "value": 2.0, "met": True, "lowest": 1.5, "highest": 3.0
        },
    }  # fmt: skip


def test_cells_are_run_in_turn() -> None:
    ran: list[str] = []

    def run(name: str) -> int:
        ran.append(name)
        return 1000

    found = rates_in_turn({"a": lambda: run("a"), "b": lambda: run("b")}, 2)
    assert ran == ["a", "b"] * 3, "the first round is not counted"
    assert [len(found[name]["rounds_krows"]) for name in "ab"] == [2, 2]
