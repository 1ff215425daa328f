"""HeldPops: pops and notifications that found nothing, held until a message arrives or their time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic, TypeVar

from skylark.broker.due_requests import DueRequests
from skylark.broker.filters.compiled_subscription import CompiledSubscription
from skylark.model import names
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.lite import PopLiteMessage
from skylark.protocol.requests.pop import Notification, PopMessage
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.append_result import AppendedBatch, AppendedRecord

ANY_QUEUE = -1
EARLY_MS = 50
"""A request is answered this long before its time is up."""

Q = TypeVar("Q", PopMessage, Notification, PopLiteMessage)
_Pair = tuple[str, str]


class Holding(Enum):
    """Whether a request is held."""

    HELD = "held"
    FULL = "there are too many"
    TIMEOUT = "its time is up"


class HeldRequest(Generic[Q]):
    """A pop or a notification that may be held. When resumed it is tried again."""

    __slots__ = (
        "command", "deadline_ms", "pair", "peer", "request", "since", "subscription", "timer", "was_held",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        command: RemotingCommand,
        request: Q,
        subscription: CompiledSubscription | None,
        now_ms: int,
        pair: _Pair | None = None,
    ) -> None:
        """It is held with those of the same `pair`, by default of topic and group."""
        self.pair: _Pair = pair or (request.topic, request.consumer_group)
        self.peer = peer
        self.command = command
        self.request: Q = request
        self.subscription = subscription
        # By both clocks: one that is wrong by hours holds nothing for hours.
        self.deadline_ms = min(request.born_time, now_ms) + max(request.poll_time, 0)
        self.since = peer.active_at
        self.was_held = False
        self.timer: asyncio.TimerHandle | None = None

    def is_for(self, placed: AppendedRecord, force_interval: int) -> bool:
        """Return whether a new message may be for it, or moves it on."""
        wanted = self.subscription
        if wanted is None or placed.queue_offset % force_interval == 0:
            return True
        tags_filter, text_filter = wanted.tags_filter, wanted.text_filter
        if tags_filter is not None and not tags_filter(placed.tags_code):
            return False
        return text_filter is None or text_filter(placed.properties)


class HeldPops(Generic[Q]):
    """Held requests of a broker, by topic, group and queue. Loop thread.

    One message resumes one request of a group; if that leaves messages, the pop resumes the next.
    """

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        resume: Callable[[HeldRequest[Q]], None],
        *,
        newest_first: bool,
    ) -> None:
        self._live = live
        self._resume: Callable[[HeldRequest[Q]], None] = resume
        self._newest_first = newest_first
        self._held: dict[_Pair, dict[int, dict[HeldRequest[Q], None]]] = {}
        self._pairs: dict[str, set[_Pair]] = {}
        """Whom a message of a topic may be for. Retry topics belong to the pair of their own topic."""
        self._by_peer: dict[Peer, set[HeldRequest[Q]]] = {}
        self._due: DueRequests[HeldRequest[Q]] = DueRequests(self._match, resume)
        self._is_stopped = False
        self.count = 0

    @property
    def is_waiting(self) -> bool:
        return self.count > 0

    def hold(self, held: HeldRequest[Q], now_ms: int, *, retry_ms: int = 0) -> Holding:
        """Hold a request until its time is up, if there is room; with `retry_ms` it is tried again then."""
        request, settings = held.request, self._live.current.pop
        if request.poll_time <= 0 or self._is_stopped or now_ms > held.deadline_ms - EARLY_MS:
            return Holding.TIMEOUT
        pair: _Pair = held.pair
        queues = self._held.get(pair)
        waiting = queues.get(request.queue_id) if queues is not None else None
        if self.count >= settings.held_max or (waiting is not None and len(waiting) > settings.held_key_max):
            return Holding.FULL
        if queues is None:
            queues = self._held[pair] = {}
            for name in (pair[0], *names.pop_retry_topics(*pair)):
                self._pairs.setdefault(name, set()).add(pair)
        queues.setdefault(request.queue_id, {})[held] = None
        self._by_peer.setdefault(held.peer, set()).add(held)
        self.count += 1
        held.was_held = True
        held.command.body = b""  # it would keep the whole read buffer alive
        until_ms = held.deadline_ms - EARLY_MS
        if now_ms < retry_ms < until_ms:
            until_ms = retry_ms
        delay_s = max(until_ms - now_ms, 1) / 1000
        held.timer = asyncio.get_running_loop().call_later(delay_s, self._expire, held)
        return Holding.HELD

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many requests are held for exactly this queue id."""
        return len(self._held.get((topic, group), {}).get(queue_id, ()))

    def arrived(self, batch: Sequence[AppendedRecord]) -> None:
        """Resume requests that new messages may be for, in the next iteration of the loop."""
        if type(batch) is AppendedBatch and batch.queue.topic not in self._pairs:
            return
        self._due.arrived(batch)

    def wake(self, topic: str, group: str, *queue_ids: int) -> None:
        """Resume one request of the first of these queue ids that has one."""
        queues = self._held.get((topic, group))
        for queue_id in queue_ids if queues else ():
            waiting = queues.get(queue_id) if queues else None
            if waiting:
                self._release_one(waiting)
                return

    def wake_all(self) -> None:
        """Resume every request, at once, and hold no more."""
        self._is_stopped = True
        for queues in list(self._held.values()):
            for waiting in list(queues.values()):
                for held in list(waiting):
                    self._release(held)
                    self._resume(held)
        self._due.resume_all()

    def allow(self) -> None:
        """Hold requests again."""
        self._is_stopped = False

    def wake_topic(self, topic: str) -> None:
        """Resume the requests of a topic that was deleted."""
        for pair in list(self._pairs.get(topic, ())):
            for waiting in list(self._held.get(pair, {}).values()):
                for held in list(waiting):
                    self._release(held)
                    self._due.add(held)

    def drop(self, peer: Peer) -> None:
        """Forget the requests of a connection that ended."""
        for held in list(self._by_peer.get(peer, ())):
            self._release(held)

    # --- Inside ---

    def _match(self, batch: Sequence[AppendedRecord]) -> None:
        force = self._live.current.pop.force_wake_interval
        matched: set[tuple[_Pair, int]] = set()
        for placed in batch:
            topic, queue_id = placed.queue.topic, placed.queue.queue_id
            for pair in list(self._pairs.get(topic, ())):
                queues = self._held.get(pair)
                if queues is None:
                    continue
                is_retry = topic != pair[0]
                # A retried message is for any pop of the topic, whatever queue it asked for.
                for wanted in list(queues) if is_retry else (ANY_QUEUE, queue_id):
                    if (pair, wanted) not in matched and self._wake_match(queues, wanted, placed, force):
                        matched.add((pair, wanted))
                        if is_retry:
                            break

    def _wake_match(
        self,
        queues: dict[int, dict[HeldRequest[Q], None]],
        queue_id: int,
        placed: AppendedRecord,
        force_interval: int,
    ) -> bool:
        waiting = queues.get(queue_id, {})
        for held in reversed(waiting) if self._newest_first else waiting:
            if held.is_for(placed, force_interval):
                self._release(held)
                self._due.add(held)
                return True
        return False

    def _release_one(self, waiting: dict[HeldRequest[Q], None]) -> None:
        held = next(reversed(waiting) if self._newest_first else iter(waiting))
        self._release(held)
        self._due.add(held)

    def _expire(self, held: HeldRequest[Q]) -> None:
        self._release(held)
        self._resume(held)

    def _release(self, held: HeldRequest[Q]) -> None:
        assert held.timer is not None
        held.timer.cancel()
        self.count -= 1
        request = held.request
        pair: _Pair = held.pair
        queues = self._held[pair]
        waiting = queues[request.queue_id]
        del waiting[held]
        if not waiting:
            del queues[request.queue_id]
        if not queues:
            del self._held[pair]
            for name in (pair[0], *names.pop_retry_topics(*pair)):
                self._pairs[name].discard(pair)
                if not self._pairs[name]:
                    del self._pairs[name]
        of_peer = self._by_peer[held.peer]
        of_peer.discard(held)
        if not of_peer:
            del self._by_peer[held.peer]
