"""Tables beside others, from what benchmarks print: recognised by content, joined, bold where it matters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks._common import ProgramResult
from benchmarks.broker import CELLS
from benchmarks.compare.cells import APACHE, KAFKA, NATS, OURS, START, choose
from benchmarks.compare.figures import Comparison, Outcome, SystemFacts, rows_of
from benchmarks.growth import TITLES
from scripts.peer_tables import cell_title
from scripts.performance_figures import FIGURE, with_figures
from scripts.performance_page import main, tables_of
from skylark.bench.machine import describe
from skylark.bench.results import encode, make_cell, make_document


def reported(
    benchmark: str,
    results: dict[str, Any],
    made_at: str = "2026-11-15 20:00:00+00:00",
    conditions: dict[str, str] | None = None,
) -> bytes:
    machine = msgspec.structs.replace(describe(), load_1m=1.5)
    found = ProgramResult.now(benchmark, conditions or {}, results=results)
    return encode(msgspec.structs.replace(found, made_at=made_at, machine=machine))


def spread(median: float) -> dict[str, float]:
    return {"median": median, "min": median / 2, "max": median * 2}


def pair(ours: float, theirs: float) -> dict[str, Any]:
    def side(rate: float) -> dict[str, Any]:
        waits = {"p50_us": spread(120), "p99_us": spread(4300), "p999_us": spread(9000)}
        return {"rounds": 3, "messages_per_s": spread(rate), **waits, "broker_cpu_us": spread(10)}

    return {"ours": side(ours), "apache": side(theirs), "ratio": spread(ours / theirs)}


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]


def test_cells_beside_apache_stand_in_order_and_those_below_the_aim_are_bold() -> None:
    first = {
        "client": {"1-128B": {}},
        "pull-1KiB": pair(2000, 1000),
        "sync-1-128B": pair(1, 1),
    }
    second = {
        "async-1024-1KiB": pair(3000, 1000),
        "async-1-128B": pair(14, 10),
        "batch-128B": pair(9, 9),
    }
    files = {"a": reported("broker", first), "b": reported("broker", second, "2026-11-15 21:00:00+00:00")}
    text = tables_of(files)["apache"]
    assert text.startswith("*Measured on 2026-11-15 20:00 and 21:00 UTC, load average 1.5 at the end.*\n")
    assert lines(text) == [
        "| 1 in flight, 128 B | 14 | 10 | 0.12 / 4.3 / 9 | 0.12 / 4.3 / 9 | 10 | 10 "
        "| **1.40 (0.70 to 2.80)** |",
        "| 1,024 in flight, 1 KiB | 3,000 | 1,000 | 0.12 / 4.3 / 9 | 0.12 / 4.3 / 9 | 10 | 10 "
        "| 3.00 (1.50 to 6.00) |",
        "| synchronous flush, 1 in flight, 128 B | 1 | 1 | 0.12 / 4.3 / 9 | 0.12 / 4.3 / 9 | 10 | 10 "
        "| **1.00 (0.50 to 2.00)** |",
        "| batches of 32, 128 B | 9 | 9 | 0.12 / 4.3 / 9 | 0.12 / 4.3 / 9 | 10 | 10 | 1.00 (0.50 to 2.00) |",
        "| pulls of 32, backlog of 1 KiB | 2,000 | 1,000 | 0.12 / 4.3 / 9 | 0.12 / 4.3 / 9 | 10 | 10 "
        "| 2.00 (1.00 to 4.00) |",
    ]  # fmt: skip


def test_brokers_on_the_whole_machine_have_their_own_table_and_aim() -> None:
    """And the page says which cells are lost."""
    found = {"async-64-128B": pair(19, 10), "async-1024-128B": pair(25, 10), "batch-128B": pair(7, 10)}
    whole = reported("broker", found, conditions={"broker_cpus": "all"})
    tables = tables_of({"a": reported("broker", {"async-64-128B": pair(16, 10)}), "b": whole})
    assert "| 1.60 (0.80 to 3.20) |" in tables["apache"]
    assert "| **1.90 (0.95 to 3.80)** |" in tables["apache-whole"]
    names = ("whole-many-times", "whole-batch-times", "whole-lost", "whole-pull-times")
    text = ", ".join(f"<!-- figure: {name} -->?<!-- end -->" for name in names)
    values = [value for _, _, value, _ in FIGURE.findall(with_figures(text, tables))]
    assert values == ["1.9 to 2.5", "0.7", "batches of 32, 128 B", "(not measured)"]


def test_all_kinds_of_cells_and_bare_loops_have_titles() -> None:
    assert len({cell_title(cell.name) for cell in CELLS}) == len(CELLS)
    spread = {"median": 0.8, "min": 0.7, "max": 0.95}
    found = {
        "timer-128B": pair(30, 10),
        "pull-sql92-1KiB": pair(10, 10),
        "pull-tag-1KiB": pair(21, 10),
        "sync-1-128B": {**pair(30, 10), "bare": pair(1, 40)["apache"], "to_bare_loop": spread},
    }
    tables = tables_of({"a": reported("broker", found, conditions={"broker_cpus": "all"})})
    titles = [line.split(" | ")[0] for line in lines(tables["apache-whole"])]
    assert titles == [
        "| synchronous flush, 1 in flight, 128 B",
        "| pulls of 32 by tag, backlog of 1 KiB",
        "| pulls of 32 by SQL92, backlog of 1 KiB",
        "| timer, 64 in flight, 128 B",
    ]
    assert lines(tables["bare-loop"]) == [
        "| synchronous flush, 1 in flight, 128 B | 30 | 40 | **0.80 (0.70 to 0.95)** |"
    ]


def test_signed_and_encrypted_cells_stand_beside_open_ones() -> None:
    def cell(rate: float, share: float | None, **more: Any) -> dict[str, Any]:
        figures = {"messages_per_s": {"median": rate}, "broker_cpu_us": {"median": 7.5}}
        shares = {} if share is None else {"ours_to_open": {"median": share, "min": share, "max": share}}
        return {"ours": figures, **shares, **more}

    found = {
        "send-open-1KiB": cell(100, None),
        "send-signed-1KiB": cell(70, 0.7, expected_to_open_at_least=0.8),
        "pull-tls-1KiB": cell(60, 0.6, expected_to_open_at_least=0.5),
    }
    assert lines(tables_of({"a": reported("security", found)})["security"]) == [
        "| sends, 1 KiB | 100 | 7.5 |  |",
        "| sends, 1 KiB, signed | 70 | 7.5 | **0.70 (0.70 to 0.70)** |",
        "| pulls, 1 KiB, TLS | 60 | 7.5 | 0.60 (0.60 to 0.60) |",
    ]


def test_a_cell_without_a_good_round_is_void() -> None:
    broken = {
        "ours": {"rounds": 0, "void": [["lost"]]},
        "apache": pair(1, 1)["apache"],
        "ratio": {"void": True},
    }
    text = tables_of({"a": reported("broker", {"async-64-128B": broken})})["apache"]
    assert lines(text) == ["| 64 in flight, 128 B | void | 1 |  | 0.12 / 4.3 / 9 | void | 10 | void |"]


def compared(figures: dict[str, dict[str, dict[str, float]]], made_at: str) -> bytes:
    """By cell, system and metric."""
    peers = [APACHE, KAFKA, NATS]
    outcomes = [
        Outcome(cell=cell, system=system, round=0, figures=found)
        for cell, systems in figures.items()
        for system, found in systems.items()
    ]
    found = Comparison.now(
        "compare", {"recover_mib": 4096}, systems=[SystemFacts(APACHE, "Apache RocketMQ 5.3.3", "", "")],
        rows=rows_of(choose(list(figures), peers), peers, outcomes), not_run=[], outcomes=outcomes,
    )  # fmt: skip
    return encode(msgspec.structs.replace(found, made_at=made_at))


def test_peers_stand_side_by_side_and_the_best_is_bold() -> None:
    waits = {"p50": 500.0, "p99": 4000.0, "p99.9": 8000.0}
    first = {
        "java-async-64-128B": {
            OURS: {"messages": 46_040.0}, APACHE: {"messages": 31_250.0}, KAFKA: {"messages": 220_600.0},
            NATS: {"messages": 98_800.0},
        },
        "java-batch-128B": {OURS: {"messages": 5.0}, APACHE: {"messages": 6.0}, KAFKA: {"messages": 7.0}},
        "latency-5000": {OURS: waits, APACHE: {name: 2 * us for name, us in waits.items()}},
        "send-async-1-128B": {OURS: {"messages": 1.0}, APACHE: {"messages": 2.0}},
        "start": {OURS: {START.name: 0.5}},
    }  # fmt: skip
    second = {
        "start": {OURS: {START.name: 0.27}, APACHE: {START.name: 2.5}},
        "memory": {OURS: {"anonymous memory idle": 52.0, "anonymous memory under load": 58.0}},
        "recover": {OURS: {"kill -9 to first acknowledged send": 1.5}},
    }  # fmt: skip
    files = {
        "later": compared(second, "2026-11-16 08:00:00"),
        "first": compared(first, "2026-11-15 20:00:00"),
    }
    text = tables_of(files)["peers"]
    assert text.startswith("*Measured on 2026-11-15 20:00 and 2026-11-16 08:00 UTC, load average ")
    assert "|  | Skylark | Apache RocketMQ 5.3.3 | kafka | nats |" in text
    assert lines(text) == [
        "| sends, 64 in flight, 128 B | 46,040/s | 31,250/s | **220,600/s** | 98,800/s |",
        "| batches of 32, 128 B | 5/s | 6/s | **7/s** | none |",
        "| end to end at 5,000/s, 1 KiB, p50 / p99 / p99.9, ms | **0.5 / 4 / 8** | 1 / 8 / 16 "
        "| none | none |",
        "| start to the first acknowledged send | **0.27 s** | 2.5 s | none | none |",
        "| anonymous memory idle / at 5,000/s, MiB | 52 / 58 | none | none | none |",
        "| kill -9 with 4 GiB of log to the first acknowledged send | 1.5 s | none | none | none |",
    ]


def test_the_cost_of_a_row_by_tasks_at_once_is_a_table_and_takes_no_other_away() -> None:
    cell = {"median_krows": 900.0, "cpu_us_per_row": {"jvm": 0.5, "workers": 0.75}}
    made = tables_of({"a": reported("spark", {"200 B": {"ratios": {}, "growth": {"1": cell, "8": cell}}})})
    assert lines(made["spark-growth"]) == [f"| {tasks} | 900 | 0.5 | 0.75 | 1.25 |" for tasks in (1, 8)]
    assert not made.keys() & {"spark", "spark-ratios"}


def spark_cell(kafka: float, broker: float, *, met: bool) -> dict[str, Any]:
    times = {"value": broker / kafka, "lowest": broker / kafka, "highest": broker / kafka, "met": met}
    return {
        "kafka": {"median_krows": kafka},
        "broker": {"median_krows": broker},
        "times_kafka": {"broker": times},
    }


def test_spark_cells_of_several_runs_stand_beside_kafka_in_one_table() -> None:
    first: dict[str, Any] = {"200 B": {"rows": 9, "write": spark_cell(100, 90, met=False)}, "is_quiet": True}
    again: dict[str, Any] = {
        "200 B": {"rows": 9, "batch, noop": spark_cell(100, 200, met=True)},
        "is_quiet": True,
    }
    again["200 B"]["continuous"] = {name: {"p50_ms": 100.0, "p99_ms": 250.0} for name in ("kafka", "broker")}
    made = tables_of(
        {
            "a": reported("spark-kafka", first),
            "b": reported("spark-kafka", again, "2026-11-15 21:00:00+00:00"),
        }
    )
    assert lines(made["spark-kafka"]) == [
        "| batch, noop, 200 B | 100 |  | 200 |  | 2 (2 to 2) |",
        "| write, 200 B | 100 |  | 90 |  | **0.9 (0.9 to 0.9)** |",
        "| continuous, 200 B, delay p50 / p99 | 100 / 250 ms |  | 100 / 250 ms |  |  |",
    ]


def test_a_comparison_of_which_nothing_counts_any_more_is_not_named() -> None:
    starts = [{"start": {OURS: {START.name: seconds}, APACHE: {START.name: 2.5}}} for seconds in (0.5, 0.25)]
    files = {
        "first": compared(starts[0], "2026-11-15 20:00:00"),
        "later": compared(starts[1], "2026-11-16 08:00:00"),
    }
    text = tables_of(files)["peers"]
    assert text.startswith("*Measured on 2026-11-16 08:00 UTC, ")
    assert lines(text) == ["| start to the first acknowledged send | **0.25 s** | 2.5 s | none | none |"]


def test_growth_alone_fills_its_table() -> None:
    cell = make_cell(
        "topics 1", 10, 1.0, server_cpu_us=12.0, anonymous_mib=60.0,
        settings={"dimension": "topics", "point": 1, "load_1m": 0.5},
    )  # fmt: skip
    made = tables_of({"growth.json": encode(make_document("growth", {}, [cell]))})
    assert lines(made["growth"]) == [f"| {TITLES['topics']} | 1 | 12 | 1.00 | 60 → 60 | 0.5 to 0.5 |"]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"a": 1}', b'{"benchmark": "filters"}', b'{"benchmark": "survey"}']
)
def test_what_is_no_result_is_named(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"mine\.json is the result of none of survey, growth"):
        tables_of({"mine.json": data})


def test_a_file_that_is_not_there_ends_with_a_sentence() -> None:
    with pytest.raises(SystemExit, match="nowhere"):
        main(["nowhere.json"])


def test_python_clients_stand_side_by_side_and_lost_cells_are_bold() -> None:
    def figure(per_s: float, client_us: float) -> dict[str, float]:
        rates = {"median_per_s": per_s, "lowest_per_s": 1, "highest_per_s": 2}
        return rates | {"client_us": client_us, "server_us": 0.2}

    found = {
        "cells": {
            "send-many": {"skylark": figure(300_000, 2.5), "confluent-kafka": figure(400_000, 1.5)},
            "consume": {"skylark": figure(900_000, 0.9), "confluent-kafka": figure(600_000, 0.6)},
            "consume-arrow": {"skylark": figure(1_200_000, 0.5)},
            "consume-tuned": {"confluent-kafka": figure(2_000_000, 0.6)},
        },
        "ratios": {
            "consume-arrow / confluent-kafka consume": {
                "median": 1.9, "lowest": 1.5, "highest": 2.1, "expected": 2.0, "met": False,
            }
        },
    }  # fmt: skip
    tables = tables_of({"a": reported("python_clients", found)})
    assert lines(tables["python-clients"]) == [
        "| the same, a future for each message | 300,000, 2.5 + 0.2 | 400,000, 1.5 + 0.2 |  |  | **0.75** |",
        "| consume, 1,000 at once | 900,000, 0.9 + 0.2 | 600,000, 0.6 + 0.2 |  |  | 1.50 |",
        "| consume Arrow tables of seven columns | 1,200,000, 0.5 + 0.2 |  |  |  | 2.00 |",
        "| consume, 1,000 at once, librdkafka tuned "
        "| 900,000, 0.9 + 0.2 | 2,000,000, 0.6 + 0.2 |  |  | **0.45** |",
        "| Arrow tables, beside the same | 1,200,000, 0.5 + 0.2 |  |  |  | **0.60** |",
    ]
    assert lines(tables["python-ratios"]) == [
        "| consume-arrow / confluent-kafka consume | at least 2 | **1.90** (1.50 to 2.10) |"
    ]


def test_two_brokers_stand_beside_one_of_apache() -> None:
    ours, other = ({"messages_per_s": rate, "broker_cpu_us": 6.0, "p99_us": 1.0} for rate in (90.0, 100.0))
    ratio = {"median": 0.9, "min": 0.8, "max": 1.1}
    cells = {"async-64-128B": {"ours": ours, "apache": other, "ratio": ratio}, "batch-128B": {"ours": ours}}
    assert lines(tables_of({"a": reported("cores", {"cells": cells})})["cores"]) == [
        "| 64 in flight, 128 B | 90 | 6 | 100 | 6 | **0.90 (0.80 to 1.10)** |",
        "| batches of 32, 128 B | 90 | 6 |  |  |  |",
    ]
