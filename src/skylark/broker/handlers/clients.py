"""Clients: heartbeats, membership, locks on ordered queues, assignments: 34, 35, 38, 41, 42, 46, 400."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from skylark.broker.clients import (
    ACTIVELY,
    BROADCASTING,
    ConnectedClient,
    ConsumerGroups,
    MembershipNotice,
    ProducerGroups,
    QueueLockTable,
    Registered,
)
from skylark.broker.error_replies import full, invalid_parameter, system_busy
from skylark.broker.filters.compiled_subscription import check_subscription
from skylark.broker.filters.consumer_filters import ConsumerFilters
from skylark.broker.groups import POP, RequestModes, SubscriptionGroups
from skylark.broker.handlers.served_requests import serves, serves_command
from skylark.broker.replication.role import Role
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.model import names
from skylark.protocol.bodies import (
    AssignmentRequest,
    Assignments,
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockedQueues,
    LockRequest,
    MessageQueue,
    QueueAssignment,
    RequestMode,
    TopicRouteData,
)
from skylark.protocol.codes import RequestCode, version_ordinal
from skylark.protocol.command import RemotingCommand, encode
from skylark.protocol.queue_allocation import averagely, averagely_by_circle, read_queues, shared_queues
from skylark.protocol.requests.client import (
    CheckClientConfig,
    GetConsumerListByGroup,
    Heartbeat,
    HeartbeatReply,
    LockBatchMq,
    NotifyConsumerIdsChanged,
    QueryAssignment,
    UnlockBatchMq,
    UnregisterClient,
)
from skylark.remoting.server import Peer
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings

log = logging.getLogger(__name__)

GROUPS_TOLD_MAX = 3
"""Groups with different subscriptions that the reply to a heartbeat names."""
STRATEGIES = {"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle}


def notify_members(notice: MembershipNotice | None) -> None:
    """Tell the members of a group that its membership changed."""
    if notice is None:
        return
    # Encoded once: when a thousand members leave one by one, each departure is sent to all others.
    command = NotifyConsumerIdsChanged(notice.group).to_command(oneway=True)
    command.language = Peer.language
    frame = b"".join(encode(command))
    for channel in notice.channels:
        if isinstance(channel, Peer) and not channel.is_closed:
            channel.write(frame)


@dataclass(frozen=True, slots=True, eq=False)
class ClientHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    topics: TopicTable
    groups: SubscriptionGroups
    consumers: ConsumerGroups
    producers: ProducerGroups
    consumer_filters: ConsumerFilters
    locks: QueueLockTable
    request_modes: RequestModes
    role: Role
    find_route: Callable[[str], Awaitable[TopicRouteData | None]]
    """Asks the name servers for the route of a topic."""

    @serves_command(RequestCode.HEART_BEAT)
    def heartbeat(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Register a client with its groups; other members are notified before the reply is sent."""
        data = Heartbeat.from_command(command).body
        self._check_sizes(data)
        client = ConnectedClient(peer, data.client_id, command.language, command.version)
        subscription_changed = data.heartbeat_fingerprint == 0
        different: list[str] = []
        for consumer in data.consumer_data_set:
            registered = self._register_consumer(client, consumer, data)
            if registered is None:
                continue
            subscription_changed |= registered.subscription_changed
            if registered.different_subscriptions is not None:
                different.append(f"group {consumer.group_name}: {registered.different_subscriptions}")
        now = self.clock.monotonic()
        for producer in data.producer_data_set:
            self.producers.register(producer.group_name, client, now=now)
        reply = HeartbeatReply(
            supports_v2=True,
            subscription_changed=subscription_changed,
            different_subscriptions="; ".join(different[:GROUPS_TOLD_MAX]) or None,
        )
        answer = command.reply(fields=reply.to_fields())
        answer.version = version_ordinal(self.live.current.advertised_version)  # clients remember it
        return answer

    def _check_sizes(self, data: HeartbeatData) -> None:
        """Refuse an oversized heartbeat before it creates groups and topics."""
        limit = self.live.current.client_groups_max
        if max(len(data.consumer_data_set), len(data.producer_data_set)) > limit:
            raise full("groups of one client", limit)
        _check_length("clientID", data.client_id, names.CLIENT_ID_CHARS_MAX)
        for producer in data.producer_data_set:
            _check_length("groupName", producer.group_name, names.WRITTEN_NAME_CHARS_MAX)
        for consumer in data.consumer_data_set:
            for wanted in consumer.subscription_data_set:
                _check_length("topic", wanted.topic, names.WRITTEN_NAME_CHARS_MAX)
                _check_length("subString", wanted.sub_string, names.EXPRESSION_CHARS_MAX)

    def _register_consumer(
        self, client: ConnectedClient, consumer: ConsumerData, data: HeartbeatData
    ) -> Registered | None:
        """Register a client in one group.

        A group that neither exists nor is created automatically is skipped, as in RocketMQ.
        """
        if consumer.consume_type == ACTIVELY and self.live.current.reject_pull_consumers:
            return None
        now_ms = self.clock.now_ms()
        config = self.groups.find(consumer.group_name, now_ms=now_ms)
        if config is None:
            return None
        ordered = any(self.topics.is_ordered(wanted.topic) for wanted in consumer.subscription_data_set)
        self.topics.ensure_retry_topic(
            config,
            ordered=None if data.without_sub else ordered,
            unit_mode=consumer.unit_mode,
            now_ms=now_ms,
        )
        registered = self.consumers.register(
            client,
            consumer,
            notify=config.notify_consumer_ids_changed_enable,
            now=self.clock.monotonic(),
            fingerprint=data.heartbeat_fingerprint,
            # Only a fingerprint shows whether omitted subscriptions have changed.
            without_subscriptions=data.without_sub and data.heartbeat_fingerprint != 0,
        )
        notify_members(registered.notice)
        if registered.is_report_due:
            log.warning(
                "members of a group have different subscriptions, messages are skipped group=%s members=%s",
                consumer.group_name,
                registered.different_subscriptions,
            )
        group = self.consumers.group(consumer.group_name)
        if group is not None:
            self.consumer_filters.register(consumer.group_name, group.subscriptions.values(), now_ms=now_ms)
        return registered

    @serves_command(RequestCode.UNREGISTER_CLIENT)
    def unregister_client(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Remove a client from the groups that it names."""
        request = UnregisterClient.from_command(command)
        if request.producer_group is not None:
            self.producers.unregister(request.producer_group, peer)
        if request.consumer_group is not None:
            config = self.groups.get(request.consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            notify_members(self.consumers.unregister(request.consumer_group, peer, notify=notify))
        return command.reply()

    @serves(GetConsumerListByGroup)
    def get_consumer_list(self, request: GetConsumerListByGroup) -> ConsumerIdList:
        return ConsumerIdList(consumer_id_list=self.consumers.client_ids(request.consumer_group))

    @serves(CheckClientConfig)
    def check_client_config(self, request: CheckClientConfig) -> None:
        """Check that a subscription can be served, before a consumer starts with it."""
        check_subscription(request.body.subscription_data, with_sql=self.live.current.sql_filters)

    @serves(LockBatchMq)
    def lock_queues(self, request: LockBatchMq) -> LockedQueues:
        """Lock queues for a client that consumes in order; the reply lists those that it holds."""
        _check_lock(request.body)
        if self.role.is_lapsed:
            raise system_busy("another master may grant this lock: ask name servers for the master")
        return LockedQueues(queues=self.locks.lock(request.body, now=self.clock.monotonic()))

    @serves(UnlockBatchMq)
    def unlock_queues(self, request: UnlockBatchMq) -> None:
        self.locks.unlock(request.body)

    # --- Rebalancing by the broker ---

    @serves(QueryAssignment)
    async def query_assignment(self, request: QueryAssignment) -> Assignments:
        """Return the queues of one member; without a list it keeps those that it has."""
        asked = request.body
        route = await self.find_route(asked.topic)
        mode = self.request_modes.get(asked.topic, asked.consumer_group)
        found = None if route is None else self._assigned(asked, route, mode)
        assigned = (
            None
            if found is None
            else [QueueAssignment(message_queue=queue, mode=mode.mode) for queue in found]
        )
        return Assignments(message_queue_assignments=assigned)

    def _assigned(
        self, asked: AssignmentRequest, route: TopicRouteData, mode: RequestMode
    ) -> Iterable[MessageQueue] | None:
        queues = sorted(read_queues(asked.topic, route))
        if asked.message_model.upper() == BROADCASTING or not self.live.current.divide_queues:
            return queues
        strategy = STRATEGIES.get(asked.strategy_name)
        members = sorted(client.client_id for client in self.consumers.clients(asked.consumer_group))
        if strategy is None or not members or not queues:
            return None
        if asked.client_id not in members:
            return []  # it has left, or has not registered yet
        if mode.mode == POP:
            return shared_queues(asked.client_id, queues, members, strategy, mode.pop_share_queue_num)
        return strategy(asked.client_id, queues, members)


def _check_length(member: str, text: str | None, chars_max: int) -> None:
    if text is not None and len(text) > chars_max:
        raise invalid_parameter(f"{member} has {len(text)} characters, allowed is up to {chars_max}")


def _check_lock(body: LockRequest) -> None:
    """Refuse names that no queue, group or client has: locks are kept until they expire."""
    _check_length("clientId", body.client_id, names.CLIENT_ID_CHARS_MAX)
    _check_length("consumerGroup", body.consumer_group, names.WRITTEN_NAME_CHARS_MAX)
    for queue in body.mq_set:
        _check_length("topic", queue.topic, names.WRITTEN_NAME_CHARS_MAX)
        _check_length("brokerName", queue.broker_name, names.WRITTEN_NAME_CHARS_MAX)
