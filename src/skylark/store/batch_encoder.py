"""Pure. Encodes a client's batch into records, column by column, and reserves room for the CRC property."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, count, repeat
from operator import contains
from typing import TYPE_CHECKING

from zlib_ng.zlib_ng import crc32

from skylark.model.message import (
    HOST_V6_MASK,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUMBER,
    PROPERTY_SEPARATOR,
    TRANSACTION_MASK,
)
from skylark.model.record import (
    BLANK_BYTES,
    CRC_MASK,
    CRC_PROPERTY_BYTES,
    HEADS,
    LENGTH,
    LENGTHS,
    MIDDLES,
    QUEUE_AND_FLAG,
    SHARED_HEADS,
    SIZE_AND_MAGIC,
    UNWRAPPED_BY_CLIENTS,
    BatchColumns,
    crc_property,
    terminated,
    without_crc_property,
)
from skylark.store.append_result import (
    NUL_REFUSED,
    AppendedBatch,
    AppendedInnerBatch,
    PutStatus,
    Refused,
)
from skylark.store.disk import Part
from skylark.store.queue_entry import (
    BATCH_MESSAGES_MAX,
    INNER_BATCH,
    NO_TAGS,
    TAGS_MARKER,
    TAGS_NAME,
    delay_level,
    schedule_tags_code,
    tags_code,
)

if TYPE_CHECKING:
    from skylark.model.message import PutMessage
    from skylark.settings import StoreSettings
    from skylark.store.consume_queue import ConsumeQueue

_CRC_ROOM = b"\0" * (CRC_PROPERTY_BYTES - 1) + b"\x02"
_PARTS_PER_RECORD = 5


def with_crc_room(properties: bytes) -> bytes:
    """Append room for the CRC property, which covers everything before it."""
    return terminated(without_crc_property(properties)) + _CRC_ROOM


def fill_in_crc(parts: list[Part]) -> None:
    """Fill the room reserved by `with_crc_room` in each record."""
    for last in range(_PARTS_PER_RECORD - 1, len(parts), _PARTS_PER_RECORD):
        properties = bytes(parts[last][:-CRC_PROPERTY_BYTES])
        covered = b"".join([*parts[last - _PARTS_PER_RECORD + 1 : last], properties])
        parts[last] = properties + crc_property(covered)


ClientBatch = tuple["PutMessage", BatchColumns | int]
"""What all messages of a batch share, and the messages; or, to be stored as one record, the batch itself as
the body, and the number of its messages."""

NO_BATCH_MASK = TRANSACTION_MASK | INNER_BATCH
NOT_IN_BATCH_REFUSED = Refused(
    PutStatus.MESSAGE_ILLEGAL,
    "a batch cannot be a transaction, an inner batch or delayed; send messages one by one",
)
INNER_BASE = f"{PROPERTY_INNER_BASE}{NAME_VALUE_SEPARATOR}%d{PROPERTY_SEPARATOR}".encode()
INNER_NUMBER = f"{PROPERTY_INNER_NUMBER}{NAME_VALUE_SEPARATOR}%d{PROPERTY_SEPARATOR}".encode()
RECORD_BYTES_EXTRA = 64 * 1024
"""Limit of a record without its body, and of a batch without the bodies of its messages."""
COPIED_BYTES_MAX = 4096
"""Records of equal layout are packed in pieces of many records, up to this record size."""
_PACKED_MAX = 64
"""Records per piece."""
_RECORD_FIELDS = 9
_BODY_BYTES = struct.Struct(">i")


def common_code(batch: BatchColumns, shared: bytes) -> int | None:
    """Return the tags code of all messages if they have the same tags or none; else None.

    A cheap check: it requires that every text ends with a separator and ignores tags at the start of a text.
    The last duplicate wins, so shared tags would hide the messages' own; empty tags do not count.
    """
    texts = batch.properties
    first = texts[0]
    at = first.rfind(TAGS_MARKER)
    tags = first[at : first.find(b"\x02", at + 1) + 1] if at >= 0 else b""
    if TAGS_NAME in shared or (at >= 0 and len(tags) <= len(NO_TAGS)):
        return None
    ending = tags
    if not tags or not first.endswith(tags):
        # One TAGS property per message, and each message has these tags: none has others.
        if batch.text.count(TAGS_NAME) != (len(texts) if tags else 0):
            return None
        if tags and not all(map(contains, texts, repeat(tags))):
            return None
        ending = b"\x02"
    if not _all_end(batch, ending):
        return None
    return tags_code(tags) if tags else 0


def _all_end(batch: BatchColumns, ending: bytes) -> bool:
    """Return whether all texts have this ending of at least one byte."""
    texts = batch.properties
    if batch.lengths is not None and len(ending) == 1:
        text_bytes = batch.lengths[1]
        return text_bytes > 0 and batch.text[text_bytes - 1 :: text_bytes] == ending * len(texts)
    return all(map(bytes.endswith, texts, repeat(ending)))


class BatchEncoder:
    """Encodes batches into records, except for the fields that depend on their position in the log."""

    def __init__(self, settings: StoreSettings, delays_ms: Sequence[int]) -> None:
        self._with_crc = settings.append_crc_property
        self._delays_ms = delays_ms
        self._bytes_max = min(
            settings.commit_log_file_bytes - BLANK_BYTES, settings.message_bytes_max + RECORD_BYTES_EXTRA
        )

    def records(
        self, message: PutMessage, batch: BatchColumns, queue: ConsumeQueue, sys_flag: int, timestamp: int
    ) -> RecordColumns | Refused:
        """Return the records of a batch, or its refusal; `message` holds the shared fields."""
        if not batch.flags:
            return Refused(PutStatus.MESSAGE_ILLEGAL, "the batch is empty")
        if sys_flag & NO_BATCH_MASK or delay_level(message.properties) > 0:
            return NOT_IN_BATCH_REFUSED
        records = RecordColumns(
            *self._run(queue, timestamp, sys_flag, batch, message.properties), message, batch
        )
        if records.text_bytes_max > PROPERTIES_BYTES_MAX:
            reason = f"properties have {records.text_bytes_max} bytes, {PROPERTIES_BYTES_MAX} are allowed"
            return Refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
        if records.total_bytes > self._bytes_max:
            reason = f"the batch has {records.total_bytes} bytes of records, {self._bytes_max} are allowed"
            return Refused(PutStatus.MESSAGE_ILLEGAL, reason)
        # Recovery detects torn writes by zeros in a text without a CRC.
        if not self._with_crc and (b"\0" in batch.text or b"\0" in message.properties):
            return NUL_REFUSED
        return records

    def inner_record(
        self, message: PutMessage, count: int, queue: ConsumeQueue, sys_flag: int, timestamp: int
    ) -> InnerBatchRecord | Refused:
        """Return the one record of a batch for the next offsets of its queue, or its refusal."""
        if not queue.is_batched or not 0 < count <= BATCH_MESSAGES_MAX:
            reason = f"a batch of {count} messages cannot be stored as one record of topic {queue.topic}"
            return Refused(PutStatus.MESSAGE_ILLEGAL, reason)
        if sys_flag & NO_BATCH_MASK or delay_level(message.properties) > 0:
            return NOT_IN_BATCH_REFUSED
        if not self._with_crc and b"\0" in message.properties:
            return NUL_REFUSED
        text = INNER_BASE % queue.next_offset + message.properties + INNER_NUMBER % count
        code = tags_code(message.properties)
        text = with_crc_room(text) if self._with_crc else text
        run = AppendedInnerBatch(
            queue, timestamp, sys_flag | UNWRAPPED_BY_CLIENTS, [b""], text, message_count=count
        )
        record = InnerBatchRecord(run, code, message)
        if len(text) > PROPERTIES_BYTES_MAX:
            reason = f"properties have {len(text)} bytes, {PROPERTIES_BYTES_MAX} are allowed"
            return Refused(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason)
        if record.total_bytes > self._bytes_max:
            reason = f"the batch has {record.total_bytes} bytes, {self._bytes_max} are allowed"
            return Refused(PutStatus.MESSAGE_ILLEGAL, reason)
        return record

    def _run(
        self, queue: ConsumeQueue, timestamp: int, sys_flag: int, batch: BatchColumns, shared: bytes
    ) -> tuple[AppendedBatch, list[int]]:
        """Return the batch without its position, and its tags codes."""
        texts = batch.properties
        code = common_code(batch, shared) if not queue.is_schedule and not self._with_crc else None
        if code is not None:
            return AppendedBatch(queue, timestamp, sys_flag, texts, shared), [code] * len(texts)
        texts = [terminated(text) + shared for text in texts]
        if queue.is_schedule:
            codes = [schedule_tags_code(text, timestamp, self._delays_ms) for text in texts]
        else:
            codes = [tags_code(text) for text in texts]
        texts = [with_crc_room(text) for text in texts] if self._with_crc else texts
        return AppendedBatch(queue, timestamp, sys_flag, texts, b""), codes


class RecordColumns:
    """The records of a batch. Raises struct.error for numbers that are out of range."""

    def __init__(
        self, run: AppendedBatch, codes: list[int], message: PutMessage, batch: BatchColumns
    ) -> None:
        self.run = run
        self._codes = codes
        self._message = message
        self._batch = batch
        self._head = SHARED_HEADS[run.sys_flag & HOST_V6_MASK]
        shared_bytes = len(run.shared)
        fixed = self._head.size + len(run.queue.topic_part) + LENGTH.size
        if batch.lengths is not None and run.texts is batch.properties:
            body_bytes, text_bytes = batch.lengths
            self.text_bytes_max = text_bytes + shared_bytes
            self.sizes = [fixed + body_bytes + self.text_bytes_max] * len(run)
            self.total_bytes = self.sizes[0] * len(run)
            self._is_alike = self.sizes[0] <= COPIED_BYTES_MAX
        else:
            text_lengths = [len(text) + shared_bytes for text in run.texts]
            self.text_bytes_max = max(text_lengths)
            lengths = zip(map(len, batch.bodies), text_lengths, strict=True)
            self.sizes = [fixed + body_bytes + text_bytes for body_bytes, text_bytes in lengths]
            self.total_bytes = sum(self.sizes)
            self._is_alike = False

    def parts(self, physical_offset: int, store_host: bytes) -> list[Part]:
        """Give the batch its position and return its records."""
        run, message = self.run, self._message
        run.place(physical_offset, run.queue.next_offset, self.sizes, self._codes)
        middle = MIDDLES[run.sys_flag & HOST_V6_MASK].pack(
            run.sys_flag, message.born_timestamp, message.born_host, run.store_timestamp, store_host,
            message.reconsume_times, 0,
        )  # fmt: skip
        return self._pieces(middle) if self._is_alike else self._each(middle)

    def _each(self, middle: bytes) -> list[Part]:
        run, batch, queue = self.run, self._batch, self.run.queue
        heads = map(
            self._head.pack, self.sizes, repeat(queue.magic), self._crcs(), repeat(queue.queue_id),
            batch.flags, count(run.first_offset), run.physical_offsets, repeat(middle),
            map(len, batch.bodies),
        )  # fmt: skip
        lengths = [LENGTHS[len(text) + len(run.shared)] for text in run.texts]
        records = zip(heads, batch.bodies, repeat(queue.topic_part), lengths, run.properties, strict=False)
        return list(chain.from_iterable(records))

    def _pieces(self, middle: bytes) -> list[Part]:
        """Pack records of equal layout: constant fields and the next record's head are packed only once."""
        run, batch, queue = self.run, self._batch, self.run.queue
        assert batch.lengths is not None
        first = SIZE_AND_MAGIC.pack(self.sizes[0], queue.magic)
        place = QUEUE_AND_FLAG.pack(queue.queue_id, batch.flags[0])
        rest = middle + _BODY_BYTES.pack(batch.lengths[0])
        topic = queue.topic_part + LENGTH.pack(self.text_bytes_max)
        total = len(self.sizes)
        fields: list[int | bytes] = [0, place, 0, 0, rest, b"", topic, b"", run.shared + first] * total
        fields[0::_RECORD_FIELDS] = self._crcs()
        fields[2::_RECORD_FIELDS] = range(run.first_offset, run.first_offset + total)
        fields[3::_RECORD_FIELDS] = run.physical_offsets
        fields[5::_RECORD_FIELDS] = batch.bodies
        fields[7::_RECORD_FIELDS] = run.texts
        lengths = len(rest), len(topic), len(run.shared), *batch.lengths
        pieces: list[Part] = []
        for start in range(0, total, _PACKED_MAX):
            number = min(_PACKED_MAX, total - start)
            some = fields[start * _RECORD_FIELDS : (start + number) * _RECORD_FIELDS]
            pieces.append(_packed_records(number, *lengths)(first, *some))
        return pieces

    def _crcs(self) -> list[int]:
        return [crc32(body) & CRC_MASK for body in self._batch.bodies]


