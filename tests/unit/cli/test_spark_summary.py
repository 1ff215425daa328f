"""The end of a Spark command."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from skylark.cli.output import Screen
from skylark.cli.spark_jobs import show_summary
from skylark.pipelines.jobs.counts import JobCounts
from skylark.pipelines.jobs.queries import JobSummary

SUMMARY = JobSummary(
    pipeline="archive",
    seconds=12.34,
    batches=1,
    counts=JobCounts(read=3000, written=2930, filtered=50, rejected=20),
    state="/lake/raw/_skylark/state/archive-orders-db892e7d",
    details={"to": "delta:/lake/raw", "files": 0},
)


def on_terminal(columns: int) -> tuple[Screen, io.StringIO]:
    screen, out = Screen(), io.StringIO()
    screen.out = Console(file=out, force_terminal=True, color_system=None, width=columns, soft_wrap=True)
    return screen, out


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_it_is_a_table(columns: int) -> None:
    screen, out = on_terminal(columns)
    show_summary(screen, SUMMARY, as_json=False)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "archive: end of data after 12.3 s, 1 batch",
        "to     delta:/lake/raw",
        "state  /lake/raw/_skylark/state/archive-orders-db892e7d",
        "",
        "to               read  written  filtered  rejected  duplicates",
        "──────────────────────────────────────────────────────────────",
        "delta:/lake/raw  3000     2930        50        20           0",
    ]


def test_otherwise_it_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_summary(Screen(), SUMMARY, as_json=False)
    show_summary(on_terminal(80)[0], SUMMARY, as_json=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert json.loads(first)["counts"]["written"] == 2930
