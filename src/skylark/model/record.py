"""Pure. The commit-log record: encode, decode and scan on buffers. Store, client and Spark share it.

TOTALSIZE i32 · MAGIC i32 · BODYCRC i32 · QUEUEID i32 · FLAG i32 · QUEUEOFFSET i64 · PHYSICALOFFSET i64 ·
SYSFLAG i32 · BORNTIMESTAMP i64 · BORNHOST 8|20 · STORETIMESTAMP i64 · STOREHOST 8|20 · RECONSUMETIMES i32 ·
PREPAREDTRANSACTIONOFFSET i64 · BODYLENGTH i32 · body · TOPICLENGTH u8 (v2: u16) · topic ·
PROPERTIESLENGTH u16 · properties
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import msgspec
from zlib_ng.zlib_ng import crc32 as _crc32

from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import decompress
from skylark.model.message import (
    COMPRESSION_MASK,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    HOST_V6_MASK,
    PROPERTIES_BYTES_MAX,
    PROPERTY_CRC32,
    PutMessage,
    StoredMessage,
    SystemFlag,
    decode_properties,
    format_host,
)

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
CRC_MASK = 0x7FFFFFFF

BLANK = struct.Struct(">iI")  # bytes left in the file, MAGIC_BLANK
BLANK_BYTES = BLANK.size
LENGTH = struct.Struct(">H")
LENGTHS = [LENGTH.pack(length) for length in range(PROPERTIES_BYTES_MAX + 1)]
"""Encoded lengths of property texts."""
STORE_TIMESTAMP = struct.Struct(">q")
SIZE_AND_MAGIC = struct.Struct(">iI")
QUEUE_AND_FLAG = struct.Struct(">ii")

# The length byte of version 1 is signed.
TOPIC_V1_BYTES_MAX = 127
SYS_FLAG_POSITION = 36


def _middle(born_bytes: int, store_bytes: int) -> str:
    return f"iq{born_bytes}sq{store_bytes}siq"


# By (SYSFLAG & HOST_V6_MASK): the IPv6 bits decide the layout.
_MIDDLES = {
    0: _middle(HOST_V4_BYTES, HOST_V4_BYTES),
    0x10: _middle(HOST_V6_BYTES, HOST_V4_BYTES),
    0x20: _middle(HOST_V4_BYTES, HOST_V6_BYTES),
    0x30: _middle(HOST_V6_BYTES, HOST_V6_BYTES),
}
HEADS = {flags: struct.Struct(f">iIiiiqq{middle}i") for flags, middle in _MIDDLES.items()}
HEAD = HEADS[0]
# SYSFLAG to PREPAREDTRANSACTIONOFFSET, shared by the messages of a batch, and a head that contains them.
MIDDLES = {flags: struct.Struct(f">{middle}") for flags, middle in _MIDDLES.items()}
SHARED_HEADS = {flags: struct.Struct(f">iIiiiqq{middle.size}si") for flags, middle in MIDDLES.items()}
assert HEAD.size == 88
RECORD_BYTES_MIN = HEAD.size + 1 + LENGTH.size

CRC_PROPERTY_BYTES = len(PROPERTY_CRC32) + 1 + 10 + 1
# The unit that a disk writes atomically.
SECTOR_BYTES = 512


def crc32(data: bytes | memoryview) -> int:
    """RocketMQ's CRC-32: masked to a non-negative i32."""
    return int(_crc32(data)) & CRC_MASK


@lru_cache(1024)
def topic_part(topic: str) -> tuple[int, bytes]:
    """Return the record's magic, which depends on the topic's length, and the topic with its length field."""
    data = topic.encode()
    if len(data) > TOPIC_V1_BYTES_MAX:
        return MAGIC_V2, LENGTH.pack(len(data)) + data
    return MAGIC_V1, bytes((len(data),)) + data


