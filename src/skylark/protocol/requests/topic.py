"""Topics of a broker: 17, 18, 21, 202, 215, 300, 305, 351."""

from typing import ClassVar, Self

from msgspec import field

from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.protocol.bodies import (
    GroupList,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
)
from skylark.protocol.codes import RequestCode
from skylark.protocol.command import BODY_MEMBER, Int32
from skylark.protocol.request import Request


class UpdateAndCreateTopic(Request[None], frozen=True):
    """`attributes` is `+name=value,-name`."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None
    force: bool | None = None

    @classmethod
    def of(cls, config: TopicConfig) -> Self:
        """Return the request that makes a topic as configured."""
        attributes = ",".join(
            f"{name}={value}" if name.startswith("+") else name for name, value in config.attributes.items()
        )
        return cls(
            topic=config.topic_name,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            order=config.order,
            topic_sys_flag=config.topic_sys_flag,
            attributes=attributes,
            force=False,
        )


class UpdateAndCreateTopicList(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    body: TopicConfigList = field(name=BODY_MEMBER)


class DeleteTopicInBroker(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str


class GetAllTopicConfig(Request[TopicConfigTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_ALL_TOPIC_CONFIG
    answer = TopicConfigTable


class GetTopicConfig(Request[TopicConfig], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_TOPIC_CONFIG
    answer = TopicConfig
    topic: str
    logical: bool | None = field(default=None, name="lo")


class GetTopicStatsInfo(Request[TopicStatsTable], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_TOPIC_STATS_INFO
    answer = TopicStatsTable
    topic: str


class QueryTopicConsumeByWho(Request[GroupList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    answer = GroupList
    topic: str


class GetSystemTopicListFromBroker(Request[TopicList], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    answer = TopicList
