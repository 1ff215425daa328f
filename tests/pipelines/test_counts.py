"""Every job tells what became of the messages: read = written + filtered + rejected + duplicates."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from skylark.errors import SettingsError
from skylark.pipelines.jobs import agg, archive, cdc, dlq, etl, replay, run
from skylark.pipelines.jobs.counts import JobCounts, Loss, followed
from skylark.pipelines.jobs.endpoints import Input, Output, parse_output
from skylark.pipelines.jobs.pipeline_file import load_pipeline
from skylark.pipelines.jobs.queries import JobSummary
from skylark.pipelines.jobs.session import register
from skylark.pipelines.lake.table_commit import open_log
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOTH = pytest.mark.parametrize("kind", ["delta", pytest.param("parquet", marks=pytest.mark.nightly)])
ORDERS = "id bigint, amount double, items array<string>"


@given(
    st.integers(0, 1000),
    st.lists(st.tuples(st.sampled_from(["filtered", "rejected", "duplicates"]), st.integers(0, 1000))),
)
def test_the_sum_holds_whatever_the_steps_do(read: int, steps: list[tuple[Loss, int]]) -> None:
    found = followed(read, steps)
    assert found.is_balanced
    assert found.written == (steps[-1][1] if steps else read)


def test_the_table_has_a_row_for_each_output() -> None:
    summary = JobSummary(pipeline="etl", counts=JobCounts(read=5, written=3, rejected=2))
    summary.details = {"to": "delta:/lake"}
    columns = ["to", "read", "written", "filtered", "rejected", "duplicates"]
    assert summary.table() == (columns, [["delta:/lake", 5, 3, 0, 2, 0]])
    summary.outputs = {
        "console": JobCounts(read=5, written=5),
        "topic:t": JobCounts(read=1, added=1, written=2),
    }
    columns.insert(2, "added")
    assert summary.table() == (columns, [["console", 5, 0, 5, 0, 0, 0], ["topic:t", 1, 1, 2, 0, 0, 0]])


# --- With Spark ---


def told(summary: JobSummary) -> dict[str, int]:
    """The counts that are not 0."""
    for counts in [summary.counts, *(summary.outputs or {}).values()]:
        assert counts.is_balanced
    found = {name: getattr(summary.counts, name) for name in JobCounts.__struct_fields__}
    return {name: number for name, number in found.items() if number}


@pytest.fixture
def topic(spark: SparkSession, shared_cluster: PipelineCluster) -> str:
    register(spark)
    name = f"C{uuid.uuid4().hex[:10]}"
    shared_cluster.create_topic(name, 2)
    return name


def orders(count: int, first: int = 0) -> list[bytes]:
    numbers = range(first, first + count)
    return [msgspec.json.encode({"id": n, "amount": n % 10, "items": ["x"] * (n % 3 + 1)}) for n in numbers]


def rows_of(output: Output) -> int:
    return int(DeltaTable(output.where).to_pyarrow_table().num_rows)


def forget_the_last_batch(state: Path, query: str) -> None:
    """As if the process had ended between the table's commit and Spark's."""
    commits = state / "checkpoints" / query / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


@pytest.mark.timeout(300)
def test_etl_counts_bad_bodies_filtered_rows_and_a_repeated_batch(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    shared_cluster.send(topic, [*orders(40), b"not json", b'{"id":'], 0)
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    output = parse_output(f"delta:{tmp_path / 'lake'}")

    def run_once(where: str | None, select: Sequence[str] = ()) -> JobSummary:
        folder = tmp_path / "state"
        return etl.etl(
            spark, source, output, state=folder, schema=ORDERS, where=where, select=select, once=True
        )

    summary = run_once("amount >= 3")
    assert told(summary) == {"read": 42, "written": 28, "filtered": 12, "rejected": 2}
    assert summary.details["rejected_at"].startswith(f"{topic}/broker-a/0/4")
    assert rows_of(output) == 28
    assert told(run_once("amount >= 3")) == {}
    forget_the_last_batch(tmp_path / "state", "rows")
    assert told(run_once("amount >= 3")) == {"read": 42, "filtered": 12, "rejected": 2, "duplicates": 28}
    assert rows_of(output) == 28
    shutil.rmtree(tmp_path)
    exploded = run_once(None, ["id", "explode(items) as item"])
    assert told(exploded) == {"read": 42, "added": 39, "written": 79, "rejected": 2}
    assert rows_of(output) == 79


DEBEZIUM = [
    b'{"op": "c", "after": {"id": 1, "name": "one"}, "source": {"table": "users"}}',
    b'{"op": "u", "after": {"id": 1, "name": "uno"}, "source": {"table": "users"}}',
    b'{"op": "d", "before": {"id": 2}, "source": {"table": "users"}}',
    b'{"op": "c", "after": {"id": 9}, "source": {"table": "shops"}}',
    b'{"ddl": "create table x"}',
    b'{"op": "c", "after": {"name": "nobody"}, "source": {"table": "users"}}',
    b"not json",
]
CANAL = [
    b'{"type": "INSERT", "table": "users", "data": [{"id": "1", "name": "one"}, {"id": "2"}]}',
    b'{"type": "UPDATE", "table": "users", "data": [{"id": "1", "name": "uno"}], "old": [{"name": "one"}]}',
    b'{"type": "DELETE", "table": "users", "data": [{"id": "2"}]}',
    b'{"type": "INSERT", "table": "shops", "data": [{"id": "9"}]}',
    b'{"type": "ALTER", "table": "users", "isDdl": true}',
    b'{"type": "INSERT", "table": "users", "data": [{"id": "x", "name": "nobody"}]}',
    b"not json",
]


@pytest.mark.parametrize(("form", "events"), [("debezium", DEBEZIUM), ("canal", CANAL)])
def test_every_event_has_an_outcome(spark: SparkSession, form: str, events: list[bytes]) -> None:
    changes = cdc.ChangeEvents(format=form, keys=["id"], schema="id bigint, name string", table="users")
    df = spark.createDataFrame(
        [(number, body) for number, body in enumerate(events)], "queueOffset long, body binary"
    )
    outcomes = [
        row[0] for row in cdc.classified(df, changes).orderBy("queueOffset").select(cdc.OUTCOME).collect()
    ]
    assert outcomes == ["applied"] * 3 + ["filtered"] * 2 + ["rejected"] * 2


@pytest.mark.timeout(300)
def test_cdc_counts_bad_bodies_and_events_of_other_tables(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    output = parse_output(f"delta:{tmp_path / 'lake'}")
    changes = cdc.ChangeEvents(keys=["id"], schema="id bigint, name string", table="users")

    def run_once() -> JobSummary:
        return cdc.cdc(spark, source, output, state=tmp_path / "state", changes=changes, once=True)

    shared_cluster.send(topic, DEBEZIUM, 0)
    summary = run_once()
    assert told(summary) == {"read": 7, "written": 3, "filtered": 2, "rejected": 2}
    assert summary.details["rejected_at"] in (f"{topic}/broker-a/0/5", f"{topic}/broker-a/0/6")
    assert DeltaTable(output.where).to_pyarrow_table().to_pylist() == [{"id": 1, "name": "uno"}]
    forget_the_last_batch(tmp_path / "state", "cdc")
    assert told(run_once()) == {"read": 7, "filtered": 2, "rejected": 2, "duplicates": 3}
    shared_cluster.send(topic, [b"only", b"bad", b"bodies"], 1)
    assert told(run_once()) == {"read": 3, "rejected": 3}


PIPELINE = """
name: counted
source: {topic: TOPIC, namesrv: NAMESRV}
steps:
  - decode: {format: json, schema: "id bigint, amount double"}
  - sql: select * from input where id < 30 union all select * from input where id >= 30
  - sql: select * from input where amount >= 2
  - dedup: {keys: [id], within: 10 minutes}
