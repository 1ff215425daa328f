"""Pure. Results of `Admin`: frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from skylark.errors import RocketMQError, SomeServersFailed
from skylark.model.names import retry_topic
from skylark.protocol.bodies import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    AclInfo,
    ConsumerConnection,
    ConsumeStatsTable,
    MessageQueue,
    PolicyEntry,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionKind,
    TopicConfig,
    TopicRouteData,
    TopicStatsTable,
    UserInfo,
)

T = TypeVar("T")

Failures = Mapping[str, RocketMQError]
"""Errors by server address."""


@dataclass(frozen=True)  # no slots: `Gathered[int](…)` would set an attribute
class Gathered(Generic[T]):
    """Answers of several servers to one request, by address, and the failures."""

    answers: Mapping[str, T]
    failures: Failures

    def complete(self, operation: str) -> Mapping[str, T]:
        """The answers, if no server failed. Raises the error of a single server, or SomeServersFailed."""
        if self.failures:
            raise self._error(operation)
        return self.answers

    def some(self, operation: str) -> Mapping[str, T]:
        """The answers. Raises as `complete` if all servers failed."""
        if self.failures and not self.answers:
            raise self._error(operation)
        return self.answers

    def _error(self, operation: str) -> RocketMQError:
        if len(self.failures) == 1 and not self.answers:
            return next(iter(self.failures.values()))
        return SomeServersFailed(operation, tuple(self.answers), dict(self.failures))


# --- Brokers ---


@dataclass(frozen=True, slots=True, order=True)
class BrokerNode:
    """A registered broker. Brokers of the same name are replicas."""

    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of a broker whose master a controller chooses."""

    epoch: int
    members: tuple[int, ...]
    """The in-sync set, of a master."""
    is_lapsed: bool
    """A master that no controller has confirmed lately."""

    @classmethod
    def read(cls, table: Mapping[str, str]) -> ReplicaState | None:
        """From a broker's run-time information; None without controller mode."""
        epoch = table.get("replicationEpoch", "")
        if not epoch.isdecimal():
            return None
        members = [word for word in table.get("replicationMembers", "").split() if word.isdecimal()]
        return cls(int(epoch), tuple(map(int, members)), table.get("replicationLapsed") == "true")


@dataclass(frozen=True, slots=True)
class BrokerSummary:
    """The state of a broker. Rates are of the last 10 seconds."""

    node: BrokerNode
    version: str
    puts_per_s: float
    gets_per_s: float
    puts_today: int
    gets_today: int
    disk_used_ratio: float
    earliest_message_ms: int | None
    is_active: bool
    replica: ReplicaState | None = None
    log_end: int = 0
    """The physical offset after the last message."""
    clock_ms: int | None = None
    """Its clock, to the second, when it answered; None if it does not tell."""

    @classmethod
    def read(cls, node: BrokerNode, table: Mapping[str, str]) -> BrokerSummary:
        """From a broker's run-time information; missing values are 0."""

        def number(key: str) -> float:
            words = table.get(key, "").split()  # the shortest window is first; a new broker has none
            try:
                return float(words[0]) if words else 0.0
            except ValueError:
                return 0.0

        earliest_ms = int(number("earliestMessageTimeStamp"))
        return cls(
            node=node,
            version=table.get("brokerVersionDesc", ""),
            puts_per_s=number("putTps"),
            gets_per_s=number("getTransferredTps"),
            puts_today=int(number("msgPutTotalTodayNow") - number("msgPutTotalTodayMorning")),
            gets_today=int(number("msgGetTotalTodayNow") - number("msgGetTotalTodayMorning")),
            disk_used_ratio=number("commitLogDiskRatio"),
            earliest_message_ms=earliest_ms if earliest_ms > 0 else None,
            is_active=table.get("brokerActive", "true") == "true",
            replica=ReplicaState.read(table),
            log_end=int(number("commitLogMaxOffset")),
            clock_ms=_clock_ms(table),
        )


