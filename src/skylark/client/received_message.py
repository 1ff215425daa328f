"""Pure. ReceivedMessage, and the splitting of the reply to a pull into messages, which decode themselves."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import lt
from types import MappingProxyType
from typing import Any, TypeVar, overload

import msgspec
from zlib_ng.zlib_ng import crc32

from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import decompress
from skylark.model.message import (
    HOST_V6_MASK,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REPLY_TO,
    SystemFlag,
    decode_properties,
    encode_properties,
    find_keys,
    find_tags,
    find_unique_key,
    format_host,
    property_finder,
    split_keys,
)
from skylark.model.message_id import offset_message_id
from skylark.model.record import (
    CRC_MASK,
    HEAD,
    HEADS,
    LENGTH,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_FLAG_POSITION,
    RecordParts,
    split,
    split_columns,
)
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.command import Buffer
from skylark.protocol.pop_handle import PopHandle

T = TypeVar("T")

PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
INNER_BATCH = int(SystemFlag.INNER_BATCH | SystemFlag.NEED_UNWRAP)
COMPRESSED = int(SystemFlag.COMPRESSED)

# Of a head with IPv4 hosts: size, magic, queue offset, system flags, body length.
_PLACES = struct.Struct(">iI12xq8xi44xI")
_PHYSICAL_OFFSET = struct.Struct(">28xq")
_BODY_HEAD = struct.Struct(">8xi24xi")  # CRC, system flags
_HOST_FLAGS_POSITION = SYS_FLAG_POSITION + 3
_HEAD_BYTES = HEAD.size
_UNUSUAL = HOST_V6_MASK | INNER_BATCH
_ALIKE_MIN = 8
"""Fewer records are faster read one by one."""
_ALIKE_BYTES = (*range(8), *range(36, 40), *range(84, 88))
"""Size, magic, system flags and body length."""
_OFFSET_POSITION, _OFFSET_BYTES = 20, 8

find_retry_topic = property_finder(PROPERTY_RETRY_TOPIC)


class ReceivedMessage(msgspec.Struct, gc=False, eq=False):
    """One message of a queue. It holds its record, and decodes the parts that are asked for.

    `topic` is the topic it was sent to, also for retries; `queue` is the queue it was read from.
    `reconsume_times` counts failed deliveries. Times are milliseconds since 1970, except `started_at`: the
    monotonic time at which a listener received the message, 0 before.
    """

    record: bytes
    """The record as stored; for a message of an inner batch, the record of the batch."""
    queue: MessageQueue
    queue_offset: int
    body_bytes: int
    """The size of the body as stored."""
    properties_bytes: int
    queue_min_offset: int = 0
    queue_max_offset: int = 0
    started_at: float = 0.0
    handle: PopHandle | None = None
    """The receipt of a message from a simple consumer."""
    _topic: str | None = None
    _reconsume_times: int | None = None
    _body: bytes | None = None
    _parts: RecordParts | None = None
    _properties: Any = None

    def __reduce__(self) -> Any:
        fields = tuple(getattr(self, name) for name in self.__struct_fields__[:-1])
        return ReceivedMessage, fields  # without the parsed properties: a read-only mapping has no pickle

    # --- The record ---

    @property
    def parts(self) -> RecordParts:
        """The head, the topic and the property text."""
        parts = self._parts
        if parts is None:
            parts = self._parts = split(self.record)
        return parts

    def edited(self, body: bytes, properties: Mapping[str, str]) -> ReceivedMessage:
        """Return a copy with another body and other properties."""
        parts = self.parts._replace(properties=encode_properties(properties))
        return msgspec.structs.replace(
            self, body_bytes=len(body), properties_bytes=len(parts.properties), _body=body, _parts=parts,
            _properties=None,
        )  # fmt: skip

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        topic = self._topic
        if topic is None:
            topic = self._topic = self.parts.topic.decode(errors="replace")
        return topic

    @topic.setter
    def topic(self, topic: str) -> None:
        self._topic = topic

    @property
    def physical_offset(self) -> int:
        """The offset of the record in the broker's log."""
        return self.parts.head[6]

    @property
    def stored_bytes(self) -> int:
        """The size of the record."""
        return len(self.record)

    @property
    def flag(self) -> int:
        """The number that the sender set; brokers ignore it."""
        return self.parts.head[4]

    @property
    def sys_flag(self) -> int:
        """The system flags; a body that was decompressed does not count as compressed."""
        sys_flag = self.parts.head[7]
        return sys_flag & ~COMPRESSED if sys_flag & COMPRESSED and not self.body_is_bad else sys_flag

    @property
    def born_timestamp(self) -> int:
        """When it was sent, by the sender's clock."""
        return self.parts.head[8]

    @property
    def store_timestamp(self) -> int:
        """When it was stored, by the broker's clock."""
        return self.parts.head[10]

    @property
    def reconsume_times(self) -> int:
        """How often its delivery failed."""
        times = self._reconsume_times
        return self.parts.head[12] if times is None else times

    @reconsume_times.setter
    def reconsume_times(self, times: int) -> None:
        self._reconsume_times = times

    @property
    def prepared_transaction_offset(self) -> int:
        """The physical offset of the half message of a committed one; else 0."""
        return self.parts.head[13]

    @property
    def body_crc(self) -> int:
        """The checksum of the body as stored."""
        return self.parts.head[2]

    # --- The body ---

    @property
    def body(self) -> bytes:
        """The decompressed body. Raises BadBody or CorruptRecord, for this message only."""
        body = self._body
        if body is None:
            crc, sys_flag = _BODY_HEAD.unpack_from(self.record)
            body = (
                self.stored_body
                if sys_flag & HOST_V6_MASK
                else self.record[_HEAD_BYTES : _HEAD_BYTES + self.body_bytes]
            )
            if crc32(body) & CRC_MASK != crc and body:
                raise CorruptRecord(self.physical_offset, "body CRC", crc, crc32(body) & CRC_MASK)
            if sys_flag & COMPRESSED:
                body = decompress(body, sys_flag)
            self._body = body
        return body

    @property
    def stored_body(self) -> bytes:
        """The body as stored: possibly compressed, or damaged."""
        start = HEADS[self.record[_HOST_FLAGS_POSITION] & HOST_V6_MASK].size
        return self.record[start : start + self.body_bytes]

    @property
    def body_is_bad(self) -> bool:
        """Whether `body` raises an error."""
        try:
            return self.body is None
        except (BadBody, CorruptRecord):
            return True

    @property
    def plain_body(self) -> bytes:
        """The body, or what is stored if `body` raises an error."""
        return self.stored_body if self.body_is_bad else self.body

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: Any = Any) -> Any:
        """Decode the body as JSON, into a type that msgspec supports if one is given.

        >>> order = message.json(Order)  # a dataclass, a TypedDict, a msgspec.Struct, list[int] …

        Raises msgspec.DecodeError, and msgspec.ValidationError for other JSON than that of the type.
        """
        return msgspec.json.decode(self.body, type=type)

    # --- Properties ---

    @property
    def properties_text(self) -> bytes:
        """All properties, as stored."""
        parts = self._parts
        return self.record[len(self.record) - self.properties_bytes :] if parts is None else parts.properties

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including system properties. Read-only."""
        if self._properties is None:
            self._properties = MappingProxyType(decode_properties(self.properties_text))
        properties: Mapping[str, str] = self._properties
        return properties

    @property
    def tags(self) -> str | None:
        """The tag that the sender set; None without one."""
        return _text(find_tags(self.properties_text))

    @property
    def keys(self) -> list[str]:
        """The keys that the sender set."""
        text = find_keys(self.properties_text)
        return [] if text is None else split_keys(text.decode(errors="replace"))

    @property
    def unique_key(self) -> str | None:
        """The id given by the sender, the same in every retry."""
        return _text(find_unique_key(self.properties_text))

    @property
    def message_id(self) -> str:
        """The sender's id, or `offset_message_id` without one."""
        return self.unique_key or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id made of the broker's address and the offset in its log."""
        return offset_message_id(self.parts.head[11], self.physical_offset)

    @property
    def transaction_id(self) -> str | None:
        """The transaction's id; None for a message that was sent without one."""
        return self.unique_key if PROPERTY_TRANSACTION in self.properties else None

    @property
    def delay_level(self) -> int:
        """The delay level that the sender set, or 0."""
        return int(self.properties.get(PROPERTY_DELAY_LEVEL, 0))

    @property
    def wants_reply(self) -> bool:
        """Whether the sender waits for a reply (see `reply`)."""
        return PROPERTY_REPLY_TO in self.properties

    @property
    def born_host(self) -> str:
        """The sender's address, as the broker saw it."""
        return format_host(self.parts.head[9])

    @property
    def store_host(self) -> str:
        """The address of the broker that stored it first."""
        return format_host(self.parts.head[11])

    @property
    def queue_id(self) -> int:
        """The number of its queue."""
        return self.queue.queue_id

    @property
    def broker_name(self) -> str:
        """The name of the broker of its queue."""
        return self.queue.broker_name

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage(topic={self.topic!r}, broker_name={self.broker_name!r}, "
            f"queue_id={self.queue_id}, queue_offset={self.queue_offset}, message_id={self.message_id!r}, "
            f"tags={self.tags!r}, keys={self.keys!r}, reconsume_times={self.reconsume_times}, "
            f"body of {len(self.plain_body)} bytes)"
        )


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


