"""Pure. The topic and queue that a delayed message is meant for, noted in its properties."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

from zlib_ng.zlib_ng import crc32

from skylark.model.message import (
    HOST_V6_MASK,
    NAME_VALUE_SEPARATOR,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SEPARATOR,
    PutMessage,
    property_finder,
)
from skylark.model.record import CRC_MASK, HEAD, LENGTH, LENGTHS, MAGIC_V1, split

CACHED_NOTES_MAX = 4096
CACHED_NOTE_BYTES_MAX = 256

Destination = tuple[str, int]

_NOTE_BEGIN = f"{PROPERTY_SEPARATOR}{PROPERTY_REAL_TOPIC}{NAME_VALUE_SEPARATOR}".encode()
_find_topic = property_finder(PROPERTY_REAL_TOPIC)
_find_queue_id = property_finder(PROPERTY_REAL_QUEUE_ID)


def needs_full_parse(properties: bytes) -> bool:
    """Return whether the properties must be parsed: appending to them may not be enough."""
    find = properties.find  # thrice as fast as `in`
    return find(b"REAL_") >= 0 or find(b"POP_CK") >= 0 or find(b"TRAN_MSG") >= 0


@lru_cache(CACHED_NOTES_MAX)
def destination_note(topic: str, queue_id: int) -> bytes:
    """Return the properties that name a message's own topic and queue, to be appended."""
    return b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic.encode(), queue_id)


def find_destination(properties: bytes) -> Destination:
    """Return a message's own topic and queue. Raises ValueError if it names none."""
    # The note is last, so messages of one queue end alike, and most lookups hit the cache.
    end = properties[properties.rfind(_NOTE_BEGIN) :]
    found = _known(end) if len(end) <= CACHED_NOTE_BYTES_MAX else None
    found = found or _parse(properties)
    if found is None:
        raise ValueError("it names no topic or queue")
    return found


def _parse(properties: bytes) -> Destination | None:
    topic, queue_id = _find_topic(properties), _find_queue_id(properties)
    return (topic.decode(), int(queue_id)) if topic and queue_id else None


_known = lru_cache(CACHED_NOTES_MAX)(_parse)


def queues_needed(messages: Iterable[PutMessage]) -> dict[str, int]:
    """Return the number of queues that each topic needs for the messages."""
    last: dict[str, int] = {}
    for topic, queue_id in {(message.topic, message.queue_id) for message in messages}:
        last[topic] = max(last.get(topic, 0), queue_id + 1)
    return last


def message_of(record: bytes) -> PutMessage:
    """The message that a record holds, for a queue that is still to be named. Raises CorruptRecord."""
    try:
        (
            size, magic, body_crc, _, flag, _, _, sys_flag, born_timestamp, born_host, _, _, reconsume_times,
            prepared_transaction_offset, body_bytes,
        ) = HEAD.unpack_from(record)  # fmt: skip
        body_end = HEAD.size + body_bytes
        body = record[HEAD.size : body_end]
        text_at = body_end + 1 + record[body_end] + LENGTH.size
        text = record[text_at:]
        is_usual = (
            record[text_at - LENGTH.size : text_at] == LENGTHS[len(text)]
            and size == len(record)
            and magic == MAGIC_V1
            and not sys_flag & HOST_V6_MASK
            and body_bytes >= 0
            and crc32(body) & CRC_MASK == body_crc
        )
    except (struct.error, IndexError):
        is_usual = False
    if not is_usual:
        return _unusual_message_of(record)
    return PutMessage(
        "", 0, body, text, flag, sys_flag, born_timestamp, born_host, reconsume_times,
        prepared_transaction_offset, False,
    )  # fmt: skip


def _unusual_message_of(record: bytes) -> PutMessage:
    """As `message_of` for any record: of a long topic, of hosts with IPv6, a damaged one."""
    parts = split(record)
    head = parts.head
    # Stored again it would get a valid checksum, and the damage would be hidden.
    body = parts.body(record)
    return PutMessage(
        "", 0, body, parts.properties, head[4], head[7], head[8], head[9], head[12], head[13], wait=False
    )
