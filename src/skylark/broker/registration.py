"""Name servers hear of the broker and its topics: at the start, when topics change, and regularly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from skylark.broker.address import BrokerAddress
from skylark.broker.metadata_json import encode_metadata
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError, MasterExists, RocketMQError
from skylark.model.record import crc32
from skylark.protocol.bodies import MASTER_ID, RegisterBrokerBody, TopicConfig, TopicRouteData
from skylark.protocol.requests.name_server import (
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
    RegisterBroker,
    RegisterBrokerReply,
    UnregisterBroker,
)
from skylark.remoting.connection_pool import ClientConnection, ConnectionPool
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 3.0
MASTER_TIMEOUT_S = 3.0
RETRY_S = 1.0
ROUTE_TIMEOUT_S = 1.0
"""Who asks for a route has three seconds in all."""
SETTLE_TIMEOUT_S = 2.0
"""For how long whoever has made a topic waits until it is known."""
GATHER_S = 0.01
"""Topics that are made together are made known together."""


def name_servers(text: str) -> list[str]:
    """The addresses of a list such as `a:9876;b:9876`."""
    return [address.strip() for address in text.split(";") if address.strip()]


class Registration:
    """Keeps every name server informed, each by itself: one that is away does not hold up the others."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        role: Role,
        address: BrokerAddress,
        topics: TopicTable,
        tasks: Tasks,
    ) -> None:
        self._live = live
        self._clock = clock
        self._role = role
        self._address = address
        self._topics = topics
        self._tasks = tasks
        self._pool = ConnectionPool()
        self._servers = name_servers(live.current.name_servers)
        self._due = {server: asyncio.Event() for server in self._servers}
        self._started = False
        self._tried: set[str] = set()
        self._registered: set[str] = set()
        self._connections: dict[str, ClientConnection] = {}
        self._told: dict[str, int] = {}
        """By server: the version of the topics that it has heard of."""
        self._heard = asyncio.Condition()
        self.on_reply: Callable[[RegisterBrokerReply], None] = lambda reply: None
        """Told what name servers answer: slaves hear of their master."""

    @property
    def registered(self) -> set[str]:
        """The name servers that know the broker."""
        return self._registered

    async def find_slaves(self) -> set[str]:
        """Ask every name server that is there for the slaves of our name.

        Raises MasterExists for another master of our name, unless we are to be master by force.
        """
        settings, own = self._live.current, self._address.text
        slaves: set[str] = set()
        found = await asyncio.gather(*map(self._members, self._servers))
        for server, members in zip(self._servers, found, strict=True):
            master = members.pop(MASTER_ID, own)
            if master != own and not settings.replication.force_master:
                raise MasterExists(settings.name, master, server)
            slaves.update(members.values())
        return slaves - {own}

    async def _members(self, server: str) -> dict[int, str]:
        """The brokers of our name by number; none if the name server does not say."""
        try:
            cluster = await self._pool.call(server, GetBrokerClusterInfo(), timeout_s=MASTER_TIMEOUT_S)
        except (RocketMQError, OSError) as error:
            log.warning("name server does not say who is master address=%s reason=%s", server, error)
            return {}
        members = cluster.broker_addr_table.get(self._live.current.name)
        return dict(members.broker_addrs) if members is not None else {}

    def start(self) -> None:
        self._started = True
        for server in self._servers:
            self._tasks.spawn(self._keep_registered(server))

    async def stop(self) -> None:
        """Say goodbye to the name servers that know the broker."""
        if self._started:
            await asyncio.gather(*(self._unregister(server) for server in list(self._registered)))
        await self._pool.close()

    def topics_changed(self) -> None:
        """Tell the name servers soon."""
        for due in self._due.values():
            due.set()

    async def route(self, topic: str) -> TopicRouteData | None:
        """Ask the name servers, those first that know us, where a topic is; None if nobody says."""
        for server in sorted(self._servers, key=lambda each: each not in self._registered):
            try:
                return await self._pool.call(server, GetRouteInfoByTopic(topic), timeout_s=ROUTE_TIMEOUT_S)
            except BrokerError:
                return None  # it knows no such topic
            except (RocketMQError, OSError) as error:
                log.warning("name server gives no route address=%s reason=%s", server, error)
        return None

    async def first_attempt(self) -> None:
        """Wait until every name server has been told of the broker, or could not be; for a while at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S), self._heard:
                await self._heard.wait_for(lambda: self._tried.issuperset(self._servers))

    async def settle(self) -> None:
        """Wait until the name servers that are there know the topics as they are now, or for a while."""
        version = self._topics.data_version.counter

        def is_told() -> bool:
            return all(self._told.get(server, -1) >= version for server in self._registered)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S), self._heard:
                await self._heard.wait_for(is_told)

    async def _keep_registered(self, server: str) -> None:
        changed: list[TopicConfig] | None = None  # None: all topics
        reason = ""
        while True:
            wait_s = self._live.current.register_interval_ms / 1000
            try:
                await self._register(server, changed)
                reason = ""
            except (RocketMQError, OSError) as error:
                self._registered.discard(server)
                if str(error) != reason:  # said once, not every second that a server is away
                    reason = str(error)
                    log.warning("not registered with the name server address=%s reason=%s", server, reason)
                wait_s = min(wait_s, RETRY_S)
            if server not in self._tried:
                self._tried.add(server)
                async with self._heard:
                    self._heard.notify_all()
            changed = await self._wait(server, wait_s)

    async def _wait(self, server: str, wait_s: float) -> list[TopicConfig] | None:
        """Wait until it is time again; returns the topics that changed, None for all of them."""
        due = self._due[server]
        try:
            async with asyncio.timeout(wait_s):
                await due.wait()
        except TimeoutError:
            return None
        await asyncio.sleep(GATHER_S)
        due.clear()
        changed = self._topics.take_unregistered()
        # What one server takes is gone for the others: with several of them, all hear of all.
        return changed if changed and len(self._servers) == 1 and server in self._registered else None

    async def _register(self, server: str, changed: Iterable[TopicConfig] | None) -> None:
        settings = self._live.current
        version = self._topics.data_version.counter
        connection = await self._pool.connection(server)
        if connection is not self._connections.get(server):
            changed = None  # it may have been started anew, and know nothing
        table = self._topics.registered_table(changed)
        # Written in C: 10,000 topics must not hold up the loop.
        body = encode_metadata(RegisterBrokerBody(topic_config_serialize_wrapper=table))
        request = RegisterBroker(
            broker_name=settings.name,
            broker_addr=self._address.text,
            cluster_name=settings.cluster,
            ha_server_addr=self._address.replica,
            broker_id=self._role.broker_id,
            body_crc32=crc32(body),
            enable_acting_master=False,
            body=body,
        )
        result = await self._pool.call(server, request, timeout_s=settings.register_timeout_ms / 1000)
        self._told[server] = version
        self._connections[server] = connection
        async with self._heard:
            self._heard.notify_all()
        if server not in self._registered:
            self._registered.add(server)
            log.info("registered with the name server address=%s", server)
        self.on_reply(result.reply)
        if result.order_topics:
            self._topics.mark_ordered(result.order_topics, now_ms=self._clock.now_ms())

    async def _unregister(self, server: str) -> None:
        settings = self._live.current
        request = UnregisterBroker(
            broker_name=settings.name,
            broker_addr=self._address.text,
            cluster_name=settings.cluster,
            broker_id=self._role.broker_id,
        )
        try:
            await self._pool.call(server, request, timeout_s=UNREGISTER_TIMEOUT_S)
        except (RocketMQError, OSError) as error:
            log.warning("name server did not hear the goodbye address=%s reason=%s", server, error)