class PulledMessages(Sequence[ReceivedMessage]):
    """The messages of one pull, made when the first of them is read. Any thread may read them."""

    __slots__ = (
        "_count", "_make", "_messages", "_started_at", "body_bytes", "first_offset", "is_ascending",
        "last_offset", "queue", "queue_max_offset",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        make: Callable[[], list[ReceivedMessage]],
        offsets: Sequence[int],
        body_bytes: int,
        queue_max_offset: int,
    ) -> None:
        """`make` makes the messages of these queue offsets; `body_bytes` is the size of all stored bodies."""
        self._make = make
        self._messages: dict[None, list[ReceivedMessage]] = {}
        self._count = len(offsets)
        self.queue = queue
        self.first_offset, self.last_offset = (offsets[0], offsets[-1]) if offsets else (0, -1)
        self.is_ascending = isinstance(offsets, range) or all(map(lt, offsets, offsets[1:]))
        self.body_bytes = body_bytes
        self.queue_max_offset = queue_max_offset
        self._started_at = 0.0

    @classmethod
    def of(
        cls, queue: MessageQueue, messages: list[ReceivedMessage], queue_max_offset: int
    ) -> PulledMessages:
        """Messages that were made before."""
        offsets = [message.queue_offset for message in messages]
        body_bytes = sum([message.body_bytes for message in messages])
        return cls(queue, lambda: messages, offsets, body_bytes, queue_max_offset)

    @property
    def topic(self) -> str:
        """The topic of the first message."""
        return self._all()[0].topic if self._messages else self.queue.topic

    def start(self, now: float) -> None:
        """Set `started_at` of all messages: a listener gets them now."""
        self._started_at = now
        for message in self._messages.get(None, ()):
            message.started_at = now

    def _all(self) -> list[ReceivedMessage]:
        made = self._messages.get(None)
        if made is None:
            made = self._messages.setdefault(None, self._make())  # the first of several threads wins
            if self._started_at:
                self.start(self._started_at)
        return made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReceivedMessage]: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage | Sequence[ReceivedMessage]:
        return self._all()[index]

    def __reduce__(self) -> Any:
        return tuple, (tuple(self._all()),)  # for listeners that pass them to other processes

    def __repr__(self) -> str:
        return repr(self._all())


