"""Settings of a broker: identity, ports, limits, replication, transactions, timers."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.auth import AuthSettings
from skylark.settings.fields import FAST_PORT_DISTANCE, check_address, check_ranges, setting
from skylark.settings.store import StoreSettings
from skylark.settings.tls import ClientTlsSettings, ServerTlsSettings


class RequestKind(Enum):
    """How members of a group get messages of a topic."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """Checks of unfinished transactions: when, how often, how many."""

    reject: bool = setting(False, "rejectTransactionMessage", live=True)
    timeout_ms: int = setting(6000, "transactionTimeOut", 0, live=True)
    check_interval_ms: int = setting(30_000, "transactionCheckInterval", 1, live=True)
    check_max: int = setting(15, "transactionCheckMax", 1, live=True)
    open_max: int = setting(100_000, "transactionOpenMax", 1, live=True)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class TimerSettings:
    """Precision and range of timed messages."""

    enabled: bool = setting(True, "timerWheelEnable")
    precision_ms: int = setting(1000, "timerPrecisionMs", 100, 1000)
    max_delay_s: int = setting(259_200, "timerMaxDelaySec", 1, 7 * 86_400, live=True)
    roll_window_slots: int = setting(172_800, "timerRollWindowSlot", 2, 604_800)
    slot_messages_max: int = setting((1 << 31) - 1, "timerCongestNumEachSlot", 1, (1 << 31) - 1, live=True)
    log_file_bytes: int = setting(100 << 20, "mappedFileSizeTimerLog", 5200)
    recall: bool = setting(True, "recallMessageEnable", live=True)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class PopSettings:
    """Pop consumption: how long batches stay in memory, retry topics, held pops, assignment."""

    merges: bool = setting(True, "enablePopBufferMerge", live=True)  # False: every check point is written
    stay_ms: int = setting(10_000, "popCkStayBufferTime", 0, 600_000, live=True)
    batches_max: int = setting(200_000, "popCkMaxBufferSize", 1, live=True)
    retry_topic_v2: bool = setting(False, "enableRetryTopicV2", live=True)
    reads_retry_v1: bool = setting(True, "retrieveMessageFromPopRetryTopicV1", live=True)
    retry_percent: int = setting(20, "popFromRetryProbability", 0, 100, live=True)
    priority_retry_percent: int = setting(0, "popFromRetryProbabilityForPriority", 0, 100, live=True)
    priority_ascends: bool = setting(True, "priorityOrderAsc", live=True)  # False: 0 is the highest
    returns_retry_topic: bool = setting(False, "popResponseReturnActualRetryTopic", live=True)
    starts_in_memory: bool = setting(True, "initPopOffsetByCheckMsgInMem", live=True)
    limits_in_flight: bool = setting(False, "enablePopMessageThreshold", live=True)
    in_flight_max: int = setting(10_000, "popInflightMessageThreshold", 1, live=True)
    revive_interval_ms: int = setting(200, "reviveInterval", 10, live=True)
    drops_after_reputs: bool = setting(False, "skipWhenCKRePutReachMaxTimes", live=True)
    held_max: int = setting(100_000, "maxPopPollingSize", 1, live=True)
    held_key_max: int = setting(1024, "popPollingSize", 1, live=True)  # per topic, group and queue id
    force_wake_interval: int = setting(800, "popLongPollingForceNotifyInterval", 1, live=True)
    default_mode: RequestKind = setting(RequestKind.PULL, "defaultMessageRequestMode", live=True)
    default_share_queues: int = setting(-1, "defaultPopShareQueueNum", -1, live=True)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class LiteSettings:
    """Lite topics: many small topics of one parent topic."""

    ttl_ms_min: int = setting(900_000, "minLiteTTl", 0, live=True)
    ttl_check_interval_ms: int = setting(120_000, "liteTtlCheckInterval", 1)
    subscription_check_interval_ms: int = setting(120_000, "liteSubscriptionCheckInterval", 1)
    subscription_expiry_ms: int = setting(180_000, "liteSubscriptionCheckTimeoutMills", 1, live=True)
    subscriptions_max: int = setting(100_000, "maxLiteSubscriptionCount", 1, live=True)
    limits_topics: bool = setting(False, "enableLmqQuota", live=True)
    topics_max: int = setting(20_000, "maxLmqConsumeQueueNum", 1, live=True)  # with enableLmqQuota

    def __post_init__(self) -> None:
        check_ranges(self)


BATCH_BYTES_MAX = 4 << 20
"""The frame buffer of Apache's slaves."""


