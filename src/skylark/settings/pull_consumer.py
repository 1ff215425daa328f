"""Settings of pull consumers. Defaults and the names in `java` are those of RocketMQ's lite pull consumer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from skylark.errors import SettingsError
from skylark.settings.consumer import ConsumeFrom, MessageModel, consume_timestamp_ms
from skylark.settings.fields import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class PullConsumerSettings:
    """How a pull consumer fetches ahead, commits and shares queues.

    `consume_timestamp` is where ConsumeFrom.TIMESTAMP begins, as `yyyyMMddHHmmss` in local time or a
    datetime; empty: half an hour before the consumer was made.
    """

    model: MessageModel = setting(MessageModel.CLUSTERING, "messageModel")
    consume_from: ConsumeFrom = setting(ConsumeFrom.LAST_OFFSET, "consumeFromWhere")
    consume_timestamp: str | datetime = setting("", "consumeTimestamp")

    # Polling and committing.
    poll_timeout_ms: int = setting(5000, "pollTimeoutMillis", 0)
    auto_commit: bool = setting(True, "autoCommit")
    auto_commit_interval_ms: int = setting(5000, "autoCommitIntervalMillis", 1)
    commit_timeout_ms: int = setting(5000, "commitTimeout", 1)

    # How much is fetched ahead: of all queues together, and of one.
    messages_max: int = setting(10_000, "pullThresholdForAll", 1, 6_553_500)
    queue_messages_max: int = setting(1000, "pullThresholdForQueue", 1, 65_535)
    queue_mib_max: int = setting(100, "pullThresholdSizeForQueue", 1, 1024)
    span_max: int = setting(2000, "consumeMaxSpan", 1, 65_535)

    # Pulling.
    pull_batch_max: int = setting(10, "pullBatchSize", 1, 1024)
    hold_ms: int = setting(20_000, "brokerSuspendMaxTimeMillis", 1)
    pull_timeout_ms: int = setting(30_000, "consumerTimeoutMillisWhenSuspend", 1)  # of a pull that is held
    plain_pull_timeout_ms: int = setting(10_000, "consumerPullTimeoutMillis", 1)
    pull_failure_delay_ms: int = setting(1000, "pullTimeDelayMillsWhenException", 1)
    broker_busy_delay_ms: int = setting(20, "pullTimeDelayMillsWhenBrokerFlowControl", 1)
    start_failure_delay_ms: int = setting(3000, "pullTimeDelayMillsWhenStartOffsetUnknown", 1)

    # Sharing queues.
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