def decode_pull(
    records: Buffer, queue: MessageQueue, *, min_offset: int = 0, max_offset: int = 0, offset_delta: int = 0
) -> PulledMessages:
    """Return the messages in the reply to a pull. Raises CorruptRecord for malformed records.

    Only the lengths are read here; a damaged body raises when that message's `body` is read.
    """
    data = bytes(records)
    alike = _alike(data, queue, min_offset, max_offset, offset_delta)
    if alike is not None:
        return alike
    messages: list[ReceivedMessage] = []
    add = messages.append
    unpack, length, head_bytes, unusual = _PLACES.unpack_from, LENGTH.unpack_from, _HEAD_BYTES, _UNUSUAL
    start, end = 0, len(data)
    try:
        while start < end:
            size, magic, queue_offset, sys_flag, body_bytes = unpack(data, start)
            stop = start + size
            if sys_flag & unusual:
                record = data[start:stop]
                messages += _unusual(record, queue, queue_offset + offset_delta, min_offset, max_offset)
                start = stop
                continue
            topic_start = start + head_bytes + body_bytes
            if magic == MAGIC_V1:
                topic_end = topic_start + 1 + data[topic_start]
            elif magic == MAGIC_V2:
                topic_end = topic_start + 2 + length(data, topic_start)[0]
            else:
                raise CorruptRecord(_physical_offset(data, start), f"magic {magic:#010x}")
            (properties_bytes,) = length(data, topic_end)
            if topic_end + 2 + properties_bytes != stop:
                raise CorruptRecord(_physical_offset(data, start), f"size {size} does not match its parts")
            message = ReceivedMessage(
                data[start:stop], queue, queue_offset + offset_delta, body_bytes, properties_bytes,
                min_offset, max_offset,
            )  # fmt: skip
            add(message)
            start = stop
    except (struct.error, IndexError) as error:
        raise CorruptRecord(_physical_offset(data, start), "record is cut short") from error
    if start != end:
        last = messages[-1].physical_offset if messages else -1
        raise CorruptRecord(last, "record is cut short")
    return PulledMessages.of(queue, messages, max_offset)


