"""Rebalancer: recomputes periodically which queues this group member owns.

`Rebalancer` decides, for push and pull consumers alike; `PushQueues` and `PullQueues` act on its decisions.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from skylark.client.consumer.allocation_strategies import Strategy, allocate, queue_changes
from skylark.client.consumer.offset_store import OffsetStore
from skylark.client.consumer.orderly_consumption import OrderlyLocks
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.start_offsets import StartOffsets
from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import Session
from skylark.errors import ClientError, NoRoute, RocketMQError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import MASTER_ID, ClientConfig, MessageQueue
from skylark.protocol.request import Request
from skylark.protocol.requests.client import CheckClientConfig, GetConsumerListByGroup
from skylark.settings.client import MessageModel, PullConsumerSettings, PushConsumerSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_ROUTE_ROUNDS = 30
"""Rounds that look up the retry topic of a new group, created by its first heartbeat, without a pause."""

ROUND_WAIT_S = 3.0


class QueueHolder(Protocol):
    """What a consumer does with the queues that the rebalancer assigns to it."""

    def topics(self) -> Iterable[str]:
        """Return the subscribed topics."""

    async def members(self, topic: str, route: TopicRoute) -> list[str]:
        """Return the client ids of the group. Raises RocketMQError to leave the topic as it is."""

    async def assign(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> bool:
        """Hold `mine` of a topic's queues; return False if the next round must follow soon."""

    async def topic_missing(self, topic: str, rounds: int) -> bool:
        """Handle a topic without a route; return as `assign` does."""

    async def end_round(self, topics: Collection[str]) -> None:
        """Release the queues of all other topics."""


class Rebalancer:
    """Runs rebalancing rounds: periodically, when woken, and soon after an incomplete round.

    Loop thread; rounds never overlap. Code that moves queues outside a round holds `round_lock`.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: PushConsumerSettings | PullConsumerSettings,
        strategy: Strategy,
        holder: QueueHolder,
    ) -> None:
        self.paused = False
        self.rounds = 0
        self.round_lock = asyncio.Lock()
        self._session = session
        self._group = group
        self._strategy = strategy
        self._holder = holder
        self._broadcasting = settings.model is MessageModel.BROADCASTING
        self._interval_s = settings.rebalance_interval_ms / 1000
        self._gap_s = settings.rebalance_gap_ms / 1000
        self._topics: set[str] = set()  # of the last round
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Start a round soon: members, queues or subscriptions may have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Run rounds forever."""
        wait_s, last = self._interval_s, -self._gap_s
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            if not self._topics and not list(self._holder.topics()):
                continue  # the first subscription need not wait for the gap
            # Several wake-ups at once, such as ten members that start, cause one round.
            await asyncio.sleep(last + self._gap_s - time.monotonic())
            self._woken.clear()
            last = time.monotonic()
            wait_s = self._interval_s if await self.rebalance() else self._gap_s

    async def rebalance(self) -> bool:
        """Run one round over all topics; return whether it is complete. Never raises."""
        async with self.round_lock:
            if self.paused:
                return False
            self.rounds += 1
            self._topics = set(self._holder.topics())
            balanced = True
            for topic in sorted(self._topics):
                try:
                    balanced = await self._rebalance_topic(topic) and balanced
                except RocketMQError as error:
                    balanced = False
                    if not topic.startswith(RETRY_TOPIC_PREFIX):
                        log.warning(
                            "rebalancing failed topic=%s group=%s error=%s", topic, self._group, error
                        )
                except Exception:
                    balanced = False
                    log.exception("rebalancing failed topic=%s group=%s", topic, self._group)
            await self._holder.end_round(self._topics)
            return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        try:
            route = await self._session.find_route(topic)
        except NoRoute:
            return await self._holder.topic_missing(topic, self.rounds)
        mine: Sequence[MessageQueue] = route.read_queues
        if not self._broadcasting:
            members = await self._holder.members(topic, route)
            if not members:
                log.warning("no broker knows members of the group topic=%s group=%s", topic, self._group)
                return False
            mine = allocate(self._strategy, self._session.client_id, route.read_queues, members)
        return await self._holder.assign(topic, route.read_queues, mine)

    async def finish_round(self) -> None:
        """Start no more rounds and wait for the current one: an aborted round would leave locks behind."""
        self.paused = True
        try:
            async with asyncio.timeout(ROUND_WAIT_S), self.round_lock:
                pass
        except TimeoutError:
            log.warning("rebalancing round aborted group=%s", self._group)


# --- Queries about a group ---


async def group_members(session: Session, group: str, route: TopicRoute) -> list[str]:
    """Return the client ids, none without a broker. Raises the last error if no broker replies."""
    found = await _ask_any_broker(session, route, GetConsumerListByGroup(group))
    return [] if found is None else found.consumer_id_list


async def check_expression(session: Session, group: str, wanted: TopicSubscription) -> None:
    """Let a broker check an SQL92 expression. Raises BrokerError 23 for an invalid one, NoRoute."""
    if not wanted.is_tag_type:
        config = ClientConfig(group, wanted.data(), session.client_id)
        await _ask_any_broker(session, await session.find_route(wanted.topic), CheckClientConfig(config))


