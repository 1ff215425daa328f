"""Topics of the broker, for administrators: 17, 18, 21, 215, 300, 305, 316, 351."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from skylark.broker.clients import ConsumerGroups
from skylark.broker.error_replies import metadata_is_copied, topic_not_exist
from skylark.broker.handlers.served_requests import HandlerReply, serves, serves_code
from skylark.broker.handlers.sliced_encoding import encode_tables
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.topic_lifecycle import TopicDeletion
from skylark.broker.topics import TopicTable, parse_changes
from skylark.clock import Clock
from skylark.model import names
from skylark.model.lite_topic import parse_light_queue
from skylark.protocol.bodies import DataVersion, GroupList, TopicConfig, TopicList
from skylark.protocol.codes import NO_CODE_REMARK, RequestCode
from skylark.protocol.requests.topic import (
    DeleteTopicInBroker,
    GetTopicConfig,
    QueryTopicConsumeByWho,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from skylark.settings import BrokerSettings
from skylark.settings.live import LiveSettings
from skylark.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, eq=False)
class TopicHandlers:
    live: LiveSettings[BrokerSettings]
    clock: Clock
    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets
    consumers: ConsumerGroups
    stats: BrokerStats
    deletion: TopicDeletion
    wait_registered: Callable[[], Awaitable[None]]
    """Waits, for a limited time, until the name servers know the topics as they are now."""
    started_ms: int

    @serves(UpdateAndCreateTopic, on_slave=metadata_is_copied)
    async def update_topic(self, request: UpdateAndCreateTopic) -> HandlerReply:
        return await self._update(
            [
                TopicConfig(
                    topic_name=request.topic,
                    read_queue_nums=request.read_queue_nums,
                    write_queue_nums=request.write_queue_nums,
                    perm=request.perm,
                    topic_filter_type=request.topic_filter_type,
                    topic_sys_flag=request.topic_sys_flag or 0,
                    order=request.order,
                    attributes=parse_changes(request.attributes),
                )
            ]
        )

    @serves(UpdateAndCreateTopicList, on_slave=metadata_is_copied)
    async def update_topics(self, request: UpdateAndCreateTopicList) -> HandlerReply:
        return await self._update(request.body.topic_config_list)

    async def _update(self, wanted: list[TopicConfig]) -> HandlerReply:
        """Reply when the name servers know: the creator of a topic asks them for its route next."""
        is_system = any(self.topics.is_system(config.topic_name) for config in wanted)
        with self.stats.creation("topic", self.clock.monotonic, is_system=is_system):
            self.topics.update(*wanted, now_ms=self.clock.now_ms())
            await self.wait_registered()
        return HandlerReply(remark=NO_CODE_REMARK)

    @serves(DeleteTopicInBroker, on_slave=metadata_is_copied)
    async def delete_topic(self, request: DeleteTopicInBroker) -> None:
        topic = request.topic
        retry_topics: list[str] = []
        if self.live.current.clear_retry_topics:
            groups = self.offsets.groups_of(topic)
            retry_topics = [name for group in groups for name in names.pop_retry_topics(topic, group)]
        await self._delete(topic)
        for name in retry_topics:
            if self.topics.get(name) is not None:
                await self._delete(name)

    async def _delete(self, topic: str) -> None:
        was_configured = self.topics.delete(topic, now_ms=self.clock.now_ms())
        await self.deletion.delete(topic, was_configured=was_configured)

    @serves_code(RequestCode.CLEAN_UNUSED_TOPIC, on_slave=metadata_is_copied)
    async def clean_unused_topics(self) -> None:
        """Delete the queues of topics that no longer exist."""
        for topic in self.store.topics():
            place = parse_light_queue(topic)
            if self.topics.get(topic if place is None else place[0]) is None and not self.topics.is_system(
                topic
            ):
                await self.deletion.delete_queues(topic)

    @serves_code(RequestCode.GET_ALL_TOPIC_CONFIG)
    async def get_all_topics(self) -> bytes:
        table = self.topics.table()
        document = {
            "dataVersion": table.data_version,
            "mappingDataVersion": DataVersion(timestamp=self.started_ms),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        return await encode_tables(document, {"topicConfigTable": table.topic_config_table})

    @serves(GetTopicConfig)
    def get_topic(self, request: GetTopicConfig) -> TopicConfig:
        config = self.topics.get(request.topic)
        if config is None:
            raise topic_not_exist(f"No topic in this broker. topic: {request.topic}")
        return config

    @serves_code(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def get_system_topics(self) -> TopicList:
        return TopicList(topic_list=self.topics.system_topics())

    @serves(QueryTopicConsumeByWho)
    def query_consumers(self, request: QueryTopicConsumeByWho) -> GroupList:
        """List the groups that consume a topic, or have offsets in it."""
        groups = {*self.consumers.groups_of(request.topic), *self.offsets.groups_of(request.topic)}
        return GroupList(group_list=sorted(groups))
