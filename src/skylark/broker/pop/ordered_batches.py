"""Pure. OrderedBatches: the last batch of each queue that is popped in order, kept in consumerOrderInfo.json.

A queue is blocked while a message of its batch is neither acknowledged nor visible again. There are no check
points and no retry topic: the committed offset waits for the acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
from msgspec import field

from skylark.broker.metadata_json import Encode, decode_metadata
from skylark.model import java
from skylark.protocol.bodies import Body, encode_body
from skylark.protocol.command import Int32, Int64

SEPARATOR = "@"
KEPT_MS = 24 * 3600 * 1000
"""Batches that were not popped for this long are dropped from the file."""

Key = tuple[str, str, int]
"""Topic, group, queue id."""


class OrderedBatch(Body):
    """The messages that a group popped last from a queue."""

    pop_time: Int64 = 0
    invisible_time: Int64 | None = field(default=None, name="i")
    places: list[Int64] = field(default_factory=list, name="o")
    """The first offset, and the others relative to it."""
    next_visible: dict[Int64, Int64] | None = field(default=None, name="ot")
    """Times of messages whose invisible time was changed, by offset."""
    delivered: dict[Int64, Int32] | None = field(default=None, name="oc")
    """How often messages were delivered before, by offset; not those that are new."""
    popped_at: Int64 = field(default=0, name="l")
    acked_bits: Int64 = field(default=0, name="cm")
    attempt_id: str | None = field(default=None, name="a")

    @property
    def offsets(self) -> list[int]:
        first, *others = self.places or [0]
        return [first, *(first + place for place in others)] if self.places else []

    def open_offsets(self) -> list[int]:
        """Return the offsets of messages that are not acknowledged."""
        return [each for index, each in enumerate(self.offsets) if not self.acked_bits >> index & 1]

    def free_at(self, invisible_time: int) -> int:
        """Return when the queue is free again, without further acknowledgements; 0: it is free."""
        invisible_time = self.invisible_time if self.invisible_time else invisible_time
        changed = self.next_visible or {}
        return max(
            (changed.get(each, self.pop_time + invisible_time) for each in self.open_offsets()), default=0
        )

    def is_repeated_by(self, attempt_id: str | None) -> bool:
        """Return whether a pop with this attempt gets the same messages again."""
        return self.attempt_id is not None and self.attempt_id == attempt_id


class OrderedAck(Enum):
    """Why an acknowledgement in order does not advance the committed offset."""

    ILLEGAL = "there is no such message in the batch"
    OTHER_BATCH = "the batch was popped again"


class _OrderTable(Body):
    table: dict[str, dict[Int32, OrderedBatch]] = field(default_factory=dict)


class OrderedBatches:
    """Loop thread."""

    def __init__(self) -> None:
        self._batches: dict[Key, OrderedBatch] = {}
        self.changes = 0
        """Counts changes, to see whether the file is out of date."""

    def __len__(self) -> int:
        return len(self._batches)

    def free_at(self, key: Key, attempt_id: str | None, invisible_time: int) -> int:
        """Return until when a queue is blocked for this attempt; 0 or a time that has passed: it is not."""
        batch = self._batches.get(key)
        if batch is None or batch.is_repeated_by(attempt_id):
            return 0
        return batch.free_at(invisible_time)

    def update(
        self,
        key: Key,
        offsets: Sequence[int],
        *,
        attempt_id: str | None,
        pop_time: int,
        invisible_time: int,
        now_ms: int,
    ) -> OrderedBatch:
        """Note a new batch; messages that were in the last one are delivered once more."""
        before = self._batches.get(key)
        first = offsets[0]
        batch = OrderedBatch(
            pop_time=pop_time,
            invisible_time=invisible_time,
            places=[first, *(each - first for each in offsets[1:])],
            popped_at=now_ms,
            attempt_id=attempt_id,
        )
        if before is not None:
            known = before.delivered or {}
            if before.is_repeated_by(attempt_id):
                batch.delivered = before.delivered
            else:
                old = set(before.offsets)
                batch.delivered = {each: known.get(each, 0) + 1 for each in offsets if each in old} or None
        self._batches[key] = batch
        self.changes += 1
        return batch

    def acknowledge(self, key: Key, queue_offset: int, pop_time: int) -> int | OrderedAck:
        """Return the offset to commit, or why there is none."""
        batch = self._batches.get(key)
        if batch is None:
            return queue_offset + 1
        offsets = batch.offsets
        if queue_offset not in offsets:
            return OrderedAck.ILLEGAL
        if batch.pop_time != pop_time:
            return OrderedAck.OTHER_BATCH
        batch.acked_bits |= 1 << offsets.index(queue_offset)
        self.changes += 1
        return next(iter(batch.open_offsets()), offsets[-1] + 1)

    def change(self, key: Key, queue_offset: int, pop_time: int, visible_ms: int) -> None:
        """Change when a message becomes visible again, if its batch was not popped again."""
        batch = self._batches.get(key)
        if batch is None or batch.pop_time != pop_time or queue_offset not in batch.offsets:
            return
        batch.next_visible = {**(batch.next_visible or {}), queue_offset: visible_ms}
        self.changes += 1

    def suspend(self, key: Key, pop_time: int, visible_ms: int) -> None:
        """Make a whole batch visible at this time. Its messages do not count as delivered once more."""
        batch = self._batches.get(key)
        if batch is None or batch.pop_time != pop_time:
            return
        batch.delivered = {each: max(count - 1, 0) for each, count in (batch.delivered or {}).items()} or None
        batch.next_visible = None
        batch.invisible_time = visible_ms - pop_time
        self.changes += 1

    def clear(self, key: Key) -> None:
        """Forget the batch of a queue: its offset was reset."""
        if self._batches.pop(key, None) is not None:
            self.changes += 1

    def forget_topic(self, topic: str) -> None:
        for key in [key for key in self._batches if key[0] == topic]:
            self.clear(key)

    def retire(self, is_known: Callable[[Key], bool], now_ms: int) -> None:
        """Drop batches of unknown queues, and those that were not popped for a day."""
        gone = [
            key
            for key, batch in self._batches.items()
            if not is_known(key) or now_ms - batch.popped_at > KEPT_MS
        ]
        for key in gone:
            self.clear(key)

    # --- The file ---

    def snapshot(self) -> Encode:
        """Return an encoder of the current batches."""
        table: dict[str, dict[int, OrderedBatch]] = {}
        for (topic, group, queue_id), batch in self._batches.items():
            copy = msgspec.structs.replace(batch)
            table.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = copy
        return lambda: encode_body({"table": table})

    def load(self, data: bytes) -> None:
        """Load consumerOrderInfo.json. Raises ValueError."""
        self._batches |= _batches_in(data)

    def follow(self, text: str | None) -> None:
        """Replace all batches by the master's, as the text of its file; None: it has none.

        Raises ValueError.
        """
        batches = {} if text is None else _batches_in(text.encode())
        if batches != self._batches:
            self._batches = batches
            self.changes += 1


def _batches_in(data: bytes) -> dict[Key, OrderedBatch]:
    batches = {}
    for text, queues in decode_metadata(data, _OrderTable).table.items():
        topic, _, group = text.partition(SEPARATOR)
        for queue_id, batch in queues.items():
            batches[topic, group, queue_id] = batch
    return batches


assert java.dumps({1: 2}) == b"{1:2}"  # keys of queues are bare, as in RocketMQ's file
