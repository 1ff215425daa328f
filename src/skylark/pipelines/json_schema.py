"""Pure. Infers a Spark schema from sampled JSON bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from skylark.arrow.json_bodies import UNREADABLE

DEPTH_MAX = 32
"""Nesting limit of an inferred schema; deeper values are text."""
_decode = msgspec.json.Decoder().decode


def infer_schema(bodies: Iterable[bytes]) -> StructType:
    """Infer the schema of the JSON objects among `bodies`; members of conflicting types are text."""
    kinds = [_kind_of(value, 0) for body in bodies if isinstance(value := _readable(body), dict)]
    merged = _without_unknown(_merge_all(kinds) or StructType([]))
    assert isinstance(merged, StructType)
    return merged


def _readable(body: bytes) -> Any:
    try:
        return _decode(body)
    except UNREADABLE:
        return None


def _kind_of(value: Any, depth: int) -> DataType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return BooleanType()
    if isinstance(value, int):
        return LongType() if -(1 << 63) <= value < 1 << 63 else DoubleType()
    if isinstance(value, float):
        return DoubleType()
    if isinstance(value, str) or depth >= DEPTH_MAX:
        return StringType()
    if isinstance(value, list):
        return ArrayType(_merge_all([_kind_of(item, depth + 1) for item in value]) or _Unknown())
    fields = [StructField(name, _kind_of(item, depth + 1) or _Unknown()) for name, item in value.items()]
    return StructType(fields)


class _Unknown(StringType):
    """A member that is null so far: text, unless another body gives it a type."""


def _merge_all(kinds: Sequence[DataType | None]) -> DataType | None:
    merged: DataType | None = None
    for kind in kinds:
        merged = _merge(merged, kind)
    return merged


def _merge(one: DataType | None, other: DataType | None) -> DataType | None:
    if one is None or isinstance(one, _Unknown):
        return other or one
    if other is None or isinstance(other, _Unknown) or one == other:
        return one
    if isinstance(one, StructType) and isinstance(other, StructType):
        members = {field.name: field.dataType for field in one.fields}
        for field in other.fields:
            members[field.name] = _merge(members.get(field.name), field.dataType) or StringType()
        return StructType([StructField(name, kind) for name, kind in members.items()])
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return ArrayType(_merge(one.elementType, other.elementType) or StringType())
    if {type(one), type(other)} == {LongType, DoubleType}:
        return DoubleType()
    return StringType()


def _without_unknown(kind: DataType) -> DataType:
    """Replace members that were always null by text."""
    if isinstance(kind, _Unknown):
        return StringType()
    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, _without_unknown(field.dataType)) for field in kind.fields]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_without_unknown(kind.elementType))
    return kind
