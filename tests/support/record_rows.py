"""Records to Arrow one message at a time, from `record.decode`: what the vectorised decoder must equal."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from skylark.errors import BadBody
from skylark.model.body import plain_body
from skylark.model.message import StoredMessage
from skylark.model.message_id import offset_message_id
from skylark.model.record import decode_all, split

MILLISECONDS_MAX = (1 << 63) // 1000 - 1


def rows_of(data: bytes, broker_name: str, *, check_crc: bool = False) -> list[dict[str, object]]:
    """One dictionary per record, with all columns."""
    rows, position = [], 0
    for message in decode_all(data, check_crc=check_crc):
        head = split(data, position).head
        rows.append(row_of(message, broker_name, store_host=head[11]))
        position += message.size
    return rows


def row_of(message: StoredMessage, broker_name: str, *, store_host: bytes) -> dict[str, object]:
    try:
        body = plain_body(message)
    except BadBody:
        body = message.body
    return {
        "topic": message.topic,
        "brokerName": broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "msgId": offset_message_id(store_host, message.physical_offset),
        "uniqKey": message.unique_key,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "body": body,
        "bodyText": body.decode(errors="replace"),
        "properties": list(message.properties.items()),
        "bornTimestamp": _microseconds(message.born_timestamp),
        "storeTimestamp": _microseconds(message.store_timestamp),
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
    }


def batch_of(rows: Iterable[dict[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    """The rows' columns that a schema names."""
    rows = list(rows)
    arrays = [pa.array([row[name] for row in rows], schema.field(name).type) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(milliseconds: int) -> int:
    return max(-MILLISECONDS_MAX, min(MILLISECONDS_MAX, milliseconds)) * 1000
