"""Pure. Trace records in the format of RocketMQ's clients and tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from skylark.client.consumer.listeners import ConsumeOutcome, ConsumeVerdict
from skylark.client.producer.message_encoder import UNSAFE_TEXT
from skylark.client.producer.send_hooks import SendContext
from skylark.client.producer.send_receipt import DEFAULT_REGION
from skylark.client.received_message import ReceivedMessage
from skylark.model.message import (
    KEY_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    Message,
    property_finder,
)

TEXT_CHARS_MAX = 128_000
KEYS_CHARS_MAX = 8_000  # fits into a message's properties, whatever the encoded size
NORMAL = 0
DELAYED = 3
NOTHING = "null"
"""Written for no keys: RocketMQ's tools cannot read a record that ends with an empty field."""
DONE = 0
TOOK_TOO_LONG = 1
FAILED = 4
FAILURE_CODES = {ConsumeVerdict.RAISED: 2, ConsumeVerdict.RETURNED_NULL: 3}

_find_region = property_finder("MSG_REGION")
_find_trace_on = property_finder("TRACE_ON")


@dataclass(frozen=True, slots=True)
class Trace:
    """One event of one message, indexed by the message's id and keys."""

    text: str
    keys: tuple[str, ...]


def _trace(fields: Iterable[object], message_id: str, keys: str) -> Trace:
    text = NAME_VALUE_SEPARATOR.join(map(str, fields)) + PROPERTY_SEPARATOR
    return Trace(text, (message_id, *keys.split()))


def sent(context: SendContext, number: int, *, sent_ms: int) -> Trace:
    """Return the trace of one message of an attempt that got a receipt."""
    message, receipt = context.messages[number], context.receipts[number]
    keys = message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)
    waits = message.delay_level or message.deliver_at is not None or message.deliver_after is not None
    fields = (
        "Pub",
        sent_ms,
        receipt.region,
        context.group,
        context.queue.topic,
        receipt.message_id,
        message.tags or "",
        keys,
        context.broker_address,
        len(message.body),
        round(context.elapsed_ms),
        DELAYED if waits else NORMAL,
        receipt.offset_message_id,
        "true" if receipt.is_ok else "false",
    )
    return _trace(fields, receipt.message_id, keys)


def is_traced(message: ReceivedMessage) -> bool:
    """Return whether the broker that stored the message allows tracing."""
    return _find_trace_on(message.properties_text) != b"false"


def _keys(message: ReceivedMessage) -> str:
    # Other clients may send characters that our encoder refuses.
    return UNSAFE_TEXT.sub("", KEY_SEPARATOR.join(message.keys))


def delivered(message: ReceivedMessage, group: str, call_id: str, *, now_ms: int) -> Trace:
    """Return the trace of a listener call before it starts; `call_id` identifies the call."""
    region = (_find_region(message.properties_text) or DEFAULT_REGION.encode()).decode(errors="replace")
    message_id, keys = message.message_id, _keys(message)
    fields = (
        "SubBefore", now_ms, region, group, call_id, message_id, message.reconsume_times, keys or NOTHING,
    )  # fmt: skip
    return _trace(fields, message_id, keys)


def consumed(
    message: ReceivedMessage,
    group: str,
    call_id: str,
    *,
    now_ms: int,
    took_ms: int,
    is_ok: bool,
    context_code: int,
) -> Trace:
    """Return the trace of a message after the listener call; `took_ms` is its share of the call."""
    message_id, keys = message.message_id, _keys(message)
    success = "true" if is_ok else "false"
    fields = (
        "SubAfter", call_id, message_id, took_ms, success, keys or NOTHING, context_code, now_ms, group,
    )  # fmt: skip
    return _trace(fields, message_id, keys)


def context_code(outcome: ConsumeOutcome, *, is_ok: bool, took_too_long: bool) -> int:
    """Return RocketMQ's code for the result of a message."""
    code = DONE if is_ok else FAILURE_CODES.get(outcome.verdict, FAILED)
    return TOOK_TOO_LONG if took_too_long and code in (DONE, FAILED) else code


def gathered(traces: Iterable[Trace], topic: str) -> Iterator[tuple[Message, int]]:
    """Yield as few messages as can hold these traces, each with its number of traces."""
    texts: list[str] = []
    keys: dict[str, None] = {}
    text_chars = keys_chars = 0
    for trace in traces:
        own_keys_chars = sum(len(key) + 1 for key in trace.keys)
        is_full = (
            text_chars + len(trace.text) > TEXT_CHARS_MAX or keys_chars + own_keys_chars > KEYS_CHARS_MAX
        )
        if texts and is_full:
            yield Message(topic, "".join(texts).encode(), keys=tuple(keys)), len(texts)
            texts, keys = [], {}
            text_chars = keys_chars = 0
        texts.append(trace.text)
        keys.update(dict.fromkeys(trace.keys))
        text_chars += len(trace.text)
        keys_chars += own_keys_chars
    if texts:
        yield Message(topic, "".join(texts).encode(), keys=tuple(keys)), len(texts)
