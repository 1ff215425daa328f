"""Rows that are encoded by columns have the bytes of messages that are encoded one by one."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.client.producer.arrow_rows import RowColumns, RowEncoder, RowRequest
from skylark.client.producer.message_encoder import RESERVED_PROPERTIES, MessageEncoder
from skylark.client.producer.queue_selectors import ROUND_ROBIN, by_hash
from skylark.errors import BadMessage, BadName, MessageTooLarge, RocketMQError, SettingsError
from skylark.model.message import Message, decode_properties
from skylark.model.record import split_batch
from skylark.model.tag_expression import JAVA_BLANKS
from skylark.protocol.bodies import MessageQueue
from skylark.settings.client import ProducerSettings
from tests.unit.client.keys import GivenKeys

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(4)]
TEXT = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), min_size=1)
WORD = TEXT.filter(lambda text: bool(text.strip()) and " " not in text and text not in RESERVED_PROPERTIES)
TAG = TEXT.map(lambda text: text.replace("|", "").strip(JAVA_BLANKS)).filter(bool)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=40),
            "keys": st.none() | st.lists(WORD, max_size=3),
            "tags": st.none() | TAG,
            "shard": st.none() | WORD,
            "colour": st.none() | WORD,
            "more": st.none() | st.dictionaries(WORD.filter("colour".__ne__), WORD, max_size=3),
        }
    ),
    max_size=30,
)
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("shard", pa.string()),
        ("colour", pa.string()),
        ("more", pa.map_(pa.string(), pa.string())),
    ]
)
KEY = "KEY00AF"
COLUMNS = RowColumns("body", "keys", "tags", "shard", ("colour", "more"))


def message_encoder(namespace: str = "", **settings: Any) -> MessageEncoder:
    keys = GivenKeys(itertools.repeat(KEY), len(KEY))
    return MessageEncoder(ProducerSettings(**settings), namespace, "PG", keys)


def table_of(rows: list[dict[str, Any]], chunks: int = 1) -> pa.Table:
    """A table of several chunks that are slices of one, so that buffers do not begin with a row."""
    listed = [{**row, "more": list((row["more"] or {}).items()) or None} for row in rows]
    whole = pa.RecordBatch.from_pylist(listed, schema=SCHEMA)
    step = max(1, -(-len(rows) // chunks))
    return pa.Table.from_batches([whole.slice(at, step) for at in range(0, len(rows), step)], SCHEMA)


def message_of(row: dict[str, Any], *, wait: bool) -> Message:
    own = {**({"colour": row["colour"]} if row["colour"] else {}), **(row["more"] or {})}
    return Message("t", row["body"], row["tags"], row["keys"] or (), own, row["shard"], wait_for_store=wait)


@given(rows=ROWS, chunks=st.integers(1, 3), namespace=st.sampled_from(["", "shop"]), wait=st.booleans())
def test_the_bytes_are_those_of_messages(
    rows: list[dict[str, Any]], chunks: int, namespace: str, wait: bool
) -> None:
    encoder = RowEncoder(message_encoder(namespace), "t", COLUMNS, wait_for_store=wait)
    seen: list[int] = []
    for some in encoder.slices(table_of(rows, chunks)):
        encoder.check(some)
        for request in encoder.requests(some, QUEUES, ROUND_ROBIN, with_messages=True):
            messages = [message_of(rows[row], wait=wait) for row in request.rows]
            batch = message_encoder(namespace).encode_batch(messages)
            assert bytes(request.encoded.body) == batch.body
            assert request.encoded.topic == batch.topic
            assert request.encoded.properties == f"WAIT\x01{str(wait).lower()}\x02"
            shown = [msgspec.structs.replace(each, keys=list(each.keys)) for each in messages]
            assert list(request.encoded.messages) == shown, "hooks see the messages"
            for message in messages:
                key = message.sharding_key
                assert request.target.queue == (None if key is None else by_hash(QUEUES, message, key))
            seen += request.rows
    assert sorted(seen) == list(range(len(rows)))


def requests_of(table: pa.Table, columns: RowColumns, **settings: Any) -> list[RowRequest]:
    encoder = RowEncoder(message_encoder(**settings), "t", columns)
    slices = list(encoder.slices(table))
    for some in slices:
        encoder.check(some)
    return [request for some in slices for request in encoder.requests(some, QUEUES, ROUND_ROBIN)]


def test_requests_are_split_at_their_size_and_by_rows() -> None:
    large = pa.table({"body": [b"x" * 100_000] * 5 + [b"y" * 300_000] + [b"z"] * 3000})
    requests = requests_of(large, RowColumns("body"))
    assert [request.rows for request in requests] == [
        range(2), range(2, 4), range(4, 5), range(5, 6), range(6, 1030), range(1030, 2054), range(2054, 3006),
    ]  # fmt: skip


def test_columns_of_any_type_become_text() -> None:
    table = pa.table(
        {
            "body": pa.array(["a", "b"]).dictionary_encode(),
            "keys": pa.array([7, None], pa.int64()),
            "tags": pa.array(["A", "B"], pa.large_string()),
            "price": [1.5, 2.0],
        }
    )
    (request,) = requests_of(table, RowColumns("body", "keys", "tags", properties=["price"]))
    found = [
        (bytes(each.body), decode_properties(bytes(each.properties)))
        for each in split_batch(request.encoded.body)
    ]
    rest = {"UNIQ_KEY": KEY, "WAIT": "true"}
    assert found == [
        (b"a", {"KEYS": "7", "TAGS": "A", "price": "1.5", **rest}),
        (b"b", {"TAGS": "B", "price": "2", **rest}),
    ]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [b"x", None]}, "row 1: the message body length is zero"),
        ({"body": ["x", ""]}, "row 1: the message body length is zero"),
        ({"body": ["x", "x" * 2000]}, "2000"),
        ({"keys": ["fine", "a\x01b"]}, "row 1: tags, keys and properties must not contain"),
        ({"tags": ["fine", "A || B"]}, "row 1: tags 'A || B'"),
        ({"tags": ["fine", " A"]}, "row 1: tags ' A'"),
        ({"own": ["fine", "x\0"]}, "row 1: tags, keys and properties must not contain"),
        ({"own": ["fine", "x" * 33_000]}, "row 1: more than 32767 bytes"),
        ({"own": pa.array([None, [("a", "\x02")]], pa.map_(pa.string(), pa.string()))}, "row 1: tags, keys"),
        ({"own": pa.array([None, [("KEYS", "x")]], pa.map_(pa.string(), pa.string()))}, "Property<KEYS>"),
        (
            {"own": pa.array([None, [("a\x01b", "x")]], pa.map_(pa.string(), pa.string()))},
            "cannot be the name",
        ),
        ({"body": pa.array([{"a": 1}, {"a": 2}])}, "column 'body' of type"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, Any], text: str) -> None:
    plain = {"body": ["x", "y"], "keys": ["k", "l"], "tags": ["A", "B"], "own": ["o", "p"]}
    table = pa.table({**plain, **columns})
    with pytest.raises((BadMessage, MessageTooLarge, SettingsError), match=re.escape(text)):
        requests_of(table, RowColumns("body", "keys", "tags", properties=["own"]), message_bytes_max=1000)


@pytest.mark.parametrize(
    ("topic", "columns", "error"),
    [
        ("%RETRY%g", RowColumns("body"), BadMessage),
        ("no spaces", RowColumns("body"), BadName),
        ("t", RowColumns("body", properties=["TAGS"]), BadMessage),
        ("t", RowColumns("nowhere"), SettingsError),
    ],
)
def test_topics_and_columns_of_no_use_are_refused(
    topic: str, columns: RowColumns, error: type[RocketMQError]
) -> None:
    with pytest.raises(error):
        list(RowEncoder(message_encoder(), topic, columns).slices(pa.table({"body": ["x"]})))
