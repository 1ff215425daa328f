"""Sharing the queues of subscribed topics among the members of a group of pull consumers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from skylark.client.group_members import check_expression, group_members
from skylark.client.rebalance import Strategy, allocate
from skylark.client.rounds import Rounds
from skylark.client.session import Session
from skylark.client.subscription import Subscription
from skylark.errors import ClientError, NoRoute, RocketMQError
from skylark.protocol.bodies import MessageQueue
from skylark.settings.consumer import MessageModel
from skylark.settings.pull_consumer import PullConsumerSettings

log = logging.getLogger(__name__)


class Sharer(Protocol):
    """The consumer whose queues these are."""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """What is subscribed, by topic."""

    async def hold(self, queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others."""


class QueueSharing(Rounds):
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
