"""Pure. PoppedBatches: what groups popped a moment ago, in memory, with the committed offset held back.

A batch that is acknowledged in time is never written. The committed offset of a queue passes a batch when
all its messages are acknowledged, or when what replaces it is on disk: its check point, or its messages in a
retry topic. So a crash repeats messages and loses none.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count

import msgspec

LaneKey = tuple[str, str, int]
"""Topic popped from, group, queue id."""
_BatchKey = tuple[str, str, int, int, int]

Commit = Callable[[str, str, int, int], None]


class PoppedBatch(msgspec.Struct, eq=False):
    """Messages of one queue that were popped together."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    offsets: Sequence[int]
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    next_offset: int
    """Where the next batch starts; messages in between did not match the filter."""
    open_bits: int
    """Messages that are not acknowledged, by their place in `offsets`."""
    is_closed: bool = False
    """Whether nothing of it has to be remembered in memory."""
    durable_end: int = 0
    """Up to here the log must be on disk before the committed offset passes the batch."""

    @property
    def lane(self) -> LaneKey:
        return self.topic, self.group, self.queue_id

    @property
    def revive_time(self) -> int:
        return self.pop_time + self.invisible_time

    @property
    def open_offsets(self) -> list[int]:
        """The offsets of the messages that are not acknowledged."""
        return [each for place, each in enumerate(self.offsets) if self.open_bits >> place & 1]


class PoppedBatches:
    """All batches in memory, by queue and in the order of their offsets. Loop thread."""

    def __init__(self, commit: Commit) -> None:
        """`commit` takes topic, group, queue id and offset."""
        self._commit = commit
        self._lanes: dict[LaneKey, deque[PoppedBatch]] = {}
        self._by_key: dict[_BatchKey, PoppedBatch] = {}
        self._due: list[tuple[int, int, PoppedBatch]] = []
        self._numbers = count()
        self._waiting: set[LaneKey] = set()
        """Lanes whose first batch is closed and waits for the disk."""
        self.in_flight: Counter[tuple[str, str]] = Counter()
        """Messages delivered and neither acknowledged nor delivered again, since the start."""

    def __len__(self) -> int:
        """The number of open batches."""
        return len(self._by_key)

    @property
    def held_lanes(self) -> int:
        return len(self._lanes)

    def next_offset(self, lane: LaneKey) -> int | None:
        """Return where the next pop of a queue starts; None if the committed offset says so."""
        batches = self._lanes.get(lane)
        return batches[-1].next_offset if batches else None

    # --- Popping ---

    def add(self, batch: PoppedBatch, due_ms: int) -> bool:
        """Hold a batch until it is acknowledged, or due. Return False if there is one with the same key."""
        key = _key(batch)
        if key in self._by_key:
            return False
        self._by_key[key] = batch
        self._lanes.setdefault(batch.lane, deque()).append(batch)
        self.in_flight[batch.topic, batch.group] += len(batch.offsets)
        heappush(self._due, (due_ms, next(self._numbers), batch))
        return True

    def skip(self, lane: LaneKey, next_offset: int) -> None:
        """Pass messages that do not match a filter."""
        batches = self._lanes.get(lane)
        if batches:
            batches[-1].next_offset = next_offset
        else:
            self._commit(*lane, next_offset)

    def forget(self, lane: LaneKey) -> None:
        """Let the committed offset decide where the next pop starts: it was reset.

        Batches of the queue stay until they are acknowledged or due.
        """
        self._lanes.pop(lane, None)
        self._waiting.discard(lane)
        self.in_flight.pop(lane[:2], None)

    def forget_topic(self, topic: str) -> None:
        for lane in [lane for lane in self._lanes if lane[0] == topic]:
            self.forget(lane)

    # --- Acknowledging ---

    def acknowledge(self, lane: LaneKey, start_offset: int, pop_time: int, offsets: Sequence[int]) -> bool:
        """Acknowledge messages; return False if their batch is not in memory."""
        batch = self._by_key.get((*lane, start_offset, pop_time))
        if batch is None:
            return False
        before = batch.open_bits
        batch.open_bits &= ~_bits(batch.offsets, offsets)
        self._count_settled(batch, before.bit_count() - batch.open_bits.bit_count())
        if not batch.open_bits:
            self._close(batch)
        return True

    def find(self, lane: LaneKey, start_offset: int, pop_time: int) -> PoppedBatch | None:
        return self._by_key.get((*lane, start_offset, pop_time))

    def settled_elsewhere(self, topic: str, group: str, messages: int) -> None:
        """Count messages whose check point is not in memory."""
        left = self.in_flight[topic, group] - messages
        if left > 0:
            self.in_flight[topic, group] = left
        else:
            del self.in_flight[topic, group]

    def _count_settled(self, batch: PoppedBatch, messages: int) -> None:
        if messages:
            self.settled_elsewhere(batch.topic, batch.group, messages)

    # --- Time ---

    def take_due(self, now_ms: int) -> list[PoppedBatch]:
        """Return the open batches that something in the log has to replace: then `replaced`, or `retry`."""
        due = []
        while self._due and self._due[0][0] <= now_ms:
            batch = heappop(self._due)[2]
            if not batch.is_closed:
                due.append(batch)
        return due

    def take_all(self) -> list[PoppedBatch]:
        """As `take_due`, at the end."""
        self._due.clear()
        return list(self._by_key.values())

    def retry(self, batch: PoppedBatch, due_ms: int) -> None:
        """A batch could not be replaced: it is due again later."""
        if not batch.is_closed:
            heappush(self._due, (due_ms, next(self._numbers), batch))

    def replaced(self, batch: PoppedBatch, end: int, *, is_redelivered: bool) -> None:
        """What is open of a batch is in the log, up to `end`: as a check point, or in the retry topic."""
        if is_redelivered:
            self._count_settled(batch, batch.open_bits.bit_count())
        batch.durable_end = max(batch.durable_end, end)
        self._close(batch)

    def commit_durable(self, durable: int) -> None:
        """Commit what waited for the log to be on disk up to here."""
        for lane in list(self._waiting):
            self._advance(lane, durable)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def clear(self) -> None:
        """Forget everything: another broker is the master now. The committed offsets were held back."""
        self._lanes.clear()
        self._by_key.clear()
        self._due.clear()
        self._waiting.clear()
        self.in_flight.clear()

    # --- Inside ---

    def _close(self, batch: PoppedBatch) -> None:
        batch.is_closed = True
        self._by_key.pop(_key(batch), None)
        self._advance(batch.lane, 0)

    def _advance(self, lane: LaneKey, durable: int) -> None:
        """Commit up to the first batch that is open or whose record is not on disk."""
        batches = self._lanes.get(lane)
        if batches is None:
            self._waiting.discard(lane)
            return
        passed = None
        while batches and batches[0].is_closed and batches[0].durable_end <= durable:
            passed = batches.popleft().next_offset
        if not batches:
            del self._lanes[lane]
        if batches and batches[0].is_closed:
            self._waiting.add(lane)
        else:
            self._waiting.discard(lane)
        if passed is not None:
            self._commit(*lane, passed)


def _key(batch: PoppedBatch) -> _BatchKey:
    return batch.topic, batch.group, batch.queue_id, batch.start_offset, batch.pop_time


def _bits(held: Sequence[int], offsets: Sequence[int]) -> int:
    bits = 0
    for queue_offset in offsets:
        try:
            bits |= 1 << held.index(queue_offset)
        except ValueError:
            continue  # not of this batch
    return bits
