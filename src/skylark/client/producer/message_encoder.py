"""Pure. Message encoder: checks a message, compresses its body, and encodes its properties."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import msgspec

from skylark.client.namespace import with_namespace
from skylark.errors import BadMessage, BadName, MessageTooLarge
from skylark.model.body import compress
from skylark.model.message import (
    KEY_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_INSTANCE,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_SEPARATOR,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT,
    RETRY_TOPIC_PREFIX,
    Message,
    SystemFlag,
)
from skylark.model.names import UNSENDABLE_TOPICS, group_name_error, topic_name_error
from skylark.model.record import LENGTH, split_batch
from skylark.model.tag_expression import JAVA_BLANKS
from skylark.protocol.command import Buffer
from skylark.protocol.frame_templates import Tail, element_tail, pack_element
from skylark.settings.client import ProducerSettings

_FLAG_RANGE = range(-(1 << 31), 1 << 31)
_UTF8_BYTES_MAX = 4  # of one character
_ELEMENT_PARTS = 5  # of a message in a batch: head, body, properties before the unique key, key, and after it
UNSAFE_TEXT = re.compile("[\0\x01\x02]")
UNSAFE_REASON = "tags, keys and properties must not contain \\x00, \\x01 or \\x02"

RESERVED_PROPERTIES = frozenset(
    """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP
    MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG
    RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME
    TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT
    TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS
    TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
    TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
    """.split()
)
"""Property names used by the system. `Message` has fields for those that a sender may set."""


class SystemMessage(Message, frozen=True, gc=False, kw_only=True):
    """A message with its own destination and system properties, which is never batched: a `Reply`."""

    def system_properties(self) -> list[tuple[str, str]]:
        raise NotImplementedError


class EncodedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message ready for the wire. The queue is chosen for each attempt."""

    is_batch: ClassVar[bool] = False

    message: Message
    topic: str  # with namespace
    body: bytes
    sys_flag: int
    properties: str
    unique_key: str
    flag: int = 0
    reconsume_times: int = 0  # of messages that a consumer sends back itself
    max_reconsume_times: int | None = None
    is_reply: bool = False

    @property
    def messages(self) -> Sequence[Message]:
        return (self.message,)

    @property
    def unique_keys(self) -> Sequence[str]:
        return (self.unique_key,)

    def with_added(self, added: str) -> tuple[bytes, str]:
        """Return body and properties with `added` appended. Raises BadMessage if they get too long."""
        properties = self.properties + added
        _check_bytes(self.topic, len(properties.encode(errors="replace")))
        return self.body, properties


class EncodedBatch(msgspec.Struct, frozen=True):
    """Messages of one topic in one request: all are stored or none is. They are not compressed."""

    is_batch: ClassVar[bool] = True
    sys_flag: ClassVar[int] = 0
    flag: ClassVar[int] = 0
    reconsume_times: ClassVar[int] = 0
    max_reconsume_times: ClassVar[int | None] = None
    is_reply: ClassVar[bool] = False

    messages: Sequence[Message]
    unique_keys: Sequence[str]
    topic: str
    body: Buffer
    properties: str  # of the request

    def with_added(self, added: str) -> tuple[bytes, str]:
        """Return body and properties with `added` in every message.

        Raises BadMessage if they get too long.
        """
        suffix = added.encode(errors="replace")
        parts: list[bytes] = []
        for element in split_batch(memoryview(self.body)):
            tail_bytes, text, _ = _tail(self.topic, bytes(element.properties) + suffix, 0, b"")
            body = bytes(element.body)
            parts += (pack_element(len(body) + tail_bytes, 0, 0, element.flag, len(body)), body, text)
        return b"".join(parts), self.properties


class KeySource(Protocol):
    """Source of unique keys, all of the same length."""

    @property
    def chars(self) -> int: ...

    def next(self) -> str: ...

    def several(self, count: int) -> list[str]: ...

    def stems(self, count: int) -> list[tuple[str, Sequence[int]]]:
        """As `UniqueIds.stems`."""


