"""Pure. The columns of a message in Arrow: names, types and which may be null."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from skylark.errors import SettingsError

MICROSECONDS = pa.timestamp("us", tz="UTC")
BODY_TEXT = "bodyText"
VALUE = "value"
REJECTS = "rejects"
NULLABLE = frozenset({"uniqKey", "tags", "keys", BODY_TEXT, VALUE, REJECTS})
"""All other columns are NOT NULL, which saves Spark null checks."""

COLUMN_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "msgId": pa.string(),
    "uniqKey": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "bornTimestamp": MICROSECONDS,
    "storeTimestamp": MICROSECONDS,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "sysFlag": pa.int32(),
    "flag": pa.int32(),
    BODY_TEXT: pa.string(),
}


def message_schema(names: Iterable[str], *, value: pa.DataType | None = None) -> pa.Schema:
    """The schema of some columns; `value` is the type of decoded JSON bodies, null where one does not fit.

    Raises SettingsError for an unknown or repeated column.
    """
    known = COLUMN_TYPES if value is None else {**COLUMN_TYPES, VALUE: value}
    fields: dict[str, pa.Field] = {}
    for name in names:
        if name not in known:
            raise SettingsError("columns", f"unknown column {name!r}; choose from {', '.join(known)}")
        if name in fields:
            raise SettingsError("columns", f"column {name!r} is named twice")
        fields[name] = pa.field(name, known[name], nullable=name in NULLABLE)
    return pa.schema(fields.values())
