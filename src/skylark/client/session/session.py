"""Session: connections, name servers, routes and heartbeats shared by all clients of one client id.

It also dispatches requests of brokers to the member they are for. A session belongs to one event loop; it
starts with its first member and ends with its last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from weakref import WeakKeyDictionary

from msgspec import field

from skylark.client.received_message import ReceivedMessage
from skylark.client.retry import MASTER_PAUSE_S, MASTER_PAUSE_S_MAX
from skylark.client.session.fork_guard import ForkGuard
from skylark.client.session.routes import RouteCache, TopicRoute, limited
from skylark.errors import (
    BrokerError,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    CorruptRecord,
    GroupInUse,
    NoRoute,
    NotANameServer,
    RemotingError,
    RequestTimeout,
    RocketMQError,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.model.record import decode
from skylark.protocol.bodies import MASTER_ID, ConsumerData, HeartbeatData, ProducerData
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import BODY_MEMBER, RemotingCommand
from skylark.protocol.request import Request
from skylark.protocol.requests.client import HeartbeatReply, UnregisterClient
from skylark.protocol.requests.name_server import GetRouteInfoByTopic
from skylark.protocol.signature import Signer
from skylark.remoting.address import local_ip
from skylark.remoting.connection_pool import ClientConnection, ConnectionPool
from skylark.remoting.link import Answer
from skylark.remoting.tls_client import ClientTls
from skylark.settings.client import UNNAMED_INSTANCE, ClientSettings
from skylark.settings.credentials import Credentials, client_credentials
from skylark.settings.tls import ClientTlsSettings, client_tls_settings
from skylark.tasks import Tasks

if TYPE_CHECKING:
    from skylark.remoting.nearby import NearbyServer

log = logging.getLogger(__name__)

T = TypeVar("T")
# Takes a broker's request and the broker's address; errors become error replies.
BrokerHandler = Callable[[RemotingCommand, str], Answer | Awaitable[Answer]]

PRODUCER = "producer"
CONSUMER = "consumer"
ADMIN = "adminExt"
FIRST_HEARTBEAT_MS = 1000
ROUTE_CODES = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""Requests that every name server answers, and no broker."""
WARNING_INTERVAL_S = 60.0
"""Least interval of warnings that members of a group have different subscriptions."""
PRODUCER_GROUP_PROPERTY = "PGROUP"
FOLLOW_S = 10.0
"""How long the next master of a lost broker is looked for."""
DOUBT_S = 1.0
"""How long the next master of a broker that refuses is looked for: it may only be busy."""
DOUBT_INTERVAL_S = 5.0
"""Least time between two such searches for one broker."""


class Member(Protocol):
    """A producer, consumer or admin of a session. Called on the session's loop; must not block."""

    @property
    def kind(self) -> str:
        """PRODUCER, CONSUMER or ADMIN."""

    @property
    def group(self) -> str:
        """The group with its namespace."""

    def heartbeat_data(self) -> ProducerData | ConsumerData | None:
        """Return this member's part of heartbeats; None for none."""

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes the session refreshes."""

    def on_route_change(self, route: TopicRoute) -> None:
        """Called when the route of any topic of the session is new or has changed."""

    def on_connected(self, address: str) -> None:
        """Called after the first heartbeat on a new connection: consumers rebalance."""

    def handlers(self) -> Mapping[int, BrokerHandler]:
        """Return the handlers of broker requests by code (40, 220, 221, 307, 309; producers: 39, 326)."""


class _Heartbeat(Request[tuple[int, str | None]], frozen=True):
    """A heartbeat whose reply carries the broker's version, and groups with different subscriptions."""

    code: ClassVar[RequestCode] = RequestCode.HEART_BEAT
    body: HeartbeatData = field(name=BODY_MEMBER)

    def parse(self, reply: RemotingCommand) -> tuple[int, str | None]:
        return reply.version, HeartbeatReply.from_fields(reply.fields).different_subscriptions


