"""Rebalancer: recomputes periodically which queues this group member owns."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from skylark.client.consumer.allocation_strategies import Strategy, allocate, queue_changes
from skylark.client.consumer.offset_store import OffsetStore
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_policy import PullRequest
from skylark.client.consumer.queue_locks import OrderlyLocks
from skylark.client.consumer.start_offsets import StartOffsets
from skylark.client.consumer.subscription import TopicSubscription
from skylark.client.session.routes import MASTER_ID, TopicRoute
from skylark.client.session.session import Session
from skylark.errors import ClientError, NoRoute, RocketMQError
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import ClientConfig, MessageQueue
from skylark.protocol.request import Request
from skylark.protocol.requests.client import CheckClientConfig, GetConsumerListByGroup
from skylark.settings.client import MessageModel, PullConsumerSettings, PushConsumerSettings


class Rebalancer(ABC):
    """The rounds in which a member finds out which queues are its own. Loop thread."""

    def __init__(self, settings: PushConsumerSettings | PullConsumerSettings) -> None:
        self._interval_s = settings.rebalance_interval_ms / 1000
        self._gap_s = settings.rebalance_gap_ms / 1000
        self._woken = asyncio.Event()

    @abstractmethod
    async def rebalance(self) -> bool:
        """Do one round over all topics; True if everything is as it should be."""

    @property
    def is_needed(self) -> bool:
        """Whether a round has anything to do. The first that has need not wait for the gap between two."""
        return True

    def wake(self) -> None:
        """Begin a round soon: members, queues or subscriptions may have changed."""
        self._woken.set()

    async def run(self) -> None:
        """Do rounds for ever."""
        wait_s, last = self._interval_s, -self._gap_s
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            if not self.is_needed:
                continue
            # Several reasons at once, such as ten members that start, are one round.
            await asyncio.sleep(last + self._gap_s - time.monotonic())
            self._woken.clear()
            last = time.monotonic()
            wait_s = self._interval_s if await self.rebalance() else self._gap_s


T = TypeVar("T")


async def group_members(session: Session, group: str, route: TopicRoute) -> list[str]:
    """Return the client ids; none if no broker is there. Raises the last one's error if none answers."""
    found = await _ask_one(session, route, GetConsumerListByGroup(group))
    return [] if found is None else found.consumer_id_list


async def check_expression(session: Session, group: str, wanted: TopicSubscription) -> None:
    """Have a broker read an SQL92 expression.

    Raises BrokerError 23 for one that it does not understand, NoRoute.
    """
    if not wanted.is_tag_type:
        config = ClientConfig(group, wanted.data(), session.client_id)
        await _ask_one(session, await session.find_route(wanted.topic), CheckClientConfig(config))


async def _ask_one(session: Session, route: TopicRoute, request: Request[T]) -> T | None:
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


log = logging.getLogger(__name__)

RETRY_ROUTE_ROUNDS = 30
"""So often a new group's retry topic, which its first heartbeat makes, is looked for without a pause."""

ROUND_WAIT_S = 3.0