def _clock_ms(table: Mapping[str, str]) -> int | None:
    """The start of a broker and how long it runs, `[ 0 days, 0 hours, 5 minutes, 16 seconds ]`."""
    started = table.get("bootTimestamp", "")
    parts = [int(word) for word in table.get("runtime", "").split() if word.isdecimal()]
    if not started.isdecimal() or len(parts) != 4:
        return None
    days, hours, minutes, seconds = parts
    return int(started) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """The state of all brokers; those that did not answer are only in `failures`."""

    brokers: tuple[BrokerSummary, ...]
    failures: Failures
    time_ms: int = 0
    """When they answered, by the clock of this machine."""


# --- Topics ---


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic on one broker."""

    name: str
    read_queues: int
    write_queues: int
    permission: int
    ordered: bool
    attributes: Mapping[str, str]
    system_flag: int = 0

    @property
    def is_readable(self) -> bool:
        return bool(self.permission & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.permission & PERM_WRITE)

    @classmethod
    def read(cls, config: TopicConfig) -> Topic:
        return cls(
            name=config.topic_name,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            permission=config.perm,
            ordered=config.order,
            attributes=dict(config.attributes),
            system_flag=config.topic_sys_flag,
        )

    def to_config(self) -> TopicConfig:
        return TopicConfig(
            topic_name=self.name,
            read_queue_nums=self.read_queues,
            write_queue_nums=self.write_queues,
            perm=self.permission,
            order=self.ordered,
            topic_sys_flag=self.system_flag,
            attributes=dict(self.attributes),
        )


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """The queues of a topic on one broker name, and the addresses of its replicas by broker id."""

    broker_name: str
    cluster: str
    read_queues: int
    write_queues: int
    permission: int
    addresses: Mapping[int, str]

    @property
    def address(self) -> str | None:
        """The address of the master, or of the replica with the smallest id; None without addresses."""
        return self.addresses[min(self.addresses)] if self.addresses else None


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers and queues of a topic."""

    topic: str
    brokers: tuple[BrokerQueues, ...]
    order: str | None
    """`broker-a:4;broker-b:4` for a topic with a fixed order of queues."""

    @property
    def clusters(self) -> list[str]:
        return sorted({broker.cluster for broker in self.brokers})

    def address(self, broker_name: str) -> str | None:
        """The address for requests about this broker's queues."""
        found = (broker.address for broker in self.brokers if broker.broker_name == broker_name)
        return next(found, None)

    def queues(self) -> list[MessageQueue]:
        """The queues that can be read, sorted."""
        return sorted(
            MessageQueue(self.topic, broker.broker_name, queue_id)
            for broker in self.brokers
            if broker.permission & PERM_READ
            for queue_id in range(broker.read_queues)
        )

    @classmethod
    def read(cls, topic: str, data: TopicRouteData) -> Route:
        brokers = {broker.broker_name: broker for broker in data.broker_datas}
        queues = [queue for queue in data.queue_datas if queue.broker_name in brokers]
        return cls(
            topic=topic,
            brokers=tuple(
                BrokerQueues(
                    broker_name=queue.broker_name,
                    cluster=brokers[queue.broker_name].cluster or "",
                    read_queues=queue.read_queue_nums,
                    write_queues=queue.write_queue_nums,
                    permission=queue.perm,
                    addresses=dict(sorted(brokers[queue.broker_name].broker_addrs.items())),
                )
                for queue in sorted(queues, key=lambda queue: queue.broker_name)
            ),
            order=data.order_topic_conf or None,
        )


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The messages of a queue: `begin` <= offset < `end`. Times are milliseconds since 1970."""

    queue: MessageQueue
    begin: int
    end: int
    last_stored_ms: int | None


@dataclass(frozen=True, slots=True)
class NameServerNames:
    """How many brokers and topics a name server knows."""

    brokers: int
    topics: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    topic: str
    queues: tuple[QueueStats, ...]
    puts_per_s: float
    failures: Failures

    @property
    def messages(self) -> int:
        return sum(queue.end - queue.begin for queue in self.queues)

    @classmethod
    def read(cls, topic: str, tables: Iterable[TopicStatsTable], failures: Failures) -> TopicStats:
        tables = list(tables)
        queues = (
            QueueStats(queue, offset.min_offset, offset.max_offset, offset.last_update_timestamp or None)
            for table in tables
            for queue, offset in table.offset_table.items()
        )
        return cls(
            topic=topic,
            queues=tuple(sorted(queues, key=lambda stats: stats.queue)),
            puts_per_s=sum(table.topic_put_tps for table in tables),
            failures=failures,
        )


# --- Groups ---


@dataclass(frozen=True, slots=True)
class Group:
    """The settings of a consumer group on a broker."""

    name: str
    consume_enabled: bool = True
    broadcast_enabled: bool = True
    orderly: bool = False
    retry_queues: int = 1
    retries_max: int = 16
    consume_timeout_min: int = 15
    broker_id: int = MASTER_ID
    slow_broker_id: int = 1
    notify_members: bool = True
    attributes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, config: SubscriptionGroupConfig) -> Group:
        return cls(
            name=config.group_name,
            consume_enabled=config.consume_enable,
            broadcast_enabled=config.consume_broadcast_enable,
            orderly=config.consume_message_orderly,
            retry_queues=config.retry_queue_nums,
            retries_max=config.retry_max_times,
            consume_timeout_min=config.consume_timeout_minute,
            broker_id=config.broker_id,
            slow_broker_id=config.which_broker_when_consume_slowly,
            notify_members=config.notify_consumer_ids_changed_enable,
            attributes=dict(config.attributes),
        )

    def to_config(self) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(
            group_name=self.name,
            consume_enable=self.consume_enabled,
            consume_broadcast_enable=self.broadcast_enabled,
            consume_message_orderly=self.orderly,
            retry_queue_nums=self.retry_queues,
            retry_max_times=self.retries_max,
            consume_timeout_minute=self.consume_timeout_min,
            broker_id=self.broker_id,
            which_broker_when_consume_slowly=self.slow_broker_id,
            notify_consumer_ids_changed_enable=self.notify_members,
            attributes=dict(self.attributes),
        )


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a group in a queue: `committed`, `pulled` by members, and the `end` of the queue."""

    queue: MessageQueue
    committed: int
    pulled: int
    end: int
    last_consumed_ms: int | None

    @property
    def lag(self) -> int:
        return self.end - self.committed


