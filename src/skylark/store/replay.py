"""Reading the log back into consume queues and index, and what to believe of a record's queue offset.

No checksum covers a queue offset, so one record's word is not enough for a queue to jump. A record that does
not come next is held until another one of its queue speaks for it, by the distance between them, or against
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from skylark.model.record import RECORD_BYTES_MIN, ScannedRecord
from skylark.store.commit_log import CommitLog
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.dispatch import Dispatcher
from skylark.store.index import Index
from skylark.store.log_walk import LogWalk
from skylark.store.placed import Placed

log = logging.getLogger(__name__)

WRITE_EVERY_BYTES = 64 << 20
INDEX_PENDING_MAX = 4096
HELD_MAX = 4
FILLER_TOPIC = "SKYLARK_DAMAGED"
"""Of records that stand where the log was damaged."""
_FILLER = FILLER_TOPIC.encode()


class Progress(Protocol):
    """What a replay tells of the records that it read."""

    records: int
    last_record: int
    last_timestamp: int

    def add_problem(self, text: str) -> None: ...


class Replay:
    """One pass over the log. Before the store serves."""

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        index: Index | None,
        deleted: dict[bytes, int],
        progress: Progress,
        walk: LogWalk,
    ) -> None:
        """`deleted`: by topic, the physical offset below which records belong to one that was deleted."""
        self._log = commit_log
        self._dispatcher = dispatcher
        self._index = index
        self._deleted = deleted
        self._progress = progress
        self._walk = walk
        self._start = walk.end
        self._from_start = walk.end <= commit_log.min_offset
        self._held: dict[ConsumeQueue, list[Placed]] = {}
        self._position = walk.end
        self._read_bytes = 0
        self._filler_bytes = 0
        self._left_out = 0
        self.incomplete: set[ConsumeQueue] = set()
        """Queues that miss units before the first record read here: to be built again from the beginning."""

    def run(self) -> None:
        """Dispatch every record of the walk."""
        progress, since_write = self._progress, 0
        for record in self._walk:
            self._account(record)
            try:
                if record.physical_offset >= self._deleted.get(record.topic, 0):
                    placed = self._dispatcher.place(record)
                    self._dispatcher.note([placed])
                    self._take(placed)
            except ValueError as error:
                progress.add_problem(f"record at {record.physical_offset} has an impossible queue: {error}")
                continue
            progress.records += 1
            progress.last_record = record.physical_offset
            progress.last_timestamp = record.store_timestamp
            since_write += record.size
            if since_write > WRITE_EVERY_BYTES:
                write_derived(self._dispatcher, self._index)
                since_write = 0
            elif self._index is not None and self._index.pending_count > INDEX_PENDING_MAX:
                build_index(self._index)
        self._settle_all()

    def run_for(self, queues: set[ConsumeQueue], queue_of: Callable[[ScannedRecord], object]) -> None:
        """Give only the records of these queues their units."""
        for record in self._walk:
            self._account(record)
            if queue_of(record) in queues and record.physical_offset >= self._deleted.get(record.topic, 0):
                self._take(self._dispatcher.place(record))
        self._settle_all()

    def _account(self, record: ScannedRecord) -> None:
        self._position = record.physical_offset + record.size
        if record.topic == _FILLER:
            self._filler_bytes += record.size
        else:
            self._read_bytes += record.size

    # Believing a queue offset

    def _take(self, placed: Placed) -> None:
        queue, queue_offset = placed.queue, placed.queue_offset
        if not self._dispatcher.has_unit(placed) or queue in self.incomplete:
            return
        held = self._held.get(queue)
        if held is None:
            if queue_offset == queue.max_offset:
                self._dispatcher.add_unit(placed)
            elif not self._is_there(placed):
                self._held[queue] = [placed]
        elif queue_offset in (queue.max_offset, queue.max_offset + len(held)) or self._is_there(placed):
            # The queue goes on as it was: what was held has no place in it, or another than it says.
            self._leave_out(*self._held.pop(queue))
            self._dispatcher.add_unit(placed)
        elif any(queue_offset - each.queue_offset == far for far, each in enumerate(reversed(held), 1)):
            self._jump(self._held.pop(queue), placed)
        else:
            held.append(placed)
            if len(held) > HELD_MAX:
                self._settle(held.pop(0))

    def _is_there(self, placed: Placed) -> bool:
        queue = placed.queue
        if not queue.min_offset <= placed.queue_offset < queue.max_offset:
            return False
        unit = queue.unit(placed.queue_offset)
        return unit is not None and unit[0] == placed.physical_offset

    def _jump(self, held: list[Placed], placed: Placed) -> None:
        """Two records agree that the queue goes on, or begins anew, somewhere else."""
        chain = [placed]
        for far, each in enumerate(reversed(held), 1):
            if 0 <= placed.queue_offset - each.queue_offset - far <= self._lost_records():
                chain.insert(0, each)
            else:
                self._leave_out(each)
        first = chain[0]
        queue = first.queue
        gap = first.queue_offset - queue.max_offset
        if self._from_start and (first.queue_offset == 0 or self._is_bare(queue)):
            # A topic was deleted and made again; or what the queue began with has expired, or was lost.
            queue.reset()
        elif not 0 < gap <= self._lost_records() and not self._from_start:
            self.incomplete.add(queue)
            return
        elif gap < 0:
            self._leave_out(*chain)
            return
        for each in chain:
            self._add(each)

    def _settle_all(self) -> None:
        for held in list(self._held.values()):
            for each in held:
                if each.queue not in self.incomplete:
                    self._settle(each)
        self._held.clear()

    def _settle(self, placed: Placed) -> None:
        """No other record speaks for this one: it is believed as far as records can be missing before it."""
        queue = placed.queue
        is_first = self._from_start and self._is_bare(queue)
        if is_first:
            queue.reset()
        gap = placed.queue_offset - queue.max_offset
        # One more: the record before it may have lost its way by a flipped bit in its topic or queue id.
        possible = self._left_out + 1 + self._lost_records()
        if self._from_start:
            possible += (self._position - self._start - self._read_bytes) // RECORD_BYTES_MIN
        if 0 <= gap <= possible or (is_first and self._log.min_offset > 0):
            self._add(placed)
        elif not self._from_start:
            self.incomplete.add(queue)
        else:
            self._leave_out(placed)

    def _lost_records(self) -> int:
        """How many records can have been where the log is damaged, or was when it was recovered before."""
        damaged = sum(damage.physical_to - damage.physical_from for damage in self._walk.damages)
        return (damaged + self._filler_bytes) // RECORD_BYTES_MIN

    def _is_bare(self, queue: ConsumeQueue) -> bool:
        """Whether the queue has no unit of a record that the log still has."""
        return queue.end_below(self._log.min_offset) >= queue.max_offset

    def _add(self, placed: Placed) -> None:
        queue, begins = placed.queue, placed.queue.max_offset == 0 and self._log.min_offset > 0
        if placed.queue_offset > queue.max_offset and not begins:
            self._progress.add_problem(
                f"queue {queue.topic}/{queue.queue_id} has no records for its messages "
                f"{queue.max_offset} to {placed.queue_offset - 1}"
            )
        self._dispatcher.add_unit(placed)

    def _leave_out(self, *records: Placed) -> None:
        for placed in records:
            queue = placed.queue
            self._left_out += 1
            self._progress.add_problem(
                f"record at {placed.physical_offset} says queue offset {placed.queue_offset}, "
                f"{queue.max_offset} comes next in {queue.topic}/{queue.queue_id}: it is left out"
            )


def build_index(index: Index) -> None:
    while index.build():
        pass


def write_derived(dispatcher: Dispatcher, index: Index | None) -> None:
    """Write what was dispatched, so that memory stays flat over a long replay."""
    if index is not None:
        build_index(index)
    while dispatcher.dirty:
        queue = dispatcher.dirty.popleft()
        queue.dirty = False
        queue.write()
    if index is not None:
        index.flush()
