"""Consumer groups of a broker: 200, 201, 203, 204, 207, 208, 225, 303, 328, 343, 345, 352, 353."""

from typing import ClassVar

from msgspec import field

from skylark.protocol.bodies import (
    ConsumerConnection,
    ConsumeStatsTable,
    ConsumeTimeSpans,
    GroupForbidden,
    GroupSubscription,
    ProducerConnection,
    ProducerTable,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicList,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER
from skylark.protocol.request import Request


class UpdateAndCreateSubscriptionGroup(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body: SubscriptionGroupConfig = field(name=BODY_MEMBER)


class UpdateAndCreateSubscriptionGroupList(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    body: SubscriptionGroupList = field(name=BODY_MEMBER)


class GetAllSubscriptionGroupConfig(Request[SubscriptionGroupTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    answer = SubscriptionGroupTable


class GetSubscriptionGroupConfig(Request[SubscriptionGroupConfig], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    answer = SubscriptionGroupConfig
    group: str


class DeleteSubscriptionGroup(Request[None], frozen=True):
    """RocketMQ 4.9 sends `removeOffset` instead of `cleanOffset`."""

    code: ClassVar[RequestCode] = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


class UpdateAndGetGroupForbidden(Request[GroupForbidden], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    answer = GroupForbidden
    group: str
    topic: str
    readable: bool | None = None


class GetConsumerConnectionList(Request[ConsumerConnection], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = ConsumerConnection
    consumer_group: str


class GetProducerConnectionList(Request[ProducerConnection], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_PRODUCER_CONNECTION_LIST
    answer = ProducerConnection
    producer_group: str


class GetAllProducerInfo(Request[ProducerTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_PRODUCER_INFO
    answer = ProducerTable


class GetConsumeStats(Request[ConsumeStatsTable], frozen=True):
    """Without a topic: all topics with offsets of the group. `topic_list` ends every name with `;`."""

    code: ClassVar[RequestCode] = RequestCode.GET_CONSUME_STATS
    answer = ConsumeStatsTable
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class QueryConsumeTimeSpan(Request[ConsumeTimeSpans], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.QUERY_CONSUME_TIME_SPAN
    answer = ConsumeTimeSpans
    topic: str
    group: str


class QueryTopicsByConsumer(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.QUERY_TOPICS_BY_CONSUMER
    answer = TopicList
    group: str


class QuerySubscriptionByConsumer(Request[GroupSubscription], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    answer = GroupSubscription
    group: str
    topic: str | None = None
