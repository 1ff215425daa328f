"""Pure. Messages between gRPC and remoting: a send request of a message, and a message of a stored record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from skylark.model.body import compression_of, decompress
from skylark.model.lite_topic import LIGHT_QUEUE_ID
from skylark.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_LIGHT_OFFSETS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION,
    PROPERTY_UNIQUE_KEY,
    StoredMessage,
    SystemFlag,
    encode_properties,
    pack_host,
    priority_of,
    split_keys,
)
from skylark.model.message_id import offset_message_id
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.protocol.bodies import MessageQueue
from skylark.protocol.requests.send import SendMessageV2
from skylark.proxy.message_checks import RESERVED
from skylark.proxy.schema import BodyEncoding, DigestType, MessageType, v2
from skylark.remoting.address import split_address

NEW_TOPIC_QUEUES = 4
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_RECOVERY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_DEAD_LETTER_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DEAD_LETTER_ID = "DLQ_ORIGIN_MESSAGE_ID"
DELAY_PROPERTIES = (
    PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_S,
)  # fmt: skip


def milliseconds(timestamp: Any) -> int:
    """Return a `Timestamp` in milliseconds. Its own method takes four times as long."""
    whole: int = timestamp.seconds * 1000 + timestamp.nanos // 1_000_000
    return whole


def properties_of(message: Any, topic: str, host: str) -> dict[str, str]:
    """Return the properties with which a message of a gRPC client is stored. `host` is the client's."""
    system = message.system_properties
    given = message.user_properties
    properties = {name: given[name] for name in given}
    if system.tag:
        properties[PROPERTY_TAGS] = system.tag
    if system.keys:
        properties[PROPERTY_KEYS] = " ".join(system.keys)
    properties[PROPERTY_UNIQUE_KEY] = system.message_id
    if system.message_type == MessageType.TRANSACTION:
        properties[PROPERTY_TRANSACTION] = "true"
        recovery = system.orphaned_transaction_recovery_duration.seconds
        if recovery > 0:
            properties[PROPERTY_RECOVERY_S] = str(recovery)
    if system.HasField("delivery_timestamp"):
        properties[PROPERTY_TIMER_DELIVER_MS] = str(milliseconds(system.delivery_timestamp))
    properties[PROPERTY_RECONSUME_TIME] = str(system.delivery_attempt)
    properties[PROPERTY_PRODUCER_GROUP] = topic
    if system.message_group:
        properties[PROPERTY_SHARDING_KEY] = system.message_group
    if system.HasField("priority"):
        properties[PROPERTY_PRIORITY] = str(system.priority)
    if system.lite_topic:
        properties[PROPERTY_LITE_TOPIC] = system.lite_topic
    if system.trace_context:
        properties[PROPERTY_TRACE_CONTEXT] = system.trace_context
    properties[PROPERTY_BORN_HOST] = system.born_host or host
    properties[PROPERTY_BORN_TIMESTAMP] = str(milliseconds(system.born_timestamp))
    return properties


def send_request(message: Any, queue: MessageQueue, host: str, now_ms: int) -> SendMessageV2:
    """Return the remoting request that stores a message that was checked."""
    system = message.system_properties
    flags = 0
    if system.body_encoding == BodyEncoding.GZIP:
        flags |= SystemFlag.COMPRESSED
    if system.message_type == MessageType.TRANSACTION:
        flags |= SystemFlag.TRANSACTION_PREPARED
    return SendMessageV2(
        producer_group=queue.topic,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=NEW_TOPIC_QUEUES,
        queue_id=queue.queue_id,
        sys_flag=int(flags),
        born_timestamp=milliseconds(system.born_timestamp) or now_ms,
        flag=0,
        properties=encode_properties(properties_of(message, queue.topic, host)).decode(),
        broker_name=queue.broker_name,
        body=message.body,
    )


def type_of(properties: Mapping[str, str]) -> MessageType:
    """Return the kind of a stored message."""
    if properties.get(PROPERTY_TRANSACTION) == "true":
        return MessageType.TRANSACTION
    if any(name in properties for name in DELAY_PROPERTIES):
        return MessageType.DELAY
    if PROPERTY_SHARDING_KEY in properties:
        return MessageType.FIFO
    if PROPERTY_PRIORITY in properties:
        return MessageType.PRIORITY
    if PROPERTY_LITE_TOPIC in properties:
        return MessageType.LITE
    return MessageType.NORMAL


def message_id_of(stored: StoredMessage) -> str:
    """Return the client's id of a message, or the id by which a broker finds it."""
    if stored.unique_key:
        return stored.unique_key
    return offset_message_id(pack_host(*split_address(stored.store_host)), stored.physical_offset)


def to_message(stored: StoredMessage, topic: str, *, attempt: int, handle: str = "", now_ms: int = 0) -> Any:
    """Return a stored message for a gRPC client. Raises BadBody."""
    return v2.Message.FromString(encode_message(stored, topic, attempt=attempt, handle=handle, now_ms=now_ms))


def received(stored: StoredMessage, topic: str, *, attempt: int, handle: str, now_ms: int) -> bytes:
    """Return an encoded `ReceiveMessageResponse` with a stored message. Raises BadBody."""
    return _field(b"\x12", encode_message(stored, topic, attempt=attempt, handle=handle, now_ms=now_ms))


