"""Pure. Messages for a point in time: which are taken, what is made of them, and what takes them back."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from skylark.broker.refusals import system_error
from skylark.errors import BrokerError
from skylark.model import names
from skylark.model.java import java_hash
from skylark.model.message import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQUE_KEY,
    PutMessage,
    decode_properties,
    encode_properties,
)
from skylark.model.record import split
from skylark.protocol.codes import ResponseCode
from skylark.settings.delivery import TimerSettings
from skylark.store.timer_log import TimerFlag

PROPERTY_DELAY_S = "TIMER_DELAY_SEC"
PROPERTY_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_OUT_MS = "TIMER_OUT_MS"
PROPERTY_DELETES = "TIMER_DEL_UNIQKEY"
PROPERTY_ENQUEUED_MS = "TIMER_ENQUEUE_MS"
PROPERTY_DEQUEUED_MS = "TIMER_DEQUEUE_MS"
PROPERTY_ROLLS = "TIMER_ROLL_TIMES"

NEVER_ENQUEUED_MS = (1 << 63) - 1
RECALL_TAG = "_RECALL_TAG_"
HANDLE_VERSION = "v1"
NUMBER_CHARS_MAX = 19


def deliver_at(properties: dict[str, str], now_ms: int) -> int | None:
    """When a message is wanted; None if it does not say. Raises ValueError for what is no time."""
    for name, unit_ms in ((PROPERTY_DELAY_S, 1000), (PROPERTY_DELAY_MS, 1)):
        if name in properties:
            return now_ms + _number(properties[name]) * unit_ms
    return _number(properties[PROPERTY_DELIVER_MS]) if PROPERTY_DELIVER_MS in properties else None


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
    if not settings.enabled:
        raise system_error("accurate timer message is not enabled, timerWheelEnable is false")
    if deliver_ms <= now_ms:
        if PROPERTY_DELETES in properties:
            raise _illegal(settings)
        return None
    if deliver_ms - now_ms > settings.max_delay_s * 1000:
        raise _illegal(settings)
    slot_ms = slot_of(deliver_ms, settings.precision_ms)
    properties[PROPERTY_OUT_MS] = str(slot_ms)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    message.properties = encode_properties(properties)
    message.topic, message.queue_id = names.TIMER_TOPIC, 0
    return slot_ms


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


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """A record of the timer topic."""

    message: PutMessage
    properties: dict[str, str]
    out_ms: int
    real_topic: str
    real_queue_id: int

    @staticmethod
    def read(record: bytes) -> TimedMessage:
        """Raises CorruptRecord, ValueError for a record that names no time or no topic."""
        head, body_position, _, text = split(record)
        properties = decode_properties(text)
        if PROPERTY_REAL_TOPIC not in properties:
            raise ValueError("it names no topic")
        message = PutMessage(
            names.TIMER_TOPIC, 0, record[body_position : body_position + head[14]], text,
            head[4], head[7], head[8], head[9], head[12], head[13], wait=False,
        )  # fmt: skip
        return TimedMessage(
            message,
            properties,
            _number(properties.get(PROPERTY_OUT_MS, "")),
            properties[PROPERTY_REAL_TOPIC],
            _number(properties.get(PROPERTY_REAL_QUEUE_ID, "")),
        )

    @property
    def deletes(self) -> str | None:
        """The key of the message that this one takes back."""
        return self.properties.get(PROPERTY_DELETES)

    @property
    def rolls(self) -> int:
        """How often it was written again on the way."""
        return _number(self.properties.get(PROPERTY_ROLLS, "0"))

    @property
    def identity(self) -> tuple[str, str, int]:
        """What all records of one message share."""
        return self.real_topic, self.properties.get(PROPERTY_UNIQUE_KEY, ""), self.out_ms

    @property
    def topic_hash(self) -> int:
        return java_hash(self.real_topic)

    def is_deleted_by(self, keys: set[str]) -> bool:
        """Say whether it is among those that were taken back; the first releases named only its own key."""
        key = self.properties.get(PROPERTY_UNIQUE_KEY, "")
        return recall_key(self.real_topic, key) in keys or key in keys

    def due(self, enqueued_ms: int, now_ms: int) -> PutMessage:
        """The message for its own topic."""
        self._stamp(enqueued_ms, now_ms)
        return self._put(self.real_topic, self.real_queue_id)

    def rolled(self, enqueued_ms: int, now_ms: int) -> PutMessage:
        """The message once more for the timer topic."""
        self._stamp(enqueued_ms, now_ms)
        self.properties[PROPERTY_ROLLS] = str(self.rolls + 1)
        return self._put(names.TIMER_TOPIC, 0)

    def _stamp(self, enqueued_ms: int, now_ms: int) -> None:
        self.properties[PROPERTY_ENQUEUED_MS] = str(enqueued_ms)
        self.properties[PROPERTY_DEQUEUED_MS] = str(now_ms)

    def _put(self, topic: str, queue_id: int) -> PutMessage:
        message = self.message
        message.topic, message.queue_id = topic, queue_id
        message.properties = encode_properties(self.properties)
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
        text = f"{HANDLE_VERSION} {self.topic} {self.broker} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

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