@dataclass(frozen=True, slots=True)
class MessageEncoder:
    """Encodes the messages of one producer."""

    settings: ProducerSettings
    namespace: str
    group: str
    keys: KeySource

    def encode(
        self, message: Message, *, is_half: bool = False, system: Sequence[tuple[str, str]] = ()
    ) -> EncodedMessage:
        """Encode a single message. Bodies from `settings.compress_from_bytes` on are compressed.

        `system` are properties that applications may not set. Raises BadMessage, BadName, MessageTooLarge,
        BadBody if the codec is not installed.
        """
        topic = message.topic
        if type(message) is not Message or self.namespace:
            topic, system = self._addressed(message, system, goes_alone=not (is_half or system))
        body = message.body
        self._check(topic, body)
        settings = self.settings
        sys_flag = 0
        if len(body) >= settings.compress_from_bytes:
            body, sys_flag = compress(body, settings.compression.value, settings.compress_level)
        if is_half:
            sys_flag |= SystemFlag.TRANSACTION_PREPARED
            system = [(PROPERTY_TRANSACTION, "true"), (PROPERTY_PRODUCER_GROUP, self.group)]
        unique_key = self.keys.next()
        before, after = self._properties(message, system)
        properties = f"{before}{unique_key}{after}"
        if len(properties) * _UTF8_BYTES_MAX > PROPERTIES_BYTES_MAX:
            _check_bytes(topic, len(properties.encode(errors="replace")))
        if type(message) is Message:
            return EncodedMessage(message, topic, body, sys_flag, properties, unique_key, message.flag)
        is_reply = isinstance(message, SystemMessage)
        return EncodedMessage(
            message, topic, body, sys_flag, properties, unique_key, message.flag, is_reply=is_reply
        )

    def encode_batch(self, messages: Sequence[Message]) -> EncodedBatch:
        """Encode messages as one batch (see `check_batch`).

        Raises BadMessage, also for a batch that is too large, BadName, MessageTooLarge.
        """
        batch = self.join(messages, [self.tail(message) for message in messages])
        bytes_max = self.settings.message_bytes_max
        if len(batch.body) > bytes_max:
            raise BadMessage(
                batch.topic,
                f"the batch of {len(messages)} messages has {len(batch.body)} bytes, the limit is "
                f"{bytes_max}: use split_into_batches",
            )
        return batch

    def tail(self, message: Message) -> Tail:
        """Check a message of a batch and return its encoding around the unique key.

        Raises BadMessage, BadName, MessageTooLarge.
        """
        topic, system = self._addressed(message, (), goes_alone=False)
        self._check(topic, message.body)
        before, after = self._properties(message, system)
        try:
            return _tail(topic, before.encode(), self.keys.chars, after.encode())
        except UnicodeEncodeError as error:
            raise not_unicode(topic, error) from None

    def join(self, messages: Sequence[Message], tails: Sequence[Tail]) -> EncodedBatch:
        """Return a batch of messages and their tails, with unique keys filled in."""
        *keys, own_key = self.keys.several(len(messages) + 1)
        wait = "true" if messages[0].wait_for_store else "false"
        properties = property_text([(PROPERTY_UNIQUE_KEY, own_key), (PROPERTY_WAIT, wait)])
        topic = with_namespace(self.namespace, messages[0].topic)
        return EncodedBatch(messages, keys, topic, _elements(messages, tails, keys), properties)

    def single(self, message: Message, tail: Tail) -> EncodedMessage:
        """Return the only message of a batch as a single message."""
        key = self.keys.next()
        _, before, after = tail
        properties = f"{before[LENGTH.size :].decode()}{key}{after.decode()}"
        topic = with_namespace(self.namespace, message.topic)
        return EncodedMessage(message, topic, message.body, 0, properties, key, message.flag)

    def _check(self, topic: str, body: bytes) -> None:
        """Raises BadName, BadMessage, MessageTooLarge."""
        fault = _topic_fault(topic)
        if fault is not None:
            raise BadName("topic", topic, fault)
        if not isinstance(body, bytes):
            raise BadMessage(topic, f"the body must be bytes, not {type(body).__name__}")
        if not body:
            raise BadMessage(topic, "the message body length is zero")
        if len(body) > self.settings.message_bytes_max:
            raise MessageTooLarge(len(body), self.settings.message_bytes_max)

    def _addressed(
        self, message: Message, system: Sequence[tuple[str, str]], *, goes_alone: bool
    ) -> tuple[str, Sequence[tuple[str, str]]]:
        """Return the wire topic and the system properties; a `SystemMessage` brings both."""
        if not isinstance(message, SystemMessage):
            return with_namespace(self.namespace, message.topic), system
        if not goes_alone:
            raise BadMessage(message.topic, "a reply cannot be batched or part of a transaction: use send")
        return message.topic, message.system_properties()

    def _properties(self, message: Message, system: Sequence[tuple[str, str]]) -> tuple[str, str]:
        """Return the property text before and after the unique key. Raises BadMessage.

        The application's properties come first: the last of a name wins, so system properties cannot be
        hidden.
        """
        rest = ""
        try:
            if (
                system
                or self.namespace
                or message.properties
                or message.delay_level
                or message.deliver_at is not None
                or message.deliver_after is not None
                or message.sharding_key is not None
                or message.flag
            ):
                rest = self._rare_properties(message, system)
            keys = message.keys if isinstance(message.keys, str) else KEY_SEPARATOR.join(message.keys)
            if keys:
                _check_text(message.topic, keys)
                rest = f"{rest}KEYS\x01{keys}\x02"
            after = "\x02WAIT\x01true\x02" if message.wait_for_store else "\x02WAIT\x01false\x02"
            if message.tags:
                fault = tags_fault(message.tags)
                if fault is not None:
                    raise BadMessage(message.topic, fault)
                after = f"{after}TAGS\x01{message.tags}\x02"
        except (AttributeError, TypeError) as error:  # checking types first would slow down every message
            raise BadMessage(message.topic, _type_fault(message)) from error
        return f"{rest}UNIQ_KEY\x01", after

    def _rare_properties(self, message: Message, system: Sequence[tuple[str, str]]) -> str:
        """Return the text of the properties that most messages do not have."""
        special = _special_properties(message, self.settings.delay_levels)
        pairs = [*_own_properties(message), *special, *system]
        if self.namespace:
            pairs.append((PROPERTY_INSTANCE, self.namespace))
        for name, value in pairs:
            _check_text(message.topic, name + value)
        return property_text(pairs)


