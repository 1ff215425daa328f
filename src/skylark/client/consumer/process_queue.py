"""Pure. Messages of one queue that were fetched and are not finished, for push and pull consumers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from skylark.client.received_message import PulledMessages, ReceivedMessage
from skylark.protocol.bodies import MessageQueue, ProcessQueueInfo

MEBIBYTE = 1 << 20
NOTHING_HELD = -1
EXPIRED_MAX = 16
"""Expired messages handled per round."""


class ProcessQueue:
    """Pulled and unfinished messages of one queue of a push consumer. Loop thread.

    A pull is held as a whole while nothing less is asked of it: most go to one call of a listener.

    `dropped` is set once, when the queue is released, and may be read by any thread: results are ignored
    then. Times are monotonic seconds.
    """

    def __init__(self, queue: MessageQueue, *, now: float) -> None:
        self.queue = queue
        self.dropped = False
        self.message_count = 0
        self.message_bytes = 0  # of bodies, as stored
        self.max_offset = 0  # the last one put
        self.accumulated_count = 0  # messages in the broker's queue behind the last one put
        self.last_pull_at = now
        self.last_consume_at = now
        self.locked = False
        self.last_lock_at = now
        self.unlock_tries = 0
        self.consuming = False  # orderly: a worker has this queue or is about to take it
        self._messages: dict[int, ReceivedMessage] = {}
        self._order: deque[int] = deque()  # ascending; may contain offsets that are no longer held
        self._pulls: deque[PulledMessages] = deque()  # ascending, behind all of these
        self._taken: dict[int, ReceivedMessage] = {}  # orderly: at the listener, not committed

    # --- Concurrent consumption, and pulling ---

    def put(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Add pulled messages. For orderly consumption, return whether the queue must be submitted."""
        if isinstance(messages, PulledMessages):
            pulled = messages
        else:
            max_offset = messages[-1].queue_max_offset if messages else 0
            pulled = PulledMessages.of(self.queue, list(messages), max_offset)
        if len(pulled):
            if pulled.is_ascending and (not self._holds_any or pulled.first_offset > self._last()):
                self._pulls.append(pulled)
                self.message_count += len(pulled)
                self.message_bytes += pulled.body_bytes
                self.max_offset = pulled.last_offset
            else:
                self._take_apart()
                for message in pulled:
                    self._put_one(message)
            self.accumulated_count = max(pulled.queue_max_offset - pulled.last_offset, 0)
        if not self._holds_any or self.consuming:
            return False
        self.consuming = True
        return True

    @property
    def _holds_any(self) -> bool:
        return bool(self._messages or self._pulls)

    def _take_apart(self) -> None:
        """Hold the messages of all pulls one by one."""
        while self._pulls:
            pulled = self._pulls.popleft()
            offsets = [message.queue_offset for message in pulled]
            self._messages.update(zip(offsets, pulled, strict=True))
            self._order.extend(offsets)

    def _put_one(self, message: ReceivedMessage) -> None:
        queue_offset = message.queue_offset
        if queue_offset not in self._messages:
            if self._order and queue_offset <= self._order[-1]:
                self._insert(queue_offset)
            else:
                self._order.append(queue_offset)
            self.message_count += 1
            self.message_bytes += message.body_bytes
            self.max_offset = queue_offset
        self._messages[queue_offset] = message

    def _insert(self, queue_offset: int) -> None:
        """Insert an offset in order; rare, because pulls arrive in order."""
        later = []
        while self._order and self._order[-1] > queue_offset:
            later.append(self._order.pop())
        if not self._order or self._order[-1] != queue_offset:
            self._order.append(queue_offset)
        self._order.extend(reversed(later))

    def remove(self, *batches: Iterable[ReceivedMessage]) -> int:
        """Remove finished messages, and return the offset to commit: the smallest unfinished one.

        NOTHING_HELD if the queue was empty.
        """
        if not self._holds_any:
            return NOTHING_HELD
        for messages in batches:
            if isinstance(messages, PulledMessages) and messages in self._pulls:
                self._pulls.remove(messages)
                self.message_count -= len(messages)
                self.message_bytes -= messages.body_bytes
            else:
                self._remove_each(messages)
        if self._holds_any:
            return self._first()
        self._order.clear()
        return self.max_offset + 1

    def _remove_each(self, messages: Iterable[ReceivedMessage]) -> None:
        self._take_apart()
        take = self._messages.pop
        removed = [
            found.body_bytes
            for message in messages
            if (found := take(message.queue_offset, None)) is not None
        ]
        self.message_count -= len(removed)
        self.message_bytes -= sum(removed)

    def _first(self) -> int:
        """The smallest held offset; only if there is one."""
        order, held = self._order, self._messages
        if not held:
            return self._pulls[0].first_offset
        while order[0] not in held:
            order.popleft()
        return order[0]

    def _last(self) -> int:
        """The largest held offset; only if there is one."""
        if self._pulls:
            return self._pulls[-1].last_offset
        order, held = self._order, self._messages
        while order[-1] not in held:
            order.pop()
        return order[-1]

    def holds(self, message: ReceivedMessage) -> bool:
        """Return whether this very message is still unfinished."""
        self._take_apart()
        return self._messages.get(message.queue_offset) is message

    @property
    def span(self) -> int:
        """The distance from the first to the last held offset."""
        return self._last() - self._first() if self._holds_any else 0

    def take_expired(self, started_before: float) -> list[ReceivedMessage]:
        """Return the messages at the head that a listener has had since before a time; they stay here."""
        self._take_apart()
        expired: list[ReceivedMessage] = []
        for queue_offset in self._order:
            message = self._messages.get(queue_offset)
            if message is None:
                continue
            if not 0 < message.started_at < started_before or len(expired) == EXPIRED_MAX:
                break
            expired.append(message)
        return expired

    # --- Orderly consumption ---

    def take(self, count: int) -> list[ReceivedMessage]:
        """Take the first messages for the listener.

        If there are none, the queue is not being consumed any more.
        """
        self._take_apart()
        taken: list[ReceivedMessage] = []
        while self._messages and len(taken) < count:
            message = self._messages.pop(self._first())
            self._order.popleft()
            self._taken[message.queue_offset] = message
            taken.append(message)
        if not taken:
            self.consuming = False
        return taken

    def commit(self) -> int:
        """Finish the taken messages; return the offset after them, NOTHING_HELD if there are none."""
        if not self._taken:
            return NOTHING_HELD
        last = max(self._taken)
        self.message_count -= len(self._taken)
        self.message_bytes -= sum(message.body_bytes for message in self._taken.values())
        self._taken.clear()
        return last + 1

    def rollback(self) -> None:
        """Put back all taken messages."""
        self.take_back(list(self._taken.values()))

    def take_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Put back some taken messages. One call for all is cheapest."""
        self._take_apart()
        back = {
            message.queue_offset: message
            for message in messages
            if self._taken.pop(message.queue_offset, None) is not None
        }
        self._messages.update(back)
        offsets, order = sorted(back), self._order
        while offsets and order and offsets[-1] >= order[0]:  # rare: usually they precede all others
            self._insert(offsets.pop())
        order.extendleft(reversed(offsets))

    def clear(self) -> None:
        """Remove all messages."""
        self._messages.clear()
        self._order.clear()
        self._pulls.clear()
        self._taken.clear()
        self.message_count = self.message_bytes = 0

    # --- State ---

    def is_lock_expired(self, now: float, lock_expiry_s: float) -> bool:
        return now - self.last_lock_at > lock_expiry_s

    def info(self, commit_offset: int, wall_ms_minus_monotonic_ms: float) -> ProcessQueueInfo:
        """Return the running info of this queue, with times in wall-clock milliseconds."""
        self._take_apart()

        def wall(moment: float) -> int:
            return round(moment * 1000 + wall_ms_minus_monotonic_ms)

        return ProcessQueueInfo(
            commit_offset=commit_offset,
            cached_msg_min_offset=min(self._messages, default=0),
            cached_msg_max_offset=max(self._messages, default=0),
            cached_msg_count=len(self._messages),
            cached_msg_size_in_mi_b=self.message_bytes // MEBIBYTE,
            transaction_msg_min_offset=min(self._taken, default=0),
            transaction_msg_max_offset=max(self._taken, default=0),
            transaction_msg_count=len(self._taken),
            locked=self.locked,
            try_unlock_times=self.unlock_tries,
            last_lock_timestamp=wall(self.last_lock_at),
            droped=self.dropped,
            last_pull_timestamp=wall(self.last_pull_at),
            last_consume_timestamp=wall(self.last_consume_at),
            accumulated_msg_count=self.accumulated_count,
        )


class Rows(Protocol):
    """What one pull found: messages, or records that are decoded later."""

    @property
    def body_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def offset(self, index: int) -> int:
        """The queue offset of one row."""


class MessageRows:
    """The messages of one pull."""

    def __init__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.messages = messages
        self.body_bytes = (
            messages.body_bytes
            if isinstance(messages, PulledMessages)
            else sum(message.body_bytes for message in messages)
        )

    def __len__(self) -> int:
        return len(self.messages)

    def offset(self, index: int) -> int:
        return self.messages[index].queue_offset


@dataclass(frozen=True, slots=True, eq=False)
class PulledBatch:
    """Rows of one pull. `end_offset` is behind the last one, including filtered ones."""

    held: PulledQueue
    generation: int
    rows: Rows
    end_offset: int

    @property
    def messages(self) -> Sequence[ReceivedMessage]:
        """The messages; only for a batch that was fetched as such."""
        assert isinstance(self.rows, MessageRows)
        return self.rows.messages

    @property
    def is_void(self) -> bool:
        """Whether a seek or a release of the queue has made it invalid."""
        return self.generation != self.held.generation


class PulledQueue:
    """One queue of a pull consumer: fetched, handed-out and finished messages. Loop thread.

    done <= position <= next_offset: everything below `done` is finished and may be committed, below
    `position` it was handed out, below `next_offset` it was fetched. An explicit commit sets `done`, also
    beyond `position`. All are None while the start offset is unknown.
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.generation = 0  # incremented by a seek: earlier fetches are void
        self.next_offset: int | None = None
        self.position: int | None = None
        self.done: int | None = None
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self._batches: deque[PulledBatch] = deque()
        # Behind the last batch: from there to `next_offset` nothing matched.
        self._last_end: int | None = None

    @property
    def has_batch(self) -> bool:
        return bool(self._batches)

    @property
    def span(self) -> int:
        """The distance from the first to the last fetched offset."""
        if not self._batches:
            return 0
        return self._batches[-1].rows.offset(-1) - self._batches[0].rows.offset(0)

    def begin(self, queue_offset: int) -> None:
        self.next_offset = self.position = self.done = self._last_end = queue_offset

    def seek(self, queue_offset: int) -> None:
        """Continue at an offset; drop fetched messages and treat handed-out ones as finished."""
        self.generation += 1
        self.begin(queue_offset)
        self._batches.clear()
        self.message_count = self.message_bytes = 0

    def put(self, generation: int, rows: Rows, next_offset: int) -> bool:
        """Add the result of a pull, possibly empty. False if a seek has made it void."""
        if generation != self.generation:
            return False
        self.next_offset = next_offset
        if len(rows):
            self._batches.append(PulledBatch(self, generation, rows, next_offset))
            self.message_count += len(rows)
            self.message_bytes += rows.body_bytes
            self._last_end = next_offset
        else:
            self._pass_unmatched()
        return True

    def _pass_unmatched(self) -> None:
        """Advance over messages that did not match, if everything before them was handed out."""
        if self.position == self._last_end:
            if self.done == self.position:
                self.done = self.next_offset
            self.position = self._last_end = self.next_offset

    def take(self) -> PulledBatch:
        """Take the oldest batch, which is not handed out yet."""
        batch = self._batches.popleft()
        self.message_count -= len(batch.rows)
        self.message_bytes -= batch.rows.body_bytes
        return batch

    def hand_out(self, batch: PulledBatch, index: int) -> None:
        """Record that one message of a batch was handed out: all before it are done."""
        self.hand_out_rows(batch, index, index + 1)

    def hand_out_rows(self, batch: PulledBatch, start: int, stop: int) -> None:
        """Record that some rows of a batch were handed out: all before `start` are done."""
        if batch.is_void:
            return
        if start:
            self.done = batch.rows.offset(start)
        if stop == len(batch.rows):
            self.hand_out_all(batch)
        else:
            self.position = batch.rows.offset(stop - 1) + 1

    def hand_out_all(self, batch: PulledBatch) -> None:
        """Record that a whole batch was handed out."""
        if not batch.is_void:
            self.position = batch.end_offset
            self._pass_unmatched()

    def finish(self) -> None:
        """Mark all handed-out messages as done."""
        self.done = self.position