async def _ask_any_broker(session: Session, route: TopicRoute, request: Request[T]) -> T | None:
    brokers = [broker.broker_addrs for broker in route.data.broker_datas if broker.broker_addrs]
    failure: RocketMQError | None = None
    for addresses in random.sample(brokers, len(brokers)):
        address = addresses.get(MASTER_ID) or next(iter(addresses.values()))
        try:
            return await session.call(address, request)
        except RocketMQError as error:
            failure = error
    if failure is not None:
        raise failure
    return None


# --- Push consumers ---


class PushQueueOwner(Protocol):
    """The consumer of `PushQueues`."""

    def topics(self) -> Iterable[str]: ...

    def queue_taken(self, request: PullRequest) -> None:
        """Start to pull a queue."""

    def queue_released(self, process_queue: ProcessQueue) -> None:
        """Stop to pull a queue."""

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Called after the queues of a topic have changed."""


class PushQueues:
    """The queues that a push consumer holds. Loop thread; a `QueueHolder`.

    With `locks`, for orderly clustering, a queue is locked before it is taken. `wait_until_free` waits until
    no listener has messages of a queue. `wake` starts a rebalancing round.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: PushConsumerSettings,
        owner: PushQueueOwner,
        offsets: OffsetStore,
        start_offsets: StartOffsets,
        locks: OrderlyLocks | None,
        wait_until_free: Callable[[MessageQueue, float], Awaitable[bool]] | None,
        wake: Callable[[], None],
    ) -> None:
        self.process_queues: dict[MessageQueue, ProcessQueue] = {}
        self._session = session
        self._group = group
        self._settings = settings
        self._owner = owner
        self._offsets = offsets
        self._start_offsets = start_offsets
        self._locks = locks
        self._wait_until_free = wait_until_free
        self._wake = wake

    def topics(self) -> Iterable[str]:
        return self._owner.topics()

    async def members(self, topic: str, route: TopicRoute) -> list[str]:
        return await group_members(self._session, self._group, route)

    async def topic_missing(self, topic: str, rounds: int) -> bool:
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return rounds > RETRY_ROUTE_ROUNDS
        log.warning("topic is subscribed but does not exist topic=%s group=%s", topic, self._group)
        await self._owner.queues_changed(topic, (), ())
        return True

    async def assign(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> bool:
        if await self._apply(topic, mine):
            log.info(
                "queues changed topic=%s group=%s mine=%d of %d",
                topic, self._group, len(mine), len(all_queues),
            )  # fmt: skip
            await self._owner.queues_changed(topic, all_queues, sorted(mine))
        working = {
            queue for queue, held in self.process_queues.items() if not held.dropped and queue.topic == topic
        }
        return working == set(mine)

    async def end_round(self, topics: Collection[str]) -> None:
        for process_queue in list(self.process_queues.values()):
            if process_queue.queue.topic not in topics:
                await self._release(process_queue)

    async def _apply(self, topic: str, wanted: Sequence[MessageQueue]) -> bool:
        """Release and take queues as needed; return whether anything changed."""
        held = {
            queue: process_queue.last_pull_at
            for queue, process_queue in self.process_queues.items()
            if queue.topic == topic and not process_queue.dropped
        }
        idle_s = self._settings.pull_idle_max_ms / 1000
        plan = queue_changes(held, wanted, stale_before=time.monotonic() - idle_s)
        changed = False
        for queue, process_queue in list(self.process_queues.items()):
            if queue.topic == topic and (process_queue.dropped or queue in plan.release):
                changed = await self._release(process_queue) or changed
        taken = [queue for queue in plan.take if queue not in self.process_queues]
        if self._locks is not None and taken:
            taken = await self._lock(topic, taken, self._locks)
        results = await asyncio.gather(*map(self._take, taken))
        return any(results) or changed

    async def _lock(
        self, topic: str, queues: Sequence[MessageQueue], locks: OrderlyLocks
    ) -> list[MessageQueue]:
        """Lock queues; those that other members still hold are retried soon."""
        locked = await locks.lock(queues)
        if len(locked) < len(queues):
            log.info("queues are still locked by others topic=%s count=%d", topic, len(queues) - len(locked))
            asyncio.get_running_loop().call_later(self._settings.lock_retry_ms / 1000, self._wake)
        return [queue for queue in queues if queue in locked]

    async def _take(self, queue: MessageQueue) -> bool:
        """Take a queue; False if its start offset is unknown, which the next round retries."""
        self._offsets.table.remove(queue)
        process_queue = ProcessQueue(queue, now=time.monotonic())
        process_queue.locked = self._locks is not None
        try:
            next_offset = await self._start_offsets.find(queue)
        except RocketMQError as error:
            log.warning("queue not taken, start offset unknown queue=%s error=%s", queue, error)
            return False
        if queue in self.process_queues:
            return False
        self.process_queues[queue] = process_queue
        self._owner.queue_taken(PullRequest(self._group, process_queue, next_offset))
        return True

    async def _release(self, process_queue: ProcessQueue) -> bool:
        """Release a queue and persist its offset; False if a listener still has messages of it."""
        queue = process_queue.queue
        process_queue.dropped = True
        self._owner.queue_released(process_queue)
        await self._offsets.persist(queue)
        if self._locks is not None and not await self._unlock(process_queue, self._locks):
            return False
        self._offsets.table.remove(queue)
        self.process_queues.pop(queue, None)
        return True

    async def _unlock(self, process_queue: ProcessQueue, locks: OrderlyLocks) -> bool:
        """Unlock a queue once no listener has messages of it, or after `unlock_delay_ms`."""
        queue, settings = process_queue.queue, self._settings
        held_too_long = process_queue.is_lock_expired(time.monotonic(), settings.unlock_delay_ms / 1000)
        if not held_too_long and self._wait_until_free is not None:
            if not await self._wait_until_free(queue, settings.give_up_wait_ms):
                process_queue.unlock_tries += 1
                log.warning("queue not released yet, a listener still has messages queue=%s", queue)
                return False
        await self._offsets.persist(queue)
        process_queue.locked = False
        await locks.unlock(queue)
        return True

    # --- Corrections. The caller holds the rebalancer's `round_lock` ---

    async def restart(self, queue: MessageQueue, queue_offset: int) -> None:
        """Release a queue so that the next round takes it again at this offset."""
        self._offsets.table.freeze(queue, queue_offset)
        await self._offsets.persist(queue)
        process_queue = self.process_queues.get(queue)
        if process_queue is not None:
            await self._release(process_queue)

    def drop(self, queues: Collection[MessageQueue]) -> list[ProcessQueue]:
        """Stop pulling queues and clear their messages; returns those that are held."""
        held = [process_queue for queue, process_queue in self.process_queues.items() if queue in queues]
        for process_queue in held:
            process_queue.dropped = True
            process_queue.clear()
            self._owner.queue_released(process_queue)
        return held

    async def move(self, dropped: Iterable[ProcessQueue], offsets: Mapping[MessageQueue, int]) -> None:
        """Persist new offsets for dropped queues, and release them."""
        for process_queue in dropped:
            if self.process_queues.get(process_queue.queue) is process_queue:
                self._offsets.table.freeze(process_queue.queue, offsets[process_queue.queue])
                await self._release(process_queue)

    def release_all(self) -> None:
        """Drop all queues when the consumer stops; their offsets are persisted already."""
        for process_queue in self.process_queues.values():
            process_queue.dropped = True
            self._owner.queue_released(process_queue)
        self.process_queues.clear()


# --- Pull consumers ---


class PullQueues:
    """The queues of a pull consumer's subscribed topics. Loop thread; a `QueueHolder`.

    `hold` fetches exactly the given queues. Unlike for push consumers, queues that are not pulled for a long
    time are kept: the user decides when to poll.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        subscriptions: Mapping[str, TopicSubscription],
        hold: Callable[[Collection[MessageQueue]], Awaitable[None]],
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._hold = hold
        self._mine: dict[str, Sequence[MessageQueue]] = {}
        self._announced: set[str] = set()
        self._missing: set[str] = set()

    def topics(self) -> Iterable[str]:
        return list(self._subscriptions)

    async def members(self, topic: str, route: TopicRoute) -> list[str]:
        if topic not in self._announced:
            if (wanted := self._subscriptions.get(topic)) is not None:  # else unsubscribed meanwhile
                await check_expression(self._session, self._group, wanted)
            # The topic's brokers may be new to us: then they do not know this member.
            await self._session.heartbeat()
            self._announced.add(topic)
        members = await group_members(self._session, self._group, route)
        if self._session.client_id not in members:
            self._announced.discard(topic)
            raise ClientError("the topic's brokers do not know this member yet")
        return members

    async def assign(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> bool:
        self._mine[topic] = mine
        self._missing.discard(topic)
        return True

    async def topic_missing(self, topic: str, rounds: int) -> bool:
        # Perhaps it is being created: queried again soon, logged once.
        if topic not in self._missing:
            log.warning("topic is subscribed but does not exist topic=%s group=%s", topic, self._group)
        self._missing.add(topic)
        self._mine.pop(topic, None)
        return False

    async def end_round(self, topics: Collection[str]) -> None:
        self._mine = {topic: queues for topic, queues in self._mine.items() if topic in topics}
        await self._hold({queue for queues in self._mine.values() for queue in queues})


class QueueWatch:
    """Notifies listeners when the queues of a topic change. Loop thread."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[list[MessageQueue]], None]]] = {}
        self._known: dict[str, list[MessageQueue]] = {}

    def add(self, topic: str, listener: Callable[[list[MessageQueue]], None]) -> None:
        self._listeners.setdefault(topic, []).append(listener)

    async def check(self, session: Session) -> None:
        """Query the queues of all topics that have listeners. Raises RocketMQError."""
        for topic, listeners in list(self._listeners.items()):
            found = sorted((await session.refresh_route(topic)).read_queues)
            before, self._known[topic] = self._known.get(topic), found
            if before is not None and before != found:
                for listener in listeners:
                    listener(found)
