"""Bodies of offsets, statistics and administration. See `bodies`."""

from typing import Any

from msgspec import field

from skylark.protocol.bodies import Body, DataVersion, MessageQueue, SubscriptionData
from skylark.protocol.command import Int32, Int64

# --- Offsets ---


class ConsumerOffsetTable(Body):
    """Committed offsets by `topic@group` and queue id, as in consumerOffset.json."""

    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None
    stray_offsets: dict[str, list[Int32]] | None = None
    """Of a slave of ours: the queues by `topic@group` in which clients committed there, not at its master."""


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
    """What `QueueOffsets` is to C++ clients."""

    offset_table: list[QueueOffset] = field(default_factory=list)


class ConsumerStatus(Body):
    """Offsets by queue, of one client or by client id."""

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


class ConsumeStats(Body):
    offset_table: dict[MessageQueue, GroupOffset] = field(default_factory=dict)
    consume_tps: float = 0.0


class BrokerConsumeStats(Body):
    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
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
    """Times in ms, and again as text: local time as `yyyy-MM-dd#HH:mm:ss:SSS`."""

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


# --- What a consumer says about itself ---


class ProcessQueueInfo(Body):
    """The state of one queue in a consumer. `droped` is spelled so on the wire."""

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


class ConsumeResult(Body):
    """One of CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION, CR_RETURN_NULL."""

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: Int64 = 0


# --- Pop ---


class BatchAck(Body):
    """Acknowledgements of one check point; the bits of `bit_set` count from `start_offset`, in base64."""

    consumer_group: str = field(name="c")
    topic: str = field(name="t")
    start_offset: Int64 = field(name="so")
    queue_id: Int32 = field(name="q")
    revive_queue_id: Int32 = field(name="rq")
    pop_time: Int64 = field(name="pt")
    invisible_time: Int64 = field(name="it")
    bit_set: str = field(name="b")
    retry: str = field(name="r", default="0")


class BatchAckBody(Body):
    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)


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


# --- Access control ---


class UserInfo(Body):
    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


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