class Owner(Protocol):
    """The consumer whose queues these are."""

    def topics(self) -> Iterable[str]:
        """What is subscribed."""

    def queue_taken(self, request: PullRequest) -> None:
        """A queue is ours and may be pulled."""

    def queue_given_up(self, process_queue: ProcessQueue) -> None:
        """A queue is not ours any more."""

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Something changed for a topic."""


class PushRebalancer(Rebalancer):
    """The queues of one member of a group. Loop thread; rounds never overlap.

    `locks` is given for orderly clustering: a queue is then locked before it is taken. `wait_until_free`
    waits until no listener has messages of a queue.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        settings: PushConsumerSettings,
        strategy: Strategy,
        owner: Owner,
        offsets: OffsetStore,
        start_offsets: StartOffsets,
        locks: OrderlyLocks | None,
        wait_until_free: Callable[[MessageQueue, float], Awaitable[bool]] | None,
    ) -> None:
        super().__init__(settings)
        self.process_queues: dict[MessageQueue, ProcessQueue] = {}
        self.paused = False
        self.rounds = 0
        self._session = session
        self._group = group
        self._settings = settings
        self._strategy = strategy
        self._owner = owner
        self._offsets = offsets
        self._start_offsets = start_offsets
        self._locks = locks
        self._wait_until_free = wait_until_free
        self._round = asyncio.Lock()

    def _wake_later(self, delay_ms: float) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, self.wake)

    # --- A round ---

    async def rebalance(self) -> bool:
        """Do one round over all topics; True if everything is as it should be. Never raises."""
        async with self._round:
            if self.paused:
                return False
            self.rounds += 1
            topics = set(self._owner.topics())
            balanced = True
            for topic in sorted(topics):
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
            for process_queue in list(self.process_queues.values()):
                if process_queue.queue.topic not in topics:
                    await self._give_up(process_queue)
            return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        try:
            route = await self._session.find_route(topic)
        except NoRoute:
            if is_retry:
                return self.rounds > RETRY_ROUTE_ROUNDS
            log.warning("topic is subscribed but does not exist topic=%s group=%s", topic, self._group)
            await self._owner.queues_changed(topic, (), ())
            return True
        if self._settings.model is MessageModel.BROADCASTING:
            mine: Sequence[MessageQueue] = route.read_queues
        else:
            members = await group_members(self._session, self._group, route)
            if not members:
                log.warning("no broker knows members of the group topic=%s group=%s", topic, self._group)
                return False
            mine = allocate(self._strategy, self._session.client_id, route.read_queues, members)
        if await self._apply(topic, mine):
            log.info(
                "queues changed topic=%s group=%s mine=%d of %d",
                topic,
                self._group,
                len(mine),
                len(route.read_queues),
            )
            await self._owner.queues_changed(topic, route.read_queues, sorted(mine))
        working = {
            queue for queue, held in self.process_queues.items() if not held.dropped and queue.topic == topic
        }
        return working == set(mine)

    async def _apply(self, topic: str, wanted: Sequence[MessageQueue]) -> bool:
        """Give up and take what must be; True if anything changed."""
        held = {
            queue: process_queue.last_pull_at
            for queue, process_queue in self.process_queues.items()
            if queue.topic == topic and not process_queue.dropped
        }
        idle_s = self._settings.pull_idle_max_ms / 1000
        plan = queue_changes(held, wanted, stale_before=time.monotonic() - idle_s)
        changed = False
        for queue, process_queue in list(self.process_queues.items()):
            if queue.topic == topic and (process_queue.dropped or queue in plan.give_up):
                changed = await self._give_up(process_queue) or changed
        taken = [queue for queue in plan.take if queue not in self.process_queues]
        if self._locks is not None and taken:
            taken = await self._lock(topic, taken, self._locks)
        results = await asyncio.gather(*map(self._take, taken))
        return any(results) or changed

    async def _lock(
        self, topic: str, queues: Sequence[MessageQueue], locks: OrderlyLocks
    ) -> list[MessageQueue]:
        """Lock what is to be taken; what others still have locked is tried again soon."""
        locked = await locks.lock(queues)
        if len(locked) < len(queues):
            log.info("queues are still locked by others topic=%s count=%d", topic, len(queues) - len(locked))
            self._wake_later(self._settings.lock_retry_ms)
        return [queue for queue in queues if queue in locked]

    async def _take(self, queue: MessageQueue) -> bool:
        """Begin with a queue; False if it is not known where, which the next round asks again."""
        self._offsets.table.remove(queue)
        process_queue = ProcessQueue(queue, now=time.monotonic())
        process_queue.locked = self._locks is not None
        try:
            next_offset = await self._start_offsets.find(queue)
        except RocketMQError as error:
            log.warning("queue is not taken, its offset is not known queue=%s error=%s", queue, error)
            return False
        if queue in self.process_queues:
            return False
        self.process_queues[queue] = process_queue
        self._owner.queue_taken(PullRequest(self._group, process_queue, next_offset))
        return True

    async def _give_up(self, process_queue: ProcessQueue) -> bool:
        """Let go of a queue and keep its offset where it lasts. False: not yet, a listener has it."""
        queue = process_queue.queue
        process_queue.dropped = True
        self._owner.queue_given_up(process_queue)
        await self._offsets.persist(queue)
        if self._locks is not None and not await self._let_go(process_queue, self._locks):
            return False
        self._offsets.table.remove(queue)
        self.process_queues.pop(queue, None)
        return True

    async def _let_go(self, process_queue: ProcessQueue, locks: OrderlyLocks) -> bool:
        """Unlock a queue once no listener has messages of it, or once that has taken too long."""
        queue, settings = process_queue.queue, self._settings
        held_too_long = process_queue.is_lock_expired(time.monotonic(), settings.unlock_delay_ms / 1000)
        if not held_too_long and self._wait_until_free is not None:
            if not await self._wait_until_free(queue, settings.give_up_wait_ms):
                process_queue.unlock_tries += 1
                log.warning("queue is not given up yet, a listener has it queue=%s", queue)
                return False
        await self._offsets.persist(queue)
        process_queue.locked = False
        await locks.unlock(queue)
        return True

    # --- Corrections ---

    async def repair(self, queue: MessageQueue, queue_offset: int) -> None:
        """Begin a queue anew at an offset that its broker named."""
        async with self._round:
            self._offsets.table.freeze(queue, queue_offset)
            await self._offsets.persist(queue)
            process_queue = self.process_queues.get(queue)
            if process_queue is not None:
                process_queue.dropped = True
                await self._give_up(process_queue)
        self.wake()

    async def reset(self, topic: str, offsets: dict[MessageQueue, int], wait_ms: float) -> None:
        """Move queues of a topic to other offsets. What listeners still have may end without effect.

        The assignment must be paused meanwhile.
        """
        async with self._round:  # a round under way would take the queues back
            held = [
                process_queue
                for queue, process_queue in self.process_queues.items()
                if queue.topic == topic and queue in offsets
            ]
            for process_queue in held:
                process_queue.dropped = True
                process_queue.clear()
                self._owner.queue_given_up(process_queue)
        await asyncio.sleep(wait_ms / 1000)
        async with self._round:
            for process_queue in held:
                if self.process_queues.get(process_queue.queue) is not process_queue:
                    continue
                self._offsets.table.freeze(process_queue.queue, offsets[process_queue.queue])
                await self._give_up(process_queue)

    async def finish_round(self) -> None:
        """Begin no more rounds, and let the one under way end: half of it would leave locks behind."""
        self.paused = True
        try:
            async with asyncio.timeout(ROUND_WAIT_S), self._round:
                pass
        except TimeoutError:
            log.warning("a round of rebalancing is broken off group=%s", self._group)

    async def release(self) -> None:
        """Drop everything at the end; offsets were kept before."""
        for process_queue in self.process_queues.values():
            process_queue.dropped = True
            self._owner.queue_given_up(process_queue)
        self.process_queues.clear()


