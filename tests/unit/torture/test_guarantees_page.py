"""The page of guarantees takes its table from the report of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.guarantees_page import PAGE, TABLE, torture_table
from skylark.torture.checker import Breach, TortureVerdict
from skylark.torture.report import Inflicted, TortureOptions, TortureReport, page


def a_report(mode: str, lost: int) -> TortureReport:
    verdict = TortureVerdict(
        attempted=12_000, acknowledged=11_000, failed=1, unknown=2, rolled_back=3, received=11_004,
        deliveries=12, duplicated=5, recovered=6, commit_regressions=7, faults={"lost": Breach(lost, ())},
    )  # fmt: skip
    fault = Inflicted(at_s=1.0, name="kill-broker", words="kill -9 broker-a")
    wanted = TortureOptions(directory=Path(), mode=mode, seconds=900, seed=71)
    return TortureReport(
        wanted=wanted, verdict=verdict, faults=[fault] * 4, skipped={}, elapsed_s=901.0, drained_s=1.5
    )


def test_a_report_becomes_a_table() -> None:
    html = page([a_report("async", 0), a_report("sync", 2)], "2026-11-16 04:40:00+00:00")
    first, _, columns, _, *rows = torture_table(html).splitlines()
    assert first == "*Ended on 2026-11-16 04:40 UTC. Seed 71, 30 minutes of faults in total.*"
    assert columns.startswith("| Mode | Sent | Acknowledged |")
    assert rows == [
        "| async | 12,000 | 11,000 | 2 | 1 | 3 | 11,004 | 5 | 0 | 4 | 1.5 s | clean |",
        "| sync | 12,000 | 11,000 | 2 | 1 | 3 | 11,004 | 5 | 2 | 4 | 1.5 s | BROKEN |",
    ]


def test_the_page_has_a_place_for_it() -> None:
    assert len(TABLE.findall(PAGE.read_text())) == 1


def test_another_page_is_refused() -> None:
    with pytest.raises(ValueError, match="no page that `skylark torture --html` wrote"):
        torture_table("<html></html>")
