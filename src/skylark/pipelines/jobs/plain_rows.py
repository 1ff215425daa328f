"""Rows for people and for scripts: Spark's own text for times, which is right in every zone and every year.

Collected as they are, times come by the clock of the driver's machine, without a word of its zone; and one
that Python does not know, as a careless client may stamp on a message, ends everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EXACT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
SECONDS = "yyyy-MM-dd HH:mm:ss"


def plain_rows(df: DataFrame, limit: int, times: str = EXACT) -> list[list[Any]]:
    """At most so many rows, times as text in the session's zone."""
    names = [f"c{number}" for number in range(len(df.columns))]  # two columns may have one name
    columns = [
        _plain(F.col(name), field.dataType, times) for name, field in zip(names, df.schema, strict=True)
    ]
    return [list(row) for row in df.toDF(*names).select(*columns).limit(limit).collect()]


def _plain(column: Column, kind: DataType, times: str) -> Column:
    if isinstance(kind, TimestampType):
        return F.date_format(column, times)
    plain = _without_times(kind)
    return column if plain == kind else column.cast(plain)


def _without_times(kind: DataType) -> DataType:
    """The type with text for every time in it."""
    if isinstance(kind, TimestampType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _without_times(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_without_times(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_without_times(kind.keyType), _without_times(kind.valueType))
    return kind
