"""RecordRows: the result of a pull as undecoded records, handed out as Arrow batches.

Imported on first use: it needs pyarrow and numpy, which the extra `skylarkmq[arrow]` installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skylark.arrow.columns import VALUE, message_schema
from skylark.arrow.decoder import Decoder, PropertyTexts
from skylark.arrow.json_bodies import JsonBodies
from skylark.arrow.record_layout import Records, locate, record_starts, unit_sizes, unwrapped
from skylark.client.consumer.subscription import TopicSubscription
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.pull import PullResult

ROWS_PER_PULL = 2048
"""Messages to pull at once: decoding costs little per row, but some hundred microseconds per batch."""
COLUMNS = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "body")
"""Columns unless others are asked for."""


class RecordRows:
    """Located records of one pull."""

    def __init__(self, queue: MessageQueue, records: Records) -> None:
        self.body_bytes = int((records.body_end - records.body_start).sum())
        self._queue = queue
        self._records = records
        self._decoded: tuple[Decoder, pa.RecordBatch] | None = None

    def __len__(self) -> int:
        return len(self._records)

    def offset(self, index: int) -> int:
        return int(self._records.heads["queue_offset"][index])

    def batch(self, decoder: Decoder, topic: str) -> pa.RecordBatch:
        """All rows as a batch, with this name of the topic. Raises CorruptRecord."""
        if self._decoded is None or self._decoded[0] is not decoder:
            batch = decoder.batch(self._records, self._queue.broker_name)
            place = batch.schema.get_field_index("topic")
            if place >= 0 and topic != self._queue.topic:
                names = pa.repeat(pa.scalar(topic, pa.string()), len(batch))
                batch = batch.set_column(place, batch.schema.field(place), names)
            self._decoded = decoder, batch
        return self._decoded[1]


def record_rows(
    queue: MessageQueue, subscription: TopicSubscription, queue_offset: int, result: PullResult
) -> RecordRows:
    """`DecodeRows` of undecoded records. Raises CorruptRecord."""
    data = result.records
    sizes = unit_sizes(result.units, len(data)) if result.units else None
    records = locate(data, record_starts(data) if sizes is None else np.cumsum(sizes) - sizes, sizes)
    if records.bad.any():
        raise records.corrupt(records.bad)
    delta = result.reply.offset_delta or 0
    records = unwrapped(records, queue_offset - delta)
    records.heads["queue_offset"] += delta
    if subscription.tags:
        wanted = pa.array(sorted(tag.decode() for tag in subscription.tags), pa.string())
        matches = pc.fill_null(pc.is_in(PropertyTexts(records).tags, wanted), False)
        records = records.only(np.asarray(matches.to_numpy(zero_copy_only=False), np.bool_))
    return RecordRows(queue, records)


def make_decoder(columns: Sequence[str], json: Any, *, check_crc: bool) -> Decoder:
    """`json` is the Arrow type of JSON bodies, which become the column `value`. Raises SettingsError."""
    if json is None:
        return Decoder(message_schema(columns), check_crc=check_crc)
    kind = pa.struct(list(json)) if isinstance(json, pa.Schema) else json
    names = columns if VALUE in columns else (*columns, VALUE)
    return Decoder(message_schema(names, value=kind), json=JsonBodies(kind), check_crc=check_crc)
