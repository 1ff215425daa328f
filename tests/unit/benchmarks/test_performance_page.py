"""The tables of the page about performance can be filled again from what commands write."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from benchmarks.survey.run import Survey, steps, survey
from scripts.peer_tables import TABLES
from scripts.performance_figures import FIGURE, FIGURES, with_figures
from scripts.performance_page import PAGE, TABLE, filled, tables_of
from scripts.performance_tables import SOAKED, SURVEYED, table
from skylark.bench.latencies import LatencyHistogram
from skylark.bench.results import Cell, encode, make_cell, make_document
from skylark.errors import SettingsError


def a_cell(name: str, **more: object) -> Cell:
    settings = {"kind": "send", "in_flight": 1024, "batch": 1, "body_bytes": 128}
    settings |= {"dimension": "topics", "point": 10, "load_1m": 0.5}
    figures = {"log_bytes": 312, "rate_of_first": 1.0, "slave_behind_p50_ms": 1.5, "slave_behind_p99_ms": 7.0}
    return make_cell(
        name, 1000, 2.0, latencies=LatencyHistogram([(2_000_000, 1000)]), operation_bytes=128,
        settings=settings, server_cpu_us=9.87, anonymous_mib=60.0,
        figures=figures, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Survey:
    documents = {name: make_document(name, {}, [a_cell(f"cell of {name}")]) for name in steps(1.0)}
    return Survey.now("survey", {}, documents=documents, missing={"spark": "no Java"}, taken_s={"sends": 2.0})


def test_every_table_of_the_page_is_made_by_something_and_stands_there_once() -> None:
    names = Counter(name for _, name, _, _ in TABLE.findall(PAGE.read_text()))
    of_programs = [name for tables in TABLES.values() for name in tables]
    whole = "apache-whole"  # the same program with another condition
    assert names == dict.fromkeys([*SURVEYED, *SOAKED, *of_programs, whole, "peers"], 1)


def test_a_page_is_filled_with_what_was_found_and_stays_so(found: Survey) -> None:
    tables = tables_of({"all.json": encode(found)})
    assert tables.keys() == SURVEYED.keys()
    text = "".join(
        f"before\n<!-- table: {name} -->\nstale\n<!-- end -->\nafter\n" for name in [*tables, "soak"]
    )
    once = filled(text, tables)
    for name in ("sends", "sync", "features", "filters", "cold", "latency", "routes"):
        assert f"cell of {name}" in once
    assert "| 500 | 0.06 | 2 / 2 / 2 | 9.87 |" in once
    assert "the slave is 1.5 / 7 ms behind" in once
    assert "9.87 µs, 500/s" in once
    assert once.count("stale") == 1, "of the soak nothing is known: it stays"
    assert filled(once, tables) == once


def test_sentences_say_what_the_tables_of_the_page_say() -> None:
    text = PAGE.read_text()
    tables = {name: body for _, name, body, _ in TABLE.findall(text)}
    assert with_figures(text, tables) == text, "run: make figures-page"
    assert {name for _, name, _, _ in FIGURE.findall(text)} == FIGURES.keys()


def test_figures_follow_a_table_that_changes() -> None:
    rows = [
        "1 in flight, 128 B | 10 | 5 | 1 / 2 | 1 / 3 | 9 | 9 | **1.4 (1.3 to 1.5)**",
        "64 in flight, 128 B | 10 | 5 | 1 / 2 | 1 / 1 | 9 | 9 | 2.00 (1.9 to 2.1)",
        "1,024 in flight, 128 B | 10 | 5 | 1 / 2 | 1 / 9 | 9 | 9 | 2.50 (1.9 to 2.6)",
        "synchronous flush, 1 in flight, 128 B | 10 | 5 | 1 / 2 | 1 / 3 | 9 | 9 | void",
    ]
    apache = table(list("abcdefgh"), [row.split(" | ") for row in rows])
    names = ("many-times", "lone-times", "p99-lower", "lone-sync-times", "pull-times")
    text = ", ".join(f"<!-- figure: {name} -->stale<!-- end -->" for name in names)
    found = FIGURE.findall(with_figures(text, {"apache": apache}))
    assert [value for _, _, value, _ in found] == ["2 to 2.5", "1.4", "3 of 4", *["(not measured)"] * 2]


def test_aims_follow_their_tables() -> None:
    beside = [
        "end to end at 5,000/s, 1 KiB, p50 / p99 / p99.9, ms | 1 / 2 / 3 | 1 / 2 / 12",
        "a backlog of 128 B | 300/s | **100/s**",
        "a backlog of 1 KiB | 150/s | 100/s",
    ]
    tables = {
        "peers": table(list("abc"), [row.split(" | ") for row in beside]),
        "apache": table(list("abcdefgh"), [["1 in flight", *"123456", "1.6"], ["batches", *"123456", "1"]]),
    }
    text = "".join(
        f"<!-- figure: {name} -->?<!-- end -->" for name in ("latency-share", "consumed-times", "send-times")
    )
    found = FIGURE.findall(with_figures(text, tables))
    assert [value for _, _, value, _ in found] == ["0.25", "1.5 to 3", "1.6"]


def test_what_was_not_measured_stays(found: Survey) -> None:
    partly = msgspec.structs.replace(found, documents={"routes": found.documents["routes"]})
    assert tables_of({"all.json": encode(partly)}) == {}


def test_a_void_cell_has_no_rate(found: Survey) -> None:
    void = make_document("features", {}, [a_cell("broken", wrong=["1 of 2 acknowledged"])])
    changed = msgspec.structs.replace(found, documents={**found.documents, "features": void})
    assert "| broken | void |" in tables_of({"all.json": encode(changed)})["features"]
    assert changed.is_void


@pytest.mark.parametrize(
    ("step", "table_name", "line"),
    [
        ("latency", "latency", "| broken | void |"),
        ("growth", "growth", "| 10 | void |  |"),
        ("sends", "predictions", "/s | void |"),
        ("sends", "sends", "| void | 0.06 | void |"),
    ],
)
def test_no_figure_of_a_void_cell_is_told(found: Survey, step: str, table_name: str, line: str) -> None:
    void = make_document(step, {}, [a_cell("broken", wrong=["the rate was not kept"])])
    changed = msgspec.structs.replace(found, documents={**found.documents, step: void})
    assert line in tables_of({"all.json": encode(changed)})[table_name]


def test_steps_are_done_in_turn_and_what_fails_is_told() -> None:
    heard: list[str] = []
    kept: list[Survey] = []

    def good(progress: object) -> object:
        assert callable(progress)
        progress("cell", "begin")
        return make_document("good", {}, [a_cell("cell")])

    def bad(progress: object) -> object:
        raise SettingsError("nothing", "works")

    chosen = {"bad": bad, "good": good}
    done = survey(chosen, 1.0, lambda name, word: heard.append(f"{name} {word}"), kept.append)  # type: ignore[arg-type]
    assert (list(done.documents), heard) == (["good"], ["good: cell begin"])
    assert done.missing.keys() == {"bad"}
    assert [list(each.documents) for each in kept] == [[], ["good"]]
    late = survey({"good": good}, -1.0, lambda name, word: None)  # type: ignore[dict-item]
    assert late.missing == {"good": "not begun: -1 minutes were over"}
    assert late.is_void
