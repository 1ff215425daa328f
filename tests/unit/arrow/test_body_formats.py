"""Bodies as Avro, in Confluent's wire format, as Protobuf and CSV: values, types, and what is rejected."""

from __future__ import annotations

import io
import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from skylark.arrow.body_formats import WIRE, BodyFormat, avro_format, csv_format, protobuf_format
from skylark.arrow.json_bodies import JsonBodies
from skylark.errors import SettingsError

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "was", "type": ["null", "State"], "default": None},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
    ],
}  # fmt: skip
VALUE = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 11, 17, 9, tzinfo=UTC),
    "day": date(2026, 11, 17),
    "price": Decimal("12.50"),
    "ref": uuid.UUID(int=5),
    "state": "PAID",
    "was": "NEW",
    "items": [{"n": 1}, {"n": 2}],
    "more": {"a": 1.5},
}


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoded(form: BodyFormat, *bodies: bytes) -> tuple[list[Any], list[bool]]:
    values, rejected = JsonBodies(form.kind, form.read).decode(
        pa.array(bodies, pa.binary()), np.zeros(len(bodies), np.bool_)
    )
    return values.to_pylist(), rejected.tolist()


def test_avro_bodies_have_the_types_of_their_schema() -> None:
    body = avro(ORDER, VALUE)
    values, rejected = decoded(avro_format(json.dumps(ORDER)), body, body[:-3], body + b"x", b"")
    assert rejected == [False, True, True, True]
    assert values[1:] == [None, None, None]
    assert values[0] == {**VALUE, "ref": str(VALUE["ref"]), "more": [("a", 1.5)]}


def test_confluents_bodies_name_the_schema_that_wrote_them() -> None:
    old = {"type": "record", "name": "A", "fields": [{"name": "n", "type": "int"}]}
    new = {"type": "record", "name": "A", "fields": [
        {"name": "n", "type": "long"}, {"name": "text", "type": "string", "default": "?"}]}  # fmt: skip
    schemas = {3: json.dumps(old), 9: json.dumps(new)}

    def writer(number: int) -> str:
        if number not in schemas:
            raise ValueError(f"unknown schema {number}")
        return schemas[number]

    bodies = (
        WIRE.pack(0, 3) + avro(old, {"n": 1}),
        WIRE.pack(0, 9) + avro(new, {"n": 1 << 40, "text": "x"}),
        WIRE.pack(0, 4) + avro(old, {"n": 1}),
        b"\1\0\0\0\3\2",
        b"",
    )
    values, rejected = decoded(avro_format(schemas[9], writer), *bodies)
    assert rejected == [False, False, True, True, True]
    assert values[:2] == [{"n": 1, "text": "?"}, {"n": 1 << 40, "text": "x"}]


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.enum_type.add(name="State").value.add(name="NEW", number=0)
    file.enum_type[0].value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="n", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=one)
    order.field.add(name="state", number=2, type=field.TYPE_ENUM, type_name=".shop.State", label=one)
    order.field.add(name="items", number=3, type=field.TYPE_MESSAGE, type_name=".shop.Item", label=many)
    order.field.add(name="first", number=4, type=field.TYPE_MESSAGE, type_name=".shop.Item", label=one)
    order.field.add(name="raw", number=5, type=field.TYPE_BYTES, label=one)
    order.field.add(
        name="more", number=6, type=field.TYPE_MESSAGE, type_name=".shop.Order.MoreEntry", label=many
    )
    entry = order.nested_type.add(name="MoreEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=one)
    return descriptor_pb2.FileDescriptorSet(file=[file])


def test_protobuf_bodies_have_the_fields_of_their_message() -> None:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptors().file[0])
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    body = message(id=1 << 50, state=1, items=[{"n": 1}, {"n": 2}], raw=b"\0\1", more={"a": 0.5})
    form = protobuf_format(descriptors().SerializeToString(), "shop.Order")
    values, rejected = decoded(form, body.SerializeToString(), b"\xff\xff", b"")
    assert rejected == [False, True, False]
    assert values[0] == {
        "id": 1 << 50,
        "state": "PAID",
        "items": [{"n": 1}, {"n": 2}],
        "first": None,
        "raw": b"\0\1",
        "more": [("a", 0.5)],
    }
    with pytest.raises(SettingsError, match=r"has no message 'shop\.Other'"):
        protobuf_format(descriptors().SerializeToString(), "shop.Other")
    with pytest.raises(SettingsError, match="invalid descriptor file"):
        protobuf_format(b"no descriptor", "shop.Order")


def test_csv_bodies_are_one_line_each() -> None:
    kind = pa.struct(
        [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("ok", pa.bool_())]
    )
    bodies = (
        b'1,"a, ""b""",2.5,true',
        b"2,,,",
        b"x,a,1,true",
        b"1,a",
        b"1,a,1,true\n2,b,1,true",
        b"\xff,a,1,",
    )
    values, rejected = decoded(csv_format(kind), *bodies)
    assert rejected == [False, False, True, True, True, True]
    assert values[:2] == [
        {"id": 1, "name": 'a, "b"', "amount": 2.5, "ok": True},
        {"id": 2, "name": None, "amount": None, "ok": None},
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("nothing", "invalid Avro schema"),
        ('"string"', "not a record"),
        ('{"type": "record", "name": "A", "fields": [{"name": "b", "type": ["int", "string"]}]}', "unions"),
        ('{"type": "record", "name": "A", "fields": [{"name": "b", "type": ["null", "A"]}]}', "recursive"),
    ],
)
def test_schemas_without_a_table_are_refused(schema: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        avro_format(schema)
