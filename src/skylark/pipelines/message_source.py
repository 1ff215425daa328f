"""Where messages come from: a cluster or a store directory, behind one set of questions.

A range is a queue with a first offset and an end. Reading the same range twice gives the same messages, as
long as they are kept; what is gone is counted, and is an error or a line in the log, as the options say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from skylark.errors import CorruptRecord, StoreError
from skylark.pipelines.cluster_client import SparkQueue
from skylark.pipelines.decode.record_layout import Records
from skylark.pipelines.options import SourceOptions

log = logging.getLogger(__name__)


@dataclass(eq=False)
class DataLost(StoreError):
    """Messages that were to be read are gone. `queue` is topic/broker/queue id."""

    queue: str
    from_offset: int
    to_offset: int
    reason: str

    def __str__(self) -> str:
        count = self.to_offset - self.from_offset
        return (
            f"{count} messages of {self.queue} are lost, offsets {self.from_offset} to {self.to_offset}: "
            f"{self.reason}; failOnDataLoss=false goes on without them"
        )


class OffsetRange(NamedTuple):
    """Messages of a queue with `from_offset` <= queue offset < `to_offset`."""

    queue: SparkQueue
    from_offset: int
    to_offset: int

    @property
    def messages(self) -> int:
        return self.to_offset - self.from_offset

    def to_bytes(self) -> bytes:
        """As it travels to the task that reads it."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> OffsetRange:
        return msgspec.json.decode(data, type=OffsetRange)


class MessageSource(Protocol):
    """What the source asks. One thread at a time."""

    def topics(self) -> list[str]:
        """All topics there are."""

    def queues(self, topic: str) -> list[SparkQueue]:
        """The queues of a topic, as new as the options want it. Raises NoRoute for an unknown one."""

    def min_offsets(self, queues: Sequence[SparkQueue]) -> dict[SparkQueue, int]:
        """The first offset that each still has."""

    def max_offsets(self, queues: Sequence[SparkQueue]) -> dict[SparkQueue, int]:
        """The offset after the last message of each."""

    def offsets_by_time(self, queues: Sequence[SparkQueue], timestamp_ms: int) -> dict[SparkQueue, int]:
        """The first offset stored at or after a time; the maximum where there is none."""

    def group_offset(self, group: str, queue: SparkQueue) -> int | None:
        """What a group has committed."""

    def record_bytes(self, ranges: Sequence[OffsetRange]) -> list[float]:
        """How large a record of each range is, by samples."""

    def end_within(self, wanted: OffsetRange, bytes_max: int, record_bytes: float) -> int:
        """How far a range goes with so many bytes."""

    def by_key(self, topic: str, key: str, *, unique: bool, maximum: int) -> list[OffsetRange] | None:
        """Where the index finds messages with a key; None if it cannot say, or finds too many."""

    def by_message_id(self, topics: Sequence[str], message_id: str) -> list[OffsetRange] | None:
        """Where the message with an offset id is; None if that cannot be said."""

    def read(self, wanted: OffsetRange, losses: LossPolicy) -> Iterator[Records]:
        """The messages of a range in pieces of about `batchBytes`, filtered by the tags' hash at most."""


class LossPolicy:
    """What to do about messages that are gone or damaged: raise, or count and log."""

    def __init__(self, options: SourceOptions) -> None:
        self._is_fatal = options.fail_on_data_loss
        self.lost = 0

    def aged_out(self, gone: OffsetRange, reason: str = "they were deleted before they were read") -> None:
        """Tell of offsets without messages. Raises DataLost."""
        error = DataLost("/".join(map(str, gone.queue)), gone.from_offset, gone.to_offset, reason)
        if self._is_fatal:
            raise error
        self.lost += gone.messages
        log.warning("skipped lost=%d %s", gone.messages, error)

    def damaged(self, error: CorruptRecord, count: int) -> None:
        """Tell of records that cannot be read. Raises CorruptRecord."""
        if self._is_fatal:
            raise error
        self.lost += count
        log.warning("skipped damaged=%d %s", count, error)


def clamped(
    ranges: Sequence[OffsetRange], min_offsets: Mapping[SparkQueue, int], losses: LossPolicy
) -> list[OffsetRange]:
    """The ranges without what has aged out, which is told to `losses`; empty ones are left out."""
    kept = []
    for wanted in ranges:
        first = min_offsets.get(wanted.queue, wanted.from_offset)
        if first > wanted.from_offset:
            losses.aged_out(wanted._replace(to_offset=min(first, wanted.to_offset)))
            wanted = wanted._replace(from_offset=min(first, wanted.to_offset))  # noqa: PLW2901
        if wanted.messages > 0:
            kept.append(wanted)
    return kept
