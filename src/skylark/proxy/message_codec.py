"""Pure. Messages between gRPC and remoting: a send request of a message, and a message of a stored record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

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
    properties = stored.properties
    body, encoding = stored.body, BodyEncoding.IDENTITY
    compression = compression_of(stored.sys_flag)
    if compression == "zlib":
        encoding = BodyEncoding.GZIP
    elif compression is not None:
        body = decompress(body, stored.sys_flag)  # clients cannot read LZ4 and ZSTD
    message = v2.Message(body=body)
    message.topic.name = topic
    message.user_properties.update(
        {name: value for name, value in properties.items() if name not in RESERVED}
    )
    system = message.system_properties
    system.message_id = message_id_of(stored)
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = type_of(properties)
    system.born_timestamp.FromMilliseconds(stored.born_timestamp)
    system.born_host = properties.get(PROPERTY_BORN_HOST) or stored.born_host
    system.store_timestamp.FromMilliseconds(stored.store_timestamp)
    system.store_host = stored.store_host
    system.queue_id = stored.queue_id
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = attempt
    if handle:
        system.receipt_handle = handle
    _set_optional(system, properties, now_ms)
    return message


def _set_optional(system: Any, properties: Mapping[str, str], now_ms: int) -> None:
    if tag := properties.get(PROPERTY_TAGS):
        system.tag = tag
    system.keys.extend(split_keys(properties.get(PROPERTY_KEYS, "")))
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
        if (text := properties.get(PROPERTY_LIGHT_OFFSETS, "")).isdecimal():
            system.queue_id, system.queue_offset = LIGHT_QUEUE_ID, int(text)
    if trace := properties.get(PROPERTY_TRACE_CONTEXT):
        system.trace_context = trace
    if topic := properties.get(PROPERTY_DEAD_LETTER_TOPIC):
        system.dead_letter_queue.topic = topic
        system.dead_letter_queue.message_id = properties.get(PROPERTY_DEAD_LETTER_ID, "")
