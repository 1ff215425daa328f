"""Settings of clients: connection, producers, push and pull consumers. The defaults are the Java client's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.fields import check_address, check_ranges, setting

NAME_SERVERS_VARIABLE = "NAMESRV_ADDR"
UNNAMED_INSTANCE = "DEFAULT"
"""Instances with this name get one client id per client object."""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Identity, name servers and intervals of a client. The defaults are the Java client's."""

    name_servers: str = setting("", "namesrvAddr")  # a:9876;b:9876; empty: the variable NAMESRV_ADDR
    client_ip: str = setting("", "clientIP")  # empty: the source address of outgoing connections
    instance_name: str = setting(UNNAMED_INSTANCE, "instanceName")
    unit_name: str = setting("", "unitName")
    namespace: str = setting("", "namespace")
    vip_channel: bool = setting(False, "vipChannelEnabled")

    # Credentials; if empty, those of the environment (see `settings.credentials`).
    access_key: str = setting("", "accessKey")
    secret_key: str = setting("", "secretKey", secret=True)
    security_token: str = setting("", "securityToken", secret=True)
    credentials_file: Path | None = setting(None, "credentialsFile")

    # TLS; if empty, that of the environment (see `settings.tls`).
    tls: bool | None = setting(None, "tls.enable")
    tls_trusted: Path | None = setting(None, "tls.client.trustCertPath")
    tls_check_server: bool | None = setting(None, "tls.client.authServer")
    tls_server_name: str = setting("", "tls.client.serverName")
    tls_certificate: Path | None = setting(None, "tls.client.certPath")
    tls_key: Path | None = setting(None, "tls.client.keyPath")
    tls_key_password: str = setting("", "tls.client.keyPassword", secret=True)

    route_refresh_interval_ms: int = setting(30_000, "pollNameServerInterval", 1)
    heartbeat_interval_ms: int = setting(30_000, "heartbeatBrokerInterval", 1)
    request_timeout_ms: int = setting(3000, "mqClientApiTimeout", 1)
    connect_timeout_ms: int = setting(3000, "connectTimeoutMillis", 1)
    stop_timeout_ms: int = setting(5000, "stopTimeout", 0)

    def __post_init__(self) -> None:
        check_ranges(self)


class Compression(Enum):
    """Body compression. LZ4 and ZSTD need `skylarkmq[compression]`."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


@dataclass(frozen=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer. The defaults are the Java producer's."""

    send_timeout_ms: int = setting(3000, "sendMsgTimeout", 1)  # for all attempts together
    attempt_timeout_ms: int | None = setting(None, "sendMsgMaxTimeoutPerRequest", 1)
    retries: int = setting(2, "retryTimesWhenSendFailed", 0)
    retry_when_not_stored: bool = setting(False, "retryAnotherBrokerWhenNotStoreOK")
    message_bytes_max: int = setting(4 << 20, "maxMessageSize", 1)
    new_topic_queues: int = setting(4, "defaultTopicQueueNums", 1)
    delay_levels: int = setting(18, "delayLevels", 1)  # of the brokers

    compress_from_bytes: int = setting(4096, "compressMsgBodyOverHowmuch", 1)
    compress_level: int = setting(5, "compressLevel", 0, 9)
    compression: Compression = setting(Compression.ZLIB, "compressType")

    avoid_slow_brokers: bool = setting(False, "sendLatencyFaultEnable")

    in_flight_max: int = setting(1024, "backPressureForAsyncSendNum", 1)
    in_flight_bytes_max: int = setting(100 << 20, "backPressureForAsyncSendSize", 1 << 20)

    batching: bool = setting(False, "autoBatch")
    batch_delay_ms: int = setting(10, "batchMaxDelayMs", 1, 30_000)
    batch_bytes_max: int = setting(32 << 10, "batchMaxBytes", 1, 2 << 20)
    batch_pending_bytes_max: int = setting(32 << 20, "totalBatchMaxBytes", 1)

    trace: bool = setting(False, "enableTrace")
    trace_topic: str = setting("RMQ_SYS_TRACE_TOPIC", "traceTopic")
    trace_flush_ms: int = setting(5000, "traceFlushInterval", 1)

    def __post_init__(self) -> None:
        check_ranges(self)


