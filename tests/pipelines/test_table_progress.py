"""A table records how far its jobs are: a state that does not match is refused, a lost one is replaced."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from skylark.errors import SettingsError
from skylark.pipelines.jobs import agg, archive, cdc, dlq, etl
from skylark.pipelines.jobs.endpoints import Input, Output, from_table, parse_output, state_directory
from skylark.pipelines.jobs.session import register
from skylark.pipelines.lake.progress import (
    CheckpointState,
    CommitProgress,
    batch_progress,
    check_start,
    check_state,
    end_offsets,
    read_checkpoint,
)
from skylark.pipelines.lake.table_commit import open_log
from skylark.pipelines.lake.table_log import BatchName, TableLog
from skylark.protocol.bodies import MessageQueue
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOTH = pytest.mark.parametrize("kind", ["delta", "parquet"])
CHECKPOINT = Path("/states/one/checkpoints/archive")
QUEUE = MessageQueue("orders", "a", 0)


def checkpoint(folder: Path, *, committed: int | None, planned: int | None) -> Path:
    """A checkpoint as Spark writes it; batch n ends at offset 10 n + 10."""
    for name, last in (("commits", committed), ("offsets", planned)):
        (folder / name).mkdir(parents=True)
        for number in range(-1 if last is None else last, -1, -1):
            offsets = json.dumps({"orders": {"a": {"0": 10 * number + 10}}})
            (folder / name / str(number)).write_text(f"v1\n{{}}\n{offsets}")
            (folder / name / f".{number}.crc").touch()
    (folder / "metadata").write_text('{"id":"the-query"}')
    return folder


def table(folder: Path, kind: str) -> TableLog:
    log = open_log(kind, folder)
    log.prepare(pa.schema([pa.field("body", pa.binary())]), [])
    return log


# --- What is recorded ---


@BOTH
def test_every_batch_records_its_offsets_also_an_empty_one(tmp_path: Path, kind: str) -> None:
    folder = checkpoint(tmp_path / "s" / "checkpoints" / "archive", committed=0, planned=1)
    log = table(tmp_path / "table", kind)
    assert log.last_batch(BatchName("q", 0).application) is None
    assert log.progress() == []
    for number in range(2):
        batch = BatchName("q", number)
        assert log.add(batch, [], batch_progress(folder, batch.application, number, "archive"))
        assert not log.add(batch, [], batch_progress(folder, batch.application, number, "archive"))
    other = CommitProgress("other", 7, "etl", {"pay": {"a": {"0": 3}}}, "/elsewhere")
    log.add(BatchName("other", 7), [], other)
    log.add(BatchName("unnamed", 0), [])
    assert log.last_batch(BatchName("q", 0).application) == 1
    found = {entry.application: entry for entry in log.progress()}
    assert found["other"] == other
    assert found[BatchName("q", 0).application] == CommitProgress(
        BatchName("q", 0).application, 1, "archive", {"orders": {"a": {"0": 20}}}, str(tmp_path / "s")
    )
    assert end_offsets(found.values()) == {QUEUE: 20, MessageQueue("pay", "a", 0): 3}


def test_a_missing_table_has_no_progress(tmp_path: Path) -> None:
    for kind in ("delta", "parquet"):
        log = open_log(kind, tmp_path / "nothing")
        assert (log.last_batch("any"), log.progress()) == (None, [])
    assert not (tmp_path / "nothing").exists()


def test_a_checkpoint_is_read_as_spark_writes_it(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) == CheckpointState()
    folder = checkpoint(tmp_path / "c", committed=10, planned=11)
    assert read_checkpoint(folder) == CheckpointState("the-query", 10, 11)
    assert batch_progress(folder, "app", 99, "archive") is None


# --- What is refused ---


@pytest.mark.parametrize(
    ("committed", "planned", "last_batch", "is_recorded"),
    [(None, 0, None, True), (None, 0, 0, True), (4, 4, 4, True), (4, 5, 5, True), (4, 5, 2, False)],
)
def test_a_state_that_matches_is_accepted(
    committed: int | None, planned: int, last_batch: int | None, is_recorded: bool
) -> None:
    state = CheckpointState("q", committed, planned)
    check_state("delta:/lake", CHECKPOINT, state, last_batch, is_recorded=is_recorded)


@pytest.mark.parametrize(
    ("committed", "planned", "last_batch", "sentence"),
    [
        (4, 5, None, "/states/one has written batches up to 4, but delta:/lake holds none of them; restore"),
        (4, 5, 3, "/states/one has written batches up to 4, but delta:/lake holds only those up to 3; res"),
        (4, 5, 6, "delta:/lake holds batch 6 of /states/one, which ends at batch 5; restore the newer"),
    ],
)
def test_a_state_that_does_not_match_is_refused(
    committed: int, planned: int, last_batch: int | None, sentence: str
) -> None:
    state = CheckpointState("q", committed, planned)
    with pytest.raises(SettingsError) as refused:
        check_state("delta:/lake", CHECKPOINT, state, last_batch, is_recorded=True)
    assert sentence in refused.value.reason


def test_a_new_state_may_not_write_what_the_table_holds() -> None:
    entry = CommitProgress("app", 3, "archive", {"orders": {"a": {"0": 40}}}, "/states/one")
    for start in (40, 41):
        check_start("delta:/lake", [entry], {QUEUE: start})
    check_start("delta:/lake", [entry], {MessageQueue("pay", "a", 0): 0})
    with pytest.raises(SettingsError) as refused:
        check_start("delta:/lake", [entry], {QUEUE: 39})
    assert refused.value.reason == (
        "delta:/lake already holds orders/a/0 up to offset 40, written with --state /states/one; "
        "use that directory, or --from table if it is lost"
    )


# --- Where the state is ---


def test_the_state_lies_in_the_table_unless_an_older_one_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    output = parse_output(f"delta:{tmp_path / 'lake'}")
    identity = ("archive", "orders", "127.0.0.1:9876", output)
    inside = state_directory(None, *identity, table=output)
    assert inside.parent == tmp_path / "lake" / "_skylark" / "state"
    elsewhere = state_directory(None, *identity)
    assert elsewhere.is_relative_to(tmp_path / "home")
    assert state_directory(None, *identity, table=parse_output("topic:orders")) == elsewhere
    elsewhere.mkdir(parents=True)
    assert state_directory(None, *identity, table=output) == elsewhere
    assert state_directory(tmp_path / "mine", *identity, table=output) == tmp_path / "mine"


@BOTH
def test_the_sweep_leaves_a_state_in_the_table_alone(tmp_path: Path, kind: str) -> None:
    log = table(tmp_path, kind)
    kept = tmp_path / "_skylark" / "state" / "dlq" / "plans" / "one.parquet"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert log.sweep(0) == []
    assert kept.exists()


def test_a_table_without_progress_is_no_start(tmp_path: Path) -> None:
    source = Input(namesrv="h:1", topic="orders", start="table")
    for output in (parse_output(f"delta:{tmp_path}"), parse_output("topic:other")):
        with pytest.raises(SettingsError, match="records no offsets of this job"):
            from_table(source, output, "archive")


# --- Dead letters ---


def test_a_resend_refuses_an_audit_table_that_is_not_its_own(tmp_path: Path) -> None:
    state, audit = tmp_path / "state", parse_output(f"delta:{tmp_path / 'audit'}")
    for plan, sent in (("nothing", ""), ("some", "5")):
        (state / "plans" / plan).mkdir(parents=True)
        (state / "plans" / plan / "done").write_text(sent)
    with pytest.raises(SettingsError, match=r"audit does not hold the resend some, which .*/state has comp"):
        dlq._check_audit(state, audit)
    log = table(Path(audit.where), "delta")
    log.add(BatchName("some", 0), [], CommitProgress("x", 0, "dlq", {}, ""))
    dlq._check_audit(state, audit)


def test_a_resend_refuses_an_audit_table_with_an_unfinished_resend_of_another_state(tmp_path: Path) -> None:
    audit = parse_output(f"delta:{tmp_path / 'audit'}")
    mark = Path(audit.where) / dlq.OPEN_PLANS / "plan"
    mark.parent.mkdir(parents=True)
    mark.write_text(str(tmp_path / "one"))
    (tmp_path / "one" / "plans" / "plan").mkdir(parents=True)
    with pytest.raises(SettingsError, match=f"unfinished resend of --state {tmp_path / 'one'}; use that dir"):
        dlq._check_audit(tmp_path / "two", audit)
    dlq._check_audit(tmp_path / "one", audit)
    assert mark.exists()
    shutil.rmtree(tmp_path / "one" / "plans" / "plan")  # dropped by hand
    dlq._check_audit(tmp_path / "one", audit)
    assert not mark.exists()


# --- With Spark ---


@pytest.fixture
def topic(spark: SparkSession, shared_cluster: PipelineCluster) -> str:
    register(spark)
    name = f"P{uuid.uuid4().hex[:10]}"
    shared_cluster.create_topic(name, 2)
    return name


def offsets_in(output: Output) -> list[tuple[int, int]]:
    if output.kind == "delta":
        found = DeltaTable(output.where).to_pyarrow_table()
    else:
        found = ds.dataset(output.where, format="parquet", partitioning="hive").to_table()
    return sorted(zip(found["queueId"].to_pylist(), found["queueOffset"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", ["delta", pytest.param("parquet", marks=pytest.mark.nightly)])
@pytest.mark.timeout(600)
def test_an_archive_is_not_written_twice_with_another_state(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    output = parse_output(f"{kind}:{tmp_path / 'lake'}")

    def run(state: str, source: Input = source) -> Any:
        return archive.archive(spark, source, output, state=tmp_path / state, once=True)

    shared_cluster.send(topic, [b"x"] * 30, 0)
    assert run("one").counts.written == 30
    shared_cluster.send(topic, [b"x"] * 12, 1)
    before = offsets_in(output)
    with pytest.raises(SettingsError, match=f"already holds {topic}/broker-a/0 up to offset 30"):
        run("two")
    assert not (tmp_path / "two").exists()
    assert offsets_in(output) == before
    assert run("two", replace(source, start="table")).counts.written == 12
    shared_cluster.send(topic, [b"x"] * 5, 0)
    assert run("two").counts.written == 5
    assert offsets_in(output) == [*((0, number) for number in range(35)), *((1, n) for n in range(12))]
    shutil.move(output.where, tmp_path / "moved")
    with pytest.raises(SettingsError, match=r"has written batches up to \d, but .* holds none of them"):
        run("two")
    assert not Path(output.where).exists()


Job = Callable[["SparkSession", Input, Output, Path], Any]


def run_etl(spark: SparkSession, source: Input, output: Output, state: Path) -> Any:
    return etl.etl(spark, source, output, state=state, schema="id bigint, name string", once=True)


def run_agg(spark: SparkSession, source: Input, output: Output, state: Path) -> Any:
    return agg.agg(spark, source, output, state=state, window=agg.Window(), once=True)


def run_cdc(spark: SparkSession, source: Input, output: Output, state: Path) -> Any:
    changes = cdc.ChangeEvents(keys=["id"], schema="id bigint, name string")
    return cdc.cdc(spark, source, output, state=state, changes=changes, once=True)


@pytest.mark.parametrize(
    "job",
    [
        run_etl,
        pytest.param(run_agg, marks=pytest.mark.nightly),
        pytest.param(run_cdc, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(600)
def test_no_job_writes_again_with_another_state(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path, job: Job
) -> None:
    event = {"op": "c", "after": {"id": 1, "name": "one"}, "id": 1, "name": "one"}
    shared_cluster.send(topic, [msgspec.json.encode(event)] * 4, 0)
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    output = parse_output(f"delta:{tmp_path / 'lake'}")
    job(spark, source, output, tmp_path / "one")
    version = DeltaTable(output.where).version()
    with pytest.raises(SettingsError, match=f"already holds {topic}/broker-a/0 up to offset 4"):
        job(spark, source, output, tmp_path / "two")
    assert DeltaTable(output.where).version() == version
    if job is run_agg:
        with pytest.raises(SettingsError, match="open windows are in the state"):
            job(spark, replace(source, start="table"), output, tmp_path / "three")
    else:
        job(spark, replace(source, start="table"), output, tmp_path / "three")
    job(spark, source, output, tmp_path / "one")
    shutil.move(output.where, tmp_path / "moved")
    with pytest.raises(SettingsError, match="holds none of them; restore the table, or delete that direc"):
        job(spark, source, output, tmp_path / "one")
    assert not Path(output.where).exists()
