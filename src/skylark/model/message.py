"""Pure. Messages, their properties, keys and system flags, and the addresses in records."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import IntFlag
from functools import lru_cache
from typing import Any, AnyStr, Self

import msgspec

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
KEY_SEPARATOR = " "
_KEY_SEPARATOR = KEY_SEPARATOR.encode()

PROPERTY_TAGS = "TAGS"
PROPERTY_KEYS = "KEYS"
PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
PROPERTY_DELAY_LEVEL = "DELAY"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_WAIT = "WAIT"
PROPERTY_CRC32 = "__CRC32#"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_PRIORITY = "_SYS_MSG_PRIORITY_"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELAY_S = "TIMER_DELAY_SEC"
PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_INSTANCE = "INSTANCE_ID"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO = "REPLY_TO_CLIENT"
PROPERTY_TTL = "TTL"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_INNER_NUMBER = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_LITE_TOPIC = "__LITE_TOPIC"
PROPERTY_LIGHT_QUEUES = "INNER_MULTI_DISPATCH"
PROPERTY_LIGHT_OFFSETS = "INNER_MULTI_QUEUE_OFFSET"

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
RETRY_TOPIC_PREFIX = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX = "%DLQ%"

PROPERTIES_BYTES_MAX = 32767


class SystemFlag(IntFlag):
    """Bits of the record's SYSFLAG field."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


TRANSACTION_MASK = 0xC
HOST_V6_MASK = 0x30
COMPRESSION_MASK = 0x700


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send. Immutable, so it can be sent again and by several producers.

    >>> Message("orders", b"hello", tags="created", keys=["42"])

    `keys` find it later, `tags` (one word) filter it, `properties` are the application's own. Messages with
    the same `sharding_key` go to the same queue and keep their order. At most one of `delay_level` (1 to 18),
    `deliver_at` and `deliver_after` delays it. Without `wait_for_store` the broker replies before it is on
    disk or on a slave. An invalid message raises BadMessage when it is sent.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Iterable[str] = ()
    properties: Mapping[str, str] = {}
    sharding_key: str | None = None
    delay_level: int = 0
    deliver_at: datetime | None = None
    deliver_after: timedelta | None = None
    wait_for_store: bool = True
    flag: int = 0

    @classmethod
    def json(
        cls,
        topic: str,
        value: Any,
        *,
        tags: str | None = None,
        keys: Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        deliver_after: timedelta | None = None,
        wait_for_store: bool = True,
        flag: int = 0,
    ) -> Self:
        """Return a message whose body is the value as JSON; a consumer reads it with `message.json()`.

        >>> Message.json("orders", {"id": 42}, tags="created")

        The value may hold dataclasses, msgspec structs, datetimes, UUIDs and enums, too. Raises TypeError for
        a value that cannot be encoded.
        """
        return cls(
            topic, msgspec.json.encode(value), tags, keys, properties or {}, sharding_key, delay_level,
            deliver_at, deliver_after, wait_for_store, flag,
        )  # fmt: skip


class PutMessage(msgspec.Struct, gc=False, kw_only=False):
    """A message to append to the store. Hosts are encoded as in records (see `pack_host`)."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    wait: bool = True
    queue: Any = None
    """The store's queue of this topic and id, if the caller has looked it up already."""
    light_queue: str = ""
    """A light queue that gets an entry, too. Without `queue` only."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A decoded record of the commit log. `body` is as stored, possibly compressed (see `model.body`)."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body: bytes
    body_crc: int
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties.get(PROPERTY_KEYS, ""))

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(PROPERTY_UNIQUE_KEY)


_PORT = struct.Struct(">i")
HOST_V4_BYTES = 8
HOST_V6_BYTES = 20


def pack_host(host: str, port: int) -> bytes:
    """Encode an address as in records: 4 or 16 bytes of IP, then the port as i32."""
    return ipaddress.ip_address(host).packed + _PORT.pack(port)


@lru_cache(1024)  # messages come from few hosts
def format_host(packed: bytes) -> str:
    """Return `10.0.0.1:10911`, or `[2001:db8::1]:10911` for IPv6."""
    address = ipaddress.ip_address(bytes(packed[:-4]))
    (port,) = _PORT.unpack(packed[-4:])
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property text. Raises ValueError for names or values that contain separators."""
    pieces = []
    for name, value in properties.items():
        if not name or NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name + value:
            raise ValueError(f"property {name!r} has an empty name or holds a separator (\\x01, \\x02)")
        pieces.append(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}")
    return "".join(pieces).encode()


def decode_properties(text: bytes) -> dict[str, str]:
    """Parse a property text. Pairs without name or value are ignored, the last duplicate wins."""
    properties = {}
    for piece in text.decode(errors="replace").split(PROPERTY_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and separator and value:
            properties[name] = value
    return properties


def split_keys(text: AnyStr) -> list[AnyStr]:
    """Return the keys of a KEYS property."""
    keys = text.split(KEY_SEPARATOR) if isinstance(text, str) else text.split(_KEY_SEPARATOR)
    return [key for key in keys if key]


def property_finder(name: str) -> Callable[[bytes], bytes | None]:
    """Return a function that finds one property's value in a property text without parsing the rest.

    It returns the encoded value that `decode_properties` would return, or None. Used for every send.
    """
    first = f"{name}{NAME_VALUE_SEPARATOR}".encode()
    later = PROPERTY_SEPARATOR.encode() + first
    later_bytes = len(later)

    def find(text: bytes) -> bytes | None:
        at = text.rfind(later)
        while at >= 0:
            start = at + later_bytes
            stop = text.find(b"\x02", start)
            value = text[start:] if stop < 0 else text[start:stop]
            if value:
                return value
            # An empty value does not count: try an earlier duplicate.
            at = text.rfind(later, 0, at + 1)
        if not text.startswith(first):
            return None
        stop = text.find(b"\x02")
        return text[later_bytes - 1 : len(text) if stop < 0 else stop] or None

    return find


NO_PRIORITY = (
    PROPERTY_TRANSACTION, PROPERTY_DELAY_LEVEL, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELAY_MS, PROPERTY_SHARDING_KEY,
)  # fmt: skip
"""A message with one of these has no priority, whatever it says."""


def priority_of(properties: Mapping[str, str]) -> int | None:
    """Return the priority of a message, from 0 on, None without one."""
    text = properties.get(PROPERTY_PRIORITY, "")
    if not text.isdecimal() or any(name in properties for name in NO_PRIORITY):
        return None
    return int(text)


find_tags = property_finder(PROPERTY_TAGS)
find_keys = property_finder(PROPERTY_KEYS)
find_unique_key = property_finder(PROPERTY_UNIQUE_KEY)
find_delay_level = property_finder(PROPERTY_DELAY_LEVEL)
find_inner_number = property_finder(PROPERTY_INNER_NUMBER)