@dataclass(frozen=True, slots=True)
class GroupProgress:
    group: str
    queues: tuple[QueueProgress, ...]
    consumed_per_s: float
    failures: Failures

    @property
    def lag(self) -> int:
        """All messages to consume, those in the retry topic included."""
        return sum(queue.lag for queue in self.queues)

    @property
    def retrying(self) -> int:
        """The part of the lag that is in the retry topic: messages that failed, or were sent again."""
        retry = retry_topic(self.group)
        return sum(queue.lag for queue in self.queues if queue.queue.topic == retry)

    @classmethod
    def read(cls, group: str, stats: Iterable[ConsumeStatsTable], failures: Failures) -> GroupProgress:
        stats = list(stats)
        queues = (
            QueueProgress(
                queue=queue,
                committed=offset.consumer_offset,
                pulled=max(offset.pull_offset, offset.consumer_offset),
                end=offset.broker_offset,
                last_consumed_ms=offset.last_timestamp or None,
            )
            for table in stats
            for queue, offset in table.offset_table.items()
        )
        return cls(
            group=group,
            queues=tuple(sorted(queues, key=lambda progress: progress.queue)),
            consumed_per_s=sum(table.consume_tps for table in stats),
            failures=failures,
        )


# --- Clients ---


@dataclass(frozen=True, slots=True, order=True)
class ClientInfo:
    """A connected producer or consumer, and its brokers."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectedConsumers:
    """The connected members of a group and their subscriptions."""

    group: str
    clients: tuple[ClientInfo, ...]
    subscriptions: Mapping[str, SubscriptionData]
    """By topic, as the last heartbeat of any member had them."""
    different_subscriptions: tuple[SubscriptionKind, ...]
    """Who subscribes what, if not all members subscribe the same; only Skylark's brokers tell."""
    consume_type: str | None
    message_model: str | None
    consume_from: str | None
    failures: Failures

    @classmethod
    def read(
        cls, group: str, found: Mapping[str, ConsumerConnection], failures: Failures
    ) -> ConnectedConsumers:
        one = next(iter(found.values()))
        connections = [
            (broker, ClientInfo(item.client_id, item.client_addr, item.language, item.version))
            for broker, connection in found.items()
            for item in connection.connection_set
        ]
        return cls(
            group=group,
            clients=merged_clients(connections),
            subscriptions={
                topic: subscription
                for connection in found.values()
                for topic, subscription in connection.subscription_table.items()
            },
            different_subscriptions=merged_kinds(
                kind for connection in found.values() for kind in connection.subscription_kinds or ()
            ),
            consume_type=one.consume_type,
            message_model=one.message_model,
            consume_from=one.consume_from_where,
            failures=failures,
        )


