"""JSON bodies of requests and replies, as structs that read and write Java's dialect.

snake_case here, camelCase on the wire. A None member is omitted; an omitted member has its default. Reading
is as tolerant as fastjson: bare and object keys, numbers as text, unknown members.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from skylark.errors import BadJson, RemoteProtocolError
from skylark.model import java
from skylark.protocol.command import Buffer, Int32, Int64

B = TypeVar("B")

MASTER_ID = 0
"""The broker id of a master; slaves have higher ids."""
MEMBERS_NAMED_MAX = 3
"""Members that the text of a `SubscriptionKind` names."""
# Permission bits of topics and brokers. Topics with PERM_INHERIT serve as templates for new topics.
PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
# Bits of `topic_sys_flag`.
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


def encode_body(body: Any) -> bytes:
    """Encode structs, lists and maps like fastjson: compact, sorted, with bare integer and object keys."""
    return java.dumps(_plain(body))


def encode_standard_body(body: Any) -> bytes:
    """Encode standard JSON with quoted keys and ASCII text, as the name server does on request."""
    return json.dumps(_plain(body), separators=(",", ":"), sort_keys=True).encode()


def decode_body(data: Buffer, body_type: type[B]) -> B:
    """Decode a body in fastjson's dialect, ignoring unknown members. Raises RemoteProtocolError."""
    try:
        return msgspec.json.decode(data, type=body_type, strict=False)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        document = java.loads(bytes(data))
        if b"null" in bytes(data):
            document = _without_nulls(document)
        return msgspec.convert(document, body_type, strict=False)
    except (msgspec.ValidationError, BadJson, RecursionError) as error:
        raise RemoteProtocolError(
            f"body is not a {getattr(body_type, '__name__', body_type)}: {error}"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        members = {name: _plain(getattr(value, attribute)) for attribute, name in names}
        return {name: member for name, member in members.items() if member is not None}
    if isinstance(value, Mapping):
        return {
            java.ObjectKey(_plain(key)) if isinstance(key, Struct) else key: _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _without_nulls(value: Any) -> Any:
    """Drop null members: Java treats them as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


class Body(Struct, rename="camel"):
    """Base class of all bodies."""


class MessageQueue(Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker; sorts in the order that rebalancing uses."""

    topic: str
    broker_name: str
    queue_id: Int32


class DataVersion(Struct, frozen=True, rename="camel"):
    """Version of a table. Versions are compared for equality only."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0


class KVTable(Body):
    table: dict[str, str] = field(default_factory=dict)


# --- Routes ---


class QueueData(Body):
    """The queues of a topic on one broker. `perm` holds the PERM_ bits."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(Body):
    """The addresses of one broker name by broker id; 0 is the master."""

    broker_name: str
    cluster: str | None = None
    broker_addrs: dict[Int64, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRouteData(Body):
    broker_datas: list[BrokerData] = field(default_factory=list)
    queue_datas: list[QueueData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(Body):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class BrokerMemberGroup(Body):
    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[Int64, str] = field(default_factory=dict)


class BrokerMemberGroupBody(Body):
    broker_member_group: BrokerMemberGroup


class TopicList(Body):
    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


# --- Topics and groups ---


class TopicConfig(Body):
    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigTable(Body):
    """All topics of a broker. The mapping members belong to static topics."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = field(default_factory=DataVersion)
    topic_queue_mapping_detail_map: dict[str, Any] | None = field(default_factory=dict)
    topic_queue_mapping_info_map: dict[str, Any] | None = field(default_factory=dict)


class RegisterBrokerBody(Body):
    topic_config_serialize_wrapper: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = field(default_factory=list)


class TopicConfigList(Body):
    topic_config_list: list[TopicConfig] = field(default_factory=list)


class SubscriptionGroupConfig(Body):
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupTable(Body):
    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, Int32]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class SubscriptionGroupList(Body):
    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body):
    group: str
    topic: str
    readable: bool | None = None


class GroupList(Body):
    group_list: list[str] = field(default_factory=list)


# --- Members of groups ---


class SubscriptionData(Body):
    """`code_set` holds Java's hashes of the tags."""

    topic: str
    sub_string: str | None = None
    expression_type: str | None = "TAG"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[Int32] = field(default_factory=list)
    sub_version: Int64 = 0
    class_filter_mode: bool = False


class ConsumerData(Body):
    """Go sends `Clustering` and `BroadCasting`; Java ignores case, and so does this."""

    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = self.consume_type and self.consume_type.upper()
        self.message_model = self.message_model and self.message_model.upper()
        self.consume_from_where = self.consume_from_where and self.consume_from_where.upper()


class ProducerData(Body):
    group_name: str


class HeartbeatData(Body):
    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


class ConsumerIdList(Body):
    consumer_id_list: list[str] = field(default_factory=list)


class ClientConfig(Body):
    """A subscription to validate before a consumer starts."""

    group: str
    subscription_data: SubscriptionData
    client_id: str | None = None
    namespace: str | None = None


class LockRequest(Body):
    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False


class LockedQueues(Body):
    queues: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


class ConnectionInfo(Body):
    client_id: str
    client_addr: str
    language: str
    version: Int32


class SubscriptionKind(Body):
    """Members of a group that subscribe the same: expressions by topic, and client ids."""

    expressions: dict[str, str] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """`orders: created (10.0.0.1@1, 10.0.0.2@1)`; of many members the first ones."""
        wanted = ", ".join(f"{topic}: {expression}" for topic, expression in self.expressions.items())
        named = self.members[:MEMBERS_NAMED_MAX]
        more = len(self.members) - len(named)
        return f"{wanted} ({', '.join(named)}{f' and {more} more' if more else ''})"


class ConsumerConnection(Body):
    connection_set: list[ConnectionInfo] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_kinds: list[SubscriptionKind] | None = None
    """Sent by Skylark's brokers if not all members subscribe the same."""


class ProducerConnection(Body):
    connection_set: list[ConnectionInfo] = field(default_factory=list)


class ProducerInfo(Body):
    client_id: str
    remote_ip: str = field(name="remoteIP")
    language: str
    version: Int32
    last_update_timestamp: Int64


class ProducerTable(Body):
    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class GroupSubscription(Body):
    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class AssignmentRequest(Body):
    client_id: str
    consumer_group: str
    topic: str
    message_model: str = "CLUSTERING"
    strategy_name: str = "AVG"


class QueueAssignment(Body):
    message_queue: MessageQueue
    mode: str = "PULL"


class Assignments(Body):
    """A missing list means that the current assignment stays."""

    message_queue_assignments: list[QueueAssignment] | None = None


class RequestMode(Body):
    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0


class RequestModeTable(Body):
    message_request_mode_map: dict[str, dict[str, RequestMode]] = field(default_factory=dict)


# --- Offsets ---


class ConsumerOffsetTable(Body):
    """Committed offsets by `topic@group` and queue id, as in consumerOffset.json."""

    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None
    pull_offset_table: dict[str, dict[Int32, Int64]] | None = None
    """Offsets that groups have pulled up to; RocketMQ 5.5 keeps them, 5.3.3 does not."""
    stray_offsets: dict[str, list[Int32]] | None = None
    """Sent by slaves of Skylark: queues by `topic@group` whose offsets were committed on the slave."""
    consumer_order_info: str | None = None
    """Sent by Skylark: the text of consumerOrderInfo.json, if queues are popped in order."""


class DelayOffsetTable(Body):
    """Offsets by delay level, as in delayOffset.json."""

    offset_table: dict[Int32, Int64] = field(default_factory=dict)
    data_version: DataVersion | None = None


class QueueOffsets(Body):
    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)


class QueueOffset(Body):
    topic: str
    broker_name: str
    queue_id: Int32
    offset: Int64


class QueueOffsetList(Body):
    """`QueueOffsets` in the format of C++ clients."""

    offset_table: list[QueueOffset] = field(default_factory=list)


class ConsumerStatus(Body):
    """Offsets by queue, for one client or per client id."""

    message_queue_table: dict[MessageQueue, Int64] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(default_factory=dict)


class CorrectionOffsets(Body):
    correction_offsets: dict[Int32, Int64] = field(default_factory=dict)


# --- Statistics ---


class TopicOffset(Body):
    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp: Int64 = 0


class TopicStatsTable(Body):
    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class GroupOffset(Body):
    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStatsTable(Body):
    offset_table: dict[MessageQueue, GroupOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


class BrokerConsumeStats(Body):
    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStatsTable]]] = field(default_factory=list)
    total_diff: Int64 = 0
    total_inflight_diff: Int64 = 0


class StatsSnapshot(Body):
    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    stats_minute: StatsSnapshot
    stats_hour: StatsSnapshot
    stats_day: StatsSnapshot


class ConsumeTimeSpan(Body):
    """Times in ms and as text in local time, `yyyy-MM-dd#HH:mm:ss:SSS`."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class ConsumeTimeSpans(Body):
    consume_time_span_set: list[ConsumeTimeSpan] = field(default_factory=list)


class ConsumeQueueUnit(Body):
    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool = False
    msg: str | None = None
    extend_data_json: str | None = None
    bit_map: str | None = None


class ConsumeQueueUnits(Body):
    queue_data: list[ConsumeQueueUnit] = field(default_factory=list)
    min_queue_index: Int64 = 0
    max_queue_index: Int64 = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class TimerCount(Body):
    count: Int64 = 0
    time_stamp: Int64 = 0


class TimerMetrics(Body):
    timing_count: dict[str, TimerCount] = field(default_factory=dict)
    data_version: DataVersion | None = None


# --- Diagnosis of consumers ---


class ProcessQueueInfo(Body):
    """The state of one queue in a consumer. `droped` is the spelling on the wire."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mi_b: Int32 = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    droped: bool = False
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0
    accumulated_msg_count: Int64 | None = None  # not in Java's body; its readers ignore it


class PopProcessQueueInfo(Body):
    wait_ack_count: Int32 = 0
    droped: bool = False
    last_pop_timestamp: Int64 = 0


class ConsumeStatus(Body):
    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(Body):
    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeDirectlyResult(Body):
    """One of CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION, CR_RETURN_NULL."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0


# --- Replicas and controller ---


class HaClientInfo(Body):
    master_addr: str | None = None
    transferred_byte_in_second: Int64 = 0
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0


class HaConnectionInfo(Body):
    addr: str | None = None
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0


class HaStatus(Body):
    master: bool
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HaConnectionInfo] = field(default_factory=list)
    ha_client_runtime_info: HaClientInfo = field(default_factory=HaClientInfo)


class EpochCache(Body):
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 = 0
    max_offset: Int64 = 0
    epoch_list: list[dict[str, Any]] = field(default_factory=list)


# --- Controllers ---


class SyncStateSet(Struct, frozen=True, rename="camel"):
    """The replicas that have all acknowledged messages, by controller id, sorted."""

    members: tuple[Int64, ...] = field(default=(), name="syncStateSet")
    epoch: Int32 = field(default=0, name="syncStateSetEpoch")

    @classmethod
    def of(cls, members: Iterable[int], epoch: int) -> "SyncStateSet":
        return cls(tuple(sorted(members)), epoch)


class ElectedMasterBody(Body):
    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: tuple[Int64, ...] = ()


class ReplicaIdentity(Body):
    broker_name: str
    broker_id: Int64
    broker_address: str
    alive: bool = False


class ReplicasInfo(Body):
    """The replicas of one broker name."""

    master_epoch: Int32 = 0
    sync_state_set_epoch: Int32 = 0
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


class ReplicasInfoBody(Body):
    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


# --- Access control ---


class UserInfo(Body):
    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type!r}, {self.user_status!r})"


class PolicyEntry(Body):
    resource: str | None = None
    actions: list[str] = field(default_factory=list)
    source_ips: list[str] | None = None
    decision: str | None = None


class Policy(Body):
    policy_type: str | None = None
    entries: list[PolicyEntry] = field(default_factory=list)


class AclInfo(Body):
    subject: str | None = None
    policies: list[Policy] = field(default_factory=list)