class Session:
    """Connections and routes of one client id. Created by `join` only."""

    def __init__(
        self,
        client_id: str,
        name_servers: tuple[str, ...],
        settings: ClientSettings,
        credentials: Credentials | None = None,
        tls: ClientTlsSettings | None = None,
        nearby: NearbyServer | None = None,
    ) -> None:
        self.client_id = client_id
        self.settings = settings
        self.signer = None if credentials is None else Signer(credentials)
        self.tls = None if tls is None else ClientTls(tls)
        self.routes = RouteCache()
        self.tasks = Tasks()
        self.pool = ConnectionPool(
            on_request=self._on_request,
            on_open=self._on_open,
            on_lost=self._on_lost,
            signer=self.signer,
            connect_timeout_s=settings.connect_timeout_ms / 1000,
            tls=self.tls,
            nearby=nearby,
        )
        self.awaited_replies: dict[str, asyncio.Future[ReceivedMessage]] = {}  # by correlation id
        self._name_servers = random.sample(name_servers, len(name_servers))
        self._members: dict[tuple[str, str], Member] = {}
        self._refreshing: dict[str, asyncio.Task[TopicRoute]] = {}
        self._heartbeats_in_progress: set[str] = set()
        self._followed: set[str] = set()  # brokers whose next master is being looked for
        self._doubted: dict[str, float] = {}  # when a broker that refused may be looked for again
        self._heartbeat_lock = asyncio.Lock()
        self._warned_at = -math.inf
        self._fork_guard = ForkGuard()
        self._started = False
        self._closed = False

    # --- Members ---

    def _add(self, member: Member) -> None:
        key = (member.kind, member.group)
        if key in self._members:
            raise GroupInUse(*key)
        self._members[key] = member
        if not self._started:
            self._started = True
            settings = self.settings
            self.tasks.every(settings.route_refresh_interval_ms, self.refresh_routes, "refresh routes")
            self.tasks.every(
                settings.heartbeat_interval_ms,
                self._clean_and_heartbeat,
                "heartbeat",
                first_ms=min(FIRST_HEARTBEAT_MS, settings.heartbeat_interval_ms),
            )

    async def leave(self, member: Member) -> None:
        """Remove and unregister a member; the session ends with its last member."""
        self.check_process()
        if self._members.get((member.kind, member.group)) is not member:
            return
        del self._members[member.kind, member.group]
        is_last = not self._members
        if is_last:
            _forget(self)  # new members get a new session
        try:
            if member.kind in (PRODUCER, CONSUMER):
                await self._unregister(member)
        finally:
            if is_last:
                self._closed = True
                for task in list(self._refreshing.values()):
                    task.cancel()
                await self.tasks.close()
                await self.pool.close()

    def member(self, kind: str, group: str) -> Member | None:
        return self._members.get((kind, group))

    async def _unregister(self, member: Member) -> None:
        request = UnregisterClient(
            client_id=self.client_id,
            producer_group=member.group if member.kind == PRODUCER else None,
            consumer_group=member.group if member.kind == CONSUMER else None,
        )
        addresses = [
            address
            for replicas in self.routes.brokers().values()
            for address in replicas.values()
            if self.pool.open_connection(address) is not None
        ]
        results = await asyncio.gather(
            *(self.call(address, request) for address in addresses), return_exceptions=True
        )
        for address, result in zip(addresses, results, strict=True):
            if isinstance(result, RocketMQError):
                log.info("unregister failed address=%s error=%s", address, result)
            elif isinstance(result, BaseException):
                raise result

    def check_process(self) -> None:
        """Raises ForkedClient in a forked child of the process that created the session."""
        self._fork_guard.check(f"client {self.client_id}")

    # --- Calls ---

    async def call(self, address: str, request: Request[T], *, timeout_ms: float | None = None) -> T:
        """Call a broker. Raises BrokerError, RemotingError, ProtocolError, ClientClosed, ForkedClient."""
        self.check_process()
        if self._closed:
            raise ClientClosed(f"client {self.client_id}")
        timeout_s = (self.settings.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        started = asyncio.get_running_loop().time()
        try:
            return await self.pool.call(address, request, timeout_s=timeout_s)
        except ConnectFailed as error:
            raise self.explained(error) from None
        except (SystemBusy, ServiceNotAvailable):
            self.on_refusal(address)
            raise
        except RequestTimeout:
            connection = self.pool.open_connection(address)
            if connection is not None:
                connection.suspect(started)
            raise

    async def notify(self, address: str, request: Request[Any]) -> None:
        """Send a one-way request to a broker. Raises ConnectFailed, ClientClosed, ForkedClient."""
        connection = await self.connection(address)
        await connection.wait_writable()
        connection.notify(request)

    async def connection(self, address: str) -> ClientConnection:
        """Return the connection to a broker, opened if needed. Raises ConnectFailed, ClientClosed."""
        self.check_process()
        try:
            return await self.pool.connection(address)
        except ConnectFailed as error:
            raise self.explained(error) from None

    async def call_name_server(self, request: Request[T], *, timeout_ms: float | None = None) -> T:
        """Call the name server that replied last, then each other one once.

        Raises BrokerError, NotANameServer, and the last RemotingError if none replies.
        """
        servers_left = len(self._name_servers)
        may_reconnect = True
        while True:
            address = self._name_servers[0]
            try:
                return await self.call(address, request, timeout_ms=timeout_ms)
            except BrokerError as error:
                if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and request.code in ROUTE_CODES:
                    raise NotANameServer(address, request.code.name) from None
                raise
            except RemotingError as error:
                if may_reconnect and isinstance(error, ConnectionLost):
                    may_reconnect = False  # it may have restarted and be back
                    continue
                if self._name_servers[0] == address:  # otherwise another call has rotated the list already
                    self._name_servers.append(self._name_servers.pop(0))
                servers_left -= 1
                if not servers_left:
                    if isinstance(error, ConnectFailed):
                        raise replace(error, broker="", is_name_server=True) from None
                    raise
                log.warning("name server failed, asking the next address=%s error=%s", address, error)

    def explained(self, error: ConnectFailed) -> ConnectFailed:
        """Add to a failed connection which broker it was for."""
        return replace(error, broker=self.routes.broker_of(error.address) or "")

    # --- Routes ---

    async def find_route(self, topic: str) -> TopicRoute:
        """Return the cached route, or query it. Raises NoRoute, RemotingError, BrokerError."""
        return self.routes.get(topic) or await self.refresh_route(topic)

    async def refresh_route(self, topic: str) -> TopicRoute:
        """Query a route now and notify members of changes. Concurrent calls share one query.

        Raises NoRoute, RemotingError, BrokerError.
        """
        task = self._refreshing.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._refresh(topic))
            self._refreshing[topic] = task
            task.add_done_callback(lambda done: self._refreshed(topic, done))
        try:
            # Shielded: a cancelled caller must not cancel the query of the others.
            return await asyncio.shield(task)
        except RocketMQError as error:
            error.shorten()
            raise

    def _refreshed(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        del self._refreshing[topic]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if all callers are gone

    async def default_route(self, topic: str, queues_max: int) -> TopicRoute:
        """Return the route on which a missing topic is auto-created by sending to it.

        Raises NoRoute if brokers do not auto-create topics, RemotingError, BrokerError.
        """
        default = await self.refresh_route(AUTO_CREATE_TOPIC)
        return TopicRoute.of(topic, limited(default.data, queues_max))

    async def refresh_routes(self) -> None:
        """Refresh the routes of all topics of the members. Failures are logged."""
        topics = {topic for member in self._members.values() for topic in member.topics()}
        if self.routes.get(AUTO_CREATE_TOPIC) is not None:
            topics.add(AUTO_CREATE_TOPIC)
        for topic in sorted(topics):
            try:
                await self.refresh_route(topic)
            except NoRoute:
                log.info("topic has no route topic=%s", topic)
            except RemotingError as error:  # for the other topics, too
                log.warning("no name server replies, routes were not refreshed error=%s", error)
                return
            except RocketMQError as error:
                log.warning("route was not refreshed topic=%s error=%s", topic, error)

    async def _refresh(self, topic: str) -> TopicRoute:
        try:
            data = await self.call_name_server(GetRouteInfoByTopic(topic))
        except TopicNotExist:
            raise NoRoute(topic) from None
        news = self.routes.update(topic, data)
        if news is not None:
            log.info("route changed topic=%s brokers=%d", topic, len(data.broker_datas))
            for member in list(self._members.values()):
                member.on_route_change(news)
        route = self.routes.get(topic)
        assert route is not None
        return route

    # --- Heartbeats ---

    async def heartbeat(self) -> bool:
        """Send heartbeats to all known brokers, to slaves only for consumers. True if any has succeeded."""
        async with self._heartbeat_lock:
            data = self._heartbeat_data()
            if data is None:
                return False
            addresses = [
                address
                for replicas in self.routes.brokers().values()
                for broker_id, address in replicas.items()
                if broker_id == MASTER_ID or data.consumer_data_set
            ]
            return any(await asyncio.gather(*(self._heartbeat_to(address, data) for address in addresses)))

    def _heartbeat_data(self) -> HeartbeatData | None:
        parts = [member.heartbeat_data() for member in self._members.values()]
        producers = [data for data in parts if isinstance(data, ProducerData)]
        consumers = [data for data in parts if isinstance(data, ConsumerData)]
        if not producers and not consumers:
            return None
        return HeartbeatData(self.client_id, producers, consumers)

    async def _heartbeat_to(self, address: str, data: HeartbeatData) -> bool:
        self._heartbeats_in_progress.add(address)
        try:
            version, different_subscriptions = await self.call(address, _Heartbeat(data))
        except RocketMQError as error:
            log.warning("heartbeat failed address=%s error=%s", address, error)
            return False
        else:
            self.routes.note_version(address, version)
            if different_subscriptions is not None:
                self._warn_of_subscriptions(different_subscriptions)
            return True
        finally:
            self._heartbeats_in_progress.discard(address)

    def _warn_of_subscriptions(self, found: str) -> None:
        """Log it once a minute: every broker tells it with every heartbeat."""
        now = time.monotonic()
        if now - self._warned_at >= WARNING_INTERVAL_S:
            self._warned_at = now
            log.warning(
                "members of a group have different subscriptions, so messages are skipped; give all members "
                "of a group the same topics and expressions, or each its own group: %s",
                found,
            )

    async def _clean_and_heartbeat(self) -> None:
        for address in self.routes.clean():
            log.info("broker removed, not in any route address=%s", address)
            self.pool.drop(address)
        await self.heartbeat()

    def _on_open(self, address: str) -> None:
        """Send a heartbeat on a new connection, so that the broker need not wait for the next regular one."""
        if self.routes.broker_of(address) is not None:
            self.tasks.spawn(self._greet(address), f"greet {address}")

    async def _greet(self, address: str) -> None:
        data = self._heartbeat_data()
        if data is None or address in self._heartbeats_in_progress:
            return
        if await self._heartbeat_to(address, data):
            for member in list(self._members.values()):
                member.on_connected(address)

    # --- Lost brokers ---

    def _on_lost(self, address: str) -> None:
        """Find the next master of a broker whose connection was lost, unless its address is out of use."""
        broker = self._mastered_by(address)
        if broker is not None:
            is_back = lambda: self.pool.open_connection(address) is not None  # noqa: E731
            self._followed.add(broker)
            self.tasks.spawn(self._follow(broker, address, FOLLOW_S, is_back), f"follow {broker}")

    def on_refusal(self, address: str) -> None:
        """Find the next master of a broker that answers as a slave does, and may be one now."""
        broker, now = self._mastered_by(address), asyncio.get_running_loop().time()
        if broker is None:
            return
        if now >= self._doubted.get(broker, 0.0) or self._master_of(broker) is None:
            self._doubted[broker] = now + DOUBT_INTERVAL_S
            self._followed.add(broker)
            self.tasks.spawn(self._follow(broker, address, DOUBT_S, lambda: False), f"follow {broker}")

    def _mastered_by(self, address: str) -> str | None:
        """Return the broker with this master, or with none, unless the next one is being looked for."""
        broker = self.routes.broker_of(address)
        if broker is None or broker in self._followed or self._closed:
            return None
        return broker if self._master_of(broker) in (None, address) else None

    def _master_of(self, broker: str) -> str | None:
        return self.routes.brokers().get(broker, {}).get(MASTER_ID)

    async def _follow(self, broker: str, lost: str, for_s: float, is_back: Callable[[], bool]) -> None:
        """Refresh the routes of a broker until they name another master, or the old one is back.

        Gives up after `for_s`: the regular refresh goes on.
        """
        loop = asyncio.get_running_loop()
        end, wait_s = loop.time() + for_s, MASTER_PAUSE_S
        try:
            while loop.time() < end:
                topics = self.routes.topics_of(broker)
                await self._refresh_some(topics[:1])  # one topic tells about the broker
                master = self._master_of(broker)
                if master is not None and (master != lost or is_back()):
                    await self._refresh_some(topics[1:])
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, MASTER_PAUSE_S_MAX)
        finally:
            self._followed.discard(broker)

    async def _refresh_some(self, topics: Iterable[str]) -> None:
        for topic in topics:
            with contextlib.suppress(RocketMQError):
                await self.refresh_route(topic)

    # --- Requests of brokers ---

    def _on_request(
        self, connection: ClientConnection, command: RemotingCommand
    ) -> Answer | Awaitable[Answer]:
        for member in self._addressed(command):
            handler = member.handlers().get(command.code)
            if handler is not None:
                return handler(command, connection.address)
        if command.code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
            group = command.fields.get("consumerGroup")
            remark = f"The Consumer Group <{group}> not exist in this consumer"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        log.info("unhandled request of broker code=%d address=%s", command.code, connection.address)
        return None

    def _addressed(self, command: RemotingCommand) -> Iterable[Member]:
        """Return the members that a broker's request is for: one, or all producers for a pushed reply."""
        code = command.code
        if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return [member for member in self._members.values() if member.kind == PRODUCER]
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            try:
                group = decode(command.body).properties.get(PRODUCER_GROUP_PROPERTY, "")
            except CorruptRecord as error:
                log.warning("cannot read half message error=%s", error)
                return []
            found = self.member(PRODUCER, group)
        else:
            group = command.fields.get("consumerGroup") or command.fields.get("group", "")
            found = self.member(CONSUMER, group)
        return [] if found is None else [found]


