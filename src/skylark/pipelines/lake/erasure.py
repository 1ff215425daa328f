"""Deletes the messages of a key from a table, and tells what the log still holds of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skylark.errors import RocketMQError
from skylark.model.message import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from skylark.model.record import decode_all
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.lake.parquet_files import TableFile, without_rows
from skylark.pipelines.lake.table_log import TableLog
from skylark.pipelines.lake.table_reader import read_file
from skylark.pipelines.schema import arrow_schema, columns_schema, table_columns
from skylark.protocol.requests.admin import GetBrokerConfig

HOUR_MS = 3_600_000
LOOKUP_MAX = 64
KEYS = ("uniqKey", "keys")
RETENTION, RETENTION_HOURS = "fileReservedTime", 72


class LogRemainder(msgspec.Struct, frozen=True):
    """A message that the log still holds."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    until_ms: int
    """Its file may be deleted from then on, if all messages in it are as old."""


class ErasureReport(msgspec.Struct, frozen=True):
    """What was deleted and what is left."""

    rows: int
    files: int
    in_log: list[LogRemainder]
    """As far as the brokers' key index tells: at most 64 of each topic and broker."""


def erase(log: TableLog, topic: str, key: str) -> tuple[int, int]:
    """Delete the rows with this key; return their number and that of the files rewritten.

    The old files stay until the next vacuum. Raises SettingsError for Parquet directories, OSError and the
    table's errors.
    """
    schema = table_columns(arrow_schema(columns_schema(["topic", *KEYS])))
    rows = files = 0
    for file in log.files():
        if file.partition.get("topic", topic) != topic:
            continue
        found = _rows_with(log, file, schema, topic, key)
        if found:
            inner = msgspec.structs.replace(file, path=file.path.removeprefix(_inner(log)))
            kept = without_rows(log.written, inner, found, f"without-{uuid.uuid4().hex[:8]}")
            log.replace([file], [kept] if kept.rows else [])
            rows, files = rows + len(found), files + 1
    return rows, files


def _inner(log: TableLog) -> str:
    """What the path of a written file begins with in the table's list of files."""
    return log.written.where.removeprefix(log.store.where).lstrip("/") + "/"


def _rows_with(log: TableLog, file: TableFile, schema: pa.Schema, topic: str, key: str) -> list[int]:
    found: list[int] = []
    start = 0
    for batch in read_file(log.store, file.path, file.partition, schema):
        words = pc.split_pattern(pc.fill_null(batch.column("keys"), ""), " ")
        is_key = pc.equal(pc.list_flatten(words), key)
        mask = np.zeros(batch.num_rows, np.bool_)
        mask[pc.list_parent_indices(words).filter(is_key).to_numpy()] = True
        wanted = pc.or_(pc.fill_null(pc.equal(batch.column("uniqKey"), key), False), pa.array(mask))
        wanted = pc.and_(wanted, pc.fill_null(pc.equal(batch.column("topic"), topic), False))
        found += [start + row for row in np.flatnonzero(wanted.to_numpy(zero_copy_only=False)).tolist()]
        start += batch.num_rows
    return found


def still_in_log(cluster: ClusterClient, topics: Sequence[str], key: str) -> list[LogRemainder]:
    """Ask the brokers for messages with this key. Raises RocketMQError."""
    found: dict[tuple[str, str, int, int], LogRemainder] = {}
    for topic in topics:
        for queue in {queue.broker_name: queue for queue in cluster.queues(topic)}.values():
            try:
                text = cluster.ask_broker(queue, GetBrokerConfig()).text
            except RocketMQError:
                text = ""  # no right to ask
            hours = _hours(text)
            for is_unique in (True, False):
                records = cluster.by_key(queue, key, maximum=LOOKUP_MAX, unique=is_unique)
                for message in decode_all(records, check_crc=False):
                    names = message.properties.get(PROPERTY_KEYS, "").split()
                    if key in (*names, message.properties.get(PROPERTY_UNIQUE_KEY)):
                        place = (topic, queue.broker_name, message.queue_id, message.queue_offset)
                        found[place] = LogRemainder(*place, message.store_timestamp + hours * HOUR_MS)
    return list(found.values())


def _hours(config: str) -> int:
    for line in config.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == RETENTION and value.strip().isdecimal():
            return int(value)
    return RETENTION_HOURS
