"""Lite topics (200070 to 200079): subscriptions of clients, pops over all of them, and what brokers know."""

from typing import ClassVar

from msgspec import Struct, field

from skylark.protocol.bodies import Body, GroupOffset, TopicOffset
from skylark.protocol.codes import RequestCode, ResponseCode
from skylark.protocol.command import BODY_MEMBER, Buffer, Int32, Int64, RemotingCommand
from skylark.protocol.request import Header, Request

PARTIAL_ADD = "PARTIAL_ADD"
PARTIAL_REMOVE = "PARTIAL_REMOVE"
COMPLETE_ADD = "COMPLETE_ADD"
COMPLETE_REMOVE = "COMPLETE_REMOVE"
POLICY, OFFSET, TAIL_N, TIMESTAMP = "POLICY", "OFFSET", "TAIL_N", "TIMESTAMP"
POLICY_LAST, POLICY_MIN, POLICY_MAX = 0, 1, 2


class PopLiteReply(Header, frozen=True):
    """`order_count_info`: for each message how often it was delivered before, joined by `;`."""

    pop_time: Int64
    invisible_time: Int64
    revive_queue_id: Int32 = field(name="reviveQid")
    order_count_info: str | None = None


class PopLiteResult(Struct, frozen=True):
    """Code 0 with records of the parent topic, 19 or 210 no message, 209 too many held pops."""

    code: int
    reply: PopLiteReply | None
    records: Buffer


class PopLiteMessage(Request[PopLiteResult], frozen=True):
    """Pop messages of all lite topics that a client of a group subscribes; each stays in order."""

    code: ClassVar[RequestCode] = RequestCode.POP_LITE_MESSAGE
    good_codes: ClassVar[frozenset[int]] = frozenset(
        {
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.POLLING_FULL,
            ResponseCode.POLLING_TIMEOUT,
        }
    )
    init_mode: ClassVar[int] = 1
    queue_id: ClassVar[int] = -1
    client_id: str
    consumer_group: str
    topic: str
    max_msg_nums: Int32 = field(name="maxMsgNum")
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64 = 0
    attempt_id: str | None = None

    def parse(self, reply: RemotingCommand) -> PopLiteResult:
        header = PopLiteReply.from_fields(reply.fields) if reply.fields else None
        return PopLiteResult(reply.code, header, reply.body)


class OffsetOption(Body):
    """Where a new subscription begins: a policy (0 last, 1 min, 2 max), an offset, or a count before it."""

    type: str = POLICY
    value: Int64 = 0


class LiteSubscriptionChange(Body):
    """What a client adds to its lite topics or removes, or all of them."""

    action: str
    client_id: str = ""
    group: str = ""
    topic: str = ""
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    version: Int64 = 0


class LiteSubscriptionChanges(Body):
    subscription_set: list[LiteSubscriptionChange] = field(default_factory=list)


class LiteSubscriptionCtl(Request[None], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.LITE_SUBSCRIPTION_CTL
    body: LiteSubscriptionChanges = field(name=BODY_MEMBER)


class NotifyUnsubscribeLite(Request[None], frozen=True):
    """Tells a client that another one of its group has taken over a lite topic. One-way."""

    code: ClassVar[RequestCode] = RequestCode.NOTIFY_UNSUBSCRIBE_LITE
    lite_topic: str
    consumer_group: str
    client_id: str


class BrokerLiteInfo(Body):
    """`topic_meta` has the minutes after which lite topics of a parent expire, `group_meta` its groups."""

    store_type: str = "default"
    max_lmq_num: Int32 = 0
    current_lmq_num: Int32 = 0
    lite_subscription_count: Int32 = 0
    order_info_count: Int32 = 0
    cq_table_size: Int32 = 0
    offset_table_size: Int32 = 0
    event_map_size: Int32 = 0
    topic_meta: dict[str, Int32] = field(default_factory=dict)
    group_meta: dict[str, list[str]] = field(default_factory=dict)


class GetBrokerLiteInfo(Request[BrokerLiteInfo], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_BROKER_LITE_INFO
    answer = BrokerLiteInfo


class ParentTopicInfo(Body):
    topic: str = ""
    ttl: Int32 = -1
    groups: list[str] | None = None
    lmq_num: Int32 = 0
    lite_topic_count: Int32 = 0


class GetParentTopicInfo(Request[ParentTopicInfo], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_PARENT_TOPIC_INFO
    answer = ParentTopicInfo
    topic: str


class LiteSubscriber(Body):
    client_id: str
    group: str


class LiteTopicInfo(Body):
    parent_topic: str = ""
    lite_topic: str = ""
    subscriber: list[LiteSubscriber] = field(default_factory=list)
    topic_offset: TopicOffset = field(default_factory=TopicOffset)
    sharding_to_broker: bool = False


class GetLiteTopicInfo(Request[LiteTopicInfo], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_LITE_TOPIC_INFO
    answer = LiteTopicInfo
    parent_topic: str
    lite_topic: str


class LiteClientInfo(Body):
    """A count of -1: the broker does not know the client."""

    parent_topic: str = ""
    group: str = ""
    client_id: str = ""
    last_access_time: Int64 = -1
    last_consume_time: Int64 = 0
    lite_topic_count: Int32 = -1
    lite_topic_set: list[str] | None = None


class GetLiteClientInfo(Request[LiteClientInfo], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_LITE_CLIENT_INFO
    answer = LiteClientInfo
    parent_topic: str
    group: str
    client_id: str
    max_count: Int32 = 1000


class LiteLag(Body):
    lite_topic: str = ""
    lag_count: Int64 = 0
    earliest_unconsumed_timestamp: Int64 = -1


class LiteGroupInfo(Body):
    """The lag in one lite topic, or in all: those with the largest one, by number and by age."""

    group: str = ""
    parent_topic: str = ""
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: Int64 = -1
    total_lag_count: Int64 = 0
    lite_topic_offset_wrapper: GroupOffset | None = None
    lag_count_top_k: list[LiteLag] | None = field(default=None, name="lagCountTopK")
    lag_timestamp_top_k: list[LiteLag] | None = field(default=None, name="lagTimestampTopK")


class GetLiteGroupInfo(Request[LiteGroupInfo], frozen=True):
    code: ClassVar[RequestCode] = RequestCode.GET_LITE_GROUP_INFO
    answer = LiteGroupInfo
    group: str
    lite_topic: str | None = None
    top_k: Int32 = field(default=20, name="topK")


class TriggerLiteDispatch(Request[None], frozen=True):
    """Look again for messages of a client, or of all clients of a group."""

    code: ClassVar[RequestCode] = RequestCode.TRIGGER_LITE_DISPATCH
    group: str
    client_id: str | None = None