def _type_fault(message: Message) -> str:
    """Return which field has the wrong type."""
    members: dict[str, tuple[Any, Any]] = {
        "tags": (message.tags, str | None),
        "properties": (message.properties, Mapping),
        "sharding_key": (message.sharding_key, str | None),
        "delay_level": (message.delay_level, int),
        "deliver_at": (message.deliver_at, datetime | None),
        "deliver_after": (message.deliver_after, timedelta | None),
        "flag": (message.flag, int),
    }
    for name, (value, kind) in members.items():
        if not isinstance(value, kind):
            return f"{name} must be {getattr(kind, '__name__', kind)}, not {value!r:.80}"
    return f"keys must be a string or an iterable of strings, not {message.keys!r:.80}"


def property_text(pairs: list[tuple[str, str]]) -> str:
    """Return properties in the text format of records."""
    return "".join([f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in pairs])


@lru_cache(1024)
def _topic_fault(topic: str) -> str | None:
    if topic in UNSENDABLE_TOPICS:
        return f"Sending message to topic[{topic}] is forbidden."
    return topic_name_error(topic)


@lru_cache(1024)
def tags_fault(tags: str) -> str | None:
    """Return why a message cannot have these tags."""
    if UNSAFE_TEXT.search(tags):
        return UNSAFE_REASON
    if "|" in tags:
        return f"tags {tags!r}: a message has one tag, and || separates those of a subscription"
    if tags.strip(JAVA_BLANKS) != tags:
        return f"tags {tags!r}: no subscription matches a tag that begins or ends with a blank"
    return None


def check_group(group: str, reserved: str = "DEFAULT_PRODUCER") -> None:
    """Raises BadName for an invalid group, and for the placeholder `reserved`."""
    fault = group_name_error(group)
    if group == reserved:
        fault = f"producerGroup can not equal {reserved}, please specify another one."
    if fault is not None:
        raise BadName("group", group, fault)


def _own_properties(message: Message) -> list[tuple[str, str]]:
    for name, value in message.properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadMessage(message.topic, f"property {name!r}: name and value must be strings")
        if not name.strip() or not value.strip():
            reason = f"property {name!r}: The name or value of property can not be null or blank string!"
            raise BadMessage(message.topic, reason)
        if name in RESERVED_PROPERTIES:
            reason = f"The Property<{name}> is used by system, input another please"
            raise BadMessage(message.topic, reason)
    return list(message.properties.items())


def _special_properties(message: Message, delay_levels: int) -> list[tuple[str, str]]:
    waits = (message.delay_level != 0, message.deliver_at is not None, message.deliver_after is not None)
    if sum(waits) > 1:
        raise BadMessage(message.topic, "set only one of delay_level, deliver_at and deliver_after")
    if message.flag not in _FLAG_RANGE:
        raise BadMessage(message.topic, f"flag {message.flag} does not fit into 32 bits")
    pairs = []
    if message.delay_level:
        if not 0 < message.delay_level <= delay_levels:
            raise BadMessage(
                message.topic,
                f"delay_level {message.delay_level} is out of range: use 1 to {delay_levels}, or "
                "deliver_after for any delay (for brokers with more levels, ProducerSettings.delay_levels)",
            )
        pairs.append((PROPERTY_DELAY_LEVEL, str(message.delay_level)))
    if message.deliver_at is not None:
        pairs.append((PROPERTY_TIMER_DELIVER_MS, str(_milliseconds(message.topic, message.deliver_at))))
    if message.deliver_after is not None:
        wait_ms = math.ceil(message.deliver_after.total_seconds() * 1000)
        if wait_ms < 0:
            raise BadMessage(message.topic, f"deliver_after {message.deliver_after} is negative")
        pairs.append((PROPERTY_TIMER_DELAY_MS, str(wait_ms)))
    if message.sharding_key is not None:
        if not message.sharding_key.strip():
            raise BadMessage(message.topic, "sharding_key is blank")
        pairs.append((PROPERTY_SHARDING_KEY, message.sharding_key))
    return pairs


