"""Requests to name servers and brokers: to one, or to several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from skylark.admin.results import BrokerNode, Gathered, Route
from skylark.client.session.session import Session
from skylark.errors import BrokerError, ClientClosed, ClientError, NoRoute, RocketMQError, TopicNotExist
from skylark.protocol.bodies import ClusterInfo, MessageQueue
from skylark.protocol.request import Request
from skylark.protocol.requests.name_server import GetBrokerClusterInfo, GetRouteInfoByTopic

T = TypeVar("T")
K = TypeVar("K")

CALLS_AT_ONCE_MAX = 64
"""Concurrent requests of one operation: a large topic has thousands of queues."""


class ServerCalls:
    """Requests over a session that exists while the admin runs. Owned by one event loop."""

    def __init__(self, name_servers: tuple[str, ...], timeout_ms: int) -> None:
        self.name_servers = name_servers
        self.session: Session | None = None
        self._timeout_ms = timeout_ms

    # --- One server ---

    async def ask(self, address: str, request: Request[T], *, timeout_ms: int | None = None) -> T:
        """Raises BrokerError, RemotingError, ProtocolError, ClientClosed."""
        return await self._session().call(address, request, timeout_ms=timeout_ms or self._timeout_ms)

    async def ask_name_server(self, request: Request[T]) -> T:
        """Ask a name server, the next one if the network fails. Raises as `ask` does."""
        return await self._session().call_name_server(request, timeout_ms=self._timeout_ms)

    def _session(self) -> Session:
        if self.session is None:
            raise ClientClosed("admin")
        return self.session

    # --- Several servers ---

    async def ask_each(
        self, addresses: Iterable[str], request: Request[T], *, absent_codes: Collection[int] = ()
    ) -> Gathered[T]:
        """Send a request to several servers at once; those that answer with an absent code are left out."""

        async def ask(address: str) -> T:
            return await self.ask(address, request)

        return await self.gather(addresses, ask, absent_codes=absent_codes)

    async def gather(
        self,
        addresses: Iterable[str],
        ask: Callable[[str], Awaitable[T]],
        *,
        absent_codes: Collection[int] = (),
    ) -> Gathered[T]:
        """Call `ask` for several servers at once; separate answers and failures."""
        names = list(dict.fromkeys(addresses))
        results = await at_once(ask, names)
        answers: dict[str, T] = {}
        failures: dict[str, RocketMQError] = {}
        for address, result in zip(names, results, strict=True):
            if not isinstance(result, RocketMQError):
                answers[address] = result
            elif not (isinstance(result, BrokerError) and result.code in absent_codes):
                failures[address] = result
        return Gathered(answers, failures)

    # --- Targets ---

    async def nodes(self, *, cluster: str | None = None) -> list[BrokerNode]:
        """All brokers, of all clusters or one, sorted. Raises ClientError for an unknown cluster."""
        info = await self.ask_name_server(GetBrokerClusterInfo())
        nodes = sorted(_nodes(info))
        if cluster is None:
            return nodes
        found = [node for node in nodes if node.cluster == cluster]
        if not found:
            known = ", ".join(sorted({node.cluster for node in nodes})) or "none"
            raise ClientError(f"unknown cluster {cluster}; known clusters: {known}")
        return found

    async def targets(self, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """Addresses of a broker (by name or address), a cluster, or all brokers.

        Of replicas, the master, or the one with the smallest id. Raises ClientError.
        """
        if broker is not None and ":" in broker:
            return [broker]
        leaders: dict[str, BrokerNode] = {}
        for node in await self.nodes(cluster=cluster):
            leaders.setdefault(node.name, node)
        if broker is None:
            return [node.address for node in leaders.values()]
        if broker not in leaders:
            raise ClientError(f"unknown broker {broker}; known brokers: {', '.join(leaders) or 'none'}")
        return [leaders[broker].address]

    async def targets_to_change(self, *, cluster: str | None = None, broker: str | None = None) -> list[str]:
        """As `targets`. Raises ClientError also if there are none: a change needs a broker."""
        found = await self.targets(cluster=cluster, broker=broker)
        if not found:
            raise ClientError(f"no broker is registered with {', '.join(self.name_servers)}")
        return found

    async def target(self, broker: str) -> str:
        """The address of one broker, by name or address. Raises ClientError."""
        [address] = await self.targets(broker=broker)
        return address

    async def route(self, topic: str) -> Route:
        """Raises NoRoute."""
        try:
            return Route.read(topic, await self.ask_name_server(GetRouteInfoByTopic(topic)))
        except TopicNotExist as error:
            raise NoRoute(topic) from error

    async def brokers_of(self, topic: str) -> list[str]:
        """The addresses of the brokers that have a topic. Raises NoRoute."""
        addresses = [broker.address for broker in (await self.route(topic)).brokers]
        return [address for address in addresses if address is not None]

    async def address_of(self, queue: MessageQueue) -> str:
        """The address of a queue's broker. Raises NoRoute, ClientError."""
        route = await self.route(queue.topic)
        address = route.address(queue.broker_name)
        if address is None:
            known = ", ".join(broker.broker_name for broker in route.brokers) or "none"
            raise ClientError(f"topic {queue.topic} is not on broker {queue.broker_name}; it is on: {known}")
        return address


async def at_once(function: Callable[[K], Awaitable[T]], items: Iterable[K]) -> list[T | RocketMQError]:
    """Call a function for each item, CALLS_AT_ONCE_MAX at a time; a RocketMQError becomes the result."""
    slots = asyncio.Semaphore(CALLS_AT_ONCE_MAX)

    async def one(item: K) -> T | RocketMQError:
        async with slots:
            try:
                return await function(item)
            except RocketMQError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


def whole(results: Mapping[K, T | RocketMQError]) -> dict[K, T]:
    """The results. Raises the first error among them."""
    good: dict[K, T] = {}
    for key, result in results.items():
        if isinstance(result, RocketMQError):
            raise result
        good[key] = result
    return good


def _nodes(info: ClusterInfo) -> Iterable[BrokerNode]:
    for cluster, names in info.cluster_addr_table.items():
        for name in names:
            data = info.broker_addr_table.get(name)
            for broker_id, address in data.broker_addrs.items() if data is not None else ():
                yield BrokerNode(cluster, name, broker_id, address)