@dataclass(frozen=True, slots=True)
class QueueOwners:
    """Which members of a group hold which queue, as they report it."""

    queues: Mapping[MessageQueue, tuple[str, ...]]
    """Client ids; more than one while the members share the queues anew."""
    silent: tuple[str, ...] = ()
    """Members that did not report."""


@dataclass(frozen=True, slots=True)
class ConnectedProducers:
    """The connected members of a producer group."""

    group: str
    clients: tuple[ClientInfo, ...]
    failures: Failures


def merged_kinds(kinds: Iterable[SubscriptionKind]) -> tuple[SubscriptionKind, ...]:
    """The kinds that several brokers report, each once with all its members, the most frequent one first."""
    members: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for kind in kinds:
        members.setdefault(tuple(sorted(kind.expressions.items())), set()).update(kind.members)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        SubscriptionKind(expressions=dict(expressions), members=sorted(clients))
        for expressions, clients in ordered
    )


def merged_clients(connections: Iterable[tuple[str, ClientInfo]]) -> tuple[ClientInfo, ...]:
    """One entry per client id, with all its brokers."""
    brokers: dict[str, list[str]] = {}
    clients: dict[str, ClientInfo] = {}
    for broker, client in connections:
        brokers.setdefault(client.client_id, []).append(broker)
        clients.setdefault(client.client_id, client)
    return tuple(
        ClientInfo(
            client_id, client.address, client.language, client.version, tuple(sorted(brokers[client_id]))
        )
        for client_id, client in sorted(clients.items())
    )


# --- Users ---


@dataclass(frozen=True, slots=True, order=True)
class UserAccount:
    """A user of a server. The secret is known to super users only."""

    name: str
    is_super: bool = False
    is_enabled: bool = True
    secret: str = field(default="", repr=False)

    @classmethod
    def read(cls, info: UserInfo) -> UserAccount:
        is_enabled = (info.user_status or "enable").lower() != "disable"
        return cls(
            info.username or "", (info.user_type or "").lower() == "super", is_enabled, info.password or ""
        )


@dataclass(frozen=True, slots=True)
class AclRule:
    """A rule of a user: actions on a resource, from some addresses or any. `policy`: Custom or Default."""

    resource: str
    actions: tuple[str, ...]
    decision: str = "Allow"
    sources: tuple[str, ...] = ()
    policy: str = "Custom"

    @classmethod
    def read(cls, info: AclInfo) -> list[AclRule]:
        return [
            cls(
                entry.resource or "",
                tuple(entry.actions),
                entry.decision or "",
                tuple(entry.source_ips or ()),
                policy.policy_type or "Custom",
            )
            for policy in info.policies
            for entry in policy.entries
        ]

    def to_entry(self) -> PolicyEntry:
        return PolicyEntry(self.resource, list(self.actions), list(self.sources) or None, self.decision)
