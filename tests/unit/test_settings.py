"""Settings of the servers: defaults are RocketMQ's, ranges are held, texts are parsed or refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from skylark.errors import SettingsError
from skylark.settings import (
    BrokerSettings,
    FlushMode,
    NameServerSettings,
    StoreSettings,
    parse_delay_levels,
    parse_hours,
)

# RocketMQ's keys and defaults, as far as it has the setting. Ratios are percents here.
DEFAULTS = {
    "mappedFileSizeCommitLog": 1_073_741_824,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "messageIndexEnable": True,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "flushDiskType": FlushMode.ASYNC,
    "flushIntervalCommitLog": 500,
    "flushCommitLogLeastPages": 4,
    "flushCommitLogThoroughInterval": 10_000,
    "syncFlushTimeout": 5000,
    "flushIntervalConsumeQueue": 1000,
    "flushConsumeQueueThoroughInterval": 60_000,
    "osPageCacheBusyTimeOutMills": 1000,
    "maxMessageSize": 4_194_304,
    "enabledAppendPropCRC": False,
    "forceVerifyPropCRC": False,
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "maxTransferBytesOnMessageInMemory": 262_144,
    "maxTransferCountOnMessageInMemory": 32,
    "maxTransferBytesOnMessageInDisk": 65_536,
    "maxTransferCountOnMessageInDisk": 8,
    "accessMessageInMemoryMaxRatio": 40,
    "maxFilterMessageSize": 16_000,
    "maxMsgsNumBatch": 64,
    "deleteWhen": "04",
    "fileReservedTime": 72,
    "cleanResourceInterval": 10_000,
    "deleteCommitLogFilesInterval": 100,
    "deleteFileBatchMax": 10,
    "diskMaxUsedSpaceRatio": 75,
    "diskSpaceCleanForciblyRatio": 85,
    "diskSpaceWarningLevelRatio": 90,
}
BROKER_DEFAULTS = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": 0,
    "bindAddress": "127.0.0.1",  # RocketMQ binds every address
    "listenPort": 10_911,
    "metricsPromExporterPort": 5557,
    "registerNameServerPeriod": 30_000,
    "brokerPermission": 6,
    "defaultTopicQueueNums": 8,
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
    "sendThreadPoolQueueCapacity": 10_000,
    "pullThreadPoolQueueCapacity": 100_000,
    "waitTimeMillsInPullQueue": 5000,
    "longPollingEnable": True,
    "shortPollingTimeMills": 1000,
    "holdCheckInterval": 5000,
    "channelExpiredTimeout": 120_000,
    "clientScanInterval": 10_000,
    "notifyConsumerIdsChangedEnable": True,
    "rocketmq.broker.rebalance.lockMaxLiveTime": 60_000,
    "flushConsumerOffsetInterval": 5000,
    "flushDelayOffsetInterval": 10_000,
    "shutdownTimeout": 5000,
    "serverChannelMaxIdleTimeSeconds": 120,
    "com.rocketmq.remoting.frameMaxLength": 16 << 20,
}
NAME_SERVER_DEFAULTS = {
    "bindAddress": "127.0.0.1",
    "listenPort": 9876,
    "scanNotActiveBrokerInterval": 5000,
    "brokerTimeoutMillis": 120_000,
    "serverChannelMaxIdleTimeSeconds": 120,
    "needWaitForService": False,
    "waitSecondsForService": 45,
    "orderMessageEnable": False,
    "returnOrderTopicConfigToBroker": True,
    "deleteTopicWithBrokerRegistration": False,
}


@pytest.mark.parametrize(
    ("settings", "defaults"),
    [
        (StoreSettings(), DEFAULTS),
        (BrokerSettings(), BROKER_DEFAULTS),
        (NameServerSettings(), NAME_SERVER_DEFAULTS),
    ],
)
def test_the_defaults_are_those_of_rocketmq(settings: Any, defaults: dict[str, object]) -> None:
    ours = {
        spec.metadata["java"]: getattr(settings, spec.name)
        for spec in dataclasses.fields(settings)
        if "java" in spec.metadata
    }
    assert {key: ours[key] for key in defaults} == defaults


def test_each_setting_has_a_key_of_its_own() -> None:
    keys = [spec.metadata["java"] for spec in dataclasses.fields(StoreSettings)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("commit_log_file_bytes", 4096, None),
        ("consume_queue_file_bytes", 20, None),
        ("index_slots", 1, None),
        ("index_items", 2, None),
        ("flush_least_pages", 0, None),
        ("memory_share_percent", 1, 100),
        ("reserved_hours", 0, None),
        ("disk_clean_percent", 10, 95),
        ("disk_force_percent", 30, 85),
        ("disk_full_percent", 35, 90),
    ],
)
def test_ranges_include_both_ends(name: str, low: int, high: int | None) -> None:
    def with_value(value: Any) -> StoreSettings:
        return StoreSettings(**{name: value})

    for value in (low, high):
        if value is not None:
            assert getattr(with_value(value), name) == value
    for value in (low - 1, high + 1 if high is not None else -1):
        with pytest.raises(SettingsError, match=rf"setting {name}: {value} is out of range") as caught:
            with_value(value)
        assert caught.value.name == name


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        StoreSettings().reserved_hours = 1  # type: ignore[misc]


@pytest.mark.parametrize(("given", "rounded"), [(20, 20), (21, 40), (6_000_000, 6_000_000), (5999, 6000)])
def test_a_consume_queue_file_holds_whole_units(given: int, rounded: int) -> None:
    assert StoreSettings(consume_queue_file_bytes=given).consume_queue_file_bytes == rounded


def test_the_commit_log_lies_in_the_store_unless_told_otherwise() -> None:
    assert StoreSettings(path=Path("/a")).commit_log_directory == Path("/a/commitlog")
    assert StoreSettings(path=Path("/a"), commit_log_path=Path("/b")).commit_log_directory == Path("/b")


def test_which_mode_syncs_every_put() -> None:
    assert StoreSettings(flush_mode=FlushMode.SYNC).syncs_every_put
    assert not StoreSettings(flush_mode=FlushMode.ASYNC).syncs_every_put


def test_delay_levels_in_milliseconds() -> None:
    levels = parse_delay_levels(StoreSettings().delay_levels)
    minutes = [*range(1, 11), 20, 30, 60, 120]
    assert levels == [1000, 5000, 10_000, 30_000, *(minute * 60_000 for minute in minutes)]
    assert len(levels) == 18
    assert parse_delay_levels(" 2d   0s ") == [172_800_000, 0]


@pytest.mark.parametrize("text", ["", "  ", "1", "s", "1x", "-1s", "1.5s", "1s,2s", "²s"])
def test_delay_levels_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SettingsError, match="setting delay_levels"):
        StoreSettings(delay_levels=text)


def test_delete_hours() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("04;16; 23;") == {4, 16, 23}
    assert parse_hours("") == set()


@pytest.mark.parametrize("text", ["24", "-1", "04,16", "noon", "4:30"])
def test_delete_hours_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SettingsError, match="setting delete_hours"):
        StoreSettings(delete_hours=text)
