"""Groups and clients, for administrators: 200, 201, 203, 204, 207, 225, 328, 343, 345, 352, 353, 401, 402."""

from __future__ import annotations

from skylark.broker.error_replies import group_not_exist, no_permission, topic_not_exist
from skylark.broker.handlers.sliced_encoding import encode_tables
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.model import names
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import (
    GroupForbidden,
    GroupSubscription,
    SubscriptionGroupConfig,
    TopicList,
    encode_body,
)
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.client import SetMessageRequestMode
from skylark.protocol.requests.group import (
    DeleteSubscriptionGroup,
    GetConsumerConnectionList,
    GetProducerConnectionList,
    GetSubscriptionGroupConfig,
    QuerySubscriptionByConsumer,
    QueryTopicsByConsumer,
    UpdateAndCreateSubscriptionGroup,
    UpdateAndCreateSubscriptionGroupList,
    UpdateAndGetGroupForbidden,
)
from skylark.remoting.server import Peer

# --- Configurations ---


def update_group(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = UpdateAndCreateSubscriptionGroup.from_command(command)
    return _update(broker, command, [request.body])


def update_groups(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = UpdateAndCreateSubscriptionGroupList.from_command(command)
    return _update(broker, command, request.body.group_config_list)


def _update(
    broker: BrokerState, command: RemotingCommand, wanted: list[SubscriptionGroupConfig]
) -> RemotingCommand:
    is_system = any(names.is_system_group(config.group_name) for config in wanted)
    with broker.stats.creation("consumer_group", broker.clock.monotonic, is_system=is_system):
        broker.groups.update(*wanted, now_ms=broker.clock.now_ms())
    return command.reply()


def delete_group(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = DeleteSubscriptionGroup.from_command(command)
    broker.groups.delete(request.group_name, now_ms=broker.clock.now_ms())
    if request.clean_offset or request.remove_offset:
        broker.offsets.delete_group(request.group_name)
    broker.stats.forget_group(request.group_name)
    return command.reply()


async def get_all_groups(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    table = broker.groups.table()
    document = {"dataVersion": table.data_version, "forbiddenTable": table.forbidden_table}
    body = await encode_tables(document, {"subscriptionGroupTable": table.subscription_group_table})
    return command.reply(body=body)


def get_group(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """One group; where groups make themselves, asking makes it."""
    group = GetSubscriptionGroupConfig.from_command(command).group
    config = broker.groups.find(group, now_ms=broker.clock.now_ms())
    if config is None:
        raise group_not_exist("No group in this broker")
    return command.reply(body=encode_body(config))


def forbid(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Forbid a group to read a topic, allow it again, or just say which it is."""
    request = UpdateAndGetGroupForbidden.from_command(command)
    group, topic = request.group, request.topic
    if request.readable is not None:
        broker.groups.set_readable(group, topic, request.readable, now_ms=broker.clock.now_ms())
    body = GroupForbidden(group=group, topic=topic, readable=broker.groups.is_readable(group, topic))
    return command.reply(ResponseCode.SUCCESS, "", body=encode_body(body))


def set_request_mode(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    mode = SetMessageRequestMode.from_command(command).body
    if mode.topic.startswith(RETRY_TOPIC_PREFIX):
        raise no_permission("retry topic is not allowed to set mode")
    if broker.topics.get(mode.topic) is None:
        raise topic_not_exist(f"topic[{mode.topic}] not exist")
    if broker.groups.find(mode.consumer_group, now_ms=broker.clock.now_ms()) is None:
        raise group_not_exist("subscription group does not exist")
    broker.request_modes.set(mode)
    return command.reply()


async def get_request_modes(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    table = broker.request_modes.table().message_request_mode_map
    return command.reply(body=await encode_tables({}, {"messageRequestModeMap": table}))


# --- Who is there ---


def get_consumers(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    group = GetConsumerConnectionList.from_command(command).consumer_group
    return command.reply(body=encode_body(broker.consumers.connection(group)))


def get_producers(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    group = GetProducerConnectionList.from_command(command).producer_group
    return command.reply(body=encode_body(broker.producers.connection(group)))


async def get_all_producers(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    clock = broker.clock
    table = broker.producers.table(now=clock.monotonic(), now_ms=clock.now_ms())
    return command.reply(body=await encode_tables({}, {"data": table.data}))


def query_topics(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """The topics that a group has offsets in."""
    group = QueryTopicsByConsumer.from_command(command).group
    topics = TopicList(topic_list=broker.offsets.topics_of(group), broker_addr=broker.address)
    return command.reply(body=encode_body(topics))


def query_subscription(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = QuerySubscriptionByConsumer.from_command(command)
    topic = request.topic or ""
    subscription = broker.consumers.subscription(request.group, topic)
    body = GroupSubscription(
        group=request.group,
        topic=topic,
        subscription_data=subscription.data if subscription is not None else None,
    )
    return command.reply(body=encode_body(body))


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_groups,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbid,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: get_request_modes,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: get_consumers,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: get_producers,
    RequestCode.GET_ALL_PRODUCER_INFO: get_all_producers,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: query_topics,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: query_subscription,
}
