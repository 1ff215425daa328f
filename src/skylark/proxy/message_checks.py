"""Pure. What messages, topics and groups of gRPC clients must satisfy, in the order of RocketMQ's checks."""

from __future__ import annotations

import re
from typing import Any

from skylark.errors import RocketMQError
from skylark.model import names
from skylark.model.lite_topic import lite_name_error
from skylark.model.message import (
    DEAD_LETTER_TOPIC_PREFIX,
    PROPERTY_ARRIVE_TIME,
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_CRC32,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_INSTANCE,
    PROPERTY_KEYS,
    PROPERTY_LIGHT_OFFSETS,
    PROPERTY_LIGHT_QUEUES,
    PROPERTY_LITE_TOPIC,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_PRIORITY,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REPLY_TO,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION,
    PROPERTY_TTL,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    RETRY_TOPIC_PREFIX,
)
from skylark.model.sql92 import compile_selector
from skylark.model.tag_expression import split_tags
from skylark.proxy.schema import Code, FilterType, MessageType
from skylark.proxy.status import CallRefused
from skylark.settings.proxy import ProxySettings

RESERVED = frozenset(
    {
        PROPERTY_ARRIVE_TIME, PROPERTY_CLUSTER, PROPERTY_CORRELATION_ID, PROPERTY_CRC32, PROPERTY_DELAY_LEVEL,
        PROPERTY_INSTANCE, PROPERTY_KEYS, PROPERTY_LIGHT_OFFSETS, PROPERTY_LIGHT_QUEUES,
        PROPERTY_LITE_TOPIC, PROPERTY_MESSAGE_TYPE, PROPERTY_PRIORITY,
        PROPERTY_PRODUCER_GROUP, PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC, PROPERTY_REPLY_TO,
        PROPERTY_TAGS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELIVER_MS,
        PROPERTY_TRANSACTION, PROPERTY_TTL, PROPERTY_UNIQUE_KEY, PROPERTY_WAIT,
        "1ST_POP_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CONSUME_START_TIME", "CORRECTION_FLAG",
        "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DUP_INFO", "EXTEND_UNIQ_INFO",
        "MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MQ2_FLAG",
        "MSG_REGION", "ORIGIN_MESSAGE_ID", "POP_CK", "POP_CK_OFFSET", "PUSH_REPLY_TIME", "RECONSUME_TIME",
        "RETRY_TOPIC", "TIMER_DELAY_LEVEL", "TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS",
        "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_ON", "TRANSFER_FLAG", "TRAN_PREPARED_QUEUE_OFFSET",
        "__BORNHOST",
    }
)  # fmt: skip
"""Property names that applications may not use: the 51 of RocketMQ 5.3.3, priority and lite topics."""
TOPIC_TYPE = "message.type"
"""The attribute of a topic that says what kind of messages it takes."""
MIXED = "MIXED"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
NORMAL_TYPES = (MessageType.NORMAL,)
MIXED_TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


def check_topic(topic: str) -> str:
    """Return the name of a topic that clients may use. Raises CallRefused."""
    fault = names.topic_name_error(topic)
    if fault is not None:
        raise CallRefused(Code.ILLEGAL_TOPIC, fault)
    if topic in names.SYSTEM_TOPICS or topic.startswith(names.SYSTEM_TOPIC_PREFIX):
        raise CallRefused(Code.ILLEGAL_TOPIC, f"cannot access system topic: {topic}")
    return topic


