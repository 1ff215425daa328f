"""Pure. Half messages of transactions that have not ended, and the records that end them."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator

import msgspec

from skylark.broker.delayed.original_destination import destination_note, find_destination
from skylark.model import names
from skylark.model.message import (
    HOST_V6_MASK,
    NAME_VALUE_SEPARATOR,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQUE_KEY,
    TRANSACTION_MASK,
    PutMessage,
    SystemFlag,
    decode_properties,
    encode_properties,
    find_unique_key,
    property_finder,
)
from skylark.model.record import encode, split

PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

find_group = property_finder(PROPERTY_PRODUCER_GROUP)
_find_check_times = property_finder(PROPERTY_CHECK_TIMES)
_find_immunity_s = property_finder(PROPERTY_IMMUNITY_S)
_find_prepared_queue_offset = property_finder(PROPERTY_PREPARED_QUEUE_OFFSET)
_find_real_topic = property_finder(PROPERTY_REAL_TOPIC)
_find_real_queue_id = property_finder(PROPERTY_REAL_QUEUE_ID)

_TRANSACTION_BEGIN = f"{PROPERTY_TRANSACTION}{NAME_VALUE_SEPARATOR}".encode()
_TRANSACTION_TRUE = f"{PROPERTY_TRANSACTION}{NAME_VALUE_SEPARATOR}true{PROPERTY_SEPARATOR}".encode()
_TRANSACTION_ID = PROPERTY_TRANSACTION_ID.encode()
_PARSED = (_TRANSACTION_ID, b"REAL_", b"POP_CK", b"DELAY", b"TIMER_")
"""With names that contain one of these, appending to the properties may not be enough."""
_CRC_AND_BIRTH = struct.Struct(">8xi28xq")
"""Two fields of a record: the CRC of its body, and when it was born."""
_IMMUNITY = PROPERTY_IMMUNITY_S.encode()
_PROPERTY_END = ord(PROPERTY_SEPARATOR)

COMMITTED = int(SystemFlag.TRANSACTION_COMMIT)
"""A plain number: those of an enumeration take ten times as long to combine."""
OP_PROPERTIES = b"TAGS\x01d\x02WAIT\x01true\x02"
OP_SEPARATOR = b","

Key = tuple[str, int]
"""Identity of a half message: its unique key and the CRC of its body.

