"""Pure. Connected clients by group, notices of membership changes, and the locks on ordered queues.

Nothing here does I/O: notices are returned to the caller. Times are monotonic seconds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from skylark.broker.error_replies import full, system_error
from skylark.broker.filters.compiled_subscription import CompiledSubscription, compile_subscription
from skylark.broker.member_subscriptions import MemberSubscriptions
from skylark.errors import BrokerError
from skylark.protocol.bodies import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerData,
    LockRequest,
    MessageQueue,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
)
from skylark.protocol.codes import ResponseCode
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings

BROADCASTING = "BROADCASTING"
ACTIVELY = "CONSUME_ACTIVELY"
PASSIVELY = "CONSUME_PASSIVELY"
POPPING = "CONSUME_POP"
CHOICES_MAX = 4
REPORT_INTERVAL_S = 60.0
"""Least interval of reports that members of a group subscribe different things."""


class Channel(Protocol):
    """The part of a connection that is used here. Hashed by identity."""

    @property
    def address(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_writable(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """The client of a channel, from the header and the heartbeat."""

    channel: Channel
    client_id: str
    language: str
    version: int

    def connection(self) -> ConnectionInfo:
        return ConnectionInfo(
            client_id=self.client_id,
            client_addr=self.channel.address,
            language=self.language,
            version=self.version,
        )


@dataclass(frozen=True, slots=True)
class MembershipNotice:
    """Channels to notify that the membership of a group changed."""

    group: str
    channels: tuple[Channel, ...]


@dataclass(slots=True)
class _GroupMember:
    client: ConnectedClient
    seen_at: float


class _GroupMembership:
    """Groups and the channels in them."""

    def __init__(self, live: LiveSettings[BrokerSettings]) -> None:
        self._live = live
        self.groups: dict[str, dict[Channel, _GroupMember]] = {}
        self._groups_by_channel: dict[Channel, set[str]] = {}

    def join(self, group: str, client: ConnectedClient, now: float) -> bool:
        """Add a client to a group, or renew it. Return whether its channel is new there."""
        members = self.groups.get(group)
        member = members.get(client.channel) if members is not None else None
        if member is not None:
            member.client, member.seen_at = client, now
            return False
        settings = self._live.current
        theirs = self._groups_by_channel.get(client.channel, ())
        if len(theirs) >= settings.client_groups_max:
            raise full("groups of one client", settings.client_groups_max)
        if members is None and len(self.groups) >= settings.groups_max:
            raise full("groups with clients", settings.groups_max)
        self.groups.setdefault(group, {})[client.channel] = _GroupMember(client, now)
        self._groups_by_channel.setdefault(client.channel, set()).add(group)
        return True

    def leave(self, group: str, channel: Channel) -> ConnectedClient | None:
        """Remove a channel from a group; the last one removes the group."""
        member = self.groups.get(group, {}).pop(channel, None)
        if member is None:
            return None
        if not self.groups[group]:
            del self.groups[group]
        theirs = self._groups_by_channel[channel]
        theirs.remove(group)
        if not theirs:
            del self._groups_by_channel[channel]
        return member.client

    def groups_of(self, channel: Channel) -> list[str]:
        return sorted(self._groups_by_channel.get(channel, ()))

    def member(self, group: str, channel: Channel) -> ConnectedClient | None:
        member = self.groups.get(group, {}).get(channel)
        return member.client if member is not None else None

    def speaks_on(self, channel: Channel, client_id: str) -> bool:
        """Return whether a client of this id is in any group on this channel."""
        groups = self._groups_by_channel.get(channel, ())
        return any(self.groups[group][channel].client.client_id == client_id for group in groups)

    def clients(self, group: str) -> list[ConnectedClient]:
        return [member.client for member in self.groups.get(group, {}).values()]

    def silent(self, now: float) -> list[tuple[str, ConnectedClient]]:
        """Return the clients whose heartbeats have expired."""
        since = now - self._live.current.client_expiry_ms / 1000
        return [
            (group, member.client)
            for group, members in self.groups.items()
            for member in members.values()
            if member.seen_at < since
        ]


@dataclass(slots=True)
class ConsumerGroup:
    """A group with members, as the last heartbeat of any of them describes it."""

    name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, CompiledSubscription] = field(default_factory=dict)
    fingerprint: int | None = None
    by_member: MemberSubscriptions = field(default_factory=MemberSubscriptions)
    reported_at: float = -math.inf
    """When it was last reported that members subscribe different things."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What a heartbeat did to one group.

    `subscription_changed` is for the client that leaves its subscriptions out: it must send them next time.
    """

    subscription_changed: bool
    notice: MembershipNotice | None
    different_subscriptions: str | None = None
    """Who subscribes what, if the members of the group do not subscribe the same."""
    is_report_due: bool = False
    """At most once a minute."""


class ConsumerGroups:
    """Connected consumers by group, and the subscriptions of those that pull without a heartbeat."""

    def __init__(self, live: LiveSettings[BrokerSettings]) -> None:
        self.changes = 0
        """Counts changes that may affect how pulls are served; unchanged heartbeats do not count."""
        self._live = live
        self._membership = _GroupMembership(live)
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_by_topic: dict[str, set[str]] = {}
        self._compensated: dict[tuple[str, str], tuple[CompiledSubscription, float]] = {}

    # --- Coming and going ---

    def register(
        self,
        client: ConnectedClient,
        data: ConsumerData,
        *,
        notify: bool,
        now: float,
        fingerprint: int = 0,
        without_subscriptions: bool = False,
    ) -> Registered:
        """Take what a heartbeat says of one group. `notify`: the group's own switch.

        A fingerprint of 0 is that of an older client, which always sends its subscriptions. Raises
        BrokerError 1 for more groups or subscriptions than the settings allow.
        """
        name = data.group_name
        limit = self._live.current.group_subscriptions_max
        if len(data.subscription_data_set) > limit:
            raise full("subscriptions of one group", limit)
        joined = self._membership.join(name, client, now)
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name)
        if joined or (group.consume_type, group.message_model) != (data.consume_type, data.message_model):
            self.changes += 1
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        differs = group.fingerprint is not None and group.fingerprint != fingerprint
        group.fingerprint = fingerprint
        if without_subscriptions:
            # Without them on either side the client could never pull.
            differs = differs or not group.subscriptions
            changed = False
        else:
            changed = self._subscribe(group, data.subscription_data_set)
            group.by_member.set(client.channel, client.client_id, data.subscription_data_set)
        notice = self._notice(group) if (joined or changed) and notify else None
        must_send = fingerprint == 0 or differs
        if group.by_member.count <= 1:
            return Registered(must_send, notice)
        is_due = now - group.reported_at >= REPORT_INTERVAL_S
        if is_due:
            group.reported_at = now
        return Registered(must_send, notice, group.by_member.describe(), is_due)

    def unregister(self, group: str, channel: Channel, *, notify: bool) -> MembershipNotice | None:
        """Remove a client that unregisters. The others are notified even if it was not a member."""
        record = self._groups.get(group)
        if record is None:
            return None
        self._leave(group, channel)
        return self._notice(record) if notify else None

    def channel_closed(self, channel: Channel) -> list[MembershipNotice]:
        """Remove a client from all groups after its connection has ended."""
        return self._remove((group, channel) for group in self._membership.groups_of(channel))

    def expire(self, now: float) -> tuple[list[Channel], list[MembershipNotice]]:
        """Remove expired clients. Return the channels to close, and notices to send."""
        expiry_s = self._live.current.subscription_expiry_ms / 1000
        for key in [key for key, (_, at) in self._compensated.items() if now - at > expiry_s]:
            del self._compensated[key]
        silent = [(group, client.channel) for group, client in self._membership.silent(now)]
        notices = self._remove(silent)
        return list(dict.fromkeys(channel for _, channel in silent)), notices

    def compensate(self, group: str, subscription: CompiledSubscription, *, now: float) -> None:
        """Remember the subscription of a pull, for queries about the group, within the limit."""
        key = (group, subscription.data.topic)
        if key in self._compensated or len(self._compensated) < self._live.current.offset_keys_max:
            self._compensated[key] = (subscription, now)

    # --- Questions ---

    def group(self, group: str) -> ConsumerGroup | None:
        """Return a group that has members."""
        return self._groups.get(group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups online that subscribe a topic."""
        return sorted(self._groups_by_topic.get(topic, ()))

    def subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that a group still subscribes; all of them if it is offline."""
        online = self.group(group)
        if online is None or not online.subscriptions:
            return list(topics)
        return [topic for topic in topics if self.subscription(group, topic) is not None]

    def subscription(self, group: str, topic: str) -> CompiledSubscription | None:
        """Return a group's subscription to a topic, from its heartbeats or else from its pulls."""
        record = self._groups.get(group)
        subscription = record.subscriptions.get(topic) if record is not None else None
        return subscription if subscription is not None else self.compensated(group, topic)

    def compensated(self, group: str, topic: str) -> CompiledSubscription | None:
        """Return the subscription of a group's last pull."""
        known = self._compensated.get((group, topic))
        return known[0] if known is not None else None

    def is_member(self, group: str, channel: Channel) -> bool:
        return channel in self._membership.groups.get(group, ())

    def clients(self, group: str) -> list[ConnectedClient]:
        return self._membership.clients(group)

    def client_ids(self, group: str) -> list[str]:
        """Return the ids among which a group's queues are divided. Raises BrokerError 1 if there are none."""
        clients = self._membership.clients(group)
        if not clients:
            raise system_error(f"no consumer for this group, {group}")
        return [client.client_id for client in clients]

    def client(self, group: str, client_id: str) -> ConnectedClient:
        """Return one member. Raises BrokerError 1 if it is not online."""
        for client in self._membership.clients(group):
            if client.client_id == client_id:
                return client
        raise system_error(f"The Consumer <{group}> <{client_id}> not online")

    def connection(self, group: str) -> ConsumerConnection:
        """Return a group as administrators see it. Raises BrokerError 206 if it is not online."""
        record = self._groups.get(group)
        if record is None:
            raise BrokerError.for_code(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        return ConsumerConnection(
            connection_set=[client.connection() for client in self._membership.clients(group)],
            subscription_table={topic: wanted.data for topic, wanted in record.subscriptions.items()},
            consume_type=record.consume_type,
            message_model=record.message_model,
            consume_from_where=record.consume_from_where,
            subscription_kinds=record.by_member.kinds() if record.by_member.count > 1 else None,
        )

    def subscription_counts(self) -> dict[str, int]:
        """Return how many different sets of subscriptions the members of each group have; one is right."""
        return {name: group.by_member.count for name, group in self._groups.items()}

    # --- Inside ---

    def _subscribe(self, group: ConsumerGroup, wanted: Iterable[SubscriptionData]) -> bool:
        """Update a group's subscriptions; return whether topics were added or removed."""
        changed = False
        topics = set()
        for data in wanted:
            topics.add(data.topic)
            known = group.subscriptions.get(data.topic)
            if known is None or data.sub_version > known.data.sub_version:
                self.changes += 1
                group.subscriptions[data.topic] = compile_subscription(data)
                self._groups_by_topic.setdefault(data.topic, set()).add(group.name)
                changed = changed or known is None
        for topic in group.subscriptions.keys() - topics:
            self.changes += 1
            del group.subscriptions[topic]
            self._forget_topic(topic, group.name)
            changed = True
        return changed

    def _leave(self, group: str, channel: Channel) -> bool:
        if self._membership.leave(group, channel) is None:
            return False
        self.changes += 1
        self._groups[group].by_member.remove(channel)
        if group not in self._membership.groups:
            for topic in self._groups.pop(group).subscriptions:
                self._forget_topic(topic, group)
        return True

    def _remove(self, leaving: Iterable[tuple[str, Channel]]) -> list[MembershipNotice]:
        left: dict[str, ConsumerGroup] = {}
        for group, channel in leaving:
            record = self._groups[group]
            if self._leave(group, channel):
                left[group] = record
        return [notice for record in left.values() if (notice := self._notice(record)) is not None]

    def _forget_topic(self, topic: str, group: str) -> None:
        groups = self._groups_by_topic[topic]
        groups.remove(group)
        if not groups:
            del self._groups_by_topic[topic]

    def _notice(self, group: ConsumerGroup) -> MembershipNotice | None:
        """Return the notice of a change; None for groups whose members do not share queues."""
        if group.message_model == BROADCASTING or not self._live.current.notify_members:
            return None
        channels = tuple(self._membership.groups.get(group.name, ()))
        return MembershipNotice(group.name, channels) if channels else None


class ProducerGroups:
    """Connected producers by group."""

    def __init__(self, live: LiveSettings[BrokerSettings]) -> None:
        self._membership = _GroupMembership(live)
        self._channels: dict[str, Channel] = {}
        self._turn = 0

    def register(self, group: str, client: ConnectedClient, *, now: float) -> None:
        """Register a heartbeat for one group. Raises BrokerError 1 above the limits of the settings."""
        before = self._membership.member(group, client.channel)
        self._membership.join(group, client, now)
        self._channels[client.client_id] = client.channel
        if before is not None:
            self._forget(before)

    def unregister(self, group: str, channel: Channel) -> None:
        """Remove a client that unregisters."""
        self._leave([(group, channel)])

    def channel_closed(self, channel: Channel) -> None:
        """Remove a client from all groups after its connection has ended."""
        self._leave((group, channel) for group in self._membership.groups_of(channel))

    def expire(self, now: float) -> list[Channel]:
        """Remove expired clients, and return the channels to close."""
        silent = [(group, client.channel) for group, client in self._membership.silent(now)]
        self._leave(silent)
        return list(dict.fromkeys(channel for _, channel in silent))

    def channel(self, client_id: str) -> Channel | None:
        """Return the channel of a client."""
        return self._channels.get(client_id)

    def choose(self, group: str) -> Channel | None:
        """Return a channel of a group, round robin: a writable one, or else an open one."""
        channels = list(self._membership.groups.get(group, ()))
        self._turn += 1
        living = None
        for step in range(min(CHOICES_MAX, len(channels))):
            channel = channels[(self._turn + step) % len(channels)]
            if channel.is_closed:
                continue
            if channel.is_writable:
                return channel
            living = channel
        return living

    def connection(self, group: str) -> ProducerConnection:
        """Return a group as administrators see it. Raises BrokerError 1 if it is not online."""
        clients = self._membership.clients(group)
        if not clients:
            raise system_error(f"the producer group[{group}] not exist")
        return ProducerConnection(connection_set=[client.connection() for client in clients])

    def table(self, *, now: float, now_ms: int) -> ProducerTable:
        """Return all producers, and when they were last seen on the wall clock."""
        return ProducerTable(
            data={
                group: [
                    ProducerInfo(
                        client_id=member.client.client_id,
                        remote_ip=f"/{member.client.channel.address}",
                        language=member.client.language,
                        version=member.client.version,
                        last_update_timestamp=now_ms - round((now - member.seen_at) * 1000),
                    )
                    for member in members.values()
                ]
                for group, members in self._membership.groups.items()
            }
        )

    def _leave(self, leaving: Iterable[tuple[str, Channel]]) -> None:
        for group, channel in list(leaving):
            client = self._membership.leave(group, channel)
            if client is not None:
                self._forget(client)

    def _forget(self, client: ConnectedClient) -> None:
        """Forget the channel of a client, unless it is still connected."""
        client_id, channel = client.client_id, client.channel
        if self._channels.get(client_id) is channel and not self._membership.speaks_on(channel, client_id):
            del self._channels[client_id]


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_at: float


class QueueLockTable:
    """Locks by group and queue. They expire unless renewed, and do not survive a restart."""

    def __init__(self, live: LiveSettings[BrokerSettings]) -> None:
        self._live = live
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0

    def lock(self, request: LockRequest, *, now: float) -> list[MessageQueue]:
        """Lock or renew queues that are free or the client's own, within the limit, and return them."""
        locked = []
        for queue in dict.fromkeys(request.mq_set):
            lock = self._locks.get(request.consumer_group, {}).get(queue)
            if lock is None:
                if self._count >= self._live.current.locks_max:
                    continue
                self._locks.setdefault(request.consumer_group, {})[queue] = _Lock(request.client_id, now)
                self._count += 1
            elif lock.client_id == request.client_id or self._has_ended(lock, now):
                lock.client_id, lock.renewed_at = request.client_id, now
            else:
                continue
            locked.append(queue)
        return locked

    def clear(self) -> None:
        """Forget all locks: another broker grants them."""
        self._locks.clear()
        self._count = 0

    def unlock(self, request: LockRequest) -> None:
        """Release the client's own locks."""
        locks = self._locks.get(request.consumer_group, {})
        for queue in request.mq_set:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == request.client_id:
                self._free(request.consumer_group, queue)

    def has_any(self, group: str, *, now: float) -> bool:
        """Return whether a group holds any lock now."""
        return any(not self._has_ended(lock, now) for lock in self._locks.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Remove expired locks."""
        ended = [
            (group, queue)
            for group, locks in self._locks.items()
            for queue, lock in locks.items()
            if self._has_ended(lock, now)
        ]
        for group, queue in ended:
            self._free(group, queue)

    def _has_ended(self, lock: _Lock, now: float) -> bool:
        return now - lock.renewed_at > self._live.current.lock_expiry_ms / 1000

    def _free(self, group: str, queue: MessageQueue) -> None:
        del self._locks[group][queue]
        self._count -= 1
        if not self._locks[group]:
            del self._locks[group]
