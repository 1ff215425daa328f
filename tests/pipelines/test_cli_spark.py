"""`skylark spark` as a person meets it: clear refusals, plans, a run, Ctrl-C, and five kills."""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import sys
import time
import uuid
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.logger import PySparkLogger
from typer.testing import CliRunner

from skylark import Admin
from skylark.cli import spark_jobs
from skylark.cli.main import app
from skylark.pipelines.jobs import session
from skylark.pipelines.lake.delta_log import DeltaLog
from skylark.pipelines.lake.parquet_files import FileLayout, TableFile, table_schema
from skylark.pipelines.lake.table_log import BatchName
from skylark.pipelines.schema import arrow_schema, columns_schema
from skylark.processes import GroupProcess
from tests.support import spark_program
from tests.support.pipeline_cluster import PipelineCluster
from tests.support.spark_cluster import ConnectServer

COMMAND = [sys.executable, "-m", "skylark", "spark"]
RUN_TIMEOUT_S = 400


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """The sentence with which a command refuses to start."""
    result = CliRunner().invoke(app, ["spark", *arguments], env=env)
    assert result.exit_code == 2, result.output
    return result.stderr.strip()


@pytest.fixture
def topic(shared_cluster: PipelineCluster) -> str:
    name = f"C{uuid.uuid4().hex[:10]}"
    shared_cluster.create_topic(name, 2)
    return name


