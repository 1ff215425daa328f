"""Topics kept in tables by `skylark lake`: every message once, whatever ends between any two steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from skylark import Admin
from skylark.cli.main import app
from skylark.pipelines.history import TopicHistory
from skylark.pipelines.jobs.endpoints import parse_output
from skylark.pipelines.lake.table_reader import read_file, schema_of
from skylark.pipelines.lake_service.batch_plan import PlanLog
from skylark.pipelines.lake_service.engines import LocalEngine, SparkEngine
from skylark.pipelines.lake_service.rules import LakeRules, LakeTable
from skylark.pipelines.lake_service.service import LakeService
from skylark.pipelines.lake_service.table_archiver import (
    TableArchiver,
    committed_offsets,
    open_table,
    private_files,
)
from skylark.pipelines.lake_service.verification import TableDifference, compare
from skylark.pipelines.options import SourceOptions, load
from skylark.pipelines.schema import arrow_schema
from tests.pipelines.test_iceberg_log import use_catalog
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = ("read the table", "plan", "decide", "write", "commit", "committed", "tell the broker", "tidy")


class Killed(BaseException):
    """The process ends here: nothing tidies up."""


class Lake:
    """A rule for some topics of a cluster and what is in its table."""

    def __init__(self, cluster: PipelineCluster, to: str, topics: str, **more: Any) -> None:
        self.cluster = cluster
        self.table = LakeTable(
            topics=tuple(topics.split(",")), output=parse_output(to, partitionBy="dt,topic"), **more
        )
        self.rules = LakeRules(namesrv=cluster.namesrv, group=f"lake-{topics[:4]}", tables=[self.table])

    def archiver(self, instance: str = "one", **more: Any) -> TableArchiver:
        return TableArchiver(self.rules, self.table, LocalEngine(), instance, **more)

    def difference(self) -> TableDifference:
        log = open_table(self.table)
        ends, _ = committed_offsets(log, self.rules.group)
        options = load(SourceOptions, self.cluster.options(self.table.source_topics))
        return compare(log, options, self.cluster.wire.min_offsets(list(ends)), ends)

    def check(self, rows: int) -> None:
        found = self.difference()
        assert (found.faults, found.in_table, found.compared) == ([], rows, rows)


@pytest.fixture(params=["delta", "parquet", pytest.param("iceberg", marks=pytest.mark.nightly)])
def to(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "iceberg":
        use_catalog(tmp_path, monkeypatch)
        return "iceberg:raw.messages"
    return f"{request.param}:{tmp_path / 'table'}"


def bodies(count: int, size: int = 0) -> list[bytes]:
    return [b"%d" % number + b"x" * size for number in range(count)]


def test_every_step_may_be_the_last(shared_cluster: PipelineCluster, to: str) -> None:
    topic = f"killed_{to.split(':', maxsplit=1)[0]}"
    shared_cluster.create_topic(topic, 2)
    lake, sent = Lake(shared_cluster, to, topic), 0

    def send(count: int) -> None:
        nonlocal sent
        shared_cluster.send(topic, bodies(count), sent % 2)
        sent += count

    for step in STEPS:
        send(7)

        def stop(name: str, last: str = step) -> None:
            if name == last:
                raise Killed

        with pytest.raises(Killed):
            LakeService([lake.archiver(on_step=stop)]).run_once()
        assert lake.archiver().turn().messages <= 7
    LakeService([lake.archiver()]).run_once()
    lake.check(sent)
    queue = shared_cluster.queue(topic)
    ends = shared_cluster.wire.max_offsets([queue])
    assert shared_cluster.wire.group_offset(lake.rules.group, queue) == ends[queue]
    kind, _, where = str(lake.table.output).partition(":")
    assert TopicHistory(kind, where).ends[queue] == ends[queue]


def test_the_comparison_finds_what_is_wrong(shared_cluster: PipelineCluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("compared", 1)
    shared_cluster.send("compared", bodies(5))
    lake = Lake(shared_cluster, f"delta:{tmp_path}/table", "compared")
    lake.archiver().turn()
    log, options = open_table(lake.table), load(SourceOptions, shared_cluster.options("compared"))
    queue = shared_cluster.queue("compared")
    shared_cluster.send("compared", bodies(1))
    missing = compare(log, options, {queue: 0}, {queue: 6})
    assert missing.faults == ["compared/broker-a/0 offset 5 is not in the table"]
    only = compare(log, options, {queue: 0}, {queue: 3})
    assert [fault.split(" ", 1)[1] for fault in only.faults] == [
        "offset 3 is in the table only",
        "offset 4 is in the table only",
    ]
    again = Lake(shared_cluster, f"delta:{tmp_path}/table", "comp.*")
    again.rules = LakeRules(namesrv=shared_cluster.namesrv, group="other", tables=[again.table])
    archiver = again.archiver()
    archiver._log()
    plan = archiver._decide(PlanLog(private_files(log, "other")), {}, 0)
    assert plan is not None
    archiver._carry_out(log, plan)
    assert (
        "offset 0 is in the table more than once" in compare(log, options, {queue: 0}, {queue: 6}).faults[0]
    )


def test_batches_are_limited_and_new_topics_are_found(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    now = [0.0]
    shared_cluster.create_topic("many_1", 1)
    shared_cluster.send("many_1", bodies(3000, 1000))
    lake = Lake(shared_cluster, f"delta:{tmp_path}/table", "many_.*", batch_bytes=1_000_000)
    archiver = lake.archiver(monotonic=lambda: now[0])
    first = archiver.turn()
    assert 0 < first.messages < 1200
    assert first.has_more
    shared_cluster.create_topic("many_2", 1)
    shared_cluster.send("many_2", bodies(10))
    now[0] += 60
    while archiver.turn().messages:
        pass
    lake.check(3010)
    assert (archiver.state.topics, archiver.state.waiting, archiver.state.lost) == (2, 0, 0)
    assert archiver.state.complete_at_ms > 0


def test_the_attribute_of_a_topic_decides_and_new_topics_are_found(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    audit, raw = f"audit-{fresh_name('t')}", f"raw-{fresh_name('t')}"
    own, rest, quiet, later = (fresh_name("chosen") for _ in range(4))

    def skylark(*words: str) -> Any:
        result = CliRunner().invoke(
            app, [*words, "--namesrv", shared_cluster.namesrv], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return result.output

    def send(*names: str) -> None:
        for name in names:
            shared_cluster.send(name, bodies(5))

    skylark("topic", "create", own, "--queues", "1", "--attribute", f"lake.table={audit}")
    skylark("topic", "create", quiet, "--queues", "1", "--attribute", "lake.table=none")
    skylark("topic", "create", rest, "--queues", "1")
    send(own, rest, quiet)
    rules = tmp_path / "lake.yml"
    rules.write_text(
        f"group: chosen\nnamesrv: {shared_cluster.namesrv}\ntables:\n"
        f"  - to: delta:{tmp_path}/{audit}\n"
        f"  - {{name: {raw}, topics: 'chosen.*', to: 'delta:{tmp_path}/second'}}\n"
    )

    def archived() -> list[tuple[str, str, int]]:
        skylark("lake", "run", str(rules), "--once")
        found = map(json.loads, skylark("lake", "status", str(rules), "--json").splitlines())
        return [(Path(each["table"]).name, each["topic"], each["committed"]) for each in found]

    assert archived() == [(audit, own, 5), ("second", rest, 5)]
    skylark("topic", "create", later, "--queues", "1", "--attribute", f"lake.table={audit}")
    skylark("topic", "update", quiet, "--attribute", f"lake.table={raw}")
    send(later)
    assert sorted(archived()) == sorted(
        [(audit, own, 5), (audit, later, 5), ("second", rest, 5), ("second", quiet, 5)]
    )
    to = ["--to", f"delta:{tmp_path}/{audit}", "--group", "chosen"]
    found = json.loads(skylark("lake", "verify", *to))
    assert (found["rows"], found["compared"], found["faults"]) == (10, 10, 0)


def test_the_broker_keeps_topics_that_the_lake_has_not_met(tmp_path: Path) -> None:
    """Their files expire while the lake does not run; a pattern of its rules chooses them."""
    settings: dict[str, str | int] = {
        "archiveGroup": "lake-kept",
        "fileReservedTime": 0,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "cleanResourceFirstDelay": 100,
        "cleanResourceInterval": 100,
        "mappedFileSizeCommitLog": 1 << 20,
    }
    with PipelineCluster(tmp_path / "cluster", settings) as cluster:
        cluster.create_topic("kept_1", 1)
        cluster.send("kept_1", bodies(3))
        lake = Lake(cluster, f"delta:{tmp_path}/table", "kept_.*")
        LakeService([lake.archiver()]).run_once()
        cluster.create_topic("kept_2", 1)
        cluster.send("kept_2", bodies(3000, 1000))
        cluster.servers.kill()
        cluster.servers.start()
        deadline = time.monotonic() + 60
        while "expired files wait for the archive" not in cluster.servers.complaints():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        queue = cluster.queue("kept_2")
        assert cluster.wire.min_offsets([queue]) == {queue: 0}
        LakeService([lake.archiver()]).run_once()
        while cluster.wire.min_offsets([queue])[queue] == 0:  # now they go
            assert time.monotonic() < deadline
            time.sleep(0.05)
        found = lake.difference()
        assert (found.faults, found.in_table) == ([], 3003)


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.nightly)])
def test_new_fields_become_columns_and_conflicts_are_kept_apart(
    shared_cluster: PipelineCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "iceberg":
        use_catalog(tmp_path, monkeypatch)
    topic = f"grown_{kind}"
    shared_cluster.create_topic(topic, 1)
    to = "iceberg:raw.grown" if kind == "iceberg" else f"delta:{tmp_path}/table"
    lake = Lake(shared_cluster, to, topic, decode="json")
    sent = [b'{"id": 1}', b'{"id": 2, "who": "a"}', b'{"id": "x", "more": 1.5}', b"no json", b'{"more": 2}']
    for number, each in enumerate(sent):
        shared_cluster.send(topic, [each])
        archiver = lake.archiver()
        assert archiver.turn().messages == 1, number
    log = open_table(lake.table)
    schema = arrow_schema(schema_of(log))
    assert schema.names[-3:] == ["value_id", "value_who", "value_more"] or kind == "delta"
    found = sorted(
        (
            row
            for file in log.files()
            for batch in read_file(log.store, file.path, file.partition, schema)
            for row in batch.to_pylist()
        ),
        key=lambda row: int(row["queueOffset"]),
    )
    values = [(row["value_id"], row["value_who"], row["value_more"], row["rejects"]) for row in found]
    assert values == [
        (1, None, None, None),
        (2, "a", None, None),
        (None, None, None, sent[2]),
        (None, None, None, sent[3]),
        (None, None, 2.0, None),
    ]
    lake.check(5)


def test_another_instance_takes_over_when_nothing_moves(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    now = [0.0]
    shared_cluster.create_topic("two", 1)
    lake = Lake(shared_cluster, f"delta:{tmp_path}/table", "two", delay_s=10.0)
    one = lake.archiver("one", monotonic=lambda: now[0])
    other = lake.archiver("other", monotonic=lambda: now[0])
    shared_cluster.send("two", bodies(5))
    assert one.turn().messages == 5
    shared_cluster.send("two", bodies(5))
    assert other.turn().is_standby
    now[0] += 29
    assert other.turn().is_standby
    assert one.turn().messages == 5  # it lives
    shared_cluster.send("two", bodies(5))
    now[0] += 29
    assert other.turn().is_standby
    now[0] += 31
    assert other.turn().messages == 5  # it did not go on
    shared_cluster.send("two", bodies(5))
    assert one.turn().is_standby
    assert other.turn().messages == 5
    lake.check(20)


def test_two_instances_that_act_at_once_write_every_message_once(
    shared_cluster: PipelineCluster, to: str
) -> None:
    """Each carries out the plan of the other, in every interleaving of writing and committing."""
    topic = f"race_{to.split(':', maxsplit=1)[0]}"
    shared_cluster.create_topic(topic, 1)
    lake = Lake(shared_cluster, to, topic)
    for step in ("decide", "write", "commit", "committed"):
        shared_cluster.send(topic, bodies(5))
        other = lake.archiver()  # of the same name: both believe that they are the one

        def meanwhile(name: str, at: str = step, other: TableArchiver = other) -> None:
            if name == at:
                other.turn()

        lake.archiver(on_step=meanwhile).turn()
    while lake.archiver().turn().messages:
        pass
    lake.check(20)


def test_a_table_that_fails_is_tried_again_and_the_others_go_on(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    now = [0.0]
    shared_cluster.create_topic("good", 1)
    shared_cluster.create_topic("bad", 1)
    shared_cluster.send("good", bodies(3))
    shared_cluster.send("bad", bodies(3))
    good, bad = (
        Lake(shared_cluster, f"delta:{tmp_path}/good", "good"),
        Lake(shared_cluster, f"delta:{tmp_path}/bad", "bad"),
    )
    (tmp_path / "bad").write_text("a file where the table shall be")
    archivers = [bad.archiver(), good.archiver()]
    service = LakeService(archivers, monotonic=lambda: now[0])
    for number in range(2):
        service._turn(number)
    assert (archivers[0].state.errors, archivers[1].state.errors) == (1, 0)
    good.check(3)
    (tmp_path / "bad").unlink()
    service._turn(0)
    assert archivers[0].state.error == ""
    bad.check(3)


def test_status_verify_and_one_run_by_the_command_line(
    shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    shared_cluster.create_topic("told", 2)
    shared_cluster.send("told", bodies(20))
    rules = tmp_path / "lake.yml"
    rules.write_text(
        f"namesrv: {shared_cluster.namesrv}\ngroup: lake-told\ntables:\n"
        f"  - topics: told\n    to: delta:{tmp_path}/lake\n"
    )

    def run(*words: str) -> Any:
        result = CliRunner().invoke(app, ["lake", *words, str(rules)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    while (before := run("status", "--json"))["delay_s"] == 0:  # in tenths of a second
        pass
    assert (before["committed"], before["end"], before["waiting"], before["error"]) == (0, 20, 20, "")
    assert run("run", "--once") == {"messages": 20, "tables": 1}
    shared_cluster.send("told", bodies(3))
    after = run("status", "--json")
    assert (after["committed"], after["end"], after["waiting"]) == (20, 23, 3)
    assert after["committed_at_ms"] > 0
    found = run("verify")
    assert (found["rows"], found["compared"], found["faults"]) == (20, 20, 0)
    table = CliRunner().invoke(app, ["lake", "status", str(rules)])
    assert "told" in table.output
    mistake = CliRunner().invoke(app, ["lake", "run", str(rules), "--topic", "x"])
    assert "use either a rule file" in mistake.output


@pytest.mark.nightly
def test_spark_writes_what_the_service_plans(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    """By tasks of Spark, by the process itself, and again by Spark: one table."""
    shared_cluster.create_topic("tasked", 4)
    lake, sent = Lake(shared_cluster, f"delta:{tmp_path}/table", "tasked"), 0
    for engine in (SparkEngine(spark), LocalEngine(), SparkEngine(spark)):
        for queue_id in range(4):
            shared_cluster.send("tasked", bodies(300), queue_id)
            sent += 300
        archiver = TableArchiver(lake.rules, lake.table, engine, "one")
        while archiver.turn().messages:
            pass
    lake.check(sent)


def serving(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "skylark", "lake", "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def stopped() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        with_group = os.getpgid(process.pid) if process.poll() is None else None
        if with_group is not None:
            os.killpg(with_group, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.nightly
def test_the_service_and_its_processes_may_be_killed(
    shared_cluster: PipelineCluster, tmp_path: Path, stopped: list[subprocess.Popen[str]]
) -> None:
    """Workers are killed by the test, then the whole service; another instance goes on."""
    shared_cluster.create_topic("served", 2)
    lake = Lake(shared_cluster, f"delta:{tmp_path}/table", "served")
    words = ["-n", shared_cluster.namesrv, "-t", "served", "--to", f"delta:{tmp_path}/table"]
    words += ["--group", lake.rules.group, "--delay", "200ms", "--metrics-port", "0"]
    service, sent = serving([*words, "--instance", "one"]), 0
    stopped.append(service)
    assert service.stdout is not None
    assert "lake of 1 tables" in service.stdout.readline()

    def wait_for(rows: int) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            ends, _ = committed_offsets(open_table(lake.table), lake.rules.group) if exists() else ({}, 0)
            if sum(ends.values()) == rows:
                return
            time.sleep(0.1)
        raise AssertionError(f"{rows} messages are not archived")

    def exists() -> bool:
        return (tmp_path / "table" / "_delta_log").is_dir()

    for _ in range(4):
        shared_cluster.send("served", bodies(500), sent % 2)
        sent += 500
        wait_for(sent)
        children = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    os.killpg(service.pid, signal.SIGKILL)
    shared_cluster.send("served", bodies(500))
    sent += 500
    other = serving([*words, "--instance", "two"])
    stopped.append(other)
    wait_for(sent)
    lake.check(sent)
    other.send_signal(signal.SIGTERM)
    assert other.wait(60) == 0
    with Admin(namesrv=shared_cluster.namesrv) as admin:
        jobs = {job.name: job for job in admin.pipelines.jobs()}
    killed, last = (jobs[f"lake-{lake.rules.group}-{instance}"] for instance in ("one", "two"))
    assert (killed.kind, killed.state) == ("lake", "running")  # nothing tidied up
    assert (last.state, last.outputs, last.group) == (
        "stopped",
        (f"delta:{tmp_path}/table",),
        lake.rules.group,
    )
    assert (last.rows, last.last[-1].lag) == (500, 0)