# --- Sharing ---

_Key = tuple[str, frozenset[str], Credentials | None, ClientTlsSettings | None]
_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, Session]] = WeakKeyDictionary()


async def join(
    member: Member,
    settings: ClientSettings,
    name_servers: tuple[str, ...],
    *,
    keep_default_name: bool = False,
    is_stream: bool = False,
    nearby: NearbyServer | None = None,
) -> Session:
    """Add a member to the session of its client id on the running loop, and send a heartbeat.

    Clients with the same explicit instance name, name servers, credentials and TLS share a session, with the
    settings of the first. Unnamed clients get a session each, unless `keep_default_name` (broadcasting
    consumers, whose offset files need a stable id). A new session reaches a `nearby` server without a socket.
    Raises GroupInUse, SettingsError.
    """
    client_id = client_id_of(settings, keep_default_name=keep_default_name, is_stream=is_stream)
    sessions = _sessions.setdefault(asyncio.get_running_loop(), {})
    credentials = client_credentials(settings)
    tls = client_tls_settings(settings)
    key = (client_id, frozenset(name_servers), credentials, tls)
    session = sessions.get(key)
    if session is None:
        session = sessions[key] = Session(client_id, name_servers, settings, credentials, tls, nearby)
    session.check_process()
    session._add(member)
    try:
        if session.routes.brokers():
            await session.heartbeat()
    except BaseException:
        await session.leave(member)
        raise
    return session


def client_id_of(
    settings: ClientSettings, *, keep_default_name: bool = False, is_stream: bool = False
) -> str:
    """Return `ip@instance[@unit][@STREAM]`, where an unnamed instance becomes `pid#nanoseconds`."""
    instance = settings.instance_name
    if instance == UNNAMED_INSTANCE and not keep_default_name:
        instance = f"{os.getpid()}#{time.monotonic_ns()}"
    parts = [settings.client_ip or local_ip(), instance, settings.unit_name, "STREAM" if is_stream else ""]
    return "@".join(part for part in parts if part)


def _forget(session: Session) -> None:
    """Remove the session from the running loop's table; other loops' tables belong to other threads."""
    sessions = _sessions.get(asyncio.get_running_loop(), {})
    for key, known in list(sessions.items()):
        if known is session:
            del sessions[key]