def host_flags(born_host: bytes, store_host: bytes) -> int:
    flags = SystemFlag.BORN_HOST_V6 if len(born_host) == HOST_V6_BYTES else 0
    return int(flags | (SystemFlag.STORE_HOST_V6 if len(store_host) == HOST_V6_BYTES else 0))


def crc_property(record_without: bytes) -> bytes:
    """Return the CRC property, the last of a record; its ten digits are least significant first."""
    digits = str(crc32(record_without))[::-1].ljust(10, "0")
    return f"{PROPERTY_CRC32}\x01{digits}\x02".encode()


def encode(
    message: PutMessage,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
    store_host: bytes,
    with_crc_property: bool = False,
) -> bytes:
    """Encode one record. The store's append produces the same bytes in batches; a test compares them."""
    magic, topic = topic_part(message.topic)
    properties = message.properties
    if with_crc_property:
        properties = terminated(without_crc_property(properties))
    flags = message.sys_flag & ~HOST_V6_MASK | host_flags(message.born_host, store_host)
    head = HEADS[flags & HOST_V6_MASK]
    properties_bytes = len(properties) + (CRC_PROPERTY_BYTES if with_crc_property else 0)
    size = head.size + len(message.body) + len(topic) + LENGTH.size + properties_bytes
    record = b"".join(
        (
            head.pack(
                size,
                magic,
                crc32(message.body),
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                flags,
                message.born_timestamp,
                message.born_host,
                store_timestamp,
                store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                len(message.body),
            ),
            message.body,
            topic,
            LENGTH.pack(properties_bytes),
            properties,
        )
    )
    return record + crc_property(record) if with_crc_property else record


def terminated(properties: bytes) -> bytes:
    """Add the last separator of a property text, which clients may omit."""
    return properties + b"\x02" if properties and not properties.endswith(b"\x02") else properties


def without_crc_property(properties: bytes) -> bytes:
    marker = f"{PROPERTY_CRC32}\x01".encode()
    if marker not in properties:
        return properties
    return b"\x02".join(piece for piece in properties.split(b"\x02") if not piece.startswith(marker))


class RecordParts(NamedTuple):
    """The parts of a record; its structure is checked, its CRC is not."""

    head: tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
    body_position: int
    topic: bytes
    properties: bytes

    def body(self, data: bytes | memoryview, *, check_crc: bool = True) -> bytes:
        """Return the body from the data that was split. Raises CorruptRecord if its CRC does not match."""
        head = self.head
        body = bytes(data[self.body_position : self.body_position + head[14]])
        if check_crc and body and crc32(body) != head[2]:
            raise CorruptRecord(head[6], f"body CRC {crc32(body)}, record says {head[2]}")
        return body


def split(data: bytes | memoryview, position: int = 0) -> RecordParts:
    """Split one record into its parts. Raises CorruptRecord if lengths or magic are invalid."""
    physical_offset = -1
    layout = HEADS[0]
    try:
        head = layout.unpack_from(data, position)
        if head[7] & HOST_V6_MASK:  # a longer layout; the flags are at the same position
            layout = HEADS[head[7] & HOST_V6_MASK]
            head = layout.unpack_from(data, position)
        size, magic, physical_offset, body_bytes = head[0], head[1], head[6], head[14]
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise CorruptRecord(physical_offset=physical_offset, reason=f"magic {magic:#010x}")
        if body_bytes < 0:
            raise CorruptRecord(physical_offset=physical_offset, reason=f"body length {body_bytes}")
        body_position = position + layout.size
        at = body_position + body_bytes
        if magic == MAGIC_V1:
            topic_at = at + 1
            topic_end = topic_at + data[at]
        else:
            topic_at = at + LENGTH.size
            topic_end = topic_at + LENGTH.unpack_from(data, at)[0]
        at = topic_end + LENGTH.size
        end = at + LENGTH.unpack_from(data, topic_end)[0]
        topic, properties = data[topic_at:topic_end], data[at:end]
    except (struct.error, IndexError) as error:
        raise CorruptRecord(physical_offset=physical_offset, reason="record is truncated") from error
    if end - position != size or len(properties) != end - at:
        raise CorruptRecord(physical_offset=physical_offset, reason=f"size {size} does not match its parts")
    return RecordParts(head, body_position, bytes(topic), bytes(properties))


