"""Messages that are encoded by hand are those that protobuf makes, field by field."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skylark.model.message import StoredMessage, priority_of, split_keys
from skylark.proxy.message_checks import RESERVED
from skylark.proxy.message_codec import message_id_of, received, to_message, type_of
from skylark.proxy.schema import v2

WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=9
)
NUMBERS = st.sampled_from(["0", "7", "1700000000123", "x"])
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": WORDS | st.just("k" * 200),
        "TAGS": WORDS,
        "KEYS": st.lists(WORDS, max_size=3).map(" ".join),
        "__BORNHOST": WORDS,
        "TRAN_MSG": st.sampled_from(["true", "false"]),
        "DELAY": NUMBERS,
        "TIMER_DELIVER_MS": NUMBERS,
        "TIMER_DELAY_SEC": st.sampled_from(["0", "86400", "x"]),
        "__SHARDINGKEY": WORDS,
        "_SYS_MSG_PRIORITY_": NUMBERS,
        "TRACE_CONTEXT": WORDS,
        "DLQ_ORIGIN_TOPIC": WORDS,
        "DLQ_ORIGIN_MESSAGE_ID": WORDS,
        "__LITE_TOPIC": WORDS,
        "INNER_MULTI_QUEUE_OFFSET": NUMBERS,
        "colour": WORDS,
        "size": WORDS | st.just("s" * 300),
    },
)
TIMES = st.integers(0, 1 << 45)
SIZES = st.sampled_from([0, 1, 127, 128, 16_383, 16_384, 1 << 40])


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    body = draw(st.binary(max_size=300))
    sys_flag = draw(st.sampled_from([0, 0, 0x301, 0x1]))
    return StoredMessage(
        "stored", draw(st.integers(0, 300)), draw(SIZES), draw(SIZES), 100,
        zlib.compress(body) if sys_flag else body, 0, draw(PROPERTIES), 0, sys_flag,
        draw(TIMES), "10.0.0.1:1234", draw(TIMES), "10.0.0.2:10911", draw(st.integers(0, 20)), 0,
    )  # fmt: skip


def made_by_protobuf(stored: StoredMessage, topic: str, attempt: int, handle: str, now_ms: int) -> Any:
    properties = stored.properties
    message = v2.Message(body=stored.body)
    message.topic.name = topic
    message.user_properties.update({name: properties[name] for name in properties if name not in RESERVED})
    system = message.system_properties
    system.message_id = message_id_of(stored)
    system.body_digest.type = 2
    system.body_digest.checksum = hashlib.md5(stored.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = 2 if stored.sys_flag else 1
    system.message_type = type_of(properties)
    system.born_timestamp.FromMilliseconds(stored.born_timestamp)
    system.born_host = properties.get("__BORNHOST") or stored.born_host
    system.store_timestamp.FromMilliseconds(stored.store_timestamp)
    system.store_host = stored.store_host
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    system.delivery_attempt = attempt
    if handle:
        system.receipt_handle = handle
    if "TAGS" in properties:
        system.tag = properties["TAGS"]
    system.keys.extend(split_keys(properties.get("KEYS", "")))
    due = properties.get("TIMER_DELIVER_MS", "")
    if due.isdecimal():
        system.delivery_timestamp.FromMilliseconds(int(due))
    elif not due and properties.get("TIMER_DELAY_SEC", "").isdecimal():
        system.delivery_timestamp.FromMilliseconds(now_ms + int(properties["TIMER_DELAY_SEC"]) * 1000)
    for name, field in (("__SHARDINGKEY", "message_group"), ("TRACE_CONTEXT", "trace_context")):
        if name in properties:
            setattr(system, field, properties[name])
    if (priority := priority_of(properties)) is not None:
        system.priority = priority
    if "DLQ_ORIGIN_TOPIC" in properties:
        system.dead_letter_queue.topic = properties["DLQ_ORIGIN_TOPIC"]
        system.dead_letter_queue.message_id = properties.get("DLQ_ORIGIN_MESSAGE_ID", "")
    if "__LITE_TOPIC" in properties:
        system.lite_topic = properties["__LITE_TOPIC"]
        if (place := properties.get("INNER_MULTI_QUEUE_OFFSET", "")).isdecimal():
            system.queue_id, system.queue_offset = 0, int(place)
    return message


@given(stored_messages(), WORDS, st.integers(1, 300), WORDS | st.just(""), TIMES)
def test_messages_are_as_protobuf_makes_them(
    stored: StoredMessage, topic: str, attempt: int, handle: str, now_ms: int
) -> None:
    expected = made_by_protobuf(stored, topic, attempt, handle, now_ms)
    assert to_message(stored, topic, attempt=attempt, handle=handle, now_ms=now_ms) == expected
    response = received(stored, topic, attempt=attempt, handle=handle, now_ms=now_ms)
    assert v2.ReceiveMessageResponse.FromString(response) == v2.ReceiveMessageResponse(message=expected)
