"""What an append answers: a place in the log, or the status that refused it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, overload

import msgspec

from skylark.store.unit import UNIT

if TYPE_CHECKING:
    from skylark.store.consume_queue import ConsumeQueue


class PutStatus(Enum):
    """RocketMQ's PutMessageStatus."""

    PUT_OK = "stored"
    FLUSH_DISK_TIMEOUT = "stored, but not on disk in time"
    FLUSH_SLAVE_TIMEOUT = "stored, but not on the slave in time"
    SLAVE_NOT_AVAILABLE = "stored, but there is no usable slave"
    SERVICE_NOT_AVAILABLE = "the store does not take messages now"
    CREATE_MAPPED_FILE_FAILED = "the next file could not be made"
    MESSAGE_ILLEGAL = "the message breaks a limit"
    PROPERTIES_SIZE_EXCEEDED = "the properties are too long"
    OS_PAGE_CACHE_BUSY = "the disk does not keep up"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "too few replicas are in sync"
    UNKNOWN_ERROR = "unknown error"


class Placed(msgspec.Struct, gc=False):
    """A record in the log, and all that dispatch needs of it."""

    status: ClassVar[PutStatus] = PutStatus.PUT_OK

    queue: ConsumeQueue
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    sys_flag: int
    properties: bytes

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Run(Sequence[Placed]):
    """Records of one queue in a row, as a batch makes them: published in one go, taken apart on demand."""

    __slots__ = ("_first_offset", "_sys_flag", "end", "properties", "queue", "store_timestamp", "units")

    def __init__(self, queue: ConsumeQueue, first_offset: int, store_timestamp: int, sys_flag: int) -> None:
        self.queue = queue
        self._first_offset = first_offset
        self.store_timestamp = store_timestamp
        self._sys_flag = sys_flag
        self.end = 0
        """End of its last record."""
        self.units = bytearray()
        self.properties: list[bytes] = []

    def __len__(self) -> int:
        return len(self.properties)

    def __iter__(self) -> Iterator[Placed]:
        units = zip(UNIT.iter_unpack(self.units), self.properties, strict=True)
        for queue_offset, ((physical_offset, size, code), properties) in enumerate(units, self._first_offset):
            yield Placed(
                self.queue, queue_offset, physical_offset, size, code, self.store_timestamp, self._sys_flag,
                properties,
            )  # fmt: skip

    def physical_offsets(self) -> list[int]:
        return [physical_offset for physical_offset, _, _ in UNIT.iter_unpack(self.units)]

    @overload
    def __getitem__(self, index: int) -> Placed: ...
    @overload
    def __getitem__(self, index: slice) -> list[Placed]: ...
    def __getitem__(self, index: int | slice) -> Placed | list[Placed]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        physical_offset, size, code = UNIT.unpack_from(self.units, number * UNIT.size)
        return Placed(
            self.queue, self._first_offset + number, physical_offset, size, code, self.store_timestamp,
            self._sys_flag, self.properties[number],
        )  # fmt: skip


class Refused(msgspec.Struct, frozen=True):
    """Nothing was stored."""

    status: PutStatus
    reason: str


PutResult = Placed | Refused
