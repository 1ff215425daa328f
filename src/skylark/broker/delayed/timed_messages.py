"""Pure. Timed messages: admission, recall, and their units in the timer log."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec

from skylark.broker.delayed.original_destination import (
    destination_note,
    find_destination,
    message_of,
    needs_full_parse,
)
from skylark.broker.error_replies import system_error
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.java import java_hash
from skylark.model.message import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQUE_KEY,
    PutMessage,
    decode_properties,
    encode_properties,
    find_unique_key,
    property_finder,
)
from skylark.model.record import terminated
from skylark.protocol.codes import ResponseCode
from skylark.settings.broker import TimerSettings
from skylark.store.timer_files import TIMER_UNIT, TIMER_UNIT_BYTES, TimerFlag

PROPERTY_OUT_MS = "TIMER_OUT_MS"
PROPERTY_DELETES = "TIMER_DEL_UNIQKEY"
PROPERTY_ROLLS = "TIMER_ROLL_TIMES"

NEVER_ENQUEUED_MS = (1 << 63) - 1
RECALL_TAG = "_RECALL_TAG_"
HANDLE_VERSION = "v1"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
NUMBER_CHARS_MAX = 19
PROPERTY_END = ord(PROPERTY_SEPARATOR)
CACHED_WISHES_MAX = 4096
CACHED_WISH_BYTES_MAX = 64
CACHED_STAMPS_MAX = 64
CACHED_ENDS_MAX = 4096
CACHED_END_BYTES_MAX = 256


class TimerTarget(NamedTuple):
    """The slot in which a message is wanted, its topic and queue, and the topic's hash in the timer log."""

    out_ms: int
    real_topic: str
    real_queue_id: int
    topic_hash: int


TIMES: dict[bytes, tuple[int, bool]] = {
    PROPERTY_TIMER_DELAY_S.encode(): (1000, True),
    PROPERTY_TIMER_DELAY_MS.encode(): (1, True),
    PROPERTY_TIMER_DELIVER_MS.encode(): (1, False),
}
"""Properties that name a time, the first goes before: of what unit in ms, and whether it counts from now."""

STAMP_BEGIN = b"TIMER_ENQUEUE_MS\x01"
_OUT_MS_BEGIN = f"{PROPERTY_SEPARATOR}{PROPERTY_OUT_MS}{NAME_VALUE_SEPARATOR}".encode()
find_out_ms = property_finder(PROPERTY_OUT_MS)
_find_deletes = property_finder(PROPERTY_DELETES)
_find_rolls = property_finder(PROPERTY_ROLLS)


def deliver_at(properties: dict[str, str], now_ms: int) -> int | None:
    """Return the delivery time of a message, or None. Raises ValueError for an invalid time."""
    for name in TIMES:
        value = properties.get(name.decode())
        if value is not None:
            return _time(name, value, now_ms)
    return None


def _time(name: bytes, value: str, now_ms: int) -> int:
    unit_ms, from_now = TIMES[name]
    return _number(value) * unit_ms + (now_ms if from_now else 0)


@lru_cache(CACHED_WISHES_MAX)
def _wish(pair: bytes) -> tuple[int, bool] | None:
    """Return the time of a property in ms and whether it is relative to now; None if it is invalid."""
    name, _, value = pair.partition(NAME_VALUE_SEPARATOR.encode())
    try:
        return _time(name, value.decode(), 0), TIMES[name][1]
    except (KeyError, ValueError):
        return None  # the other way says what is wrong with it


def slot_of(deliver_ms: int, precision_ms: int) -> int:
    """Return the slot of a time: it is delivered one precision after its start, never early."""
    if deliver_ms % precision_ms == 0:
        return deliver_ms - precision_ms
    return deliver_ms - deliver_ms % precision_ms


