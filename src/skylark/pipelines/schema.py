"""Columns of the source: names, types and order, for Spark and for Arrow."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skylark.arrow.columns import NULLABLE
from skylark.errors import SettingsError

# docs/spark/source-options.md documents each column.
COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "queueOffset": LongType(),
    "physicalOffset": LongType(),
    "msgId": StringType(),
    "uniqKey": StringType(),
    "tags": StringType(),
    "keys": StringType(),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "bornTimestamp": TimestampType(),
    "storeTimestamp": TimestampType(),
    "bornHost": StringType(),
    "storeHost": StringType(),
    "reconsumeTimes": IntegerType(),
    "sysFlag": IntegerType(),
    "flag": IntegerType(),
}

# With `mode=ranges`: one row per range of a queue.
RANGE_COLUMNS: dict[str, DataType] = {
    "topic": StringType(),
    "brokerName": StringType(),
    "queueId": IntegerType(),
    "fromOffset": LongType(),
    "toOffset": LongType(),
    "messages": LongType(),
    "bytes": LongType(),
    "range": BinaryType(),
}


def spark_schema(columns: dict[str, DataType]) -> StructType:
    """A null in a NOT NULL column crashes the JVM's reader; nullable columns cost it time."""
    return StructType([StructField(name, kind, name in NULLABLE) for name, kind in columns.items()])


def columns_schema(names: Iterable[str]) -> StructType:
    return spark_schema({name: COLUMNS[name] for name in names})


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects: same types, order, nullability and time zone."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  slow to import

    return to_arrow_schema(schema, timezone="UTC")


def table_columns(schema: pa.Schema) -> pa.Schema:
    """The schema with nullable columns: a Delta table with NOT NULL columns demands more of its writers."""
    return pa.schema([field.with_nullable(True) for field in schema])


def check_schema(asked: StructType, known: dict[str, DataType], *, free: Iterable[str] = ()) -> None:
    """Check a user's schema: unknown columns, wrong types, NOT NULL on nullable columns.

    Columns in `free` may have any type. Raises SettingsError that names the column.
    """
    for field in asked.fields:
        kind = known.get(field.name)
        if kind is None and field.name not in free:
            raise SettingsError("schema", f"unknown column {field.name!r}; choose from {', '.join(known)}")
        if kind is not None and field.name not in free and field.dataType != kind:
            types = f"{kind.simpleString()}, not {field.dataType.simpleString()}"
            raise SettingsError("schema", f"column {field.name!r} must be of type {types}")
        if not field.nullable and field.name in NULLABLE:
            raise SettingsError("schema", f"column {field.name!r} may be null; remove NOT NULL")
