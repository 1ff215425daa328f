"""Pure. Sent rows: which rows of a table are stored where, by ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skylark.client.producer.send_receipt import SendStatus
from skylark.errors import RowsFailed
from skylark.protocol.bodies import MessageQueue


@dataclass(frozen=True, slots=True)
class SentRange:
    """Rows of a table that were sent in one request: all are stored, one after the other, or none is.

    `rows` are ascending row numbers, a `range` unless a sharding key spread the rows over the queues. If the
    request failed, `error` says why, and there is neither queue nor offset (see `SendFailed.maybe_stored`).
    """

    rows: Sequence[int]
    queue: MessageQueue | None = None
    queue_offset: int = -1
    """Queue offset of the first row; each following row has the next one."""
    status: SendStatus | None = None
    error: Exception | None = None

    @property
    def is_ok(self) -> bool:
        return self.status is SendStatus.OK

    def __str__(self) -> str:
        first, last = self.rows[0], self.rows[-1]
        return f"{first}" if first == last else f"{first}-{last}"


@dataclass(frozen=True, slots=True)
class SentRows:
    """The outcome of `send_arrow`: ranges that together hold every row once, ordered by their first row."""

    topic: str
    ranges: tuple[SentRange, ...]

    def __len__(self) -> int:
        """The number of rows."""
        return sum(len(each.rows) for each in self.ranges)

    @property
    def failed(self) -> tuple[SentRange, ...]:
        return tuple(each for each in self.ranges if each.error is not None)

    @property
    def is_ok(self) -> bool:
        """Whether all rows are stored as safely as requested."""
        return all(each.is_ok for each in self.ranges)

    def check(self) -> None:
        """Raises RowsFailed if some rows are not acknowledged."""
        failed = self.failed
        if failed:
            rows = tuple((each.rows[0], each.rows[-1]) for each in failed)
            count = sum(len(each.rows) for each in failed)
            raise RowsFailed(self.topic, count, len(self), rows, str(failed[0].error), self) from failed[
                0
            ].error
