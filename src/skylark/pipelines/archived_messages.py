"""Messages of an archive's table one by one, as a broker would show them, for the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skylark.client.received_message import COMPRESSED, INNER_BATCH, ReceivedMessage, decode_pull
from skylark.model.message import PutMessage, encode_properties, pack_host
from skylark.model.record import encode
from skylark.model.tag_expression import MATCH_ALL, split_tags
from skylark.pipelines.history import TopicHistory, may_hold, wanted_rows
from skylark.pipelines.lake.parquet_files import TableFile
from skylark.pipelines.message_source import OffsetRange
from skylark.pipelines.schema import COLUMNS
from skylark.protocol.bodies import MessageQueue

ORDER = [(name, "ascending") for name in ("storeTimestamp", "brokerName", "queueId", "queueOffset")]
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: times of columns have no later one."""
STORED_AT = "storeTimestamp"


def archived_between(
    history: TopicHistory,
    topic: str,
    begin_ms: int,
    end_ms: int,
    *,
    expression: str = MATCH_ALL,
    maximum: int,
) -> list[ReceivedMessage]:
    """The first messages of a topic stored in a time, end excluded, oldest first; by tags, if some are given.

    Holds at most twice `maximum` of them in memory, and a batch of a file. Raises OSError, SettingsError.
    """
    first, last = _moment(begin_ms), _moment(end_ms)
    tags, found, kept = split_tags(expression), pa.schema([]).empty_table(), 0
    bounds = {queue: (0, end) for queue, end in history.ends.items() if queue.topic == topic}
    for file in sorted(history.files, key=lambda file: str(file.minima.get(STORED_AT, ""))):
        if not _overlaps(file, topic, first, last):
            continue
        if kept == maximum and str(file.minima.get(STORED_AT, "")) > _text(found[STORED_AT][-1].as_py()):
            break  # this file and those after it are later than what was found
        for batch in history.read(file, COLUMNS):
            inside = batch.filter(pa.array(wanted_rows(batch, bounds)))
            rows = inside.filter(_wanted(inside, first, last, tags))
            if not rows.num_rows:
                continue
            part = pa.Table.from_batches([rows])
            both = pa.concat_tables([found, part]) if kept else part
            found = both.take(pc.sort_indices(both, sort_keys=ORDER)[:maximum])
            kept = found.num_rows
    return [_message(row) for row in found.to_pylist()] if kept else []


def archived_at(history: TopicHistory, queue: MessageQueue, queue_offset: int) -> ReceivedMessage | None:
    """The message at an offset of a queue; None if the table lacks it. Raises OSError, SettingsError."""
    place = OffsetRange(queue, queue_offset, queue_offset + 1)
    for file in history.files:
        if may_hold(file, place):
            for batch in history.read(file, COLUMNS):
                mask = wanted_rows(batch, {queue: (queue_offset, queue_offset + 1)})
                for row in batch.filter(pa.array(mask)).to_pylist():
                    return _message(row)
    return None


def _overlaps(file: TableFile, topic: str, first: datetime, last: datetime) -> bool:
    low, high = file.minima.get(STORED_AT), file.maxima.get(STORED_AT)
    return (
        file.partition.get("topic", topic) == topic
        and not (isinstance(high, str) and high < _text(first))
        and not (isinstance(low, str) and low >= _text(last))
    )


def _wanted(batch: pa.RecordBatch, first: datetime, last: datetime, tags: tuple[str, ...] | None) -> pa.Array:
    at = batch.column(STORED_AT)
    mask = pc.and_(pc.greater_equal(at, pa.scalar(first, at.type)), pc.less(at, pa.scalar(last, at.type)))
    if tags is not None:
        mask = pc.and_(mask, pc.is_in(batch.column("tags"), pa.array(tags, pa.string())))
    return mask


def _message(row: dict[str, Any]) -> ReceivedMessage:
    """A row as a message. Bodies of a table are not compressed, and it does not record the ends of queues."""
    message = PutMessage(
        topic=row["topic"],
        queue_id=row["queueId"],
        body=row["body"] or b"",
        properties=encode_properties(dict(row["properties"] or [])),
        flag=row["flag"] or 0,
        sys_flag=(row["sysFlag"] or 0) & ~(COMPRESSED | INNER_BATCH),
        born_timestamp=_ms(row["bornTimestamp"]),
        born_host=_host(row["bornHost"]),
        reconsume_times=row["reconsumeTimes"] or 0,
    )
    record = encode(
        message,
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"] or 0,
        store_timestamp=_ms(row[STORED_AT]),
        store_host=_host(row["storeHost"]),
    )
    (found,) = decode_pull(record, MessageQueue(row["topic"], row["brokerName"], row["queueId"]))
    return found


def _host(text: str | None) -> bytes:
    host, _, port = (text or "0.0.0.0:0").rpartition(":")
    return pack_host(host.strip("[]"), int(port))


def _ms(moment: datetime | None) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(min(at_ms, LAST_MS) / 1000, UTC)


def _text(moment: datetime) -> str:
    """As the statistics of files have it, to be compared as text."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"
