"""Runs of different cells as one result: the last measurement counts, missing is what nobody has."""

from __future__ import annotations

import msgspec

from benchmarks.compare.cells import APACHE, KAFKA, OURS, PER_S, choose
from benchmarks.compare.figures import Comparison, NotRun, Outcome, SystemFacts, merge, rows_of
from skylark.bench.machine import describe

SENDS, START = "send-async-64-1KiB", "start"
RATE, SECONDS = PER_S.name, "start to first acknowledged send"


def run(
    cell: str, rates: dict[str, float], *, metric: str = RATE, not_run: tuple[NotRun, ...] = (),
    load: float = 1.0, flush: str = "async",
) -> Comparison:  # fmt: skip
    """One round of one cell."""
    peers = [name for name in rates if name != OURS]
    outcomes = [
        Outcome(cell=cell, system=name, round=1, figures={metric: value}) for name, value in rates.items()
    ]
    return Comparison(
        made_at="2030-01-01",
        skylark="1",
        machine=msgspec.structs.replace(describe(), load_1m=load, commit="abc"),
        conditions={"rounds": 1, "seconds": load, "cells": cell},
        systems=[SystemFacts(name, name.title(), f"{flush}: fast; Go", "thin") for name in rates],
        rows=rows_of(choose([cell], peers), peers, outcomes),
        not_run=list(not_run),
        outcomes=outcomes,
    )


def test_one_run_is_itself() -> None:
    alone = run(SENDS, {OURS: 200.0, APACHE: 100.0})
    assert merge([alone]) == alone


def test_cells_of_all_runs_stand_side_by_side() -> None:
    first = run(SENDS, {OURS: 200.0, APACHE: 100.0}, not_run=(NotRun(START, OURS, "not reached"),), load=0.5)
    second = run(START, {OURS: 0.5, APACHE: 5.0}, metric=SECONDS, load=2.0, flush="sync")
    found = merge([second, first])
    assert [(row.cell, row.peer, row.ratio and row.ratio.median) for row in found.rows] == [
        (SENDS, APACHE, 2.0),
        (START, APACHE, 10.0),
    ]
    assert found.not_run == [], "what one run did not reach another measured"
    assert found.machine.load_1m == 2.0
    assert found.conditions == {"rounds": 1, "seconds": "2.0 / 0.5", "cells": f"{SENDS}, {START}"}
    assert found.systems[0].settings == "sync: fast; Go; async: fast"
    assert merge([found, first]) == found, "merging again changes nothing"


def test_what_was_measured_again_counts_as_the_last_run_has_it() -> None:
    first = run(SENDS, {OURS: 200.0, APACHE: 100.0}, not_run=(NotRun(SENDS, APACHE, "1 of 2 rounds: lost"),))
    again = run(SENDS, {OURS: 300.0, APACHE: 100.0})
    found = merge([first, again])
    (row,) = found.rows
    assert row.ratio is not None
    assert row.ratio.median == 3.0
    assert [outcome.figures[RATE] for outcome in found.outcomes] == [300.0, 100.0]
    assert found.not_run == []


def test_a_peer_of_another_run_is_added_and_a_failed_attempt_replaces_nothing() -> None:
    apache = run(START, {OURS: 0.5, APACHE: 5.0}, metric=SECONDS)
    kafka = run(START, {OURS: 0.4, KAFKA: 2.0}, metric=SECONDS)
    failed = run(START, {OURS: 0.5}, metric=SECONDS, not_run=(NotRun(START, APACHE, "no Java"),))
    found = merge([apache, kafka, failed])
    assert [(row.peer, row.ratio and row.ratio.median) for row in found.rows] == [
        (APACHE, 10.0),
        (KAFKA, 5.0),
    ]
    assert found.not_run == []
