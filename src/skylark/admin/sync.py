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
from skylark.client.sync import BlockingFace
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


class Brokers(_Part[brokers.Brokers]):
    """See `brokers.Brokers`."""

    nodes = _waiting(brokers.Brokers.nodes)
    clusters = _waiting(brokers.Brokers.clusters)
    summary = _waiting(brokers.Brokers.summary)
    replicas = _waiting(brokers.Brokers.replicas)
    runtime = _waiting(brokers.Brokers.runtime)
    consume_stats = _waiting(brokers.Brokers.consume_stats)
    stats = _waiting(brokers.Brokers.stats)
    replication = _waiting(brokers.Brokers.replication)
    replication_addresses = _waiting(brokers.Brokers.replication_addresses)
    epochs = _waiting(brokers.Brokers.epochs)
    timers = _waiting(brokers.Brokers.timers)
    config = _waiting(brokers.Brokers.config)
    config_version = _waiting(brokers.Brokers.config_version)
    update_config = _waiting(brokers.Brokers.update_config)
    wipe_write_permission = _waiting(brokers.Brokers.wipe_write_permission)
    add_write_permission = _waiting(brokers.Brokers.add_write_permission)
    clean_queues = _waiting(brokers.Brokers.clean_queues)
    clean_topics = _waiting(brokers.Brokers.clean_topics)
    delete_expired_log = _waiting(brokers.Brokers.delete_expired_log)
    reset_master_flush_offset = _waiting(brokers.Brokers.reset_master_flush_offset)
    cold_reads = _waiting(brokers.Brokers.cold_reads)
    limit_cold_reads = _waiting(brokers.Brokers.limit_cold_reads)
    unlimit_cold_reads = _waiting(brokers.Brokers.unlimit_cold_reads)
    set_read_ahead = _waiting(brokers.Brokers.set_read_ahead)
    check_rocksdb_queues = _waiting(brokers.Brokers.check_rocksdb_queues)
    export_rocksdb_config = _waiting(brokers.Brokers.export_rocksdb_config)
    export_pops = _waiting(brokers.Brokers.export_pops)


class Topics(_Part[topics.Topics]):
    """See `topics.Topics`."""

    create = _waiting(topics.Topics.create)
    create_all = _waiting(topics.Topics.create_all)
    update = _waiting(topics.Topics.update)
    delete = _waiting(topics.Topics.delete)
    names = _waiting(topics.Topics.names)
    system = _waiting(topics.Topics.system)
    units = _waiting(topics.Topics.units)
    unit_subscriptions = _waiting(topics.Topics.unit_subscriptions)
    config = _waiting(topics.Topics.config)
    on_broker = _waiting(topics.Topics.on_broker)
    route = _waiting(topics.Topics.route)
    queues = _waiting(topics.Topics.queues)
    stats = _waiting(topics.Topics.stats)
    groups = _waiting(topics.Topics.groups)
    order = _waiting(topics.Topics.order)
    set_order = _waiting(topics.Topics.set_order)


class Groups(_Part[groups.Groups]):
    """See `groups.Groups`."""

    create = _waiting(groups.Groups.create)
    create_all = _waiting(groups.Groups.create_all)
    update = _waiting(groups.Groups.update)
    delete = _waiting(groups.Groups.delete)
    set_readable = _waiting(groups.Groups.set_readable)
    is_readable = _waiting(groups.Groups.is_readable)
    set_request_mode = _waiting(groups.Groups.set_request_mode)
    request_modes = _waiting(groups.Groups.request_modes)
    names = _waiting(groups.Groups.names)
    config = _waiting(groups.Groups.config)
    ensure = _waiting(groups.Groups.ensure)
    on_broker = _waiting(groups.Groups.on_broker)
    progress = _waiting(groups.Groups.progress)
    topics = _waiting(groups.Groups.topics)
    subscription = _waiting(groups.Groups.subscription)
    time_spans = _waiting(groups.Groups.time_spans)


class Clients(_Part[clients.Clients]):
    """See `clients.Clients`."""

    consumers = _waiting(clients.Clients.consumers)
    producers = _waiting(clients.Clients.producers)
    all_producers = _waiting(clients.Clients.all_producers)
    running_info = _waiting(clients.Clients.running_info)
    positions = _waiting(clients.Clients.positions)
    consume_directly = _waiting(clients.Clients.consume_directly)


class Offsets(_Part[offsets.Offsets]):
    """See `offsets.Offsets`."""

    begin = _waiting(offsets.Offsets.begin)
    end = _waiting(offsets.Offsets.end)
    at_time = _waiting(offsets.Offsets.at_time)
    earliest_time_ms = _waiting(offsets.Offsets.earliest_time_ms)
    committed = _waiting(offsets.Offsets.committed)
    commit = _waiting(offsets.Offsets.commit)
    reset = _waiting(offsets.Offsets.reset)
    reset_queue = _waiting(offsets.Offsets.reset_queue)
    skip = _waiting(offsets.Offsets.skip)
    clone = _waiting(offsets.Offsets.clone)
    slowest = _waiting(offsets.Offsets.slowest)


class Messages(_Part[messages.Messages]):
    """See `messages.Messages`."""

    get = _waiting(messages.Messages.get)
    by_offset_id = _waiting(messages.Messages.by_offset_id)
    at = _waiting(messages.Messages.at)
    by_key = _waiting(messages.Messages.by_key)
    by_unique_key = _waiting(messages.Messages.by_unique_key)
    between = _waiting(messages.Messages.between)
    since = _waiting(messages.Messages.since)
    units = _waiting(messages.Messages.units)
    track = _waiting(messages.Messages.track)
    resume_check = _waiting(messages.Messages.resume_check)


class DeadLetters(_Part[dead_letters.DeadLetters]):
    """See `dead_letters.DeadLetters`."""

    find = _waiting(dead_letters.DeadLetters.find)
    resend = _waiting(dead_letters.DeadLetters.resend)


class NameServers(_Part[name_servers.NameServers]):
    """See `name_servers.NameServers`."""

    config = _waiting(name_servers.NameServers.config)
    update_config = _waiting(name_servers.NameServers.update_config)
    get = _waiting(name_servers.NameServers.get)
    table = _waiting(name_servers.NameServers.table)
    put = _waiting(name_servers.NameServers.put)
    delete = _waiting(name_servers.NameServers.delete)

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._inner.addresses


class Admin(BlockingFace[admin.Admin]):
    """Administers the servers that name servers know. Any thread may use it; it waits for answers.

    >>> with Admin(namesrv="127.0.0.1:9876") as admin:
    ...     admin.topics.create("orders", queues=4)
    ...     print(admin.groups.progress("billing").lag)
    """

    def __init__(
        self, *, namesrv: str = "", client: ClientSettings | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """As `skylark.aio.Admin`. Raises SettingsError."""
        inner = admin.Admin(namesrv=namesrv, client=client, timeout_ms=timeout_ms)
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