def admit(
    message: PutMessage, properties: dict[str, str], settings: TimerSettings, now_ms: int
) -> int | None:
    """Send a message to the timer topic, in place, and return its slot; None if it need not wait.

    Raises BrokerError 13 for a time that cannot be kept, 1 if timers are switched off.
    """
    try:
        deliver_ms = deliver_at(properties, now_ms)
    except ValueError:
        raise _illegal(settings) from None
    if deliver_ms is None or PROPERTY_OUT_MS in properties or message.topic == names.TIMER_TOPIC:
        return None
    slot_ms = _slot_for(deliver_ms, settings, now_ms, deletes=PROPERTY_DELETES in properties)
    if slot_ms is None:
        return None
    properties[PROPERTY_OUT_MS] = str(slot_ms)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.properties = encode_properties(properties)
    message.topic, message.queue_id = names.TIMER_TOPIC, 0
    return slot_ms


def admit_as_sent(message: PutMessage, settings: TimerSettings, now_ms: int) -> int | None:
    """As `admit`, by appending to the properties; None without a time, or if they must be parsed.

    Raises as `admit`.
    """
    text = message.properties
    at = text.find(b"TIMER_")
    end = text.find(b"\x02", at)
    wish = _wish(text[at:end]) if 0 <= end - at <= CACHED_WISH_BYTES_MAX else None
    if (
        wish is None
        or (at > 0 and text[at - 1] != PROPERTY_END)  # the end of another name
        or text.find(b"TIMER_", end) >= 0
        or text.find(b"DELAY\x01") >= 0
        or needs_full_parse(text)
        or message.topic == names.TIMER_TOPIC
    ):
        return None
    wish_ms, from_now = wish
    slot_ms = _slot_for(wish_ms + now_ms if from_now else wish_ms, settings, now_ms, deletes=False)
    if slot_ms is None:
        return None
    message.properties = text + _note(slot_ms, message.topic, message.queue_id)
    message.topic, message.queue_id = names.TIMER_TOPIC, 0
    return slot_ms


@lru_cache(CACHED_ENDS_MAX)
def _note(slot_ms: int, topic: str, queue_id: int) -> bytes:
    """What says, at the end of its property text, when a message is wanted, and where."""
    return b"TIMER_OUT_MS\x01%d\x02%b" % (slot_ms, destination_note(topic, queue_id))


def _slot_for(deliver_ms: int, settings: TimerSettings, now_ms: int, *, deletes: bool) -> int | None:
    """The slot of a message, or of what takes one back; None if its time has come. Raises BrokerError."""
    if not settings.enabled:
        raise system_error("accurate timer message is not enabled, timerWheelEnable is false")
    if deliver_ms <= now_ms:
        if deletes:
            raise _illegal(settings)
        return None
    if deliver_ms - now_ms > settings.max_delay_s * 1000:
        raise _illegal(settings)
    return slot_of(deliver_ms, settings.precision_ms)


def _illegal(settings: TimerSettings) -> BrokerError:
    return BrokerError.for_code(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{settings.max_delay_s * 1000}ms; or if set del msg, the delay time should be bigger than the "
        "current time",
    )


def _number(text: str) -> int:
    if len(text) > NUMBER_CHARS_MAX or not text.removeprefix("-").isdecimal():
        raise ValueError(f"{text[:NUMBER_CHARS_MAX]!r} is not a number")
    return int(text)


def _terms(text: bytes) -> TimerTarget:
    """When and where a message is wanted. Raises ValueError if it does not say."""
    # Messages of one slot and queue end alike, as `admit_as_sent` writes them: most are known already.
    end = text[text.rfind(_OUT_MS_BEGIN) :]
    known = _known_terms(end) if len(end) <= CACHED_END_BYTES_MAX else None
    return known or _read_terms(text)


def _read_terms(text: bytes) -> TimerTarget:
    topic, queue_id = find_destination(text)
    return TimerTarget(_number((find_out_ms(text) or b"").decode()), topic, queue_id, java_hash(topic))


@lru_cache(CACHED_ENDS_MAX)
def _known_terms(end: bytes) -> TimerTarget | None:
    try:
        return _read_terms(end)
    except ValueError:
        return None


@lru_cache(CACHED_STAMPS_MAX)
def _stamp(enqueued_ms: int, now_ms: int) -> bytes:
    return b"%b%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (STAMP_BEGIN, enqueued_ms, now_ms)


