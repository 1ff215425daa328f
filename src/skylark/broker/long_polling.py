"""Pulls that found nothing wait here until a message arrives, their time is up, or the check comes round."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any

from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.protocol.command import TypedCommand
from skylark.remoting.server import Peer
from skylark.store.append_result import AppendedBatch, AppendedRecord
from skylark.store.consume_queue import ConsumeQueue

HELD_PULL_BYTES = 1024
"""What a held pull takes, text aside: the request, its timer, its place in the tables."""


class HeldPull:
    """A pull that waits. `resume` answers it, whatever it then finds."""

    __slots__ = ("command", "held_bytes", "peer", "queue", "queue_offset", "since", "subscription", "timer")

    def __init__(
        self,
        peer: Peer,
        command: TypedCommand[Any],
        queue: ConsumeQueue,
        queue_offset: int,
        subscription: CompiledSubscription,
    ) -> None:
        # Kept for long: what the answer does not need goes, and a body would keep all that was read with it.
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
        """Say whether a new message is what the pull waits for."""
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
        self.count = 0
        self.held_bytes = 0

    def hold(self, pull: HeldPull, timeout_s: float) -> bool:
        """Keep a pull for a time; False if there is no room for it."""
        if self.count >= self._held_max or self.held_bytes + pull.held_bytes > self._held_bytes_max:
            return False
        self.count += 1
        self.held_bytes += pull.held_bytes
        self._held.setdefault(pull.queue, {})[pull] = None
        self._by_peer.setdefault(pull.peer, set()).add(pull)
        pull.timer = asyncio.get_running_loop().call_later(timeout_s, self._time_is_up, pull)
        return True

    def arrived(self, batch: Sequence[AppendedRecord]) -> None:
        """Wake the pulls that a batch of new messages is for."""
        if not self._held or (type(batch) is AppendedBatch and batch.queue not in self._held):
            return
        for placed in batch:
            pulls = self._held.get(placed.queue)
            if pulls:
                self._wake([pull for pull in pulls if pull.is_for(placed)])

    def check(self) -> None:
        """Wake whoever could go on: for arrivals that nobody told of, or that did not match."""
        for queue, pulls in list(self._held.items()):
            self._wake([pull for pull in pulls if queue.max_offset > pull.queue_offset])

    def wake_all(self) -> None:
        """Answer everybody: the broker stops."""
        for pulls in list(self._held.values()):
            self._wake(list(pulls))

    def wake_topic(self, topic: str) -> None:
        """Answer who waits for a topic that is gone."""
        for queue, pulls in list(self._held.items()):
            if queue.topic == topic:
                self._wake(list(pulls))

    def drop(self, peer: Peer) -> None:
        """Forget the pulls of a connection that ended."""
        for pull in list(self._by_peer.get(peer, ())):
            self._release(pull)

    def _time_is_up(self, pull: HeldPull) -> None:
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