def decode(data: bytes | memoryview, position: int = 0, *, check_crc: bool = True) -> StoredMessage:
    """Decode one record. Raises CorruptRecord."""
    parts = split(data, position)
    head = parts.head
    return StoredMessage(  # by position, in the order of the fields: names take as long as the rest
        parts.topic.decode(errors="replace"), head[3], head[5], head[6], head[0],
        parts.body(data, check_crc=check_crc), head[2], decode_properties(parts.properties), head[4], head[7],
        head[8], format_host(head[9]), head[10], format_host(head[11]), head[12], head[13],
    )  # fmt: skip


def decode_all(data: bytes | memoryview, *, check_crc: bool = True) -> Iterator[StoredMessage]:
    """Decode adjacent records, such as those of a pull reply. Raises CorruptRecord."""
    position = 0
    while position < len(data):
        message = decode(data, position, check_crc=check_crc)
        position += message.size
        yield message


def store_timestamp_position(sys_flag: int) -> int:
    return 68 if sys_flag & SystemFlag.BORN_HOST_V6 else 56


class ScannedRecord(NamedTuple):
    """The fields of a record that dispatch needs."""

    physical_offset: int
    size: int
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    topic: bytes
    properties: bytes


class ScanStop(Enum):
    """Why a scan ended."""

    NEED_MORE = "the record continues behind the given bytes"
    BLANK = "the rest of the file is blank"
    INVALID = "no valid record here"