def _alike(
    data: bytes, queue: MessageQueue, min_offset: int, max_offset: int, offset_delta: int
) -> PulledMessages | None:
    """Locate records of equal lengths and consecutive offsets, a frequent case; else return None.

    Each byte that must be the same in all records is compared in all of them at once.
    """
    if len(data) < _ALIKE_MIN * RECORD_BYTES_MIN:
        return None
    size, magic, first_offset, sys_flag, body_bytes = _PLACES.unpack_from(data)
    topic_start = _HEAD_BYTES + body_bytes
    if size < RECORD_BYTES_MIN or len(data) % size or magic != MAGIC_V1 or sys_flag & _UNUSUAL:
        return None
    if topic_start + 1 + LENGTH.size > size:
        return None
    topic_end = topic_start + 1 + data[topic_start]
    properties_bytes = size - topic_end - LENGTH.size
    if properties_bytes < 0 or LENGTH.unpack_from(data, topic_end)[0] != properties_bytes:
        return None
    count = len(data) // size
    for at in (*_ALIKE_BYTES, topic_start, topic_end, topic_end + 1):
        if data[at::size] != data[at : at + 1] * count:
            return None
    offsets = struct.pack(f">{count}q", *range(first_offset, first_offset + count))
    for at in range(_OFFSET_BYTES):
        if data[_OFFSET_POSITION + at :: size] != offsets[at::_OFFSET_BYTES]:
            return None
    first_offset += offset_delta
    places = range(first_offset, first_offset + count)

    def make() -> list[ReceivedMessage]:
        return [
            ReceivedMessage(
                data[start : start + size], queue, queue_offset, body_bytes, properties_bytes, min_offset,
                max_offset,
            )
            for start, queue_offset in zip(range(0, len(data), size), places, strict=True)
        ]  # fmt: skip

    return PulledMessages(queue, make, places, count * body_bytes, max_offset)


def _unusual(
    record: bytes, queue: MessageQueue, queue_offset: int, min_offset: int, max_offset: int
) -> list[ReceivedMessage]:
    """Return the messages of a record with an IPv6 host or an inner batch. Raises CorruptRecord."""
    parts = split(record)
    message = ReceivedMessage(
        record, queue, queue_offset, parts.head[14], len(parts.properties), min_offset, max_offset
    )
    if parts.head[7] & INNER_BATCH != INNER_BATCH or message.body_is_bad:
        return [message]
    return _members(message)


def _physical_offset(data: bytes, position: int) -> int:
    """Return the offset that the record at a position of a reply names, -1 if it is cut before."""
    if position + _PHYSICAL_OFFSET.size > len(data):
        return -1
    found: int = _PHYSICAL_OFFSET.unpack_from(data, position)[0]
    return found


def _members(batch: ReceivedMessage) -> list[ReceivedMessage]:
    """Return the messages of an inner batch, with consecutive offsets."""
    try:
        elements = split_columns(batch.body)
    except ValueError as error:
        raise CorruptRecord(batch.physical_offset, str(error)) from error
    head, position, topic, _ = batch.parts
    return [
        ReceivedMessage(
            batch.record, batch.queue, batch.queue_offset + number, len(body), len(properties),
            batch.queue_min_offset, batch.queue_max_offset, _body=body,
            _parts=RecordParts((*head[:4], flag, *head[5:]), position, topic, properties),
        )
        for number, (flag, body, properties) in enumerate(
            zip(elements.flags, elements.bodies, elements.properties, strict=True)
        )
    ]  # fmt: skip
