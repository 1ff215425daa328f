"""The other pipelines in a real session, with our broker: what goes in, what comes out, what comes again."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from skylark.errors import SettingsError
from skylark.html_report import render
from skylark.model.message import StoredMessage
from skylark.pipelines.jobs import agg, archive, cdc, dlq, etl, replay, report, sql
from skylark.pipelines.jobs.endpoints import Input, parse_output, write_batch
from skylark.pipelines.jobs.session import probe, register
from tests.pipelines.messages import dead_letters, stored
from tests.support.pipeline_cluster import PipelineCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = "id bigint, customer string, amount double"
MakeTopic = Callable[..., str]


@pytest.fixture(autouse=True)
def _formats(spark: SparkSession) -> Iterator[None]:
    register(spark)
    yield


@pytest.fixture
def make_topic(shared_cluster: PipelineCluster) -> MakeTopic:
    def make(queues: int = 2) -> str:
        name = f"J{uuid.uuid4().hex[:10]}"
        shared_cluster.create_topic(name, queues)
        return name

    return make


def order(number: int) -> bytes:
    return json.dumps({"id": number, "customer": f"c{number % 5}", "amount": number - 10.0}).encode()


def table_rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(zip(*[table[name].to_pylist() for name in columns], strict=True))


def test_the_probe_finds_our_package(spark: SparkSession) -> None:
    probe(spark)


def test_etl_decodes_filters_and_puts_poison_aside(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, rejects = make_topic(), make_topic()
    poison = [b"{", b"\xff\xfe", b'{"id": "no number"}', b"[1]"]
    shared_cluster.send(topic, [order(number) for number in range(30)], 0, properties={"KEYS": "k{n}"})
    shared_cluster.send(topic, poison, 1, properties={"TAGS": "bad"})
    summary = etl.etl(
        spark,
        Input(namesrv=shared_cluster.namesrv, topic=topic),
        parse_output(f"delta:{tmp_path / 'orders'}", partitionBy="customer"),
        state=tmp_path / "state",
        schema=ORDERS,
        where="amount > 0",
        select=["id", "amount * 2 as twice", "customer", "queueOffset"],
        rejects=parse_output(f"topic:{rejects}"),
        once=True,
    )
    assert summary.status == "end of data"
    assert table_rows(tmp_path / "orders", "id", "twice", "customer") == [
        (number, (number - 10.0) * 2, f"c{number % 5}") for number in range(11, 30)
    ]
    aside = stored(shared_cluster, rejects)
    assert sorted(message.body for message in aside) == sorted(poison)
    assert {message.tags for message in aside} == {"bad"}
    places = {message.properties["REJECTED_FROM"] for message in aside}
    assert places == {f"{topic}/broker-a/1/{number}" for number in range(4)}


def test_agg_writes_windows_that_the_watermark_has_passed(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, totals = make_topic(1), make_topic(1)
    minute = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
    events = [
        {"at": datetime.fromtimestamp(minute + second, UTC).isoformat(), "amount": second}
        for second in [0, 10, 59, 60, 61, 600]
    ]
    shared_cluster.send(topic, [json.dumps(event).encode() for event in events], 0)

    def run() -> None:
        agg.agg(
            spark,
            Input(namesrv=shared_cluster.namesrv, topic=topic),
            parse_output(f"topic:{totals}"),
            state=tmp_path / "state",
            window=agg.Window(length="1 minute", watermark="1 minute", time="at"),
            metrics=["count(*) as events", "sum(amount) as total"],
            decode="json",
            schema="at timestamp, amount double",
            once=True,
        )

    run()
    run()  # nothing new: nothing is written again
    found = [json.loads(message.body) for message in stored(shared_cluster, totals)]
    assert sorted((row["windowStart"], row["events"], row["total"]) for row in found) == [
        ("2026-11-15T12:00:00.000Z", 3, 69.0),
        ("2026-11-15T12:01:00.000Z", 2, 121.0),
    ]


def test_agg_refuses_a_time_that_is_not_there(spark: SparkSession) -> None:
    df = spark.range(1)
    with pytest.raises(SettingsError, match="unknown column at"):
        agg.transform(df, window=agg.Window(time="at"), by=(), metrics=["count(*)"])


def debezium(op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> bytes:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"ts_ms": 1}}).encode()


def test_cdc_follows_a_table_and_a_replayed_batch_changes_nothing(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(1)
    changes = cdc.ChangeEvents(keys=["id"], schema="id bigint, name string")
    output = parse_output(f"delta:{tmp_path / 'users'}")

    def run() -> Any:
        source = Input(namesrv=shared_cluster.namesrv, topic=topic)
        return cdc.cdc(spark, source, output, state=tmp_path / "state", changes=changes, once=True)

    first = [debezium("c", None, {"id": number, "name": f"n{number}"}) for number in range(5)]
    first += [debezium("u", {"id": 1, "name": "n1"}, {"id": 1, "name": "changed"})]
    first += [debezium("d", {"id": 2, "name": "n2"}, None), b"no event at all"]
    with_schema = {"schema": {}, "payload": json.loads(debezium("r", None, {"id": 9, "name": "read"}))}
    shared_cluster.send(topic, [*first, json.dumps(with_schema).encode()], 0)
    run()
    state = [(0, "n0"), (1, "changed"), (3, "n3"), (4, "n4"), (9, "read")]
    assert table_rows(tmp_path / "users", "id", "name") == state
    version = DeltaTable(tmp_path / "users").version()
    commits = tmp_path / "state" / "checkpoints" / "cdc" / "commits"
    for path in (commits / "0", commits / ".0.crc"):
        path.unlink()
    run()
    assert DeltaTable(tmp_path / "users").version() == version
    shared_cluster.send(topic, [debezium("d", {"id": 0, "name": "n0"}, None)], 0)
    run()
    assert table_rows(tmp_path / "users", "id", "name") == state[1:]


def test_cdc_reads_canal(spark: SparkSession) -> None:
    events = [
        {"type": "INSERT", "data": [{"id": "1", "price": "2.50"}, {"id": "2", "price": "3"}]},
        {"type": "UPDATE", "data": [{"id": "1", "price": "4"}]},
        {"type": "DELETE", "data": [{"id": "2", "price": "3"}]},
        {"type": "ALTER", "isDdl": True, "data": None},
    ]
    rows = [(json.dumps(event).encode(), number) for number, event in enumerate(events)]
    df = spark.createDataFrame(rows, "body binary, queueOffset bigint")
    changes = cdc.ChangeEvents(format="canal", keys=["id"], schema="id bigint, price decimal(10,2)")
    found = {(row["id"], str(row["price"]), row[cdc.DELETED]) for row in cdc.transform(df, changes).collect()}
    assert found == {(1, "4.00", False), (2, "3.00", True)}


def test_cdc_orders_by_the_events_own_sequence(spark: SparkSession) -> None:
    events = [
        {"op": "u", "after": {"id": 1, "name": "newest"}, "ts_ms": 30},
        {"op": "u", "after": {"id": 1, "name": "late"}, "ts_ms": 20},
        {"schema": {}, "payload": {"op": "u", "after": {"id": 1, "name": "later"}, "ts_ms": 25}},
        {"op": "u", "after": {"name": "without a key"}, "ts_ms": 40},
    ]
    rows = [(json.dumps(event).encode(), number) for number, event in enumerate(events)]
    df = spark.createDataFrame(rows, "body binary, queueOffset bigint")
    changes = cdc.ChangeEvents(keys=["id"], schema="id bigint, name string", sequence=["ts_ms"])
    assert [row["name"] for row in cdc.transform(df, changes).collect()] == ["newest"]
    with pytest.raises(SettingsError, match="unknown key column uid"):
        cdc.transform(df, cdc.ChangeEvents(keys=["uid"], schema="id bigint"))


# --- Replay ---


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


def test_replay_from_broker_store_files_and_archive(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    namesrv = shared_cluster.namesrv
    shared_cluster.send(topic, [b"old %d" % number for number in range(10)], 0, properties={"TAGS": "a"})
    middle = max(message.store_timestamp for message in stored(shared_cluster, topic)) + 1
    while datetime.now(UTC).timestamp() * 1000 <= middle + 5:
        pass
    shared_cluster.send(topic, [b"new %d" % number for number in range(20)], 1, properties={"TAGS": "b"})
    source = Input(namesrv=namesrv, topic=topic)
    lake = parse_output(f"delta:{tmp_path / 'lake'}")
    archive.archive(spark, source, lake, state=tmp_path / "archive", once=True)
    recent = replay.ReplayRange(since_ms=middle)
    narrowed = replay.source_input(source, recent)
    inputs = {
        "broker": narrowed.read(spark),
        "files": Input(store=Path(shared_cluster.files_of(topic)), topic=topic).read(spark),
        "archive": replay.read_archive(spark, lake, topic, recent),
        "archive by a pattern": replay.read_archive(spark, lake, f"nothing, {topic[:-2]}..", recent),
    }
    assert inputs["broker"].count() == 20
    born = {message.body: message.born_timestamp for message in stored(shared_cluster, topic)}
    for name, df in inputs.items():
        target = make_topic()
        summary = replay.replay(
            spark, df, parse_output(f"topic:{target}"), recent, namesrv=namesrv, keep_times=name == "archive"
        )
        assert summary.counts.written == 20
        messages = stored(shared_cluster, target)
        assert bodies(messages) == sorted(b"new %d" % number for number in range(20))
        assert {message.tags for message in messages} == {"b"}
        if name == "archive":
            assert {message.body: message.born_timestamp for message in messages}.items() <= born.items()


def test_a_replay_with_a_state_gives_the_same_keys_when_it_is_run_again(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, target = make_topic(), make_topic()
    shared_cluster.send(topic, [b"%d" % number for number in range(40)], 0)
    df = Input(namesrv=shared_cluster.namesrv, topic=topic).read(spark)
    stretch = replay.ReplayRange(where="cast(cast(body as string) as int) < 25")
    for _ in range(2):
        replay.replay(
            spark,
            df,
            parse_output(f"topic:{target}"),
            stretch,
            namesrv=shared_cluster.namesrv,
            state=tmp_path,
            rate="2000/s",
        )
    messages = stored(shared_cluster, target)
    assert len(messages) == 50
    assert len({message.unique_key for message in messages}) == 25


# --- Dead letters ---


def test_dlq_resends_exactly_the_chosen_letters_and_writes_them_down(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, group = make_topic(1), f"G{uuid.uuid4().hex[:8]}"
    dead_letters(shared_cluster, topic, group, [b'{"n": %d}' % number for number in range(20)])
    source = Input(namesrv=shared_cluster.namesrv, topic=f"%DLQ%{group}")
    letters = dlq.transform(source.read(spark))
    [line] = dlq.overview(letters).collect()
    assert (line["group"], line["originTopic"], line["messages"]) == (group, topic, 20)
    audit = parse_output(f"delta:{tmp_path / 'audit'}")

    def edit(df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        return df.withColumn("body", F.concat(F.lit("edited "), F.col("body").cast("string")).cast("binary"))

    def resend(**wanted: Any) -> Any:
        return dlq.resend(spark, source, group, dlq.Resend(**wanted), state=tmp_path / "state", audit=audit)

    assert resend(where="get_json_object(text, '$.n') < 5", rate="1000/s").counts.written == 5
    assert (
        resend(where="get_json_object(text, '$.n') < 7", edit=edit).counts.written == 2
    )  # five were sent before
    assert resend(where="keys = 'k0'").counts.written == 0
    again = [message for message in stored(shared_cluster, topic) if "DLQ_ORIGIN_TOPIC" in message.properties]
    assert bodies(again) == sorted(
        [*(b'{"n": %d}' % number for number in range(5)), b'edited {"n": 5}', b'edited {"n": 6}']
    )
    assert {message.properties["DLQ_ORIGIN_TOPIC"] for message in again} == {f"%DLQ%{group}"}
    assert not any("RETRY_TOPIC" in message.properties for message in again)
    assert {message.keys[0] for message in again} == {f"k{number}" for number in range(7)}
    book = table_rows(tmp_path / "audit", "deadTopic", "brokerName", "queueId", "queueOffset", "sentTo")
    assert book == [(f"%DLQ%{group}", "broker-a", 0, number, topic) for number in range(7)]


def test_a_resend_that_was_stopped_is_completed_by_the_next(
    spark: SparkSession,
    shared_cluster: PipelineCluster,
    make_topic: MakeTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, group, target = make_topic(1), f"G{uuid.uuid4().hex[:8]}", make_topic(1)
    dead_letters(shared_cluster, topic, group, [b'{"n": %d}' % number for number in range(6)])
    source = Input(namesrv=shared_cluster.namesrv, topic=f"%DLQ%{group}")
    audit = parse_output(f"delta:{tmp_path / 'audit'}")
    wanted = dlq.Resend(to=target)

    def stop_before_the_book(df: DataFrame, output: Any, *more: Any, **named: Any) -> None:
        if output.is_table:
            raise KeyboardInterrupt
        write_batch(df, output, *more, **named)

    monkeypatch.setattr(dlq, "write_batch", stop_before_the_book)
    with pytest.raises(KeyboardInterrupt):
        dlq.resend(spark, source, group, wanted, state=tmp_path / "state", audit=audit)
    monkeypatch.undo()
    summary = dlq.resend(spark, source, group, wanted, state=tmp_path / "state", audit=audit)
    assert summary.details["resumed"] == 6
    assert (
        summary.counts.written == 0 and summary.details["resumed"] == 6
    )  # the next choice finds nothing left
    messages = stored(shared_cluster, target)
    assert len({message.unique_key for message in messages}) == 6
    assert len(table_rows(tmp_path / "audit", "queueOffset")) == 6


@pytest.mark.nightly
def test_letters_that_cannot_be_sent_are_in_nobodys_way(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    group, target = f"G{uuid.uuid4().hex[:8]}", make_topic(1)
    shared_cluster.create_topic(f"%DLQ%{group}", 1)
    shared_cluster.send(f"%DLQ%{group}", [b"from nowhere"], 0)
    source = Input(namesrv=shared_cluster.namesrv, topic=f"%DLQ%{group}")
    audit = parse_output(f"delta:{tmp_path / 'audit'}")

    def resend(**wanted: Any) -> int:
        chosen = dlq.Resend(**wanted)
        return dlq.resend(spark, source, group, chosen, state=tmp_path / "state", audit=audit).counts.written

    with pytest.raises(SettingsError, match="1 letters have no original topic"):
        resend()
    with pytest.raises(SettingsError, match="row 0 has an empty body"):
        resend(to=target, edit=lambda df: df.selectExpr("* except (body)", "cast('' as binary) as body"))
    with pytest.raises(
        SettingsError, match=r"cannot complete an earlier resend: .*; delete .* to drop it"
    ) as told:
        resend(to=target)
    shutil.rmtree(str(told.value).partition("; delete ")[2].removesuffix(" to drop it"))
    assert resend(to=target) == 1
    assert bodies(stored(shared_cluster, target)) == [b"from nowhere"]


# --- Queries and reports ---


def test_sql_over_topics_and_archives(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic()
    shared_cluster.send(topic, [order(number) for number in range(12)], 0, properties={"TAGS": "t{n}"})
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    lake = parse_output(f"delta:{tmp_path / 'lake'}")
    archive.archive(spark, source, lake, state=tmp_path / "state", once=True)
    text = f"select tags, value.id, lake.queueOffset from {topic} join lake using (tags, queueOffset)"  # noqa: S608
    found = sql.query(spark, text, source=source, archives={"lake": lake}, decode="json", schema="id bigint")
    assert sorted(tuple(row) for row in found.collect()) == sorted((f"t{n}", n, n) for n in range(12))
    with pytest.raises(SettingsError, match=f"nowhere.*views: {topic}"):
        sql.query(spark, "select * from nowhere", source=source)


class Page(HTMLParser):
    """What a page holds; fails on what it would have to fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.bars = 0
        self.sections: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag not in ("script", "link", "img", "iframe")
        assert "src" not in values
        assert not (values.get("href") or "#").startswith("http")
        if tag == "rect" and values.get("class") != "key":
            self.bars += 1
            assert float(values["height"] or -1) >= 0
        if tag == "section":
            self.sections.append(values["id"] or "")
        if tag not in ("meta", "rect", "line") or (tag == "rect" and values.get("class") != "key"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "rect" and dict(attrs).get("class") != "key":
            self.bars += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_report_has_all_tables_and_a_page_that_stands_alone(
    spark: SparkSession, shared_cluster: PipelineCluster, make_topic: MakeTopic
) -> None:
    topic, group = make_topic(2), f"G{uuid.uuid4().hex[:8]}"
    shared_cluster.send(topic, [b"x" * 10] * 30, 0, properties={"KEYS": "k{n} <hot>", "UNIQ_KEY": "u{n}"})
    shared_cluster.send(topic, [b"x" * 30] * 10, 1, properties={"UNIQ_KEY": "u{n}"})
    queues = shared_cluster.wire.queues(topic)
    shared_cluster.wire.commit_offsets(group, {queues[0]: 25, queues[1]: 10})
    for returned, number in ((f"%RETRY%{group}", 3), (f"%DLQ%{group}", 1)):
        shared_cluster.create_topic(returned, 1)
        retried = {"RETRY_TOPIC": topic, "UNIQ_KEY": "u29"}
        shared_cluster.send(returned, [b"x"] * number, 0, properties=retried)
        shared_cluster.send(returned, [b"x"], 0, properties={"RETRY_TOPIC": "another", "UNIQ_KEY": "u1"})
    source = Input(namesrv=shared_cluster.namesrv, topic=topic)
    made = report.report(spark, source, groups=[group])
    sections = {section.name: section for section in made.sections}
    assert list(sections) == list(report.NAMES)

    def cells(name: str, *columns: str) -> list[tuple[Any, ...]]:
        section = sections[name]
        places = [section.columns.index(column) for column in columns]
        return [tuple(row[place] for place in places) for row in section.rows]

    assert cells("lag", "queueId", "committed", "end", "lag") == [(0, 25, 30, 5), (1, 10, 10, 0)]
    assert sections["groups"].rows == [[group, 5, 4, 2, 2]]
    counted = sorted(each for each in cells("retries", "what", "messages") if each[1])
    assert {what: sum(n for w, n in counted if w == what) for what, _ in counted} == {
        "dead letters": 1,
        "retries": 3,
    }
    assert [what for (what,) in cells("journey", "what")][:2] == ["sent by the producer", "stored"]
    assert "u29" in sections["journey"].note
    assert len(sections["journey"].rows) == 6
    assert sections["sizes"].total is not None
    assert sections["sizes"].total[3:7] == [40, 600, 15, 30]
    assert made.verdict is not None
    assert not made.verdict.is_good
    assert made.verdict.sentences == [
        f"Group {group} is 5 messages behind.",
        f"4 retries of group {group} wait.",
        f"2 dead letters of group {group} wait: skylark dlq show {group}",
        "10 messages were sent twice.",
    ]
    assert {total.name: total.value for total in made.totals}.items() >= {
        "messages": "40",
        "retries": "3",
    }.items()
    assert cells("sizes", "queueId", "messages", "bodyBytes", "maxBytes") == [
        (0, 30, 300, 10),
        (1, 10, 300, 30),
    ]
    assert sum(count for (count,) in cells("traffic", "messages")) == 40
    assert cells("keys", "key", "messages") == [("<hot>", 30)]
    assert cells("duplicates", "messages", "distinct", "duplicates", "times") == [(40, 30, 10, 2)]
    [(lowest, median, highest)] = cells("latency", "min", "p50", "max")
    assert lowest <= median <= highest < 600_000
    page = Page()
    page.feed(render(made))
    page.close()
    assert page.open == []
    assert page.sections == list(report.NAMES)
    assert page.bars >= 6
    assert "<hot>" in page.text  # escaped in the source, itself on the screen
