"""The result of an append: the place of each record in the log, or the status that refused it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple, overload

import msgspec

from skylark.model.message import NAME_VALUE_SEPARATOR, PROPERTY_KEYS, find_unique_key
from skylark.store.queue_entry import ENTRY, LIGHT, PREPARED, message_count

if TYPE_CHECKING:
    from skylark.store.consume_queue import ConsumeQueue


_KEYS_NAME = f"{PROPERTY_KEYS}{NAME_VALUE_SEPARATOR}".encode()
_PACKED_MAX = 128
"""Entries of a batch that are packed by one call."""


PlainFields = tuple[bytes, int, int, int, int, int, int, int, bytes]
"""Topic, queue id, queue offset, physical offset, size, tags code, store time, system flags, properties."""


class PutStatus(Enum):
    """RocketMQ's PutMessageStatus."""

    PUT_OK = "stored"
    FLUSH_DISK_TIMEOUT = "stored, but not on disk in time"
    FLUSH_SLAVE_TIMEOUT = "stored, but not on the slave in time"
    SLAVE_NOT_AVAILABLE = "stored, but there is no usable slave"
    SERVICE_NOT_AVAILABLE = "the store does not accept messages now"
    CREATE_MAPPED_FILE_FAILED = "cannot create the next file"
    MESSAGE_ILLEGAL = "the message exceeds a limit"
    PROPERTIES_SIZE_EXCEEDED = "the properties are too long"
    OS_PAGE_CACHE_BUSY = "the disk does not keep up"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "too few replicas are in sync"
    UNKNOWN_ERROR = "unknown error"