def test_an_unknown_topic_is_refused_before_spark_starts(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    sentence = refused(
        "archive", "-n", shared_cluster.namesrv, "-t", "nowhere", "--to", f"delta:{tmp_path}", "--once"
    )
    assert "nowhere" in sentence
    assert len(sentence.splitlines()) == 1


def test_an_archive_has_one_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[dict[str, str]] = []
    used: list[dict[str, str]] = []

    def options(*arguments: Any) -> dict[str, str]:
        computed.append({"runId": uuid.uuid4().hex})
        return computed[-1]

    def archive(*_: Any, sink: dict[str, str], **__: Any) -> None:
        used.append(sink)

    monkeypatch.setattr("skylark.pipelines.jobs.archive.options", options)
    monkeypatch.setattr("skylark.pipelines.jobs.archive.archive", archive)
    monkeypatch.setattr(spark_jobs.Pipeline, "launch", lambda self, place, job: job(None, None))
    arguments = ["archive", "-t", "a", "--to", f"delta:{tmp_path / 'lake'}", "-n", "h:1", "--once"]
    result = CliRunner().invoke(app, ["spark", *arguments])
    assert result.exit_code == 0, result.output
    assert used == computed
    assert len(computed) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["archive", "-t", "a", "--to", "delta:x"], "use either --namesrv HOST:PORT or --store DIR"),
        (["archive", "-t", "a", "--to", "kafka:x", "-n", "h:1"], "use delta:DIR, parquet:DIR, topic:NAME"),
        (["archive", "-t", "a", "--to", "ftp://b/x", "-n", "h:1"], "unknown store ftp://; use a directory"),
        (["archive", "-t", "a", "--to", "x", "--store", "no-such-dir"], "no such directory: no-such-dir"),
        (["etl", "-t", "a", "--to", "topic:no spaces", "-n", "h:1"], "illegal characters"),
        (
            ["etl", "-t", "a", "--to", "x", "-n", "h:1", "--option", "limit"],
            "invalid --option 'limit'; write KEY=VALUE",
        ),
        (["sql", "select 1", "--archive", "delta:lake"], "invalid --archive 'delta:lake'; write KEY=VALUE"),
        (["sql", "select 1"], "pass --topic with --namesrv or --store, or --archive"),
        (
            ["report", "-t", "a", "-n", "h:1", "--html", "no-such-dir/x.html"],
            "pass a file in an existing directory",
        ),
        (["report", "weather", "-t", "a", "-n", "h:1"], "unknown report 'weather'"),
        (["replay", "-t", "a", "--to-topic", "b", "--store", "."], "pass --namesrv or --to-namesrv"),
        (
            ["replay", "-t", "a", "--to-topic", "b", "-n", "h:1", "--from", "-1h", "--to", "-2h"],
            "is not before",
        ),
        (
            [
                "cdc",
                "-t",
                "a",
                "--to",
                "x",
                "--keys",
                "id",
                "--schema",
                "id int",
                "--format",
                "avro",
                "-n",
                "h:1",
            ],
            "invalid format 'avro'; choose debezium or canal",
        ),
        (
            ["dlq", "resend", "g", "-n", "127.0.0.1:1", "--edit", "x", "--audit", "lake"],
            "cannot connect to name server 127.0.0.1:1",
        ),
        (["dlq", "export", "g", "-n", "127.0.0.1:1", "--to", "nowhere:x"], "use delta:DIR"),
        (["archive", "-t", "a", "--to", "x", "-n", "h"], "invalid address 'h'; use host:port"),
        (
            ["archive", "-t", "a", "--to", "x", "-n", "h:1", "--trigger", "often"],
            "--trigger: invalid duration 'often'",
        ),
        (["archive", "-t", "a", "--to", "no-such-table", "-n", "h:1", "--sweep"], "no Delta table in"),
        (["forget", "-t", "a", "--key", "k", "--archive", "delta:no-such-table"], "no table in delta:/"),
        (["archive", "-t", "a", "--to", "topic:b", "-n", "h:1", "--sweep"], "use delta:DIR or parquet:DIR"),
        (["archive", "-t", "a", "--to", "x", "-n", "h:1", "--dedup", "0"], "use a whole number above 0"),
        (
            ["archive", "-t", "a", "--to", "x", "-n", "h:1", "--partition-by", "colour"],
            "unknown column colour",
        ),
        (["archive", "-t", "a", "--to", "x", "-n", "h:1", "--metrics-port", "9100"], "pass --group"),
        (["archive", "-t", "a", "--to", "x", "-n", "h:1", "--from", "group"], "pass --group, too"),
        (["sql", "select 1", "-t", "a", "-n", "h:1", "--from", "group:latest"], "pass --group, too"),
        (
            ["etl", "-t", "a", "--to", "x", "-n", "h:1", "--decode", "xml"],
            "invalid --decode 'xml'; choose json, text, csv, avro",
        ),
        (
            ["replay", "-t", "a", "--to-topic", "b", "-n", "h:1", "--rate", "fast"],
            "--rate: invalid rate 'fast'",
        ),
        (
            ["replay", "-t", "a", "--to-topic", "b", "-n", "h:1", "--from", "-1h", "--to", "soon"],
            "setting to: invalid time 'soon'",
        ),
        (
            ["cdc", "-t", "a", "--to", "topic:b", "--keys", "id", "--schema", "id int", "-n", "h:1"],
            "invalid output topic:b; use delta:DIR",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in refused(*arguments)


def test_name_servers_of_the_environment_count_unless_store_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert "cannot connect to name server 127.0.0.1:1" in refused(
        "archive", "-t", "a", "--to", "x", "--dry-run"
    )
    from_files = refused("archive", "-t", "a", "--to", "x", "--store", str(tmp_path), "--dry-run")
    assert "not a store" in from_files


def test_no_java_is_said_plainly(shared_cluster: PipelineCluster, topic: str, tmp_path: Path) -> None:
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{tmp_path}", "--once"]
    assert "Spark needs Java 17 or newer" in refused(*arguments, env={"JAVA_HOME": "", "PATH": str(tmp_path)})
    assert "has no bin/java" in refused(*arguments, env={"JAVA_HOME": str(tmp_path)})


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_python_without_our_package_is_named(
    shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    spark_program.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], tmp_path / "venv.log", 200)
    python = str(bare / "bin" / "python")
    command = [*COMMAND, "archive", "-n", shared_cluster.namesrv, "-t", topic, "--once"]
    command += ["--to", f"delta:{tmp_path / 'table'}", "--master", "local[1]"]
    with spark_program.started(command, tmp_path / "archive.log", {"PYSPARK_PYTHON": python}) as process:
        assert process.wait(RUN_TIMEOUT_S) == 2, process.log_text()
    assert f"{python}, Python {platform.python_version()}: No module named" in process.log_text()


