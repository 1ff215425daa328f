"""JSON bodies: what fits becomes a struct, what does not is rejected alone; a schema comes from samples."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa

from skylark.arrow.json_bodies import JsonBodies
from skylark.pipelines.json_schema import infer_schema

KIND = pa.struct(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", tz="UTC")),
        ("more", pa.map_(pa.string(), pa.int64())),
    ]
)


def decoded(*bodies: bytes) -> tuple[list[object], list[bool]]:
    values, rejected = JsonBodies(KIND).decode(pa.array(bodies, pa.binary()), np.zeros(len(bodies), np.bool_))
    assert values.type == KIND
    return values.to_pylist(), rejected.tolist()


def test_what_fits() -> None:
    body = (
        b'{"id": 1.0, "name": "n", "price": 2, "ok": true, "tags": ["a"], "at": "2026-11-01T08:00:00Z", '
        b'"more": {"x": 1}, "unknown": [1]}'
    )
    (value,), (rejected,) = decoded(body)
    assert isinstance(value, dict)
    assert not rejected
    assert (value["id"], value["price"], value["tags"], value["more"]) == (1, 2.0, ["a"], [("x", 1)])
    assert value["at"].isoformat() == "2026-11-01T08:00:00+00:00"


def test_what_does_not_is_rejected_alone() -> None:
    bad = [
        b"not json", b"", b"\xff", b"[1]", b"null", b'{"id": "1"}', b'{"id": 1.5}', b'{"id": 99999999999}',
        b'{"ok": 1}', b'{"tags": "a"}', b'{"price": true}', b'{"at": "yesterday"}', b'{"more": {"x": "y"}}',
    ]  # fmt: skip
    values, rejected = decoded(b'{"id": 1}', *bad, b'{"name": {"first": "x"}}')
    assert rejected == [False, *[True] * len(bad), False]
    assert values[1:-1] == [None] * len(bad)
    assert values[-1]["name"] == '{"first":"x"}'  # type: ignore[index]


def test_days_and_decimals() -> None:
    kind = pa.struct([("day", pa.date32()), ("price", pa.decimal128(10, 2))])
    good = [b'{"day": "2026-11-01", "price": 2.5}', b'{"price": 3}', b'{"price": "4.05"}', b'{"price": null}']
    bad = [
        b'{"day": "yesterday"}', b'{"day": 7.5}', b'{"price": true}', b'{"price": "much"}',
        b'{"price": 1.005}', b'{"price": 123456789012}', b'{"price": "NaN"}', b'{"price": []}',
    ]  # fmt: skip
    bodies = pa.array([*good, *bad], pa.binary())
    values, rejected = JsonBodies(kind).decode(bodies, np.zeros(len(bodies), np.bool_))
    assert rejected.tolist() == [False] * len(good) + [True] * len(bad)
    found = [(value["day"], value["price"]) for value in values.to_pylist()[: len(good)]]
    prices = [Decimal("2.50"), Decimal("3.00"), Decimal("4.05"), None]
    assert found == list(zip([date(2026, 11, 1), None, None, None], prices, strict=True))


def test_null_does_not_fit_where_it_is_forbidden() -> None:
    kind = pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("items", pa.list_(pa.field("element", pa.string(), nullable=False))),
            ("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        ]
    )
    bodies = [
        b'{"id": 1, "items": ["a"], "counts": {"a": 1}}', b'{"id": 2, "items": null}', b"{}", b'{"id": null}',
        b'{"id": 3, "items": [null]}', b'{"id": 4, "counts": {"a": null}}',
    ]  # fmt: skip
    _, rejected = JsonBodies(kind).decode(pa.array(bodies, pa.binary()), np.zeros(len(bodies), np.bool_))
    assert rejected.tolist() == [False, False, True, True, True, True]


def test_what_could_not_be_decompressed_is_not_looked_at() -> None:
    bodies = pa.array([b'{"id": 1}'], pa.binary())
    values, rejected = JsonBodies(KIND).decode(bodies, np.ones(1, np.bool_))
    assert values.to_pylist() == [None]
    assert rejected.tolist() == [True]


def test_a_schema_from_samples() -> None:
    schema = infer_schema(
        [
            b'{"id": 1, "price": 1, "who": {"name": "a"}, "list": [1, 2.5], "odd": 1, "none": null}',
            b'{"id": 2, "price": 1.5, "who": {"age": 3}, "odd": "x"}',
            b'{"later": true, "huge": 99999999999999999999}',
            b"rubbish",
            b"[1]",
        ]
    )
    assert schema.simpleString() == (
        "struct<id:bigint,price:double,who:struct<name:string,age:bigint>,list:array<double>,odd:string,"
        "none:string,later:boolean,huge:double>"
    )
    assert infer_schema([b"rubbish"]).fields == []


def test_an_empty_list_says_nothing_of_its_elements() -> None:
    bodies = [b'{"a": [], "b": [[]]}', b'{"a": [{"sku": 1}], "b": [[1.5]]}', b'{"a": [null], "c": []}']
    for order in (bodies, bodies[::-1]):
        kinds = {field.name: field.dataType.simpleString() for field in infer_schema(order)}
        assert kinds == {"a": "array<struct<sku:bigint>>", "b": "array<array<double>>", "c": "array<string>"}