class Sharer(Protocol):
    """The consumer whose queues these are."""

    @property
    def subscriptions(self) -> Mapping[str, TopicSubscription]:
        """What is subscribed, by topic."""

    async def hold(self, queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others."""


class PullRebalancer(Rebalancer):
    """Computes again and again which queues are ours. Loop thread; rounds never overlap.

    Other than a push consumer's, queues that are not pulled for long are left alone: the user decides when to
    poll.
    """

    def __init__(
        self, session: Session, group: str, settings: PullConsumerSettings, strategy: Strategy, sharer: Sharer
    ) -> None:
        super().__init__(settings)
        self._session = session
        self._group = group
        self._settings = settings
        self._strategy = strategy
        self._sharer = sharer
        self._mine: dict[str, Collection[MessageQueue]] = {}
        self._told: set[str] = set()
        self._missing: set[str] = set()

    @property
    def is_needed(self) -> bool:
        return bool(self._sharer.subscriptions or self._mine)

    async def rebalance(self) -> bool:
        topics = list(self._sharer.subscriptions)
        balanced = True
        for topic in topics:
            try:
                self._mine[topic] = await self._queues(topic)
                self._missing.discard(topic)
            except NoRoute:
                # Perhaps it is just being created: asked again soon, and told once.
                balanced = False
                if topic not in self._missing:
                    log.warning(
                        "topic is subscribed but does not exist topic=%s group=%s", topic, self._group
                    )
                self._missing.add(topic)
                self._mine.pop(topic, None)
            except RocketMQError as error:
                # What we have is kept: nobody else has it as long as the brokers do not know better.
                balanced = False
                log.warning("sharing queues failed topic=%s group=%s error=%s", topic, self._group, error)
            except Exception:
                balanced = False
                log.exception("strategy failed topic=%s group=%s", topic, self._group)
        self._mine = {topic: queues for topic, queues in self._mine.items() if topic in topics}
        await self._sharer.hold({queue for queues in self._mine.values() for queue in queues})
        return balanced

    async def _queues(self, topic: str) -> Collection[MessageQueue]:
        route = await self._session.find_route(topic)
        if self._settings.model is MessageModel.BROADCASTING:
            return route.read_queues
        if topic not in self._told:
            await check_expression(self._session, self._group, self._sharer.subscriptions[topic])
            # Its brokers may just have become known to us: then they do not know us.
            await self._session.heartbeat()
            self._told.add(topic)
        members = await group_members(self._session, self._group, route)
        if self._session.client_id not in members:
            self._told.discard(topic)
            raise ClientError("its brokers do not know of us yet")
        return allocate(self._strategy, self._session.client_id, route.read_queues, members)


class QueueWatch:
    """Tells listeners when a topic has other queues than before. Loop thread."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[list[MessageQueue]], None]]] = {}
        self._known: dict[str, list[MessageQueue]] = {}

    def add(self, topic: str, listener: Callable[[list[MessageQueue]], None]) -> None:
        self._listeners.setdefault(topic, []).append(listener)

    async def look(self, session: Session) -> None:
        """Ask for the queues of all topics that somebody listens for. Raises RocketMQError."""
        for topic, listeners in list(self._listeners.items()):
            found = sorted((await session.refresh_route(topic)).read_queues)
            before, self._known[topic] = self._known.get(topic), found
            if before is not None and before != found:
                for listener in listeners:
                    listener(found)