class AppendedRecord(msgspec.Struct, gc=False):
    """A record in the log, with everything that dispatch needs."""

    status: ClassVar[PutStatus] = PutStatus.PUT_OK

    queue: ConsumeQueue
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    sys_flag: int
    properties: bytes
    light: AppendedRecord | None = None
    """The same record in a light queue."""

    @property
    def end(self) -> int:
        return self.physical_offset + self.size

    @property
    def places(self) -> tuple[AppendedRecord, ...]:
        """The record in each of its queues."""
        return (self,) if self.light is None else (self, self.light)

    def take_light(self, queue: ConsumeQueue) -> None:
        """Take the next offset of a light queue."""
        self.add_light(queue, queue.next_offset)
        queue.next_offset += 1

    def add_light(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Note that the record is in a light queue, too."""
        self.light = AppendedRecord(
            queue, queue_offset, self.physical_offset, self.size, self.tags_code, self.store_timestamp,
            self.sys_flag, self.properties,
        )  # fmt: skip
        self.sys_flag |= LIGHT

    @property
    def message_count(self) -> int:
        return message_count(self.sys_flag, self.properties)


class AppendedBatch(Sequence[AppendedRecord]):
    """Consecutive records of one queue, made from a client's batch: published at once, split on demand."""

    __slots__ = (
        "end", "entries", "first_offset", "message_count", "queue", "shared", "store_timestamp", "sys_flag",
        "texts",
    )  # fmt: skip

    def __init__(
        self,
        queue: ConsumeQueue,
        store_timestamp: int,
        sys_flag: int,
        texts: Sequence[bytes],
        shared: bytes,
        first_offset: int = 0,
        entries: bytes = b"",
        end: int = 0,
        message_count: int | None = None,
    ) -> None:
        """A record's properties are its own text followed by `shared`. Without a position, call `place`."""
        self.queue = queue
        self.store_timestamp = store_timestamp
        self.sys_flag = sys_flag
        self.texts = texts
        self.shared = shared
        self.first_offset = first_offset
        self.entries = entries
        self.end = end
        self.message_count = len(texts) if message_count is None else message_count

    def place(self, physical_offset: int, queue_offset: int, sizes: list[int], codes: list[int]) -> None:
        """Set the position of the records in log and queue."""
        count = len(sizes)
        self.first_offset = queue_offset
        offsets = list(accumulate(sizes, initial=physical_offset))
        self.end = offsets.pop()
        if count > _PACKED_MAX:
            self.entries = b"".join(map(ENTRY.pack, offsets, sizes, codes))
            return
        fields = [0, 0, 0] * count
        fields[0::3], fields[1::3], fields[2::3] = offsets, sizes, codes
        self.entries = _packed_entries(count)(*fields)

    @property
    def start(self) -> int:
        """The physical offset of the first record."""
        return int(ENTRY.unpack_from(self.entries)[0])

    @property
    def physical_offsets(self) -> list[int]:
        return list(struct.unpack(">" + "q12x" * len(self.texts), self.entries))

    @property
    def properties(self) -> list[bytes]:
        return [text + self.shared for text in self.texts]

    @property
    def only_key(self) -> bytes | None:
        """The unique key that all records share, if they have no other keys; else None."""
        if _KEYS_NAME in self.shared or _KEYS_NAME in b"".join(self.texts):
            return None
        return find_unique_key(self.shared)  # the last duplicate wins: it hides their own unique keys

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> AppendedRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[AppendedRecord]: ...
    def __getitem__(self, index: int | slice) -> AppendedRecord | list[AppendedRecord]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        physical_offset, size, code = ENTRY.unpack_from(self.entries, number * ENTRY.size)
        return AppendedRecord(
            self.queue, self.first_offset + number, physical_offset, size, code, self.store_timestamp,
            self.sys_flag, self.texts[number] + self.shared,
        )  # fmt: skip


class AppendedInnerBatch(AppendedBatch):
    """A client's batch that is stored as one record, in a batch consume queue."""

    __slots__ = ()


class ReadRecords(Sequence[AppendedRecord]):
    """Plain records of any queues that were read back from the log, at least one: split on demand."""

    __slots__ = ("_fields", "queues")

    def __init__(self, queues: Sequence[ConsumeQueue], fields: Sequence[PlainFields]) -> None:
        """The queue and the fields of each record, in the log's order."""
        self.queues = queues
        self._fields = fields

    @property
    def end(self) -> int:
        last = self._fields[-1]
        return last[3] + last[4]

    @property
    def store_timestamp(self) -> int:
        """That of the last record."""
        return self._fields[-1][6]

    @property
    def physical_offsets(self) -> list[int]:
        return [each[3] for each in self._fields]

    @property
    def timestamps(self) -> list[int]:
        return [each[6] for each in self._fields]

    @property
    def texts(self) -> list[bytes]:
        """The properties of each record."""
        return [each[8] for each in self._fields]

    def __len__(self) -> int:
        return len(self.queues)

    @overload
    def __getitem__(self, index: int) -> AppendedRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[AppendedRecord]: ...
    def __getitem__(self, index: int | slice) -> AppendedRecord | list[AppendedRecord]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return AppendedRecord(self.queues[index], *self._fields[index][2:])


@lru_cache(_PACKED_MAX)
def _packed_entries(count: int) -> Callable[..., bytes]:
    return struct.Struct(">" + ENTRY.format.removeprefix(">") * count).pack


class LaidOut(NamedTuple):
    """Records that are ready to be written, made of the beginning of a buffer."""

    consumed: int
    """Bytes of the buffer that they were made of."""
    frames: int
    """Requests that they were made of."""
    end: int
    """End of the log behind them."""
    data: bytes | bytearray
    replies: bytes
    results: list[Sequence[AppendedRecord]]
    """Lists of single messages, and batches."""


LayOut = Callable[[int, int, int], LaidOut]
"""Lays out records from a position of the log up to a limit, with a store time. It advances the next offsets
of their queues, as an append does."""


class Refused(msgspec.Struct, frozen=True):
    """Nothing was stored."""

    status: PutStatus
    reason: str


PutResult = AppendedRecord | Refused

NUL_REFUSED = Refused(
    PutStatus.MESSAGE_ILLEGAL, "a property contains a NUL byte, which is not allowed; put it in the body"
)


Placed = Sequence[PutResult | Sequence[PutResult]]
"""Results of an append in their order: of single messages, of several, of batches."""


def release_queue_offsets(placed: Placed) -> None:
    """Return the queue offsets of records that were not written."""
    for result in reversed(placed):
        if isinstance(result, AppendedBatch):
            result.queue.next_offset = result.first_offset
        elif isinstance(result, list):
            release_queue_offsets(result)
        elif isinstance(result, AppendedRecord) and not result.sys_flag & PREPARED:
            for each in result.places:
                each.queue.next_offset = each.queue_offset


def refuse_all(placed: Sequence[PutResult]) -> list[PutResult]:
    """Refuse every message of an all-or-nothing append with the first refusal."""
    release_queue_offsets(placed)
    refused = next(result for result in placed if isinstance(result, Refused))
    return [refused] * len(placed)
