"""The interface to a message source: a cluster or a store directory.

A range is a queue with a first offset and an end. Reading a range again gives the same messages as long as
they are retained; missing messages are an error or are skipped and logged, depending on `failOnDataLoss`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from skylark.arrow.record_layout import Records
from skylark.errors import CorruptRecord, StoreError
from skylark.pipelines.options import SourceOptions
from skylark.protocol.bodies import MessageQueue

log = logging.getLogger(__name__)


@dataclass(eq=False)
class DataLost(StoreError):
    """Messages in a requested range no longer exist. `queue` is topic/broker/queue id."""

    queue: str
    from_offset: int
    to_offset: int
    reason: str

    def __str__(self) -> str:
        count = self.to_offset - self.from_offset
        return (
            f"{count} messages of {self.queue} are lost, offsets {self.from_offset} to {self.to_offset}: "
            f"{self.reason}; set failOnDataLoss=false to skip them"
        )


def queue_name(queue: MessageQueue) -> str:
    """`topic/broker/queue id`, for messages."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


class OffsetRange(NamedTuple):
    """Messages of a queue with `from_offset` <= queue offset < `to_offset`."""

    queue: MessageQueue
    from_offset: int
    to_offset: int

    @property
    def messages(self) -> int:
        return self.to_offset - self.from_offset

    def to_bytes(self) -> bytes:
        """Encoded for the task that reads it."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> OffsetRange:
        return msgspec.json.decode(data, type=OffsetRange)


class Positions(Protocol):
    """Where queues begin and end, and where they are at a time."""

    def min_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The first retained offset of each queue."""

    def max_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        """The offset after the last message of each queue."""

    def offsets_by_time(self, queues: Sequence[MessageQueue], timestamp_ms: int) -> dict[MessageQueue, int]:
        """The first offset stored at or after a time; the maximum offset if there is none."""

    def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """A group's committed offset; None if there is none."""


class MessageSource(Positions, Protocol):
    """Operations that planner and tasks need. Not thread-safe."""

    def topics(self) -> list[str]:
        """Return all topics."""

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues. Raises NoRoute for an unknown topic."""

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        """Mean record size of each range, estimated from samples."""

    def end_within(self, wanted: OffsetRange, bytes_max: int, record_bytes: float) -> int:
        """Return the end offset of at most `bytes_max` bytes of a range."""

    def by_key(self, topic: str, key: str, *, unique: bool, maximum: int) -> list[OffsetRange] | None:
        """Look up messages by key; None if the index is not available or the result was truncated."""

    def by_message_id(self, topics: Sequence[str], message_id: str) -> list[OffsetRange] | None:
        """Look up a message by its offset id; None if that is not supported."""

    def read(self, wanted: OffsetRange, losses: LossPolicy) -> Iterator[Records]:
        """Yield the records of a range in pieces of about `batchBytes`, filtered at most by tag hash."""


class LossPolicy:
    """Handles lost and corrupt messages: raises, or counts and logs them."""

    def __init__(self, options: SourceOptions) -> None:
        self._is_fatal = options.fail_on_data_loss
        self.lost = 0

    def aged_out(self, gone: OffsetRange, reason: str = "deleted before they were read") -> None:
        """Report offsets without messages. Raises DataLost."""
        error = DataLost(queue_name(gone.queue), gone.from_offset, gone.to_offset, reason)
        if self._is_fatal:
            raise error
        self.lost += gone.messages
        log.warning("skipped lost=%d %s", gone.messages, error)

    def damaged(self, error: CorruptRecord, count: int) -> None:
        """Report corrupt records. Raises CorruptRecord."""
        if self._is_fatal:
            raise error
        self.lost += count
        log.warning("skipped damaged=%d %s", count, error)


def clamped(
    ranges: Sequence[OffsetRange], min_offsets: Mapping[MessageQueue, int], losses: LossPolicy
) -> list[OffsetRange]:
    """Drop expired offsets from ranges and report them to `losses`; empty ranges are left out."""
    kept = []
    for wanted in ranges:
        first = min_offsets.get(wanted.queue, wanted.from_offset)
        if first > wanted.from_offset:
            losses.aged_out(wanted._replace(to_offset=min(first, wanted.to_offset)))
            wanted = wanted._replace(from_offset=min(first, wanted.to_offset))  # noqa: PLW2901
        if wanted.messages > 0:
            kept.append(wanted)
    return kept