A producer that gets no reply sends again; when checked, it may end the copy and the original.
"""


class HalfRecord:
    """A stored half message. Of its properties those are found at once that every end of one needs."""

    __slots__ = ("body", "head", "immunity_ms", "real_topic", "record", "text", "topic", "unique_key")

    def __init__(self, record: bytes) -> None:
        """Raises CorruptRecord."""
        parts = split(record)
        self.record = record
        self.body = parts.body(record)
        self.head = parts.head
        self.topic = parts.topic.decode(errors="replace")
        self.text = text = parts.properties
        self.unique_key = _text(find_unique_key(text))
        self.real_topic = _text(_find_real_topic(text))
        """The topic of the message when committed; empty if the record has none."""
        seconds = _number(_text(_find_immunity_s(text)))
        self.immunity_ms = None if seconds is None else seconds * 1000
        """How long the producer must not be checked; None if the message does not set it."""

    @property
    def properties(self) -> dict[str, str]:
        """All properties; parsed on every call."""
        return decode_properties(self.text)

    @property
    def may_have_to_wait(self) -> bool:
        """Return whether the message may be delayed or timed, without parsing its properties."""
        return self.text.find(b"DELAY") >= 0 or self.text.find(b"TIMER_DEL") >= 0

    @property
    def is_plain(self) -> bool:
        """Whether, to be committed, its message needs nothing but to be stored; hosts are of IPv4."""
        return not (self.may_have_to_wait or self.head[7] & HOST_V6_MASK) and self.immunity_ms is None

    @property
    def queue_offset(self) -> int:
        return self.head[5]

    @property
    def physical_offset(self) -> int:
        return self.head[6]

    @property
    def born_ms(self) -> int:
        return self.head[8]

    @property
    def key(self) -> Key:
        return self.unique_key, self.head[2]

    @property
    def group(self) -> str:
        return _text(find_group(self.text))

    @property
    def check_times(self) -> int:
        return _number(_text(_find_check_times(self.text))) or 0

    @property
    def prepared_queue_offset(self) -> int | None:
        """Queue offset of the original, in a copy made by RocketMQ."""
        return _number(_text(_find_prepared_queue_offset(self.text)))

    def open(self) -> HalfMessage:
        topic = sys.intern(self.real_topic)
        return HalfMessage(
            self.queue_offset, self.physical_offset, self.born_ms, self.immunity_ms, self.key, topic,
            self._real_queue_id(),
        )  # fmt: skip

    # --- Messages derived from it ---

    def committed(self) -> PutMessage | None:
        """The message for its real topic; None if the record has none."""
        topic, queue_id = self.real_topic, self._real_queue_id()
        if not topic or topic == names.HALF_TOPIC or queue_id is None:
            return None
        sys_flag = self.head[7] & ~TRANSACTION_MASK | COMMITTED
        message = self._message(topic, queue_id, self.text, sys_flag)
        message.prepared_transaction_offset = self.physical_offset
        return message

    def checked_again(self, check_times: int) -> PutMessage:
        """A copy of the half message with the number of checks so far."""
        properties = {**self.properties, PROPERTY_CHECK_TIMES: str(check_times)}
        return self._message(names.HALF_TOPIC, 0, encode_properties(properties), self.head[7])

    def abandoned(self) -> PutMessage:
        """The message for the topic of abandoned transactions."""
        return self._message(names.HALF_CHECKED_OUT_TOPIC, 0, self.text, self.head[7])

    def question(self, message: PutMessage, queue_offset: int, physical_offset: int) -> bytes:
        """The record sent to a producer in a check: `message` under its real topic and queue."""
        shown = self._message(
            self.real_topic,
            self._real_queue_id() or 0,
            message.properties,
            self.head[7],
        )
        return encode(
            shown,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            store_timestamp=self.head[10],
            store_host=self.head[11],
        )

    def _real_queue_id(self) -> int | None:
        return _number(_text(_find_real_queue_id(self.text)))

    def _message(self, topic: str, queue_id: int, properties: bytes, sys_flag: int) -> PutMessage:
        head = self.head
        return PutMessage(
            topic, queue_id, self.body, properties, head[4], sys_flag & ~HOST_V6_MASK, head[8], head[9],
            head[12], wait=False,
        )  # fmt: skip


def prepare(message: PutMessage, properties: dict[str, str]) -> None:
    """Turn a send into a half message, in place."""
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    if PROPERTY_UNIQUE_KEY in properties:
        properties[PROPERTY_TRANSACTION_ID] = properties[PROPERTY_UNIQUE_KEY]
    message.properties = encode_properties(properties)
    message.sys_flag &= ~TRANSACTION_MASK
    message.topic, message.queue_id = names.HALF_TOPIC, 0


def prepare_as_sent(message: PutMessage) -> bool:
    """As `prepare`, by appending to the properties; False if these must be parsed, or it is none."""
    text = message.properties
    find = text.find  # thrice as fast as `in`
    at = find(_TRANSACTION_BEGIN)
    if (
        at < 0
        or not text.startswith(_TRANSACTION_TRUE, at)
        or (at > 0 and text[at - 1] != _PROPERTY_END)
        or find(_TRANSACTION_BEGIN, at + 1) >= 0
        or any(find(name) >= 0 for name in _PARSED)
    ):
        return False
    key = find_unique_key(text)
    if key is None:
        return False
    message.properties = b"%b%b\x01%b\x02%b" % (
        text, _TRANSACTION_ID, key, destination_note(message.topic, message.queue_id)
    )  # fmt: skip
    message.sys_flag &= ~TRANSACTION_MASK
    message.topic, message.queue_id = names.HALF_TOPIC, 0
    return True


def op_message(queue_offsets: list[int], *, born_host: bytes, now_ms: int) -> PutMessage:
    """The record that finishes half messages."""
    body = b"".join(b"%d%b" % (queue_offset, OP_SEPARATOR) for queue_offset in queue_offsets)
    return PutMessage(
        names.HALF_OP_TOPIC, 0, body, OP_PROPERTIES, born_timestamp=now_ms, born_host=born_host, wait=False
    )


def finished_offsets(op_body: bytes) -> list[int]:
    """The queue offsets in an op message: a single one from RocketMQ 4, a list from RocketMQ 5."""
    return [int(piece) for piece in op_body.split(OP_SEPARATOR) if piece.strip().isdigit()]


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 19 else None


class HalfMessage(msgspec.Struct, gc=False):
    """The fields kept in memory for an open half message."""

    queue_offset: int
    physical_offset: int
    born_ms: int
    immunity_ms: int | None
    key: Key
    real_topic: str
    real_queue_id: int | None = None

    def is_due(self, now_ms: int, timeout_ms: int) -> bool:
        """Return whether its producer may be checked now; a birth time in the future counts as due."""
        age_ms = now_ms - self.born_ms
        immunity_ms = self.immunity_ms if self.immunity_ms is not None else timeout_ms
        return age_ms < 0 or age_ms > immunity_ms


def half_as_sent(record: bytes, text: bytes, queue_offset: int, physical_offset: int) -> HalfMessage | None:
    """Return the half message of a record that `prepare_as_sent` prepared; None if it names an immunity."""
    if text.find(_IMMUNITY) >= 0:
        return None
    crc, born_ms = _CRC_AND_BIRTH.unpack_from(record)
    topic, queue_id = find_destination(text)
    key = (find_unique_key(text) or b"").decode(), crc
    return HalfMessage(queue_offset, physical_offset, born_ms, None, key, topic, queue_id)


class HalfTable:
    """The open half messages, by their queue offset."""

    def __init__(self) -> None:
        self._open: dict[int, HalfMessage] = {}
        self._by_key: dict[Key, tuple[int, ...]] = {}
        self.topics: Counter[str] = Counter()
        """How many are open, by the topic that they are meant for."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[HalfMessage]:
        """Yield the open half messages, oldest first. The table may change during iteration."""
        return iter([self._open[queue_offset] for queue_offset in sorted(self._open)])

    def is_open(self, half: HalfMessage) -> bool:
        return half.queue_offset in self._open

    def lone(self, queue_offset: int) -> HalfMessage | None:
        """Return the open half message at an offset, if no other one is of the same transaction."""
        half = self._open.get(queue_offset)
        return half if half is not None and len(self._by_key[half.key]) == 1 else None

    @property
    def first_offset(self) -> int | None:
        """The queue offset of the oldest one."""
        return min(self._open) if self._open else None

    def add(self, half: HalfMessage) -> None:
        if half.queue_offset in self._open:
            return
        self.topics[half.real_topic] += 1
        self._open[half.queue_offset] = half
        self._by_key[half.key] = (*self._by_key.get(half.key, ()), half.queue_offset)

    def of_key(self, key: Key) -> list[int]:
        """The queue offsets of a transaction's open half messages; empty if it has ended."""
        return sorted(self._by_key.get(key, ()))

    def close(self, queue_offsets: list[int]) -> None:
        for queue_offset in queue_offsets:
            half = self._open.pop(queue_offset, None)
            if half is not None:
                self.topics[half.real_topic] -= 1
                if not self.topics[half.real_topic]:
                    del self.topics[half.real_topic]
                same = tuple(each for each in self._by_key.pop(half.key) if each != queue_offset)
                if same:
                    self._by_key[half.key] = same