@pytest.mark.parametrize("name", spark_jobs.LOGGERS_OF_ERRORS)
def test_what_is_raised_is_not_logged_as_well(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    logger = PySparkLogger.getLogger(name)
    level = logger.level
    try:
        spark_jobs.quieten()
        logger.exception("no such column", errorClass="UNRESOLVED_COLUMN")
    finally:
        logger.setLevel(level)
    assert capfd.readouterr().err == ""


def test_remote_and_master_exclude_one_another(
    shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{tmp_path}", "--once"]
    assert "a Connect server has its own" in refused(*arguments, "--remote", "sc://h", "--master", "local")
    assert "needs a cluster" in refused(*arguments, "--pack")
    assert "invalid master 'foo'; use local[N], spark://HOST:7077" in refused(*arguments, "--master", "foo")


@pytest.mark.parametrize(("option", "kind"), [("--remote", "sc"), ("--master", "spark")])
def test_a_server_that_is_not_there_is_not_waited_for(
    shared_cluster: PipelineCluster, topic: str, monkeypatch: pytest.MonkeyPatch, option: str, kind: str
) -> None:
    monkeypatch.setattr(session, "getproxies", dict)
    arguments = ["sql", "select 1", "-n", shared_cluster.namesrv, "-t", topic]
    sentence = refused(*arguments, option, f"{kind}://127.0.0.1:1")
    assert "cannot connect to 127.0.0.1:1: " in sentence


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text("source: {topic: a}\nsteps:\n  - decod: {}\nsinks: [console]\n")
    assert f"{path}:3: unknown step 'decod'; did you mean decode?" in refused("run", str(path))


def test_a_dry_run_shows_ranges_and_reads_nothing(
    shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    shared_cluster.send(topic, [b"x"] * 30, 0)
    shared_cluster.send(topic, [b"x"] * 12, 1)
    arguments = [
        "archive",
        "-n",
        shared_cluster.namesrv,
        "-t",
        topic,
        "--to",
        f"delta:{tmp_path / 't'}",
        "--dry-run",
    ]
    result = CliRunner().invoke(app, ["spark", *arguments, "--json", "--state", str(tmp_path / "state")])
    plan = json.loads(result.stdout)
    assert plan["messages"] == 42
    assert sorted((row["queue"], row["from"], row["to"]) for row in plan["ranges"]) == [
        (0, 0, 30),
        (1, 0, 12),
    ]
    assert plan["bytes"] > 42 * 90
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_over_an_archive_shows_its_files(tmp_path: Path) -> None:
    """Only those of the days and topics that are asked for."""
    layout = FileLayout(columns=("body",), partition_by=("dt", "topic"))
    log = DeltaLog(tmp_path / "lake")
    log.prepare(table_schema(layout, arrow_schema(columns_schema(["topic", "body"]))), layout.partition_by)
    days = ("2026-11-01", "2026-11-02", "2026-11-03")
    log.add(
        BatchName("q", 0),
        [
            TableFile(f"{day}-{topic}.parquet", 10, 1000, {"dt": day, "topic": topic}, {}, {})
            for day in days
            for topic in ("orders", "calls")
        ],
    )
    where = f"delta:{tmp_path / 'lake'}"
    arguments = [
        "replay",
        "--archive",
        where,
        "-n",
        "h:1",
        "-t",
        "orders",
        "--to-topic",
        "again",
        "--dry-run",
    ]
    arguments += ["--from", "2026-11-02 08:00", "--json"]
    result = CliRunner().invoke(app, ["spark", *arguments])
    assert json.loads(result.stdout) == {
        "partitions": [
            {"partition": f"dt={day}, topic=orders", "files": 1, "messages": 10, "bytes": 1000}
            for day in days[1:]
        ],
        "messages": 20,
        "bytes": 2000,
    }
    by_pattern = [argument if argument != "orders" else "ord.*, nothing" for argument in arguments]
    assert CliRunner().invoke(app, ["spark", *by_pattern]).stdout == result.stdout
    result = CliRunner().invoke(app, ["spark", "sql", "select 1", "--archive", f"raw={where}", "--dry-run"])
    assert "60 messages, 5.9 KiB in 6 files; nothing was read" in result.stdout
    assert "no Delta table in" in refused("sql", "select 1", "--archive", f"raw={tmp_path}")


def start(*arguments: str, home: Path) -> AbstractContextManager[GroupProcess]:
    log = home / f"{uuid.uuid4().hex}.log"
    return spark_program.started([*COMMAND, *arguments], log, {"XDG_STATE_HOME": str(home)})


def finish(process: GroupProcess) -> dict[str, Any]:
    return spark_program.last_object(spark_program.finished(process, RUN_TIMEOUT_S))


def rows(table: Path) -> list[tuple[int, int]]:
    found = DeltaTable(table).to_pyarrow_table(columns=["queueId", "queueOffset"])
    return sorted(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_run_stopped_by_ctrl_c_goes_on_where_it_was(
    shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    shared_cluster.send(topic, [b"x"] * 50, 0)
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{table}"]
    arguments += ["--group", f"G{topic}"]
    with start(*arguments, "--trigger", "200ms", "--master", "local[2,4]", home=tmp_path) as running:
        # In the table and written down by Spark: a batch that is only the first comes again, and is skipped.
        commit = "table/_skylark/state/*/checkpoints/archive/commits/0"
        running.wait_until(lambda: bool(list(tmp_path.glob(commit))), "first batch", RUN_TIMEOUT_S)
        os.kill(running.pid, signal.SIGINT)
        summary = finish(running)
    assert rows(table) == [(0, number) for number in range(50)]
    assert summary["status"] == "interrupted"
    assert summary["counts"]["read"] == 50
    shared_cluster.send(topic, [b"x"] * 25, 0)
    plan = CliRunner().invoke(
        app, ["spark", *arguments, "--dry-run", "--json"], env={"XDG_STATE_HOME": str(tmp_path)}
    )
    assert json.loads(plan.stdout)["messages"] == 25
    with start(*arguments, "--once", "--master", "local[2,4]", home=tmp_path) as again:
        summary = finish(again)
    assert (summary["status"], summary["counts"]["read"]) == ("end of data", 25)
    assert shared_cluster.wire.group_offset(f"G{topic}", shared_cluster.queue(topic, 0)) == 75
    assert rows(table) == [(0, number) for number in range(75)]
    with Admin(namesrv=shared_cluster.namesrv) as admin:
        runs = [run for run in admin.pipelines.runs() if run.topics == (topic,)]
    assert [(run.state, run.rows, run.kind) for run in runs] == [
        ("finished", 25, "archive"), ("stopped", 50, "archive"),
    ]  # fmt: skip
    assert runs[0].name == runs[1].name
    assert runs[0].counts["written"] == 25
    assert runs[1].last[0].rows == 50


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_an_archive_over_connect(shared_cluster: PipelineCluster, topic: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    shared_cluster.send(topic, [b"x"] * 50, 1)
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{table}"]
    arguments += ["--group", f"G{topic}", "--once"]
    with (
        ConnectServer(tmp_path / "spark") as server,
        start(*arguments, "--remote", server.remote, home=tmp_path) as process,
    ):
        summary = finish(process)
    assert (summary["batches"], summary["counts"]["read"]) == (1, 50)
    assert rows(table) == [(1, number) for number in range(50)]
    assert shared_cluster.wire.group_offset(f"G{topic}", shared_cluster.queue(topic, 1)) == 50


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [1, 5])
@pytest.mark.timeout(1200)
def test_after_kills_every_message_is_in_the_archive_once(
    cluster: PipelineCluster, tmp_path: Path, kills: int
) -> None:
    count, table, seed = 5_000 * kills, tmp_path / "table", random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    cluster.create_topic("K", 4)
    for queue_id in range(4):
        cluster.send("K", [b"%d" % number for number in range(count)], queue_id)
    arguments = [
        *("archive", "-n", cluster.namesrv, "-t", "K", "--to", f"delta:{table}", "--once"),
        *("--option", "maxRowsPerTrigger=1500", "--master", "local[2,4]"),
    ]
    for _ in range(kills):
        before = count_rows(table)
        with start(*arguments, home=tmp_path) as process:
            process.wait_until(partial(has_more_rows, table, before), "a batch", RUN_TIMEOUT_S)
            time.sleep(chance.uniform(0, 2))
            assert process.running, "it ended before it could be killed: give it more to do"
    with start(*arguments, home=tmp_path) as process:
        finish(process)
    assert rows(table) == [(queue_id, number) for queue_id in range(4) for number in range(count)]


def has_more_rows(table: Path, before: int) -> bool:
    return count_rows(table) > before


def count_rows(table: Path) -> int:
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    return sum(DeltaTable(table).get_add_actions().column("num_records").to_pylist())
