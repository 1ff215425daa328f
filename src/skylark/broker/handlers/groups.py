"""Groups and clients, for administrators: 200, 201, 203, 204, 207, 225, 328, 343, 345, 352, 353, 401, 402."""

from __future__ import annotations

from dataclasses import dataclass

from skylark.broker.clients import ConsumerGroups, ProducerGroups
from skylark.broker.error_replies import (
    group_not_exist,
    metadata_is_copied,
    no_permission,
    topic_not_exist,
)
from skylark.broker.groups import RequestModes, SubscriptionGroups
from skylark.broker.handlers.served_requests import HandlerReply, serves, serves_code
from skylark.broker.handlers.sliced_encoding import encode_tables
from skylark.broker.monitoring.stats import BrokerStats
from skylark.broker.offsets import ConsumerOffsets
from skylark.broker.topics import TopicTable
from skylark.clock import Clock
from skylark.model import names
from skylark.model.message import RETRY_TOPIC_PREFIX
from skylark.protocol.bodies import (
    ConsumerConnection,
    GroupForbidden,
    GroupSubscription,
    ProducerConnection,
    SubscriptionGroupConfig,
    TopicList,
)
from skylark.protocol.codes import RequestCode
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


@dataclass(frozen=True, slots=True, eq=False)
class GroupHandlers:
    clock: Clock
    topics: TopicTable
    groups: SubscriptionGroups
    request_modes: RequestModes
    offsets: ConsumerOffsets
    consumers: ConsumerGroups
    producers: ProducerGroups
    stats: BrokerStats
    address: str

    # --- Configurations ---

    @serves(UpdateAndCreateSubscriptionGroup, on_slave=metadata_is_copied)
    def update_group(self, request: UpdateAndCreateSubscriptionGroup) -> None:
        self._update([request.body])

    @serves(UpdateAndCreateSubscriptionGroupList, on_slave=metadata_is_copied)
    def update_groups(self, request: UpdateAndCreateSubscriptionGroupList) -> None:
        self._update(request.body.group_config_list)

    def _update(self, wanted: list[SubscriptionGroupConfig]) -> None:
        is_system = any(names.is_system_group(config.group_name) for config in wanted)
        with self.stats.creation("consumer_group", self.clock.monotonic, is_system=is_system):
            self.groups.update(*wanted, now_ms=self.clock.now_ms())

    @serves(DeleteSubscriptionGroup, on_slave=metadata_is_copied)
    def delete_group(self, request: DeleteSubscriptionGroup) -> None:
        self.groups.delete(request.group_name, now_ms=self.clock.now_ms())
        if request.clean_offset or request.remove_offset:
            self.offsets.delete_group(request.group_name)
        self.stats.forget_group(request.group_name)

    @serves_code(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    async def get_all_groups(self) -> bytes:
        table = self.groups.table()
        document = {"dataVersion": table.data_version, "forbiddenTable": table.forbidden_table}
        return await encode_tables(document, {"subscriptionGroupTable": table.subscription_group_table})

    @serves(GetSubscriptionGroupConfig)
    def get_group(self, request: GetSubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Return a group; where groups are created automatically, this creates it."""
        config = self.groups.find(request.group, now_ms=self.clock.now_ms())
        if config is None:
            raise group_not_exist("No group in this broker")
        return config

    @serves(UpdateAndGetGroupForbidden, on_slave=metadata_is_copied)
    def forbid(self, request: UpdateAndGetGroupForbidden) -> HandlerReply:
        """Forbid a group to read a topic, or allow it again, and return whether it may."""
        group, topic = request.group, request.topic
        if request.readable is not None:
            self.groups.set_readable(group, topic, request.readable, now_ms=self.clock.now_ms())
        body = GroupForbidden(group=group, topic=topic, readable=self.groups.is_readable(group, topic))
        return HandlerReply(remark="", body=body)

    @serves(SetMessageRequestMode, on_slave=metadata_is_copied)
    def set_request_mode(self, request: SetMessageRequestMode) -> None:
        mode = request.body
        if mode.topic.startswith(RETRY_TOPIC_PREFIX):
            raise no_permission("retry topic is not allowed to set mode")
        if self.topics.get(mode.topic) is None:
            raise topic_not_exist(f"topic[{mode.topic}] not exist")
        if self.groups.find(mode.consumer_group, now_ms=self.clock.now_ms()) is None:
            raise group_not_exist("subscription group does not exist")
        self.request_modes.set(mode)

    @serves_code(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    async def get_request_modes(self) -> bytes:
        table = self.request_modes.table().message_request_mode_map
        return await encode_tables({}, {"messageRequestModeMap": table})

    # --- Connected clients ---

    @serves(GetConsumerConnectionList)
    def get_consumers(self, request: GetConsumerConnectionList) -> ConsumerConnection:
        return self.consumers.connection(request.consumer_group)

    @serves(GetProducerConnectionList)
    def get_producers(self, request: GetProducerConnectionList) -> ProducerConnection:
        return self.producers.connection(request.producer_group)

    @serves_code(RequestCode.GET_ALL_PRODUCER_INFO)
    async def get_all_producers(self) -> bytes:
        table = self.producers.table(now=self.clock.monotonic(), now_ms=self.clock.now_ms())
        return await encode_tables({}, {"data": table.data})

    @serves(QueryTopicsByConsumer)
    def query_topics(self, request: QueryTopicsByConsumer) -> TopicList:
        """List the topics in which a group has offsets."""
        return TopicList(topic_list=self.offsets.topics_of(request.group), broker_addr=self.address)

    @serves(QuerySubscriptionByConsumer)
    def query_subscription(self, request: QuerySubscriptionByConsumer) -> GroupSubscription:
        topic = request.topic or ""
        subscription = self.consumers.subscription(request.group, topic)
        return GroupSubscription(
            group=request.group,
            topic=topic,
            subscription_data=subscription.data if subscription is not None else None,
        )
