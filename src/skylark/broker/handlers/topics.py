"""Topics of the broker, for administrators: 17, 18, 21, 215, 300, 305, 316, 351."""

from __future__ import annotations

from functools import partial

from skylark.broker.error_replies import topic_not_exist
from skylark.broker.handlers.sliced_encoding import encode_tables
from skylark.broker.state import BrokerHandler, BrokerState
from skylark.broker.topics import parse_changes
from skylark.model import names
from skylark.protocol.bodies import DataVersion, GroupList, TopicConfig, TopicList, encode_body
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode, ResponseCode
from skylark.protocol.command import RemotingCommand
from skylark.protocol.requests.topic import (
    DeleteTopicInBroker,
    GetTopicConfig,
    QueryTopicConsumeByWho,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from skylark.remoting.server import Peer


async def update_topic(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = UpdateAndCreateTopic.from_command(command)
    wanted = TopicConfig(
        topic_name=request.topic,
        read_queue_nums=request.read_queue_nums,
        write_queue_nums=request.write_queue_nums,
        perm=request.perm,
        topic_filter_type=request.topic_filter_type,
        topic_sys_flag=request.topic_sys_flag or 0,
        order=request.order,
        attributes=parse_changes(request.attributes),
    )
    return await _update(broker, command, [wanted])


async def update_topics(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    request = UpdateAndCreateTopicList.from_command(command)
    return await _update(broker, command, request.body.topic_config_list)


async def _update(
    broker: BrokerState, command: RemotingCommand, wanted: list[TopicConfig]
) -> RemotingCommand:
    """Answer when the name servers know: who has made a topic asks them for it next."""
    is_system = any(broker.topics.is_system(config.topic_name) for config in wanted)
    with broker.stats.creation("topic", broker.clock.monotonic, is_system=is_system):
        broker.topics.update(*wanted, now_ms=broker.clock.now_ms())
        await broker.wait_registered()
    return command.reply(ResponseCode.SUCCESS, NO_CODE_REMARK)


async def delete_topic(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    topic = DeleteTopicInBroker.from_command(command).topic
    retry_topics: list[str] = []
    if broker.live.current.clear_retry_topics:
        groups = broker.offsets.groups_of(topic)
        retry_topics = [name for group in groups for name in names.pop_retry_topics(topic, group)]
    await _delete(broker, topic)
    for name in retry_topics:
        if broker.topics.get(name) is not None:
            await _delete(broker, name)
    return command.reply()


async def _delete(broker: BrokerState, topic: str) -> None:
    """Delete a topic and all that is kept of it but its records. Raises BrokerError 29 for built-in ones."""
    was_there = broker.topics.delete(topic, now_ms=broker.clock.now_ms())
    broker.offsets.delete_topic(topic)
    broker.stats.forget_topic(topic)
    # The store remembers what was deleted as long as there may be records of it: not what never was.
    if was_there or await broker.read_cold(lambda: topic in broker.store.topics()):
        await _delete_queues(broker, topic)
    # They wait for a queue that is gone.
    broker.long_polling.wake_topic(topic)


async def _delete_queues(broker: BrokerState, topic: str) -> None:
    async with broker.deleting:
        await broker.read_cold(partial(broker.store.housekeeper.delete_topic, topic))


async def clean_unused_topics(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """Delete the queues of topics that there are no more."""
    for topic in broker.store.topics():
        if broker.topics.get(topic) is None and not broker.topics.is_system(topic):
            await _delete_queues(broker, topic)
    return command.reply()


async def get_all_topics(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    table = broker.topics.table()
    document = {
        "dataVersion": table.data_version,
        "mappingDataVersion": DataVersion(timestamp=broker.started_ms),
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    body = await encode_tables(document, {"topicConfigTable": table.topic_config_table})
    return command.reply(body=body)


def get_topic(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    topic = GetTopicConfig.from_command(command).topic
    config = broker.topics.get(topic)
    if config is None:
        raise topic_not_exist(f"No topic in this broker. topic: {topic}")
    return command.reply(body=encode_body(config))


def get_system_topics(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    return command.reply(body=encode_body(TopicList(topic_list=broker.topics.system_topics())))


def query_consumers(broker: BrokerState, _: Peer, command: RemotingCommand) -> RemotingCommand:
    """The groups that consume a topic, or have."""
    topic = QueryTopicConsumeByWho.from_command(command).topic
    groups = {*broker.consumers.groups_of(topic), *broker.offsets.groups_of(topic)}
    return command.reply(body=encode_body(GroupList(group_list=sorted(groups))))


ROUTES: dict[RequestCode, BrokerHandler] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: update_topics,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.CLEAN_UNUSED_TOPIC: clean_unused_topics,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topics,
    RequestCode.GET_TOPIC_CONFIG: get_topic,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: get_system_topics,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: query_consumers,
}
