"""Long polling: pulls that found nothing are held until a message arrives or their time is up."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

from skylark.broker.due_requests import DueRequests
from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.protocol.command import TypedCommand
from skylark.remoting.server import Peer
from skylark.store.append_result import AppendedBatch, AppendedRecord
from skylark.store.consume_queue import ConsumeQueue

HELD_PULL_BYTES = 1024
"""Memory of a held pull without its texts: the request, its timer, its entries in the tables."""


class HeldPull:
    """A pull that is held. When resumed it is answered, whatever it finds."""

    __slots__ = ("command", "held_bytes", "peer", "queue", "queue_offset", "since", "subscription", "timer")

    def __init__(
        self,
        peer: Peer,
        command: TypedCommand[Any],
        queue: ConsumeQueue,
        queue_offset: int,
        subscription: CompiledSubscription,
    ) -> None:
        # Kept for long: drop what the reply does not need. A body would keep its whole read buffer alive.
        command.body, command.remark, command.language = b"", None, ""
        request = command.request
        self.peer = peer
        self.command = command
        self.queue = queue
        self.queue_offset = queue_offset
        self.subscription = subscription
        self.since = peer.active_at
        texts = (request.subscription, request.expression_type, request.proxy_forward_client_id)
        self.held_bytes = HELD_PULL_BYTES + sum(map(sys.getsizeof, texts))
        self.timer: asyncio.TimerHandle | None = None

    def is_for(self, placed: AppendedRecord) -> bool:
        """Return whether the pull can be answered with a new message."""
        if placed.queue_offset < self.queue_offset:  # it came just before the pull was held
            return False
        tags_filter, text_filter = self.subscription.tags_filter, self.subscription.text_filter
        if tags_filter is not None and not tags_filter(placed.tags_code):
            return False
        return text_filter is None or text_filter(placed.properties)


class LongPolling:
    """All held pulls of a broker, by queue. Loop thread."""

    def __init__(self, resume: Callable[[HeldPull], None], *, held_max: int, held_bytes_max: int) -> None:
        self._resume = resume
        self._held_max = held_max
        self._held_bytes_max = held_bytes_max
        self._held: dict[ConsumeQueue, dict[HeldPull, None]] = {}
        self._by_peer: dict[Peer, set[HeldPull]] = {}
        self._due = DueRequests(self._match, resume)
        self.count = 0
        self.held_bytes = 0

    def hold(self, pull: HeldPull, timeout_s: float) -> bool:
        """Hold a pull for a time; return False if there is no room for it."""
        if self.count >= self._held_max or self.held_bytes + pull.held_bytes > self._held_bytes_max:
            return False
        self.count += 1
        self.held_bytes += pull.held_bytes
        self._held.setdefault(pull.queue, {})[pull] = None
        self._by_peer.setdefault(pull.peer, set()).add(pull)
        pull.timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, pull)
        return True

    def arrived(self, batch: Sequence[AppendedRecord]) -> None:
        """Resume the pulls that match a batch of new messages, in the next iteration of the loop."""
        if not self._held or (type(batch) is AppendedBatch and batch.queue not in self._held):
            return
        self._due.arrived(batch)

    def check(self) -> None:
        """Resume pulls that could continue: after arrivals that were not announced or did not match."""
        for queue, pulls in list(self._held.items()):
            self._wake([pull for pull in pulls if queue.max_offset > pull.queue_offset])

    def wake_all(self) -> None:
        """Resume every pull, at once."""
        for pulls in list(self._held.values()):
            self._wake(list(pulls))
        self._due.resume_all()

    def wake_topic(self, topic: str) -> None:
        """Resume the pulls of a topic that was deleted."""
        for queue, pulls in list(self._held.items()):
            if queue.topic == topic:
                self._wake(list(pulls))

    def drop(self, peer: Peer) -> None:
        """Forget the pulls of a connection that ended."""
        for pull in list(self._by_peer.get(peer, ())):
            self._release(pull)

    def _match(self, batch: Sequence[AppendedRecord]) -> None:
        for placed in batch:
            for pull in [each for each in self._held.get(placed.queue, ()) if each.is_for(placed)]:
                self._release(pull)
                self._due.add(pull)

    def _expire(self, pull: HeldPull) -> None:
        self._wake([pull])

    def _wake(self, pulls: Sequence[HeldPull]) -> None:
        for pull in pulls:
            self._release(pull)
        for pull in pulls:
            self._resume(pull)

    def _release(self, pull: HeldPull) -> None:
        assert pull.timer is not None
        pull.timer.cancel()
        self.count -= 1
        self.held_bytes -= pull.held_bytes
        pulls = self._held[pull.queue]
        del pulls[pull]
        if not pulls:
            del self._held[pull.queue]
        of_peer = self._by_peer[pull.peer]
        of_peer.discard(pull)
        if not of_peer:
            del self._by_peer[pull.peer]
