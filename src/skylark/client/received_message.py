"""Pure. ReceivedMessage, and decoding of the reply to a pull. Expensive fields are decoded lazily."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar, overload

import msgspec

from skylark.errors import BadBody, CorruptRecord
from skylark.model.body import decompress
from skylark.model.message import (
    HOST_V6_MASK,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REPLY_TO,
    SystemFlag,
    decode_properties,
    find_keys,
    find_tags,
    find_unique_key,
    format_host,
    property_finder,
    split_keys,
)
from skylark.model.message_id import offset_message_id
from skylark.model.record import HEAD, HEADS, LENGTH, MAGIC_V1, MAGIC_V2, crc32, split_batch
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.command import Buffer
from skylark.protocol.pop_handle import PopHandle

T = TypeVar("T")

PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
INNER_BATCH = int(SystemFlag.INNER_BATCH | SystemFlag.NEED_UNWRAP)
COMPRESSED = int(SystemFlag.COMPRESSED)

find_retry_topic = property_finder(PROPERTY_RETRY_TOPIC)


class ReceivedMessage(msgspec.Struct, gc=False, eq=False):
    """One message of a queue. Properties are parsed on first access.

    `topic` is the topic it was sent to, also for retries; `queue` is the queue it was read from.
    `reconsume_times` counts failed deliveries. Times are milliseconds since 1970, except `started_at`: the
    monotonic time at which a listener received the message, 0 before.
    """

    topic: str
    queue: MessageQueue
    queue_offset: int
    physical_offset: int
    stored_bytes: int
    flag: int
    sys_flag: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int
    prepared_transaction_offset: int
    queue_min_offset: int
    queue_max_offset: int
    body_crc: int
    properties_text: bytes
    packed_born_host: bytes
    packed_store_host: bytes
    plain_body: bytes
    body_is_bad: bool = False
    started_at: float = 0.0
    parsed: Any = None
    handle: PopHandle | None = None
    """The receipt of a message from a simple consumer."""

    @property
    def body(self) -> bytes:
        """The decompressed body. Raises BadBody or CorruptRecord, for this message only."""
        if self.body_is_bad:
            self._fail()
        return self.plain_body

    def _fail(self) -> NoReturn:
        # Computed again: a stored exception would keep its stack frames alive.
        found = crc32(self.plain_body)
        if found != self.body_crc:
            raise CorruptRecord(self.physical_offset, "body CRC", self.body_crc, found)
        decompress(self.plain_body, self.sys_flag)
        raise BadBody("a codec", "the body could not be decompressed on arrival")

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

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including system properties. Read-only."""
        if self.parsed is None:
            self.parsed = MappingProxyType(decode_properties(self.properties_text))
        properties: Mapping[str, str] = self.parsed
        return properties

    @property
    def tags(self) -> str | None:
        """The tag that the sender set; None without one."""
        return _text(find_tags(self.properties_text))

    @property
    def keys(self) -> list[str]:
        """The keys that the sender set."""
        return split_keys(_text(find_keys(self.properties_text)) or "")

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
        return offset_message_id(self.packed_store_host, self.physical_offset)

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
        return format_host(self.packed_born_host)

    @property
    def store_host(self) -> str:
        """The address of the broker that stored it first."""
        return format_host(self.packed_store_host)

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


def decode_pull(
    records: Buffer, queue: MessageQueue, *, min_offset: int = 0, max_offset: int = 0, offset_delta: int = 0
) -> list[ReceivedMessage]:
    """Return the messages in the reply to a pull. Raises CorruptRecord for malformed records.

    A damaged body raises only when that message's `body` is read.
    """
    data = bytes(records)
    messages: list[ReceivedMessage] = []
    topics: dict[bytes, str] = {}
    position, end = 0, len(data)
    unpack, length = HEAD.unpack_from, LENGTH.unpack_from
    physical_offset = -1
    try:
        while position < end:
            (size, magic, body_crc, _, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
             born_host, store_timestamp, store_host, reconsume_times, prepared, body_bytes,
             ) = unpack(data, position)  # fmt: skip
            body_start = position + HEAD.size
            if sys_flag & HOST_V6_MASK:
                layout = HEADS[sys_flag & HOST_V6_MASK]
                (*_, born_host, store_timestamp, store_host, reconsume_times, prepared, body_bytes,
                 ) = layout.unpack_from(data, position)  # fmt: skip
                body_start = position + layout.size
            body_end = body_start + body_bytes
            if magic == MAGIC_V1:
                topic_start = body_end + 1
                topic_end = topic_start + data[body_end]
            else:
                topic_start = body_end + 2
                topic_end = topic_start + length(data, body_end)[0]
            properties_start = topic_end + 2
            position += size
            if (
                body_bytes < 0
                or properties_start + length(data, topic_end)[0] != position
                or position > end
                or (magic != MAGIC_V1 and magic != MAGIC_V2)  # noqa: PLR1714 - twice as fast as a set
            ):
                raise CorruptRecord(physical_offset, f"size {size} does not match its parts")
            topic = data[topic_start:topic_end]
            message = ReceivedMessage(
                topics.get(topic) or topics.setdefault(topic, topic.decode(errors="replace")),
                queue, queue_offset + offset_delta, physical_offset, size, flag, sys_flag, born_timestamp,
                store_timestamp, reconsume_times, prepared, min_offset, max_offset, body_crc,
                data[properties_start:position], born_host, store_host, data[body_start:body_end],
            )  # fmt: skip
            messages.append(message)
            if body_bytes and crc32(message.plain_body) != body_crc:
                message.body_is_bad = True
            elif sys_flag & COMPRESSED:
                inflate(message)
            if sys_flag & INNER_BATCH == INNER_BATCH and not message.body_is_bad:
                messages[-1:] = _members(message)
    except (struct.error, IndexError) as error:
        raise CorruptRecord(physical_offset, "record is cut short") from error
    return messages


def inflate(message: ReceivedMessage) -> None:
    """Decompress the body; on failure, mark it as bad."""
    try:
        message.plain_body = decompress(message.plain_body, message.sys_flag)
        message.sys_flag &= ~COMPRESSED
    except BadBody:
        message.body_is_bad = True


def _members(batch: ReceivedMessage) -> list[ReceivedMessage]:
    """Return the messages of an inner batch, with consecutive offsets."""
    try:
        elements = split_batch(memoryview(batch.plain_body))
    except ValueError as error:
        raise CorruptRecord(batch.physical_offset, str(error)) from error
    return [
        msgspec.structs.replace(
            batch,
            queue_offset=batch.queue_offset + number,
            flag=element.flag,
            properties_text=element.properties,
            plain_body=bytes(element.body),
        )
        for number, element in enumerate(elements)
    ]
