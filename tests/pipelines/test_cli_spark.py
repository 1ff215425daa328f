"""`skylark spark` as a person meets it: clear refusals, plans, a run, Ctrl-C, and five kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from skylark.cli.main import app
from tests.support.pipeline_cluster import PipelineCluster

COMMAND = [sys.executable, "-m", "skylark.cli.start", "spark"]
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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["archive", "-t", "a", "--to", "delta:x"], "give either --namesrv HOST:PORT or --store DIR"),
        (["archive", "-t", "a", "--to", "kafka:x", "-n", "h:1"], "write delta:DIR, parquet:DIR, topic:NAME"),
        (["archive", "-t", "a", "--to", "s3://b/x", "-n", "h:1"], "delta:DIR"),
        (["archive", "-t", "a", "--to", "x", "--store", "no-such-dir"], "no-such-dir is no directory"),
        (["etl", "-t", "a", "--to", "topic:no spaces", "-n", "h:1"], "illegal characters"),
        (
            ["etl", "-t", "a", "--to", "x", "-n", "h:1", "--option", "limit"],
            "--option limit is not NAME=VALUE",
        ),
        (["sql", "select 1"], "give --topic with --namesrv or --store, or --archive"),
        (["report", "weather", "-t", "a", "-n", "h:1"], "there is no report 'weather'"),
        (["replay", "-t", "a", "--to-topic", "b", "--store", "."], "give --namesrv or --to-namesrv"),
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
            "'avro' is none of debezium, canal",
        ),
        (["dlq", "resend", "g", "-n", "127.0.0.1:1", "--edit", "x"], "cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], sentence: str) -> None:
    assert sentence in refused(*arguments)


def test_no_java_is_said_plainly(shared_cluster: PipelineCluster, topic: str, tmp_path: Path) -> None:
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{tmp_path}", "--once"]
    assert "Spark needs Java 17 or newer" in refused(*arguments, env={"JAVA_HOME": "", "PATH": str(tmp_path)})
    assert "where there is no bin/java" in refused(*arguments, env={"JAVA_HOME": str(tmp_path)})


def test_remote_and_master_exclude_one_another(
    shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{tmp_path}", "--once"]
    assert "a Connect server has its own" in refused(*arguments, "--remote", "sc://h", "--master", "local")
    assert "only workers of a cluster" in refused(*arguments, "--pack")


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text("source: {topic: a}\nsteps:\n  - decod: {}\nsinks: [console]\n")
    assert f"{path}:3: there is no step 'decod'; did you mean decode?" in refused("run", str(path))


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


def start(*arguments: str, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "XDG_STATE_HOME": str(home)},
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=RUN_TIMEOUT_S)
    assert process.returncode == 0, err[-3000:]
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def rows(table: Path) -> list[tuple[int, int]]:
    found = DeltaTable(table).to_pyarrow_table(columns=["queueId", "queueOffset"])
    return sorted(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))


@pytest.mark.timeout(1200)
def test_a_run_stopped_by_ctrl_c_goes_on_where_it_was(
    shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    shared_cluster.send(topic, [b"x"] * 50, 0)
    arguments = ["archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{table}"]
    arguments += ["--group", f"G{topic}"]
    running = start(*arguments, "--trigger", "200ms", "--master", "local[2,4]", home=tmp_path)
    try:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        # In the table and written down by Spark: a batch that is only the first comes again, and is skipped.
        while not list(tmp_path.glob("skylark/spark/*/checkpoints/archive/commits/0")):
            assert running.poll() is None, running.communicate()[1][-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.kill(running.pid, signal.SIGINT)
        summary = finish(running)
    finally:
        kill(running)
    assert rows(table) == [(0, number) for number in range(50)]
    assert summary["status"] == "interrupted"
    assert summary["messages"] == 50
    shared_cluster.send(topic, [b"x"] * 25, 0)
    plan = CliRunner().invoke(
        app, ["spark", *arguments, "--dry-run", "--json"], env={"XDG_STATE_HOME": str(tmp_path)}
    )
    assert json.loads(plan.stdout)["messages"] == 25
    again = start(*arguments, "--once", "--master", "local[2,4]", home=tmp_path)
    try:
        summary = finish(again)
    finally:
        kill(again)
    assert (summary["status"], summary["messages"]) == ("end of data", 25)
    assert shared_cluster.wire.group_offset(f"G{topic}", shared_cluster.queue(topic, 0)) == 75
    assert rows(table) == [(0, number) for number in range(75)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_archive_over_connect(shared_cluster: PipelineCluster, topic: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    shared_cluster.send(topic, [b"x"] * 50, 1)
    process = start(
        *("archive", "-n", shared_cluster.namesrv, "-t", topic, "--to", f"delta:{table}"),
        *("--group", f"G{topic}", "--once", "--remote", "local[2]"),
        home=tmp_path,
    )
    try:
        summary = finish(process)
    finally:
        kill(process)
    assert (summary["batches"], summary["messages"]) == (1, 50)
    assert rows(table) == [(1, number) for number in range(50)]
    assert shared_cluster.wire.group_offset(f"G{topic}", shared_cluster.queue(topic, 1)) == 50


def kill(process: subprocess.Popen[str]) -> None:
    """The whole group, JVM and workers: it is a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_after_five_kills_every_message_is_in_the_archive_once(
    cluster: PipelineCluster, tmp_path: Path
) -> None:
    count, table, seed = 10_000, tmp_path / "table", random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)
    cluster.create_topic("K", 4)
    for queue_id in range(4):
        cluster.send("K", [b"%d" % number for number in range(count)], queue_id)
    arguments = [
        *("archive", "-n", cluster.namesrv, "-t", "K", "--to", f"delta:{table}", "--once"),
        *("--option", "maxRowsPerTrigger=2000", "--master", "local[2,4]"),
    ]
    kills = 0
    while kills < 5:
        process = start(*arguments, home=tmp_path)
        before = count_rows(table)
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while process.poll() is None and count_rows(table) <= before:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 2))
        assert process.poll() is None, "it ended before it could be killed: give it more to do"
        kill(process)
        kills += 1
    process = start(*arguments, home=tmp_path)
    try:
        finish(process)
    finally:
        kill(process)
    assert rows(table) == [(queue_id, number) for queue_id in range(4) for number in range(count)]


def count_rows(table: Path) -> int:
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    return sum(DeltaTable(table).get_add_actions().column("num_records").to_pylist())