def check_group(group: str) -> str:
    """Return the name of a group that clients may use. Raises CallRefused."""
    fault = names.group_name_error(group)
    if fault is not None:
        raise CallRefused(Code.ILLEGAL_CONSUMER_GROUP, fault)
    if names.is_system_group(group):
        raise CallRefused(Code.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group: {group}")
    return group


def check_lite_topic(lite_topic: str, settings: ProxySettings) -> None:
    """Raises CallRefused for a name that no lite topic can have."""
    fault = lite_name_error(lite_topic, settings.lite_topic_bytes_max)
    if fault is not None:
        raise CallRefused(Code.ILLEGAL_LITE_TOPIC, fault)


def check_expression(expression: Any) -> tuple[str, str]:
    """Return type and text of a filter as brokers take them. Raises CallRefused if it does not compile."""
    text = expression.expression or "*"
    try:
        if expression.type == FilterType.SQL:
            compile_selector(text)
            return "SQL92", text
        split_tags(text)
    except (RocketMQError, ValueError) as error:
        raise CallRefused(Code.ILLEGAL_FILTER_EXPRESSION, str(error)) from None
    return "TAG", text


def accepted_types(attributes: dict[str, str]) -> tuple[MessageType, ...]:
    """Return the kinds of messages that a topic with these attributes takes."""
    if TOPIC_TYPE not in attributes:
        return NORMAL_TYPES
    kind = attributes[TOPIC_TYPE].upper()
    if kind == MIXED:
        return MIXED_TYPES
    return (MessageType.__members__.get(kind, MessageType.MESSAGE_TYPE_UNSPECIFIED),)


def check_type(topic: str, accepted: tuple[MessageType, ...], kind: MessageType) -> None:
    """Raises CallRefused for a message of a kind that its topic does not take."""
    if kind in accepted or topic.startswith((RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX)):
        return
    expected = MIXED if len(accepted) > 1 else accepted[0].name.removeprefix("MESSAGE_TYPE_")
    raise CallRefused(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {kind.name}",
    )


def kind_of(message: Any) -> MessageType:
    """Return the kind that the properties of a message make it."""
    system = message.system_properties
    if system.message_type == MessageType.TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    if system.message_group:
        return MessageType.FIFO
    if system.HasField("priority"):
        return MessageType.PRIORITY
    if system.lite_topic:
        return MessageType.LITE
    return MessageType.NORMAL


def check_message(message: Any, settings: ProxySettings, now_ms: int) -> None:
    """Raises CallRefused for a message that breaks a limit."""
    body_bytes = len(message.body)
    if settings.refuse_empty_body and not body_bytes:
        raise CallRefused(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if body_bytes > settings.body_bytes_max:
        raise CallRefused(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"message body of {body_bytes} bytes is larger than {settings.body_bytes_max}",
        )
    _check_properties(message, settings)
    system = message.system_properties
    if not system.message_id.strip():
        raise CallRefused(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if system.message_type == MessageType.TRANSACTION:
        recovery = system.orphaned_transaction_recovery_duration
        if recovery.seconds > settings.recovery_s_max:
            raise CallRefused(
                Code.BAD_REQUEST,
                f"transaction recovery of {recovery.seconds} s is longer than {settings.recovery_s_max} s",
            )
    if system.HasField("delivery_timestamp"):
        ahead_ms = system.delivery_timestamp.ToMilliseconds() - now_ms
        if settings.delay_ms_max and ahead_ms > settings.delay_ms_max:
            raise CallRefused(
                Code.ILLEGAL_DELIVERY_TIME,
                f"delivery is {ahead_ms} ms ahead, more than {settings.delay_ms_max} ms",
            )
    if system.HasField("priority") and system.priority < 0:
        raise CallRefused(Code.BAD_REQUEST, f"priority {system.priority} is negative; use 0 or more")
    if system.lite_topic:
        check_lite_topic(system.lite_topic, settings)
    if system.HasField("message_group"):
        group = system.message_group
        too_long = len(group.encode()) >= settings.message_group_bytes_max
        if not group.strip() or too_long or _CONTROL.search(group):
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"message group {group[:100]!r} is blank, has a control character or "
                f"{settings.message_group_bytes_max} bytes or more",
            )


def _check_properties(message: Any, settings: ProxySettings) -> None:
    properties, system = message.user_properties, message.system_properties
    if len(properties) > settings.properties_max:
        raise CallRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(properties)} user properties are more than {settings.properties_max}",
        )
    total = 0
    for name in properties:
        value = properties[name]
        if name in RESERVED:
            raise CallRefused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if not name or _CONTROL.search(name) or _CONTROL.search(value):
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name[:100]!r} has no name, or a control character in name or value",
            )
        total += len(name.encode()) + len(value.encode())
    if system.HasField("tag"):
        tag = system.tag
        if not tag.strip() or "|" in tag or _CONTROL.search(tag):
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_TAG, f"tag {tag[:100]!r} is blank, has a '|' or a control character"
            )
        total += len(tag.encode())
    for key in system.keys:
        if not key.strip() or _CONTROL.search(key):
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_KEY, f"key {key[:100]!r} is blank or has a control character"
            )
        total += len(key.encode())
    if total > settings.properties_bytes_max:
        raise CallRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties of {total} bytes are larger than {settings.properties_bytes_max}",
        )
