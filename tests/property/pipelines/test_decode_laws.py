"""The vectorised decoder gives what the record-at-a-time decoder gives, for any record and columns."""

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.arrow import decoder
from skylark.arrow.columns import BODY_TEXT
from skylark.arrow.decoder import Decoder
from skylark.arrow.record_layout import in_order, locate, record_starts
from skylark.errors import CorruptRecord
from skylark.model.message import PutMessage, SystemFlag, pack_host
from skylark.model.record import encode
from skylark.pipelines.schema import COLUMNS, arrow_schema, spark_schema
from tests.support.record_rows import batch_of, rows_of

ALL = arrow_schema(spark_schema({**COLUMNS, BODY_TEXT: COLUMNS["topic"]}))
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.sampled_from(
    [
        pack_host("10.0.0.1", 10911),
        pack_host("255.1.2.3", 65535),
        pack_host("2001:db8::1", 10911),
        pack_host("::", 0),
    ]
)
NAMES = [
    b"TAGS",
    b"KEYS",
    b"UNIQ_KEY",
    b"TAG",
    b"XTAGS",
    b"a",
    b"longer-than-eight-bytes",
    b"longer-than-8-too",
]
ODD = [b"\x01", b"\x02", b"\x02\x02", b"", b"\xff", b"\xc3", "ü".encode(), b"k1 k2", b"\x00", b"v" * 300]
PIECES = st.sampled_from([*NAMES, *ODD])
TEXTS = st.one_of(
    st.lists(PIECES, max_size=14).map(b"".join),
    st.lists(st.tuples(PIECES, PIECES), max_size=5).map(
        lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)
    ),
    st.just(b"TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01u\x02WAIT\x01true"),
)
BODIES = st.one_of(st.binary(max_size=40), st.just(zlib.compress(b"hello" * 20)), st.just(b""))


@st.composite
def messages(draw: st.DrawFn) -> PutMessage:
    flags = st.sampled_from(
        [0, 0, 0, SystemFlag.COMPRESSED, SystemFlag.COMPRESSED | 0x300, 0x301, 0x701, 0x8]
    )
    return PutMessage(
        topic=draw(st.sampled_from(["T", "orders", "t" * 127, "x" * 128, "long" * 60, "ünï"])),
        queue_id=draw(INT32),
        body=draw(BODIES),
        properties=draw(TEXTS),
        flag=draw(INT32),
        sys_flag=int(draw(flags)),
        born_timestamp=draw(INT64),
        born_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
    )


@st.composite
def record_buffers(draw: st.DrawFn) -> bytes:
    return b"".join(
        encode(
            message,
            queue_offset=draw(INT64),
            physical_offset=draw(INT64),
            store_timestamp=draw(INT64),
            store_host=draw(HOSTS),
        )
        for message in draw(st.lists(messages(), max_size=8))
    )


@pytest.fixture(params=["compiled", "numpy"], scope="module", autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """With the compiled module, and without it."""
    module = request.getfixturevalue("compiled") if request.param == "compiled" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "_join_column", getattr(module, "join_column", None))
        yield


def decoded(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    return Decoder(schema).batch(locate(data, record_starts(data)), "broker-a")


def assert_equal(found: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    assert found.schema == expected.schema
    found.validate(full=True)
    assert found.num_rows == expected.num_rows
    for name in expected.schema.names:
        assert found.schema.field(name).nullable or not found.column(name).null_count, name
        assert found.column(name).cast(expected.schema.field(name).type).equals(expected.column(name)), name


@given(record_buffers())
def test_all_columns_equal_the_record_loop(data: bytes) -> None:
    assert_equal(decoded(data, ALL), batch_of(rows_of(data, "broker-a"), ALL))


@settings(max_examples=40)
@given(record_buffers(), st.lists(st.sampled_from(ALL.names), unique=True))
def test_any_columns_in_any_order(data: bytes, names: list[str]) -> None:
    schema = pa.schema([ALL.field(name) for name in names])
    if names:
        assert_equal(decoded(data, schema), batch_of(rows_of(data, "broker-a"), schema))


@given(record_buffers(), st.data())
def test_damage_is_refused_and_never_misread(data: bytes, draw: st.DataObject) -> None:
    """A flipped byte gives an error, or what the record loop makes of it."""
    if not data:
        return
    damaged = bytearray(data)
    damaged[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    try:
        expected = rows_of(bytes(damaged), "broker-a")
    except CorruptRecord:
        with pytest.raises(CorruptRecord):
            decoded(bytes(damaged), ALL)
        return
    assert_equal(decoded(bytes(damaged), ALL), batch_of(expected, ALL))


@settings(max_examples=30)
@given(record_buffers(), st.randoms())
def test_records_in_any_order_are_put_in_one(data: bytes, random: object) -> None:
    starts = record_starts(data)
    ends = np.append(starts[1:], len(data)) if len(starts) else starts
    order = np.random.default_rng(len(data)).permutation(len(starts))
    buffer, places = in_order(data, starts[order], (ends - starts)[order])
    found = Decoder(ALL).batch(locate(buffer, places), "broker-a")
    rows = rows_of(data, "broker-a")
    assert_equal(found, batch_of([rows[row] for row in order], ALL))


@settings(max_examples=30)
@given(record_buffers())
def test_the_filter_is_exact(data: bytes) -> None:
    wanted = frozenset({"A", "k1 k2"})
    found = Decoder(ALL, wanted_tags=wanted).batch(locate(data, record_starts(data)), "b")
    assert_equal(found, batch_of([row for row in rows_of(data, "b") if row["tags"] in wanted], ALL))