class BrokerRole(Enum):
    """Whether a broker accepts sends, and whether their replies wait for a slave."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def words_of(text: str) -> list[str]:
    """Split a list, whose separators are `;` or `,`."""
    return [word.strip() for word in text.replace(",", ";").split(";") if word.strip()]


@dataclass(frozen=True, kw_only=True)
class ReplicationSettings:
    """Replication: how a master serves its slaves and a slave follows its master."""

    slave_of: str = setting("", "slaveOf")
    replica_address: str = setting("", "haMasterAddress")
    force_master: bool = setting(False, "forceMaster")

    heartbeat_interval_ms: int = setting(5000, "haSendHeartbeatInterval", 1)
    idle_timeout_ms: int = setting(20_000, "haHousekeepingInterval", 1)
    reconnect_interval_ms_max: int = setting(5000, "haReconnectIntervalMax", 1)
    batch_bytes: int = setting(128 << 10, "haTransferBatchSize", 1, BATCH_BYTES_MAX)
    flow_control: bool = setting(False, "haFlowControlEnable", live=True)
    bytes_per_s_max: int = setting(100 << 20, "maxHaTransferByteInSecond", 1, live=True)
    connections_max: int = setting(16, "haConnectionsMax", 1)
    overlap_bytes: int = setting(1 << 20, "haOverlapBytes", 1)
    allowed_addresses: str = setting("", "haAllowedAddresses")  # of slaves that connect by plain text
    allowed_names: str = setting("", "haAllowedNames")  # of slaves that connect by TLS
    plain_text: bool = setting(False, "haPlainText")  # a slave's link, whatever tls_client says

    ack_timeout_ms: int = setting(3000, "slaveTimeout", 1, live=True)
    lag_bytes_max: int = setting(256 << 20, "haMaxGapNotInSync", 0, live=True)
    in_sync_replicas: int | None = setting(None, "inSyncReplicas", 1)
    min_in_sync_replicas: int = setting(1, "minInSyncReplicas", 1)
    auto_in_sync_replicas: bool = setting(False, "enableAutoInSyncReplicas")

    all_ack: bool = setting(True, "allAckInSyncStateSet")
    lag_ms_max: int = setting(15_000, "haMaxTimeSlaveNotCatchup", 1, live=True)
    async_learner: bool = setting(False, "asyncLearner")
    sync_from_last_file: bool = setting(False, "syncFromLastFile")

    metadata_interval_ms: int = setting(10_000, "slaveMetadataSyncPeriod", 1)
    offset_check: bool = setting(False, "offsetCheckInSlave", live=True)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("slave_of", "replica_address"):
            if address := getattr(self, name):
                check_address(address, name)
        self.allows_address("127.0.0.1")

    def allows_address(self, host: str) -> bool:
        """Return whether `allowed_addresses` has this address. Raises SettingsError if it is invalid."""
        address = ipaddress.ip_address(host.partition("%")[0])
        try:
            networks = [ipaddress.ip_network(word) for word in words_of(self.allowed_addresses)]
        except ValueError as error:
            raise SettingsError("allowed_addresses", f"{error}; use addresses such as 10.0.0.0/8") from None
        return any(address in network for network in networks)


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Controller mode: who decides which broker of a name is the master, and how fast."""

    enabled: bool = setting(False, "enableControllerMode")
    controllers: str = setting("", "controllerAddr")
    heartbeat_interval_ms: int = setting(500, "brokerHeartbeatInterval", 1)
    heartbeat_timeout_ms: int = setting(3000, "controllerHeartBeatTimeoutMills", 1)
    poll_interval_ms: int = setting(500, "syncBrokerMetadataPeriod", 1)
    leader_interval_ms: int = setting(10_000, "syncControllerMetadataPeriod", 1)
    request_timeout_ms: int = setting(2000, "sendHeartbeatTimeoutMillis", 1)
    election_priority: int = setting((1 << 31) - 1, "brokerElectionPriority", 0, (1 << 31) - 1)
    lease_ms: int = setting(2000, "masterLeaseMs", 0)  # 0: no lease

    def __post_init__(self) -> None:
        check_ranges(self)
        for address in words_of(self.controllers):
            check_address(address, "controllers")
        if self.enabled and not words_of(self.controllers):
            raise SettingsError("controllers", "missing; set controllerAddr to host:port;host:port")
        if self.enabled and self.lease_ms and self.heartbeat_timeout_ms < self.lease_ms + LEASE_MARGIN_MS:
            raise SettingsError(
                "heartbeat_timeout_ms",
                f"{self.heartbeat_timeout_ms} is less than masterLeaseMs + {LEASE_MARGIN_MS}: another master "
                "could be elected while this one still grants locks",
            )