class InnerBatchRecord:
    """A batch as one record. `parts` raises struct.error for numbers that are out of range."""

    def __init__(self, run: AppendedInnerBatch, code: int, message: PutMessage) -> None:
        self.run = run
        self._code = code
        self._message = message
        head = HEADS[run.sys_flag & HOST_V6_MASK]
        topic_bytes = len(run.queue.topic_part)
        self.total_bytes = head.size + len(message.body) + topic_bytes + LENGTH.size + len(run.shared)

    def parts(self, physical_offset: int, store_host: bytes) -> list[Part]:
        """Give the batch its position and return its record."""
        run, message, queue = self.run, self._message, self.run.queue
        run.place(physical_offset, queue.next_offset, [self.total_bytes], [self._code])
        head = HEADS[run.sys_flag & HOST_V6_MASK].pack(
            self.total_bytes, queue.magic, crc32(message.body) & CRC_MASK, queue.queue_id, message.flag,
            run.first_offset, physical_offset, run.sys_flag, message.born_timestamp,
            message.born_host, run.store_timestamp, store_host, message.reconsume_times, 0,
            len(message.body),
        )  # fmt: skip
        return [head, message.body, queue.topic_part, LENGTHS[len(run.shared)], run.shared]


@lru_cache(256)
def _packed_records(
    number: int, rest_bytes: int, topic_bytes: int, shared_bytes: int, body_bytes: int, text_bytes: int
) -> Callable[..., bytes]:
    first_bytes = SIZE_AND_MAGIC.size
    one = f"i{QUEUE_AND_FLAG.size}sqq{rest_bytes}s{body_bytes}s{topic_bytes}s{text_bytes}s"
    all_but_last = f"{one}{shared_bytes + first_bytes}s" * (number - 1)
    return struct.Struct(f">{first_bytes}s{all_but_last}{one}{shared_bytes}s").pack
