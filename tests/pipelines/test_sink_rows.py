"""The sink's pure parts: columns, keys, properties, pace, and the keys that a consumer has seen."""

import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from skylark.errors import SettingsError
from skylark.model.message import decode_properties
from skylark.model.record import split_batch
from skylark.pipelines.dedup import SeenKeys
from skylark.pipelines.options import option_table
from skylark.pipelines.row_sender import OutMessage, RowPace, SendRoute, encode_batch
from skylark.pipelines.sink import (
    Identity,
    RowReader,
    SinkOptions,
    batch_writer,
    check_columns,
    read_options,
    row_key,
    stream_writer,
)
from skylark.protocol.bodies import BrokerData, QueueData, TopicRouteData

OPTIONS = {"namesrv": "127.0.0.1:9876", "topic": "orders"}
ME = Identity("scope", "7", 3)


TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "double": DoubleType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def new_keys(count: int) -> pa.Array:
    """As the sender's, but always the same."""
    return pa.array([b"UNIQ_KEY\x01NEW\x02"] * count)


def schema(text: str) -> StructType:
    """Of `name type, name type`; Spark's own reader of such texts needs a JVM."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


# --- Columns and options ---


@pytest.mark.parametrize(
    ("ddl", "column", "sentence"),
    [
        ("tags string", "body", "missing column body"),
        ("body int", "body", "the column is int; the sink needs binary or string"),
        ("body binary, tags int", "tags", "the column is int"),
        ("body binary, keys map<string,string>", "keys", "string or array<string>"),
        ("body binary, properties map<string,int>", "properties", r"needs map<string,string>"),
        ("body binary, amount double", "amount", "unknown column"),
        ("body binary, deliverAt string", "deliverAt", "timestamp or bigint"),
    ],
)
def test_wrong_columns_are_refused_before_anything_is_sent(ddl: str, column: str, sentence: str) -> None:
    for writer in (batch_writer, stream_writer):
        with pytest.raises(SettingsError, match=sentence) as refused:
            writer(OPTIONS, schema(ddl), False)
        assert refused.value.name == column


def test_a_topic_must_come_from_somewhere() -> None:
    options = read_options({"namesrv": "h:1"})
    with pytest.raises(SettingsError, match="set the option topic or add a column topic"):
        check_columns(schema("body binary"), options)
    check_columns(schema("body binary, topic string"), options)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"exactlyOnce": "txn"}, "exactlyOnce"),
        ({"rowsPerSecond": "fast"}, "invalid rate"),
        ({"rowsPerSecond": "0"}, "invalid rate"),
        ({"topic": "no spaces"}, "illegal characters"),
        ({"exactlyonc": "keys"}, "did you mean exactlyOnce"),
        ({"inFlightMax": "-1"}, "whole number above 0"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        batch_writer({**OPTIONS, **changes}, schema("body binary"), False)


def test_overwriting_a_topic_is_refused() -> None:
    with pytest.raises(SettingsError, match="append"):
        batch_writer(OPTIONS, schema("body binary"), True)


def test_what_spark_adds_to_the_options_is_let_through() -> None:
    given_options = {**OPTIONS, "checkpointLocation": "somewhere", "rowsPerSecond": "200/s"}
    assert read_options(given_options).rows_per_second == 200
    assert "exactlyOnceId" in option_table(SinkOptions)


# --- Rows ---


def read(rows: list[dict[str, Any]], arrow: pa.Schema | None = None, **changes: str) -> list[OutMessage]:
    batch = pa.RecordBatch.from_pylist(rows, arrow)
    reader = RowReader(batch.schema.names, read_options({**OPTIONS, **changes}), ME)
    return list(reader.messages(batch, lambda: "NEW"))


def test_columns_become_properties() -> None:
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    [message] = read(
        [
            {
                "body": "text",
                "tags": "paid",
                "keys": ["a", "b"],
                "shardingKey": "customer-7",
                "deliverAt": moment,
                "properties": {"region": "eu", "TAGS": "overruled", "CLUSTER": "of the past"},
            }
        ],
        pa.schema(
            [
                ("body", pa.string()),
                ("tags", pa.string()),
                ("keys", pa.list_(pa.string())),
                ("shardingKey", pa.string()),
                ("deliverAt", pa.timestamp("us", "UTC")),
                ("properties", pa.map_(pa.string(), pa.string())),
            ]
        ),
    )
    assert message.body == b"text"
    assert decode_properties(message.properties) == {
        "region": "eu",
        "TAGS": "paid",
        "KEYS": "a b",
        "__SHARDINGKEY": "customer-7",
        "TIMER_DELIVER_MS": str(round(moment.timestamp() * 1000)),
        "UNIQ_KEY": "NEW",
    }
    assert message.sharding_key == "customer-7"
    assert message.is_single


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "body": st.binary(min_size=1, max_size=8),
                "topic": st.sampled_from(["a", "b"]),
                "tags": st.sampled_from(["paid", "", None]),
                "keys": st.lists(st.sampled_from(["k1", "k2", "", None]), max_size=3) | st.none(),
            }
        ),
        max_size=9,
    )
)
def test_rows_encoded_by_column_are_the_messages_of_a_loop(rows: list[dict[str, Any]]) -> None:
    arrow = pa.schema(
        [
            ("body", pa.binary()),
            ("topic", pa.string()),
            ("tags", pa.string()),
            ("keys", pa.list_(pa.string())),
        ]
    )
    batch = pa.RecordBatch.from_pylist(rows, arrow)
    reader, again = (RowReader(batch.schema.names, read_options({"namesrv": "h:1"}), ME) for _ in range(2))
    assert reader.is_plain
    found = [
        (number, rows.topic, bytes(each.body), decode_properties(each.properties))
        for rows in reader.encoded(batch, new_keys)
        for number, each in zip(
            rows.numbers, split_batch(rows.elements.part(range(len(rows.elements)))), strict=True
        )
    ]
    assert sorted(found, key=lambda each: each[0]) == [
        (message.row, message.topic, message.body, decode_properties(message.properties))
        for message in again.messages(batch, lambda: "NEW")
    ]


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ({"shardingKey": "a"}, {}),
        ({"queueId": 1}, {}),
        ({"delayLevel": 3}, {}),
        ({}, {"exactlyOnce": "keys"}),
        ({}, {"rowsPerSecond": "5/s"}),
    ],
)
def test_rows_with_a_place_or_a_pace_of_their_own_are_not_encoded_by_column(
    column: dict[str, Any], changes: dict[str, str]
) -> None:
    names = ["body", *column]
    assert not RowReader(names, read_options({**OPTIONS, **changes}), ME).is_plain


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"body": b""}, "row 2 has an empty body"),
        ({"body": None}, "row 2 has an empty body"),
        ({"tags": "a\x02b"}, "tags: row 2 holds"),
        ({"tags": "a" * 40_000}, "row 2 has more than 32767 bytes of properties"),
    ],
)
def test_the_row_that_no_broker_takes_is_named(row: dict[str, Any], sentence: str) -> None:
    good = {"body": b"x", "tags": "a"}
    batch = pa.RecordBatch.from_pylist([good, good, {**good, **row}])
    reader = RowReader(batch.schema.names, read_options(OPTIONS), ME)
    with pytest.raises(SettingsError, match=sentence):
        list(reader.encoded(batch, new_keys))


def test_a_row_without_a_topic_is_named() -> None:
    batch = pa.RecordBatch.from_pylist([{"body": b"b", "topic": name} for name in ("a", "a", None)])
    reader = RowReader(batch.schema.names, read_options({"namesrv": "h:1"}), ME)
    with pytest.raises(SettingsError, match="row 2: the column is null"):
        list(reader.encoded(batch, new_keys))


def test_a_time_of_birth_is_not_looked_at_unless_it_is_to_be_kept() -> None:
    odd = pa.array([1 << 62]).view(pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), odd], names=["body", "bornTimestamp"])
    [message] = RowReader(batch.schema.names, read_options(OPTIONS), ME).messages(batch, lambda: "KEY")
    assert (message.body, message.born_ms) == (b"x", None)


def test_the_option_topic_wins_over_the_column() -> None:
    assert read([{"body": b"b", "topic": "elsewhere"}])[0].topic == "orders"


def test_a_queue_is_a_destination_unless_the_row_says_where_it_came_from() -> None:
    assert read([{"body": b"b", "queueId": 3}])[0].queue_id == 3
    origin = {"topic": "old", "brokerName": "a", "queueId": 3, "queueOffset": 9}
    assert read([{"body": b"b", **origin}])[0].queue_id is None


@given(st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=20))
def test_keys_are_the_same_when_rows_are_sent_again_and_never_twice(bodies: list[bytes]) -> None:
    rows = [{"body": body} for body in bodies]
    keys = [decode_properties(message.properties)["UNIQ_KEY"] for message in read(rows, exactlyOnce="keys")]
    again = [decode_properties(message.properties)["UNIQ_KEY"] for message in read(rows, exactlyOnce="keys")]
    assert keys == again
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)


def test_a_key_from_the_origin_survives_a_shuffle() -> None:
    rows = [
        {"body": b"b", "topic": "old", "brokerName": "a", "queueId": 0, "queueOffset": number}
        for number in range(5)
    ]
    keys = [message.spread_key for message in read(rows, exactlyOnce="keys")]
    turned = [message.spread_key for message in read(rows[::-1], exactlyOnce="keys")]
    assert keys == turned[::-1]
    assert len(set(keys)) == 5


def test_keys_differ_by_work_topic_and_body() -> None:
    keys = {
        row_key(ME, ("t", "b", 0, 1), 0, "orders", b"x"),
        row_key(ME, ("t", "b", 0, 1), 0, "orders", b"y"),
        row_key(ME, ("t", "b", 0, 1), 0, "others", b"x"),
        row_key(Identity("other", "7", 3), ("t", "b", 0, 1), 0, "orders", b"x"),
        row_key(ME, None, 0, "orders", b"x"),
        row_key(ME, None, 1, "orders", b"x"),
    }
    assert len(keys) == 6


# --- Batches, queues, pace ---


@given(st.lists(st.tuples(st.binary(min_size=1), st.binary()), min_size=1, max_size=9))
def test_batches_are_read_as_they_were_written(parts: list[tuple[bytes, bytes]]) -> None:
    body = encode_batch([OutMessage("t", message, properties) for message, properties in parts])
    elements = split_batch(memoryview(body))
    assert [(bytes(each.body), each.properties) for each in elements] == parts


def test_only_queues_of_a_master_that_may_be_written_to_count() -> None:
    route = TopicRouteData(
        broker_datas=[
            BrokerData(broker_name="b", broker_addrs={0: "b:1", 1: "b:2"}),
            BrokerData(broker_name="a", broker_addrs={0: "a:1"}),
            BrokerData(broker_name="slave", broker_addrs={1: "s:1"}),
            BrokerData(broker_name="closed", broker_addrs={0: "c:1"}),
        ],
        queue_datas=[
            QueueData(broker_name="b", write_queue_nums=1, perm=6),
            QueueData(broker_name="a", write_queue_nums=2, perm=6),
            QueueData(broker_name="slave", write_queue_nums=2, perm=6),
            QueueData(broker_name="closed", write_queue_nums=2, perm=4),
        ],
    )
    found = SendRoute("T", route)
    assert [(queue.broker_name, queue.queue_id) for queue in found.queues] == [("a", 0), ("a", 1), ("b", 0)]
    assert found.masters["b"] == "b:1"


@given(st.floats(1, 1e4), st.lists(st.floats(0, 1), max_size=50))
def test_the_pace_is_kept(rate: float, pauses: list[float]) -> None:
    now, pace, sent = 0.0, RowPace(rate, 0.0), []
    for pause in pauses:
        now += pause
        now += pace.wait_s(now)
        sent.append(now)
    assert all(after - before >= 1 / rate - 1e-6 for before, after in itertools.pairwise(sent))


# --- Keys that were seen ---


@given(st.lists(st.integers(0, 30)), st.integers(1, 10))
def test_seen_keys_agree_with_a_list(numbers: list[int], keys_max: int) -> None:
    kept: list[int] = []
    with SeenKeys(keys_max) as seen:
        for number in numbers:
            assert seen.add(str(number)) == (number not in kept)
            seen.commit()
            kept = [*kept, *([number] if number not in kept else [])][-keys_max:]
            assert len(seen) == len(kept)
        assert all(str(number) in seen for number in kept)


def test_seen_keys_last_if_committed(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "seen.sqlite"
    with SeenKeys(10, path) as seen:
        assert seen.add("a")
        seen.commit()
        assert seen.add("b")
    with SeenKeys(10, path) as seen:
        assert not seen.add("a")
        assert seen.add("b")


def test_a_repeated_epoch_starts_anew(tmp_path: Path) -> None:
    with SeenKeys(10, tmp_path / "seen.sqlite") as seen:
        seen.begin("batch 1")
        assert seen.add("a")
        seen.commit()
        seen.begin("batch 1")
        assert seen.add("a")
        seen.commit()
        seen.begin("batch 2")
        assert not seen.add("a")


def test_no_keys_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SeenKeys(0)