quality:
  - expect: amount < 9
    on_fail: reject
  - expect: id <> 2
    on_fail: drop
  - expect: amount <> 5
    on_fail: warn
rejects: {topic: REJECTS}
sinks:
  - delta: {path: lake}
  - parquet: {path: files}
"""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_run_counts_every_step_and_each_sink(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    rejects = f"{topic}-rejects"
    shared_cluster.create_topic(rejects, 1)
    shared_cluster.send(topic, [*orders(40), *orders(10, 30), b"not json"], 0)
    file = tmp_path / "pipeline.yml"
    text = PIPELINE.replace("TOPIC", topic, 1).replace("NAMESRV", shared_cluster.namesrv)
    file.write_text(text.replace("REJECTS", rejects))
    seen: list[int] = []
    summary = run.run_pipeline(
        spark,
        load_pipeline(file),
        namesrv=None,
        state=tmp_path / "state",
        once=True,
        watch=lambda progress: seen.append(progress.messages),
    )
    # 51 read; 8 + 2 have an amount below 2; 8 are repeated; amount 9 is rejected four times; id 2 is dropped.
    expected = {"read": 51, "written": 27, "filtered": 11, "rejected": 5, "duplicates": 8}
    assert told(summary) == expected
    assert set(seen) == {51}  # though every query refers to its source twice
    assert summary.outputs
    lake, files = summary.outputs
    assert (lake, files) == (f"delta:{tmp_path / 'lake'}", f"parquet:{tmp_path / 'files'}")
    assert summary.outputs[lake] == summary.outputs[files] == summary.counts
    assert rows_of(parse_output(lake)) == 27
    assert summary.details["quality"] == {"amount <> 5": 4}
    assert len(Input(namesrv=shared_cluster.namesrv, topic=rejects).read(spark).collect()) == 5


@BOTH
@pytest.mark.timeout(300)
def test_archive_counts_what_it_dropped_as_repeated(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    source = Input(namesrv=shared_cluster.namesrv, topic=topic, tags="a")
    output = parse_output(f"{kind}:{tmp_path / 'lake'}", dedupKeys="1000")

    def run_once() -> JobSummary:
        return archive.archive(spark, source, output, state=tmp_path / "state", once=True)

    for key in ("one", "two", "one"):
        shared_cluster.send(topic, [b"x"], 0, properties={"TAGS": "a", "UNIQ_KEY": key})
    shared_cluster.send(topic, [b"x"] * 5, 1, properties={"TAGS": "b"})
    assert told(run_once()) == {"read": 3, "written": 2, "duplicates": 1}
    shared_cluster.send(topic, [b"x"], 0, properties={"TAGS": "a", "UNIQ_KEY": "three"})
    assert told(run_once()) == {"read": 1, "written": 1}
    forget_the_last_batch(tmp_path / "state", "archive")
    shared_cluster.send(topic, [b"x"], 0, properties={"TAGS": "a", "UNIQ_KEY": "four"})
    assert told(run_once()) == {"read": 2, "written": 1, "duplicates": 1}


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_agg_counts_bad_bodies_and_late_messages(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    output = parse_output(f"delta:{tmp_path / 'lake'}")

    def run_once(*minutes: int) -> JobSummary:
        times = [f"2026-11-17T10:{minute:02}:30Z" for minute in minutes]
        bodies = [msgspec.json.encode({"moment": moment}) for moment in times]
        shared_cluster.send(topic, [*bodies, b'{"moment": null}', b"not json"], 0)
        window = agg.Window(slide="30 seconds", time="moment")
        return agg.agg(
            spark, source, output,
            state=tmp_path / "state", window=window, decode="json", schema="moment timestamp", once=True,
        )  # fmt: skip

    first = run_once(0, 1, 20, 20)
    assert told(first) == {"read": 6, "written": 4, "filtered": 1, "rejected": 1}
    run_once(30)
    # All windows before 10:18 are closed.
    late = run_once(1, 2, 31)
    assert told(late) == {"read": 5, "written": 1, "filtered": 3, "rejected": 1}
    run_once(50)
    run_once(51)
    found = DeltaTable(output.where).to_pyarrow_table()
    assert sum(found["messages"].to_pylist()) == 2 * (4 + 1 + 1)  # each is in two windows


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_replay_and_dead_letters_count_what_they_leave_out(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    shared_cluster.send(topic, orders(20), 0)
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    target = f"{topic}-again"
    shared_cluster.create_topic(target, 1)

    def send_again(where: str | None) -> JobSummary:
        stretch = replay.ReplayRange(where=where)
        output = parse_output(f"topic:{target}")
        return replay.replay(spark, source.read(spark), output, stretch, namesrv=shared_cluster.namesrv)

    assert told(send_again(None)) == {"read": 20, "written": 20}
    assert told(send_again("queueOffset < 5")) == {"read": 20, "written": 5, "filtered": 15}
    assert told(send_again("1 = 2")) == {"read": 20, "filtered": 20}

    group = f"G{uuid.uuid4().hex[:8]}"
    dead = f"%DLQ%{group}"
    shared_cluster.create_topic(dead, 1)
    shared_cluster.send(dead, orders(10), 0, properties={"RETRY_TOPIC": target})
    letters = Input(namesrv=shared_cluster.namesrv, topic=dead)
    audit = parse_output(f"delta:{tmp_path / 'audit'}")

    def resend(where: str | None, **more: object) -> dict[str, int]:
        wanted = dlq.Resend(where=where, **more)  # type: ignore[arg-type]
        return told(dlq.resend(spark, letters, group, wanted, state=tmp_path / "state", audit=audit))

    assert resend("queueOffset < 4") == {"read": 10, "written": 4, "filtered": 6}
    assert resend("queueOffset < 6") == {"read": 10, "written": 2, "filtered": 4, "duplicates": 4}
    dropped = resend("queueOffset < 8", edit=lambda df: df.where("queueOffset <> 7"))
    assert dropped == {"read": 10, "written": 1, "filtered": 3, "duplicates": 6}
    assert resend("queueOffset < 6") == {"read": 10, "filtered": 4, "duplicates": 6}


@BOTH
@pytest.mark.timeout(300)
def test_an_export_adds_only_the_dead_letters_that_the_table_does_not_hold(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    dead = f"%DLQ%{topic}"
    shared_cluster.create_topic(dead, 1)
    source = Input(namesrv=shared_cluster.namesrv, topic=dead)
    output = parse_output(f"{kind}:{tmp_path / 'dead'}")

    def export(where: str | None = None, start: str | None = None) -> dict[str, int]:
        return told(dlq.export(spark, dataclasses.replace(source, start=start), output, where))

    shared_cluster.send(dead, orders(10), 0)
    assert export() == {"read": 10, "written": 10}
    assert export() == {}
    shared_cluster.send(dead, orders(5), 0)
    with pytest.raises(SettingsError, match=r"up to offset 10; use --from table to add what is new"):
        export(start="earliest")
    assert export(start="table") == {"read": 5, "written": 5}
    assert export() == {}
    # Another condition is another job.
    assert export("queueOffset = 3") == {"read": 15, "written": 1, "filtered": 14}
    log = open_log(kind, output.where)
    assert sum(file.rows for file in log.files()) == 16


def test_an_export_to_a_topic_has_the_same_keys_when_it_is_run_again(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    dead = f"%DLQ%{topic}"
    shared_cluster.create_topic(dead, 1)
    shared_cluster.send(dead, orders(10), 0)
    source = Input(namesrv=shared_cluster.namesrv, topic=dead)
    for _ in range(2):
        assert told(dlq.export(spark, source, parse_output(f"topic:{topic}"), None))["written"] == 10
    keys = Input(namesrv=shared_cluster.namesrv, topic=topic).read(spark).select("uniqKey").collect()
    assert (len(keys), len(set(keys))) == (20, 10)
