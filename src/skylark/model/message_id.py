"""Message ids: unique ids in the format of the Java client, and offset message ids.

A unique id consists of address, process, class loader, time and counter. An offset message id consists of the
broker's address and the record's physical offset; it finds the record without an index.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

_HEAD = struct.Struct(">H3s")  # process id; three bytes in place of Java's class loader, a fourth follows
COUNTER_LIMIT = 1 << 16
_TAIL = struct.Struct(">H4sIH")  # process id, class loader, milliseconds since the month began, counter
_OFFSET = struct.Struct(">q")
PORT_MAX = 0xFFFF
CLOCK_DIFFERENCE_MS = 24 * 3600 * 1000
"""A time that is less than a day ahead is of another clock or time zone, not of the month before."""


class UniqueIds:
    """Generates the ids of one process. Any thread; ids are distinct within a month.

    A thread may be suspended between reading the clock and the counter. The byte before the time counts the
    counter's rounds, so that the id is unique even if the counter has wrapped around meanwhile.
    """

    def __init__(self, address: bytes, started_ms: int, process_id: int | None = None) -> None:
        """`address` is an IP of 4 or 16 bytes; `started_ms` the current wall time."""
        pid = os.getpid() if process_id is None else process_id
        self._prefix = (address + _HEAD.pack(pid & 0xFFFF, os.urandom(3))).hex().upper()
        self._month_ms = int(_month(started_ms).timestamp() * 1000)
        self.chars = len(self._prefix) + 2 + 8 + 4  # the length of each id
        self._counter = itertools.count()
        self._stem = (-1, -1, "")  # the common prefix of ids of one millisecond and round

    def next(self, now_ms: int) -> str:
        number = next(self._counter)
        stem_ms, stem_round, stem = self._stem
        if stem_ms != now_ms or stem_round != number >> 16:
            stem = self._new_stem(now_ms, number >> 16)
        return stem + "%04X" % (number & 0xFFFF)  # twice as fast as an f-string

    def several(self, count: int, now_ms: int) -> list[str]:
        """Return `count` ids, at least one, at a fraction of the cost of `next`."""
        made: list[str] = []
        for stem, numbers in self.stems(count, now_ms):
            digits = struct.pack(f">{len(numbers)}H", *numbers).hex(",", 2).upper()
            made += f"{stem}{digits.replace(',', f',{stem}')}".split(",")
        return made

    def stems(self, count: int, now_ms: int) -> list[tuple[str, Sequence[int]]]:
        """Reserve `count` ids, at least one: stems of equal length, each with numbers of four digits."""
        numbers = list(itertools.islice(self._counter, count))
        first, last = numbers[0], numbers[-1]
        if first >> 16 == last >> 16 and last - first == count - 1:
            return [(self._new_stem(now_ms, first >> 16), range(first & 0xFFFF, (last & 0xFFFF) + 1))]
        # The counter wrapped around, or another thread used it in between.
        return [
            (self._new_stem(now_ms, turn), [number & 0xFFFF for number in each])
            for turn, each in itertools.groupby(numbers, lambda number: number >> 16)
        ]

    def _new_stem(self, now_ms: int, turn: int) -> str:
        elapsed_ms = now_ms - self._month_ms & 0xFFFFFFFF
        stem = f"{self._prefix}{turn & 0xFF:02X}{elapsed_ms:08X}"
        # Replaced as one tuple: another thread sees the old or the new one, both valid.
        self._stem = (now_ms, turn, stem)
        return stem


@dataclass(frozen=True, slots=True)
class UniqueIdParts:
    """What a unique id says: who made it and when."""

    address: str
    process_id: int
    """The lower 16 bits."""
    created_ms: int
    """Milliseconds since 1970 if months began in UTC, as Skylark's do; Java's begin in the client's zone."""
    counter: int


def parse_unique_id(unique_id: str, now_ms: int) -> UniqueIdParts:
    """Raises ValueError for text of another form.

    The id holds a time within a month, which is taken for the last one before `now_ms`.
    """
    if len(unique_id) not in (32, 56):
        raise ValueError(f"invalid message id of {len(unique_id)} characters; an id has 32 or 56")
    data = bytes.fromhex(unique_id)
    host, (process_id, _, elapsed_ms, counter) = data[:-12], _TAIL.unpack(data[-12:])
    month = _month(now_ms)
    if month.timestamp() * 1000 + elapsed_ms > now_ms + CLOCK_DIFFERENCE_MS:
        month = _month(round(month.timestamp() * 1000) - 1)
    created_ms = round(month.timestamp() * 1000) + elapsed_ms
    return UniqueIdParts(str(ipaddress.ip_address(host)), process_id, created_ms, counter)


def _month(time_ms: int) -> datetime:
    """The beginning of the month of a time."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return a record's offset message id: 32 hex characters, 56 with an IPv6 store host."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[bytes, int]:
    """Return store host and physical offset. Raises ValueError.

    Unique ids have the same length. What would be the port distinguishes them: there it holds a process id.
    """
    if len(message_id) not in (32, 56):
        raise ValueError(f"invalid message id of {len(message_id)} characters; an id has 32 or 56")
    data = bytes.fromhex(message_id)
    if int.from_bytes(data[-12:-8]) > PORT_MAX:
        raise ValueError("it is the unique id of a message, not an offset id")
    return data[:-8], _OFFSET.unpack(data[-8:])[0]


def offset_id_template(store_host: bytes) -> bytes:
    """Return a format whose `%` with a physical offset is the encoded offset message id."""
    return store_host.hex().upper().encode() + b"%016X"


def joined_offset_ids(store_host: bytes, physical_offsets: list[int]) -> bytes:
    """Return the encoded offset message ids of a batch, joined by commas."""
    host = store_host.hex().upper()
    offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", 8).upper()
    return (host + offsets.replace(",", "," + host)).encode()
