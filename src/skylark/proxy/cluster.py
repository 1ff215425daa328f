"""The cluster behind a proxy: routes, topics and groups with their age, and requests to brokers by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import ADMIN, BrokerHandler, Session, join
from skylark.errors import BrokerError, BrokerUnknown, RocketMQError
from skylark.protocol.bodies import MASTER_ID, PERM_READ, SubscriptionGroupConfig, TopicConfig
from skylark.protocol.codes import ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.frame_templates import SendTemplate
from skylark.protocol.request import Request
from skylark.protocol.requests.group import GetSubscriptionGroupConfig
from skylark.protocol.requests.name_server import GetBrokerClusterInfo
from skylark.protocol.requests.send import SendMessageV2
from skylark.protocol.requests.topic import GetTopicConfig
from skylark.remoting.connection_pool import ClientConnection, ConnectionPool
from skylark.remoting.link import Answer
from skylark.remoting.nearby import NearbyServer
from skylark.settings.client import ClientSettings, name_server_list

T = TypeVar("T")
Read = Callable[[Any], Any]
"""Makes the reply to a call of a broker's parsed reply, or of a RocketMQError instead of it."""

REQUEST_TIMEOUT_S = 3.0
"""Time for a request to a broker if the client set no deadline."""
TOPICS_MAX = 10_000
"""Topics whose routes are refreshed; more than that are only refreshed when a client asks for them."""
MISSING_CODES = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})
ROUTE_FRESH_S = 1.0
"""A route that is asked for is asked of the name servers if it is older than this."""

SUSPECT_S = 1.0
"""A broker that has sent nothing for so long, although a call waited for it that is given up, may be dead."""
REFUSALS = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""With them a broker answers that is no master any more."""

OnRequest = Callable[[Any, RemotingCommand], Answer | Awaitable[Answer]]


class Posted(asyncio.Future[Any]):
    """The reply to a call that waits for one reply of a broker. A coroutine would cost several times more."""

    def __init__(
        self, session: Session, connection: ClientConnection, request: Request[Any], read: Read
    ) -> None:
        super().__init__()
        self._session = session
        self._connection = connection
        self._request = request
        self._read = read
        self._sent_at = time.monotonic()
        self.opaque = 0

    def set_result(self, reply: RemotingCommand) -> None:
        """Called by the connection with the broker's reply."""
        if reply.code in REFUSALS:
            self._session.on_refusal(self._connection.address)
        try:
            result = self._request.result(reply)
        except RocketMQError as error:
            result = error
        self._finish(result)

    def set_exception(self, error: type | BaseException) -> None:
        """Called by the connection if it was lost."""
        self._finish(error)

    def _finish(self, result: Any) -> None:
        try:
            super().set_result(self._read(result))
        except Exception as error:  # noqa: BLE001 (must not end the connection, which others use)
            super().set_exception(error)

    def cancel(self, msg: Any = None) -> bool:
        """Give up: a reply that comes later is dropped."""
        if self.done():
            return False
        self._connection.forget(self.opaque)
        if time.monotonic() - self._sent_at >= SUSPECT_S:
            self._connection.suspect(self._sent_at)
        return super().cancel(msg)