class TimedMessage(msgspec.Struct, gc=False):
    """A record of the timer topic. Of its properties only those are looked for that are asked for."""

    message: PutMessage
    terms: TimerTarget

    @staticmethod
    def read(record: bytes) -> TimedMessage:
        """Raises CorruptRecord, ValueError for a record that names no time or no topic."""
        message = message_of(record)
        return TimedMessage(message, _terms(message.properties))

    @property
    def deletes(self) -> str | None:
        """The key of the message that this one recalls."""
        key = _find_deletes(self.message.properties)
        return None if key is None else key.decode(errors="replace")

    @property
    def delay_ms(self) -> int:
        """The requested delay."""
        return self.terms.out_ms - self.message.born_timestamp

    @property
    def rolls(self) -> int:
        """How often it was rolled."""
        times = _find_rolls(self.message.properties)
        return 0 if times is None else _number(times.decode())

    @property
    def identity(self) -> tuple[str, str, int]:
        """What all records of one message share."""
        return self.terms.real_topic, self._key, self.terms.out_ms

    @property
    def _key(self) -> str:
        return (find_unique_key(self.message.properties) or b"").decode(errors="replace")

    def is_deleted_by(self, keys: set[str]) -> bool:
        """Return whether the message was recalled; the first releases named only its own key."""
        key = self._key
        return recall_key(self.terms.real_topic, key) in keys or key in keys

    def due(self, enqueued_ms: int, now_ms: int) -> PutMessage:
        """Make the message for its own topic."""
        _, topic, queue_id, _ = self.terms
        return self._put(topic, queue_id, _stamp(enqueued_ms, now_ms))

    def rolled(self, enqueued_ms: int, now_ms: int) -> PutMessage:
        """Make the message for the timer topic again."""
        rolls = b"%b\x01%d\x02" % (PROPERTY_ROLLS.encode(), self.rolls + 1)
        return self._put(names.TIMER_TOPIC, 0, _stamp(enqueued_ms, now_ms) + rolls)

    def _put(self, topic: str, queue_id: int, stamp: bytes) -> PutMessage:
        message, text = self.message, terminated(self.message.properties)
        message.topic, message.queue_id = topic, queue_id
        message.properties = text + stamp
        if text.find(STAMP_BEGIN) >= 0:  # what was there before must go
            message.properties = encode_properties(decode_properties(message.properties))
        return message


def may_have(name: str, messages: Sequence[TimedMessage]) -> bool:
    """Return whether any of them may have a property: one search over all is cheaper than one each."""
    return b"".join([timed.message.properties for timed in messages]).find(name.encode()) >= 0


def place(out_ms: int, write_ms: int, settings: TimerSettings, *, deletes: bool) -> tuple[int, int]:
    """The slot and the flags for a message that is enqueued now: one far away is put half of the way."""
    flags = TimerFlag.DEFAULT | (TimerFlag.DELETE if deletes else 0)
    window_ms = settings.roll_window_slots * settings.precision_ms
    if out_ms - write_ms < window_ms:
        return out_ms, flags
    flags |= TimerFlag.ROLL
    if out_ms - write_ms - window_ms < window_ms // 3:
        return write_ms + window_ms // 2, flags
    return write_ms + window_ms, flags


