"""Pure. Filter pushdown: the filters of a batch query as restrictions on what is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from skylark.model.message import split_keys
from skylark.pipelines.message_source import OffsetRange
from skylark.protocol.bodies import MessageQueue

OFFSET_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(slots=True)
class Restrictions:
    """What a query's filters allow; None means unrestricted."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    tags: frozenset[str] | None = None
    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    from_ms: int | None = None
    to_ms: int | None = None
    key: str | None = None
    unique_key: str | None = None
    message_id: str | None = None

    def allows_topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def allows(self, queue: MessageQueue) -> bool:
        return self.allows_topic(queue.topic) and self.allows_queue(queue)

    def allows_queue(self, queue: MessageQueue) -> bool:
        return (self.brokers is None or queue.broker_name in self.brokers) and (
            self.queue_ids is None or queue.queue_id in self.queue_ids
        )

    def clip(self, item: OffsetRange) -> OffsetRange:
        return item._replace(
            from_offset=max(item.from_offset, self.from_offset), to_offset=min(item.to_offset, self.to_offset)
        )

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply filters; return those that Spark must still evaluate."""
        return [item for item in filters if not self._take(item)]

    def _take(self, item: Filter) -> bool:
        """Apply a filter; return whether it is fully applied."""
        column = getattr(item, "attribute", None)
        if column is None or len(column) != 1:
            return False
        name = column[0]
        if isinstance(item, EqualTo | In):
            values = [item.value] if isinstance(item, EqualTo) else list(item.value)
            return self._take_values(name, values)
        if isinstance(item, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return self._take_bound(name, item)
        return False

    def _take_values(self, name: str, values: list[Any]) -> bool:
        """Sets are applied exactly; offsets, times and lookups only narrow what is read."""
        chosen = frozenset(value for value in values if value is not None)
        sets = {"topic": "topics", "brokerName": "brokers", "queueId": "queue_ids", "tags": "tags"}
        if name in sets:
            known = getattr(self, sets[name])
            setattr(self, sets[name], chosen if known is None else known & chosen)
            return True
        if name == "queueOffset" and chosen:
            self._narrow(min(chosen), max(chosen) + 1)
            return len(chosen) == 1
        if name == "storeTimestamp" and chosen:
            self._narrow_time(_milliseconds(min(chosen)), _milliseconds(max(chosen)) + 1)
        if len(chosen) == 1:
            (value,) = chosen
            if name == "keys":
                # A message may have several keys; the index has an entry for each.
                self.key = next(iter(split_keys(value)), None)
            elif name == "uniqKey":
                self.unique_key = value
            elif name == "msgId":
                self.message_id = value
        return False

    def _take_bound(
        self, name: str, item: GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ) -> bool:
        is_low, is_open = (
            isinstance(item, GreaterThan | GreaterThanOrEqual),
            isinstance(item, GreaterThan | LessThanOrEqual),
        )
        if name == "queueOffset":
            bound = item.value + is_open
            self._narrow(bound, OFFSET_MAX) if is_low else self._narrow(0, bound)
            return True
        if name == "storeTimestamp":
            moment = _milliseconds(item.value)
            self._narrow_time(moment, None) if is_low else self._narrow_time(None, moment + 1)
        return False

    def _narrow(self, from_offset: int, to_offset: int) -> None:
        self.from_offset = max(self.from_offset, from_offset)
        self.to_offset = min(self.to_offset, to_offset)

    def _narrow_time(self, from_ms: int | None, to_ms: int | None) -> None:
        if from_ms is not None:
            self.from_ms = from_ms if self.from_ms is None else max(self.from_ms, from_ms)
        if to_ms is not None:
            self.to_ms = to_ms if self.to_ms is None else min(self.to_ms, to_ms)


def _milliseconds(moment: datetime) -> int:
    """Exact, rounded down: a bound may be too wide, never too narrow."""
    return (moment - _EPOCH) // _MILLISECOND