class Cluster:
    """Brokers and topics, known through name servers. Loop thread; start it once, close it once."""

    kind = ADMIN
    group = "skylark-proxy"

    def __init__(self, settings: ClientSettings, fresh_ms: int, nearby: NearbyServer | None = None) -> None:
        """Topics and groups are asked for again after `fresh_ms`. `nearby` is a broker of this process."""
        self._settings = settings
        self._nearby = nearby
        self._fresh_s = fresh_ms / 1000
        self._session_or_none: Session | None = None
        self._topics: dict[str, float] = {}
        """When the route of a topic was last refreshed because a client asked for it."""
        self._configs: dict[tuple[type, str], tuple[float, Any]] = {}
        self._templates: dict[tuple[str, str | None, int], SendTemplate] = {}
        self._turn = 0

    async def start(self) -> None:
        """Raises SettingsError. Nothing is connected before the first request."""
        self._session_or_none = await join(
            self, self._settings, name_server_list("", self._settings), nearby=self._nearby
        )

    async def close(self) -> None:
        if self._session_or_none is not None:
            await self._session.leave(self)

    @property
    def _session(self) -> Session:
        assert self._session_or_none is not None, "not started"
        return self._session_or_none

    # --- A member of the session ---

    def heartbeat_data(self) -> None:
        return None

    def topics(self) -> Iterable[str]:
        return self._topics

    def on_route_change(self, route: TopicRoute) -> None: ...

    def on_connected(self, address: str) -> None: ...

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {}

    # --- Routes and configurations ---

    async def fresh_route(self, topic: str) -> TopicRoute:
        """Return the route as the name servers know it now. Raises NoRoute, RemotingError."""
        now = asyncio.get_running_loop().time()
        known = self._session.routes.get(topic)
        if known is not None and now - self._topics.get(topic, -self._fresh_s) < ROUTE_FRESH_S:
            return known
        route = await self._session.refresh_route(topic)
        if topic in self._topics or len(self._topics) < TOPICS_MAX:
            self._topics[topic] = now
        return route

    async def route(self, topic: str) -> TopicRoute:
        """Return a route that is at most a minute old. Raises NoRoute, RemotingError."""
        return self._session.routes.get(topic) or await self.fresh_route(topic)

    def known_topic(self, topic: str) -> tuple[TopicRoute, TopicConfig] | None:
        """Return route and configuration of a topic if nothing has to be asked for them."""
        route = self._session.routes.get(topic)
        asked_at, config = self._configs.get((TopicConfig, topic), (0.0, None))
        if route is None or config is None:
            return None
        is_fresh = time.monotonic() - asked_at < self._fresh_s
        return (route, config) if is_fresh else None

    async def topic_config(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic on one of its brokers, None if it has none there."""
        return await self._config(TopicConfig, topic, GetTopicConfig(topic), topic)

    async def group_config(self, group: str, topic: str) -> SubscriptionGroupConfig:
        """Return a group's configuration on a broker of this topic; that of a new group if it has none."""
        found = await self._config(SubscriptionGroupConfig, group, GetSubscriptionGroupConfig(group), topic)
        return found or SubscriptionGroupConfig(group_name=group)

    async def _config(self, kind: type[T], name: str, request: Request[T], topic: str) -> T | None:
        now = time.monotonic()
        asked_at, known = self._configs.get((kind, name), (None, None))
        if asked_at is not None and now - asked_at < self._fresh_s:
            return known
        try:
            route = await self.route(topic)
            brokers = sorted({each.broker_name for each in route.data.queue_datas})
            found: T | None = None
            if brokers:
                found = await self.call(brokers[0], request)
        except BrokerError as error:
            if error.code not in MISSING_CODES:
                raise
            found = None
        except RocketMQError:
            if asked_at is None:
                raise
            return known  # an old answer is better than none
        if len(self._configs) >= TOPICS_MAX:
            self._configs.clear()
        self._configs[kind, name] = (now, found)
        return found

    async def readable_broker(self, topic: str) -> str:
        """Return a broker to read this topic from, each in turn. Raises NoRoute, BrokerUnknown."""
        brokers = readable_brokers(await self.route(topic))
        if not brokers:
            raise BrokerUnknown("")
        self._turn += 1
        return brokers[self._turn % len(brokers)]

    async def masters(self, topics: Iterable[str]) -> set[str]:
        """Return the addresses of all masters of these topics; topics without a route have none."""
        found: set[str] = set()
        for topic in topics:
            try:
                route = await self.route(topic)
            except RocketMQError:
                continue
            for broker in route.data.broker_datas:
                if MASTER_ID in broker.broker_addrs:
                    found.add(broker.broker_addrs[MASTER_ID])
        return found

    def broker_at(self, address: str) -> str:
        """Return the name of the broker at this address; empty if no route has it."""
        return self._session.routes.broker_of(address) or ""

    # --- Requests ---

    async def call(self, broker: str, request: Request[T], *, timeout_s: float | None = None) -> T:
        """Call the master of a broker. Raises BrokerError, RemotingError, BrokerUnknown."""
        address = self._session.routes.master(broker)
        wait_s = REQUEST_TIMEOUT_S if timeout_s is None else timeout_s
        return await self._session.call(address, request, timeout_ms=wait_s * 1000)

    def connection(self, topic: str, broker: str) -> ClientConnection | None:
        """Return the connection to a broker's master if it is open and takes more, and the topic has a route.

        Raises BrokerUnknown.
        """
        if self._session.routes.get(topic) is None:
            return None
        found = self._session.pool.open_connection(self._session.routes.master(broker))
        return found if found is not None and found.is_writable else None

    def post(self, connection: ClientConnection, request: Request[Any], read: Read) -> Posted:
        """Send a request, and return the future reply to a call.

        Raises LocalProtocolError if too many requests wait on the connection.
        """
        posted = Posted(self._session, connection, request, read)
        if isinstance(request, SendMessageV2):
            posted.opaque = connection.reserve(posted)
            connection.write(
                *self._template(request).frame(
                    posted.opaque,
                    request.body,
                    properties=request.properties,
                    sys_flag=request.sys_flag,
                    born_ms=request.born_timestamp,
                )
            )
        else:
            posted.opaque = connection.post(request, posted)
        return posted

    def _template(self, request: SendMessageV2) -> SendTemplate:
        key = (request.topic, request.broker_name, request.queue_id)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= TOPICS_MAX:
                self._templates.clear()
            template = self._templates[key] = SendTemplate(
                group=request.producer_group,
                topic=request.topic,
                broker=request.broker_name or "",
                queue_id=request.queue_id,
                default_topic=request.default_topic,
                default_queues=request.default_topic_queue_nums,
                signer=self._session.signer,
            )
        return template

    async def call_any(self, request: Request[T]) -> T:
        """Call the first master of the cluster. Raises BrokerError, RemotingError, BrokerUnknown."""
        table = (await self._session.call_name_server(GetBrokerClusterInfo())).broker_addr_table
        masters = [table[name].broker_addrs.get(MASTER_ID) for name in sorted(table)]
        address = next((each for each in masters if each), None)
        if address is None:
            raise BrokerUnknown("any")
        return await self._session.call(address, request, timeout_ms=REQUEST_TIMEOUT_S * 1000)

    async def notify(self, broker: str, request: Request[Any]) -> None:
        """Send a one-way request to the master of a broker. Raises ConnectFailed, BrokerUnknown."""
        await self._session.notify(self._session.routes.master(broker), request)

    def open_pool(self, on_request: OnRequest, language: str, source: tuple[str, int]) -> ConnectionPool:
        """Return connections for one client of the proxy: a broker knows clients by their connection.

        A broker of this process shows `source` as the client's address, all others that of the proxy.
        """
        session = self._session
        return ConnectionPool(
            on_request=on_request,
            signer=session.signer,
            tls=session.tls,
            language=language,
            nearby=self._nearby,
            source=source,
        )


def readable_brokers(route: TopicRoute) -> list[str]:
    """Return the brokers with a master from which a topic can be read."""
    masters = {each.broker_name for each in route.data.broker_datas if MASTER_ID in each.broker_addrs}
    return sorted(
        each.broker_name
        for each in route.data.queue_datas
        if each.perm & PERM_READ and each.read_queue_nums > 0 and each.broker_name in masters
    )
