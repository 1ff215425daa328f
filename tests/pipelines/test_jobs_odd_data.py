"""Pipelines over what is rare and still comes: letters that die twice, times of no calendar."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skylark.cli import spark_jobs
from skylark.errors import SettingsError
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.pipelines.jobs import archive, dlq, etl, replay, report, sql
from skylark.pipelines.jobs.endpoints import Input, as_messages, parse_output
from skylark.pipelines.jobs.session import register
from skylark.protocol.requests.send import SendMessageV2
from tests.pipelines.messages import dead_letters, stored
from tests.support.names import fresh_name
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def _formats(spark: SparkSession) -> Iterator[None]:
    register(spark)
    yield


@pytest.fixture
def topic(shared_cluster: PipelineCluster) -> str:
    name = fresh_name("odd")
    shared_cluster.create_topic(name, 1)
    return name


def test_a_letter_that_dies_again_is_sent_again(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    group = f"G{uuid.uuid4().hex[:8]}"
    dead_letters(shared_cluster, topic, group, [b"stubborn"])
    source = Input(namesrv=shared_cluster.namesrv, topic=f"%DLQ%{group}")
    audit = parse_output(f"delta:{tmp_path / 'audit'}")

    def resend() -> int:
        return dlq.resend(
            spark, source, group, dlq.Resend(), state=tmp_path / "state", audit=audit
        ).counts.written

    assert resend() == 1
    dead_letters(shared_cluster, topic, group, [])  # both copies come back
    assert resend() == 2
    last = stored(shared_cluster, topic)[-1]
    assert (last.body, last.properties["DLQ_ORIGIN_TOPIC"]) == (b"stubborn", f"%DLQ%{group}")


def test_an_edit_that_cannot_be_sent_or_written_down_is_refused_before_anything_is_sent(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    group = f"G{uuid.uuid4().hex[:8]}"
    dead_letters(shared_cluster, topic, group, [b"letter"])
    source = Input(namesrv=shared_cluster.namesrv, topic=f"%DLQ%{group}")
    audit = parse_output(f"delta:{tmp_path / 'audit'}")

    def resend(edit: Any) -> int:
        wanted = dlq.Resend(edit=edit)
        return dlq.resend(spark, source, group, wanted, state=tmp_path / "state", audit=audit).counts.written

    with pytest.raises(SettingsError, match="removed required columns: originId"):
        resend(lambda df: df.drop("originId"))
    with pytest.raises(SettingsError, match="colour: unknown column; drop it"):
        resend(lambda df: df.selectExpr("*", "'red' as colour"))
    with pytest.raises(SettingsError, match="returned NoneType; it must return a DataFrame"):
        resend(lambda df: None)
    assert len(stored(shared_cluster, topic)) == 1
    assert resend(lambda df: df) == 1  # nothing of the others is left to be completed


@pytest.mark.nightly
def test_a_body_that_is_put_aside_for_the_second_time(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, tmp_path: Path
) -> None:
    names = [topic, fresh_name("first"), fresh_name("second")]
    for name in names[1:]:
        shared_cluster.create_topic(name, 1)
    shared_cluster.send(topic, [b"poison"], properties={"TAGS": "bad"})
    for source, rejects in pairwise(names):
        etl.etl(
            spark,
            Input(namesrv=shared_cluster.namesrv, topic=source),
            parse_output(f"delta:{tmp_path / source}"),
            state=tmp_path / f"state-{source}",
            schema="id bigint",
            rejects=parse_output(f"topic:{rejects}"),
            once=True,
        )
    [message] = stored(shared_cluster, names[2])
    assert (message.body, message.tags) == (b"poison", "bad")
    assert message.properties["REJECTED_FROM"] == f"{names[1]}/broker-a/0/0"


def send_born(cluster: PipelineCluster, topic: str, body: bytes, born_ms: int) -> None:
    request = SendMessageV2(
        producer_group="PG",
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=born_ms,
        flag=0,
        properties="",
        body=body,
    )
    cluster.wire.connection(cluster.servers.broker).call(request)


@pytest.mark.nightly
def test_a_message_born_in_no_year_is_read_archived_shown_and_sent_again(
    spark: SparkSession,
    shared_cluster: PipelineCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    born = [1_763_287_200_000, (1 << 63) - 1, -(1 << 62)]
    for number, born_ms in enumerate(born):
        send_born(shared_cluster, topic, b"%d" % number, born_ms)
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    lake = parse_output(f"delta:{tmp_path / 'lake'}")
    summary = archive.archive(spark, source, lake, state=tmp_path / "state", once=True)
    assert summary.counts.written == 3
    found = sql.query(spark, f"select bodyText, bornTimestamp from `{topic}`", source=source)  # noqa: S608
    spark_jobs.found_rows(found, limit=10, as_json=True)()
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["bodyText"] for row in shown] == ["0", "1", "2"]
    assert shown[0]["bornTimestamp"] == "2025-11-16T10:00:00.000000Z"
    target = fresh_name("again")
    shared_cluster.create_topic(target, 1)
    everything = replay.read_archive(spark, lake, topic, replay.ReplayRange())
    output = parse_output(f"topic:{target}")
    namesrv = shared_cluster.namesrv
    assert replay.replay(spark, everything, output, replay.ReplayRange(), namesrv=namesrv).counts.written == 3
    assert sorted(message.body for message in stored(shared_cluster, target)) == [b"0", b"1", b"2"]
    sections = {section.name: section for section in report.report(spark, source).sections}
    latency = sections["latency"]
    assert dict(zip(latency.columns, latency.rows[0], strict=True))["messages"] == 3


def test_times_are_shown_in_the_sessions_zone_wherever_the_driver_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        text = "timestamp'2026-11-16 08:00:00Z'"
        df = spark.sql(f"select {text} as at, array(named_struct('at', {text})) as nested, {text} as at")
        spark_jobs.found_rows(df, limit=1, as_json=False)()
    finally:
        monkeypatch.undo()
        time.tzset()
    printed = capsys.readouterr().out
    assert printed.count("2026-11-16T08:00:00.000000Z") == 2
    assert "16:00" not in printed


def test_a_parquet_archive_of_a_topic_named_like_a_number(
    spark: SparkSession, shared_cluster: PipelineCluster, tmp_path: Path
) -> None:
    topic = f"00{uuid.uuid4().int % 10**12}"
    shared_cluster.create_topic(topic, 1)
    shared_cluster.send(topic, [b"one"])
    lake = parse_output(f"parquet:{tmp_path / 'lake'}")
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    archive.archive(spark, source, lake, state=tmp_path / "state", once=True)
    [row] = (
        replay.read_archive(spark, lake, topic, replay.ReplayRange()).select("topic", "dt", "body").collect()
    )
    assert (row["topic"], bytes(row["body"])) == (topic, b"one")


def test_a_report_on_an_empty_topic_still_shows_the_lag(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    group = f"G{uuid.uuid4().hex[:8]}"
    [queue] = shared_cluster.wire.queues(topic)
    shared_cluster.wire.commit_offsets(group, {queue: 0})
    made = report.report(spark, Input(namesrv=shared_cluster.namesrv, topic=topic), groups=[group])
    rows = {section.name: section.rows for section in made.sections}
    assert rows.pop("lag") == [[group, topic, "broker-a", 0, 0, 0, 0]]
    assert rows.pop("groups") == [[group, 0, 0, 0, 0]]
    assert all(each == [] for each in rows.values())
    assert made.verdict is not None
    assert made.verdict.title == "No messages"


def test_a_report_says_that_it_is_cut(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_cluster.send(topic, [b"x"] * 3, properties={"KEYS": "k{n}"})
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    monkeypatch.setattr(report, "ROWS_MAX", 0)
    [sizes, keys] = report.report(spark, source, kinds=["keys", "sizes"]).sections
    assert sizes.rows == []
    assert sizes.note.endswith("Only the first 0 rows are shown; select others with --from and --to.")
    assert (keys.rows, keys.note) == ([], "No key is used by more than one message.")


def test_an_option_that_the_job_would_set_is_the_users(
    spark: SparkSession, shared_cluster: PipelineCluster, topic: str
) -> None:
    shared_cluster.send(topic, [b"text"])
    source = Input(namesrv=shared_cluster.namesrv, topic=topic, options={"decode": "text"})
    df: DataFrame = source.read(spark, decode="json", decodeSchema="id bigint")
    assert [row["value"] for row in df.collect()] == ["text"]


def test_a_field_named_like_a_message_s_own_is_only_a_field(spark: SparkSession) -> None:
    df = spark.sql("select 1 as id, array('a', 'b') as tags, 'k' as keys")
    messages = as_messages(df)
    assert messages.columns == ["body", "keys"]
    assert json.loads(messages.collect()[0]["body"]) == {"id": 1, "tags": ["a", "b"], "keys": "k"}


def test_a_field_takes_a_columns_place_however_it_is_written(spark: SparkSession) -> None:
    df = spark.sql("select 'old' as tags, 'k' as keys, named_struct('Tags', 'new') as value, null as rejects")
    [row] = etl.transform(df, where="tags = 'new'").collect()
    assert row.asDict() == {"keys": "k", "Tags": "new"}
