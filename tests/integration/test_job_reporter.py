"""Jobs report themselves to a cluster; whoever asks the cluster sees them. No report fails a job."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from skylark import Admin, Message, Producer
from skylark.cli.main import app
from skylark.console.settings import ConsoleSettings
from skylark.model.job_report import REPORT_TOPIC, SILENT_AFTER_MS, JobReport, encode_report
from skylark.pipelines.job_reporter import JobReporter
from skylark.testing import EmbeddedServers
from tests.support.console import console_client
from tests.support.first_day import until

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedServers]:
    with EmbeddedServers(settings={"auto_create_topics": False}) as servers:
        yield servers


@pytest.fixture(scope="module")
def admin(servers: EmbeddedServers) -> Iterator[Admin]:
    with Admin(namesrv=servers.namesrv) as admin:
        yield admin


def run_of(admin: Admin, name: str) -> JobReport:
    [run] = [run for run in admin.pipelines.runs() if run.name == name]
    return run


def test_a_job_is_seen_while_it_runs_and_after_its_end(servers: EmbeddedServers, admin: Admin) -> None:
    with JobReporter(
        servers.namesrv, kind="etl", name="etl-1", topics=["orders"], outputs=["delta:/lake"], every_s=0.05
    ) as reporter:
        until(lambda: admin.pipelines.runs() != [])
        assert run_of(admin, "etl-1").state == "running"
        reporter.batch(query="rows", number=0, rows=100, rows_per_s=50.0, lag=20, rejected=3)
        reporter.batch(query="rows", number=1, rows=20, rows_per_s=40.0, lag=0)
        until(lambda: run_of(admin, "etl-1").batches == 2)
        seen = run_of(admin, "etl-1")
        assert (seen.rows, seen.rejected, seen.lag, seen.rows_per_s) == (120, 3, 0, 40.0)
        assert [(part.number, part.lag) for part in seen.last] == [(0, 20), (1, 0)]
    ended = run_of(admin, "etl-1")
    assert (ended.state, ended.rows, ended.topics, ended.outputs) == (
        "finished", 120, ("orders",), ("delta:/lake",),
    )  # fmt: skip
    [queue] = admin.topics.queues(REPORT_TOPIC)
    assert queue.queue_id == 0


def test_how_a_run_ended_is_reported(servers: EmbeddedServers, admin: Admin) -> None:
    with (
        pytest.raises(ValueError, match="bad schema"),
        JobReporter(servers.namesrv, kind="cdc", name="cdc-fails"),
    ):
        raise ValueError("bad schema")
    with (
        pytest.raises(KeyboardInterrupt),
        JobReporter(servers.namesrv, kind="cdc", name="cdc-stops"),
    ):
        raise KeyboardInterrupt
    assert (run_of(admin, "cdc-fails").state, run_of(admin, "cdc-fails").error) == ("failed", "bad schema")
    assert run_of(admin, "cdc-stops").state == "stopped"


def test_a_cluster_that_cannot_be_reached_does_not_fail_a_job(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        JobReporter(NOWHERE, kind="etl", name="etl-1", every_s=0.01) as job,
    ):
        for number in range(20):
            job.batch(number=number, rows=1, rows_per_s=1.0)
            time.sleep(0.005)
    warnings = [record for record in caplog.records if "cannot report" in record.message]
    assert len(warnings) == 1


def test_batches_are_collected_and_not_sent_one_by_one(servers: EmbeddedServers, admin: Admin) -> None:
    before = admin.topics.stats(REPORT_TOPIC).messages
    with JobReporter(servers.namesrv, kind="etl", name="etl-fast") as reporter:
        for number in range(10_000):
            reporter.batch(number=number, rows=1, rows_per_s=1.0)
    assert run_of(admin, "etl-fast").batches == 10_000
    assert admin.topics.stats(REPORT_TOPIC).messages - before <= 2


def test_a_killed_run_is_silent_and_keeps_its_last_progress(servers: EmbeddedServers, admin: Admin) -> None:
    old_ms = round(time.time() * 1000) - SILENT_AFTER_MS - 10_000
    first = JobReport(name="killed", kind="agg", run="k1", time_ms=old_ms, started_ms=old_ms)
    last = replace(first, time_ms=old_ms + 1000, rows=77)
    noise = replace(first, name="other", run="o1", time_ms=round(time.time() * 1000))
    with Producer("test", namesrv=servers.namesrv) as producer:
        for tag, report in (("state", first), ("progress", last)):
            body = encode_report(report)
            producer.send(Message(REPORT_TOPIC, body, tags=tag, keys=[report.name, report.run]))
        # So many that the last progress of the killed run is not among the recent reports.
        many = [Message(REPORT_TOPIC, encode_report(noise), tags="progress")] * 200
        for _ in range(3):
            producer.send_batch(many)
    until(lambda: run_of(admin, "killed").rows == 77)
    assert run_of(admin, "killed").state_at(round(time.time() * 1000)) == "silent"


# --- The command line ---


def printed(servers: EmbeddedServers, *words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"NAMESRV_ADDR": servers.namesrv, "COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_jobs_are_listed_and_shown(servers: EmbeddedServers) -> None:
    with JobReporter(servers.namesrv, kind="etl", name="etl-shown", topics=["orders"]) as reporter:
        reporter.batch(query="rows", number=4, rows=9, rows_per_s=3.0, lag=1, rejected=2)
    [row] = [
        each for each in json.loads(printed(servers, "spark", "list", "--json")) if each["job"] == "etl-shown"
    ]
    assert (row["state"], row["topics"], row["rows"], row["rejected"], row["lag"]) == (
        "finished", ["orders"], 9, 2, 1,
    )  # fmt: skip
    [run] = json.loads(printed(servers, "spark", "show", "etl-shown", "--json"))
    assert run["last"][0]["number"] == 4
    assert "etl-shown" in printed(servers, "spark", "show", "etl-shown")
    document = json.loads(printed(servers, "top", "--once", "--every", "0.1", "--json"))
    assert "etl-shown" in [each["job"] for each in document["jobs"]]
    assert "etl-shown" in printed(servers, "top", "--once", "--every", "0.1")
    missing = CliRunner().invoke(app, ["spark", "show", "nothing", "--namesrv", servers.namesrv])
    assert missing.exit_code == 2


def test_without_a_report_the_list_is_empty() -> None:
    with EmbeddedServers() as fresh:
        assert json.loads(printed(fresh, "spark", "list", "--json")) == []
        document = json.loads(printed(fresh, "top", "--once", "--every", "0.1", "--json"))
        assert document["jobs"] == []


@pytest.mark.nightly
async def test_a_real_job_of_spark_is_seen_everywhere(tmp_path: Path) -> None:
    """`skylark spark archive`: in the lists of jobs, `top`, and the console with its table."""
    with EmbeddedServers() as fresh:
        fresh.create_topic("sales", 2)
        with Producer("shop", namesrv=fresh.namesrv) as producer:
            for number in range(100):
                producer.send(Message("sales", b'{"id": %d}' % number))
        place = f"delta:{tmp_path / 'lake'}"
        words = ["spark", "archive", "-n", fresh.namesrv, "-t", "sales", "--to", place, "--once"]
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "skylark", *words], check=True, cwd=tmp_path, timeout=600
        )
        [row] = json.loads(await asyncio.to_thread(printed, fresh, "spark", "list", "--json"))
        assert (row["state"], row["topics"], row["rows"], row["lag"]) == ("finished", ["sales"], 100, 0)
        top = await asyncio.to_thread(printed, fresh, "top", "--once", "--every", "0.1", "--json")
        assert row["job"] in [job["job"] for job in json.loads(top)["jobs"]]
        settings = ConsoleSettings(clusters={"local": fresh.namesrv}, lake={"sales": place})
        async with console_client(settings) as client:
            [job] = (await client.get("/local/pipelines.json")).json()["jobs"]
            assert (job["job"], job["state"], job["rows"], job["to"]) == (
                row["job"], "finished", 100, [place],
            )  # fmt: skip
            [table] = (await client.get("/local/tables.json")).json()["tables"]
            assert (table["table"], table["rows"], table["job"], table["lag"]) == (
                "sales", 100, row["job"], 0,
            )  # fmt: skip
