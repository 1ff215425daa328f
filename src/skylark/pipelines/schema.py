"""Columns of the source: their names, types and order, as Spark and as Arrow have them."""

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

from skylark.errors import SettingsError

# What of a DataFrame's columns comes from where is written in docs/spark/source-options.md.
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
BODY_TEXT = "bodyText"
VALUE = "value"
REJECTS = "rejects"
NULLABLE = frozenset({"uniqKey", "tags", "keys", BODY_TEXT, VALUE, REJECTS})
"""Every message has the others: Spark need not look whether they are there."""

# One row per range of a queue that a task would read (`mode=ranges`).
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
    """A null in a column declared NOT NULL kills the JVM's reader; one that may be null costs it time."""
    return StructType([StructField(name, kind, name in NULLABLE) for name, kind in columns.items()])


def columns_schema(names: Iterable[str]) -> StructType:
    """The schema of some of the columns, in the order given."""
    return spark_schema({name: COLUMNS[name] for name in names})


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark wants for it, to the letter: type, order, nullability, zone."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 (it imports much)

    return to_arrow_schema(schema, timezone="UTC")


def table_columns(schema: pa.Schema) -> pa.Schema:
    """The same for a table, whose columns may be null: Delta asks more of those who write one with others."""
    return pa.schema([field.with_nullable(True) for field in schema])


def check_schema(asked: StructType, known: dict[str, DataType], *, free: Iterable[str] = ()) -> None:
    """Refuse a user's schema that we cannot fill: unknown columns, wrong types, NOT NULL where nulls may be.

    Columns in `free` may have any type. Raises SettingsError that names the column.
    """
    for field in asked.fields:
        kind = known.get(field.name)
        if kind is None and field.name not in free:
            raise SettingsError("schema", f"there is no column {field.name!r}; there are {', '.join(known)}")
        if kind is not None and field.name not in free and field.dataType != kind:
            types = f"{kind.simpleString()}, not {field.dataType.simpleString()}"
            raise SettingsError("schema", f"column {field.name!r} is of type {types}")
        if not field.nullable and field.name in NULLABLE:
            raise SettingsError("schema", f"column {field.name!r} may be null: leave out NOT NULL")