# --- Recall ---


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Identifies the message to recall; its sender gets it with the reply."""

    topic: str
    broker: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"{HANDLE_VERSION} {self.topic} {self.broker} {self.deliver_ms} {self.unique_key}"
        return binascii.b2a_base64(text.encode(), newline=False).translate(_URL_SAFE).decode()

    @staticmethod
    def decode(handle: str) -> RecallHandle:
        """Raises ValueError."""
        try:
            text = base64.urlsafe_b64decode(handle.encode() + b"=" * (-len(handle) % 4)).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError("a recall handle is base64 of UTF-8") from None
        version, *parts = text.split(" ")
        if version != HANDLE_VERSION or len(parts) != 4 or not all(parts):
            raise ValueError("a recall handle is of version 1 and has four parts")
        topic, broker, deliver_ms, unique_key = parts
        return RecallHandle(topic, broker, _number(deliver_ms), unique_key)


def handle_of(text: bytes, topic: str, broker: str, unique_key: bytes) -> bytes:
    """What takes a message back that waits with this property text."""
    end = text[max(text.rfind(_OUT_MS_BEGIN), 0) :]
    begin = _handle_begin if len(end) <= CACHED_END_BYTES_MAX else _handle_begin.__wrapped__
    return binascii.b2a_base64(begin(end, topic, broker) + unique_key, newline=False).translate(_URL_SAFE)


@lru_cache(CACHED_ENDS_MAX)
def _handle_begin(end: bytes, topic: str, broker: str) -> bytes:
    # A millisecond into its slot: at the slot's start a time belongs to the one before.
    return f"{HANDLE_VERSION} {topic} {broker} {int(find_out_ms(end) or 0) + 1} ".encode()


def recall_key(topic: str, unique_key: str) -> str:
    return f"{topic}+{unique_key}"


def recall_message(
    handle: RecallHandle, group: str, born_host: bytes, now_ms: int
) -> tuple[PutMessage, dict[str, str]]:
    """Make the message that recalls another, and its properties; the caller admits it."""
    properties = {
        "TAGS": RECALL_TAG,
        "PGROUP": group,
        "BORN_TIMESTAMP": str(now_ms),
        PROPERTY_TIMER_DELIVER_MS: str(handle.deliver_ms),
        PROPERTY_UNIQUE_KEY: handle.unique_key,
        PROPERTY_DELETES: recall_key(handle.topic, handle.unique_key),
    }
    message = PutMessage(
        handle.topic, 0, b"0", encode_properties(properties), born_timestamp=now_ms, born_host=born_host
    )
    return message, properties


TimerEntry = tuple[tuple[int, int], TimedMessage]
"""A record of the timer topic: its physical offset and its size, and what it holds."""


@dataclass(slots=True)
class SlotChain:
    """Units that a slot gets together: where the first and the last lie, how many messages more wait."""

    first: int
    last: int
    waiting: int = 0


class _SlotTarget(NamedTuple):
    """What messages with the same wish have in common."""

    chain: SlotChain
    flags: int
    write_ms: int
    delay_ms: int
    weight: int


@dataclass(slots=True)
class LinkedUnits:
    """Units, one behind the other; their chains by slot; how many messages more wait, by topic."""

    units: list[bytes] = field(default_factory=list)
    chains: dict[int, SlotChain] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def link_units(
    entries: Sequence[TimerEntry],
    position: int,
    last_position: Callable[[int], int],
    settings: TimerSettings,
    now_ms: int,
) -> LinkedUnits:
    """The units of messages that are enqueued now, for a position of the log; `last_position` is a slot's."""
    linked = LinkedUnits()
    units, counts, pack = linked.units, linked.counts, TIMER_UNIT.pack
    any_deletes = may_have(PROPERTY_DELETES, [timed for _, timed in entries])
    spots: dict[tuple[int, bool], _SlotTarget] = {}
    for (physical_offset, size), timed in entries:
        out_ms, topic, _, topic_hash = timed.terms
        wish = out_ms, any_deletes and timed.deletes is not None
        spot = spots.get(wish)
        if spot is None:
            # Its slot may be over, but not dealt with: then what takes it back still counts.
            write_ms = min(now_ms, out_ms)
            slot_ms, flags = place(out_ms, write_ms, settings, deletes=wish[1])
            chain = linked.chains.setdefault(slot_ms, SlotChain(position, last_position(slot_ms)))
            spot = spots[wish] = _SlotTarget(chain, flags, write_ms, slot_ms - write_ms, weight_of(flags))
        chain, flags, write_ms, delay_ms, weight = spot
        units.append(
            pack(
                TIMER_UNIT_BYTES, chain.last, flags, write_ms, delay_ms, physical_offset, size, topic_hash, 0
            )
        )
        chain.last = position
        chain.waiting += weight
        counts[topic] += weight
        position += TIMER_UNIT_BYTES
    return linked


def weight_of(flags: int) -> int:
    """What a unit adds to the number of messages that wait: a delete takes one away."""
    return -1 if flags & TimerFlag.DELETE else 1