def encode_message(
    stored: StoredMessage, topic: str, *, attempt: int, handle: str = "", now_ms: int = 0
) -> bytes:
    """Return a stored message as an encoded `Message`. Raises BadBody.

    By hand, since objects of protobuf take twice as long. Fields that few messages have are set on an object,
    whose bytes follow: a decoder puts the parts of a message together.
    """
    properties, flags = stored.properties, stored.sys_flag
    body, kinds = stored.body, _IDENTITY_NORMAL
    if flags & _COMPRESSED:
        if compression_of(flags) == "zlib":
            kinds = _GZIP_NORMAL
        else:
            body = decompress(body, flags)  # clients cannot read LZ4 and ZSTD
    queue_id, queue_offset = stored.queue_id, stored.queue_offset
    is_rare = not _RARE.isdisjoint(properties)
    if is_rare and PROPERTY_LITE_TOPIC in properties:
        place = properties.get(PROPERTY_LIGHT_OFFSETS, "")
        if place.isdecimal():
            queue_id, queue_offset = LIGHT_QUEUE_ID, int(place)
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
    born_host = properties.get(PROPERTY_BORN_HOST) or stored.born_host
    system = b"".join(
        (
            _field(b"\x1a", message_id_of(stored).encode()),
            _DIGEST_HEAD, digest,
            kinds,
            _timestamp(b"\x3a", stored.born_timestamp),
            _host(b"\x42", born_host),
            _timestamp(b"\x4a", stored.store_timestamp),
            _host(b"\x52", stored.store_host),
            _field(b"\x62", handle.encode()) if handle else b"",
            b"\x68%b\x70%b\x80\x01%b" % (_varint(queue_id), _varint(queue_offset), _varint(attempt)),
            _words(properties),
            _rare(properties, now_ms) if is_rare else b"",
        )
    )  # fmt: skip
    given = properties.keys() - RESERVED
    return b"".join(
        (
            _resource(topic),
            *[
                _field(b"\x12", _field(b"\x0a", name.encode()) + _field(b"\x12", properties[name].encode()))
                for name in given
            ],
            b"\x1a", _varint(len(system)), system,
            b"\x22", _varint(len(body)), body,
        )
    )  # fmt: skip


_COMPRESSED = int(SystemFlag.COMPRESSED)  # a member of IntFlag is slow to compare
_IDENTITY_NORMAL = b"\x28%c\x30%c" % (BodyEncoding.IDENTITY, MessageType.NORMAL)
_GZIP_NORMAL = b"\x28%c\x30%c" % (BodyEncoding.GZIP, MessageType.NORMAL)
_DIGEST_HEAD = b"\x22\x24\x08%c\x12\x20" % DigestType.MD5
_SMALL = tuple(map(bytes, zip(range(0x80), strict=True)))
_VARINT_MASK = (1 << 64) - 1


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= _VARINT_MASK
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(tag: bytes, data: bytes) -> bytes:
    """Return a field of text, bytes or a message."""
    length = len(data)
    return tag + (_SMALL[length] if length < 0x80 else _varint(length)) + data


@lru_cache(64)
def _seconds(value: int) -> bytes:
    return b"\x08" + _varint(value)


@lru_cache(1000)
def _nanoseconds(milliseconds: int) -> bytes:
    return b"\x10" + _varint(milliseconds * 1_000_000) if milliseconds else b""


def _timestamp(tag: bytes, timestamp_ms: int) -> bytes:
    seconds, rest = divmod(timestamp_ms, 1000)
    return _field(tag, _seconds(seconds) + _nanoseconds(rest))


def _words(properties: Mapping[str, str]) -> bytes:
    """Return the fields of tag and keys."""
    tag, keys = properties.get(PROPERTY_TAGS), properties.get(PROPERTY_KEYS)
    found = b"" if tag is None else _field(b"\x0a", tag.encode())
    if keys is not None:
        found += b"".join([_field(b"\x12", key.encode()) for key in split_keys(keys)])
    return found


@lru_cache(1024)
def _resource(topic: str) -> bytes:
    return _field(b"\x0a", _field(b"\x12", topic.encode()))


@lru_cache(1024)
def _host(tag: bytes, host: str) -> bytes:
    return _field(tag, host.encode())


_RARE = frozenset(
    {
        PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_S, PROPERTY_SHARDING_KEY, PROPERTY_PRIORITY,
        PROPERTY_LITE_TOPIC, PROPERTY_TRACE_CONTEXT, PROPERTY_DEAD_LETTER_TOPIC, PROPERTY_TRANSACTION,
        *DELAY_PROPERTIES,
    }
)  # fmt: skip
"""Properties of messages that are not NORMAL, or have fields that few have."""


def _rare(properties: Mapping[str, str], now_ms: int) -> bytes:
    """Return the fields of `SystemProperties` that few messages have, and the kind."""
    system = v2.SystemProperties(message_type=type_of(properties))
    if deliver_ms := properties.get(PROPERTY_TIMER_DELIVER_MS, ""):
        if deliver_ms.isdecimal():
            system.delivery_timestamp.FromMilliseconds(int(deliver_ms))
    elif (delay_s := properties.get(PROPERTY_TIMER_DELAY_S, "")).isdecimal():
        system.delivery_timestamp.FromMilliseconds(now_ms + int(delay_s) * 1000)
    if group := properties.get(PROPERTY_SHARDING_KEY):
        system.message_group = group
    if (priority := priority_of(properties)) is not None:
        system.priority = priority
    if lite_topic := properties.get(PROPERTY_LITE_TOPIC):
        system.lite_topic = lite_topic
    if trace := properties.get(PROPERTY_TRACE_CONTEXT):
        system.trace_context = trace
    if topic := properties.get(PROPERTY_DEAD_LETTER_TOPIC):
        system.dead_letter_queue.topic = topic
        system.dead_letter_queue.message_id = properties.get(PROPERTY_DEAD_LETTER_ID, "")
    return cast("bytes", system.SerializeToString())
