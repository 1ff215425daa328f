"""`AsyncAdmin` for one event loop and `Admin` for threads: administration by noun, such as `admin.topics`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from skylark.admin.brokers import AsyncBrokers, AsyncNameServers
from skylark.admin.clients import AsyncClients
from skylark.admin.controllers import AsyncControllers
from skylark.admin.dead_letters import AsyncDeadLetters
from skylark.admin.groups import AsyncGroups
from skylark.admin.leases import AsyncLeases
from skylark.admin.messages import AsyncMessages
from skylark.admin.offsets import AsyncOffsets
from skylark.admin.overview import AsyncOverview
from skylark.admin.pipelines import AsyncPipelines
from skylark.admin.server_calls import ServerCalls
from skylark.admin.topics import AsyncLiteTopics, AsyncTopics
from skylark.admin.users import AsyncAcls, AsyncUsers
from skylark.client.blocking_client import BlockingClient
from skylark.client.session.routes import TopicRoute
from skylark.client.session.session import ADMIN, BrokerHandler, join
from skylark.errors import AlreadyStarted
from skylark.settings.client import ClientSettings, name_server_list

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")

ADMIN_GROUP = "admin_ext_group"
TIMEOUT_MS = 5000


class _AdminMembership:
    """Membership in a session without topics or heartbeats."""

    kind = ADMIN
    group = ADMIN_GROUP

    def heartbeat_data(self) -> None:
        return None

    def topics(self) -> Iterable[str]:
        return ()

    def on_route_change(self, route: TopicRoute) -> None: ...

    def on_connected(self, address: str) -> None: ...

    def handlers(self) -> Mapping[int, BrokerHandler]:
        return {}


class AsyncAdmin:
    """Administers a cluster. Owned by one event loop; `Admin` is for threads.

    >>> async with Admin(namesrv="127.0.0.1:9876") as admin:
    ...     await admin.topics.create("orders", queues=4)
    ...     progress = await admin.groups.progress("billing")
    """

    def __init__(
        self, *, namesrv: str = "", client: ClientSettings | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """`namesrv` is `a:9876;b:9876`; if empty, the settings or the variable NAMESRV_ADDR count.

        `timeout_ms` is for each answer. Raises SettingsError.
        """
        self._settings = client or ClientSettings()
        self._servers = ServerCalls(name_server_list(namesrv, self._settings), timeout_ms)
        self._membership = _AdminMembership()
        self._state = "CREATE_JUST"
        self.brokers = AsyncBrokers(self._servers)
        self.topics = AsyncTopics(self._servers)
        self.groups = AsyncGroups(self._servers)
        self.lite_topics = AsyncLiteTopics(self._servers)
        self.clients = AsyncClients(self._servers)
        self.offsets = AsyncOffsets(self._servers)
        self.messages = AsyncMessages(self._servers, self.groups, self.clients)
        self.dead_letters = AsyncDeadLetters(self._servers, self.messages, self.offsets)
        self.overview = AsyncOverview(self.brokers, self.topics, self.groups, self.dead_letters)
        self.pipelines = AsyncPipelines(self.messages)
        self.leases = AsyncLeases(self._servers, self.groups)
        self.name_servers = AsyncNameServers(self._servers)
        self.controllers = AsyncControllers(self._servers)
        self.users = AsyncUsers(self._servers)
        self.acls = AsyncAcls(self._servers)

    async def start(self) -> Self:
        """Connections are opened by the first request. Raises AlreadyStarted, GroupInUse."""
        if self._state != "CREATE_JUST":
            raise AlreadyStarted("admin", self._state)
        self._servers.session = await join(self._membership, self._settings, self._servers.name_servers)
        self._state = "RUNNING"
        return self

    async def stop(self) -> None:
        """Close all connections. Idempotent."""
        session, self._servers.session = self._servers.session, None
        if session is not None:
            self._state = "SHUTDOWN_ALREADY"
            self.leases.close()
            await session.leave(self._membership)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


# --- Blocking ---


class _Part(Generic[Inner]):
    """A part of `Admin`: methods that wait for those of the asyncio part."""

    def __init__(self, face: Admin, inner: Inner) -> None:
        self._face = face
        self._inner = inner


def _waiting(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Part[Inner], P], T]:
    """The blocking version of a method."""

    @functools.wraps(method)
    def call(self: _Part[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._face.wait_for(method(self._inner, *args, **kwargs))

    return call


class Brokers(_Part[AsyncBrokers]):
    nodes = _waiting(AsyncBrokers.nodes)
    clusters = _waiting(AsyncBrokers.clusters)
    summary = _waiting(AsyncBrokers.summary)
    replicas = _waiting(AsyncBrokers.replicas)
    runtime = _waiting(AsyncBrokers.runtime)
    consume_stats = _waiting(AsyncBrokers.consume_stats)
    stats = _waiting(AsyncBrokers.stats)
    replication = _waiting(AsyncBrokers.replication)
    replication_addresses = _waiting(AsyncBrokers.replication_addresses)
    hand_over = _waiting(AsyncBrokers.hand_over)
    epochs = _waiting(AsyncBrokers.epochs)
    timers = _waiting(AsyncBrokers.timers)
    switch_timer_engine = _waiting(AsyncBrokers.switch_timer_engine)
    config = _waiting(AsyncBrokers.config)
    config_version = _waiting(AsyncBrokers.config_version)
    update_config = _waiting(AsyncBrokers.update_config)
    wipe_write_permission = _waiting(AsyncBrokers.wipe_write_permission)
    add_write_permission = _waiting(AsyncBrokers.add_write_permission)
    clean_queues = _waiting(AsyncBrokers.clean_queues)
    clean_topics = _waiting(AsyncBrokers.clean_topics)
    delete_expired_log = _waiting(AsyncBrokers.delete_expired_log)
    reset_master_flush_offset = _waiting(AsyncBrokers.reset_master_flush_offset)
    cold_reads = _waiting(AsyncBrokers.cold_reads)
    limit_cold_reads = _waiting(AsyncBrokers.limit_cold_reads)
    unlimit_cold_reads = _waiting(AsyncBrokers.unlimit_cold_reads)
    set_read_ahead = _waiting(AsyncBrokers.set_read_ahead)
    check_rocksdb_queues = _waiting(AsyncBrokers.check_rocksdb_queues)
    export_rocksdb_config = _waiting(AsyncBrokers.export_rocksdb_config)
    export_pops = _waiting(AsyncBrokers.export_pops)


class Topics(_Part[AsyncTopics]):
    create = _waiting(AsyncTopics.create)
    create_all = _waiting(AsyncTopics.create_all)
    update = _waiting(AsyncTopics.update)
    delete = _waiting(AsyncTopics.delete)
    names = _waiting(AsyncTopics.names)
    system = _waiting(AsyncTopics.system)
    units = _waiting(AsyncTopics.units)
    unit_subscriptions = _waiting(AsyncTopics.unit_subscriptions)
    config = _waiting(AsyncTopics.config)
    on_broker = _waiting(AsyncTopics.on_broker)
    on_brokers = _waiting(AsyncTopics.on_brokers)
    route = _waiting(AsyncTopics.route)
    queues = _waiting(AsyncTopics.queues)
    stats = _waiting(AsyncTopics.stats)
    groups = _waiting(AsyncTopics.groups)
    order = _waiting(AsyncTopics.order)
    set_order = _waiting(AsyncTopics.set_order)


class LiteTopics(_Part[AsyncLiteTopics]):
    on_broker = _waiting(AsyncLiteTopics.on_broker)
    parent = _waiting(AsyncLiteTopics.parent)
    find = _waiting(AsyncLiteTopics.find)
    subscriptions = _waiting(AsyncLiteTopics.subscriptions)
    lag = _waiting(AsyncLiteTopics.lag)
    look_again = _waiting(AsyncLiteTopics.look_again)


class Groups(_Part[AsyncGroups]):
    create = _waiting(AsyncGroups.create)
    create_all = _waiting(AsyncGroups.create_all)
    update = _waiting(AsyncGroups.update)
    delete = _waiting(AsyncGroups.delete)
    set_readable = _waiting(AsyncGroups.set_readable)
    is_readable = _waiting(AsyncGroups.is_readable)
    set_request_mode = _waiting(AsyncGroups.set_request_mode)
    request_modes = _waiting(AsyncGroups.request_modes)
    names = _waiting(AsyncGroups.names)
    config = _waiting(AsyncGroups.config)
    ensure = _waiting(AsyncGroups.ensure)
    on_broker = _waiting(AsyncGroups.on_broker)
    progress = _waiting(AsyncGroups.progress)
    topics = _waiting(AsyncGroups.topics)
    subscription = _waiting(AsyncGroups.subscription)
    time_spans = _waiting(AsyncGroups.time_spans)


class Clients(_Part[AsyncClients]):
    consumers = _waiting(AsyncClients.consumers)
    producers = _waiting(AsyncClients.producers)
    all_producers = _waiting(AsyncClients.all_producers)
    running_info = _waiting(AsyncClients.running_info)
    owners = _waiting(AsyncClients.owners)
    positions = _waiting(AsyncClients.positions)
    consume_directly = _waiting(AsyncClients.consume_directly)


class Offsets(_Part[AsyncOffsets]):
    begin = _waiting(AsyncOffsets.begin)
    end = _waiting(AsyncOffsets.end)
    at_time = _waiting(AsyncOffsets.at_time)
    earliest_time_ms = _waiting(AsyncOffsets.earliest_time_ms)
    committed = _waiting(AsyncOffsets.committed)
    preview = _waiting(AsyncOffsets.preview)
    commit = _waiting(AsyncOffsets.commit)
    reset = _waiting(AsyncOffsets.reset)
    reset_queue = _waiting(AsyncOffsets.reset_queue)
    skip = _waiting(AsyncOffsets.skip)
    clone = _waiting(AsyncOffsets.clone)
    slowest = _waiting(AsyncOffsets.slowest)


class Messages(_Part[AsyncMessages]):
    get = _waiting(AsyncMessages.get)
    by_offset_id = _waiting(AsyncMessages.by_offset_id)
    at = _waiting(AsyncMessages.at)
    by_key = _waiting(AsyncMessages.by_key)
    by_unique_key = _waiting(AsyncMessages.by_unique_key)
    between = _waiting(AsyncMessages.between)
    since = _waiting(AsyncMessages.since)
    newest = _waiting(AsyncMessages.newest)
    units = _waiting(AsyncMessages.units)
    track = _waiting(AsyncMessages.track)
    resume_check = _waiting(AsyncMessages.resume_check)


class DeadLetters(_Part[AsyncDeadLetters]):
    count = _waiting(AsyncDeadLetters.count)
    counts = _waiting(AsyncDeadLetters.counts)
    find = _waiting(AsyncDeadLetters.find)
    resend = _waiting(AsyncDeadLetters.resend)
    resend_edited = _waiting(AsyncDeadLetters.resend_edited)


class Overview(_Part[AsyncOverview]):
    topic_names = _waiting(AsyncOverview.topic_names)
    group_names = _waiting(AsyncOverview.group_names)
    group_states = _waiting(AsyncOverview.group_states)


class Pipelines(_Part[AsyncPipelines]):
    jobs = _waiting(AsyncPipelines.jobs)
    runs = _waiting(AsyncPipelines.runs)


class Leases(_Part[AsyncLeases]):
    receive = _waiting(AsyncLeases.receive)
    ack = _waiting(AsyncLeases.ack)
    hide = _waiting(AsyncLeases.hide)


class NameServers(_Part[AsyncNameServers]):
    known = _waiting(AsyncNameServers.known)
    config = _waiting(AsyncNameServers.config)
    update_config = _waiting(AsyncNameServers.update_config)
    get = _waiting(AsyncNameServers.get)
    table = _waiting(AsyncNameServers.table)
    put = _waiting(AsyncNameServers.put)
    delete = _waiting(AsyncNameServers.delete)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._inner.addresses


class Controllers(_Part[AsyncControllers]):
    metadata = _waiting(AsyncControllers.metadata)
    leader = _waiting(AsyncControllers.leader)
    replicas = _waiting(AsyncControllers.replicas)
    elect = _waiting(AsyncControllers.elect)
    clean = _waiting(AsyncControllers.clean)
    config = _waiting(AsyncControllers.config)
    update_config = _waiting(AsyncControllers.update_config)


class Users(_Part[AsyncUsers]):
    create = _waiting(AsyncUsers.create)
    update = _waiting(AsyncUsers.update)
    delete = _waiting(AsyncUsers.delete)
    get = _waiting(AsyncUsers.get)
    list = _waiting(AsyncUsers.list)


class Acls(_Part[AsyncAcls]):
    create = _waiting(AsyncAcls.create)
    update = _waiting(AsyncAcls.update)
    delete = _waiting(AsyncAcls.delete)
    get = _waiting(AsyncAcls.get)
    list = _waiting(AsyncAcls.list)


class Admin(BlockingClient[AsyncAdmin]):
    """Administers a cluster. Thread-safe; methods wait for the answers.

    >>> with Admin(namesrv="127.0.0.1:9876") as admin:
    ...     admin.topics.create("orders", queues=4)
    ...     print(admin.groups.progress("billing").lag)
    """

    def __init__(
        self, *, namesrv: str = "", client: ClientSettings | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """As `skylark.aio.Admin`. Raises SettingsError."""
        inner = AsyncAdmin(namesrv=namesrv, client=client, timeout_ms=timeout_ms)
        super().__init__(inner, "admin")

        self.brokers = Brokers(self, inner.brokers)
        self.topics = Topics(self, inner.topics)
        self.groups = Groups(self, inner.groups)
        self.lite_topics = LiteTopics(self, inner.lite_topics)
        self.clients = Clients(self, inner.clients)
        self.offsets = Offsets(self, inner.offsets)
        self.messages = Messages(self, inner.messages)
        self.dead_letters = DeadLetters(self, inner.dead_letters)
        self.overview = Overview(self, inner.overview)
        self.pipelines = Pipelines(self, inner.pipelines)
        self.leases = Leases(self, inner.leases)
        self.name_servers = NameServers(self, inner.name_servers)
        self.controllers = Controllers(self, inner.controllers)
        self.users = Users(self, inner.users)
        self.acls = Acls(self, inner.acls)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine on the admin's loop. Raises ClientClosed, ForkedClient."""
        return self._wait(work)
