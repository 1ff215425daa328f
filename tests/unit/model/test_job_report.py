"""Reports of jobs: which one counts, when a run is silent, and what a command line hides."""

from __future__ import annotations

from msgspec.structs import replace

from skylark.model.job_report import (
    SILENT_AFTER_MS,
    JobBatch,
    JobReport,
    command_text,
    decode_reports,
    encode_report,
    newest_of_jobs,
    newest_runs,
)

FIRST = JobReport(name="archive-orders", kind="archive", run="r1", time_ms=1000, started_ms=1000)


def batch(query: str, number: int, lag: int | None) -> JobBatch:
    return JobBatch(query=query, number=number, time_ms=number, rows=10, rows_per_s=5.0, lag=lag)


def test_the_last_report_of_a_run_counts_in_any_order() -> None:
    later = replace(FIRST, time_ms=2000, rows=7)
    ended = replace(FIRST, time_ms=1500, state="failed", error="disk full")
    assert newest_runs([FIRST, later]) == newest_runs([later, FIRST]) == [later]
    # Its clock was set back.
    assert newest_runs([later, ended]) == newest_runs([ended, later]) == [ended]


def test_a_job_shows_its_newest_run_and_running_ones_come_first() -> None:
    second = replace(FIRST, run="r2", started_ms=5000, time_ms=5000, state="finished")
    other = replace(FIRST, name="etl-orders", run="r3", time_ms=3000)
    assert newest_of_jobs([FIRST, second, other]) == [other, second]


def test_a_running_job_is_silent_after_two_missed_reports() -> None:
    assert FIRST.state_at(1000 + SILENT_AFTER_MS) == "running"
    assert FIRST.state_at(1001 + SILENT_AFTER_MS) == "silent"
    assert replace(FIRST, state="finished").state_at(1 << 40) == "finished"


def test_the_lag_is_that_of_the_slowest_query() -> None:
    report = replace(FIRST, last=(batch("rows", 1, 500), batch("rejects", 1, 40), batch("rows", 2, 30)))
    assert report.lag == 40
    assert FIRST.lag is None
    assert replace(FIRST, last=(batch("rows", 1, None),)).lag is None


def test_what_is_not_a_report_is_left_out() -> None:
    assert decode_reports([b"hello", b"{}", encode_report(FIRST), b'{"name": 1}']) == [FIRST]


def test_a_command_line_hides_secrets() -> None:
    text = command_text(
        ["skylark", "spark", "--conf", "spark.hadoop.fs.s3a.secret.key=abc", "--option", "secretKey=x y",
         "--to", "delta:s3://user:pass@bucket/x", "--where", "amount > 0"]
    )  # fmt: skip
    assert "abc" not in text and "x y" not in text and "pass" not in text
    assert text.startswith("skylark spark --conf")
    assert "'amount > 0'" in text