LEASE_MARGIN_MS = 500
"""A controller counts a broker as dead so much later, at least, than that broker's lease has ended."""

CONFIG_BLACK_LIST = "configBlackList;brokerConfigPath"
# Cluster and broker names become topic names, with a prefix of up to 27 characters.
_BROKER_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,100}")
_VERSION = re.compile("V[45]_[0-9]_[0-9]")


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Identity, addresses, behaviour and limits of a broker."""

    store: StoreSettings = field(default_factory=StoreSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    timers: TimerSettings = field(default_factory=TimerSettings)
    pop: PopSettings = field(default_factory=PopSettings)
    lite: LiteSettings = field(default_factory=LiteSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    tls: ServerTlsSettings = field(default_factory=ServerTlsSettings)
    tls_client: ClientTlsSettings = field(default_factory=ClientTlsSettings)

    cluster: str = setting("DefaultCluster", "brokerClusterName")
    name: str = setting("broker-a", "brokerName")
    broker_id: int = setting(0, "brokerId", -1)
    role: BrokerRole = setting(BrokerRole.ASYNC_MASTER, "brokerRole")
    region: str = setting("DefaultRegion", "regionId")
    advertised_version: str = setting("V5_3_3", "advertisedVersion")  # of RocketMQ, for clients and tools
    host: str = setting("127.0.0.1", "bindAddress")
    port: int = setting(10_911, "listenPort", 0, 65_534)
    replica_port: int | None = setting(None, "haListenPort", 0, 65_535)
    metrics_port: int = setting(5557, "metricsPromExporterPort", 0, 65_535)
    metrics_token: str = setting("", "metricsToken", secret=True)
    require_secure_listener: bool = setting(False, "requireSecureListener")
    advertised_host: str = setting("", "brokerIP1")
    advertised_replica_host: str = setting("", "brokerIP2")
    name_servers: str = setting("", "namesrvAddr")
    config_path: Path | None = setting(None, "brokerConfigPath")  # changes at run time are saved here
    config_black_list: str = setting(CONFIG_BLACK_LIST, "configBlackList")

    register_interval_ms: int = setting(30_000, "registerNameServerPeriod", 1, 60_000, live=True)
    register_timeout_ms: int = setting(24_000, "registerBrokerTimeoutMills", 1, live=True)

    permission: int = setting(6, "brokerPermission", 0, 7, live=True)
    default_topic_queues: int = setting(8, "defaultTopicQueueNums", 1)
    auto_create_topics: bool = setting(True, "autoCreateTopicEnable", live=True)
    share_new_topics: bool = setting(False, "shareNewTopics", live=True)
    auto_create_groups: bool = setting(True, "autoCreateSubscriptionGroup", live=True)
    create_system_groups: bool = setting(True, "enableCreateSysGroup", live=True)
    cluster_topic: bool = setting(True, "clusterTopicEnable")
    broker_topic: bool = setting(True, "brokerTopicEnable")
    trace_topic: bool = setting(False, "traceTopicEnable")
    trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", "msgTraceTopicName")
    trace_on: bool = setting(True, "traceOn")
    revive_queues: int = setting(8, "reviveQueueNum", 1)
    protect_system_topics: bool = setting(True, "validateSystemTopicWhenUpdateTopic", live=True)
    mixed_message_type: bool = setting(False, "enableMixedMessageType", live=True)
    clear_retry_topics: bool = setting(True, "clearRetryTopicWhenDeleteTopic", live=True)

    accept_sends_from_ms: int = setting(0, "startAcceptSendRequestTimeStamp", 0, live=True)
    send_queue_max: int = setting(10_000, "sendThreadPoolQueueCapacity", 1)
    pull_queue_max: int = setting(100_000, "pullThreadPoolQueueCapacity", 1)
    pull_wait_ms: int = setting(5000, "waitTimeMillsInPullQueue", 1, live=True)
    query_queue_max: int = setting(20_000, "queryThreadPoolQueueCapacity", 1)
    query_messages: int = setting(32, "defaultQueryMaxNum", 1)

    store_replies: bool = setting(True, "storeReplyMessageEnable", live=True)

    long_polling: bool = setting(True, "longPollingEnable", live=True)
    short_polling_ms: int = setting(1000, "shortPollingTimeMills", 1, live=True)
    hold_check_interval_ms: int = setting(5000, "holdCheckInterval", 1)
    limit_cold_reads: bool = setting(False, "coldDataFlowControlEnable", live=True)
    group_cold_bytes_max: int = setting(3 << 20, "cgColdReadThreshold", 0, live=True)
    cold_bytes_max: int = setting(100 << 20, "globalColdReadThreshold", 0, live=True)
    lite_pull: bool = setting(True, "litePullMessageEnable", live=True)
    reject_pull_consumers: bool = setting(False, "rejectPullConsumerEnable", live=True)
    sql_filters: bool = setting(True, "enablePropertyFilter", live=True)
    slave_read: bool = setting(False, "slaveReadEnable", live=True)

    client_expiry_ms: int = setting(120_000, "channelExpiredTimeout", 1)
    client_scan_interval_ms: int = setting(10_000, "clientScanInterval", 1)
    subscription_expiry_ms: int = setting(600_000, "subscriptionExpiredTimeout", 1)
    notify_members: bool = setting(True, "notifyConsumerIdsChangedEnable", live=True)
    divide_queues: bool = setting(True, "serverLoadBalancerEnable", live=True)
    lock_expiry_ms: int = setting(60_000, "rocketmq.broker.rebalance.lockMaxLiveTime", 1)

    archive_group: str = setting("", "archiveGroup", live=True)

    server_side_reset: bool = setting(True, "useServerSideResetOffset", live=True)
    offset_persist_interval_ms: int = setting(5000, "flushConsumerOffsetInterval", 1)
    offset_version_step: int = setting(500, "consumerOffsetUpdateVersionStep", 1)
    delay_offset_persist_interval_ms: int = setting(10_000, "flushDelayOffsetInterval", 1)
    delay_offset_version_step: int = setting(200, "delayOffsetUpdateVersionStep", 1)
    metadata_gather_ms: int = setting(100, "metadataGatherTime", 0)
    shutdown_timeout_ms: int = setting(5000, "shutdownTimeout", 1)

    idle_timeout_s: int = setting(120, "serverChannelMaxIdleTimeSeconds", 1)
    frame_bytes_max: int = setting(16 << 20, "com.rocketmq.remoting.frameMaxLength", 4096)
    connections_max: int = setting(16_384, "connectionsMax", 1)
    requests_in_flight_max: int = setting(1024, "requestsInFlightMax", 1)  # per connection
    bytes_in_flight_max: int = setting(512 << 20, "bytesInFlightMax", 1 << 20)
    write_high_water_bytes: int = setting(1 << 20, "writeHighWaterBytes", 4096)
    write_bytes_max: int = setting(64 << 20, "writeBytesMax", 1 << 20)
    stay_awake_us: int = setting(100, "stayAwakeMicros", 0, 1000)  # 0: no busy polling
    client_requests_per_s_max: int = setting(0, "clientRequestsPerSecondMax", 0, live=True)  # 0: no limit
    client_requests_burst_max: int = setting(10_000, "clientRequestsBurstMax", 1, live=True)
    held_pulls_max: int = setting(100_000, "heldPullsMax", 1)
    held_bytes_max: int = setting(64 << 20, "heldBytesMax", 1 << 20)
    topics_max: int = setting(100_000, "topicsMax", 1)
    topic_queues_max: int = setting(65_536, "topicQueuesMax", 1)
    queues_max: int = setting(1_000_000, "queuesMax", 1)
    groups_max: int = setting(100_000, "groupsMax", 1)
    client_groups_max: int = setting(4096, "clientGroupsMax", 1)  # per connection
    group_subscriptions_max: int = setting(10_000, "groupSubscriptionsMax", 1)
    offset_keys_max: int = setting(1_000_000, "offsetKeysMax", 1)  # pairs of topic and group
    locks_max: int = setting(1_000_000, "locksMax", 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("cluster", "name"):
            value = getattr(self, name)
            if not _BROKER_NAME.fullmatch(value):
                raise SettingsError(
                    name, f"invalid name {value!r}; use 1 to 100 of the characters % | _ . - a-z A-Z 0-9"
                )
        if not _VERSION.fullmatch(self.advertised_version):
            raise SettingsError(
                "advertised_version",
                f"invalid version {self.advertised_version!r}; use V4_0_0 to V5_9_9, such as V5_5_0",
            )
        if 0 < self.port <= FAST_PORT_DISTANCE:
            raise SettingsError(
                "port",
                f"{self.port} leaves no room for the fast port {FAST_PORT_DISTANCE} below; use a higher port",
            )
        for address in filter(None, map(str.strip, self.name_servers.split(";"))):
            check_address(address, "name_servers")
        self._settle_role()

    def _settle_role(self) -> None:
        """Make the broker a slave if its id is above 0 or `slave_of` is set; id and role then agree.

        In controller mode the settings have neither: a broker begins as a slave without an id.
        """
        if self.group.enabled:
            if self.replication.slave_of:
                raise SettingsError("slave_of", "cannot be set in controller mode, which chooses the master")
            object.__setattr__(self, "broker_id", -1)
            object.__setattr__(self, "role", BrokerRole.SLAVE)
            return
        if self.broker_id < 0:
            raise SettingsError("broker_id", "-1 is for controller mode; set enableControllerMode=true")
        if self.broker_id == 0 and self.replication.slave_of:
            object.__setattr__(self, "broker_id", 1)
        if self.broker_id == 0 and self.role is BrokerRole.SLAVE:
            raise SettingsError("broker_id", "a slave needs an id above 0; 0 is the master")
        if self.broker_id > 0 and self.role is BrokerRole.SYNC_MASTER:
            raise SettingsError("role", f"SYNC_MASTER requires broker id 0, not {self.broker_id}")
        if self.broker_id > 0:
            object.__setattr__(self, "role", BrokerRole.SLAVE)

    @property
    def is_slave(self) -> bool:
        return self.role is BrokerRole.SLAVE

    @property
    def config_directory(self) -> Path:
        """Directory of topics, groups and offsets."""
        return self.store.path / "config"
