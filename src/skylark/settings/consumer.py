"""Settings of consumers. The defaults, ranges and names in `java` are those of RocketMQ's clients."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.fields import check_ranges, setting

CONSUME_TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
OFFSET_DIRECTORY = ".rocketmq_offsets"
RECONSUME_TIMES_CONCURRENT = 16
RECONSUME_TIMES_ORDERLY = (1 << 31) - 1


class MessageModel(Enum):
    """Who of a group gets a message: one member, or every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(Enum):
    """Where a group begins that has no offset yet. Values are the words of heartbeats."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True, kw_only=True)
class PushConsumerSettings:
    """How a push consumer pulls, consumes and shares queues.

    `consume_timestamp` is where ConsumeFrom.TIMESTAMP begins, as `yyyyMMddHHmmss` in local time or as a
    datetime; empty: half an hour before the consumer was made.
    """

    model: MessageModel = setting(MessageModel.CLUSTERING, "messageModel")
    orderly: bool = setting(False, "orderly")
    consume_from: ConsumeFrom = setting(ConsumeFrom.LAST_OFFSET, "consumeFromWhere")
    consume_timestamp: str | datetime = setting("", "consumeTimestamp")

    # Consuming.
    batch_max: int = setting(1, "consumeMessageBatchMaxSize", 1, 1024)
    threads_max: int = setting(20, "consumeThreadMax", 1, 1000)  # or coroutines, for async listeners
    consume_timeout_ms: int = setting(900_000, "consumeTimeout", 1)
    reconsume_times_max: int = setting(-1, "maxReconsumeTimes", -1, RECONSUME_TIMES_ORDERLY)
    suspend_ms: int = setting(1000, "suspendCurrentQueueTimeMillis", 10, 30_000)
    local_retry_ms: int = setting(5000, "localRetryDelay", 1)
    stop_wait_ms: int = setting(20_000, "awaitTerminationMillisWhenShutdown", 0)

    # How much may wait here: for a queue, and shared by the queues of a consumer (-1: no limit).
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

    # Sharing queues.
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
                raise SettingsError(name, "0 is out of range, allowed is -1 for no limit, or at least 1")
        if isinstance(self.consume_timestamp, str) and self.consume_timestamp:
            consume_timestamp_ms(self.consume_timestamp)

    @property
    def attempts_max(self) -> int:
        """How often a message is tried again before it becomes a dead letter."""
        if self.reconsume_times_max >= 0:
            return self.reconsume_times_max
        return RECONSUME_TIMES_ORDERLY if self.orderly else RECONSUME_TIMES_CONCURRENT


def consume_timestamp_ms(text: str | datetime) -> int:
    """Return the milliseconds since 1970 of a `consume_timestamp`. Raises SettingsError."""
    try:
        moment = datetime.strptime(text, CONSUME_TIMESTAMP_FORMAT) if isinstance(text, str) else text
    except ValueError:
        raise SettingsError(
            "consume_timestamp", f"the valid format is yyyyMMddHHmmss, but received {text!r}"
        ) from None
    return round(moment.timestamp() * 1000)
