"""Clients and their groups: 34, 35, 38, 41, 42, 46. Who is a member, and who consumes a queue in order."""

from __future__ import annotations

from skylark.broker.clients import ACTIVELY, ConnectedClient
from skylark.broker.error_replies import full, invalid_parameter
from skylark.broker.filters.compiled_subscription import check_subscription
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.model import names
from skylark.protocol.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockedQueues,
    LockRequest,
    encode_body,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import (
    CheckClientConfig,
    GetConsumerListByGroup,
    Heartbeat,
    HeartbeatReply,
    LockBatchMq,
    UnlockBatchMq,
    UnregisterClient,
)
from skylark.remoting.server import Peer


def heartbeat(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Take what a client says of itself; whoever must hear of it does before the client has its answer."""
    data = Heartbeat.from_command(command).body
    _check_sizes(broker, data)
    client = ConnectedClient(peer, data.client_id, command.language, command.version)
    subscription_changed = data.heartbeat_fingerprint == 0
    for consumer in data.consumer_data_set:
        if _register_consumer(broker, client, consumer, data):
            subscription_changed = True
    now = broker.clock.monotonic()
    for producer in data.producer_data_set:
        broker.producers.register(producer.group_name, client, now=now)
    reply = HeartbeatReply(supports_v2=True, subscription_changed=subscription_changed)
    return command.reply(fields=reply.to_fields())


def _check_sizes(broker: BrokerState, data: HeartbeatData) -> None:
    """Refuse a heartbeat that no client could mean before it makes groups and topics."""
    limit = broker.live.current.client_groups_max
    if max(len(data.consumer_data_set), len(data.producer_data_set)) > limit:
        raise full("groups of one client", limit)
    _check_length("clientID", data.client_id, names.CLIENT_ID_CHARS_MAX)
    for producer in data.producer_data_set:
        _check_length("groupName", producer.group_name, names.WRITTEN_NAME_CHARS_MAX)
    for consumer in data.consumer_data_set:
        for wanted in consumer.subscription_data_set:
            _check_length("topic", wanted.topic, names.WRITTEN_NAME_CHARS_MAX)
            _check_length("subString", wanted.sub_string, names.EXPRESSION_CHARS_MAX)


def _check_length(member: str, text: str | None, chars_max: int) -> None:
    if text is not None and len(text) > chars_max:
        raise invalid_parameter(f"{member} has {len(text)} characters, allowed is up to {chars_max}")


def _check_lock(body: LockRequest) -> None:
    """Refuse names that no queue, group or client has: locks are kept until they end."""
    _check_length("clientId", body.client_id, names.CLIENT_ID_CHARS_MAX)
    _check_length("consumerGroup", body.consumer_group, names.WRITTEN_NAME_CHARS_MAX)
    for queue in body.mq_set:
        _check_length("topic", queue.topic, names.WRITTEN_NAME_CHARS_MAX)
        _check_length("brokerName", queue.broker_name, names.WRITTEN_NAME_CHARS_MAX)


def _register_consumer(
    broker: BrokerState, client: ConnectedClient, consumer: ConsumerData, data: HeartbeatData
) -> bool:
    """Take what a heartbeat says of one group; return whether the client must send its subscriptions again.

    A group that is not there and does not make itself is passed over, as in RocketMQ.
    """
    if consumer.consume_type == ACTIVELY and broker.live.current.reject_pull_consumers:
        return False
    now_ms = broker.clock.now_ms()
    config = broker.groups.find(consumer.group_name, now_ms=now_ms)
    if config is None:
        return False
    ordered = any(broker.topics.is_ordered(wanted.topic) for wanted in consumer.subscription_data_set)
    broker.topics.ensure_retry_topic(
        config,
        ordered=None if data.without_sub else ordered,
        unit_mode=consumer.unit_mode,
        now_ms=now_ms,
    )
    registered = broker.consumers.register(
        client,
        consumer,
        notify=config.notify_consumer_ids_changed_enable,
        now=broker.clock.monotonic(),
        fingerprint=data.heartbeat_fingerprint,
        # Only with a fingerprint can the broker tell that what was left out has changed.
        without_subscriptions=data.without_sub and data.heartbeat_fingerprint != 0,
    )
    broker.tell(registered.notice)
    group = broker.consumers.group(consumer.group_name)
    if group is not None:
        broker.consumer_filters.register(consumer.group_name, group.subscriptions.values(), now_ms=now_ms)
    return registered.subscription_changed


def unregister_client(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Take a client out of the groups that it names."""
    request = UnregisterClient.from_command(command)
    if request.producer_group is not None:
        broker.producers.unregister(request.producer_group, peer)
    if request.consumer_group is not None:
        config = broker.groups.get(request.consumer_group)
        notify = config is None or config.notify_consumer_ids_changed_enable
        broker.tell(broker.consumers.unregister(request.consumer_group, peer, notify=notify))
    return command.reply()


def get_consumer_list(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Name the members of a group, among which they divide its queues."""
    request = GetConsumerListByGroup.from_command(command)
    members = ConsumerIdList(consumer_id_list=broker.consumers.client_ids(request.consumer_group))
    return command.reply(body=encode_body(members))


def check_client_config(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Say whether a subscription can be served, before a consumer starts with it."""
    data = CheckClientConfig.from_command(command).body.subscription_data
    check_subscription(data, with_sql=broker.live.current.sql_filters)
    return command.reply()


def lock_queues(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Lock queues for a client that consumes in order; the answer names those that it has now."""
    request = LockBatchMq.from_command(command).body
    _check_lock(request)
    locked = broker.locks.lock(request, now=broker.clock.monotonic())
    return command.reply(body=encode_body(LockedQueues(queues=locked)))


def unlock_queues(broker: BrokerState, peer: Peer, command: RemotingCommand) -> RemotingCommand:
    """Free a client's queues for the others."""
    broker.locks.unlock(UnlockBatchMq.from_command(command).body)
    return command.reply()


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: get_consumer_list,
    RequestCode.LOCK_BATCH_MQ: lock_queues,
    RequestCode.UNLOCK_BATCH_MQ: unlock_queues,
    RequestCode.CHECK_CLIENT_CONFIG: check_client_config,
}