def _milliseconds(topic: str, time: datetime) -> int:
    if time.tzinfo is None:
        raise BadMessage(topic, "deliver_at has no time zone: use datetime.now(UTC) or astimezone()")
    return math.ceil(time.timestamp() * 1000)


def _check_text(topic: str, text: str) -> None:
    # Printable text holds no separators; only other text is searched.
    if not text.isprintable() and UNSAFE_TEXT.search(text):
        raise BadMessage(topic, UNSAFE_REASON)


def _elements(messages: Sequence[Message], tails: Sequence[Tail], keys: Sequence[str]) -> bytes:
    """Return the messages of a batch, encoded by columns."""
    count = len(messages)
    bodies = [message.body for message in messages]
    sizes = list(map(len, bodies))
    flags = [message.flag for message in messages]
    tail_bytes, before, after = tails[0]
    befores, afters = [before] * count, [after] * count
    is_alike = sizes.count(sizes[0]) == flags.count(flags[0]) == tails.count(tails[0]) == count
    if is_alike:  # the frequent case
        heads = [pack_element(sizes[0] + tail_bytes, 0, 0, flags[0], sizes[0])] * count
    else:
        befores, afters = [each[1] for each in tails], [each[2] for each in tails]
        heads = [
            pack_element(size + tail_bytes, 0, 0, flag, size)
            for size, flag, (tail_bytes, _, _) in zip(sizes, flags, tails, strict=True)
        ]
    parts = [b""] * (_ELEMENT_PARTS * count)
    columns = (heads, bodies, befores, ",".join(keys).encode().split(b","), afters)
    for number, column in enumerate(columns):
        parts[number::_ELEMENT_PARTS] = column
    return b"".join(parts)


def _tail(topic: str, before: bytes, key_bytes: int, after: bytes) -> Tail:
    _check_bytes(topic, len(before) + key_bytes + len(after))
    return element_tail(before, key_bytes, after)


def not_unicode(topic: str, error: UnicodeEncodeError) -> BadMessage:
    """Return the error for properties that contain lone surrogates."""
    return BadMessage(topic, f"properties cannot be encoded as UTF-8: {error}")


def _check_bytes(topic: str, properties_bytes: int) -> None:
    if properties_bytes > PROPERTIES_BYTES_MAX:
        raise BadMessage(
            topic, f"the properties have {properties_bytes} bytes, the limit is {PROPERTIES_BYTES_MAX}"
        )


def broker_of_handle(topic: str, handle: str) -> str:
    """Return the broker in a recall handle, base64 of `v1 topic broker time key`. Raises BadMessage."""
    try:
        padded = handle.encode() + b"=" * (-len(handle) % 4)
        _, _, broker, _, _ = base64.urlsafe_b64decode(padded).decode().split(" ")
    except ValueError:
        raise BadMessage(
            topic, f"invalid recall handle {handle!r}: use recall_handle of a timed message's receipt"
        ) from None
    return broker


def check_message(message: object) -> None:
    """Raises BadMessage for anything but a Message."""
    if not isinstance(message, Message):
        raise BadMessage(
            "",
            f"expected a skylark.Message, not {type(message).__name__} {message!r:.80}; "
            "Message(topic, body) has bytes as its body, Message.json(topic, value) any value",
        )


def check_batch(messages: list[Message]) -> None:
    """Raises BadMessage for messages that cannot form one batch."""
    if not messages:
        raise BadMessage("", "the batch is empty: pass at least one message")
    for message in messages:
        check_message(message)
    first = messages[0]
    for message in messages:
        reason = None
        if message.topic != first.topic:
            reason = "The topic of the messages in one batch should be the same"
        elif message.wait_for_store != first.wait_for_store:
            reason = "The waitStoreMsgOK of the messages in one batch should the same"
        elif message.delay_level or message.deliver_at is not None or message.deliver_after is not None:
            reason = "TimeDelayLevel is not supported for batching"
        elif message.topic.startswith(RETRY_TOPIC_PREFIX):
            reason = "Retry Group is not supported for batching"
        if reason is not None:
            raise BadMessage(message.topic, reason)
