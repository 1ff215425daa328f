"""Pure. Messages for a point in time: which are taken, what is made of them, and what takes them back."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from skylark.broker.real_queue import find_real_queue, has_other_concerns, real_queue_note
from skylark.broker.refusals import system_error
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.java import java_hash
from skylark.model.message import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    PROPERTY_UNIQUE_KEY,
    PutMessage,
    decode_properties,
    encode_properties,
    find_unique_key,
    property_finder,
)
from skylark.model.record import split, terminated
from skylark.protocol.codes import ResponseCode
from skylark.settings.delivery import TimerSettings
from skylark.store.timer_log import TimerFlag

PROPERTY_DELAY_S = "TIMER_DELAY_SEC"
PROPERTY_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_OUT_MS = "TIMER_OUT_MS"
PROPERTY_DELETES = "TIMER_DEL_UNIQKEY"
PROPERTY_ROLLS = "TIMER_ROLL_TIMES"

NEVER_ENQUEUED_MS = (1 << 63) - 1
RECALL_TAG = "_RECALL_TAG_"
HANDLE_VERSION = "v1"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
NUMBER_CHARS_MAX = 19
CACHED_HASHES_MAX = 4096
CACHED_ENDS_MAX = 4096
CACHED_END_BYTES_MAX = 256

Terms = tuple[int, str, int]
"""The slot in which a message is wanted, its topic and its queue."""


TIMES: dict[bytes, tuple[int, bool]] = {
    PROPERTY_DELAY_S.encode(): (1000, True),
    PROPERTY_DELAY_MS.encode(): (1, True),
    PROPERTY_DELIVER_MS.encode(): (1, False),
}
"""Properties that name a time, the first goes before: of what unit in ms, and whether it counts from now."""

_OUT_MS_BEGIN = f"{PROPERTY_SEPARATOR}{PROPERTY_OUT_MS}{NAME_VALUE_SEPARATOR}".encode()
find_out_ms = property_finder(PROPERTY_OUT_MS)
_find_deletes = property_finder(PROPERTY_DELETES)
_find_rolls = property_finder(PROPERTY_ROLLS)
_hash_of = lru_cache(CACHED_HASHES_MAX)(java_hash)


def deliver_at(properties: dict[str, str], now_ms: int) -> int | None:
    """When a message is wanted; None if it does not say. Raises ValueError for what is no time."""
    for name in TIMES:
        value = properties.get(name.decode())
        if value is not None:
            return _time(name, value, now_ms)
    return None


def _time(name: bytes, value: str, now_ms: int) -> int:
    unit_ms, from_now = TIMES[name]
    return _number(value) * unit_ms + (now_ms if from_now else 0)


def slot_of(deliver_ms: int, precision_ms: int) -> int:
    """The slot of a time: it is dealt with one precision after its start, so never before the time."""
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
    """As `admit`, by adding to the property text; None where that is not enough, or there is no time.

    Raises as `admit`.
    """
    text = message.properties
    at = text.find(b"TIMER_")
    name, _, rest = text[at:].partition(b"\x01")
    if (
        name not in TIMES
        or text[at - 1 : at] not in (b"\x02", b"")  # the end of another name
        or rest.find(b"TIMER_") >= 0
        or text.find(b"DELAY\x01") >= 0
        or has_other_concerns(text)
        or message.topic == names.TIMER_TOPIC
    ):
        return None
    try:
        deliver_ms = _time(name, rest[: rest.index(b"\x02")].decode(), now_ms)
    except ValueError:
        return None  # the other way says what is wrong with it
    slot_ms = _slot_for(deliver_ms, settings, now_ms, deletes=False)
    if slot_ms is None:
        return None
    message.properties = b"%bTIMER_OUT_MS\x01%d\x02%b" % (text, slot_ms, real_queue_note(message))
    message.topic, message.queue_id = names.TIMER_TOPIC, 0
    return slot_ms


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
        raise ValueError(f"{text[:NUMBER_CHARS_MAX]!r} is no number")
    return int(text)


def _terms(text: bytes) -> Terms:
    """When and where a message is wanted. Raises ValueError if it does not say."""
    # Messages of one slot and queue end alike, as `admit_as_sent` writes them: most are known already.
    end = text[max(text.rfind(_OUT_MS_BEGIN), 0) :]
    if len(end) <= CACHED_END_BYTES_MAX:
        with suppress(ValueError):
            return _known_terms(end)
    return _read_terms(text)


def _read_terms(text: bytes) -> Terms:
    topic, queue_id = find_real_queue(text)
    return _number((find_out_ms(text) or b"").decode()), topic, queue_id


_known_terms = lru_cache(CACHED_ENDS_MAX)(_read_terms)


class TimedMessage:
    """A record of the timer topic. Of its properties only those are looked for that are asked for."""

    __slots__ = ("deletes", "message", "out_ms", "real_queue_id", "real_topic")

    deletes: str | None
    """The key of the message that this one takes back."""

    def __init__(self, record: bytes) -> None:
        """Raises CorruptRecord, ValueError for a record that names no time or no topic."""
        head, body_position, _, text = split(record)
        self.out_ms, self.real_topic, self.real_queue_id = _terms(text)
        key = _find_deletes(text)
        self.deletes = None if key is None else key.decode(errors="replace")
        self.message = PutMessage(
            names.TIMER_TOPIC, 0, record[body_position : body_position + head[14]], terminated(text),
            head[4], head[7], head[8], head[9], head[12], head[13], wait=False,
        )  # fmt: skip

    @property
    def rolls(self) -> int:
        """How often it was written again on the way."""
        times = _find_rolls(self.message.properties)
        return 0 if times is None else _number(times.decode())

    @property
    def identity(self) -> tuple[str, str, int]:
        """What all records of one message share."""
        return self.real_topic, self._key, self.out_ms

    @property
    def _key(self) -> str:
        return (find_unique_key(self.message.properties) or b"").decode(errors="replace")

    @property
    def topic_hash(self) -> int:
        return _hash_of(self.real_topic)

    def is_deleted_by(self, keys: set[str]) -> bool:
        """Say whether it is among those that were taken back; the first releases named only its own key."""
        key = self._key
        return recall_key(self.real_topic, key) in keys or key in keys

    def due(self, enqueued_ms: int, now_ms: int) -> PutMessage:
        """The message for its own topic."""
        stamp = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (enqueued_ms, now_ms)
        return self._put(self.real_topic, self.real_queue_id, stamp)

    def rolled(self, enqueued_ms: int, now_ms: int) -> PutMessage:
        """The message once more for the timer topic."""
        stamp = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02TIMER_ROLL_TIMES\x01%d\x02"
        return self._put(names.TIMER_TOPIC, 0, stamp % (enqueued_ms, now_ms, self.rolls + 1))

    def _put(self, topic: str, queue_id: int, stamp: bytes) -> PutMessage:
        message = self.message
        is_stamped = message.properties.find(b"TIMER_ENQUEUE_MS\x01") >= 0
        message.topic, message.queue_id = topic, queue_id
        message.properties += stamp
        if is_stamped:  # what was there before must go
            message.properties = encode_properties(decode_properties(message.properties))
        return message


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


# --- Taking back ---


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """Which message is to be taken back: what its sender was told."""

    topic: str
    broker: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        return encode_handle(self.topic, self.broker, self.deliver_ms, self.unique_key).decode()

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


def encode_handle(topic: str, broker: str, deliver_ms: int, unique_key: str) -> bytes:
    text = f"{HANDLE_VERSION} {topic} {broker} {deliver_ms} {unique_key}"
    return binascii.b2a_base64(text.encode(), newline=False).translate(_URL_SAFE)


def recall_key(topic: str, unique_key: str) -> str:
    return f"{topic}+{unique_key}"


def recall_message(
    handle: RecallHandle, group: str, born_host: bytes, now_ms: int
) -> tuple[PutMessage, dict[str, str]]:
    """The message that takes another back, and its properties; it is still to be admitted."""
    properties = {
        "TAGS": RECALL_TAG,
        "PGROUP": group,
        "BORN_TIMESTAMP": str(now_ms),
        PROPERTY_DELIVER_MS: str(handle.deliver_ms),
        PROPERTY_UNIQUE_KEY: handle.unique_key,
        PROPERTY_DELETES: recall_key(handle.topic, handle.unique_key),
    }
    message = PutMessage(
        handle.topic, 0, b"0", encode_properties(properties), born_timestamp=now_ms, born_host=born_host
    )
    return message, properties