class Scan:
    """Iterates over the records in a chunk of the log; `stop`, `position` and `reason` tell where it ended.

    `data` starts at `physical_offset`; `file_end` is the physical offset of the file's end, which no record
    crosses. A record must contain its own physical offset: remains of earlier files are not accepted.
    """

    def __init__(
        self,
        data: bytes,
        physical_offset: int,
        file_end: int,
        *,
        check_crc: bool = True,
        require_crc_property: bool = False,
        refuse_zeros: bool = False,
    ) -> None:
        """`refuse_zeros`: detect torn writes by zeros in properties without a CRC."""
        self._refuse_zeros = refuse_zeros
        self._data = data
        self._base = physical_offset
        self._file_end = file_end
        self._check_crc = check_crc
        self._require_crc_property = require_crc_property
        self.position = 0
        self.stop = ScanStop.NEED_MORE
        self.reason = ""

    @property
    def physical_offset(self) -> int:
        return self._base + self.position

    def _end(self, position: int, stop: ScanStop, reason: str = "") -> None:
        self.position, self.stop, self.reason = position, stop, reason

    def __iter__(self) -> Iterator[ScannedRecord]:
        data, base = self._data, self._base
        view = memoryview(data)
        available = len(data)
        file_bytes = self._file_end - base
        check_crc, crc = self._check_crc, _crc32
        head_v4, head_v4_bytes, length = HEAD.unpack_from, HEAD.size, LENGTH.unpack_from
        make = ScannedRecord._make
        position = 0
        while position + RECORD_BYTES_MIN <= available:
            (size, magic, body_crc, queue_id, _, queue_offset, physical_offset, sys_flag,
             _, _, store_timestamp, _, _, _, body_bytes) = head_v4(data, position)  # fmt: skip
            body = position + head_v4_bytes
            if magic != MAGIC_V1 and magic != MAGIC_V2:  # noqa: PLR1714 - twice as fast as a set
                break
            if size < RECORD_BYTES_MIN or position + size > file_bytes:
                return self._end(position, ScanStop.INVALID, f"size {size} does not fit into the file")
            end = position + size
            if end > available:
                return self._end(position, ScanStop.NEED_MORE)
            if sys_flag & HOST_V6_MASK:
                layout = HEADS[sys_flag & HOST_V6_MASK]
                if layout.size > size:
                    return self._end(position, ScanStop.INVALID, f"size {size} is below its head")
                fields = layout.unpack_from(data, position)
                store_timestamp, body_bytes, body = fields[10], fields[14], position + layout.size
            at = body + body_bytes
            if body_bytes < 0 or at + 3 > end:
                return self._end(position, ScanStop.INVALID, f"body length {body_bytes}")
            if magic == MAGIC_V1:
                topic_start = at + 1
                topic_end = topic_start + data[at]
            else:
                topic_start = at + 2
                topic_end = topic_start + length(data, at)[0]
            properties_start = topic_end + 2
            if properties_start > end or properties_start + length(data, topic_end)[0] != end:
                return self._end(position, ScanStop.INVALID, f"size {size} does not match its parts")
            if physical_offset != base + position:
                return self._end(position, ScanStop.INVALID, f"record has physical offset {physical_offset}")
            if check_crc and crc(view[body:at]) & CRC_MASK != body_crc and body_bytes:
                return self._end(position, ScanStop.INVALID, "body CRC")
            if self._refuse_zeros and data.find(b"\0", properties_start, end) >= 0:
                torn = has_torn_text(data, base, properties_start, end)
                if torn and not has_valid_crc_property(view[position:end]):
                    return self._end(position, ScanStop.INVALID, "zeros in the properties")
            if self._require_crc_property and not has_valid_crc_property(view[position:end]):
                return self._end(position, ScanStop.INVALID, "CRC property")
            self.position = position
            yield make(
                (physical_offset, size, queue_id, queue_offset, sys_flag, store_timestamp,
                 data[topic_start:topic_end], data[properties_start:end])
            )  # fmt: skip
            position = end
        self._stop_without_record(position, available, file_bytes)

    def _stop_without_record(self, position: int, available: int, file_bytes: int) -> None:
        if position + BLANK_BYTES > available:
            return self._end(position, ScanStop.NEED_MORE)
        size, magic = SIZE_AND_MAGIC.unpack_from(self._data, position)
        if magic == MAGIC_BLANK and size == file_bytes - position:
            return self._end(position, ScanStop.BLANK)
        if magic in (MAGIC_V1, MAGIC_V2) and position + size <= file_bytes:
            return self._end(position, ScanStop.NEED_MORE)
        return self._end(position, ScanStop.INVALID, f"magic {magic:#010x}" if magic else "no record")


def has_torn_text(data: bytes, base: int, start: int, end: int) -> bool:
    """Return whether data[start:end] ends with a zero or contains a disk sector of zeros.

    The data starts at `base`. A truncated file reads as zeros from any byte on, a lost page by whole sectors.
    """
    if start < end and not data[end - 1]:
        return True
    while start < end:
        edge = min(end, start + SECTOR_BYTES - (base + start) % SECTOR_BYTES)
        if not data[start:edge].strip(b"\0"):
            return True
        start = edge
    return False


def has_valid_crc_property(record: memoryview) -> bool:
    covered = len(record) - CRC_PROPERTY_BYTES
    return covered > 0 and crc_property(bytes(record[:covered])) == record[covered:]


UNWRAPPED_BY_CLIENTS = int(SystemFlag.INNER_BATCH | SystemFlag.NEED_UNWRAP)
"""System flags of an inner batch: a record whose body is a batch."""
UNWRAPPING_REMOVES = UNWRAPPED_BY_CLIENTS | COMPRESSION_MASK | SystemFlag.COMPRESSED
BATCH_ELEMENT = struct.Struct(">iiiii")  # total, 0, 0, flag, body length
_UNPACKED_MAX = 64
"""Messages of a batch that are unpacked by one call."""