def name_server_list(
    given: str, settings: ClientSettings, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the name server addresses: the argument, else the setting, else the environment.

    Raises SettingsError if there are none or one is not host:port.
    """
    variables = os.environ if environment is None else environment
    text = given or settings.name_servers or variables.get(NAME_SERVERS_VARIABLE, "")
    addresses = tuple(
        dict.fromkeys(_without_scheme(word.strip()) for word in text.split(";") if word.strip())
    )
    if not addresses:
        raise SettingsError(
            "name_servers",
            f'no name server given; pass namesrv="host:9876" or set {NAME_SERVERS_VARIABLE}',
        )
    for address in addresses:
        check_address(address, "name_servers")
    return addresses


def _without_scheme(address: str) -> str:
    return address.rpartition("/")[2] if address.startswith(("http://", "https://")) else address


CONSUME_TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
OFFSET_DIRECTORY = ".rocketmq_offsets"
RECONSUME_TIMES_CONCURRENT = 16
RECONSUME_TIMES_ORDERLY = (1 << 31) - 1


class MessageModel(Enum):
    """Whether one member of a group receives a message, or every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(Enum):
    """Start position of a group without offsets. The values are those of heartbeats."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, kw_only=True)
class PushConsumerSettings:
    """Settings of a push consumer.

    `consume_timestamp` is the start for ConsumeFrom.TIMESTAMP, as `yyyyMMddHHmmss` in local time or as a
    datetime; empty: half an hour before the consumer was created.
    """

    model: MessageModel = setting(MessageModel.CLUSTERING, "messageModel")
    orderly: bool = setting(False, "orderly")
    consume_from: ConsumeFrom = setting(ConsumeFrom.LAST_OFFSET, "consumeFromWhere")
    consume_timestamp: str | datetime = setting("", "consumeTimestamp")

    # Consuming.
    batch_max: int = setting(1, "consumeMessageBatchMaxSize", 1, 1024)
    threads_max: int = setting(20, "consumeThreadMax", 1, 1000)  # coroutines for async listeners
    consume_timeout_ms: int = setting(900_000, "consumeTimeout", 1)
    reconsume_times_max: int = setting(-1, "maxReconsumeTimes", -1, RECONSUME_TIMES_ORDERLY)
    suspend_ms: int = setting(1000, "suspendCurrentQueueTimeMillis", 10, 30_000)
    local_retry_ms: int = setting(5000, "localRetryDelay", 1)
    stop_wait_ms: int = setting(20_000, "awaitTerminationMillisWhenShutdown", 0)

    # Limits of messages held in memory: per queue, and shared by the queues of a topic (-1: no limit).
    queue_messages_max: int = setting(1000, "pullThresholdForQueue", 1, 65_535)
    queue_mib_max: int = setting(100, "pullThresholdSizeForQueue", 1, 1024)
    topic_messages_max: int = setting(-1, "pullThresholdForTopic", -1, 6_553_500)
    topic_mib_max: int = setting(-1, "pullThresholdSizeForTopic", -1, 102_400)
    span_max: int = setting(2000, "consumeConcurrentlyMaxSpan", 1, 65_535)

    # Pulling.
    pull_batch_max: int = setting(32, "pullBatchSize", 1, 1024)
    pull_batch_bytes_max: int = setting(256 << 10, "pullBatchSizeInBytes", 1)
    pull_interval_ms: int = setting(0, "pullInterval", 0, 65_535)
    post_subscription: bool = setting(False, "postSubscriptionWhenPull")
    hold_ms: int = setting(15_000, "brokerSuspendMaxTimeMillis", 1)
    pull_timeout_ms: int = setting(30_000, "consumerTimeoutMillisWhenSuspend", 1)
    first_pull_delay_ms: int = setting(500, "firstPullDelay", 0)
    pull_failure_delay_ms: int = setting(1000, "pullTimeDelayMillsWhenException", 1)
    flow_control_delay_ms: int = setting(50, "pullTimeDelayMillsWhenCacheFlowControl", 1)
    broker_busy_delay_ms: int = setting(20, "pullTimeDelayMillsWhenBrokerFlowControl", 1)
    paused_delay_ms: int = setting(1000, "pullTimeDelayMillsWhenSuspend", 1)
    pull_idle_max_ms: int = setting(120_000, "rocketmq.client.pull.pullMaxIdleTime", 1)

    # Rebalancing.
    rebalance_interval_ms: int = setting(20_000, "rocketmq.client.rebalance.waitInterval", 1)
    rebalance_gap_ms: int = setting(1000, "rocketmq.client.rebalance.minInterval", 1)
    lock_interval_ms: int = setting(20_000, "rocketmq.client.rebalance.lockInterval", 1)
    lock_expiry_ms: int = setting(30_000, "rocketmq.client.rebalance.lockMaxLiveTime", 1)
    lock_first_ms: int = setting(1000, "lockFirstDelay", 0)
    lock_retry_ms: int = setting(500, "lockRetryDelay", 1)
    lock_failure_delay_ms: int = setting(3000, "lockFailureDelay", 1)
    lock_timeout_ms: int = setting(1000, "lockTimeout", 1)
    give_up_wait_ms: int = setting(500, "giveUpWait", 0)
    unlock_delay_ms: int = setting(20_000, "rocketmq.client.unlockDelayTimeMills", 0)

    # Progress.
    offset_persist_interval_ms: int = setting(5000, "persistConsumerOffsetInterval", 1)
    offset_persist_first_ms: int = setting(10_000, "persistConsumerOffsetFirstDelay", 0)
    offset_timeout_ms: int = setting(5000, "offsetTimeout", 1)
    offset_directory: Path | None = setting(None, "rocketmq.client.localOffsetStoreDir")
    send_back_timeout_ms: int = setting(5000, "sendBackTimeout", 1)
    reset_wait_ms: int = setting(10_000, "resetOffsetWait", 0)

    trace: bool = setting(False, "enableTrace")
    trace_topic: str = setting("RMQ_SYS_TRACE_TOPIC", "traceTopic")
    trace_flush_ms: int = setting(5000, "traceFlushInterval", 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        for name in ("topic_messages_max", "topic_mib_max"):
            if getattr(self, name) == 0:
                raise SettingsError(name, "0 is out of range; use -1 for no limit, or at least 1")
        if isinstance(self.consume_timestamp, str) and self.consume_timestamp:
            consume_timestamp_ms(self.consume_timestamp)

    @property
    def attempts_max(self) -> int:
        """Retries of a message before it becomes a dead letter."""
        if self.reconsume_times_max >= 0:
            return self.reconsume_times_max
        return RECONSUME_TIMES_ORDERLY if self.orderly else RECONSUME_TIMES_CONCURRENT


def consume_timestamp_ms(text: str | datetime) -> int:
    """Convert a `consume_timestamp` to milliseconds since 1970. Raises SettingsError."""
    try:
        moment = datetime.strptime(text, CONSUME_TIMESTAMP_FORMAT) if isinstance(text, str) else text
    except ValueError:
        raise SettingsError(
            "consume_timestamp", f"the valid format is yyyyMMddHHmmss, but received {text!r}"
        ) from None
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True, kw_only=True)
class PullConsumerSettings:
    """Settings of a pull consumer; the names are those of RocketMQ's lite pull consumer.

    `consume_timestamp` is the start for ConsumeFrom.TIMESTAMP, as `yyyyMMddHHmmss` in local time or as a
    datetime; empty: half an hour before the consumer was created.
    """

    model: MessageModel = setting(MessageModel.CLUSTERING, "messageModel")
    consume_from: ConsumeFrom = setting(ConsumeFrom.LAST_OFFSET, "consumeFromWhere")
    consume_timestamp: str | datetime = setting("", "consumeTimestamp")

    # Polling and committing.
    poll_timeout_ms: int = setting(5000, "pollTimeoutMillis", 0)
    auto_commit: bool = setting(True, "autoCommit")
    auto_commit_interval_ms: int = setting(5000, "autoCommitIntervalMillis", 1)
    commit_timeout_ms: int = setting(5000, "commitTimeout", 1)

    # Prefetch limits: for all queues together, and per queue.
    messages_max: int = setting(10_000, "pullThresholdForAll", 1, 6_553_500)
    queue_messages_max: int = setting(1000, "pullThresholdForQueue", 1, 65_535)
    queue_mib_max: int = setting(100, "pullThresholdSizeForQueue", 1, 1024)
    span_max: int = setting(2000, "consumeMaxSpan", 1, 65_535)

    # Pulling.
    pull_batch_max: int = setting(10, "pullBatchSize", 1, 1024)
    hold_ms: int = setting(20_000, "brokerSuspendMaxTimeMillis", 1)
    pull_timeout_ms: int = setting(30_000, "consumerTimeoutMillisWhenSuspend", 1)  # of a held pull
    plain_pull_timeout_ms: int = setting(10_000, "consumerPullTimeoutMillis", 1)
    pull_failure_delay_ms: int = setting(1000, "pullTimeDelayMillsWhenException", 1)
    broker_busy_delay_ms: int = setting(20, "pullTimeDelayMillsWhenBrokerFlowControl", 1)
    start_failure_delay_ms: int = setting(3000, "pullTimeDelayMillsWhenStartOffsetUnknown", 1)

    # Rebalancing.
    rebalance_interval_ms: int = setting(20_000, "rocketmq.client.rebalance.waitInterval", 1)
    rebalance_gap_ms: int = setting(1000, "rocketmq.client.rebalance.minInterval", 1)
    queues_check_interval_ms: int = setting(30_000, "topicMetadataCheckIntervalMillis", 1)

    offset_timeout_ms: int = setting(6000, "offsetTimeout", 1)
    offset_directory: Path | None = setting(None, "rocketmq.client.localOffsetStoreDir")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.pull_timeout_ms < self.hold_ms:
            raise SettingsError(
                "pull_timeout_ms",
                f"{self.pull_timeout_ms} is less than hold_ms, {self.hold_ms}: every idle pull would fail",
            )
        if isinstance(self.consume_timestamp, str) and self.consume_timestamp:
            consume_timestamp_ms(self.consume_timestamp)


@dataclass(frozen=True, kw_only=True)
class SimpleConsumerSettings:
    """Settings of a simple consumer.

    With `orderly`, messages of a queue are received in order: a queue gives no further messages until those
    received are acknowledged or visible again.
    """

    consume_from: ConsumeFrom = setting(ConsumeFrom.LAST_OFFSET, "consumeFromWhere")
    orderly: bool = setting(False, "orderly")
    invisible_ms: int = setting(60_000, "invisibleDuration", 0, 43_200_000)
    wait_ms: int = setting(15_000, "awaitDuration", 0)
    attempts_max: int = setting(RECONSUME_TIMES_CONCURRENT, "maxAttempts", 1)
    request_timeout_ms: int = setting(10_000, "requestTimeout", 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.consume_from is ConsumeFrom.TIMESTAMP:
            raise SettingsError(
                "consume_from",
                "TIMESTAMP is not possible here; use FIRST_OFFSET or LAST_OFFSET, or reset the group",
            )
