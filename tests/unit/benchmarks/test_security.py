"""The ratios of `benchmarks.security`: within a round, to the open cell and to the peer."""

from __future__ import annotations

from benchmarks.broker import Figures
from benchmarks.security import Rounds, make_cells, results


def figures(per_s: float, cpu_us: float) -> Figures:
    return {"messages_per_s": per_s, "p99_us": 1.0, "broker_cpu_us": cpu_us}


def test_ratios_are_those_of_the_same_round() -> None:
    cells = [cell for cell in make_cells() if cell.name in ("send-open-1KiB", "send-tls-1KiB")]
    rounds: Rounds = {
        "send-open-1KiB": {
            "ours": [figures(100, 10), None, figures(300, 10)],
            "apache": [figures(50, 20), figures(50, 20), figures(50, 20)],
        },
        "send-tls-1KiB": {
            "ours": [figures(70, 15), figures(1, 1), figures(240, 20)],
            "apache": [figures(35, 40), None, figures(20, 40)],
        },
    }
    found = results(rounds, cells, ["ours", "apache"])["send-tls-1KiB"]
    assert found["ours_to_open"] == {"median": 0.75, "min": 0.7, "max": 0.8}
    assert found["ours_cpu_to_open"] == {"median": 1.75, "min": 1.5, "max": 2.0}
    assert found["apache_to_open"] == {"median": 0.55, "min": 0.4, "max": 0.7}
    assert found["ratio"] == {"median": 7.0, "min": 2.0, "max": 12.0}
    assert found["expected_to_open_at_least"] == 0.6


def test_a_cell_may_be_measured_without_its_open_one() -> None:
    cells = [cell for cell in make_cells() if cell.name == "pull-tls-1KiB"]
    rounds: Rounds = {"pull-tls-1KiB": {"ours": [figures(70, 15)]}}
    found = results(rounds, cells, ["ours"])["pull-tls-1KiB"]
    assert found["ours_to_open"] is None
    assert found["ours"]["messages_per_s"]["median"] == 70
