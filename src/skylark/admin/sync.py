"""The blocking face of `Admin`: the same operations, method by method, for threads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from skylark.admin import (
    admin,
    brokers,
    clients,
    dead_letters,
    groups,
    messages,
    name_servers,
    offsets,
    topics,
)
from skylark.admin.admin import TIMEOUT_MS
from skylark.client.blocking_client import BlockingClient
from skylark.settings.client import ClientSettings

P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner")


class _Part(Generic[Inner]):
    """One part of an admin, whose methods wait."""

    def __init__(self, face: Admin, inner: Inner) -> None:
        self._face = face
        self._inner = inner


def _waiting(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Part[Inner], P], T]:
    """The blocking twin of a part's method."""

    @functools.wraps(method)
    def call(self: _Part[Inner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._face.wait_for(method(self._inner, *args, **kwargs))

    return call


class Brokers(_Part[brokers.AsyncBrokers]):
    """See `brokers.Brokers`."""

    nodes = _waiting(brokers.AsyncBrokers.nodes)
    clusters = _waiting(brokers.AsyncBrokers.clusters)
    summary = _waiting(brokers.AsyncBrokers.summary)
    replicas = _waiting(brokers.AsyncBrokers.replicas)
    runtime = _waiting(brokers.AsyncBrokers.runtime)
    consume_stats = _waiting(brokers.AsyncBrokers.consume_stats)
    stats = _waiting(brokers.AsyncBrokers.stats)
    replication = _waiting(brokers.AsyncBrokers.replication)
    replication_addresses = _waiting(brokers.AsyncBrokers.replication_addresses)
    epochs = _waiting(brokers.AsyncBrokers.epochs)
    timers = _waiting(brokers.AsyncBrokers.timers)
    config = _waiting(brokers.AsyncBrokers.config)
    config_version = _waiting(brokers.AsyncBrokers.config_version)
    update_config = _waiting(brokers.AsyncBrokers.update_config)
    wipe_write_permission = _waiting(brokers.AsyncBrokers.wipe_write_permission)
    add_write_permission = _waiting(brokers.AsyncBrokers.add_write_permission)
    clean_queues = _waiting(brokers.AsyncBrokers.clean_queues)
    clean_topics = _waiting(brokers.AsyncBrokers.clean_topics)
    delete_expired_log = _waiting(brokers.AsyncBrokers.delete_expired_log)
    reset_master_flush_offset = _waiting(brokers.AsyncBrokers.reset_master_flush_offset)
    cold_reads = _waiting(brokers.AsyncBrokers.cold_reads)
    limit_cold_reads = _waiting(brokers.AsyncBrokers.limit_cold_reads)
    unlimit_cold_reads = _waiting(brokers.AsyncBrokers.unlimit_cold_reads)
    set_read_ahead = _waiting(brokers.AsyncBrokers.set_read_ahead)
    check_rocksdb_queues = _waiting(brokers.AsyncBrokers.check_rocksdb_queues)
    export_rocksdb_config = _waiting(brokers.AsyncBrokers.export_rocksdb_config)
    export_pops = _waiting(brokers.AsyncBrokers.export_pops)


class Topics(_Part[topics.AsyncTopics]):
    """See `topics.Topics`."""

    create = _waiting(topics.AsyncTopics.create)
    create_all = _waiting(topics.AsyncTopics.create_all)
    update = _waiting(topics.AsyncTopics.update)
    delete = _waiting(topics.AsyncTopics.delete)
    names = _waiting(topics.AsyncTopics.names)
    system = _waiting(topics.AsyncTopics.system)
    units = _waiting(topics.AsyncTopics.units)
    unit_subscriptions = _waiting(topics.AsyncTopics.unit_subscriptions)
    config = _waiting(topics.AsyncTopics.config)
    on_broker = _waiting(topics.AsyncTopics.on_broker)
    on_brokers = _waiting(topics.AsyncTopics.on_brokers)
    route = _waiting(topics.AsyncTopics.route)
    queues = _waiting(topics.AsyncTopics.queues)
    stats = _waiting(topics.AsyncTopics.stats)
    groups = _waiting(topics.AsyncTopics.groups)
    order = _waiting(topics.AsyncTopics.order)
    set_order = _waiting(topics.AsyncTopics.set_order)


class Groups(_Part[groups.AsyncGroups]):
    """See `groups.Groups`."""

    create = _waiting(groups.AsyncGroups.create)
    create_all = _waiting(groups.AsyncGroups.create_all)
    update = _waiting(groups.AsyncGroups.update)
    delete = _waiting(groups.AsyncGroups.delete)
    set_readable = _waiting(groups.AsyncGroups.set_readable)
    is_readable = _waiting(groups.AsyncGroups.is_readable)
    set_request_mode = _waiting(groups.AsyncGroups.set_request_mode)
    request_modes = _waiting(groups.AsyncGroups.request_modes)
    names = _waiting(groups.AsyncGroups.names)
    config = _waiting(groups.AsyncGroups.config)
    ensure = _waiting(groups.AsyncGroups.ensure)
    on_broker = _waiting(groups.AsyncGroups.on_broker)
    progress = _waiting(groups.AsyncGroups.progress)
    topics = _waiting(groups.AsyncGroups.topics)
    subscription = _waiting(groups.AsyncGroups.subscription)
    time_spans = _waiting(groups.AsyncGroups.time_spans)


class Clients(_Part[clients.AsyncClients]):
    """See `clients.Clients`."""

    consumers = _waiting(clients.AsyncClients.consumers)
    producers = _waiting(clients.AsyncClients.producers)
    all_producers = _waiting(clients.AsyncClients.all_producers)
    running_info = _waiting(clients.AsyncClients.running_info)
    positions = _waiting(clients.AsyncClients.positions)
    consume_directly = _waiting(clients.AsyncClients.consume_directly)


class Offsets(_Part[offsets.AsyncOffsets]):
    """See `offsets.Offsets`."""

    begin = _waiting(offsets.AsyncOffsets.begin)
    end = _waiting(offsets.AsyncOffsets.end)
    at_time = _waiting(offsets.AsyncOffsets.at_time)
    earliest_time_ms = _waiting(offsets.AsyncOffsets.earliest_time_ms)
    committed = _waiting(offsets.AsyncOffsets.committed)
    commit = _waiting(offsets.AsyncOffsets.commit)
    reset = _waiting(offsets.AsyncOffsets.reset)
    reset_queue = _waiting(offsets.AsyncOffsets.reset_queue)
    skip = _waiting(offsets.AsyncOffsets.skip)
    clone = _waiting(offsets.AsyncOffsets.clone)
    slowest = _waiting(offsets.AsyncOffsets.slowest)


class Messages(_Part[messages.AsyncMessages]):
    """See `messages.Messages`."""

    get = _waiting(messages.AsyncMessages.get)
    by_offset_id = _waiting(messages.AsyncMessages.by_offset_id)
    at = _waiting(messages.AsyncMessages.at)
    by_key = _waiting(messages.AsyncMessages.by_key)
    by_unique_key = _waiting(messages.AsyncMessages.by_unique_key)
    between = _waiting(messages.AsyncMessages.between)
    since = _waiting(messages.AsyncMessages.since)
    units = _waiting(messages.AsyncMessages.units)
    track = _waiting(messages.AsyncMessages.track)
    resume_check = _waiting(messages.AsyncMessages.resume_check)


class DeadLetters(_Part[dead_letters.AsyncDeadLetters]):
    """See `dead_letters.DeadLetters`."""

    find = _waiting(dead_letters.AsyncDeadLetters.find)
    resend = _waiting(dead_letters.AsyncDeadLetters.resend)


class NameServers(_Part[name_servers.AsyncNameServers]):
    """See `name_servers.NameServers`."""

    config = _waiting(name_servers.AsyncNameServers.config)
    update_config = _waiting(name_servers.AsyncNameServers.update_config)
    get = _waiting(name_servers.AsyncNameServers.get)
    table = _waiting(name_servers.AsyncNameServers.table)
    put = _waiting(name_servers.AsyncNameServers.put)
    delete = _waiting(name_servers.AsyncNameServers.delete)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._inner.addresses


class Admin(BlockingClient[admin.AsyncAdmin]):
    """Administers the servers that name servers know. Any thread may use it; it waits for answers.

    >>> with Admin(namesrv="127.0.0.1:9876") as admin:
    ...     admin.topics.create("orders", queues=4)
    ...     print(admin.groups.progress("billing").lag)
    """

    def __init__(
        self, *, namesrv: str = "", client: ClientSettings | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """As `skylark.aio.Admin`. Raises SettingsError."""
        inner = admin.AsyncAdmin(namesrv=namesrv, client=client, timeout_ms=timeout_ms)
        super().__init__(inner, "admin")

        self.brokers = Brokers(self, inner.brokers)
        self.topics = Topics(self, inner.topics)
        self.groups = Groups(self, inner.groups)
        self.clients = Clients(self, inner.clients)
        self.offsets = Offsets(self, inner.offsets)
        self.messages = Messages(self, inner.messages)
        self.dead_letters = DeadLetters(self, inner.dead_letters)
        self.name_servers = NameServers(self, inner.name_servers)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine on the admin's loop. Raises ClientClosed, ForkedClient."""
        return self._wait(work)