class BatchElement(NamedTuple):
    flag: int
    body: bytes | memoryview
    properties: bytes


class BatchColumns(NamedTuple):
    """The messages of a batch as columns: operations on a column run in C."""

    flags: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    text: bytes
    """All properties, joined."""
    lengths: tuple[int, int] | None
    """Lengths of body and properties, if they and the flag are the same for all messages."""

    @classmethod
    def of(cls, elements: Sequence[BatchElement]) -> BatchColumns:
        flags = [element.flag for element in elements]
        bodies = [bytes(element.body) for element in elements]
        properties = [element.properties for element in elements]
        kinds = set(zip(flags, map(len, bodies), map(len, properties), strict=True))
        lengths = kinds.pop()[1:] if len(kinds) == 1 else None
        return cls(flags, bodies, properties, b"".join(properties), lengths)


def split_batch(data: bytes | memoryview) -> list[BatchElement]:
    """Return the messages of a batch request's body. Raises ValueError for invalid inner lengths."""
    batch = split_columns(data)
    return list(map(BatchElement, batch.flags, batch.bodies, batch.properties))


def unwrap(message: StoredMessage) -> list[StoredMessage]:
    """Return the messages of an inner batch, with consecutive offsets; any other message as it is.

    As in RocketMQ's clients, they have their own properties and flag, everything else is the batch's; they
    are no records, so their size and CRC are 0. Raises CorruptRecord.
    """
    if message.sys_flag & UNWRAPPED_BY_CLIENTS != UNWRAPPED_BY_CLIENTS:
        return [message]
    try:
        elements = split_batch(decompress(message.body, message.sys_flag))
    except (ValueError, BadBody) as error:
        raise CorruptRecord(message.physical_offset, f"inner batch: {error}") from error
    return [
        msgspec.structs.replace(
            message,
            queue_offset=message.queue_offset + number,
            size=0,
            body=bytes(element.body),
            body_crc=0,
            properties=decode_properties(element.properties),
            flag=element.flag,
            sys_flag=message.sys_flag & ~SystemFlag.COMPRESSED,
        )
        for number, element in enumerate(elements)
    ]


def starts_with_batch(records: bytes | bytearray | memoryview) -> bool:
    """Return whether the first of adjacent records is an inner batch."""
    if len(records) < RECORD_BYTES_MIN:
        return False
    return bool(HEAD.unpack_from(records)[7] & SystemFlag.INNER_BATCH)


def unwrap_record(record: bytes | memoryview) -> list[bytes]:
    """Return the messages of an inner batch as plain records, with the batch's physical offset.

    Raises CorruptRecord.
    """
    parts = split(record)
    head, body = parts.head, parts.body(record)
    try:
        elements = split_batch(decompress(body, head[7]))
    except (ValueError, BadBody) as error:
        raise CorruptRecord(head[6], f"inner batch: {error}") from error
    layout, sys_flag = HEADS[head[7] & HOST_V6_MASK], head[7] & ~UNWRAPPING_REMOVES
    topic_start = parts.body_position + head[14]
    topic = bytes(record[topic_start : len(record) - len(parts.properties) - LENGTH.size])
    records = []
    for number, (flag, each, text) in enumerate(elements):
        size = layout.size + len(each) + len(topic) + LENGTH.size + len(text)
        new_head = layout.pack(
            size, head[1], crc32(each), head[3], flag, head[5] + number, head[6], sys_flag, *head[8:14],
            len(each),
        )  # fmt: skip
        records.append(b"".join((new_head, each, topic, LENGTH.pack(len(text)), text)))
    return records


