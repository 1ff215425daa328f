"""Pure. The consume-queue entry: 20 bytes that point to a record of the log, and its tags code.

The append and recovery compute the tags code with the same functions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from skylark.model.java import java_hash
from skylark.model.message import SystemFlag, find_delay_level, find_inner_number, find_tags

ENTRY = struct.Struct(">qiq")  # physical offset, record size, tags code
ENTRY_BYTES = ENTRY.size
assert ENTRY_BYTES == 20
BLANK_ENTRY_SIZE = 0x7FFFFFFF
# System flags of records without an entry: half messages and rollbacks; inner batches have a unit in a batch
# consume queue instead.
PREPARED = int(SystemFlag.TRANSACTION_PREPARED)
INNER_BATCH = int(SystemFlag.INNER_BATCH)
NO_ENTRY_MASK = PREPARED | INNER_BATCH
LONE_UNIT = 1 << 30
"""Set in memory for a single message of a batch consume queue. Clients may set it, too: look at the queue."""
LIGHT = 1 << 29
"""Set in memory for a message with an entry in a light queue, too. Clients may set it: look at `light`."""
UNUSUAL_MASK = NO_ENTRY_MASK | LONE_UNIT | LIGHT
"""Records without any of these flags have a plain entry."""
BLANK_ENTRY = ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
"""An entry without a record: before a queue's first message, or where the log lost one."""

BATCH_MESSAGES_MAX = 0x7FFF
"""Messages in a record: its unit has 16 bits for them."""

CACHED_TAGS_MAX = 10_000
CACHED_BYTES_MAX = 256

TAGS_NAME = b"TAGS\x01"
TAGS_MARKER = b"\x02" + TAGS_NAME
# An empty value does not count: tags, if any, then precede this marker.
NO_TAGS = TAGS_MARKER + b"\x02"
known_codes: dict[bytes, int] = {}
"""Tags code by the text from the last marker to the end of the properties.

The append looks up `properties[properties.rfind(TAGS_MARKER) :]` here before it computes a code.
"""


def tags_code(properties: bytes) -> int:
    """Return the Java hash of the TAGS property, 0 without one."""
    at = properties.rfind(TAGS_MARKER)
    if at < 0:
        return _hash_of(find_tags(properties))
    segment = properties[at:]
    code = known_codes.get(segment)
    if code is None:
        code = _hash_of(find_tags(properties))
        if len(known_codes) >= CACHED_TAGS_MAX:
            known_codes.clear()
        if len(segment) <= CACHED_BYTES_MAX and not segment.startswith(NO_TAGS) and segment != TAGS_MARKER:
            known_codes[segment] = code
    return code


@lru_cache(CACHED_TAGS_MAX)
def _hash_of(tags: bytes | None) -> int:
    return java_hash(tags.decode(errors="replace")) if tags else 0


def message_count(sys_flag: int, properties: bytes) -> int:
    """Return the number of messages in a record: 1, or that of an inner batch."""
    if not sys_flag & INNER_BATCH:
        return 1
    text = find_inner_number(properties)
    try:
        return min(max(int(text or 1), 1), BATCH_MESSAGES_MAX)
    except ValueError:
        return 1


def delay_level(properties: bytes) -> int:
    """Return the DELAY property; 0 if it is missing or not a number."""
    text = find_delay_level(properties)
    try:
        return int(text) if text is not None else 0
    except ValueError:
        return 0


def schedule_tags_code(properties: bytes, store_timestamp: int, delays_ms: Sequence[int]) -> int:
    """Return the delivery time of a message of the schedule topic; without a level, its tags code."""
    level = delay_level(properties)
    if level <= 0:
        return tags_code(properties)
    return store_timestamp + delays_ms[min(level, len(delays_ms)) - 1]
