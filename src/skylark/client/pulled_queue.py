"""Pure. One queue of a pull consumer: what was fetched ahead, what was handed out, and what is done.

done <= position <= next_offset: below `done` everything is finished and may be committed, below `position` it
was handed out, below `next_offset` it was fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from skylark.client.received import ReceivedMessage
from skylark.protocol.bodies import MessageQueue


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Messages of one pull. `end_offset` is behind the last, and behind those that were filtered out."""

    held: PulledQueue
    generation: int
    messages: Sequence[ReceivedMessage]
    end_offset: int

    @property
    def is_void(self) -> bool:
        """Whether a seek, or the loss of the queue, has left it behind."""
        return self.generation != self.held.generation


class PulledQueue:
    """One owner: the loop thread. `None` offsets mean that it is not known yet where to begin."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.generation = 0  # grows with every seek: what was fetched before does not count any more
        self.next_offset: int | None = None
        self.position: int | None = None
        self.done: int | None = None
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self._batches: deque[Batch] = deque()
        self._last_end: int | None = (
            None  # behind the last batch: from there to `next_offset` nothing matched
        )

    @property
    def has_batch(self) -> bool:
        return bool(self._batches)

    @property
    def span(self) -> int:
        """The distance from the first to the last offset that waits here."""
        if not self._batches:
            return 0
        return self._batches[-1].messages[-1].queue_offset - self._batches[0].messages[0].queue_offset

    def begin(self, queue_offset: int) -> None:
        """Note where to begin."""
        self.next_offset = self.position = self.done = self._last_end = queue_offset

    def seek(self, queue_offset: int) -> None:
        """Go on elsewhere; what was fetched is dropped, and what was handed out counts as done with."""
        self.generation += 1
        self.begin(queue_offset)
        self._batches.clear()
        self.message_count = self.message_bytes = 0

    def put(self, generation: int, messages: Sequence[ReceivedMessage], next_offset: int) -> bool:
        """Take in what a pull brought, perhaps nothing. False if a seek has made it void."""
        if generation != self.generation:
            return False
        self.next_offset = next_offset
        if messages:
            self._batches.append(Batch(self, generation, messages, next_offset))
            self.message_count += len(messages)
            self.message_bytes += sum(len(message.plain_body) for message in messages)
            self._last_end = next_offset
        else:
            self._pass_unmatched()
        return True

    def _pass_unmatched(self) -> None:
        """Whoever was given all that was fetched has passed what did not match behind it, too."""
        if self.position == self._last_end:
            if self.done == self.position:
                self.done = self.next_offset
            self.position = self._last_end = self.next_offset

    def take(self) -> Batch:
        """Take the oldest batch. Nothing of it is handed out yet."""
        batch = self._batches.popleft()
        self.message_count -= len(batch.messages)
        self.message_bytes -= sum(len(message.plain_body) for message in batch.messages)
        return batch

    def hand_out(self, batch: Batch, index: int) -> None:
        """Note that a batch's message was given to the user: all before it are done."""
        if batch.is_void:
            return
        if index:
            self.done = batch.messages[index].queue_offset
        if index == len(batch.messages) - 1:
            self.hand_out_all(batch)
        else:
            self.position = batch.messages[index].queue_offset + 1

    def hand_out_all(self, batch: Batch) -> None:
        """Note that a batch was given to the user as a whole."""
        if not batch.is_void:
            self.position = batch.end_offset
            self._pass_unmatched()

    def finish(self) -> None:
        """Note that all that was handed out is done."""
        self.done = self.position