def split_columns(data: bytes | memoryview) -> BatchColumns:
    """As `split_batch`, as columns. Raises ValueError."""
    batch = bytes(data)  # one copy: slices of bytes are cheaper than slices of views
    alike = _split_alike(batch)
    if alike is not None:
        return alike
    flags: list[int] = []
    bodies: list[bytes] = []
    properties: list[bytes] = []
    position, end = 0, len(batch)
    try:
        while position < end:
            total, _, _, flag, body_bytes = BATCH_ELEMENT.unpack_from(batch, position)
            start = position + BATCH_ELEMENT.size
            stop = start + body_bytes
            (properties_bytes,) = LENGTH.unpack_from(batch, stop)
            properties_start = stop + LENGTH.size
            position += total
            if body_bytes < 0 or properties_start + properties_bytes != position or position > end:
                raise ValueError(f"batch element of {total} bytes does not match its parts")
            flags.append(flag)
            bodies.append(batch[start:stop])
            properties.append(batch[properties_start:position])
    except struct.error as error:
        raise ValueError(f"batch body is truncated at byte {position}") from error
    return BatchColumns(flags, bodies, properties, b"".join(properties), None)


def _split_alike(batch: bytes) -> BatchColumns | None:
    """Split a batch whose messages have equal flags and lengths, the frequent case; else return None."""
    if len(batch) < BATCH_ELEMENT.size + LENGTH.size:
        return None
    total, _, _, flag, body_bytes = BATCH_ELEMENT.unpack_from(batch)
    stop = BATCH_ELEMENT.size + body_bytes
    properties_start = stop + LENGTH.size
    if body_bytes < 0 or not properties_start <= total <= len(batch) or len(batch) % total:
        return None
    count = len(batch) // total
    if properties_start + LENGTH.unpack_from(batch, stop)[0] != total:
        return None
    text_bytes = total - properties_start
    fields: list[bytes] = []
    for start in range(0, count, _UNPACKED_MAX):
        unpack_from = _alike_elements(min(_UNPACKED_MAX, count - start), body_bytes, text_bytes)
        fields += unpack_from(batch, start * total)
    heads, bodies, lengths, properties = fields[0::4], fields[1::4], fields[2::4], fields[3::4]
    if heads.count(heads[0]) != count or lengths.count(lengths[0]) != count:
        return None
    return BatchColumns([flag] * count, bodies, properties, b"".join(properties), (body_bytes, text_bytes))


def count_batch(data: bytes | memoryview) -> int:
    """Return the number of messages in a batch. Raises ValueError for invalid inner lengths."""
    end = len(data)
    if end > BATCH_ELEMENT.size:
        total, _, _, _, body_bytes = BATCH_ELEMENT.unpack_from(data)
        text_bytes = total - BATCH_ELEMENT.size - body_bytes - LENGTH.size
        number = end // total if total > 0 else 0
        if 0 < number <= _UNPACKED_MAX and number * total == end and body_bytes >= 0 and text_bytes >= 0:
            # Elements of equal lengths, the frequent case: all heads at once.
            fields = _alike_heads(number, body_bytes, text_bytes)(data)
            lengths = LENGTH.pack(text_bytes)
            if fields[0::2].count(fields[0]) == number and fields[1::2].count(lengths) == number:
                return number
    return len(split_columns(data).flags)


@lru_cache(256)
def _alike_heads(
    number: int, body_bytes: int, text_bytes: int
) -> Callable[[bytes | memoryview], tuple[bytes, ...]]:
    """Return an unpacker of the heads and properties lengths of `number` such messages."""
    one = f"{BATCH_ELEMENT.size}s{body_bytes}x{LENGTH.size}s{text_bytes}x"
    return struct.Struct(f">{one * number}").unpack


@lru_cache(256)
def _alike_elements(
    number: int, body_bytes: int, text_bytes: int
) -> Callable[[bytes, int], tuple[bytes, ...]]:
    """Return an unpacker for `number` such messages: head, body, properties length, properties of each."""
    one = f"{BATCH_ELEMENT.size}s{body_bytes}s{LENGTH.size}s{text_bytes}s"
    return struct.Struct(f">{one * number}").unpack_from
