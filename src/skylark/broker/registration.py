"""Registers the broker and its topics with the name servers: at the start, on changes, periodically."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from skylark.broker.address import BrokerAddress
from skylark.broker.metadata_json import encode_metadata
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.errors import BrokerError, MasterExists, RocketMQError
from skylark.model.record import crc32
from skylark.protocol.bodies import MASTER_ID, BrokerData, RegisterBrokerBody, TopicConfig, TopicRouteData
from skylark.protocol.requests.name_server import (
    GetBrokerClusterInfo,
    GetRouteInfoByTopic,
    RegisterBroker,
    RegisterBrokerReply,
    UnregisterBroker,
)
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.protocol.signature import Signer
from skylark.remoting.connection_pool import ClientConnection, ConnectionPool
from skylark.remoting.tls_client import ClientTls
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.tasks import Tasks

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 3.0
SHARE_TIMEOUT_S = 3.0
MASTER_TIMEOUT_S = 3.0
RETRY_S = 1.0
ROUTE_TIMEOUT_S = 1.0
"""A client that asks for a route waits three seconds in total."""
SETTLE_TIMEOUT_S = 2.0
"""How long the creation of a topic waits for name servers."""
GATHER_S = 0.01
"""Topics created within this time are registered together."""


def name_servers(text: str) -> list[str]:
    """The addresses of a list such as `a:9876;b:9876`."""
    return [address.strip() for address in text.split(";") if address.strip()]


class Registration:
    """Registers with each name server independently: an unreachable one does not delay the others."""

    def __init__(
        self,
        live: LiveSettings[BrokerSettings],
        clock: Clock,
        role: Role,
        address: BrokerAddress,
        topics: TopicTable,
        tasks: Tasks,
        signer: Signer | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._live = live
        self._clock = clock
        self._role = role
        self._address = address
        self._topics = topics
        self._tasks = tasks
        self._pool = ConnectionPool(signer=signer, tls=tls)
        self._servers = name_servers(live.current.name_servers)
        self._due = {server: asyncio.Event() for server in self._servers}
        self._started = False
        self._tried: set[str] = set()
        self._registered: set[str] = set()
        self._connections: dict[str, ClientConnection] = {}
        self._versions: dict[str, int] = {}
        """The version of the topics that each server has."""
        self._heard = asyncio.Condition()
        self.on_reply: Callable[[RegisterBrokerReply], None] = lambda reply: None
        """Called with each reply of a name server: it tells slaves their master."""

    @property
    def registered(self) -> set[str]:
        """The name servers that know the broker."""
        return self._registered

    async def find_slaves(self) -> set[str]:
        """Ask every reachable name server for the slaves of this broker's name.

        Raises MasterExists for another master of that name, unless `force_master` is set.
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
        """Return the brokers of this name by id; none if the name server does not reply."""
        members = (await self._brokers(server)).get(self._live.current.name)
        return dict(members.broker_addrs) if members is not None else {}

    async def _brokers(self, server: str) -> Mapping[str, BrokerData]:
        """Return all brokers by name; none if the name server does not reply."""
        try:
            cluster = await self._pool.call(server, GetBrokerClusterInfo(), timeout_s=MASTER_TIMEOUT_S)
        except (RocketMQError, OSError) as error:
            log.warning("cannot ask name server for the brokers address=%s reason=%s", server, error)
            return {}
        return cluster.broker_addr_table

    def start(self) -> None:
        self._started = True
        for server in self._servers:
            self._tasks.spawn(self._keep_registered(server))

    async def stop(self) -> None:
        """Unregister from the name servers that know the broker."""
        if self._started:
            await asyncio.gather(*(self._unregister(server) for server in list(self._registered)))
        await self._pool.close()

    def topics_changed(self) -> None:
        """Register with the name servers soon."""
        for due in self._due.values():
            due.set()

    def role_changed(self) -> None:
        """Register all topics soon, under another id. Starts if it has not been started."""
        self._connections.clear()
        if not self._started:
            self.start()
        self.topics_changed()

    async def route(self, topic: str) -> TopicRouteData | None:
        """Ask the name servers for the route of a topic, registered ones first; None if none replies."""
        for server in sorted(self._servers, key=lambda each: each not in self._registered):
            try:
                return await self._pool.call(server, GetRouteInfoByTopic(topic), timeout_s=ROUTE_TIMEOUT_S)
            except BrokerError:
                return None  # no such topic
            except (RocketMQError, OSError) as error:
                log.warning("cannot get route from name server address=%s reason=%s", server, error)
        return None

    def share(self, topic: TopicConfig) -> None:
        """Create a new topic on the other masters of the cluster, too, if that is set."""
        if self._live.current.share_new_topics:
            self._tasks.spawn(self._share(topic))

    async def _share(self, topic: TopicConfig) -> None:
        route = await self.route(topic.topic_name)
        having = {self._live.current.name}
        if route is not None:
            having.update(each.broker_name for each in route.queue_datas)
        for server in self._servers:
            for name, members in (await self._brokers(server)).items():
                address = members.broker_addrs.get(MASTER_ID)
                if name not in having and members.cluster == self._live.current.cluster and address:
                    having.add(name)
                    await self._create(topic, address)

    async def _create(self, topic: TopicConfig, address: str) -> None:
        try:
            request = UpdateAndCreateTopic.of(topic)
            await self._pool.call(address, request, timeout_s=SHARE_TIMEOUT_S)
        except (RocketMQError, OSError) as error:
            log.warning("cannot create topic on broker topic=%s address=%s reason=%s",
                        topic.topic_name, address, error)  # fmt: skip

    async def first_attempt(self) -> None:
        """Wait, for a limited time, until registration with every name server was attempted once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S), self._heard:
                await self._heard.wait_for(lambda: self._tried.issuperset(self._servers))

    async def settle(self) -> None:
        """Wait, for a limited time, until the name servers know the current topics.

        One that cannot be reached is not waited for.
        """
        version = self._topics.data_version.counter

        def is_registered() -> bool:
            awaited = set(self._servers) - (self._tried - self._registered)
            return all(self._versions.get(server, -1) >= version for server in awaited)

        if not self._started:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_TIMEOUT_S), self._heard:
                await self._heard.wait_for(is_registered)

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
                if str(error) != reason:  # logged once, not every second
                    reason = str(error)
                    log.warning("cannot register with name server address=%s reason=%s", server, reason)
                wait_s = min(wait_s, RETRY_S)
            self._tried.add(server)
            async with self._heard:
                self._heard.notify_all()
            changed = await self._wait(server, wait_s)

    async def _wait(self, server: str, wait_s: float) -> list[TopicConfig] | None:
        """Wait for the next registration; return the topics that changed, or None for all."""
        due = self._due[server]
        try:
            async with asyncio.timeout(wait_s):
                await due.wait()
        except TimeoutError:
            return None
        await asyncio.sleep(GATHER_S)
        due.clear()
        changed = self._topics.take_unregistered()
        # Changes are taken once: with several name servers, each gets all topics.
        return changed if changed and len(self._servers) == 1 and server in self._registered else None

    async def _register(self, server: str, changed: Iterable[TopicConfig] | None) -> None:
        settings = self._live.current
        version = self._topics.data_version.counter
        connection = await self._pool.connection(server)
        if connection is not self._connections.get(server):
            changed = None  # it may have been restarted, and know nothing
        table = self._topics.registered_table(changed)
        # Encoded in C: 10,000 topics must not block the loop.
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
        self._versions[server] = version
        self._connections[server] = connection
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
            log.warning("unregister failed address=%s reason=%s", server, error)
